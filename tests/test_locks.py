"""Locks between processes: one at a time, freed by any end, and of the file that is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tcl_core.locks import holder, is_still, lock_if_there, try_lock, wait_for_lock

HOLDS = """
import sys
from tcl_core.locks import try_lock, wait_for_lock
file = open(sys.argv[1])
print(try_lock(file), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path) -> Path:
    (tmp_path / "lock").touch()
    return tmp_path / "lock"


@pytest.fixture
def other(path):
    """Another process that holds the lock until it is killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert child.stdout.readline() == "True\n"
    yield child
    child.kill()
    child.communicate()


def test_a_lock_has_one_holder_and_dies_with_it(path, other):
    with open(path) as file:
        assert not try_lock(file) and not lock_if_there(path, file.fileno())
        assert holder(path) == f"process {other.pid}"
        other.kill()
        other.wait()
        wait_for_lock(file)  # at once: it is free
        with open(path) as second:
            assert not try_lock(second)
        assert holder(path) == f"process {os.getpid()}"
    with open(path) as file:
        assert try_lock(file)


def test_nobody_holds_what_nobody_locked(path):
    assert holder(path) == holder(path.with_name("none")) == "another process"


def test_the_lock_of_a_file_that_was_removed_or_made_anew_does_not_count(path):
    with open(path) as file:
        assert is_still(path, file.fileno()) and lock_if_there(path, file.fileno())
        path.unlink()
        assert not is_still(path, file.fileno()) and not lock_if_there(path, file.fileno())
        path.touch()
        assert not is_still(path, file.fileno()) and not lock_if_there(path, file.fileno())
        with open(path) as new:
            assert lock_if_there(path, new.fileno())


def test_what_is_not_open_cannot_be_locked(path):
    """Nor what lies where there are no locks: who took that for taken would wait for nobody."""
    with pytest.raises(OSError, match="Bad file descriptor"):
        lock_if_there(path, 10**6)
    with pytest.raises(OSError, match="Bad file descriptor"):
        try_lock(10**6)

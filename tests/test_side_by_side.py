"""Work for several processes."""

from __future__ import annotations

import math
import multiprocessing
import os
import time

import psutil
import pytest

from tcl_core.errors import PlatformError
from tcl_core.side_by_side import side_by_side

DIED = PlatformError("a process that computes died; run again")


@pytest.mark.parametrize("processes", [1, 2])
def test_each_job_comes_with_what_was_made_of_it(processes):
    assert dict(side_by_side(math.sqrt, [1.0, 4.0, 9.0], processes, os.getcwd, DIED)) == {1.0: 1.0, 4.0: 2.0, 9.0: 3.0}


def test_it_is_done_in_processes_of_its_own():
    parents = {parent for _, parent in side_by_side(_parent, [None, None], 2, os.getcwd, DIED)}
    assert parents == {os.getpid()}


def _parent(_: None) -> int:
    return os.getppid()


@pytest.mark.parametrize("processes", [1, 2])
def test_what_the_work_raises_is_raised(processes):
    with pytest.raises(ValueError, match="math domain"):
        list(side_by_side(math.sqrt, [1.0, -1.0], processes, os.getcwd, DIED))
    assert_nothing_is_left()


def test_a_process_that_dies_is_one_sentence():
    with pytest.raises(PlatformError, match="a process that computes died"):
        list(side_by_side(os._exit, [3, 3], 2, os.getcwd, DIED))
    assert_nothing_is_left()


def test_whoever_stops_early_waits_for_no_job():
    found = side_by_side(time.sleep, [0.0, 600.0], 2, os.getcwd, DIED)
    assert next(found) == (0.0, None)
    found.close()
    assert_nothing_is_left()


def assert_nothing_is_left():
    """Of the processes, soon; that of multiprocessing's own book-keeping stays."""
    until = time.monotonic() + 30
    while multiprocessing.active_children() and time.monotonic() < until:
        time.sleep(0.01)
    names = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert not multiprocessing.active_children() and not [name for name in names if "spawn_main" in name]

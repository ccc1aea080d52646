"""A process ends with the one that it works for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tcl_core import process

ROOT = Path(__file__).resolve().parents[1]
CHILD = "import os, sys, time; from tcl_core.process import die_with_parent; die_with_parent({}); print(os.getpid(), flush=True); time.sleep(600)"
PARENT = "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', sys.argv[1]]); child.wait()"


def test_the_kernel_ends_a_child_when_its_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD.format("")], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    child = int(parent.stdout.readline())
    os.kill(child, 0)  # it is there
    parent.kill()
    assert parent.communicate(timeout=30)[0] == ""  # ends when the last process that can write to it has ended


def test_a_child_whose_parent_went_before_it_could_ask_ends_at_once():
    ended = subprocess.run([sys.executable, "-c", CHILD.format(1 << 22)], capture_output=True, cwd=ROOT, timeout=30)
    assert (ended.returncode, ended.stdout) == (1, b"")


def test_who_was_started_by_nobody_watches_nobody(monkeypatch):
    monkeypatch.delenv(process.PARENT_PID, raising=False)
    monkeypatch.delenv("DVC_STAGE", raising=False)
    monkeypatch.setattr(process.threading, "Thread", lambda **_: pytest.fail("there is nobody to watch"))
    process.end_with_parents(pytest.fail)
    monkeypatch.setenv(process.PARENT_PID, "x")
    said = []
    process.end_with_parents(said.append)
    assert said == ["tcl: TCL_PARENT_PID is 'x', which is no process id; it is left out"]


def test_a_flow_that_is_gone_already_ends_its_command():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    watch = "import sys; from tcl_core.process import end_with; end_with(int(sys.argv[1]))"
    assert subprocess.run([sys.executable, "-c", watch, str(gone.pid)], cwd=ROOT, timeout=30).returncode == -signal.SIGTERM

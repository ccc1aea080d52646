"""Child processes of a flow, on a project with two tiny real DVC stages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from flows import dvc_stage
from tcl_core.errors import UsageError

STAGE = """
import json, os, sys
say = lambda text, code: open(os.environ["TCL_ANSWER_FILE"], "w").write(json.dumps({"text": text, "exit_code": code}))
if sys.argv[1] == "broken":
    say("the board is not to be had; plug it in", 4)
    sys.exit(4)
open("out.txt", "w").write(os.environ.get("TCL_AGAIN", "first"))
say("wrote out.txt", 0)
"""
DVC = """
stages:
  good:
    cmd: python stage.py good
    outs: [out.txt]
  broken:
    cmd: python stage.py broken
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    (tmp_path / "dvc.yaml").write_text(DVC)
    (tmp_path / "stage.py").write_text(STAGE)
    return tmp_path


def reproduce(stage: str, **options) -> str:
    return dvc_stage.reproduce(stage, {}, lambda: None, **options)


def test_a_stage_runs_once_and_again_only_on_demand(project):
    assert reproduce("good") == "wrote out.txt"
    assert reproduce("good") == ""
    assert (project / "out.txt").read_text() == "first"
    assert reproduce("good", again=True) == "wrote out.txt"
    assert (project / "out.txt").read_text() == "1"


def test_a_failed_stage_gives_its_own_sentence_and_exit_code(project):
    with pytest.raises(dvc_stage.StageFailed) as failed:
        reproduce("broken")
    assert str(failed.value) == "broken: the board is not to be had; plug it in"
    assert failed.value.exit_code == 4


def test_a_silent_failure_says_how_to_see_more(project):
    with pytest.raises(dvc_stage.StageFailed, match="to see why, run: python -m dvc repro --single-item missing"):
        reproduce("missing")


def test_when_the_flow_breaks_off_its_child_goes_too(project, monkeypatch):
    monkeypatch.setattr(dvc_stage, "INTERRUPT_S", 0.2)
    this, children = dvc_stage.psutil.Process(), []
    others = set(this.children(recursive=True))  # such as a resource tracker that an earlier test started

    def stop() -> None:
        children.extend(set(this.children(recursive=True)) - others)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dvc_stage._run("sleep", [sys.executable, "-c", "import time; time.sleep(60)"], {}, stop)
    assert children and not any(child.is_running() for child in children)


def lock_of(pid: int) -> str:
    return json.dumps({"write": {"out.txt": {"pid": pid, "cmd": "dvc repro good"}}, "read": {}})


@pytest.fixture
def rwlock(project):
    dvc_stage.LOCKS.mkdir(parents=True)
    return dvc_stage.LOCKS / "rwlock"


def test_locks_of_the_dead_are_forgotten(rwlock):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for left in (lock_of(gone.pid), lock_of(os.getpid()), '{"write": {"out'):  # dead, number taken by another, torn
        rwlock.write_text(left)
        dvc_stage.forget_dead_locks(patience_s=0)
        assert not rwlock.exists()


def test_the_lock_of_a_living_dvc_stays(rwlock):
    dvc = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "dvc"])
    try:
        rwlock.write_text(lock_of(dvc.pid))
        dvc_stage.forget_dead_locks(patience_s=0)
        assert rwlock.read_text() == lock_of(dvc.pid)
    finally:
        dvc.send_signal(signal.SIGKILL)
        dvc.wait()


def test_two_runs_do_not_measure_at_once(project):
    with dvc_stage.only_run():
        with pytest.raises(UsageError, match="another run is at work"):
            with dvc_stage.only_run():
                pass
    with dvc_stage.only_run():
        pass

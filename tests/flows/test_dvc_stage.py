"""Child processes of a flow, on a project with two tiny real DVC stages."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from flows import dvc_stage
from tcl_core.locks import try_lock
from tcl_core.errors import BusyError
from tcl_core.process import PARENT_PID
from tests.shipped import SHIPPED

ROOT = Path(__file__).resolve().parents[2]

STAGE = """
import json, os, sys
say = lambda text, code: open(os.environ["TCL_ANSWER_FILE"], "w").write(json.dumps({"text": text, "exit_code": code}))
if sys.argv[1] == "broken":
    say("the board is not to be had; plug it in", 4)
    sys.exit(4)
if sys.argv[1] == "unsaved":
    say("wrote nothing", 0)
    sys.exit(0)
open("out.txt", "w").write(os.environ.get("TCL_FORCE", "first"))
say("wrote out.txt", 0)
"""
DVC = """
stages:
  good:
    cmd: python stage.py good
    outs: [out.txt]
  broken:
    cmd: python stage.py broken
  early:
    cmd: python stage.py good
    deps: [data/models]
  killed:
    cmd: kill -9 $PPID
  unsaved:
    cmd: python stage.py unsaved
    outs: [never.txt]
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
    assert reproduce("good", anew=True) == "wrote out.txt"
    assert (project / "out.txt").read_text() == "first"
    assert reproduce("good", force=True) == "wrote out.txt"
    assert (project / "out.txt").read_text() == "1"


def test_a_failed_stage_gives_its_own_sentence_and_exit_code(project):
    with pytest.raises(dvc_stage.StageFailed) as failed:
        reproduce("broken")
    assert str(failed.value) == "broken: the board is not to be had; plug it in"
    assert failed.value.exit_code == 4


def test_a_silent_failure_says_how_to_see_more(project):
    with pytest.raises(
        dvc_stage.StageFailed, match="^killed: failed without a word; to see why, run: python -m dvc repro --single-item killed$"
    ):
        reproduce("killed")


def test_where_dvc_fails_after_the_stage_its_answer_is_no_reason(project):
    """As where a disk is too full for what the stage has written: the stage itself ended well."""
    with pytest.raises(dvc_stage.StageFailed, match="^unsaved: failed without a word; to see why, run: python -m dvc repro"):
        reproduce("unsaved")


def test_what_dvc_refuses_to_begin_is_said(project):
    early = re.escape("early: what it needs is not there (data/models); run the stages before it: dvc repro early")
    with pytest.raises(dvc_stage.StageFailed, match=f"^{early}$") as failed:
        reproduce("early")
    assert failed.value.exit_code == 3
    with pytest.raises(dvc_stage.StageFailed, match=r"^unheard: DVC cannot begin it \('unheard' does not exist"):
        reproduce("unheard")
    (project / "dvc.yaml").write_text("stages: [")
    with pytest.raises(dvc_stage.StageFailed, match=r"^good: DVC cannot begin it \(.*dvc.yaml"):
        reproduce("good")


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


@pytest.mark.parametrize("answer", ["", "{", "[]", '"text"', '{"text": 1}', '{"text": "a", "exit_code": "b"}', "\xff"])
def test_an_answer_that_was_cut_short_is_none(tmp_path, answer):
    file = tmp_path / "answer.json"
    assert dvc_stage._answer(file) == ("", 0)
    file.write_bytes(answer.encode("latin-1"))
    assert dvc_stage._answer(file) == ("", 0)


STAYING = """
import os, sys, time
sys.path.insert(0, {root!r})
from tcl_core.process import end_with_parents
end_with_parents(print)
open("pid.tmp", "w").write(str(os.getpid()))
os.rename("pid.tmp", "pid")
time.sleep(120)
"""


@pytest.mark.parametrize("cmd", ["python staying.py", "python staying.py; true"])  # the shell gives its place, or stays
def test_a_stage_ends_with_the_dvc_that_runs_it(project, cmd):
    (project / "dvc.yaml").write_text(f"stages: {{staying: {{cmd: {cmd}}}}}")
    (project / "staying.py").write_text(STAYING.format(root=str(ROOT)))
    environment = dvc_stage._environment(project / "answer.json", {})
    del environment[PARENT_PID]
    dvc = subprocess.Popen([sys.executable, "-m", "dvc", "repro", "--quiet"], env=environment)
    stage = None
    try:
        deadline = time.monotonic() + 60
        while not (project / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        stage = dvc_stage.psutil.Process(int((project / "pid").read_text()))
        dvc.kill()  # and not yet waited for, as by a parent that is busy
        _, alive = dvc_stage.psutil.wait_procs([stage], timeout=30)
        assert alive == []
    finally:
        for process in filter(None, (dvc, stage)):
            with suppress(dvc_stage.psutil.Error):
                process.kill()
        dvc.wait()


def lock_of(pid: int) -> str:
    return json.dumps({"write": {"out.txt": {"pid": pid, "cmd": "dvc repro good"}}, "read": {}})


@pytest.fixture
def rwlock(project):
    dvc_stage.LOCKS.mkdir(parents=True)
    return dvc_stage.LOCKS / "rwlock"


def test_locks_of_the_dead_are_forgotten(rwlock):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    rubbish = ["[]", "7", '{"write": []}', '{"write": {"a": {}}}', '{"read": {"a": [7]}}', lock_of("x"), lock_of(10**30), "\xff"]
    for left in (lock_of(gone.pid), lock_of(os.getpid()), '{"write": {"out', *rubbish):  # dead, taken by another, torn
        rwlock.write_bytes(left.encode("latin-1"))
        dvc_stage.forget_dead_locks(patience_s=0)
        assert not rwlock.exists()


def test_the_lock_of_a_living_dvc_stays(rwlock):
    dvc = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "dvc"])
    deadline = time.monotonic() + 10
    while not dvc_stage._is_dvc(dvc.pid) and time.monotonic() < deadline:  # for a moment it has no words yet
        time.sleep(0.01)
    try:
        rwlock.write_text(lock_of(dvc.pid))
        dvc_stage.forget_dead_locks(patience_s=0)
        assert rwlock.read_text() == lock_of(dvc.pid)
    finally:
        dvc.send_signal(signal.SIGKILL)
        dvc.wait()


def test_the_lock_of_runs_is_never_written_to(project):
    (project / "precious.txt").write_text("years of work")
    dvc_stage.LOCKS.mkdir(parents=True)
    (dvc_stage.LOCKS / "flow.lock").symlink_to(project / "precious.txt")
    with dvc_stage.only_run():
        assert (project / "precious.txt").read_text() == "years of work"


def test_two_runs_do_not_measure_at_once(project):
    with dvc_stage.only_run():
        with pytest.raises(BusyError, match="another run is at work"):
            with dvc_stage.only_run():
                pass
    with dvc_stage.only_run():
        pass


def test_a_run_that_waits_says_so_once_and_gives_up(project):
    told = []
    with dvc_stage.only_run():
        with pytest.raises(
            dvc_stage.Busy, match="was at work in this folder for 0.01 minutes, so this one did nothing; start it again later"
        ):
            with dvc_stage.only_run(0.6, told.append):
                pass
    assert told == ["another run is at work in this folder; waiting for its end, up to 0.01 minutes"]


def test_a_run_that_waits_has_its_turn(project):
    with dvc_stage.only_run():
        holder = open(dvc_stage.LOCKS / "flow.lock", "ab")
    assert try_lock(holder)
    with dvc_stage.only_run(60.0, lambda text: holder.close()):  # the other one ends while this one waits
        assert holder.closed


def test_wrong_words_reach_the_flow_with_their_exit_code(tmp_path, monkeypatch):
    """As of somebody who starts a flow with a negative number of trials."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(SHIPPED, tmp_path)
    with pytest.raises(dvc_stage.StageFailed, match="^tune: Invalid value for '--trials': .* 1; see: tcl --help$") as failed:
        dvc_stage.run_command("tune", {}, ["--trials", "-5"])
    assert failed.value.exit_code == 2

"""`tcl collect --force`: it keeps what was measured before, and goes on where it was stopped."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

from tcl_core import store
from tcl_core.errors import DataError
from tcl_core.journal import iter_journal
from tcl_core.stages import collecting
from tcl_core.stages.workspace import Workspace
from tests.commands import tcl
from tests.stages import tiny_project
from tests.stages.tiny_project import JOURNAL, ROUNDS, lines_of, write_params

here, networks, pool = tiny_project.here, tiny_project.networks, tiny_project.pool


def test_measuring_again_keeps_the_old_journal(pool, runners):
    """Nothing that was measured is ever deleted; three times within a second, since names must not meet."""
    tcl("collect", "-p", "first")
    journals = [(JOURNAL / "records.jsonl").read_bytes()]
    for times in (1, 2, 3):
        tcl("collect", "-p", "first", "--force")
        assert len(runners[-1].jobs) == 20
        kept = sorted(JOURNAL.parent.glob("first.before-*"))
        assert [(k / "records.jsonl").read_bytes() for k in kept] == journals and len(kept) == times
        journals.append((JOURNAL / "records.jsonl").read_bytes())
    assert [s["from_journal"] for s in lines_of(ROUNDS) if s["step"] == "measure"] == [0, 0, 0]
    assert not list(Path("data/journal").rglob(collecting.FORCED))
    tcl("holdout", "-p", "first", "--force")  # without a journal there is nothing to keep
    assert len(list(Path("data/journal/holdout").iterdir())) == 1


def test_a_run_that_is_started_once_more_measures_again_once(pool, runners, monkeypatch):
    """A crash after it, in training perhaps: its parameters still say what is to be measured again.  Another run does it anew."""
    tcl("collect", "-p", "first")
    for run, times in (("one", 1), ("one", 1), ("other", 2)):
        monkeypatch.setenv("TCL_FLOW_RUN_ID", run)
        tcl("collect", "-p", "first", "--force")
        assert len(list(JOURNAL.parent.glob("first.before-*"))) == times
    assert [len(runner.jobs) for runner in runners if runner.jobs] == [20, 20, 20]


@pytest.mark.parametrize("stage", ["collect", "holdout"])
def test_measuring_again_that_was_stopped_goes_on(pool, runners, capfd, stage):
    """The same command, which a stop promises to go on, keeps what it had measured; so does one without --force."""
    write_params({"collect.sampler": "random"})  # trains nothing
    tcl(stage, "-p", "first")
    journal = Workspace().journal_folder("first", stage)
    old, runners.limit = (journal / "records.jsonl").read_bytes(), 1
    for force in (True, True, False):
        with pytest.raises(KeyboardInterrupt):
            tcl(stage, "-p", "first", *["--force"] * force)
    assert len(list(iter_journal(journal))) == 3
    (kept,) = journal.parent.glob("first.before-*")
    assert (kept / "records.jsonl").read_bytes() == old
    mark = journal / collecting.FORCED
    assert f"going on with the --force that was stopped; to begin anew once more, remove {mark} first" in capfd.readouterr().err
    runners.limit = None
    tcl(stage, "-p", "first", "--force")
    assert len(list(iter_journal(journal))) == len(runners[-1].jobs) + 3 and not mark.exists()
    assert [path.name for path in journal.parent.glob("first.before-*")] == [kept.name]
    tcl(stage, "-p", "first", "--force")  # it ended well, so this one begins anew
    assert len(list(journal.parent.glob("first.before-*"))) == 2


def test_measuring_the_whole_chain_again_goes_on_where_it_was_stopped(pool, runners, monkeypatch):
    """Also past the platforms that it had finished."""
    write_params({"collect.sampler": "random"})  # trains nothing
    tcl("collect")
    real = collecting.collect

    def stop_at_second(project, platform, force):
        if platform == "second":
            raise KeyboardInterrupt
        return real(project, platform, force)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(collecting, "collect", stop_at_second)
        tcl("collect", "--force")
    tcl("collect", "--force")
    assert [len(runner.jobs) for runner in runners] == [20, 10, 20, 0, 10]
    assert sorted(path.name.partition(".before")[0] for path in JOURNAL.parent.glob("*.before-*")) == ["first", "second"]


def test_two_who_measure_again_at_once_measure_once(pool, runners, monkeypatch, capfd):
    """The second one waited for the machine: what the first one measured meanwhile stands."""
    write_params({"collect.sampler": "random"})  # trains nothing
    tcl("collect", "-p", "first")
    real, first = collecting.measuring_alone, []

    @contextmanager
    def after_another():
        if not first:
            first.append(True)
            tcl("collect", "-p", "first", "--force")
        with real():
            yield

    monkeypatch.setattr(collecting, "measuring_alone", after_another)
    tcl("collect", "-p", "first", "--force")
    assert [len(runner.jobs) for runner in runners] == [20, 20, 0]
    assert len(list(JOURNAL.parent.glob("first.before-*"))) == 1
    assert f"another process has measured into {JOURNAL} meanwhile" in capfd.readouterr().err


@pytest.mark.parametrize("stage", ["collect", "holdout"])
def test_nothing_is_set_aside_when_nothing_can_be_measured(pool, runners, stage):
    write_params({"collect.sampler": "random"})  # trains nothing
    tcl(stage, "-p", "first")
    journal = Workspace().journal_folder("first", stage)
    shutil.move("data/programs/pool", "elsewhere")
    with pytest.raises(DataError, match="the stage candidates writes it"):
        tcl(stage, "-p", "first", "--force")
    assert not list(journal.parent.glob("*.before-*")) and not (journal / collecting.FORCED).exists()


@pytest.mark.parametrize("stage, split", [("collect", "train"), ("holdout", "held_out")])
def test_programs_of_tasks_that_are_gone_are_refused_before_anything_is_set_aside(pool, runners, stage, split):
    """Tasks were cut anew, and candidates were not drawn for them yet."""
    write_params({"collect.sampler": "random"})  # trains nothing
    tcl(stage, "-p", "first")
    tables, journal = Workspace().task_tables, Workspace().journal_folder("first", stage)
    gone = Workspace().programs(split)[0].task_key
    rows = store.read_table(tables / "tasks.parquet", "tasks")
    store.write_table(tables / "tasks.parquet", "tasks", [row for row in rows if row["task_key"] != gone])
    for more in ([], ["--force"]):
        with pytest.raises(DataError, match=f"sketch . of task {gone} is not in the pool; run the stage candidates again"):
            tcl(stage, "-p", "first", *more)
    assert not list(journal.parent.glob("*.before-*")) and not (journal / collecting.FORCED).exists()


def test_what_was_stopped_long_ago_is_begun_anew(pool, runners):
    """Half of it may be of a machine that was another one then."""
    write_params({"collect.sampler": "random"})  # trains nothing
    tcl("collect", "-p", "first")
    journal, runners.limit = Workspace().journal_folder("first", "collect"), 1
    with pytest.raises(KeyboardInterrupt):
        tcl("collect", "-p", "first", "--force")
    for file in journal.iterdir():
        long_ago = file.stat().st_mtime - 2 * collecting.MARKED_S
        os.utime(file, (long_ago, long_ago))
    runners.limit = None
    tcl("collect", "-p", "first", "--force")
    assert len(runners[-1].jobs) == 20 and len(list(journal.parent.glob("first.before-*"))) == 2

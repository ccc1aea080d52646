"""The proof that nothing is lost can fail: planted losses, silent changes, hangs and leftovers are counted as such."""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import _corruptions
import _full_disks
import _kills
import _lanes
import _state
import _tables
import _twice
import faults
import pytest
from _lanes import DISK_FULL, KILL_PROCESS, Harm, Lane
from _trials import Command, Finding, Result, Workshop

from tcl_core.journal import Journal
from tcl_core.records import Record

PROLOGUE = "import os, sys, time\nos.makedirs('data', exist_ok=True)\n"
# Writes aside and renames: whole or not there.
SOUND = """
with open('data/.aside', 'wb', buffering=0) as file:
    file.write(b'result')
    os.fsync(file.fileno())
os.replace('data/.aside', 'data/result')
"""
APPENDS = """
with open('data/result', 'ab', buffering=0) as file:
    file.write(b'one ')
    file.write(b'two ')
"""
OVERWRITES = """
try:
    with open('data/kept', 'wb', buffering=0) as file:
        file.write(b'new, as it should be')
except OSError as error:
    sys.exit(f'tcl: data/kept: {error}')
"""
REFUSES_DAMAGE = """
text = open('data/given', 'rb').read()
if text != b'sound':
    print('tcl: data/given is damaged; make it again')
    sys.exit(3)
open('data/result', 'wb').write(text)
"""
TRUSTS = "open('data/result', 'wb').write(open('data/given', 'rb').read())"
UNFORESEEN = "assert open('data/given', 'rb').read() == b'sound'"
NEVER_ENDS = "time.sleep(60) if open('data/given', 'rb').read() != b'sound' else None"
LEAVES_FILES = SOUND + "open('data/.tcl-123.tmp', 'w').close()"
LEAVES_A_PROCESS = SOUND + "import subprocess; subprocess.Popen(['/bin/sleep', '30'])"


@pytest.fixture(scope="module")
def lane(tmp_path_factory) -> Iterator[Lane]:
    """A lane whose server runs programs, and imports nothing for `tcl`."""
    folder = tmp_path_factory.mktemp("faults") / "lane-0000"
    for place in ("tmp", "project"):
        (folder / place).mkdir(parents=True)
    shim = _lanes.build_shim(folder)
    lane = Lane.start(folder, shim, {"PATH": "/usr/bin:/bin", "TMPDIR": str(folder / "tmp")}, warm=False)
    yield lane
    lane.close()


@pytest.fixture
def shop(lane, tmp_path) -> Callable[..., Workshop]:
    """Makes a workshop of one command, a script, in a project with the files data/kept and data/given."""

    def make(script: str, limit_s: float = 10.0) -> Workshop:
        finished = tmp_path / "finished" / lane.folder.name
        (finished / "project/data").mkdir(parents=True)
        (finished / "project/data/kept").write_text("what was there")
        (finished / "project/data/given").write_text("sound")
        argv = (sys.executable, "-S", "-c", PROLOGUE + script)
        return Workshop(tmp_path, finished, [lane], [Command("script", argv, lambda project: None, limit_s=limit_s)])

    return make


def kinds(results) -> set[str]:  # type: ignore[no-untyped-def]
    return {finding.kind for result in results for finding in result.findings}


def all_kills(shop: Workshop) -> set[str]:
    calls = shop.named("script").outcome.calls
    assert calls >= 2
    wanted = [_kills.Kill("script", at, group=at % 2 == 0, later=False) for at in range(1, calls + 1)]
    results = [_kills.kill(shop, shop.lanes[0], kill) for kill in wanted]
    assert "not reached" not in {result.outcome for result in results}
    return kinds(results)


def test_what_is_written_aside_survives_every_kill(shop):
    assert all_kills(shop(SOUND)) == set()


def test_what_was_appended_twice_is_seen(shop):
    assert all_kills(shop(APPENDS)) == {"silent"}


def test_a_file_that_stays_aside_is_seen(shop):
    assert all_kills(shop(LEAVES_FILES)) == {"leftovers"}


def test_a_process_that_stays_is_seen_and_ended(shop, lane, monkeypatch):
    monkeypatch.setattr(_kills, "processes_left", lambda folder, patience_s=0.1: _state.processes_left(folder, patience_s))
    assert _kills.kill(shop(LEAVES_A_PROCESS), lane, _kills.Kill("script", 99, True, False)).findings[0].kind == "leftovers"
    assert _state.processes_left(lane.folder, 2.0) == 0


def test_the_nth_call_is_hit_and_a_write_is_torn(shop, lane):
    ready = shop(APPENDS).named("script")
    (lane.project / "data/result").unlink()
    outcome = lane.run(*ready.command.argv, harm=Harm(KILL_PROCESS, ready.outcome.calls))
    assert outcome.code == -9 and outcome.hit == "write data/result"
    assert (lane.project / "data/result").read_text() == "one tw"


def test_the_disk_is_full_from_the_nth_call_on(shop, lane):
    ready = shop(APPENDS).named("script")
    outcome = lane.run(*ready.command.argv, harm=Harm(DISK_FULL, ready.outcome.calls - 1))
    assert outcome.code == 1 and "No space left" in outcome.said


def test_a_kill_at_a_moment(lane):
    outcome = lane.run("/bin/sleep", "20", harm=Harm(after_s=0.2, group=True))
    assert outcome.code == -9 and outcome.seconds < 10


OUR_SENTENCE = "tcl: no room"
OF_A_STAGE = "ERROR: failed to reproduce 'train': failed to run: python -m tcl_core.cli train, exited with 4"
OF_DVC = "ERROR: unexpected error - [Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("name", "said", "kinds"),
    [
        ("evaluate, call 7", OUR_SENTENCE, ["unforeseen"]),
        ("evaluate, call 7", f"{OUR_SENTENCE} for data/reports/evaluation.json", []),
        ("dvc repro, call 7", OUR_SENTENCE, ["unforeseen"]),
        ("dvc repro, call 7", f"ERROR: no room, exited with 4\n{OUR_SENTENCE}", ["unforeseen"]),
        ("dvc repro, call 7", OF_A_STAGE, []),
        ("dvc repro, call 7", OF_DVC, []),
        ("evaluate, call 7", OF_DVC, ["unforeseen"]),
    ],
)
def test_only_where_dvc_itself_found_no_room_no_file_needs_a_name(name, said, kinds):
    full = _lanes.Outcome(code=4, said=said, seconds=1.0, hit="write data/reports/evaluation.json")
    assert [finding.kind for finding in _full_disks.said_well(full, name)] == kinds


def test_only_a_torn_lock_of_dvc_is_removed_and_only_its_own_temporary_files_are_passed_over(tmp_path):
    lock = tmp_path / ".dvc/tmp/rwlock"
    lock.parent.mkdir(parents=True)
    assert not _kills.remove_torn_lock(tmp_path)
    lock.write_text('{"read": {}}')
    assert not _kills.remove_torn_lock(tmp_path) and lock.exists()
    lock.write_text('{"read": {')
    assert _kills.remove_torn_lock(tmp_path) and not lock.exists()

    (tmp_path / "data").mkdir()
    for name in (".s3cr3t-Name_of_22_char.tmp", ".report.json.tmp", "report.tmp"):
        (tmp_path / "data" / name).touch()
    assert [path.name for path in _state.files(tmp_path)] == [".report.json.tmp", "report.tmp"]


@pytest.mark.parametrize(
    ("script", "kind"),
    [(REFUSES_DAMAGE, set()), (TRUSTS, {"silent"}), (UNFORESEEN, {"unforeseen"}), (NEVER_ENDS, {"stuck"})],
)
def test_what_a_command_makes_of_damage(shop, lane, script, kind):
    wanted = _corruptions.Corruption("script", "data/given", "one bit", 1)
    assert kinds([_corruptions.corrupt(shop(script, limit_s=1.0), lane, wanted)]) == kind


def test_every_damage_changes_a_file():
    for name, damage in _corruptions.DAMAGES.items():
        assert damage(bytes(range(1, 200)), b"another", random.Random(0)) != bytes(range(1, 200)), name


@pytest.mark.parametrize(("script", "kind"), [(SOUND, "unforeseen"), (OVERWRITES, "lost")])
def test_what_a_full_disk_costs(shop, lane, script, kind):
    """One has no sentence for it, the other has spoilt what was there before it says so."""
    made = shop(script)
    results = [_full_disks.fill(made, lane, _full_disks.FullDisk("script", "bytes", size)) for size in (0, 4)]
    assert kind in kinds(results)


def test_two_that_disturb_each_other_are_seen(shop, lane):
    assert kinds([_twice.both(shop(APPENDS), lane, _twice.Twice("script", 0.0))]) == {"silent"}


def test_a_name_repeats_a_trial():
    for trial in (
        _kills.Kill("first register", 17, True, False),
        _kills.Kill("train", 0.25, False, True),
        _corruptions.Corruption("train, begun", "data/a b.json", "cut short", 5),
        _full_disks.FullDisk("dvc repro", "call", 3),
        _twice.Twice("tune", 0.125),
    ):
        assert type(trial).named(trial.name) == trial


def record(program: int) -> Record:
    return Record("0" * 16, 0, program, (program,), (1e-3,), "ok", "", 0, datetime.now(UTC), "{}", "host", "0.27")


def test_records_and_versions_that_are_there_twice(tmp_path):
    with Journal(tmp_path / "data/journal/collect/host") as journal:
        journal.append([record(1), record(2), record(1)])
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("CREATE TABLE model_version_tags (name, version, key, value)")
        database.executemany("INSERT INTO model_version_tags VALUES ('m', ?, 'run_key', 'same')", [(1,), (2,)])
    assert _state.doubled(tmp_path) == 2


def test_runs_that_became_nothing(tmp_path):
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        database.execute("CREATE TABLE runs (run_uuid, status, lifecycle_stage)")
        database.execute("CREATE TABLE model_versions (name, version, run_id, source)")
        database.execute("INSERT INTO runs VALUES ('a', 'RUNNING', 'active'), ('b', 'FINISHED', 'active')")
        database.execute("INSERT INTO model_versions VALUES ('m', 1, 'b', 'models:/m-1')")
    (tmp_path / "mlruns/1/models/m-2").mkdir(parents=True)
    assert _state.leftovers(tmp_path) == [
        "run a is RUNNING", "run a has no version", "folder of model m-2, which is no version",
    ]  # fmt: skip


def test_a_record_that_is_gone_is_lost(tmp_path):
    before = {"data/a": "1", "registry: m 1": "2"}
    assert _state.differences(before, {"data/a": "1", "data/b": "3"}) == ["registry: m 1 is gone", "data/b is new"]


def test_the_summary_counts_every_part(tmp_path, monkeypatch):
    """A part that is run alone takes the place of its former figures; the others' stay."""
    monkeypatch.setattr(_tables, "RESULTS", tmp_path)
    candidates = {"injected": 3, "recorded": 9, "candidates": 9, "lost": 1, "doubled": 0, "misjudged": 0, "leftovers": 0}
    (tmp_path / "faults.json").write_text(json.dumps({"summary": candidates, "figures": {}}))
    lost = Finding("kills", "train, call 3, all, at once", "lost", "data/a is gone")
    results = [Result("train, call 3, all, at once", "write", [lost]), Result("train, call 4, one, later", "rename")]
    parts = faults.merged({"kills": faults.figures_of(results, seed=0, seconds=2.0)})
    (tmp_path / "faults.json").write_text(json.dumps({"summary": {}, "parts": parts}))
    assert faults.merged({}) == parts
    assert faults.summary_of(parts) == {
        "injected": 3, "recorded": 9, "candidates": 9, "misjudged": 0,
        "kills": 2, "corruptions": 0, "command_lines": 0, "twice": 0, "full_disk": 0,
        "lost": 2, "doubled": 0, "silent": 0, "stuck": 0, "leftovers": 0, "unforeseen": 0,
    }  # fmt: skip
    assert faults.table_of(parts).splitlines()[-1] == "| kills | 2 | 1 | 0 | 0 | 0 | 0 | 0 | 1 write, 1 rename |"
    assert parts["kills"]["failures"] == [
        "lost: data/a is gone  [python bench/faults.py --part kills --only 'train, call 3, all, at once']"
    ]

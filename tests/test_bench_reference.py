"""The order in which the data sets are measured."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from reference import BATCH, PASS, check_folder, copy_pool, turns_of, write_records

from tcl_core import store
from tcl_core.errors import DataError
from tcl_core.platforms import host_fingerprint
from tcl_core.programs.pool import Program
from tests.made_up_records import record


@pytest.fixture(scope="module")
def programs():
    """Three tasks of 64, 32 and 3 programs."""
    return [Program(key, number, 0, (number,)) for key, count in (("a", 64), ("b", 32), ("c", 3)) for number in range(count)]


def test_every_program_has_one_turn(programs):
    turns = turns_of(programs)
    assert sorted(row for turn in turns for row in turn) == list(range(len(programs)))
    assert all(BATCH <= len(turn) < BATCH + PASS for turn in turns[:-1]) and turns == turns_of(programs)


def test_as_large_a_share_of_each_task_is_measured(programs):
    ordered = [programs[row].task_key for turn in turns_of(programs) for row in turn]
    first, half = (Counter(ordered[:count]) for count in (2 * PASS + 3, 3 * PASS + 3))
    assert first == {"a": PASS, "b": PASS, "c": 3} and half == {"a": 2 * PASS, "b": PASS, "c": 3}


def test_a_pass_is_drawn_from_all_of_a_task(programs):
    """Programs lie by sketch: the first ones would be of one sketch."""
    first = [row for row in (row for turn in turns_of(programs) for row in turn) if row < 64][:PASS]
    assert len(set(first)) == PASS and max(first) > 32 and first != sorted(first)


def test_a_run_that_ends_early_takes_no_record_away(tmp_path):
    """What was disturbed counts as unknown until it is measured again, and short runs know less than the table holds."""
    place, kept = tmp_path / "platform=p", [record(number) for number in range(3)]
    store.write_records(place, kept)
    collections = {"p": SimpleNamespace(records=dict(enumerate(kept)))}
    with pytest.raises(DataError, match="holds 3 records, and 2 would take their place: .*; give more --minutes"):
        list(write_records(SimpleNamespace(), collections, {"p": [0, 1]}, tmp_path))
    assert store.read_records(place) == kept


def test_another_machine_measures_the_programs_of_a_data_set_and_no_others(tmp_path):
    like, ours = tmp_path / "like", tmp_path / "ours"
    with pytest.raises(DataError, match="like is no data set: it has no programs.parquet"):
        copy_pool(like, ours)
    (like / "platform=p").mkdir(parents=True)
    for name in ("tasks", "networks", "sketches", "programs"):
        (like / f"{name}.parquet").write_text(name)
    copy_pool(like, ours)
    copy_pool(like, ours)  # to go on
    assert sorted(path.name for path in ours.iterdir()) == ["networks.parquet", "programs.parquet", "sketches.parquet", "tasks.parquet"]
    assert (ours / "sketches.parquet").read_text() == "sketches"
    (ours / "programs.parquet").write_text("others")
    with pytest.raises(DataError, match="programs.parquet is another data set's than .*like; give another folder with --to"):
        copy_pool(like, ours)
    assert (ours / "programs.parquet").read_text() == "others"


def test_nobody_writes_over_what_another_machine_measured(tmp_path):
    """Beside it, to a platform of one's own, one may."""
    workspace, folder = SimpleNamespace(journal=tmp_path / "journal"), tmp_path / "made"
    store.write_records(folder / "platform=theirs", [record(0)])  # of the host cpu-1
    check_folder(workspace, folder, "ours")
    for platform in ("theirs", "*"):
        with pytest.raises(DataError, match="platform=theirs was measured on cpu-1; give another folder with --to"):
            check_folder(workspace, folder, platform)


def test_what_this_machine_measured_needs_its_journal(tmp_path):
    workspace, folder = SimpleNamespace(journal=tmp_path / "journal"), tmp_path / "made"
    store.write_records(folder / "platform=ours", [record(0, host=host_fingerprint())])
    with pytest.raises(DataError, match="platform=ours is there, but not the journal of its measurements"):
        check_folder(workspace, folder)
    (workspace.journal / "made" / "ours").mkdir(parents=True)
    check_folder(workspace, folder)

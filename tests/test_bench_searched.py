"""The data set of searched programs: whose draws may stand beside them, and how its programs are numbered."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import searched
from conftest import quick_setup
from searched import draws_of, tasks_of

from tcl_core import store
from tcl_core.errors import DataError
from tcl_core.platforms import Hardware, host_fingerprint
from tcl_core.programs.pool import Program
from tests.stages.exchanged import TARGET, measured


@pytest.fixture
def draws(tmp_path, matmul):
    """A data set of this machine with two programs of each sketch."""
    records = measured(matmul, np.random.default_rng(0), TARGET, host=host_fingerprint())
    store.write_records(tmp_path / "draws" / "platform=host-avx2", records)
    store.write_table(tmp_path / "draws" / "sketches.parquet", "sketches", matmul.rows())
    return tmp_path / "draws", records


def test_draws_are_of_the_very_sketches_that_are_searched(draws, matmul):
    folder, records = draws
    known = {matmul.task.key}
    assert {r.key for r in draws_of(folder, "host-avx2", known, matmul.rows())} == {r.key for r in records}
    others = [row | {"trace_json": "[]"} if row["sketch_id"] == 0 else row for row in matmul.rows()]
    assert {r.key for r in draws_of(folder, "host-avx2", known, others)} == {r.key for r in records if r.sketch_id}
    assert draws_of(folder, "host-avx2", set(), matmul.rows()) == []


def test_draws_of_another_machine_are_refused(tmp_path, draws, matmul):
    folder, records = draws
    elsewhere = measured(matmul, np.random.default_rng(0), TARGET, host="cpu-2")
    store.write_records(folder / "platform=host-avx2", elsewhere)
    with pytest.raises(DataError, match="was measured on cpu-2; give --draws a data set of this machine"):
        draws_of(folder, "host-avx2", {matmul.task.key}, matmul.rows())
    with pytest.raises(DataError, match="is no data set: it has no tasks.parquet; give --like the folder of one"):
        tasks_of(tmp_path)


def searches_of(matmul, found, next_ones=(), platform="host-avx2"):
    """As if a search had met these, and would have asked for the next ones."""
    return SimpleNamespace(
        records={r.key: r for r in found},
        programs=[Program(r.task_key, 99, r.sketch_id, tuple(r.decisions)) for r in found],
        proposed=lambda count: next_ones,
        tasks=[matmul.task],
        sketches=matmul.rows(),
        platform=platform,
        hardware=Hardware(cores=1),
    )


def written(matmul, searches, drawn, folder) -> tuple[str, dict, dict]:
    """What is said, the number of each program, and those of the platform's records."""
    uses = [{"network": "one", "split": "train", "task_key": matmul.task.key, "weight": 2}]
    said = searched.write(searches, drawn, {matmul.task.key: "train"}, uses, folder)
    rows = store.read_table(folder / "programs.parquet", "programs")
    kept = {r.key: r.program_id for r in store.read_records(folder / f"platform={searches.platform}")}
    return said, {(row["task_key"], row["sketch_id"], tuple(row["decisions"])): row["program_id"] for row in rows}, kept


def test_programs_are_numbered_within_their_task_the_measured_ones_first(tmp_path, draws, matmul):
    """One that was drawn and searched is one program, and what the search would have asked for next is none of those."""
    _, records = draws
    drawn, found = records[:3], records[2:]
    next_ones = [Program(matmul.task.key, 7, r.sketch_id, tuple(r.decisions)) for r in records[-1:]]
    next_ones.append(Program(matmul.task.key, 8, 0, tuple(matmul.sample(matmul.sketches[0], 1)[0].tolist())))
    keys = {r.key for r in records}
    said, there, kept = written(matmul, searches_of(matmul, found, next_ones), drawn, tmp_path / "made")
    assert sorted(there.values()) == list(range(len(there))) and len(there) >= len(keys)
    assert kept.keys() == keys and sorted(kept.values()) == list(range(len(keys)))
    assert all(there[key] == number for key, number in kept.items())
    assert said.startswith(f"host-avx2: {len(keys)} records of 1 tasks, {len(found)} of them searched: 0 failed")


def test_a_further_platform_joins_and_changes_no_number(tmp_path, draws, matmul):
    """It shares a program with the first; its own follow.  The first's table stays as it is, byte for byte."""
    _, records = draws
    folder = tmp_path / "made"
    _, before, first = written(matmul, searches_of(matmul, records[:4]), [], folder)
    table = (folder / "platform=host-avx2" / "records.parquet").read_bytes()
    _, there, second = written(matmul, searches_of(matmul, records[3:], platform="host-avx512"), [], folder)
    assert before == {r.key: first[r.key] for r in records[:4]} and before.items() <= there.items()
    assert there.keys() == {r.key for r in records} and sorted(there.values()) == list(range(len(records)))
    assert second == {r.key: there[r.key] for r in records[3:]} and second[records[3].key] == first[records[3].key]
    assert (folder / "platform=host-avx2" / "records.parquet").read_bytes() == table


def test_a_platform_of_other_tasks_does_not_join(tmp_path, draws, matmul):
    _, records = draws
    folder = tmp_path / "made"
    written(matmul, searches_of(matmul, records[:4]), [], folder)
    others = searches_of(matmul, records[3:], platform="host-avx512")
    others.sketches = others.sketches[:1]
    with pytest.raises(DataError, match="sketches.parquet is of other sketches than .*made would get now; give another folder with --to"):
        written(matmul, others, [], folder)
    assert not (folder / "platform=host-avx512").exists()


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.setattr(searched, "setup_of", lambda *_: quick_setup())
    monkeypatch.setattr(searched, "hardware_of", lambda *_: Hardware(cores=1))
    return SimpleNamespace(journal=tmp_path / "journal", params=SimpleNamespace(measure=SimpleNamespace(check_fraction=0.0)))


def test_measured_again_a_program_keeps_its_number(draws, matmul, runners, workspace):
    """And the records change when all are measured, not before."""
    folder, records = draws
    store.write_table(folder / "tasks.parquet", "tasks", [matmul.task.as_row()])
    before = store.data_digest(folder)
    runners.limit = 3
    with pytest.raises(KeyboardInterrupt):
        searched.again(workspace, "host-avx2", folder, large=False)
    assert store.data_digest(folder) == before
    runners.limit = None
    said = searched.again(workspace, "host-avx2", folder, large=False)
    assert said == f"host-avx2: {len(records)} programs measured again, 0 of them disturbed"
    assert len(runners[0].jobs) == 3 and len(runners[1].jobs) == len(records) - 3
    again = store.read_records(folder / "platform=host-avx2")
    assert {r.key: r.program_id for r in again} == {r.key: r.program_id for r in records}
    assert min(r.measured_at for r in again) > max(r.measured_at for r in records)


def test_of_large_weights_alone_the_others_stay(draws, matmul, conv, runners, workspace, monkeypatch):
    """So the machine must be the same; all can be measured again on another one, which is written beside them."""
    folder, large = draws
    small = measured(conv, np.random.default_rng(0), TARGET, host=host_fingerprint())
    elsewhere = [replace(record, host="cpu-2") for record in (*small, *large)]
    store.write_table(folder / "tasks.parquet", "tasks", [each.task.as_row() for each in (matmul, conv)])
    store.write_table(folder / "sketches.parquet", "sketches", [*matmul.rows(), *conv.rows()])
    place = folder / "platform=host-avx2"
    store.write_records(place, elsewhere)
    monkeypatch.setattr(searched, "is_large_json", lambda text: text == matmul.task.module_json)
    with pytest.raises(DataError, match="was measured on cpu-2; measure all of it again, or its large weights there"):
        searched.again(workspace, "host-avx2", folder, large=True)
    store.write_records(place, [*small, *large])
    before = {record.key: record for record in store.read_records(place)}
    searched.again(workspace, "host-avx2", folder, large=True)
    assert {job.task_key for job in runners[-1].jobs} == {matmul.task.key} and not (place / "hardware.json").exists()
    after = store.read_records(place)
    assert {record.key for record in after if record == before[record.key]} == {record.key for record in small}
    store.write_records(place, elsewhere)
    searched.again(workspace, "host-avx2", folder, large=False)
    assert {record.host for record in store.read_records(place)} == {host_fingerprint()} and (place / "hardware.json").exists()

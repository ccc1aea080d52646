"""The data set of searched programs: whose draws may stand beside them, and how its programs are numbered."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import searched
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


def test_programs_are_numbered_within_their_task_the_measured_ones_first(tmp_path, draws, matmul):
    """One that was drawn and searched is one program, and what the search would have asked for next is none of those."""
    _, records = draws
    drawn, found = records[:3], records[2:]
    next_ones = [Program(matmul.task.key, 7, r.sketch_id, tuple(r.decisions)) for r in records[-1:]]
    next_ones.append(Program(matmul.task.key, 8, 0, tuple(matmul.sample(matmul.sketches[0], 1)[0].tolist())))
    searches = SimpleNamespace(
        records={r.key: r for r in found},
        programs=[Program(r.task_key, 99, r.sketch_id, tuple(r.decisions)) for r in found],
        proposed=lambda count: next_ones,
        tasks=[matmul.task],
        sketches=matmul.rows(),
        platform="host-avx2",
        hardware=Hardware(cores=1),
    )
    uses = [{"network": "one", "split": "train", "task_key": matmul.task.key, "weight": 2}]
    keys = {r.key for r in records}
    said = searched.write(searches, drawn, {matmul.task.key: "train"}, uses, tmp_path / "made")
    rows = store.read_table(tmp_path / "made" / "programs.parquet", "programs")
    there = {(row["task_key"], row["sketch_id"], tuple(row["decisions"])): row["program_id"] for row in rows}
    assert sorted(there.values()) == list(range(len(rows))) and len(rows) >= len(keys)
    kept = {r.key: r.program_id for r in store.read_records(tmp_path / "made" / "platform=host-avx2")}
    assert kept.keys() == keys and sorted(kept.values()) == list(range(len(keys)))
    assert all(there[key] == number for key, number in kept.items())
    assert said.startswith(f"host-avx2: {len(keys)} records of 1 tasks, {len(found)} of them searched: 0 failed")

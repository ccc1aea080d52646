"""Records as columns: external sorting within bounds of memory, and reading as arrays."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tcl_core import store
from tcl_core.errors import DataError, PlatformError, UsageError
from tcl_core.records import Record
from tcl_core.store import (
    Coded,
    Ragged,
    data_digest,
    iter_columns,
    latency_spread,
    median_latency_s,
    read_records,
    schemas,
    sorting,
    write_record_columns,
    write_records,
)
from tests.made_up_records import FAILED, record


def column(values: list):
    """As logs and collections give them: texts coded, tuples ragged."""
    if isinstance(values[0], str):
        names = sorted(set(values))
        return Coded(np.array([names.index(value) for value in values], dtype=np.int32), names)
    if isinstance(values[0], tuple):
        flat = np.array([number for value in values for number in value])
        return Ragged(flat, np.concatenate([[0], np.cumsum([len(value) for value in values])]))
    if isinstance(values[0], datetime):
        return np.array([value.astimezone(UTC).replace(tzinfo=None) for value in values], dtype="datetime64[us]")
    return np.array(values)


def columns_of(records: list[Record]) -> store.Columns:
    return {field.name: column([getattr(r, field.name) for r in records]) for field in dataclasses.fields(Record)}


def many(count: int, seed: int = 0) -> list[Record]:
    """Records in random order: two sketches' decisions differ in length, some are negative, some programs failed."""
    rng = np.random.default_rng(seed)
    found = []
    for number in rng.permutation(count):
        width = 2 + int(number) % 3
        decisions = tuple(int(d) for d in rng.integers(-3, 4, width))
        changes = FAILED if number % 7 == 0 else {}
        found.append(record(int(number), task=f"task-{rng.integers(5)}", sketch_id=width, decisions=decisions, **changes))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "records" / "platform=p"


@pytest.fixture
def small_runs(monkeypatch):
    """Every sort but the smallest goes through files and merges."""
    monkeypatch.setattr(schemas, "ROWS_PER_GROUP", 16)
    monkeypatch.setattr(sorting, "ROWS_PER_RUN", 40)
    monkeypatch.setattr(sorting, "ROWS_PER_BLOCK", 7)


def order(r: Record):
    return (*r.key, r.program_id)


def test_merged_runs_are_what_a_sort_in_memory_gives(folder, small_runs):
    rows = many(500)
    batches = (columns_of(rows[a : a + 33]) for a in range(0, 500, 33))
    assert write_record_columns(folder / "records.parquet", batches) == 500
    assert read_records(folder) == sorted(rows, key=order)
    assert [path.name for path in folder.iterdir()] == ["records.parquet"]


@pytest.mark.parametrize("rows_per_run", [16, 40, 10_000])
def test_bytes_depend_neither_on_the_order_nor_on_how_records_come(folder, small_runs, monkeypatch, rows_per_run):
    rows = many(200)
    write_records(folder, rows)
    digest = data_digest(folder)
    monkeypatch.setattr(sorting, "ROWS_PER_RUN", rows_per_run)
    for seed, size in ((1, 200), (2, 17)):
        shuffled = [rows[n] for n in np.random.default_rng(seed).permutation(200)]
        write_record_columns(folder / "records.parquet", (columns_of(shuffled[a : a + size]) for a in range(0, 200, size)))
        assert data_digest(folder) == digest


def test_the_same_program_measured_again_stays_in_order_of_its_number(folder, small_runs):
    rows = [dataclasses.replace(record(1), program_id=n) for n in (9, 3, 7, 5)]
    write_record_columns(folder / "records.parquet", [columns_of(rows[:2]), columns_of(rows[2:])])
    assert [r.program_id for r in read_records(folder)] == [3, 5, 7, 9]


def test_columns_come_back_as_arrays(folder, small_runs):
    rows = sorted(many(50), key=order)
    write_record_columns(folder / "records.parquet", [columns_of(rows)])
    blocks = list(iter_columns(folder))
    assert [len(block["round"]) for block in blocks] == [16, 16, 16, 2]
    start = 0
    for block in blocks:
        part = rows[start : start + len(block["round"])]
        start += len(part)
        for name in ("task_key", "error", "message", "host", "protocol"):
            assert [block[name].names[code] for code in block[name].codes] == [getattr(r, name) for r in part]
        for name in ("decisions", "latencies_s"):
            values, offsets = block[name]
            assert offsets[0] == 0 and len(offsets) == len(part) + 1
            found = [tuple(values[a:b].tolist()) for a, b in pairwise(offsets)]
            assert found == [getattr(r, name) for r in part]
        assert block["program_id"].tolist() == [r.program_id for r in part]
        assert block["measured_at"].astype(datetime).tolist() == [r.measured_at.replace(tzinfo=None) for r in part]
        assert median_latency_s(block["latencies_s"]).tolist() == [r.latency_s for r in part]
        assert block["spread"].tolist() == [r.spread for r in part]


def test_only_the_asked_columns_and_files_are_read(folder):
    for name, numbers in (("random", range(3)), ("searched", range(3, 8))):
        write_record_columns(folder / f"{name}.parquet", [columns_of([record(n) for n in numbers])])
    (block,) = iter_columns(folder, ["program_id"], ["searched"])
    assert list(block) == ["program_id"] and sorted(block["program_id"].tolist()) == [3, 4, 5, 6, 7]
    assert sum(len(block["program_id"]) for block in iter_columns(folder, ["program_id"])) == 8
    with pytest.raises(UsageError, match="unknown records file 'searche' .* did you mean 'searched'"):
        iter_columns(folder, files=["searche"])


def test_programs_without_decisions(folder):
    rows = [record(n, decisions=()) for n in range(3)]
    write_record_columns(folder / "records.parquet", [columns_of(rows)])
    (block,) = iter_columns(folder)
    assert block["decisions"].offsets.tolist() == [0, 0, 0, 0] and read_records(folder) == rows


@pytest.mark.parametrize("repeats", [1, 2, 3, 8])
def test_medians_and_spreads_are_those_of_records(repeats):
    rng = np.random.default_rng(repeats)
    latencies = [tuple(rng.uniform(0.1, 1, repeats)) for _ in range(20)] + [(), (0.25, 0.5, 1.0)]
    wanted = [record(1, latencies_s=x, error="ok" if x else "run") for x in latencies]
    assert median_latency_s(column(latencies)).tolist() == pytest.approx([r.latency_s for r in wanted])
    assert latency_spread(column(latencies)).tolist() == pytest.approx([r.spread for r in wanted])
    assert math.isinf(wanted[-2].latency_s) and wanted[-2].spread == 0


def test_two_hosts_are_refused_while_they_come_and_nothing_is_left(folder, small_runs):
    write_records(folder, [record(1)])
    rows = many(100)
    others = [dataclasses.replace(r, host="cpu-2") for r in rows]
    with pytest.raises(DataError, match=r"mixes measurements of 2 hosts \(cpu-1; cpu-2\)"):
        write_record_columns(folder / "records.parquet", [columns_of(rows), columns_of(others)])
    assert read_records(folder) == [record(1)] and [p.name for p in folder.iterdir()] == ["records.parquet"]


def test_columns_that_are_missing_or_too_many_are_named(folder):
    columns = dict(columns_of([record(1)]))
    with pytest.raises(ValueError, match="host"):
        write_record_columns(folder / "r.parquet", [{k: v for k, v in columns.items() if k != "host"}])
    with pytest.raises(ValueError, match="hosts"):
        write_record_columns(folder / "r.parquet", [columns | {"hosts": columns["host"]}])
    assert list(folder.iterdir()) == []


FULL_DISK = """
import resource, sys
sys.path[:0] = {path!r}
from tests.test_store_columns import columns_of, many
from tcl_core import store
from tcl_core.errors import PlatformError
from tcl_core.store import schemas, sorting
schemas.ROWS_PER_GROUP, sorting.ROWS_PER_RUN, sorting.ROWS_PER_BLOCK = 16, 40, 7
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
try:
    store.write_record_columns(sys.argv[1], (columns_of(many(60, seed)) for seed in range(20)))
except PlatformError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [1000, 8000])  # in a run that is spilled; in the file itself
def test_a_disk_that_fills_up_keeps_the_old_records(folder, limit):
    write_records(folder, [record(1)])
    code = FULL_DISK.format(path=[str(Path(__file__).parent.parent)])
    command = [sys.executable, "-c", code, str(folder / "records.parquet"), str(limit)]
    child = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "cannot write" in child.stdout and "free some space" in child.stdout
    assert read_records(folder) == [record(1)] and [p.name for p in folder.iterdir()] == ["records.parquet"]


def test_a_full_disk_in_this_process_is_one_sentence(folder, monkeypatch):
    def full(*_: object, **__: object):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sorting.tempfile, "TemporaryFile", full)
    monkeypatch.setattr(sorting, "ROWS_PER_RUN", 2)
    with pytest.raises(PlatformError, match="free some space"):
        write_record_columns(folder / "records.parquet", [columns_of(many(9))])


PEAK = """
import sys
sys.path[:0] = {path!r}
import pyarrow
from tests.test_store_columns import columns_of, many
from tcl_core import store
from tcl_core.store import schemas, sorting
schemas.ROWS_PER_GROUP, sorting.ROWS_PER_RUN, sorting.ROWS_PER_BLOCK = 500, 2000, 20
block = columns_of(many(500))
store.write_record_columns(sys.argv[1], (block for _ in range(int(sys.argv[2]))))
print(pyarrow.default_memory_pool().max_memory())
"""


def test_memory_does_not_grow_with_the_number_of_records(tmp_path):
    code = PEAK.format(path=[str(Path(__file__).parent.parent)])
    peaks = [
        int(subprocess.check_output([sys.executable, "-c", code, str(tmp_path / f"{count}.parquet"), str(count)])) for count in (8, 80)
    ]
    assert peaks[1] < 1.5 * peaks[0], "ten times the records, about the same memory"

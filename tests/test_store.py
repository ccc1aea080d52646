"""Parquet tables: sorted, sealed and the same bytes each time; what is damaged or of another version is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tcl_core import store
from tcl_core.checked import read_json
from tcl_core.errors import DataError, PlatformError
from tcl_core.store import Remedy, data_digest, iter_records, read_records, read_table, schemas, write_records, write_table
from tests import made_up_records
from tests.made_up_records import FAILED, record

records = made_up_records.records


def test_records_are_sorted_by_program_and_the_same_ones_give_the_same_bytes(records):
    rows = [record(2, task="task-b"), record(4), record(1), record(5, **FAILED), record(10)]
    assert write_records(records, rows) == 5
    assert [(r.task_key, r.sketch_id, r.program_id) for r in read_records(records)] == [
        ("task-a", 1, 1), ("task-a", 1, 4), ("task-a", 1, 10), ("task-a", 2, 5), ("task-b", 2, 2),
    ]  # fmt: skip
    assert set(read_records(records)) == set(rows)
    digest = data_digest(records)
    assert write_records(records, iter(rows[::-1])) == 5 and data_digest(records) == digest
    assert write_records(records, rows[1:]) == 4 and data_digest(records) != digest


def test_records_stream_by_row_groups_and_columns(records, monkeypatch):
    monkeypatch.setattr(schemas, "ROWS_PER_GROUP", 2)
    write_records(records, [record(n) for n in range(5)])
    groups = list(iter_records(records, ["program_id", "decisions"]))
    assert [len(g["program_id"]) for g in groups] == [2, 2, 1]
    assert all(g.keys() == {"program_id", "decisions"} for g in groups)
    assert sorted(row for g in groups for row in g["decisions"]) == [[n, 2, 4] for n in range(5)]


ROWS = {
    "tasks": dict(task_key="a", name="conv", op_type="conv2d", flops=2.5e9, module_json="{}"),
    "networks": dict(network="resnet-18", split="held_out", task_key="a", weight=3),
    "sketches": dict(task_key="a", sketch_id=1, trace_json="[]"),
    "programs": dict(task_key="a", split="train", program_id=7, sketch_id=1, decisions=[1, 2, 3]),
}


@pytest.mark.parametrize("table", ROWS)
def test_tables_come_back_as_written(tmp_path, table):
    path = tmp_path / f"{table}.parquet"
    assert write_table(path, table, iter([ROWS[table]])) == 1
    assert read_table(path, table) == [ROWS[table]]
    assert read_table(path, table, ["task_key"]) == [{"task_key": "a"}]
    assert write_table(path, table, []) == 0 and read_table(path, table) == []


def test_repeated_text_is_dictionary_encoded_and_zstd(records):
    write_records(records, [record(n) for n in range(50)])
    group = pq.ParquetFile(records / "records.parquet").metadata.row_group(0)
    encodings = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    for name in ("task_key", "host", "protocol", "decisions.list.element"):
        assert "RLE_DICTIONARY" in encodings[name].encodings and encodings[name].compression == "ZSTD"


def test_a_row_with_wrong_columns_or_no_value_is_refused_and_nothing_written(tmp_path):
    path = tmp_path / "sketches.parquet"
    with pytest.raises(ValueError, match="trace_json"):
        write_table(path, "sketches", [dict(task_key="a", sketch_id=1)])
    with pytest.raises(ValueError, match="'sketch_id' .* 1 rows without a value"):
        write_table(path, "sketches", [dict(task_key="a", sketch_id=None, trace_json="")])
    assert list(tmp_path.iterdir()) == []


def damage(path: Path, kind: str) -> None:
    data = path.read_bytes()
    middle = len(data) // 3
    changed = {
        "empty": b"",
        "text": b"not a table",
        "cut": data[:-9],
        "flipped": data[:60] + bytes([data[60] ^ 0xFF]) + data[61:],
        "zeros": data[:middle] + b"\0" * 16 + data[middle + 16 :],
    }
    path.write_bytes(changed[kind])


@pytest.mark.parametrize("kind", ["empty", "text", "cut", "flipped", "zeros"])
def test_a_damaged_file_is_named(tmp_path, kind):
    path = tmp_path / "programs.parquet"
    write_table(path, "programs", [ROWS["programs"] | dict(program_id=n) for n in range(500)])
    damage(path, kind)
    with pytest.raises(DataError, match=r"programs\.parquet is damaged .*; delete it and run its stage again") as raised:
        read_table(path, "programs")
    assert "\n" not in str(raised.value)


def test_another_schema_version_or_table_is_refused(tmp_path):
    path = tmp_path / "sketches.parquet"
    schema = store.SCHEMAS["sketches"]
    rows = pa.Table.from_pylist([ROWS["sketches"]], schema=schema)
    pq.write_table(rows.replace_schema_metadata({"tcl.table": "sketches", "tcl.schema_version": "9"}), path)
    with pytest.raises(DataError, match="has schema version 9, this program reads version 2"):
        read_table(path, "sketches")
    pq.write_table(rows.replace_schema_metadata(None), path)
    with pytest.raises(DataError, match="has schema version none"):
        read_table(path, "sketches")
    write_table(path, "sketches", [ROWS["sketches"]])
    with pytest.raises(DataError, match="holds the table 'sketches' where 'programs' is expected"):
        read_table(path, "programs")


REMEDY = Remedy("ask whoever has it", "ask for another one")


def test_of_missing_data_it_is_said_what_the_caller_says(tmp_path, records):
    """Who writes a file the store does not know."""
    reads = (
        lambda *remedy: read_table(tmp_path / "tasks.parquet", "tasks", None, *remedy),
        lambda *remedy: list(iter_records(records, None, *remedy)),
        lambda *remedy: read_records(records, *remedy),
        lambda *remedy: data_digest(tmp_path / "nothing", *remedy),
        lambda *remedy: write_records(records, [], *remedy),
    )
    for read in reads:
        with pytest.raises(DataError, match=r"run the stage that writes it \(dvc repro\)$"):
            read()
        with pytest.raises(DataError, match="; ask whoever has it$"):
            read(REMEDY)
    assert not records.exists()


def test_of_damaged_data_too(records):
    write_table(records / "records.parquet", "records", [])
    with pytest.raises(DataError, match="^there are no records in .*; ask whoever has it$"):
        read_records(records, REMEDY)
    write_records(records, [record(1)])
    damage(records / "records.parquet", "flipped")
    for read in (lambda: read_records(records, REMEDY), lambda: store.record_hosts(records / "records.parquet", REMEDY)):
        with pytest.raises(DataError, match=r"records\.parquet is damaged .*; ask for another one$"):
            read()
    write_table(records / "records.parquet", "tasks", [ROWS["tasks"]])
    with pytest.raises(DataError, match="holds the table 'tasks' where 'records' is expected; ask for another one$"):
        read_records(records, REMEDY)
    (records / "skipped.json").write_text("{")
    with pytest.raises(DataError, match="skipped.json is damaged .*; ask for another one$"):
        store.skipped_reason(records, REMEDY)


def test_a_skipped_platform_says_why(records):
    assert store.skipped_reason(records) is None
    store.write_skipped(records, "host-avx2", "this CPU has no AVX-512")
    assert store.skipped_reason(records) == "this CPU has no AVX-512"
    store.write_skipped(records, "host-avx2", "this CPU has no AVX-512", previous="host-sse42")
    assert read_json(records / "skipped.json", "") == {
        "platform": "host-avx2", "reason": "this CPU has no AVX-512", "previous": "host-sse42",
    }  # fmt: skip
    with pytest.raises(DataError, match="this CPU has no AVX-512"):
        read_records(records)


def test_a_skip_of_another_platform_is_noticed(records):
    store.write_skipped(records, "host-avx512", "this CPU has no AVX-512")
    with pytest.raises(DataError, match=r"is damaged \(it is that of host-avx512\)"):
        store.skipped_reason(records)


def test_no_flipped_bit_goes_unnoticed(records):
    """Pages have checksums, but not their headers, nor the footer: the seal sees those too."""
    write_records(records, [record(n) for n in range(20)])
    path, draw = records / "records.parquet", np.random.default_rng(0)
    sound = path.read_bytes()
    for place in draw.permutation(len(sound))[:400]:
        flipped = bytearray(sound)
        flipped[place] ^= 1 << draw.integers(8)
        path.write_bytes(flipped)
        try:
            rows = read_records(records)
        except DataError:
            continue
        assert rows == [record(n) for n in range(20)], f"byte {place}"


def test_sealed_files_are_plain_parquet(records):
    write_records(records, [record(1), record(2)])
    assert pq.read_table(records / "records.parquet").num_rows == 2


def test_a_file_of_an_earlier_version_has_no_seal_and_is_read(tmp_path):
    rows = [{"network": "n", "split": "train", "task_key": "t", "weight": 1}]
    schema = store.SCHEMAS["networks"]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), tmp_path / "networks.parquet")
    assert read_table(tmp_path / "networks.parquet", "networks") == rows


def test_records_of_another_platform_are_noticed(records):
    write_records(records, [record(1)])
    other = records.with_name("platform=host-avx512")
    other.mkdir()
    (records / "records.parquet").rename(other / "records.parquet")
    with pytest.raises(DataError, match="holds records of the platform host-avx2; move it"):
        read_records(other)


def test_more_rows_than_a_stage_writes_are_not_read(tmp_path):
    """Thirty million equal rows take a few hundred kilobytes."""
    schema, count = store.SCHEMAS["networks"], 3_000_000
    column = lambda value, kind: pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value], kind))  # noqa: E731
    table = pa.table({f.name: column("n" if pa.types.is_string(f.type) else 1, f.type).cast(f.type) for f in schema}, schema=schema)
    pq.write_table(table, tmp_path / "networks.parquet", row_group_size=count)
    assert (tmp_path / "networks.parquet").stat().st_size < 100_000
    with pytest.raises(DataError, match="claims 3,000,000 rows in 1 groups, and no table 'networks' of TCL is so"):
        read_table(tmp_path / "networks.parquet", "networks")


def test_what_may_not_be_read_is_not_called_damaged(records, monkeypatch):
    write_records(records, [record(1)])

    def refuse(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PlatformError, match=r"cannot read .*records\.parquet \(permission denied\)"):
        read_records(records)


def test_two_hosts_under_one_platform_are_refused_by_writer_and_reader(records):
    write_records(records, [record(1)])
    other = dataclasses.replace(record(2), host="cpu-2")
    with pytest.raises(DataError, match=r"mixes measurements of 2 hosts \(cpu-1; cpu-2\)"):
        write_records(records, [record(1), other])
    assert read_records(records) == [record(1)]
    write_table(records / "more.parquet", "records", [vars(other) | {"spread": other.spread}])
    with pytest.raises(DataError, match=r"mixes measurements of 2 hosts \(cpu-1; cpu-2\)"):
        next(iter_records(records, ["program_id"]))


def test_a_leftover_of_a_killed_writer_is_no_data(records):
    write_records(records, [record(1)])
    digest = data_digest(records)
    (records / ".records.parquet.77.tmp").write_bytes(b"half")
    (records / ".part.parquet").write_bytes(b"half")
    assert read_records(records) == [record(1)] and data_digest(records) == digest


def test_more_rows_than_are_read_are_not_written(tmp_path, monkeypatch):
    row = {
        name: "n" if pa.types.is_string(field.type) else 1
        for name, field in zip(store.SCHEMAS["networks"].names, store.SCHEMAS["networks"], strict=True)
    }
    store.write_table(tmp_path / "networks.parquet", "networks", [row] * 3)
    monkeypatch.setitem(store.schemas.MOST_ROWS, "networks", 3)
    with pytest.raises(DataError, match="would have more than 3 rows, which no table 'networks' may; divide the data"):
        store.write_table(tmp_path / "networks.parquet", "networks", [row] * 4)
    assert len(read_table(tmp_path / "networks.parquet", "networks")) == 3


def test_digest_depends_on_names_and_contents(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("1")
    (tmp_path / "b" / "README.md").write_text("words about it")
    (tmp_path / "b" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "b" / ".ipynb_checkpoints" / "x-checkpoint").write_text("looked at")
    assert data_digest(tmp_path / "a") == data_digest(tmp_path / "b")
    (tmp_path / "b" / "x").rename(tmp_path / "b" / "y")
    assert data_digest(tmp_path / "a") != data_digest(tmp_path / "b")

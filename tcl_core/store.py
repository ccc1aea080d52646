"""The data set on disk: Arrow schemas, whole-file writes, reading back.  The only file that touches Parquet.

Knows nothing of TVM or of how anything is measured.  Files appear whole or not at all (``tcl_core.files``),
are compressed with zstd, dictionary-encoded where values repeat, and carry a checksum and a schema
version.  Records are partitioned by platform only (``platform=NAME/``) and sorted by task.

The checksum is the SHA-256 of the file without it, behind the mark SEAL, in the place between the data and Parquet's footer,
which no reader looks at: pages have checksums of their own, but neither their headers nor the footer.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tcl_core.checked import damaged, read_json, write_json
from tcl_core.errors import DataError, unknown_name
from tcl_core.files import is_remote, place, reading, replacing, shown
from tcl_core.journal import SCHEMA_VERSION, Record

ROWS_PER_GROUP = 65_536  # the unit of streaming: some 10 MB of records in memory
ROWS_PER_RUN = 4 * ROWS_PER_GROUP  # sorted in memory; more records are sorted in runs, which are then merged
ROWS_PER_BLOCK = 4_096  # of each run in memory while runs are merged
# A file of a few hundred kilobytes can claim any number of rows: what a stage would not write is not read.
MOST_ROWS = {"tasks": 100_000, "networks": 1_000_000, "sketches": 1_000_000, "programs": 20_000_000, "records": 10**9}
MOST_BYTES_PER_GROUP = 4 << 30
SEAL = b"TCL-seal"
SEALED_BYTES = len(SEAL) + 32


class Ragged(NamedTuple):
    """Rows of different length: row n is ``values[offsets[n]:offsets[n + 1]]``."""

    values: np.ndarray
    offsets: np.ndarray


class Coded(NamedTuple):
    """Texts that repeat: row n is ``names[codes[n]]``."""

    codes: np.ndarray
    names: Sequence[str]


Columns = Mapping[str, np.ndarray | Ragged | Coded]
"""Rows of a table as arrays of one length: numbers as they are, lists of numbers Ragged, texts Coded."""


def _schema(table: str, **columns: pa.DataType) -> pa.Schema:
    metadata = {"tcl.table": table, "tcl.schema_version": str(SCHEMA_VERSION)}
    return pa.schema(
        [pa.field(name, kind, nullable=False) for name, kind in columns.items()], metadata=metadata
    )


_TEXT, _INT, _INTS = pa.string(), pa.int32(), pa.list_(pa.int32())

SCHEMAS: dict[str, pa.Schema] = {
    schema.metadata[b"tcl.table"].decode(): schema
    for schema in (
        _schema("tasks", task_key=_TEXT, name=_TEXT, op_type=_TEXT, flops=pa.float64(), module_json=_TEXT),
        _schema("networks", network=_TEXT, split=_TEXT, task_key=_TEXT, weight=_INT),
        _schema("sketches", task_key=_TEXT, sketch_id=_INT, trace_json=_TEXT),
        _schema("programs", task_key=_TEXT, split=_TEXT, program_id=_INT, sketch_id=_INT, decisions=_INTS),
        _schema(
            "records", task_key=_TEXT, sketch_id=_INT, program_id=_INT, decisions=_INTS,
            latencies_s=pa.list_(pa.float32()), spread=pa.float32(), error=_TEXT, message=_TEXT, round=_INT,
            measured_at=pa.timestamp("us", tz="UTC"), protocol=_TEXT, host=_TEXT, tvm_version=_TEXT,
            checked=pa.bool_(), disturbed=pa.bool_(),
        ),
    )
}  # fmt: skip

_REPEATED = {
    "task_key", "op_type", "network", "split", "sketch_id", "decisions", "error", "message", "round",
    "protocol", "host", "tvm_version",
}  # fmt: skip
# Of records drawn from ten sketches these save 2 of 31 bytes; programs are in order, latencies are near each other.
_ENCODINGS = {
    "program_id": "DELTA_BINARY_PACKED", "measured_at": "DELTA_BINARY_PACKED", "spread": "BYTE_STREAM_SPLIT",
    "latencies_s": "BYTE_STREAM_SPLIT",
}  # fmt: skip
_STAGES = {"tasks": "tasks", "networks": "tasks", "sketches": "candidates", "programs": "candidates"}


def write_table(path: str | Path, table: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as ``table`` (a name in SCHEMAS), a row group in memory at a time; the number of rows.

    Raises ValueError for a row that lacks a column or has one too many, PlatformError when the disk is full.
    """
    path, rows = Path(path), iter(rows)
    groups = iter(lambda: list(islice(rows, ROWS_PER_GROUP)), [])
    with replacing(path) as file:
        return _write_groups(file, path, table, (_arrow_table(group, table) for group in groups))


def _write_groups(file: BinaryIO, path: Path, table: str, groups: Iterable[pa.Table]) -> int:
    """Write each table as one row group, and the seal."""
    schema = SCHEMAS[table].with_metadata({**SCHEMAS[table].metadata, b"tcl.sealed": b"1", **_platform_of(path)})
    hashing, count = _Hashing(file), 0
    writer = pq.ParquetWriter(
        hashing, schema, compression="zstd", compression_level=3, use_dictionary=_dictionary_columns(schema),
        column_encoding=_encodings(schema) or None, write_page_checksum=True,
    )  # fmt: skip
    with writer:
        for group in groups:
            writer.write_table(group.cast(schema), row_group_size=ROWS_PER_GROUP)
            count += len(group)
    hashing.seal()
    return count


def _platform_of(path: Path) -> dict[bytes, bytes]:
    """What a file of records says of its place, so that another platform's is noticed there."""
    folder = path.absolute().parent.name
    return {b"tcl.platform": folder.removeprefix("platform=").encode()} if folder.startswith("platform=") else {}


class _Hashing:
    """A file that knows the SHA-256 of what was written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.closed = file, hashlib.sha256(), False

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self.file.write(data)

    def tell(self) -> int:
        return self.file.tell()

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        """The file is its opener's to close."""

    def seal(self) -> None:
        """Put the seal between the data and the footer."""
        self.file.flush()
        descriptor, size = self.file.fileno(), self.file.tell()
        end = _footer_start(os.pread(descriptor, 8, size - 8), size)
        footer = os.pread(descriptor, size - end, end)
        self.file.seek(end)
        self.file.write(SEAL + self.digest.digest() + footer)


def _footer_start(tail: bytes, size: int) -> int:
    """Where the footer starts, of a file whose last eight bytes are ``tail``: its length and Parquet's mark."""
    return size - 8 - int.from_bytes(tail[:4], "little")


def _is_sealed(path: Path) -> bool:
    """Whether a file has a seal, which files of an earlier version have not; DataError where it does not fit."""
    fits = _seal_fits(path, _state(path))
    if fits is False:
        raise damaged(path, "its checksum does not fit", _remedy(path))
    return bool(fits)


def _state(path: Path) -> object:
    """What differs once a file is another."""
    if is_remote(path):
        return path.fs.ukey(path.path)
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


@lru_cache(maxsize=4096)  # a file is read for it once
def _seal_fits(path: Path, state: object) -> bool | None:
    """None where there is no seal."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < 8:
            return None
        file.seek(size - 8)
        start = _footer_start(file.read(8), size) - SEALED_BYTES
        file.seek(max(start, 0))
        seal = file.read(SEALED_BYTES)
        if start < 0 or not seal.startswith(SEAL):
            return None
        file.seek(0)
        digest, left = hashlib.sha256(), start
        while left and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
        file.seek(SEALED_BYTES, os.SEEK_CUR)
        digest.update(file.read())
        return digest.digest() == seal[len(SEAL) :]


def _arrow_table(rows: Sequence[Mapping[str, Any]], table: str) -> pa.Table:
    names = set(SCHEMAS[table].names)
    for row in rows:
        if row.keys() != names:
            raise ValueError(f"a row of table '{table}' has the wrong columns: {sorted(row.keys() ^ names)}")
    filled = pa.Table.from_pylist(rows, schema=SCHEMAS[table])
    for name, column in zip(filled.column_names, filled.columns, strict=True):
        if column.null_count:
            raise ValueError(
                f"column '{name}' of table '{table}' has {column.null_count} rows without a value"
            )
    return filled


def _dictionary_columns(schema: pa.Schema) -> list[str]:
    return [_leaf(field) for field in schema if field.name in _REPEATED]


def _encodings(schema: pa.Schema) -> dict[str, str]:
    return {_leaf(field): _ENCODINGS[field.name] for field in schema if field.name in _ENCODINGS}


def _leaf(field: pa.Field) -> str:
    """Parquet's name of the column that holds a field's values."""
    return f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name


def read_table(path: str | Path, table: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """All rows, as dictionaries.  Raises DataError: file missing, damaged, or of another schema version."""
    path = place(path)
    return [row for group in _iter_groups(path, table, columns) for row in group.to_pylist()]


def iter_records(folder: str | Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, list]]:
    """The records of one platform, a row group at a time: column name -> values, aligned.

    Raises DataError: no records (names their stage), a damaged file, another schema version, several hosts.
    """
    folder = place(folder)
    files = _record_files(folder)
    _check_hosts(folder, (host for file in files for host in _distinct(file, "host")))
    for file in files:
        for group in _iter_groups(file, "records", columns):
            yield group.to_pydict()


def iter_columns(
    folder: str | Path,
    columns: Sequence[str] | None = None,
    files: Sequence[str] | None = None,
    rows: int = ROWS_PER_GROUP,
) -> Iterator[dict[str, np.ndarray | Ragged | Coded]]:
    """The records of one platform as arrays, at most ``rows`` at a time and sorted by program within each file.

    ``files`` are names without .parquet; none: all.
    Raises what ``iter_records`` does, before the first block where it can, and UsageError for an unknown file.
    """
    folder = place(folder)
    paths = _chosen(_record_files(folder), folder, files)
    _check_hosts(folder, (host for path in paths for host in _distinct(path, "host")))
    return (
        {name: _numpy_of(group[name].slice(start, rows)) for name in group.column_names}
        for path in paths
        for group in _iter_groups(path, "records", columns)
        for start in range(0, len(group), rows)
    )


def _chosen(paths: Sequence[Path], folder: Path, files: Sequence[str] | None) -> list[Path]:
    by_name = {path.stem: path for path in paths}
    for name in files or ():
        if name not in by_name:
            raise unknown_name("records file", name, by_name, str(folder))
    return [by_name[name] for name in (by_name if files is None else files)]


def _numpy_of(column: pa.ChunkedArray) -> np.ndarray | Ragged | Coded:
    array = column.combine_chunks()
    if pa.types.is_list(array.type):
        return _ragged(array)
    if pa.types.is_string(array.type):
        array = array.dictionary_encode()
    if pa.types.is_dictionary(array.type):
        return Coded(array.indices.to_numpy(), array.dictionary.to_pylist())
    return array.to_numpy(zero_copy_only=False)


def _ragged(lists: pa.ListArray) -> Ragged:
    offsets = lists.offsets.to_numpy()
    return Ragged(lists.flatten().to_numpy(), offsets.astype(np.int64) - offsets[0])


def median_latency_s(latencies_s: Ragged) -> np.ndarray:
    """(N,) medians of the repeats, seconds; inf for a program without any, as ``Record.latency_s``."""
    return _of_repeats(latencies_s, lambda values: np.median(values, axis=1), np.inf)


def latency_spread(latencies_s: Ragged) -> np.ndarray:
    """(N,) interquartile range / median of the repeats; 0 for a program without any, as ``Record.spread``."""
    return _of_repeats(latencies_s, _spread, 0.0)


def _spread(values: np.ndarray) -> np.ndarray:
    low, median, high = np.quantile(values, (0.25, 0.5, 0.75), axis=1)
    return (high - low) / median


def _of_repeats(latencies_s: Ragged, figure: Callable[[np.ndarray], np.ndarray], without: float) -> np.ndarray:
    """(N,) a figure of each program's repeats: of (n, repeats) float64 for the n programs of a number of repeats."""
    starts, repeats = latencies_s.offsets[:-1], np.diff(latencies_s.offsets)
    figures = np.full(len(repeats), without)
    for count in np.unique(repeats[repeats > 0]):
        rows = np.flatnonzero(repeats == count)
        figures[rows] = figure(latencies_s.values[starts[rows, None] + np.arange(count)].astype(np.float64))
    return figures


def read_records(folder: str | Path) -> list[Record]:
    """The records of one platform as objects; for millions use ``iter_records``.  Errors as there."""
    names = [field.name for field in fields(Record)]
    return [
        Record(
            **{
                **dict(zip(names, values, strict=True)),
                "decisions": tuple(values[3]),
                "latencies_s": tuple(values[4]),
            }
        )
        for group in iter_records(folder, names)
        for values in zip(*(group[name] for name in names), strict=True)
    ]


def write_records(folder: str | Path, records: Iterable[Record]) -> int:
    """Write a platform's records to ``folder/records.parquet``, sorted by task; their number.

    The same records give the same bytes.  Raises DataError where there are none or the hosts differ, PlatformError
    when the disk is full.
    """
    folder, records = Path(folder), iter(records)
    groups = iter(lambda: list(islice(records, ROWS_PER_GROUP)), [])
    rows = ([vars(record) | {"spread": record.spread} for record in group] for group in groups)
    tables = (_coded(_arrow_table(group, "records")) for group in rows)
    first = next(tables, None)
    if first is None:
        raise DataError(f"nothing was measured for {folder}; {_how_to_write(folder)}")
    return _write_sorted(folder / "records.parquet", chain([first], tables))


def write_record_columns(path: str | Path, batches: Iterable[Columns]) -> int:
    """Write records that come as columns to ``path``, sorted by program; their number.  ``spread`` is worked out here.

    In memory are at most ROWS_PER_RUN of them, and while they are merged ROWS_PER_BLOCK of each run: the rest waits in
    temporary files beside ``path``, which are gone with this process however it ends.
    Raises DataError where the hosts differ, PlatformError when the disk is full.
    """
    path = Path(path)
    spreads = ({**columns, "spread": latency_spread(columns["latencies_s"])} for columns in batches)
    return _write_sorted(path, (_table_of(columns, "records") for columns in spreads))


def _write_sorted(path: Path, tables: Iterable[pa.Table]) -> int:
    with replacing(path) as file, ExitStack() as open_files:
        runs = _sorted_runs(_of_one_host(path.parent, tables), path.parent, open_files)
        return _write_groups(file, path, "records", _regrouped(_merged(runs)))


def _of_one_host(folder: Path, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    hosts: set[str] = set()
    for table in tables:
        hosts.update(table["host"].unique().to_pylist())
        _check_hosts(folder, hosts)
        yield table


def _sorted_runs(tables: Iterable[pa.Table], folder: Path, open_files: ExitStack) -> list[Iterator[pa.Table]]:
    """The rows in sorted runs, each an iterator over its blocks; all but the last lie in files without a name."""
    runs, waiting, rows = [], [], 0
    for table in tables:
        waiting.append(table)
        rows += len(table)
        if rows >= ROWS_PER_RUN:
            runs.append(_spilled(_sorted(waiting), open_files.enter_context(tempfile.TemporaryFile(dir=folder))))
            waiting, rows = [], 0
    return [*runs, iter([_sorted(waiting)])] if waiting else runs


def _spilled(table: pa.Table, file: BinaryIO) -> Iterator[pa.Table]:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=ROWS_PER_BLOCK)
    reader = pa.ipc.open_file(file)
    return (pa.Table.from_batches([reader.get_batch(n)]) for n in range(reader.num_record_batches))


def _merged(runs: Sequence[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """The rows of all runs in order: of the blocks at hand, what no block still to come can precede."""
    heads = {run: next(run) for run in runs}
    while heads:
        bound = min(_sort_key(head, len(head) - 1) for head in heads.values())
        ready = []
        for run, head in heads.items():
            count = bisect_right(range(len(head)), bound, key=partial(_sort_key, head))
            ready += [head.slice(0, count)] if count else []
            heads[run] = head.slice(count) if count < len(head) else next(run, None)
        heads = {run: head for run, head in heads.items() if head is not None}
        yield _sorted(ready) if len(ready) > 1 else ready[0]


def _regrouped(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of ROWS_PER_GROUP, so that row groups do not depend on how the rows came."""
    waiting, rows = [], 0
    for table in tables:
        waiting.append(table)
        rows += len(table)
        while rows >= ROWS_PER_GROUP:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, ROWS_PER_GROUP)
            waiting, rows = [whole.slice(ROWS_PER_GROUP)], rows - ROWS_PER_GROUP
    if rows:
        yield pa.concat_tables(waiting)


_SORTED_BY = ("task_key", "sketch_id", "decisions", "program_id")


def _sort_key(table: pa.Table, row: int) -> tuple[Any, ...]:
    return tuple(table[name][row].as_py() for name in _SORTED_BY)


def _sorted(tables: Sequence[pa.Table]) -> pa.Table:
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    keys = pa.table({name: _comparable(table[name].combine_chunks()) for name in _SORTED_BY})
    return table.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in _SORTED_BY]))


def _comparable(column: pa.Array) -> pa.Array:
    """A column that Arrow can sort: texts decoded, lists of integers as bytes that compare alike."""
    if pa.types.is_dictionary(column.type):
        return column.cast(pa.string())
    if not pa.types.is_list(column.type):
        return column
    lists = _ragged(column)
    flipped = (lists.values.view(np.uint32) ^ np.uint32(1 << 31)).astype(">u4")  # so that negative numbers come first
    buffers = [None, pa.py_buffer((lists.offsets * 4).astype(np.int64)), pa.py_buffer(flipped)]
    return pa.Array.from_buffers(pa.large_binary(), len(column), buffers)


def _table_of(columns: Columns, table: str) -> pa.Table:
    schema = SCHEMAS[table]
    if columns.keys() != set(schema.names):
        raise ValueError(f"columns of table '{table}' are wrong: {sorted(columns.keys() ^ set(schema.names))}")
    return pa.table({field.name: _array_of(columns[field.name], field.type) for field in schema})


def _array_of(values: np.ndarray | Ragged | Coded, kind: pa.DataType) -> pa.Array:
    if isinstance(values, Ragged):
        return pa.ListArray.from_arrays(pa.array(values.offsets, pa.int32()), pa.array(values.values, kind.value_type))
    if isinstance(values, Coded):
        return pa.DictionaryArray.from_arrays(pa.array(values.codes, pa.int32()), pa.array(values.names, kind))
    return pa.array(values, kind)


def _coded(table: pa.Table) -> pa.Table:
    """The table with its texts dictionary-encoded, as they are kept in memory."""
    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            table = table.set_column(number, field.name, table[field.name].dictionary_encode())
    return table


def record_hosts(path: str | Path) -> set[str]:
    """The hosts of a file of records.  Raises DataError where it is missing or damaged."""
    return _distinct(Path(path), "host")


def write_skipped(folder: str | Path, platform: str, reason: str, **facts: str) -> None:
    """Say in ``folder/skipped.json`` why a stage wrote no data for a platform, and what else its readers depend on."""
    write_json(Path(folder) / "skipped.json", {"platform": platform, "reason": reason, **facts})


def skipped_reason(folder: str | Path) -> str | None:
    """Why the stage that writes ``folder`` left the platform out; None where it did not."""
    path = place(folder) / "skipped.json"
    try:
        found = read_json(path, _remedy(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    platform = _platform_of(path).get(b"tcl.platform", b"").decode() or found["platform"]
    if found["platform"] != platform:
        raise damaged(path, f"it is that of {shown(found['platform'])}", _remedy(path))
    return found["reason"]


def data_digest(folder: str | Path) -> str:
    """SHA-256 over names and contents of all files below ``folder`` but hidden ones."""
    folder, digest = Path(folder), hashlib.sha256()
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    if not files:
        raise DataError(f"{folder} holds no data to identify; {_how_to_write(folder)}")
    for path in files:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + content)
    return digest.hexdigest()


def _record_files(folder: Path) -> list[Path]:
    if reason := skipped_reason(folder):
        raise DataError(
            f"{folder} holds no records because the platform was skipped ({reason}); use another platform"
        )
    files = sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))
    if not any(_open(path, "records").metadata.num_rows for path in files):
        raise DataError(f"there are no records in {folder}; {_how_to_write(folder)}")
    return files


def _how_to_write(folder: Path) -> str:
    """``data/records/platform=P`` is written by collect@P, ``data/holdout/platform=P`` by holdout@P, imports by hand."""
    if "imported" in folder.parts:
        return "import a log again: tcl import LOG --platform P"
    platform = folder.name.removeprefix("platform=")
    if platform == folder.name:
        return "run the stage that writes it (dvc repro)"
    stage = "holdout" if folder.parent.name == "holdout" else "collect"
    return f"the stage {stage}@{platform} writes it: dvc repro {stage}@{platform}"


def _check_hosts(where: Path, hosts: Iterable[str]) -> None:
    distinct = sorted(set(hosts))
    if len(distinct) > 1:
        raise DataError(
            f"{where} mixes measurements of {len(distinct)} hosts ({'; '.join(distinct)}), whose latencies "
            "cannot be compared; keep one host's records here and give the others their own platform"
        )


def _distinct(path: Path, column: str) -> set[str]:
    """The texts that occur in a column of records; a row group with one is told from its statistics alone."""
    file, found = _open(path, "records"), set()
    place = SCHEMAS["records"].get_field_index(column)
    for number in range(file.num_row_groups):
        statistics = file.metadata.row_group(number).column(place).statistics
        if statistics is not None and statistics.has_min_max and statistics.min == statistics.max:
            found.add(statistics.min)
        else:
            found.update(_read_group(file, path, number, [column])[column].unique().to_pylist())
    return found


def _iter_groups(path: Path, table: str, columns: Sequence[str] | None) -> Iterator[pa.Table]:
    file = _open(path, table)
    return (_read_group(file, path, number, columns) for number in range(file.num_row_groups))


def _read_group(file: pq.ParquetFile, path: Path, number: int, columns: Sequence[str] | None) -> pa.Table:
    try:
        return file.read_row_group(number, columns=list(columns) if columns else None)
    except (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error


def _open(path: Path, table: str) -> pq.ParquetFile:
    try:
        with reading(path):
            sealed = _is_sealed(path)
        file = _parquet(path)
    except FileNotFoundError:
        stage = _STAGES.get(table)
        hint = f"the stage {stage} writes it: dvc repro {stage}" if stage else _how_to_write(path.parent)
        raise DataError(f"there is no {path}; {hint}") from None
    except (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error
    _check_schema(path, table, file.schema_arrow)
    _check_size(path, table, file.metadata)
    if not sealed and b"tcl.sealed" in file.schema_arrow.metadata:
        raise damaged(path, "its checksum is gone", _remedy(path))
    return _parquet(path, metadata=file.metadata, read_dictionary=_texts(table))


def _parquet(path: Path, **options: Any) -> pq.ParquetFile:
    """A file of this machine, or one of a URL through pyarrow's bridge to fsspec."""
    where = {"source": path.path, "filesystem": path.fs} if is_remote(path) else {"source": path}
    return pq.ParquetFile(**where, page_checksum_verification=True, **options)


def _texts(table: str) -> list[str]:
    return [field.name for field in SCHEMAS[table] if pa.types.is_string(field.type) and field.name in _REPEATED]


def _damaged(path: Path, error: Exception) -> DataError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return damaged(path, shown(reason), _remedy(path))


def _remedy(path: Path) -> str:
    if "imported" in path.parts:
        return "delete it and import its log again"
    return "delete it and run its stage again, or fetch it with: dvc checkout"


def _check_size(path: Path, table: str, metadata: pq.FileMetaData) -> None:
    """Raise DataError for a file that would take more memory than a file of ours."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    rows, most = metadata.num_rows, MOST_ROWS[table]
    if rows > most or any(g.num_rows > ROWS_PER_GROUP or g.total_byte_size > MOST_BYTES_PER_GROUP for g in groups):
        raise DataError(
            f"{path} claims {rows:,} rows in {len(groups)} groups, and no table '{table}' of TCL is so: at most {most:,} rows in "
            f"groups of {ROWS_PER_GROUP:,}; {_remedy(path)}"
        )


def _check_schema(path: Path, table: str, schema: pa.Schema) -> None:
    metadata = schema.metadata or {}
    version = metadata.get(b"tcl.schema_version", b"none").decode(errors="replace")
    found = metadata.get(b"tcl.table", b"none").decode(errors="replace")
    if version != str(SCHEMA_VERSION):
        raise DataError(
            f"{path} has schema version {shown(version)}, this program reads version {SCHEMA_VERSION}; "
            "delete it and run its stage again"
        )
    if found != table or schema.names != SCHEMAS[table].names or schema.types != SCHEMAS[table].types:
        raise DataError(
            f"{path} holds the table '{shown(found)}' where '{table}' is expected; delete it and run its stage again"
        )
    own, place = metadata.get(b"tcl.platform"), _platform_of(path).get(b"tcl.platform")
    if own is not None and place is not None and own != place:
        raise DataError(
            f"{path} holds records of the platform {shown(own.decode(errors='replace'))}; move it to that one's folder, or run "
            "its stage again"
        )

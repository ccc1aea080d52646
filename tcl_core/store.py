"""The data set on disk: Arrow schemas, whole-file writes, reading back.  The only file that touches Parquet.

Knows nothing of TVM or of how anything is measured.  Files appear whole or not at all (``tcl_core.files``),
are compressed with zstd, dictionary-encoded where values repeat, and carry page checksums and a schema
version.  Records are partitioned by platform only (``platform=NAME/``) and sorted by task.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tcl_core.errors import DataError
from tcl_core.files import replacing
from tcl_core.journal import SCHEMA_VERSION, Record

ROWS_PER_GROUP = 65_536  # the unit of streaming: some 10 MB of records in memory


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
            latencies_s=pa.list_(pa.float32()), error=_TEXT, message=_TEXT, round=_INT,
            measured_at=pa.timestamp("us", tz="UTC"), protocol=_TEXT, host=_TEXT, tvm_version=_TEXT,
        ),
    )
}  # fmt: skip

_REPEATED = {
    "task_key", "op_type", "network", "split", "sketch_id", "decisions", "error", "message", "round",
    "protocol", "host", "tvm_version",
}  # fmt: skip
_STAGES = {"tasks": "tasks", "networks": "tasks", "sketches": "candidates", "programs": "candidates"}


def write_table(path: str | Path, table: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as ``table`` (a name in SCHEMAS), a row group in memory at a time; the number of rows.

    Raises ValueError for a row that lacks a column or has one too many, PlatformError when the disk is full.
    """
    path, schema, rows, count = Path(path), SCHEMAS[table], iter(rows), 0
    with replacing(path) as file:
        writer = pq.ParquetWriter(
            file, schema, compression="zstd", compression_level=3, use_dictionary=_dictionary_columns(schema),
            write_page_checksum=True,
        )  # fmt: skip
        with writer:
            while group := list(islice(rows, ROWS_PER_GROUP)):
                writer.write_table(_arrow_table(group, table))
                count += len(group)
    return count


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
    lists = {field.name for field in schema if pa.types.is_list(field.type)}
    return [f"{name}.list.element" if name in lists else name for name in schema.names if name in _REPEATED]


def read_table(path: str | Path, table: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """All rows, as dictionaries.  Raises DataError: file missing, damaged, or of another schema version."""
    path = Path(path)
    return [row for group in _iter_groups(path, table, columns) for row in group.to_pylist()]


def iter_records(folder: str | Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, list]]:
    """The records of one platform, a row group at a time: column name -> values, aligned.

    Raises DataError: no records (names their stage), a damaged file, another schema version, several hosts.
    """
    folder = Path(folder)
    files = _record_files(folder)
    _check_hosts(folder, (host for file in files for host in _distinct(file, "host")))
    for file in files:
        for group in _iter_groups(file, "records", columns):
            yield group.to_pydict()


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
    folder, ordered = Path(folder), sorted(records, key=lambda record: record.key)
    if not ordered:
        raise DataError(f"nothing was measured for {folder}; {_how_to_write(folder)}")
    _check_hosts(folder, {record.host for record in ordered})
    return write_table(folder / "records.parquet", "records", (vars(record) for record in ordered))


def write_skipped(folder: str | Path, platform: str, reason: str, **facts: str) -> None:
    """Say in ``folder/skipped.json`` why a stage wrote no data for a platform, and what else its readers depend on."""
    with replacing(Path(folder) / "skipped.json") as file:
        file.write(json.dumps({"platform": platform, "reason": reason, **facts}, indent=2).encode() + b"\n")


def skipped_reason(folder: str | Path) -> str | None:
    """Why the stage that writes ``folder`` left the platform out; None where it did not."""
    path = Path(folder) / "skipped.json"
    return json.loads(path.read_text())["reason"] if path.exists() else None


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
    """``data/records/platform=P`` is written by collect@P, ``data/holdout/platform=P`` by holdout@P."""
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
    return {
        value
        for group in _iter_groups(path, "records", [column])
        for value in group[column].unique().to_pylist()
    }


def _iter_groups(path: Path, table: str, columns: Sequence[str] | None) -> Iterator[pa.Table]:
    file = _open(path, table)
    try:
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=list(columns) if columns else None)
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error


def _open(path: Path, table: str) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except FileNotFoundError:
        stage = _STAGES.get(table)
        hint = f"the stage {stage} writes it: dvc repro {stage}" if stage else _how_to_write(path.parent)
        raise DataError(f"there is no {path}; {hint}") from None
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from error
    _check_schema(path, table, file.schema_arrow)
    return file


def _damaged(path: Path, error: Exception) -> DataError:
    reason = str(error).strip().splitlines()[0].rstrip(".")
    return DataError(
        f"{path} is damaged ({reason}); delete it and run its stage again, or fetch it with: dvc checkout"
    )


def _check_schema(path: Path, table: str, schema: pa.Schema) -> None:
    metadata = schema.metadata or {}
    version = metadata.get(b"tcl.schema_version", b"none").decode()
    found = metadata.get(b"tcl.table", b"none").decode()
    if version != str(SCHEMA_VERSION):
        raise DataError(
            f"{path} has schema version {version}, this program reads version {SCHEMA_VERSION}; "
            "delete it and run its stage again"
        )
    if found != table or schema.names != SCHEMAS[table].names:
        raise DataError(
            f"{path} holds the table '{found}' where '{table}' is expected; delete it and run its stage again"
        )

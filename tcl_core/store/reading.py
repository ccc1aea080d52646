"""Reads tables back, one row group in memory at a time.  ``remedy`` says what to do about a missing or damaged file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tcl_core.checked import damaged, read_json
from tcl_core.errors import DataError, unknown_name
from tcl_core.files import place, shown
from tcl_core.records import Record
from tcl_core.store.columns import Coded, Ragged, numpy_of
from tcl_core.store.integrity import BY_STAGE, REFUSED, Remedy, check_hosts, damaged_by, open_table, platform_of
from tcl_core.store.schemas import ROWS_PER_GROUP, SCHEMAS


def read_table(path: str | Path, table: str, columns: Sequence[str] | None = None, remedy: Remedy = BY_STAGE) -> list[dict[str, Any]]:
    """All rows as dictionaries.  Raises DataError for a missing or damaged file, or another table or schema version."""
    path = place(path)
    return [row for group in _iter_groups(path, table, columns, remedy) for row in group.to_pylist()]


def read_records(folder: str | Path, remedy: Remedy = BY_STAGE) -> list[Record]:
    """The records of one platform as objects; for millions use ``iter_records``.  Raises as that does."""
    return [record for _, record in read_records_by_file(folder, remedy)]


def read_records_by_file(folder: str | Path, remedy: Remedy = BY_STAGE) -> list[tuple[str, Record]]:
    """As ``read_records``, each with its file's name without suffix; imported logs have a file each."""
    names = [field.name for field in fields(Record)]
    return [
        (
            file,
            Record(
                **{
                    **dict(zip(names, values, strict=True)),
                    "decisions": tuple(values[3]),
                    "latencies_s": tuple(values[4]),
                }
            ),
        )
        for file, group in _iter_groups_by_file(folder, names, remedy)
        for values in zip(*(group[name] for name in names), strict=True)
    ]


def iter_records(folder: str | Path, columns: Sequence[str] | None = None, remedy: Remedy = BY_STAGE) -> Iterator[dict[str, list]]:
    """The records of one platform, a row group at a time: column name -> values, aligned.

    Raises DataError for no records (``remedy`` says what to do), a skipped platform, a damaged file, another schema version,
    or several hosts.
    """
    for _, group in _iter_groups_by_file(folder, columns, remedy):
        yield group


def _iter_groups_by_file(folder: str | Path, columns: Sequence[str] | None, remedy: Remedy) -> Iterator[tuple[str, dict[str, list]]]:
    folder = place(folder)
    files = _record_files(folder, remedy)
    check_hosts(folder, (host for file in files for host in _distinct(file, "host", remedy)))
    for file in files:
        for group in _iter_groups(file, "records", columns, remedy):
            yield file.stem, group.to_pydict()


def iter_columns(
    folder: str | Path,
    columns: Sequence[str] | None = None,
    files: Sequence[str] | None = None,
    rows: int = ROWS_PER_GROUP,
    remedy: Remedy = BY_STAGE,
) -> Iterator[dict[str, np.ndarray | Ragged | Coded]]:
    """The records of one platform as arrays, at most ``rows`` at a time and sorted by program within each file.

    ``files`` are names without .parquet; None: all.
    Raises as ``iter_records``, where possible before the first block, and UsageError for an unknown file.
    """
    folder = place(folder)
    paths = _chosen(_record_files(folder, remedy), folder, files)
    check_hosts(folder, (host for path in paths for host in _distinct(path, "host", remedy)))
    return (
        {name: numpy_of(group[name].slice(start, rows)) for name in group.column_names}
        for path in paths
        for group in _iter_groups(path, "records", columns, remedy)
        for start in range(0, len(group), rows)
    )


def _chosen(paths: Sequence[Path], folder: Path, files: Sequence[str] | None) -> list[Path]:
    by_name = {path.stem: path for path in paths}
    for name in files or ():
        if name not in by_name:
            raise unknown_name("records file", name, by_name, str(folder))
    return [by_name[name] for name in (by_name if files is None else files)]


def record_hosts(path: str | Path, remedy: Remedy = BY_STAGE) -> set[str]:
    """The hosts in a file of records.  Raises DataError if it is missing or damaged."""
    return _distinct(Path(path), "host", remedy)


def skipped_reason(folder: str | Path, remedy: Remedy = BY_STAGE) -> str | None:
    """Why the stage that writes ``folder`` skipped the platform; None if it did not."""
    path = place(folder) / "skipped.json"
    try:
        found = read_json(path, remedy.damaged)
    except (FileNotFoundError, NotADirectoryError):
        return None
    platform = platform_of(path).get(b"tcl.platform", b"").decode() or found["platform"]
    if found["platform"] != platform:
        raise damaged(path, f"it is that of {shown(found['platform'])}", remedy.damaged)
    return found["reason"]


def _record_files(folder: Path, remedy: Remedy) -> list[Path]:
    if reason := skipped_reason(folder, remedy):
        raise DataError(f"{folder} holds no records because the platform was skipped ({reason}); use another platform")
    files = sorted(path for path in folder.glob("*.parquet") if not path.name.startswith("."))
    if not any(open_table(path, "records", remedy).metadata.num_rows for path in files):
        raise DataError(f"there are no records in {folder}; {remedy.missing}")
    return files


def _distinct(path: Path, column: str, remedy: Remedy) -> set[str]:
    """Distinct texts in a column of records; for a row group with only one, its statistics are enough."""
    file, found = open_table(path, "records", remedy), set()
    place = SCHEMAS["records"].get_field_index(column)
    for number in range(file.num_row_groups):
        statistics = file.metadata.row_group(number).column(place).statistics
        if statistics is not None and statistics.has_min_max and statistics.min == statistics.max:
            found.add(statistics.min)
        else:
            found.update(_read_group(file, path, number, [column], remedy)[column].unique().to_pylist())
    return found


def _iter_groups(path: Path, table: str, columns: Sequence[str] | None, remedy: Remedy) -> Iterator[pa.Table]:
    file = open_table(path, table, remedy)
    return (_read_group(file, path, number, columns, remedy) for number in range(file.num_row_groups))


def _read_group(file: pq.ParquetFile, path: Path, number: int, columns: Sequence[str] | None, remedy: Remedy) -> pa.Table:
    try:
        return file.read_row_group(number, columns=list(columns) if columns else None)
    except REFUSED as error:
        raise damaged_by(path, error, remedy) from error

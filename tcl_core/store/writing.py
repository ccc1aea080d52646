"""Writes whole files: a table appears complete and sealed, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tcl_core.checked import write_json
from tcl_core.errors import DataError
from tcl_core.files import replacing
from tcl_core.records import Record
from tcl_core.store import schemas
from tcl_core.store.columns import Columns, coded, latency_spread, table_of_columns, table_of_rows
from tcl_core.store.integrity import BY_STAGE, Hashing, Remedy, check_hosts, platform_of
from tcl_core.store.schemas import SCHEMAS, dictionary_columns, encodings
from tcl_core.store.sorting import in_order


def write_table(path: str | Path, table: str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as ``table`` (a name in SCHEMAS), one row group in memory at a time; return the number of rows.

    Raises ValueError for a row that lacks a column or a value, or has a column too many, DataError for more rows than readers
    take, PlatformError when the disk is full.
    """
    path, rows = Path(path), iter(rows)
    groups = iter(lambda: list(islice(rows, schemas.ROWS_PER_GROUP)), [])
    with replacing(path) as file:
        return _write_groups(file, path, table, (table_of_rows(group, table) for group in groups))


def write_records(folder: str | Path, records: Iterable[Record], remedy: Remedy = BY_STAGE) -> int:
    """Write a platform's records to ``folder/records.parquet``, sorted by program; return their number.

    The same records give the same bytes.  Raises DataError where there are none (``remedy`` says what to do then)
    or the hosts differ, PlatformError when the disk is full.
    """
    folder, records = Path(folder), iter(records)
    groups = iter(lambda: list(islice(records, schemas.ROWS_PER_GROUP)), [])
    rows = ([vars(record) | {"spread": record.spread} for record in group] for group in groups)
    tables = (coded(table_of_rows(group, "records")) for group in rows)
    first = next(tables, None)
    if first is None:
        raise DataError(f"nothing was measured for {folder}; {remedy.missing}")
    return _write_sorted(folder / "records.parquet", chain([first], tables))


def write_record_columns(path: str | Path, batches: Iterable[Columns]) -> int:
    """Write records that come as columns to ``path``, sorted by program; return their number.  Computes ``spread``.

    About ROWS_PER_RUN of them are in memory at most, and during the merge ROWS_PER_BLOCK of each run; the rest is in
    temporary files beside ``path``, one for each run, which vanish with this process however it ends.
    Raises DataError where the hosts differ, PlatformError when the disk is full, OSError where the runs are more than the files that
    this process may open.
    """
    path = Path(path)
    spreads = ({**columns, "spread": latency_spread(columns["latencies_s"])} for columns in batches)
    return _write_sorted(path, (table_of_columns(columns, "records") for columns in spreads))


def _write_sorted(path: Path, tables: Iterable[pa.Table]) -> int:
    with replacing(path) as file, ExitStack() as open_files:
        ordered = in_order(_of_one_host(path.parent, tables), path.parent, open_files)
        return _write_groups(file, path, "records", ordered)


def _of_one_host(folder: Path, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    hosts: set[str] = set()
    for table in tables:
        hosts.update(table["host"].unique().to_pylist())
        check_hosts(folder, hosts)
        yield table


def _write_groups(file: BinaryIO, path: Path, table: str, groups: Iterable[pa.Table]) -> int:
    """Write each table as one row group, and the seal."""
    schema = SCHEMAS[table].with_metadata({**SCHEMAS[table].metadata, b"tcl.sealed": b"1", **platform_of(path)})
    hashing, count = Hashing(file), 0
    writer = pq.ParquetWriter(
        hashing, schema, compression="zstd", compression_level=3, use_dictionary=dictionary_columns(schema),
        column_encoding=encodings(schema) or None, write_page_checksum=True,
    )  # fmt: skip
    with writer:
        for group in groups:
            count += len(group)
            if count > schemas.MOST_ROWS[table]:  # readers take no more
                raise DataError(
                    f"{path} would have more than {schemas.MOST_ROWS[table]:,} rows, which no table '{table}' may; divide the data"
                )
            writer.write_table(group.cast(schema), row_group_size=schemas.ROWS_PER_GROUP)
    hashing.seal()
    return count


def write_skipped(folder: str | Path, platform: str, reason: str, **facts: str) -> None:
    """Record in ``folder/skipped.json`` why a stage wrote no data for a platform, and what else its readers depend on."""
    write_json(Path(folder) / "skipped.json", {"platform": platform, "reason": reason, **facts})

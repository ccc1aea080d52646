"""Rows of a table as NumPy and Arrow arrays, and figures of many records at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tcl_core.store.schemas import SCHEMAS


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


def numpy_of(column: pa.ChunkedArray) -> np.ndarray | Ragged | Coded:
    array = column.combine_chunks()
    if pa.types.is_list(array.type):
        return ragged(array)
    if pa.types.is_string(array.type):
        array = array.dictionary_encode()
    if pa.types.is_dictionary(array.type):
        return Coded(array.indices.to_numpy(), array.dictionary.to_pylist())
    return array.to_numpy(zero_copy_only=False)


def ragged(lists: pa.ListArray) -> Ragged:
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
    """(N,) ``figure`` of each program's repeats, ``without`` for a program that has none.

    ``figure`` maps (n, repeats) float64, n programs with equally many repeats, to (n,).
    """
    starts, repeats = latencies_s.offsets[:-1], np.diff(latencies_s.offsets)
    figures = np.full(len(repeats), without)
    for count in np.unique(repeats[repeats > 0]):
        rows = np.flatnonzero(repeats == count)
        figures[rows] = figure(latencies_s.values[starts[rows, None] + np.arange(count)].astype(np.float64))
    return figures


def table_of_rows(rows: Sequence[Mapping[str, Any]], table: str) -> pa.Table:
    names = set(SCHEMAS[table].names)
    for row in rows:
        if row.keys() != names:
            raise ValueError(f"a row of table '{table}' has the wrong columns: {sorted(row.keys() ^ names)}")
    filled = pa.Table.from_pylist(rows, schema=SCHEMAS[table])
    for name, column in zip(filled.column_names, filled.columns, strict=True):
        if column.null_count:
            raise ValueError(f"column '{name}' of table '{table}' has {column.null_count} rows without a value")
    return filled


def table_of_columns(columns: Columns, table: str) -> pa.Table:
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


def coded(table: pa.Table) -> pa.Table:
    """The table with its texts dictionary-encoded, as records are kept in memory."""
    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            table = table.set_column(number, field.name, table[field.name].dictionary_encode())
    return table

"""Sorts records, in any order, by program.

More than fit into memory are sorted in runs, which wait in unnamed temporary files and are then merged.  Each run keeps its file open
until the end, so a process that may open 1,024 files sorts some 260 million records.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tcl_core.store import schemas
from tcl_core.store.columns import ragged

ROWS_PER_RUN = 4 * schemas.ROWS_PER_GROUP  # sorted in memory; more records are sorted in runs, which are then merged
ROWS_PER_BLOCK = 4_096  # of each run in memory while runs are merged
_SORTED_BY = ("task_key", "sketch_id", "decisions", "program_id")


def in_order(tables: Iterable[pa.Table], folder: Path, open_files: ExitStack) -> Iterator[pa.Table]:
    """The rows of ``tables`` in order, in tables of ROWS_PER_GROUP; runs wait in ``folder``, in files that ``open_files`` closes."""
    return _regrouped(_merged(_sorted_runs(tables, folder, open_files)))


def _sorted_runs(tables: Iterable[pa.Table], folder: Path, open_files: ExitStack) -> list[Iterator[pa.Table]]:
    """The rows in sorted runs, each an iterator over its blocks; full runs lie in unnamed files, a shorter last one in memory."""
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
    """The rows of all runs in order.  Each step yields those rows of the loaded blocks that no later block can precede."""
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
    """The same rows in tables of ROWS_PER_GROUP, so that row groups do not depend on how the rows arrived."""
    waiting, rows = [], 0
    for table in tables:
        waiting.append(table)
        rows += len(table)
        while rows >= schemas.ROWS_PER_GROUP:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, schemas.ROWS_PER_GROUP)
            waiting, rows = [whole.slice(schemas.ROWS_PER_GROUP)], rows - schemas.ROWS_PER_GROUP
    if rows:
        yield pa.concat_tables(waiting)


def _sort_key(table: pa.Table, row: int) -> tuple[Any, ...]:
    return tuple(table[name][row].as_py() for name in _SORTED_BY)


def _sorted(tables: Sequence[pa.Table]) -> pa.Table:
    table = pa.concat_tables(tables).unify_dictionaries().combine_chunks()
    keys = pa.table({name: _comparable(table[name].combine_chunks()) for name in _SORTED_BY})
    return table.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in _SORTED_BY]))


def _comparable(column: pa.Array) -> pa.Array:
    """A column that Arrow can sort: texts decoded, lists of integers as bytes that sort alike."""
    if pa.types.is_dictionary(column.type):
        return column.cast(pa.string())
    if not pa.types.is_list(column.type):
        return column
    lists = ragged(column)
    flipped = (lists.values.view(np.uint32) ^ np.uint32(1 << 31)).astype(">u4")  # so that negative numbers come first
    buffers = [None, pa.py_buffer((lists.offsets * 4).astype(np.int64)), pa.py_buffer(flipped)]
    return pa.Array.from_buffers(pa.large_binary(), len(column), buffers)

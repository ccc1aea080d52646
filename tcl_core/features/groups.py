"""Group columns of records by sketch, and join the groups' tokens in the order of the records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.features.layout import WIDTH
from tcl_core.store import Columns, median_latency_s

COLUMNS = ("task_key", "sketch_id", "decisions", "latencies_s")
"""What encoding needs of a record."""


class Group(NamedTuple):
    """The programs of one sketch: their (n,) rows in the columns and their (n, width) decisions."""

    task_key: str
    sketch_id: int
    rows: np.ndarray
    decisions: np.ndarray


def by_sketch(columns: Columns) -> Iterator[Group]:
    """The programs of each sketch that occurs.

    Raises DataError where programs of one sketch have different numbers of decisions.
    """
    tasks, sketches, decisions = columns["task_key"], columns["sketch_id"], columns["decisions"]
    order = np.lexsort((sketches, tasks.codes))
    changes = np.diff(tasks.codes[order]).astype(bool) | np.diff(sketches[order]).astype(bool)
    widths = np.diff(decisions.offsets)
    for rows in np.split(order, np.flatnonzero(changes) + 1) if len(order) else ():
        key, width = tasks.names[tasks.codes[rows[0]]], int(widths[rows[0]])
        if (widths[rows] != width).any():
            raise DataError(f"programs of sketch {sketches[rows[0]]} of task {key} differ in their number of decisions")
        matrix = decisions.values[decisions.offsets[rows, None] + np.arange(width)]
        yield Group(key, int(sketches[rows[0]]), rows, matrix)


def samples_of(parts: Sequence[tuple[Group, np.ndarray]], columns: Columns, numbers: Mapping[str, int], names: Sequence[str]) -> Samples:
    """All programs of ``columns``, in order; ``parts`` are its groups, each with its (n, L, WIDTH) tokens.

    ``numbers`` gives the tasks' numbers by key, ``names`` their names by number.
    """
    count, length = len(columns["sketch_id"]), max((tokens.shape[1] for _, tokens in parts), default=0)
    tokens = np.zeros((count, length, WIDTH), dtype=np.float32)
    lengths, tasks = np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.int32)
    for group, part in parts:
        tokens[group.rows, : part.shape[1]] = part
        lengths[group.rows] = part.shape[1]
        tasks[group.rows] = numbers[group.task_key]
    return Samples(tokens, lengths, tasks, median_latency_s(columns["latencies_s"]), task_names=tuple(names))

"""Tokens of programs from imported logs, in the layout of a network's programs, so that one model class learns from both.

One row for the hardware where it is known, one for the workload, one per step of the program.  The log's dialect says what a
step does (``programs.tuning_logs.actions``); here the actions of all dialects become rows in the same way.  What a log does not
state (strides, footprints) is 0.  Within a sketch only decisions differ, so encoding costs array operations per sketch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.features.groups import Group, by_sketch, samples_of
from tcl_core.features.layout import (
    ALL_OPERATORS,
    ANNOTATE,
    AXES,
    HARDWARE,
    KINDS,
    LOCATION,
    LOOPS,
    PRIMITIVE,
    SPLIT,
    WORKLOAD,
    Row,
    log2p,
    token_row,
)
from tcl_core.programs.tuning_logs.actions import AT_ROOT, Action, ComputeAt, Other, Programs, Split
from tcl_core.programs.tuning_logs.dialects import dialect_named
from tcl_core.programs.tuning_logs.workload import LogWorkload
from tcl_core.store import Columns


def is_of_log(module_json: str) -> bool:
    """Whether a task is known from a log alone, and has no module."""
    return module_json.startswith('{"log":')


class LogEncoder:
    """Turns imported programs into tokens; ``tasks`` and ``sketches`` are rows of the tables of a platform.

    ``encode_columns`` raises DataError for a program of another platform's tables.
    """

    def __init__(self, tasks: Sequence[Mapping[str, Any]], sketches: Sequence[Mapping[str, Any]]) -> None:
        self.numbers = {row["task_key"]: number for number, row in enumerate(tasks)}
        self.names = tuple(row["name"] for row in tasks)
        of_logs = [row for row in tasks if is_of_log(row["module_json"])]  # the others are of a database imported before
        self._workloads = {row["task_key"]: _workload(json.loads(row["module_json"])) for row in of_logs}
        self._sketches = {(row["task_key"], row["sketch_id"]): json.loads(row["trace_json"]) for row in sketches}

    def encode_columns(self, columns: Columns, hardware: Sequence[float] = ()) -> Samples:
        """The programs of a block of records (``store.iter_columns`` of ``groups.COLUMNS``), in order.

        ``hardware`` are the platform's fields in fixed order; without them there is no row for them.
        """
        parts = [(group, self._tokens(group, hardware)) for group in by_sketch(columns)]
        return samples_of(parts, columns, self.numbers, self.names)

    def _tokens(self, group: Group, hardware: Sequence[float]) -> np.ndarray:
        """(n, L, F) of one sketch's programs."""
        key = (group.task_key, group.sketch_id)
        if key not in self._sketches or group.task_key not in self._workloads:
            raise DataError(f"sketch {key[1]} of task {key[0]} is in no table of its platform; import its log again")
        workload, sketch = self._workloads[group.task_key], self._sketches[key]
        programs = _programs(sketch["log"], sketch["steps"], group.decisions.astype(np.int64), workload)
        count = len(group.decisions)
        first = [token_row("hardware", HARDWARE.row(fields=[log2p(x) for x in hardware]), count)] if len(hardware) else []
        rows = [token_row("workload", _workload_numbers(workload, programs), count), *(_row(action, count) for action in programs.actions)]
        return np.stack(first + rows, axis=1)


def _workload(about: Mapping[str, Any]) -> LogWorkload:
    return dialect_named(about["log"]).read_workload(about)


def _programs(log: str, steps: list[Any], decisions: np.ndarray, workload: LogWorkload) -> Programs:
    """The n programs with these (n, width) decisions; each step is given its own columns of them."""
    dialect = dialect_named(log)
    ends = np.cumsum([len(dialect.take_apart([step])[1]) for step in steps], dtype=np.int64)
    return dialect.read_programs(list(zip(steps, np.split(decisions, ends, axis=1), strict=False)), workload)


def _workload_numbers(workload: LogWorkload, programs: Programs) -> Row:
    """Numbers of the workload row, as for a network's task."""
    spatial, reduced = programs.spatial, programs.reduced
    flops = workload.flops or 2.0 * spatial * reduced
    intensity = flops / workload.argument_bytes if workload.argument_bytes else 0.0
    return WORKLOAD.row(
        sizes=[*map(log2p, (flops, workload.argument_bytes, intensity, spatial, reduced))],
        blocks=1 / AXES,
        operator=[float(workload.operator == name) for name in ALL_OPERATORS],
        extents=[*map(log2p, (*workload.axes.values(), *workload.strides))],
    )


def _row(action: Action, count: int) -> np.ndarray:
    """(count, F) tokens of an action; an annotation that binds a loop to a thread index is a row of kind Bind."""
    if isinstance(action, Split):
        return token_row("Split", _split_numbers(action), count)
    if isinstance(action, ComputeAt):
        numbers = LOCATION.row(loop=action.loop / LOOPS, at_root=action.loop == AT_ROOT, inside=action.anchor)
        return token_row("ComputeAt", numbers, count)
    if isinstance(action, Other):
        return token_row(action.kind, _all(PRIMITIVE.row(anchor=action.anchor), PRIMITIVE.numbers, action.numbers), count)
    flags = ANNOTATE.row(key=[action.parallel, action.vectorize, action.unroll])
    row = token_row("Annotate", _all(flags, ANNOTATE.values, action.values), count)
    row[:, KINDS.index("Annotate")], row[:, KINDS.index("Bind")] = np.logical_not(action.bound), action.bound
    return row


def _split_numbers(split: Split) -> Row:
    """The factors, then what is known of the axis; its strides are unknown."""
    return SPLIT.row(
        factors=[*map(log2p, split.factors.T)],
        extent=log2p(split.extent),
        reduces=split.reduces,
        anchor=split.anchor,
        axis=split.axis / AXES,
        knob=split.knob / AXES,
    )


def _all(row: Row, columns: slice, numbers: Iterable[Any]) -> Row:
    """The row up to ``columns``, then all of a log's numbers: there may be more than a network's schedule has."""
    return [*row[: columns.start], *map(log2p, numbers)]

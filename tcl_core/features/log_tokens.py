"""Tokens of imported AutoTVM and Ansor programs, in the layout of a network's, so that one model class learns from both.

A row for the hardware where it is known, one for the workload, one per step of the program: a knob of AutoTVM or a
transformation of Ansor.  A split's row has its factors from outermost to innermost and the extent of its axis; what a
log does not tell (strides, footprints) is 0.  Within a sketch only decisions differ, so encoding costs array
operations per sketch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    WIDTH,
    WORKLOAD,
    Row,
    log2p,
    token_row,
)
from tcl_core.programs.tuning_logs import ansor, autotvm
from tcl_core.programs.tuning_logs.workload import REDUCED, LogWorkload, read_log_workload
from tcl_core.store import Columns

TEMPLATES = {  # Ansor's kinds that have no decisions -> kind of a row
    "RE": "Reorder", "FU": "Fuse", "FSP": "Split", "FFSP": "Split", "CI": "ComputeInline", "CR": "ComputeAt",
    "CHR": "CacheRead", "CHW": "CacheWrite", "RF": "RFactor",
}  # fmt: skip
# Ansor's annotations of a loop, by number: what is 4 or more binds it to a thread index.
UNROLL, VECTORIZE, PARALLEL, FIRST_THREAD = 1, 2, 3, 4


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
        self._workloads = {row["task_key"]: read_log_workload(json.loads(row["module_json"])) for row in tasks}
        self._sketches = {(row["task_key"], row["sketch_id"]): json.loads(row["trace_json"]) for row in sketches}

    def encode_columns(self, columns: Columns, hardware: Sequence[float] = ()) -> Samples:
        """The programs of a block of records (``store.iter_columns`` of ``groups.COLUMNS``), in order.

        ``hardware`` are the platform's fields in fixed order; without them there is no row for them.
        """
        parts = [(group, self._tokens(group, hardware)) for group in by_sketch(columns)]
        return samples_of(parts, columns, self.numbers, self.names, WIDTH)

    def _tokens(self, group: Group, hardware: Sequence[float]) -> np.ndarray:
        """(n, L, F) of one sketch's programs."""
        key = (group.task_key, group.sketch_id)
        if key not in self._sketches or group.task_key not in self._workloads:
            raise DataError(f"sketch {key[1]} of task {key[0]} is in no table of its platform; import its log again")
        workload, sketch = self._workloads[group.task_key], self._sketches[key]
        decisions = group.decisions.astype(np.int64)
        read: Callable[..., list[np.ndarray]] = {autotvm.NAME: _knob_rows, ansor.NAME: _step_rows}[sketch["log"]]
        first = [token_row("hardware", HARDWARE.row(fields=[log2p(x) for x in hardware]), len(decisions))] if len(hardware) else []
        return np.stack(first + read(sketch["steps"], decisions, workload), axis=1)


def _workload_numbers(workload: LogWorkload, spatial: Any, reduced: Any) -> Row:
    """As of a network's task; ``spatial`` and ``reduced`` iterations are constants or (n,)."""
    flops = workload.flops or 2.0 * spatial * reduced
    intensity = flops / workload.argument_bytes if workload.argument_bytes else 0.0
    return WORKLOAD.row(
        sizes=[*map(log2p, (flops, workload.argument_bytes, intensity, spatial, reduced))],
        blocks=1 / AXES,
        operator=[float(workload.operator == name) for name in ALL_OPERATORS],
        extents=[*map(log2p, (*workload.axes.values(), *workload.strides))],
    )


def _knob_rows(steps: list[Any], decisions: np.ndarray, workload: LogWorkload) -> list[np.ndarray]:
    """AutoTVM: the workload's row and one per knob."""
    numbers = _workload_numbers(workload, workload.spatial, workload.reduced)
    rows, start = [token_row("workload", numbers, len(decisions))], 0
    for place, knob in enumerate(steps):
        end = start + len(autotvm.take_apart([knob])[1])
        rows.append(_knob_row(place, knob, decisions[:, start:end], workload))
        start = end
    return rows


def _knob_row(place: int, knob: list[Any], values: np.ndarray, workload: LogWorkload) -> np.ndarray:
    name, kind, _ = knob
    if kind == "sp" or (name.startswith("tile") and values.shape[1] == 1):
        return token_row("Split", _tile_numbers(place, name, values, workload), len(values))
    if kind == "re":
        return token_row("Reorder", _all(PRIMITIVE.row(anchor=1.0), PRIMITIVE.numbers, values.T), len(values))
    flags: Row = [0.0, 0.0, float("unroll" in name)]
    if kind == "an":
        flags = [(values == autotvm.WORDS.index(word)).any(axis=1) for word in ("parallel", "vec", "unroll")]
    return token_row("Annotate", _all(ANNOTATE.row(key=flags), ANNOTATE.values, values.T), len(values))


def _all(row: Row, columns: slice, numbers: Iterable[Any]) -> Row:
    """The row with all of a log's numbers from these columns on: there may be more than a network's schedule has."""
    return [*row[: columns.start], *map(log2p, numbers)]


def _tile_numbers(place: int, name: str, values: np.ndarray, workload: LogWorkload) -> Row:
    """Factors, extent, whether the axis is reduced, which it is, and the knob's place; the factor -1 is what the others leave."""
    axis = workload.knobs.get(name, "")
    extent = workload.axes.get(axis, 0)
    if values.shape[1] == 1:
        values = np.concatenate([np.full_like(values, -1), values], axis=1)
    others = np.where(values < 0, 1, values).prod(axis=1, keepdims=True)
    factors = np.where(values < 0, np.ceil(extent / np.maximum(others, 1)), values)
    number = list(workload.axes).index(axis) if axis else 0
    return _split_numbers(factors, extent, axis in REDUCED, 1.0, number, place)


def _split_numbers(factors: np.ndarray, extent: Any, reduces: Any, is_anchor: float, axis: int, knob: int = 0) -> Row:
    """The factors, then what is known of the axis; its strides are not."""
    about = {"extent": log2p(extent), "reduces": reduces, "anchor": is_anchor, "axis": axis / AXES, "knob": knob / AXES}
    return SPLIT.row(factors=[*map(log2p, factors.T)], **about)


def _step_rows(steps: list[Any], decisions: np.ndarray, workload: LogWorkload) -> list[np.ndarray]:
    """Ansor: the workload's row and one per transformation."""
    anchor = _Anchor(steps)
    rows, start, spatial, reduced = [], 0, 1.0, 1.0
    for step in steps:
        end = start + len(ansor.take_apart([step])[1])
        values = decisions[:, start:end]
        rows.append(_step_row(step, values, anchor))
        if step[0] == "SP" and step[1] == anchor.stage:
            extent = values[:, 0].astype(float)
            spatial, reduced = (spatial, reduced * extent) if anchor.reduces(step) else (spatial * extent, reduced)
        start = end
    return [token_row("workload", _workload_numbers(workload, spatial, reduced), len(decisions)), *rows]


class _Anchor:
    """The stage with most splits: where the work is.  Its loops with fewer factors than others are the reduced ones."""

    def __init__(self, steps: list[Any]) -> None:
        splits = [step for step in steps if step[0] == "SP"]
        stages = Counter(step[1] for step in splits)
        self.stage = stages.most_common(1)[0][0] if stages else -1
        self._most = max((len(step[4]) for step in splits if step[1] == self.stage), default=0)

    def reduces(self, split: list[Any]) -> bool:
        return split[1] == self.stage and len(split[4]) < self._most


def _step_row(step: list[Any], values: np.ndarray, anchor: _Anchor) -> np.ndarray:
    kind, count = step[0], len(values)
    is_anchor = float(len(step) > 1 and step[1] == anchor.stage)
    if kind == "SP":
        extent, inner = values[:, 0], values[:, 1:]
        outer = np.ceil(extent / np.maximum(inner.prod(axis=1), 1))
        factors = np.concatenate([outer[:, None], inner], axis=1)
        return token_row("Split", _split_numbers(factors, extent, anchor.reduces(step), is_anchor, step[2]), count)
    if kind == "CA":
        return token_row("ComputeAt", LOCATION.row(loop=values[:, 0] / LOOPS, inside=is_anchor), count)
    if kind == "PR":
        return token_row("Annotate", _all(ANNOTATE.row(key=[0.0, 0.0, 1.0]), ANNOTATE.values, values.T), count)
    if kind == "AN":
        return _annotation_row(values[:, 0])
    numbers = [float(x) for part in step[1:] for x in (part if isinstance(part, list) else [part]) if isinstance(x, int)]
    return token_row(TEMPLATES.get(kind, "other"), _all(PRIMITIVE.row(anchor=is_anchor), PRIMITIVE.numbers, numbers), count)


def _annotation_row(codes: np.ndarray) -> np.ndarray:
    """An annotated loop; one that is bound to a thread index is a row of kind Bind."""
    flags = [codes == PARALLEL, codes == VECTORIZE, codes == UNROLL]
    row = token_row("Annotate", ANNOTATE.row(key=flags, values=log2p(codes)), len(codes))
    bound = codes >= FIRST_THREAD
    row[bound, KINDS.index("Annotate")], row[bound, KINDS.index("Bind")] = 0.0, 1.0
    return row

"""Ansor's and TenSet's log lines.  A step is a transformation ``[kind, stage, ...]``.

    {"i": [[workload_key, target, ...], [stages, [step, ...]]], "r": [[seconds, ...], error_no, all_cost, timestamp],
     "v": "v0.6"}

The decisions of a program: extent and factors of each split (SP; extents depend on other splits), the loop that a
stage is computed at (CA), the annotation of a loop (AN), and the number of a pragma (PR, "auto_unroll_max_step$512").
The rest (which stages and loops a step names, how loops are reordered) is the sketch.  Of a task, only sizes are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson

from tcl_core.programs.tuning_logs.actions import Action, Annotate, ComputeAt, Other, Programs, Split, Steps
from tcl_core.programs.tuning_logs.line import Line, Malformed, Shape, check_result
from tcl_core.programs.tuning_logs.workload import LogWorkload, operator_in, unnamed_axes

NAME = "Ansor"
LOCATED = ("CA", "AN")  # [kind, stage, which, decision]
UNDECIDED = {  # kinds that have no decisions -> TVM's name of the primitive
    "RE": "Reorder", "FU": "Fuse", "FSP": "Split", "FFSP": "Split", "CI": "ComputeInline", "CR": "ComputeAt",
    "CHR": "CacheRead", "CHW": "CacheWrite", "RF": "RFactor",
}  # fmt: skip
# Annotations of a loop, by number; 4 and above bind it to a thread index.
UNROLL, VECTORIZE, PARALLEL, FIRST_THREAD = 1, 2, 3, 4


def is_record(entry: Any) -> bool:
    """Whether a line's JSON is a record of Ansor."""
    return isinstance(entry, dict) and {"i", "r"} <= entry.keys()


def parse(entry: dict[str, Any]) -> Line:
    """The ``Line`` of a line's JSON.  Raises Malformed, or what Python raises for missing keys and wrong types."""
    (task, target, *_), (_, steps) = entry["i"]
    costs, error_no, _, stamp = entry["r"]
    check_result(costs, error_no, stamp)
    if not (isinstance(task, str) and isinstance(target, str)):
        raise Malformed("workload key or target is no text")
    return Line(
        task=task.encode(),
        target=target.strip(),
        steps=steps,
        costs=costs,
        error_no=error_no,
        stamp=stamp,
        protocol=b'{"log": "Ansor", "version": %s}' % orjson.dumps(entry.get("v")),
        tvm_version="unknown",
    )


def take_apart(steps: list[Any]) -> tuple[Shape, list[int]]:
    """The shape and the decisions of a list of transformation steps."""
    shape: list[Any] = []
    numbers: list[int] = []
    for step in steps:
        kind = step[0]
        if kind == "SP":
            _, stage, loop, extent, factors, inner_to_outer = step
            shape += (kind, stage, loop, len(factors), inner_to_outer)
            numbers.append(extent)
            numbers += factors
        elif kind in LOCATED:
            _, stage, which, decision = step
            shape += (kind, stage, which)
            numbers.append(decision)
        elif kind == "PR":
            _, stage, loop, pragma = step
            name, dollar, number = pragma.partition("$")
            shape += (kind, stage, loop, name, dollar)
            numbers += [int(number)] if dollar else []
        else:
            shape.append(orjson.dumps(step))
    return tuple(shape), numbers


def check_sketch(steps: list[Any]) -> None:
    """Raise Malformed for a step without a kind, or without the stage and loop numbers that its kind requires."""
    for step in steps:
        places = step[1:3] if step[0] in ("SP", *LOCATED) else ()
        if not (isinstance(step, list) and isinstance(step[0], str) and all(type(place) is int for place in places)):
            raise Malformed(f"{step!r} is no transformation step")


def fill(steps: list[Any], decisions: Iterator[int]) -> list[Any]:
    """The steps with their decisions replaced by the next ones of ``decisions``."""
    return [_filled(step, decisions) for step in steps]


def _filled(step: list[Any], decisions: Iterator[int]) -> list[Any]:
    kind = step[0]
    if kind == "SP":
        _, stage, loop, _, factors, inner_to_outer = step
        extent = int(next(decisions))
        return [kind, stage, loop, extent, [int(next(decisions)) for _ in factors], inner_to_outer]
    if kind in LOCATED:
        return [*step[:3], int(next(decisions))]
    if kind == "PR" and "$" in step[3]:
        return [*step[:3], f"{step[3].partition('$')[0]}${int(next(decisions))}"]
    return step


def describe(task: bytes) -> dict[str, Any]:
    """The workload key, decoded where it is JSON (TenSet's is a hash and shapes)."""
    text = task.decode()
    try:
        return {"workload_key": orjson.loads(text)}
    except orjson.JSONDecodeError:
        return {"workload_key": [text]}


def read_workload(about: Mapping[str, Any]) -> LogWorkload:
    """The workload of a key (``describe``): its first entry holds the operator's name or a hash, the others are sizes."""
    key = about["workload_key"]
    values = key if isinstance(key, list) and key else [key]
    sizes = {name: size for name, size in unnamed_axes(values[1:]).items() if size >= 0}  # negative ones, such as an axis -1, are no sizes
    return LogWorkload(" ".join(map(str, values)), operator_in(str(values[0])), axes=sizes)


def read_programs(steps: Steps, workload: LogWorkload) -> Programs:
    """One action per transformation; the anchor's iterations come from the extents of its splits."""
    anchor = _Anchor([step for step, _ in steps])
    spatial: Any = 1.0
    reduced: Any = 1.0
    for step, values in steps:
        if step[0] == "SP" and step[1] == anchor.stage:
            extent = values[:, 0].astype(float)
            spatial, reduced = (spatial, reduced * extent) if anchor.reduces(step) else (spatial * extent, reduced)
    return Programs([_action(step, values, anchor) for step, values in steps], spatial, reduced)


class _Anchor:
    """The stage with the most splits, where the work is.  Its loops with fewer factors than others count as reduced."""

    def __init__(self, steps: list[Any]) -> None:
        splits = [step for step in steps if step[0] == "SP"]
        stages = Counter(step[1] for step in splits)
        self.stage = stages.most_common(1)[0][0] if stages else -1
        self._most = max((len(step[4]) for step in splits if step[1] == self.stage), default=0)

    def reduces(self, split: list[Any]) -> bool:
        return split[1] == self.stage and len(split[4]) < self._most


def _action(step: list[Any], values: np.ndarray, anchor: _Anchor) -> Action:
    kind = step[0]
    is_anchor = len(step) > 1 and step[1] == anchor.stage
    if kind == "SP":
        extent, inner = values[:, 0], values[:, 1:]
        outer = np.ceil(extent / np.maximum(inner.prod(axis=1), 1))
        return Split(np.concatenate([outer[:, None], inner], axis=1), extent, anchor.reduces(step), is_anchor, axis=step[2])
    if kind == "CA":
        return ComputeAt(values[:, 0], is_anchor)
    if kind == "PR":
        return Annotate(values.T, unroll=True)
    if kind == "AN":
        code = values[:, 0]
        return Annotate([code], code == PARALLEL, code == VECTORIZE, code == UNROLL, bound=code >= FIRST_THREAD)
    numbers = [float(x) for part in step[1:] for x in (part if isinstance(part, list) else [part]) if isinstance(x, int)]
    return Other(UNDECIDED.get(kind, "other"), numbers, is_anchor)

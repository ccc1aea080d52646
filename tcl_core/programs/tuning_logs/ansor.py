"""Ansor's and TenSet's log lines.  A step is a transformation ``[kind, stage, ...]``.

    {"i": [[workload_key, target, ...], [stages, [step, ...]]], "r": [[seconds, ...], error_no, all_cost, timestamp],
     "v": "v0.6"}

The decisions of a program: extent and factors of each split (SP; extents depend on other splits), the loop that a
stage is computed at (CA), the annotation of a loop (AN), and the number of a pragma (PR, "auto_unroll_max_step$512").
The rest (which stages and loops a step names, how loops are reordered) is the sketch.  Of a task, only sizes are known.

Some splits take their factors from earlier ones, which they name by the numbers of their steps:

    ["FSP", stage, loop, split, n]                     its first n - 1 factors, and the product of the others
    ["FFSP", stage, loop, [split, ...], level, inner]  the product of their factors at a level: of the inner loop, or of the outer one
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson

from tcl_core.programs.tuning_logs.actions import AT_ROOT, Action, Annotate, ComputeAt, Number, Other, Programs, Split, Steps
from tcl_core.programs.tuning_logs.line import Line, Malformed, Shape, check_result
from tcl_core.programs.tuning_logs.workload import LogWorkload, operator_in, unnamed_axes

NAME = "Ansor"
LOCATED = ("CA", "AN")  # [kind, stage, which, decision]
FOLLOWING = ("FSP", "FFSP")
OTHERS = {  # kind -> TVM's name of the primitive
    "RE": "Reorder", "FU": "Fuse", "CI": "ComputeInline", "CHR": "CacheRead", "CHW": "CacheWrite", "RF": "RFactor",
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
    """Raise Malformed for a step without a kind, without the numbers that its kind requires, or that follows no splits; or what Python
    raises for wrong types.
    """
    for number, step in enumerate(steps):
        places = step[1:3] if step[0] in ("SP", *LOCATED) else (step[1], step[2], step[4]) if step[0] in FOLLOWING else ()
        if not (isinstance(step, list) and isinstance(step[0], str) and all(type(place) is int for place in places)):
            raise Malformed(f"{step!r} is no transformation step")
        if step[0] in FOLLOWING and not _follows(step, steps[:number]):
            raise Malformed(f"{step!r} follows no splits before it")


def _follows(step: list[Any], before: list[Any]) -> bool:
    """Whether the splits that a step follows come before it, with as many factors as it takes."""
    kind, _, _, splits, level, *inner = step
    splits, least, taken = ([splits], 0, level - 1) if kind == "FSP" else (splits, 1, level + 1)
    factors = [len(before[n][4]) for n in splits if n in range(len(before)) and before[n][0] == "SP"]
    return len(factors) == len(splits) > 0 and least <= taken <= min(factors) and len(inner) == (kind == "FFSP")


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
    return Programs([_action(step, values, anchor, steps) for step, values in steps], spatial, reduced)


class _Anchor:
    """The stage with the most splits, where the work is.  Its loops with fewer factors than others count as reduced."""

    def __init__(self, steps: list[Any]) -> None:
        splits = [step for step in steps if step[0] == "SP"]
        stages = Counter(step[1] for step in splits)
        self.stage = stages.most_common(1)[0][0] if stages else -1
        self._most = max((len(step[4]) for step in splits if step[1] == self.stage), default=0)

    def reduces(self, split: list[Any]) -> bool:
        return split[1] == self.stage and len(split[4]) < self._most


def _action(step: list[Any], values: np.ndarray, anchor: _Anchor, steps: Steps) -> Action:
    kind = step[0]
    is_anchor = len(step) > 1 and step[1] == anchor.stage
    if kind == "SP":
        return Split(_factors(values[:, 0], values[:, 1:]), values[:, 0], anchor.reduces(step), is_anchor, axis=step[2])
    if kind in FOLLOWING:
        factors, extent = _followed(step, steps)
        return Split(factors, extent, reduces=False, anchor=is_anchor, axis=step[2])
    if kind == "CA":
        return ComputeAt(values[:, 0], is_anchor)
    if kind == "CR":
        return ComputeAt(AT_ROOT, is_anchor)
    if kind == "PR":
        return Annotate(values.T, unroll=True)
    if kind == "AN":
        code = values[:, 0]
        return Annotate([code], code == PARALLEL, code == VECTORIZE, code == UNROLL, bound=code >= FIRST_THREAD)
    numbers = [float(x) for part in step[1:] for x in (part if isinstance(part, list) else [part]) if isinstance(x, int)]
    return Other(OTHERS.get(kind, "other"), numbers, is_anchor)


def _factors(extent: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """(n, f + 1) factors, from the outermost loop, of loops with (n,) extents and (n, f) inner factors."""
    outer = np.ceil(extent / np.maximum(inner.prod(axis=1), 1))
    return np.concatenate([outer[:, None], inner], axis=1)


def _followed(step: list[Any], steps: Steps) -> tuple[np.ndarray, Number]:
    """(n, f) factors of a split that follows others, and its extent.  Of a fused loop, whose extent is unknown, one factor is too."""
    kind, _, _, splits, level, *inner = step
    if kind == "FSP":
        extent, lengths = steps[splits][1][:, 0], steps[splits][1][:, 1:]
        rest = lengths[:, level - 1 :].prod(axis=1, keepdims=True)
        return _factors(extent, np.concatenate([lengths[:, : level - 1], rest], axis=1)), extent
    length = np.prod([steps[n][1][:, 1 + level] for n in splits], axis=0)
    unknown = np.zeros_like(length)
    return np.stack([unknown, length] if inner[0] else [length, unknown], axis=1), 0

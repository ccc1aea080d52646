"""The smallest dialect of tuning logs: what a new one has to say, and nothing else.

    {"computes": ["matmul", 64, 32], "with": "llvm", "does": [["tile", 0, 8], ["unroll", 1, 4]], "seconds": 0.5}

A step is ``[kind, axis, decision]``; a tile's decision is how long the inner loop is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import orjson

from tcl_core.programs.tuning_logs.actions import Action, Annotate, Programs, Split, Steps
from tcl_core.programs.tuning_logs.line import Line, Malformed, Shape, check_result
from tcl_core.programs.tuning_logs.workload import LogWorkload, operator_in, unnamed_axes

NAME = "MadeUp"


def is_record(entry: Any) -> bool:
    return isinstance(entry, dict) and {"computes", "does"} <= entry.keys()


def parse(entry: dict[str, Any]) -> Line:
    check_result([entry["seconds"]], 0, 0.0)
    return Line(
        task=orjson.dumps(entry["computes"]),
        target=entry["with"],
        steps=entry["does"],
        costs=[entry["seconds"]],
        error_no=0,
        stamp=0.0,
        protocol=b'{"log": "MadeUp"}',
        tvm_version="unknown",
    )


def take_apart(steps: list[Any]) -> tuple[Shape, list[int]]:
    return tuple((kind, axis) for kind, axis, _ in steps), [decision for _, _, decision in steps]


def check_sketch(steps: list[Any]) -> None:
    if not {kind for kind, _, _ in steps} <= {"tile", "unroll"}:
        raise Malformed("a step neither tiles nor unrolls")


def fill(steps: list[Any], decisions: Iterator[int]) -> list[Any]:
    return [[kind, axis, int(next(decisions))] for kind, axis, _ in steps]


def describe(task: bytes) -> dict[str, Any]:
    return {"computes": orjson.loads(task)}


def read_workload(about: Mapping[str, Any]) -> LogWorkload:
    name, *sizes = about["computes"]
    return LogWorkload(f"{name} of {sizes}", operator_in(name), flops=2.0 * math.prod(sizes), axes=unnamed_axes(sizes))


def read_programs(steps: Steps, workload: LogWorkload) -> Programs:
    sizes = list(workload.axes.values())
    actions = [_action(kind, axis, sizes[axis], values) for (kind, axis, _), values in steps]
    return Programs(actions, spatial=math.prod(sizes), reduced=1.0)


def _action(kind: str, axis: int, extent: int, values: np.ndarray) -> Action:
    if kind == "unroll":
        return Annotate(values.T, unroll=True)
    return Split(np.concatenate([extent / values, values], axis=1), extent, reduces=False, anchor=True, axis=axis)

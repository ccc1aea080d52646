"""Ansor's and TenSet's log lines.  A step is a transformation ``[kind, stage, ...]``.

    {"i": [[workload_key, target, ...], [stages, [step, ...]]], "r": [[seconds, ...], error_no, all_cost, timestamp],
     "v": "v0.6"}

The decisions of a program: extent and factors of each split (SP; extents depend on other splits), the loop that a
stage is computed at (CA), the annotation of a loop (AN), and the number of a pragma (PR, "auto_unroll_max_step$512").
The rest, which stages and loops a step names and how loops are reordered, is the sketch's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from tcl_core.programs.tuning_logs.line import Line, Malformed, Shape, check_result

NAME = "Ansor"
LOCATED = ("CA", "AN")  # [kind, stage, which, decision]


def parse(entry: dict[str, Any]) -> Line:
    """Raises Malformed, or what Python raises for missing keys and wrong types."""
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
    """Raise Malformed for a step that has no kind, or no number of a stage or of a loop where its kind has one."""
    for step in steps:
        places = step[1:3] if step[0] in ("SP", *LOCATED) else ()
        if not (isinstance(step, list) and isinstance(step[0], str) and all(type(place) is int for place in places)):
            raise Malformed(f"{step!r} is no transformation step")


def fill(steps: list[Any], decisions: Iterator[int]) -> list[Any]:
    """The steps with the next decisions in place of theirs."""
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

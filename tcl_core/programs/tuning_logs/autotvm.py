"""AutoTVM's log lines.  A step is a knob ``[name, kind, value]``; its decisions are all that the value holds.

    {"input": [target, task, args, kwargs], "config": {"index": i, "code_hash": c, "entity": [knob, ...]},
     "result": [[seconds, ...], error_no, all_cost, timestamp], "version": 0.2, "tvm_version": "0.10.0"}

Kinds: sp split factors (-1: what is left), re order, an annotations, ot anything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from tcl_core.programs.tuning_logs.line import Line, Malformed, Shape, check_result

NAME = "AutoTVM"
# Annotations of axes; a decision is the place in this list.  Other words stay in the sketch.
WORDS = (
    "none", "unroll", "vec", "parallel", "vthread", "blockIdx.x", "blockIdx.y", "blockIdx.z",
    "threadIdx.x", "threadIdx.y", "threadIdx.z",
)  # fmt: skip
_CODES = {word: code for code, word in enumerate(WORDS)}


def parse(entry: dict[str, Any]) -> Line:
    """Raises Malformed, or what Python raises for missing keys and wrong types."""
    target, task, arguments, keywords = entry["input"]
    costs, error_no, _, stamp = entry["result"]
    check_result(costs, error_no, stamp)
    version = entry.get("tvm_version") or "unknown"
    for name, text in (("target", target), ("tvm_version", version)):
        if not isinstance(text, str):
            raise Malformed(f"its {name} is no text")
    return Line(
        task=orjson.dumps([task, arguments, keywords]),
        target=target.strip(),
        steps=entry["config"]["entity"],
        costs=costs,
        error_no=error_no,
        stamp=stamp,
        protocol=b'{"log": "AutoTVM", "version": %s}' % orjson.dumps(entry.get("version")),
        tvm_version=version,
    )


def take_apart(steps: list[Any]) -> tuple[Shape, list[int]]:
    """The shape and the decisions of a list of knobs."""
    shape: list[Any] = []
    numbers: list[int] = []
    for name, kind, value in steps:
        listed = type(value) is list
        shape += (name, kind, len(value) if listed else None)
        for part in value if listed else (value,):
            if type(part) is int:
                shape.append(int)
                numbers.append(part)
            elif type(part) is bool:
                shape.append(bool)
                numbers.append(int(part))
            elif part in _CODES:
                shape.append(str)
                numbers.append(_CODES[part])
            else:
                shape.append(part)
    return tuple(shape), numbers


def check_sketch(steps: list[Any]) -> None:
    """Raise Malformed for knobs that have no name or kind."""
    for name, kind, _ in steps:
        if not (isinstance(name, str) and isinstance(kind, str)):
            raise Malformed(f"a knob has the name {name!r} and the kind {kind!r}")


def fill(steps: list[Any], decisions: Iterator[int]) -> list[Any]:
    """The knobs with the next decisions in place of theirs."""
    return [[name, kind, _filled(value, decisions)] for name, kind, value in steps]


def _filled(value: Any, decisions: Iterator[int]) -> Any:
    if isinstance(value, list):
        return [_filled(part, decisions) for part in value]
    if isinstance(value, bool):
        return bool(next(decisions))
    if isinstance(value, int):
        return int(next(decisions))
    return WORDS[next(decisions)] if value in _CODES else value


def describe(task: bytes) -> dict[str, Any]:
    """Name, arguments and keyword arguments of the task's template."""
    name, arguments, keywords = orjson.loads(task)
    return {"task": name, "args": arguments, "kwargs": keywords}

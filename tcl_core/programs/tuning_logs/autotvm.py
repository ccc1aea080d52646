"""AutoTVM's log lines.  A step is a knob ``[name, kind, value]``; its decisions are what the value holds.

    {"input": [target, task, args, kwargs], "config": {"index": i, "code_hash": c, "entity": [knob, ...]},
     "result": [[seconds, ...], error_no, all_cost, timestamp], "version": 0.2, "tvm_version": "0.10.0"}

Kinds: sp split factors (-1: inferred), re order, an annotations, ot anything else.  A task is a template and its
arguments; for convolutions and matrix products the axes and the knob that tiles each are derived, for others only sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from tcl_core.programs.tuning_logs.actions import Action, Annotate, Other, Programs, Split, Steps
from tcl_core.programs.tuning_logs.line import Line, Malformed, Shape, check_result
from tcl_core.programs.tuning_logs.workload import REDUCED, LogWorkload, operator_in, unnamed_axes
from tcl_core.programs.workload import bytes_of

NAME = "AutoTVM"
# Annotations of axes; a decision is an index into this list.  Other words stay in the sketch.
WORDS = (
    "none", "unroll", "vec", "parallel", "vthread", "blockIdx.x", "blockIdx.y", "blockIdx.z",
    "threadIdx.x", "threadIdx.y", "threadIdx.z",
)  # fmt: skip
_CODES = {word: code for code, word in enumerate(WORDS)}

# Knob -> the axis that it tiles.
CONV_KNOBS = {
    "tile_oc": "co", "tile_co": "co", "tile_f": "co", "tile_ic": "ci", "tile_rc": "ci", "tile_ow": "ow", "tile_x": "ow",
    "tile_w": "ow", "tile_oh": "oh", "tile_y": "oh", "tile_h": "oh", "tile_ry": "kh", "tile_rx": "kw",
}  # fmt: skip
DEPTHWISE_KNOBS = CONV_KNOBS | {"tile_ic": "co", "tile_c": "co"}
WINOGRAD_KNOBS = {"tile_k": "co", "tile_c": "ci", "tile_rc": "ci", "tile_y": "co"}
MATMUL_KNOBS = {"tile_y": "m", "tile_x": "n", "tile_k": "k"}
ROWS_BY_X = "dense_large_batch", "dense_dsp"  # templates that tile rows by tile_x and columns by tile_y


def is_record(entry: Any) -> bool:
    """Whether a line's JSON is a record of AutoTVM."""
    return isinstance(entry, dict) and {"input", "config"} <= entry.keys()


def parse(entry: dict[str, Any]) -> Line:
    """The ``Line`` of a line's JSON.  Raises Malformed, or what Python raises for missing keys and wrong types."""
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
    """The knobs with their decisions replaced by the next ones of ``decisions``."""
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


def read_workload(about: Mapping[str, Any]) -> LogWorkload:
    """The workload of a template and its arguments (``describe``)."""
    name, tensors = about["task"], [(arg[1], arg[2]) for arg in about["args"] if _is_tensor(arg)]
    shapes = [shape for shape, _ in tensors]
    try:
        axes, knobs, strides = _axes(name, about["args"], shapes)
    except (TypeError, ValueError, IndexError, ZeroDivisionError):  # a template with other arguments than TOPI's
        axes, knobs, strides = unnamed_axes(shapes), {}, ()
    return LogWorkload(
        name=" ".join([name, *("x".join(map(str, shape)) for shape in shapes)]),
        operator=operator_in(name),
        flops=2.0 * math.prod(axes.values()) if knobs else 0.0,
        argument_bytes=sum(math.prod(shape) * bytes_of(dtype) for shape, dtype in tensors),
        axes=axes,
        knobs=knobs,
        strides=strides,
    )


def _is_tensor(arg: Any) -> bool:
    """Whether it is ["TENSOR", shape, dtype] of a known shape."""
    tensor = isinstance(arg, list) and len(arg) == 3 and arg[0] == "TENSOR"
    return tensor and _are_integers(arg[1]) and isinstance(arg[2], str)


def _are_integers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int for value in values)


def _axes(task: str, args: Sequence[Any], shapes: Sequence[Sequence[int]]) -> tuple[dict[str, int], dict[str, str], tuple[int, ...]]:
    """Axes, knobs and strides of TOPI's matrix products and channels-first convolutions; raises what its caller catches for others."""
    if "dense" in task or "matmul" in task:
        (*batch, m, k), (*_, rows, columns) = shapes[:2]
        n = rows if columns == k else columns  # the second matrix may be transposed
        knobs = MATMUL_KNOBS | {"tile_x": "m", "tile_y": "n"} if any(name in task for name in ROWS_BY_X) else MATMUL_KNOBS
        return {"b": math.prod(batch), "m": m, "n": n, "k": k}, knobs, ()
    if "conv2d" not in task or not any(layout in task for layout in ("nchw", "NCHW")):
        raise ValueError
    if "without_weight_transform" in task:  # the weight is transformed already: it has the tiles' extents, not the window's
        raise ValueError
    if not all(map(_are_integers, args[2:5])):
        raise ValueError
    axes = _conv_axes(shapes[0], shapes[1], *args[2:5], depthwise="depthwise" in task)
    knobs = DEPTHWISE_KNOBS if "depthwise" in task else WINOGRAD_KNOBS if "winograd" in task else CONV_KNOBS
    return axes, knobs, tuple(args[2])


def _conv_axes(data: Sequence[int], weight: Sequence[int], strides: Any, padding: Any, dilation: Any, depthwise: bool) -> dict[str, int]:
    if len(data) != 4 or len(weight) != 4:  # channels in blocks
        raise ValueError
    batch, _, *image = data
    filters, inner, *window = weight
    pads = list(padding) if len(padding) == 4 else [*padding, *padding]
    out = [(image[n] + pads[n] + pads[n + 2] - (window[n] - 1) * dilation[n] - 1) // strides[n] + 1 for n in range(2)]
    channels = {"co": filters * inner} if depthwise else {"co": filters, "ci": inner}
    spatial = {"n": batch, "co": channels.pop("co"), "oh": out[0], "ow": out[1]}
    return spatial | channels | {"kh": window[0], "kw": window[1]}


def read_programs(steps: Steps, workload: LogWorkload) -> Programs:
    """One action per knob; a tile's split has the extent of the axis that it tiles, and -1 becomes the inferred factor."""
    actions = [_action(place, knob, values, workload) for place, (knob, values) in enumerate(steps)]
    return Programs(actions, workload.spatial, workload.reduced)


def _action(place: int, knob: list[Any], values: np.ndarray, workload: LogWorkload) -> Action:
    name, kind, _ = knob
    if kind == "sp" or (name.startswith("tile") and values.shape[1] == 1):
        return _tile(place, name, values, workload)
    if kind == "re":
        return Other("Reorder", values.T, anchor=True)
    if kind == "an":
        parallel, vectorize, unroll = ((values == WORDS.index(word)).any(axis=1) for word in ("parallel", "vec", "unroll"))
        return Annotate(values.T, parallel, vectorize, unroll)
    return Annotate(values.T, unroll="unroll" in name)


def _tile(place: int, name: str, values: np.ndarray, workload: LogWorkload) -> Split:
    axis = workload.knobs.get(name, "")
    extent = workload.axes.get(axis, 0)
    if values.shape[1] == 1:
        values = np.concatenate([np.full_like(values, -1), values], axis=1)
    others = np.where(values < 0, 1, values).prod(axis=1, keepdims=True)
    factors = np.where(values < 0, np.ceil(extent / np.maximum(others, 1)), values)
    number = list(workload.axes).index(axis) if axis in workload.axes else 0
    return Split(factors, extent, axis in REDUCED, anchor=True, axis=number, knob=place)

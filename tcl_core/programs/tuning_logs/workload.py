"""What the task of a log computes, as far as the log says: operator, work, and the axes that its knobs tile.

AutoTVM names a template and its arguments; of convolutions and matrix products the axes are worked out, with which
knob tiles which.  Of other templates, and of Ansor's and TenSet's workload keys, only sizes are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tcl_core.programs.tasks import OPERATORS

UNKNOWN = "unknown"
ALIASES = {"depthwise": "depthwise_conv2d", "dense": "matmul", "reduc": "sum", "relu": "elementwise"}
REDUCED = ("ci", "kh", "kw", "k")

# Knob -> the axis that it tiles.
CONV_KNOBS = {
    "tile_oc": "co", "tile_co": "co", "tile_f": "co", "tile_ic": "ci", "tile_rc": "ci", "tile_ow": "ow", "tile_x": "ow",
    "tile_w": "ow", "tile_oh": "oh", "tile_y": "oh", "tile_h": "oh", "tile_ry": "kh", "tile_rx": "kw",
}  # fmt: skip
DEPTHWISE_KNOBS = CONV_KNOBS | {"tile_ic": "co", "tile_c": "co"}
WINOGRAD_KNOBS = {"tile_k": "co", "tile_c": "ci", "tile_rc": "ci", "tile_y": "co"}
MATMUL_KNOBS = {"tile_y": "m", "tile_x": "n", "tile_k": "k"}


@dataclass(frozen=True)
class LogWorkload:
    """A task of a log.

    name            for readers
    operator        as of a network's task, or "unknown"
    flops           floating point operations, 0 where they cannot be told
    argument_bytes  of its tensors, 0 where they are not given
    axes            name -> extent, spatial ones first; or the sizes in its key, in order
    knobs           knob -> axis
    strides         of a convolution's window
    """

    name: str
    operator: str
    flops: float = 0.0
    argument_bytes: int = 0
    axes: Mapping[str, int] = field(default_factory=dict)
    knobs: Mapping[str, str] = field(default_factory=dict)
    strides: tuple[int, ...] = ()

    @property
    def spatial(self) -> int:
        """Product of the axes that are not reduced; 0 where the axes are not known."""
        return math.prod(e for axis, e in self.axes.items() if axis not in REDUCED) if self.knobs else 0

    @property
    def reduced(self) -> int:
        """Product of the reduced axes; 0 where the axes are not known."""
        return math.prod(e for axis, e in self.axes.items() if axis in REDUCED) if self.knobs else 0

    @property
    def largest(self) -> int:
        """The largest of the numbers that are worked out of its sizes; -1 where one of these is negative."""
        sizes = [*self.axes.values(), *self.strides]
        return -1 if min(sizes, default=0) < 0 else max(self.argument_bytes, math.prod(size or 1 for size in sizes))


def read_log_workload(about: Mapping[str, Any]) -> LogWorkload:
    """The workload that a task's description (``describe`` of its dialect) tells of."""
    if "workload_key" in about:
        return _of_key(about["workload_key"])
    tensors = [(arg[1], arg[2]) for arg in about["args"] if _is_tensor(arg)]
    try:
        axes, knobs, strides = _axes(about["task"], about["args"], [shape for shape, _ in tensors])
    except (TypeError, ValueError, IndexError, ZeroDivisionError):  # a template with other arguments than TOPI's
        axes, knobs, strides = {f"d{n}": d for n, d in enumerate(_sizes([shape for shape, _ in tensors]))}, {}, ()
    return LogWorkload(
        name=" ".join([about["task"], *("x".join(map(str, shape)) for shape, _ in tensors)]),
        operator=_operator(about["task"]),
        flops=2.0 * math.prod(axes.values()) if knobs else 0.0,
        argument_bytes=sum(math.prod(_sizes([shape])) * _bytes_of(dtype) for shape, dtype in tensors),
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


def _of_key(key: Any) -> LogWorkload:
    values = key if isinstance(key, list) and key else [key]
    sizes = {f"d{n}": size for n, size in enumerate(_sizes(values[1:]))}
    return LogWorkload(" ".join(map(str, values)), _operator(str(values[0])), axes=sizes)


def _operator(name: str) -> str:
    for word, operator in (*ALIASES.items(), *((o, o) for o in OPERATORS)):
        if word in name.lower():
            return operator
    return UNKNOWN


def _axes(task: str, args: Sequence[Any], shapes: Sequence[Sequence[int]]) -> tuple[dict[str, int], dict[str, str], tuple[int, ...]]:
    """Axes, knobs and strides of TOPI's templates with channels first; raises where the arguments are of other ones."""
    if "dense" in task or "matmul" in task:
        (*batch, m, k), (*_, rows, columns) = shapes[:2]
        n = rows if columns == k else columns  # the second matrix may be transposed
        return {"b": math.prod(batch), "m": m, "n": n, "k": k}, MATMUL_KNOBS, ()
    if "conv2d" not in task or not any(layout in task for layout in ("nchw", "NCHW")):
        raise ValueError
    if not all(map(_are_integers, args[2:5])):
        raise ValueError
    axes = _conv_axes(shapes[0], shapes[1], *args[2:5], depthwise="depthwise" in task)
    knobs = DEPTHWISE_KNOBS if "depthwise" in task else WINOGRAD_KNOBS if "winograd" in task else CONV_KNOBS
    return axes, knobs, tuple(args[2])


def _conv_axes(data: Sequence[int], weight: Sequence[int], strides: Any, padding: Any, dilation: Any, depthwise: bool) -> dict[str, int]:
    batch, _, *image = data
    filters, inner, *window = weight
    pads = list(padding) if len(padding) == 4 else [*padding, *padding]
    out = [(image[n] + pads[n] + pads[n + 2] - (window[n] - 1) * dilation[n] - 1) // strides[n] + 1 for n in range(2)]
    channels = {"co": filters * inner} if depthwise else {"co": filters, "ci": inner}
    spatial = {"n": batch, "co": channels.pop("co"), "oh": out[0], "ow": out[1]}
    return spatial | channels | {"kh": window[0], "kw": window[1]}


def _sizes(values: Any) -> list[int]:
    """The integers of a nested list, in order."""
    if isinstance(values, list):
        return [size for value in values for size in _sizes(value)]
    return [values] if isinstance(values, int) and not isinstance(values, bool) else []


def _bytes_of(dtype: str) -> int:
    digits = "".join(c for c in dtype if c.isdigit())
    return max(1, int(digits or 8) // 8)

"""What a log says that its task computes: operator, work, and axes where they are known."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tcl_core.programs.tasks import OPERATORS

UNKNOWN = "unknown"
ALIASES = {"depthwise": "depthwise_conv2d", "dense": "matmul", "reduc": "sum"}
AFTER_OTHERS = {"relu": "elementwise"}
REDUCED = ("ci", "kh", "kw", "k")


@dataclass(frozen=True)
class LogWorkload:
    """A task of a log.

    name            for readers
    operator        as for a network's task, or "unknown"
    flops           floating point operations, 0 if unknown
    argument_bytes  bytes of its tensors, 0 if not given
    axes            name -> extent, spatial ones first; or, unnamed, all sizes that the log gives
    knobs           knob of a template -> the axis that it tiles
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
        """The largest number derived from its sizes; -1 if a size is negative."""
        sizes = [*self.axes.values(), *self.strides]
        if min(sizes, default=0) < 0:
            return -1
        # Unnamed sizes are those of all tensors together; they are never multiplied.
        return max(self.argument_bytes, math.prod(size or 1 for size in sizes) if self.knobs else max(sizes, default=0))


def operator_in(name: str) -> str:
    """The operator whose word occurs in a name, or "unknown"."""
    for word, operator in (*ALIASES.items(), *((o, o) for o in OPERATORS), *AFTER_OTHERS.items()):
        if word in name.lower():
            return operator
    return UNKNOWN


def unnamed_axes(values: Any) -> dict[str, int]:
    """The integers of a nested list, in order, as axes: d0, d1, ..."""
    return {f"d{number}": size for number, size in enumerate(_integers(values))}


def _integers(values: Any) -> list[int]:
    if isinstance(values, list):
        return [size for value in values for size in _integers(value)]
    return [values] if isinstance(values, int) and not isinstance(values, bool) else []

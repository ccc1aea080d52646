"""What a task computes, as plain numbers: its blocks, their axes, and how each axis walks through each buffer.

Read once per task: everything that features need to know of the tensor program before it is scheduled.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tcl_core.compat import load_tvm
from tcl_core.programs.tasks import REDUCE, argument_types


@dataclass(frozen=True)
class Access:
    """One buffer that a block touches.

    coefficients  (dimensions, axes) int64: how far an axis moves the index in each dimension
    shape         (dimensions,) int64 of the buffer
    element_bytes size of one element
    buffer        its name
    """

    coefficients: np.ndarray
    shape: np.ndarray
    element_bytes: int
    buffer: str = ""

    @cached_property
    def strides(self) -> np.ndarray:
        """(axes,) elements that one step of each axis moves in the flattened, row-major buffer."""
        inner = np.concatenate([np.cumprod(self.shape[::-1])[::-1][1:], [1]]) if len(self.shape) else np.zeros(0)
        return inner.astype(np.int64) @ self.coefficients

    def footprint_bytes(self, tiles: np.ndarray) -> np.ndarray:
        """Bytes touched while each axis runs through its tile: ``tiles`` (..., axes) -> (...)."""
        return self._spans(tiles).prod(axis=-1) * self.element_bytes

    def lines(self, tiles: np.ndarray, line_bytes: int) -> np.ndarray:
        """Cache lines touched meanwhile, (...), if each contiguous run of elements begins a line."""
        spans = self._spans(tiles)
        whole = np.flip(np.cumprod(np.flip(spans == self.shape, -1), axis=-1), -1).astype(bool)  # this and all inner ones
        contiguous = np.concatenate([whole[..., 1:], np.ones_like(whole[..., :1])], axis=-1)
        run = np.where(contiguous, spans, 1).prod(axis=-1)
        return spans.prod(axis=-1) // run * -(-run * self.element_bytes // line_bytes)

    def _spans(self, tiles: np.ndarray) -> np.ndarray:
        """(..., dimensions) elements from the first to the last touched, inclusive, at most the buffer's shape."""
        spans = (tiles[..., None, :] - 1) @ np.abs(self.coefficients).T + 1
        return np.minimum(spans[..., 0, :], self.shape)


@dataclass(frozen=True)
class Block:
    """One computation of a task: (axes,) extents, which of them reduce, and its accesses, the written one first."""

    name: str
    extents: np.ndarray
    reduces: np.ndarray
    accesses: tuple[Access, ...]

    @property
    def iterations(self) -> int:
        return int(self.extents.prod())


@dataclass(frozen=True)
class Workload:
    """A task before scheduling: operator type, floating point operations, argument bytes, blocks in program order."""

    operator: str
    flops: float
    argument_bytes: int
    blocks: tuple[Block, ...]

    def block(self, name: str) -> Block | None:
        return next((block for block in self.blocks if block.name == name), None)

    def readers(self, name: str) -> list[Block]:
        """The blocks that read what a block writes."""
        written = {access.buffer for block in self.blocks if block.name == name for access in block.accesses[:1]}
        return [b for b in self.blocks if b.name != name and written & {access.buffer for access in b.accesses[1:]}]

    @cached_property
    def anchor(self) -> Block:
        """The block that costs most: the reduction with most iterations, or else the largest block."""
        return max(self.blocks, key=lambda b: (b.reduces.any(), b.iterations))


def read_workload(operator: str, flops: float, module: Any) -> Workload:
    """The workload of a task's module."""
    schedule = load_tvm().s_tir.Schedule(module, error_render_level="none")
    children = schedule.get_child_blocks(schedule.get_sblock("root"))
    blocks = tuple(_read_block(schedule.get(child)) for child in children)
    sizes = (math.prod(shape) * bytes_of(dtype) for shape, dtype in argument_types(module))
    return Workload(operator, flops, sum(sizes), blocks)


def _read_block(block: Any) -> Block:
    axes = [iter_var.var for iter_var in block.iter_vars]
    regions = [*block.writes, *block.reads]
    return Block(
        name=str(block.name_hint),
        extents=np.array([int(iter_var.dom.extent) for iter_var in block.iter_vars], dtype=np.int64),
        reduces=np.array([iter_var.iter_type == REDUCE for iter_var in block.iter_vars], dtype=bool),
        accesses=tuple(_read_access(region, axes) for region in regions),
    )


def _read_access(region: Any, axes: list[Any]) -> Access:
    shape = np.array([int(d) for d in region.source.shape], dtype=np.int64)
    rows = [_linear_coefficients(r.min, axes) for r in region.region]
    coefficients = np.array(rows, dtype=np.int64).reshape(len(shape), len(axes))
    return Access(coefficients, shape, bytes_of(str(region.source.dtype)), str(region.source.name))


def _linear_coefficients(index: Any, axes: list[Any]) -> list[int]:
    """Change of the index expression as each axis in turn goes from 0 to 1, all others 0; 0 where that is not constant.

    Exact for affine indices.  Reshapes divide and take remainders: for these it is the change by the first step.
    """
    coefficients = load_tvm().sym.detect_linear_equation(index, axes)
    if len(coefficients) == len(axes) + 1:
        return [_constant(c) or 0 for c in coefficients[:-1]]
    origin = _value_at(index, axes, None)
    moved = [_value_at(index, axes, axis) for axis in range(len(axes))]
    return [0 if origin is None or m is None else m - origin for m in moved]


def _value_at(index: Any, axes: list[Any], one: int | None) -> int | None:
    """The index expression where axis number ``one`` is 1 and the others are 0."""
    tvm = load_tvm()
    analyzer = tvm.sym.Analyzer()
    for number, axis in enumerate(axes):
        analyzer.bind(axis, tvm.tirx.const(int(number == one), str(axis.ty.dtype)))
    return _constant(analyzer.simplify(index))


def _constant(expression: Any) -> int | None:
    return int(expression.value) if isinstance(expression, load_tvm().tirx.IntImm) else None


def bytes_of(dtype: str) -> int:
    """Bytes of one element, at least 1."""
    bits = re.search(r"\d+", dtype)  # the first number: float8_e4m3fn has eight
    return max(1, int(bits[0] if bits else 8) // 8)

"""Compute matrix products whose extents leave a tiling no choice on somewhat larger matrices.

The factors of a tiling divide its extent.  The 197 tokens of a vision transformer, a prime number, can only be split into 1 or 197: no
block of a few rows stays in registers, and no vector fits a row of 197 columns.  Rounded up, both do, for a few per cent more
multiplications; what is added is zeros, and is cut off before what follows the product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tcl_core.compat import load_tvm
from tcl_core.programs.rewriting import as_always

ROWS, COLUMNS = 8, 16  # rows and columns are rounded up to multiples of these: rows in registers at a time, floats of the widest vectors
FEW = 16  # an extent of at most this many rows or columns stays as it is
MOST = 1.125  # rounding multiplies the work by at most this

NAME = "relax.matmul"


def legalizations() -> dict[str, Callable[[Any, Any], Any]]:
    """For TVM's ``LegalizeOps``: float32 products with awkward extents are rounded up, others legalized as usual."""
    return {NAME: _matmul}


def rounded(rows: int, columns: int) -> tuple[int, int]:
    """The rows and columns that a product is rounded up to: both, rows or columns alone, or neither, within ``MOST``."""
    more_rows, more_columns = -(-rows // ROWS) * ROWS, -(-columns // COLUMNS) * COLUMNS
    rows_to = more_rows if rows > FEW and not any(rows % few == 0 for few in range(ROWS // 2, 2 * ROWS + 1)) else rows
    columns_to = more_columns if columns > FEW and columns % 4 else columns
    either = ((rows_to, columns_to), (rows_to, columns), (rows, columns_to))
    return next((to for to in either if to[0] * to[1] <= MOST * rows * columns), (rows, columns))


def _matmul(builder: Any, call: Any) -> Any:
    """The product of (..., rows, k) and (..., k, columns), whose leading extents are broadcast."""
    left, right = call.args
    shapes = [_fixed_shape(each) for each in (left, right)]
    if None in shapes or any(len(shape) < 2 for shape in shapes) or {str(each.ty.dtype) for each in (left, right, call)} != {"float32"}:
        return as_always(NAME, builder, call)
    rows, columns = shapes[0][-2], shapes[1][-1]
    to = rounded(rows, columns)
    if to == (rows, columns):
        return as_always(NAME, builder, call)
    if to[1] != columns and isinstance(right, load_tvm().ir.GenericConst):  # a weight is widened once, here
        array = right.value.numpy()
        right = load_tvm().relax.const(np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, to[1] - columns)]))
    return builder.call_te(_product, left, right, [rows, columns], to, primfunc_name_hint="matmul")


def _fixed_shape(given: Any) -> list[int] | None:
    """The extents of a tensor; None where they are not numbers."""
    try:
        return [int(extent) for extent in given.ty.shape]
    except (TypeError, ValueError, AttributeError):
        return None


def _product(left: Any, right: Any, extents: Sequence[int], to: Sequence[int]) -> Any:
    """The product computed on ``to`` rows and columns, cut to the first ``extents``."""
    te = load_tvm().te
    length = int(left.shape[-1])
    left, right = _widened(left, -2, to[0]), _widened(right, -1, to[1])
    leading = _broadcast(left.shape[:-2], right.shape[:-2])
    k = te.reduce_axis((0, length), name="k")

    def products(*at: Any) -> Any:
        *outer, row, column = at
        return te.sum(left[(*_of(left, outer), row, k)] * right[(*_of(right, outer), k, column)], axis=k)

    whole = te.compute((*leading, *to), products, name="matmul")
    return te.compute((*leading, *extents), lambda *at: whole[at], name="matmul_cut")


def _widened(tensor: Any, axis: int, extent: int) -> Any:
    """The tensor padded with zeros to ``extent`` at the end of the axis."""
    tvm, there = load_tvm(), int(tensor.shape[axis])
    if there == extent:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = extent

    def value(*at: Any) -> Any:
        return tvm.tirx.if_then_else(at[axis] < there, tensor[at], tvm.tirx.const(0, tensor.dtype))

    return tvm.te.compute(shape, value, name="matmul_pad")


def _broadcast(left: Any, right: Any) -> list[int]:
    """Leading extents of a product, broadcast as numpy does."""
    return list(np.broadcast_shapes(*(tuple(int(extent) for extent in shape) for shape in (left, right))))


def _of(tensor: Any, outer: list[Any]) -> list[Any]:
    """A tensor's leading indices for the product's leading indices ``outer``; 0 along broadcast axes."""
    extents = [int(extent) for extent in tensor.shape[:-2]]
    return [0 if extent == 1 else at for extent, at in zip(extents, outer[len(outer) - len(extents) :], strict=True)]

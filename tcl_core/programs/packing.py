"""Reorder weights as a program reads them.

MetaSchedule's post-processor RewriteLayout puts blocks that reorder weights in front of a program; the builder removes them
(``RemoveWeightLayoutRewriteBlock``), so the program must be given weights that are already reordered.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tcl_core.compat import load_tvm

REORDERS = "meta_schedule.layout_rewrite_preproc"
OPERATIONS = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
}


def packed(module: Any, arguments: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """Number -> reordered array, for the arguments that a scheduled module's main function reads in another order."""
    schedule = load_tvm().s_tir.Schedule(module, error_render_level="none")
    blocks = [schedule.get(block) for block in schedule.get_child_blocks(schedule.get_sblock("root"))]
    return {
        number: _reordered(block, arguments[number])
        for block in blocks
        if REORDERS in block.annotations
        for number, parameter in enumerate(module["main"].params)
        if parameter.same_as(block.reads[0].source)
    }


def _reordered(block: Any, array: np.ndarray) -> np.ndarray:
    """The array as reordered by a block that stores each element of its input elsewhere."""
    shape = [int(extent) for extent in block.writes[0].source.shape]
    grid = np.ogrid[tuple(slice(extent) for extent in array.shape)]
    at = {iter_var.var: axis for iter_var, axis in zip(block.iter_vars, grid, strict=True)}
    flat = 0
    for index, extent in zip(block.body.indices, shape, strict=True):
        flat = flat * extent + _value(index, at)
    result = np.zeros(math.prod(shape), array.dtype)
    result[np.broadcast_to(flat, array.shape)] = array
    return result.reshape(shape)


def _value(expression: Any, at: Mapping[Any, np.ndarray]) -> Any:
    kind = type(expression).__name__
    if kind in OPERATIONS:
        return OPERATIONS[kind](_value(expression.a, at), _value(expression.b, at))
    return at[expression] if kind == "Var" else int(expression.value)

"""The sentinel: one fixed program, run now and then to see whether the machine is quiet.

A neighbour, a frequency step or a throttled core slows it as it slows the candidates.  It is a matrix product that
uses every thread and fits the second-level cache.
"""

from __future__ import annotations

import bisect
from typing import Any

import numpy as np

from tcl_core.compat import load_tvm

EXTENT = 192
# A reading this far above the quiet level, relative to it, shows that something else ran.
TOLERANCE = 0.2
# The quiet level is this quantile of all readings: most of a session may be noisy, and a lucky reading proves nothing.
QUIET_QUANTILE = 0.1


def sentinel_module(kind: str) -> Any:
    """The product of two matrices as a scheduled TVM module, parallel over rows (blocks of threads on a GPU)."""
    tvm = load_tvm()
    from tvm import te

    left, right = (te.placeholder((EXTENT, EXTENT), name=name) for name in ("left", "right"))
    k = te.reduce_axis((0, EXTENT), name="k")
    product = te.compute((EXTENT, EXTENT), lambda i, j: te.sum(left[i, k] * right[k, j], axis=k), name="product")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([left, right, product]))
    block = schedule.get_sblock("product")
    i, j, k = schedule.get_loops(block)
    if kind == "cuda":
        schedule.bind(i, "blockIdx.x")
        schedule.bind(j, "threadIdx.x")
    else:
        outer, inner = schedule.split(j, [None, 16])
        schedule.reorder(outer, k, inner)
        schedule.parallel(i)
        schedule.vectorize(inner)
        schedule.decompose_reduction(block, k)
    return schedule.mod


def sentinel_arguments() -> list[np.ndarray]:
    return [np.full((EXTENT, EXTENT), 0.5, dtype=np.float32) for _ in range(3)]


class Watch:
    """Tells quiet readings of a session's sentinel from disturbed ones."""

    def __init__(self) -> None:
        self._sorted: list[float] = []
        self._latest_s: float | None = None

    def add(self, reading_s: float) -> None:
        bisect.insort(self._sorted, reading_s)
        self._latest_s = reading_s

    @property
    def quiet_s(self) -> float:
        """Seconds that the sentinel takes when nothing else runs."""
        return self._sorted[int(QUIET_QUANTILE * len(self._sorted))]

    @property
    def was_quiet(self) -> bool:
        """Whether the latest reading was quiet; True before the first one."""
        return self._latest_s is None or self.is_quiet(self._latest_s)

    def is_quiet(self, *readings_s: float) -> bool:
        """Whether none of these readings, already added, is far above the quiet level."""
        return max(readings_s) <= (1 + TOLERANCE) * self.quiet_s

"""The layout of a token: what each column of a row holds.  The one place that numbers them.

    row = [kind one-hot (K) | numbers (M)],  F = K + M;  counts, extents, bytes and strides as log2(1 + x)

Each kind of row has its own numbers: ``HARDWARE``, ``WORKLOAD``, ``LEVEL``, and for primitives ``SPLIT``, ``LOCATION``,
``ANNOTATE`` or, for all others, ``PRIMITIVE``.  Their slices count from the first number: ``numbers_of(tokens)[..., SPLIT.extent]``.
Saved models depend on this layout: raise ``VERSION`` whenever a column moves or changes its meaning, so that older models are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tcl_core.programs.tasks import OPERATORS

Row = list[np.ndarray | float]

VERSION = 3

BESIDE = ("workload", "hardware", "level")  # kinds of rows other than primitives
PRIMITIVES = (
    "Split", "Reorder", "Fuse", "ComputeAt", "ReverseComputeAt", "ComputeInline", "ReverseComputeInline", "CacheRead",
    "CacheWrite", "RFactor", "Annotate", "Bind", "other",
)  # fmt: skip
KINDS = (*BESIDE, *PRIMITIVES)
NUMBERS = 32
WIDTH = len(KINDS) + NUMBERS
LOCATED = ("ComputeAt", "ReverseComputeAt")
ALL_OPERATORS = (*OPERATORS, "depthwise_conv2d", "elementwise")
ANNOTATIONS = ("parallel", "vectorize", "unroll_explicit", "tiling_structure", "random_compute_producer")
ACCESSES = 4  # the written buffer and the first three read ones
LOOPS, AXES = 32, 8  # divisors of numbers of loops, and of axes, levels and blocks


class Columns:
    """Named columns of a row's numbers, one after the other: each name is a slice."""

    def __init__(self, **widths: int) -> None:
        self._slices: dict[str, slice] = {}
        self.width = 0
        for name, width in widths.items():
            self._slices[name] = slice(self.width, self.width + width)
            self.width += width

    def __getattr__(self, name: str) -> slice:
        slices = self.__dict__.get("_slices", {})
        if name not in slices:
            raise AttributeError(f"these columns have no '{name}', only {', '.join(slices)}")
        return slices[name]

    def row(self, **values: Any) -> Row:
        """A row of numbers given by name, each a constant or (N,); those not given are 0.

        A list fills its columns from the left: missing numbers are 0, surplus ones are dropped.
        """
        numbers: Row = [0.0] * self.width
        for name, value in values.items():
            place = getattr(self, name)
            several = value[: place.stop - place.start] if isinstance(value, list) else [value]
            numbers[place.start : place.start + len(several)] = several
        return numbers


HARDWARE = Columns(fields=NUMBERS)
"""The platform's fields, in the order of ``platforms.Hardware`` or ``gpu.GpuHardware``."""

WORKLOAD = Columns(
    sizes=5,  # operations, bytes of the arguments, their ratio, spatial and reduced iterations of the anchor
    blocks=1,
    operator=len(ALL_OPERATORS),  # one-hot
    extents=12,  # of the anchor's axes
)

SPLIT = Columns(
    factors=5,  # from the outermost loop to the innermost
    extent=1,  # of the axis
    reduces=1,
    anchor=1,  # whether it is of the anchor block
    axis=1,
    strides=ACCESSES,  # of the axis in each access
    knob=1,  # its place among a template's knobs, which only logs have
)

LOCATION = Columns(
    loop=1,  # position of the loop that the block is computed under
    at_root=1,
    inlined=1,
    size=1,  # iterations of the block
    fixed=1,  # 1 where no decision chooses the loop
    extent=1,  # of the loop, where it is fixed
    inside=1,  # work of the anchor inside the loop; for logs, whether the block is the anchor
    footprints=ACCESSES,  # inside the loop
)

ANNOTATE = Columns(
    key=len(ANNOTATIONS),  # one-hot
    values=2,
    more=3,  # values that only logs have
    reach=1,  # iterations that it applies to
)

PRIMITIVE = Columns(
    anchor=1,
    numbers=4,
    more=NUMBERS - 5,  # numbers that only logs have
)

LEVEL = Columns(
    reduces=1,  # whether its innermost loop walks a reduced axis
    depth=1,
    height=1,  # levels from here to the innermost
    trips=1,
    work=1,  # iterations from here on
    innermost=1,  # extent of its innermost loop
    strides=ACCESSES,  # of that loop's axis
    contiguous=ACCESSES,
    footprints=ACCESSES,
    extents=4,  # of its loops
    turning=1,  # extent of its last loop with more than one iteration
    moves=ACCESSES,  # elements that one iteration of that loop moves by
    lines=ACCESSES,  # cache lines touched
)


def log2p(x: np.ndarray | float) -> np.ndarray:
    """log2(1 + |x|), the scale of all sizes."""
    return np.log2(1.0 + np.abs(np.asarray(x, dtype=np.float64)))


def token_row(kind: str, numbers: Row, count: int) -> np.ndarray:
    """(count, F) tokens of one kind, one for each program; each number is a constant or (count,)."""
    row, constant = np.empty((count, WIDTH), dtype=np.float32), np.zeros(WIDTH, dtype=np.float32)
    varying = []
    for column, value in enumerate(numbers[:NUMBERS], len(KINDS)):
        if isinstance(value, np.ndarray):
            varying.append((column, value))
        else:
            constant[column] = value
    constant[KINDS.index(kind)] = 1.0
    row[:] = constant
    for column, value in varying:
        row[:, column] = value
    return row


def kinds_of(tokens: Any) -> Any:
    """(..., K) the one-hot kinds of (..., F) tokens, an array or a tensor."""
    return tokens[..., : len(KINDS)]


def numbers_of(tokens: Any) -> Any:
    """(..., M) the numbers of (..., F) tokens, an array or a tensor."""
    return tokens[..., len(KINDS) :]

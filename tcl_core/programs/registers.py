"""Which programs of a CPU's sketch accumulate in registers, from their decisions alone.

The innermost block of a tiled loop nest is accumulated over an innermost stretch of the reduction.  If its elements fill vectors, and
the vectors fill all registers but the few for operands, each step is one instruction per vector; with fewer vectors the units that
multiply wait, with more the sums spill to memory.  Libraries of hand-written products choose their blocks this way (BLIS, ACM
Transactions on Mathematical Software 41(3), 2015); of randomly drawn tilings, one in some dozens is of that kind.

To LLVM the columns are one vector loop, which it splits well for a power of two of whole vectors and badly for any other number: such
programs took 2, 3 and 6 times as long as others of their task with SSE4.2, AVX2 and AVX-512 (bench/blocks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tcl_core.programs.sketches import Sketch

SPATIAL, REDUCTION = 4, 2  # parts of a tiled axis
FLOAT = 4  # bytes
MANY, FEW = 32, 16  # vector registers of CPUs with vectors of 64 bytes, and of others
WIDEST = 64  # bytes
OPERANDS = 4  # registers that hold no sum
SLACK = 4  # a block in 1 / SLACK of the registers still keeps the units busy
PROBED = 2048  # decision vectors of a sketch, drawn to see whether any accumulates in registers

Block = tuple[int, ...]
"""Columns of the decision vector that hold the innermost factors of a nest's spatial axes; vectors run along the last one."""
Fits = Callable[[Sketch, np.ndarray], np.ndarray]
"""(N,) truth values: which of (N, width) decision vectors of a sketch are of a kind."""


def blocks_of(sketch: Sketch) -> list[Block]:
    """The innermost block of each nest that is tiled on all spatial axes and on a reduction; none for a GPU's or an untiled sketch."""
    nest_of: dict[Any, int] = {}  # loop -> position of the instruction that found it
    slots = {slot.instruction: slot for slot in sketch.slots if slot.kind == "tile"}
    nests: dict[int, list[Any]] = {}
    for position, instruction in enumerate(sketch.trace.insts):
        if instruction.kind.name == "GetLoops":
            nest_of.update(dict.fromkeys(instruction.outputs, position))
        elif position in slots:
            nests.setdefault(nest_of.get(instruction.inputs[0], -1), []).append(slots[position])
    found = []
    for nest in nests.values():
        spatial = [slot for slot in nest if slot.width == SPATIAL]
        if spatial and len(spatial) < len(nest) and all(slot.width in (SPATIAL, REDUCTION) for slot in nest):
            found.append(tuple(slot.offset + SPATIAL - 1 for slot in spatial))
    return found


def shape(block: Block, decisions: np.ndarray, simd_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """(N,) rows of the block and (N,) vectors per row, for (N, width) decisions; 0 vectors where the columns do not fill whole ones."""
    *rows, columns = (decisions[:, column].astype(np.int64) for column in block)
    lanes = simd_bytes // FLOAT
    return np.prod(rows, axis=0, dtype=np.int64), np.where(columns % lanes == 0, columns // lanes, 0)


def fill(vectors: np.ndarray, simd_bytes: int) -> np.ndarray:
    """(N,) which of these numbers of vectors fill the registers and leave some for operands."""
    registers = MANY if simd_bytes >= WIDEST else FEW
    return (vectors >= registers // SLACK) & (vectors <= registers - OPERANDS)


def is_power_of_two(numbers: np.ndarray) -> np.ndarray:
    """(N,) which numbers are powers of two; 0 counts as one."""
    return numbers & (numbers - 1) == 0


def in_registers(blocks: list[Block], decisions: np.ndarray, simd_bytes: int) -> np.ndarray:
    """(N,) which of (N, width) decision vectors keep all of these blocks in registers, with columns that LLVM splits well."""
    fits = np.ones(len(decisions), dtype=bool)
    for block in blocks:
        rows, vectors = shape(block, decisions, simd_bytes)
        fits &= fill(rows * vectors, simd_bytes) & is_power_of_two(vectors)
    return fits


def split_well(blocks: list[Block], decisions: np.ndarray, simd_bytes: int) -> np.ndarray:
    """(N,) which of (N, width) decision vectors have, in all of these blocks, columns that LLVM splits well: a vector or a part of one,
    or a power of two of whole ones.
    """
    lanes, splits = simd_bytes // FLOAT, np.ones(len(decisions), dtype=bool)
    for block in blocks:
        _, vectors = shape(block, decisions, simd_bytes)
        splits &= (decisions[:, block[-1]] <= lanes) | ((vectors > 0) & is_power_of_two(vectors))
    return splits


def leaning(sketches: Sequence[Sketch], simd_bytes: int) -> Fits:
    """Test for programs that accumulate in registers; all pass of a sketch where none of PROBED draws does."""
    drawn = {sketch.index: (blocks_of(sketch), sketch.sample(PROBED, np.random.default_rng(0))) for sketch in sketches}
    blocks = {index: found if in_registers(found, rows, simd_bytes).any() else [] for index, (found, rows) in drawn.items()}
    return lambda sketch, decisions: in_registers(blocks[sketch.index], decisions, simd_bytes)


def splitting(sketches: Sequence[Sketch], simd_bytes: int) -> Fits:
    """Test for programs whose columns LLVM splits well (``split_well``)."""
    blocks = {sketch.index: blocks_of(sketch) for sketch in sketches}
    return lambda sketch, decisions: split_well(blocks[sketch.index], decisions, simd_bytes)

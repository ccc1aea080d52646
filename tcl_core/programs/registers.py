"""Which programs of a CPU's sketch add up in registers, told from their decisions alone.

The innermost block of a tiled loop nest is added up over an innermost stretch of the reduction.  Where its places fill vectors, and these
vectors the registers but for the few that hold operands, each step is one instruction for a whole vector; with fewer the units that
multiply wait for each other, with more the sums go to memory and back.  So libraries of hand-written products choose their blocks
(BLIS, ACM Transactions on Mathematical Software 41(3), 2015); of tilings drawn at random one in some dozens is of that kind.

The columns are one vector loop to LLVM, which cuts a power of two of whole vectors into these, and makes a mess of any other number:
such programs took 2, 3 and 6 times as long as others of their task with SSE4.2, AVX2 and AVX-512 (bench/blocks.py).
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
SLACK = 4  # a block of a SLACK-th of the registers still keeps the units busy
PROBED = 2048  # vectors of a sketch that show whether any adds up in registers

Block = tuple[int, ...]
"""Columns of the decision vector that hold the innermost factors of a nest's spatial axes; along the last one run the vectors."""
Fits = Callable[[Sketch, np.ndarray], np.ndarray]
"""Which of (N, width) decision vectors of a sketch are of a kind: (N,) truth values."""


def blocks_of(sketch: Sketch) -> list[Block]:
    """The innermost block of each nest that is tiled on all spatial axes and on a reduction; none of a GPU's or an untiled sketch."""
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
    """(N,) rows of the block and (N,) vectors side by side in one, of (N, width) decisions; 0 vectors where the columns do not fill them."""
    *rows, columns = (decisions[:, column].astype(np.int64) for column in block)
    lanes = simd_bytes // FLOAT
    return np.prod(rows, axis=0, dtype=np.int64), np.where(columns % lanes == 0, columns // lanes, 0)


def fill(vectors: np.ndarray, simd_bytes: int) -> np.ndarray:
    """(N,) which numbers of vectors fill the registers, and leave some to operands."""
    registers = MANY if simd_bytes >= WIDEST else FEW
    return (vectors >= registers // SLACK) & (vectors <= registers - OPERANDS)


def is_power_of_two(numbers: np.ndarray) -> np.ndarray:
    """(N,) truth values; 0 is taken for one."""
    return numbers & (numbers - 1) == 0


def in_registers(blocks: list[Block], decisions: np.ndarray, simd_bytes: int) -> np.ndarray:
    """(N,) which of (N, width) decision vectors have all of these blocks in registers, and of columns that LLVM cuts well."""
    fits = np.ones(len(decisions), dtype=bool)
    for block in blocks:
        rows, vectors = shape(block, decisions, simd_bytes)
        fits &= fill(rows * vectors, simd_bytes) & is_power_of_two(vectors)
    return fits


def leaning(sketches: Sequence[Sketch], simd_bytes: int) -> Fits:
    """Programs that add up in registers; of a sketch that has hardly any, all."""
    drawn = {sketch.index: (blocks_of(sketch), sketch.sample(PROBED, np.random.default_rng(0))) for sketch in sketches}
    blocks = {index: found if in_registers(found, rows, simd_bytes).any() else [] for index, (found, rows) in drawn.items()}
    return lambda sketch, decisions: in_registers(blocks[sketch.index], decisions, simd_bytes)

"""Which programs of a GPU's sketch a GPU can launch, from their decisions alone.

Of a convolution's randomly drawn decision vectors, some four in five ask for too few or too many threads per block, and three quarters
or more of the others exceed a block's shared memory.  Finding that out by a replay takes some hundredths of a second, up to 0.2 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcl_core.gpu import POOL_LIMITS
from tcl_core.programs.registers import Fits
from tcl_core.programs.sketches import Sketch
from tcl_core.programs.workload import Access, Workload

THREADS, BLOCKS = "threadIdx.x", "blockIdx"
LEAST, MOST = "meta_schedule.thread_extent_low_inclusive", "meta_schedule.thread_extent_high_inclusive"
SHARED, STAGES = "shared", "software_pipeline_stage"
SHARED_BYTES = POOL_LIMITS["max_shared_memory_per_block"]

Columns = tuple[int | None, ...]
"""Columns of the decision vector whose product is a loop's extent; None stands for a factor that no decision gives."""


def launching(sketches: Sequence[Sketch], workload: Workload) -> Fits:
    """Test for programs of a task's sketches: blocks with an allowed number of threads that fit in shared memory."""
    limits = {sketch.index: read_limits(sketch, workload) for sketch in sketches}
    return lambda sketch, decisions: limits[sketch.index].allow(decisions)


@dataclass(frozen=True)
class Copy:
    """A tile of a buffer that the threads of a block copy to shared memory for one computation.

    nest     number of the loop nest that makes it; each nest is a kernel
    access   the computation's access to the buffer
    columns  for each axis of the computation, the columns of its extent while the copy serves it
    """

    nest: int
    access: Access
    columns: tuple[Columns, ...]

    def size(self, decisions: np.ndarray) -> np.ndarray:
        """(N,) bytes for (N, width) decisions."""
        return self.access.footprint_bytes(np.stack([_extent(columns, decisions) for columns in self.columns], axis=-1))


@dataclass(frozen=True)
class Limits:
    """Launch limits of one sketch's programs.

    threads      columns of each loop that is bound to the threads of a block
    least, most  threads per block
    copies       tiles that are copied to shared memory
    versions     nest -> copies of each tile that its software pipeline keeps at once, one per stage
    """

    threads: tuple[Columns, ...]
    least: float
    most: float
    copies: tuple[Copy, ...]
    versions: Mapping[int, int]

    def allow(self, decisions: np.ndarray) -> np.ndarray:
        """(N,) whether each of (N, width) decision vectors keeps to the limits."""
        fits = np.ones(len(decisions), dtype=bool)
        for columns in self.threads:
            if None not in columns:
                threads = _extent(columns, decisions)
                fits &= (threads >= self.least) & (threads <= self.most)
        return fits & np.all([shared <= SHARED_BYTES for shared in self.shared_bytes(decisions).values()], axis=0)

    def shared_bytes(self, decisions: np.ndarray) -> dict[int, np.ndarray]:
        """Nest -> (N,) bytes of shared memory for (N, width) decisions."""
        found: dict[int, np.ndarray] = {}
        for copy in self.copies:
            found[copy.nest] = found.get(copy.nest, 0) + self.versions.get(copy.nest, 1) * copy.size(decisions)
        return found


def _extent(columns: Columns, decisions: np.ndarray) -> np.ndarray:
    """(N,) products of the columns; a factor that no decision gives counts as 1."""
    known = [column for column in columns if column is not None]
    return decisions[:, known].astype(np.int64).prod(axis=1)


def read_limits(sketch: Sketch, workload: Workload) -> Limits:
    """The limits of a sketch of the task with this workload."""
    loops = _read_loops(sketch)
    bounds: dict[str, float] = {}
    versions: dict[int, int] = {}
    for instruction in sketch.trace.insts:
        if instruction.kind.name == "Annotate":
            key, (place, value) = str(instruction.attrs[0]), instruction.inputs
            if key == STAGES and (nest := loops.nest_of(place)) is not None:
                versions[nest] = 1 + max(int(stage) for stage in value)
            elif isinstance(number := getattr(value, "value", value), int):  # a plain number in a trace read from text
                bounds[key] = number
    return Limits(loops.threads, bounds.get(LEAST, 1), bounds.get(MOST, np.inf), tuple(_read_copies(sketch, workload, loops)), versions)


@dataclass(frozen=True)
class _Loops:
    """The loops that a sketch makes.

    extent   loop -> its columns
    axis     loop -> number of the computation's axis that it is part of
    fused    loop -> loops that it was fused from
    nests    the loops of each nest, outermost first
    bound    loop -> thread or block index that it is bound to
    """

    extent: Mapping[Any, Columns]
    axis: Mapping[Any, int]
    fused: Mapping[Any, Sequence[Any]]
    nests: Sequence[Sequence[Any]]
    bound: Mapping[Any, str]

    @property
    def threads(self) -> tuple[Columns, ...]:
        """Columns of each loop that is bound to the threads of a block."""
        return tuple(self.extent.get(loop, (None,)) for loop, to in self.bound.items() if to == THREADS)

    def parts(self, loop: Any) -> Sequence[Any]:
        return self.fused.get(loop, [loop])

    def nest_of(self, loop: Any) -> int | None:
        return next((number for number, nest in enumerate(self.nests) if self.parts(loop)[0] in nest), None)

    def serving(self, nest: int, loop: Any) -> list[Any]:
        """Loops of a nest that one copy made in ``loop`` serves in full: those inside it, and those bound to a block's threads."""
        order = self.nests[nest]
        in_block = {part for each, to in self.bound.items() if not to.startswith(BLOCKS) for part in self.parts(each)}
        return [*(each for each in order if each in in_block), *order[order.index(loop) + 1 :]]


def _read_loops(sketch: Sketch) -> _Loops:
    tiles = {slot.instruction: range(slot.offset, slot.offset + slot.width) for slot in sketch.slots if slot.kind == "tile"}
    column: dict[Any, int] = {}  # factor -> its column
    extent: dict[Any, Columns] = {}
    axis: dict[Any, int] = {}
    fused: dict[Any, Sequence[Any]] = {}
    nests: list[list[Any]] = []
    bound: dict[Any, str] = {}
    for position, instruction in enumerate(sketch.trace.insts):
        kind, inputs, outputs = instruction.kind.name, instruction.inputs, instruction.outputs
        if position in tiles:
            column.update(zip(outputs, tiles[position], strict=True))
        elif kind == "GetLoops":
            axis.update((loop, number) for number, loop in enumerate(outputs))
        elif kind == "Split":
            extent.update((loop, (column.get(factor),)) for loop, factor in zip(outputs, inputs[1:], strict=True))
            axis.update(dict.fromkeys(outputs, axis.get(inputs[0], -1)))
        elif kind == "Fuse":
            fused[outputs[0]] = list(inputs)
            extent[outputs[0]] = tuple(c for loop in inputs for c in extent.get(loop, (None,)))
        elif kind == "Reorder":
            nests.append(list(inputs))
        elif kind == "Bind":
            bound[inputs[0]] = str(instruction.attrs[0])
    return _Loops(extent, axis, fused, nests, bound)


def _read_copies(sketch: Sketch, workload: Workload, loops: _Loops) -> Iterator[Copy]:
    names: dict[Any, str] = {}
    copied: dict[Any, Access] = {}
    for instruction in sketch.trace.insts:
        kind, inputs, outputs, attrs = instruction.kind.name, instruction.inputs, instruction.outputs, instruction.attrs
        if kind == "GetSBlock":
            names[outputs[0]] = str(attrs[0])
        elif kind == "CacheRead" and str(attrs[1]) == SHARED and (block := workload.block(names.get(inputs[0], ""))):
            copied[outputs[0]] = block.accesses[1 + int(attrs[0])]  # the first is what it writes
        elif kind == "ComputeAt" and inputs[0] in copied and (nest := loops.nest_of(inputs[1])) is not None:
            access, serving = copied[inputs[0]], loops.serving(nest, inputs[1])
            axes = range(access.coefficients.shape[1])
            yield Copy(nest, access, tuple(tuple(c for each in serving if loops.axis[each] == n for c in loops.extent[each]) for n in axes))

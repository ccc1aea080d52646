"""The loop nest of a program's anchor block: its tiles, and what the root block's annotations do to its loops.

The annotations only state limits; what TVM's RewriteParallelVectorizeUnroll and its unrolling then do depends on the loops' extents, on
which loops other blocks share and on how each loop walks through memory.  This is computed here for all programs of a sketch at once,
without replaying any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tcl_core.features.layout import ACCESSES, AXES, KINDS, LEVEL, LOCATED, WIDTH, Row, log2p, numbers_of
from tcl_core.programs.primitives import Hole, Loop, Number, Primitive
from tcl_core.programs.workload import Workload

LINE_BYTES = 64
PARALLEL, VECTORIZE = "parallel", "vectorize"
INLINED = ("ComputeInline", "ReverseComputeInline")


def values_of(number: Number, decisions: np.ndarray) -> np.ndarray:
    """(N,) values of a number: the decision column, or the constant."""
    if not isinstance(number, Hole):
        return np.full(len(decisions), number, dtype=np.int64)
    column = decisions[:, number.column].astype(np.int64)
    return column if number.table is None else np.array(number.table, dtype=np.int64)[column]


@dataclass
class Nest:
    """The anchor block's loops, outermost first, as one reorder lists them, in N programs of one sketch.

    decisions  (N, width), which fill the primitives' holes
    loops      in the reorder's order;  axes (loops,) that they walk;  extents (N, loops)
    tiles      (N, loops + 1, axes): iterations of each axis in loop p and the loops inside it; the last entry is all ones
    """

    primitives: Sequence[Primitive]
    workload: Workload
    decisions: np.ndarray
    loops: Sequence[Loop]
    axes: list[int]
    extents: np.ndarray
    tiles: np.ndarray

    @classmethod
    def of(cls, primitives: Sequence[Primitive], workload: Workload, decisions: np.ndarray) -> Nest:
        """The nest of the programs that ``decisions`` make of ``primitives``."""
        loops = _reordered(primitives, workload)
        axes = [loop.axis for loop in loops if loop.axis is not None]
        extents = np.stack([values_of(loop.extent, decisions) for loop in loops], axis=1)
        tiles = np.ones((len(decisions), len(axes) + 1, len(workload.anchor.extents)), dtype=np.int64)
        for p in reversed(range(len(axes))):
            tiles[:, p] = tiles[:, p + 1]
            tiles[:, p, axes[p]] *= extents[:, p]
        return cls(primitives, workload, decisions, loops, axes, extents, tiles)

    # --- where other blocks are ---

    def place(self, loop: Loop) -> int | None:
        """A loop's position; None if it is not in this nest."""
        return self.loops.index(loop) if loop in self.loops else None

    @property
    def shared(self) -> np.ndarray:
        """(N, 1 + moved blocks) position of the loop that each moved block is computed under, -1 for none of these; column 0 is -1."""
        return self._around[0]

    @property
    def outer(self) -> np.ndarray:
        """(N, loops) extents seen from outside: of the block's own loops, or of those that it was moved under."""
        return self._around[1]

    @cached_property
    def _around(self) -> tuple[np.ndarray, np.ndarray]:
        """``shared`` and ``outer``.

        A loop that a primitive names is known.  A decision counts the loops around the readers of the moved block's output:
        these are loops of this nest only as far as the readers lie inside it.
        """
        none, anchor, last = np.full(len(self.decisions), -1), self.workload.anchor.name, len(self.axes) - 1
        inside, shared, outer = {anchor: none + 1 + last}, [none], self.extents.copy()  # inside: block -> nest's innermost loop around it
        for primitive in self.primitives:
            if primitive.kind not in LOCATED or not primitive.loops:  # no loops: made by an unknown instruction
                continue
            loop = primitive.loops[0]
            if loop.location is None:
                place = self.place(loop)
                shared.append(none if place is None else np.full(len(none), place))
                continue
            places, readers = np.maximum(values_of(loop.location, self.decisions), -1), self._readers(primitive.block)
            if primitive.block == anchor:  # moved under its readers' loops, which become its outer ones
                shared.append(np.minimum(places, last))
                inside.update(dict.fromkeys(readers, shared[-1]))
                reader = self.workload.block(readers[0]) if readers else None
                for p, extent in enumerate(reader.extents[: last + 1] if reader else ()):
                    outer[:, p] = np.where(places >= p, extent, outer[:, p])
            elif readers and set(readers) <= inside.keys():
                around = np.min([inside[name] for name in readers], axis=0)
                inside[primitive.block] = np.minimum(places, around)
                shared.append(np.where(places <= around, places, -1))
        return np.stack(shared, axis=1), outer

    def _readers(self, name: str) -> list[str]:
        """The blocks that read a block's output, directly or through inlined blocks."""
        inlined = {p.block for p in self.primitives if p.kind in INLINED}
        seen, asked, found = {name}, [name], []
        while asked:
            for reader in self.workload.readers(asked.pop()):
                if reader.name not in seen:
                    seen.add(reader.name)
                    (asked if reader.name in inlined else found).append(reader.name)
        return found

    # --- tiling levels ---

    def levels(self) -> list[range]:
        """Loop positions of each tiling level; a level ends where an axis repeats or spatial and reduction loops meet."""
        reduces, bounds, seen = self.workload.anchor.reduces, [0], set()
        for p, axis in enumerate(self.axes):
            if p and (axis in seen or reduces[axis] != reduces[self.axes[p - 1]]):
                bounds.append(p)
                seen = set()
            seen.add(axis)
        return [range(a, b) for a, b in zip(bounds, [*bounds[1:], len(self.axes)], strict=True)]

    def level_tokens(self) -> np.ndarray:
        """(N, levels, F) rows: trip count, the work and the footprints inside each level, and how its innermost loop strides."""
        levels, anchor, axes = self.levels(), self.workload.anchor, np.array(self.axes)
        firsts, lasts, depths = [level[0] for level in levels], [level[-1] for level in levels], np.arange(len(levels))
        tiles, walked = self.tiles[:, firsts], axes[lasts]
        strides = np.array([access.strides for access in anchor.accesses[:ACCESSES]])  # (accesses, axes)
        turning, moves = self._turning(levels, axes, strides)
        rows = np.zeros((*tiles.shape[:2], WIDTH), dtype=np.float32)
        rows[..., KINDS.index("level")] = 1.0
        numbers = numbers_of(rows)
        found = (
            (LEVEL.reduces, [anchor.reduces[walked]]),
            (LEVEL.depth, [depths / AXES]),
            (LEVEL.height, [(len(levels) - depths) / AXES]),
            (LEVEL.trips, [log2p(np.multiply.reduceat(self.extents, firsts, axis=1))]),
            (LEVEL.work, [log2p(tiles.prod(axis=2))]),
            (LEVEL.innermost, [log2p(self.extents[:, lasts])]),
            (LEVEL.turning, [turning]),
            (LEVEL.strides, log2p(strides[:, walked])),
            (LEVEL.contiguous, strides[:, walked] == 1),
            (LEVEL.footprints, self._footprints(tiles)),
            (LEVEL.moves, moves),
            (LEVEL.lines, [log2p(access.lines(tiles, LINE_BYTES)) for access in anchor.accesses[:ACCESSES]]),
        )
        for place, columns in found:
            for column, values in enumerate(columns, place.start):
                numbers[..., column] = values
        room = LEVEL.extents.stop - LEVEL.extents.start
        for depth, level in enumerate(levels):
            loops = level[:room]
            numbers[:, depth, LEVEL.extents.start : LEVEL.extents.start + len(loops)] = log2p(self.extents[:, loops])
        return rows

    def _turning(self, levels: Sequence[range], axes: np.ndarray, strides: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each level's last loop with more than one iteration (its last loop if there is none), on the log scale: the extent
        (N, levels), and the elements that one iteration moves by in each access (accesses, N, levels).
        """
        turns = self.extents > 1
        place = np.stack([level[-1] - turns[:, level][:, ::-1].argmax(axis=1) for level in levels], axis=1)
        programs, axis = np.arange(len(place))[:, None], axes[place]
        step = self.tiles[programs, place + 1, axis]
        return log2p(self.extents[programs, place]), log2p(strides[:, axis] * step)

    # --- annotations ---

    def reach(self, key: str, limit: np.ndarray) -> np.ndarray:
        """(N,) iterations that a root annotation of value ``limit`` (N,) applies to, as TVM rewrites it."""
        if key.endswith(PARALLEL):
            return self._parallel(limit)
        if key.endswith(VECTORIZE):
            return self._vector
        return self._unrolled(limit)

    def _parallel(self, limit: np.ndarray) -> np.ndarray:
        """Iterations of the loops that run in parallel.

        Where all loops could become one vector, the iterations of all of them over the vector's limit, rounded up.
        """
        turns = _products(self.outer)[np.arange(len(limit)), self._taken(limit)]
        if self.workload.anchor.reduces.any():
            return turns
        whole = (self._vector > 1) & (turns > 1) & (self.shared < 0).all(axis=1) & (self._contiguous == len(self.axes))
        return np.where(whole, -(-self.extents.prod(axis=1) // np.maximum(self._limit(VECTORIZE), 1)), turns)

    def _taken(self, limit: np.ndarray) -> np.ndarray:
        """(N,) number of outermost loops that run in parallel within a limit: spatial ones, up to and including the first that passes
        it or that another block is computed under, without the vector's.
        """
        loops, reduces = len(self.axes), self.workload.anchor.reduces
        spatial = int(reduces[self.axes].argmax()) if reduces.any() else loops
        turns = _products(self.outer[:, :spatial])
        beyond = turns > limit[:, None]
        passing = np.where(beyond.any(axis=1), beyond.argmax(axis=1), spatial)
        alone = np.where(self.shared < 0, loops, self.shared).min(axis=1) + 1
        taken = np.minimum(np.minimum(passing, alone), spatial)
        both = (self._vector > 1) & (turns[np.arange(len(turns)), taken] > 1)
        return np.where(both, np.minimum(taken, loops - self._fused), taken)

    def _unrolled(self, limit: np.ndarray) -> np.ndarray:
        """Iterations of the innermost loops outside the vector whose statements stay within the limit; 1 without a reduction.

        Loops that run in parallel or are bound to threads stay, and so do those around them.  In loops around the outermost reduction
        loop, the statements that initialise the sums count too; a GPU's virtual threads and copies to shared memory never do.
        """
        reduces, loops = self.workload.anchor.reduces[self.axes], len(self.axes)
        if not reduces.any():
            return np.ones(len(limit), dtype=np.int64)
        in_vector = np.arange(loops) >= (loops - self._fused)[:, None]
        turns = np.where(in_vector, 1, self.extents)[:, ::-1]
        iterations, zeros = _products(turns), _products(np.where(reduces[::-1], 1, turns))
        inner = np.arange(loops + 1)
        serial = inner <= (loops - np.maximum(self._taken(self._limit(PARALLEL)), self._bound))[:, None]
        around = inner > loops - int(reduces.argmax())
        return np.where(serial & (iterations + zeros * around <= np.maximum(limit, 1)[:, None]), iterations, 1).max(axis=1)

    def _limit(self, name: str) -> np.ndarray:
        """(N,) limit that the root's annotation of this name states; 0 without it."""
        numbers = [p.numbers[0] for p in self.primitives if p.kind == "Annotate" and p.key.endswith(name) and p.numbers]
        return values_of(numbers[0] if numbers else 0, self.decisions)

    @cached_property
    def _bound(self) -> int:
        """Number of outermost loops that are bound to a GPU's blocks and threads: spatial ones are fused for nothing else."""
        places = [self.place(loop) for p in self.primitives if p.kind == "Fuse" for loop in p.loops]
        return 1 + max((n for n in places if n is not None and not self.workload.anchor.reduces[self.axes[n]]), default=-1)

    @cached_property
    def _vector(self) -> np.ndarray:
        """(N,) iterations that become one vector."""
        return _products(self.extents[:, ::-1])[np.arange(len(self.extents)), self._fused]

    @cached_property
    def _tail(self) -> int:
        """Number of innermost loops that are all spatial."""
        spatial = ~self.workload.anchor.reduces[self.axes]
        return len(self.axes) if spatial.all() else int(spatial[::-1].argmin())

    @cached_property
    def _fused(self) -> np.ndarray:
        """(N,) number of innermost loops in the vector: spatial, around the anchor alone, contiguous in each access, within the limit."""
        turns = np.cumprod(self.extents[:, ::-1][:, : self._tail], axis=1)
        within = (turns <= self._limit(VECTORIZE)[:, None]).sum(axis=1)
        alone = len(self.axes) - 1 - self.shared.max(axis=1)
        return np.minimum(np.minimum(within, alone), self._contiguous)

    @cached_property
    def _contiguous(self) -> np.ndarray:
        """(N,) number of innermost spatial loops that, fused into one, walk through each access without jumps or do not move in it."""
        count = len(self.extents)
        found = np.full(count, self._tail)
        for access in self.workload.anchor.accesses:
            going, fusible, expected = np.ones(count, bool), np.zeros(count, np.int64), np.zeros(count, np.int64)
            for p in reversed(range(len(self.axes) - self._tail, len(self.axes))):
                axis = self.axes[p]
                if not access.strides[axis]:  # the access does not move
                    fusible += going
                    continue
                stride = access.strides[axis] * self.tiles[:, p + 1, axis]
                going &= np.where(expected == 0, (stride == 1) | (fusible == 0), stride == expected)
                fusible += going
                expected = np.where(going, stride * self.extents[:, p], expected)
            found = np.minimum(found, fusible)
        return found

    # --- places ---

    def at_location(self, location: np.ndarray) -> tuple[np.ndarray, Row]:
        """The anchor's work and footprints inside loop number ``location`` (N,), log scale; in the whole nest where it is negative."""
        inside = np.where(location < 0, 0, np.minimum(location + 1, len(self.axes)))
        tiles = self.tiles[np.arange(len(location)), inside]
        return log2p(tiles.prod(axis=1)), self._footprints(tiles)

    def _footprints(self, tiles: np.ndarray) -> Row:
        return [log2p(access.footprint_bytes(tiles)) for access in self.workload.anchor.accesses[:ACCESSES]]


def _reordered(primitives: Sequence[Primitive], workload: Workload) -> Sequence[Loop]:
    """The anchor block's loops in the order of the first reorder that covers all its axes; its untiled axes without one."""
    anchor = workload.anchor
    axes = range(len(anchor.extents))
    for primitive in primitives:
        loops = primitive.loops
        known = all(loop.block == anchor.name and loop.axis is not None for loop in loops)
        if primitive.kind == "Reorder" and known and {loop.axis for loop in loops} == set(axes):
            return loops
    return tuple(Loop(anchor.name, axis, int(anchor.extents[axis])) for axis in axes)


def _products(extents: np.ndarray) -> np.ndarray:
    """(N, loops + 1) iterations of the first 0, 1, 2 ... of (N, loops) loops."""
    return np.cumprod(np.concatenate([np.ones((len(extents), 1), np.int64), extents], axis=1), axis=1)

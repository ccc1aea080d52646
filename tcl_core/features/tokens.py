"""Tokens: a program as a sequence of feature rows, computed for thousands of decision vectors at once.

One row for the hardware, one for the workload, one per schedule primitive and one per tiling level.  The hardware
comes first, so that a model which reads from left to right knows the platform when it meets the schedule
(arXiv 2604.12891 gives the row, not its place).  Within a sketch only decisions differ, so a sketch is a template
plus a scatter of its holes.
The tiling-level rows say what boosted trees get from the lowered programs (extents, footprints, strides per level):
they are functions of the decisions, so they cost array operations and no lowering.  ``layout`` says which column is what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tcl_core.features.batches import Samples
from tcl_core.features.layout import (
    ACCESSES,
    ALL_OPERATORS,
    ANNOTATE,
    ANNOTATIONS,
    AXES,
    HARDWARE,
    KINDS,
    LEVEL,
    LOCATED,
    LOCATION,
    LOOPS,
    PRIMITIVE,
    SPLIT,
    WIDTH,
    WORKLOAD,
    Row,
    kinds_of,
    log2p,
    numbers_of,
    token_row,
)
from tcl_core.programs.primitives import Hole, Number, Primitive
from tcl_core.programs.workload import Workload

REACHING = ANNOTATIONS[:3]  # those that take hold of loops
LINE_BYTES = 64
IGNORED = ("Unannotate",)


def program_tokens(primitives: Sequence[Primitive], workload: Workload, hardware: Sequence[float], decisions: np.ndarray) -> np.ndarray:
    """(N, L, F) float32 rows of the N programs that ``decisions`` (N, width) make of one sketch.

    ``hardware`` are the platform's fields in fixed order; 0 stands for unknown.
    """
    nest = _Nest.of(primitives, workload, decisions)
    rows = [
        hardware_rows(hardware, len(decisions)),
        token_row("workload", _workload_numbers(workload), len(decisions)),
    ]
    for primitive in primitives:
        if primitive.kind not in IGNORED:
            kind = primitive.kind if primitive.kind in KINDS else "other"
            rows.append(token_row(kind, _primitive_numbers(primitive, workload, nest, decisions), len(decisions)))
    return np.concatenate([np.stack(rows, axis=1), nest.level_tokens()], axis=1)


def hardware_rows(hardware: Sequence[float], count: int) -> np.ndarray:
    """(count, F) of the platform's row, the first of every program."""
    return token_row("hardware", HARDWARE.row(fields=[log2p(x) for x in hardware]), count)


def with_hardware(samples: Samples, hardware: Sequence[float]) -> Samples:
    """The same programs under another platform's row."""
    tokens = samples.features.copy()
    tokens[:, :1] = hardware_rows(hardware, len(samples))[:, None]  # of no samples there may be no token
    return replace(samples, features=tokens)


def operators_of(tokens: np.ndarray) -> np.ndarray:
    """(N,) names of the operators that (N, L, F) tokens compute, as their workload's rows say."""
    places = kinds_of(tokens)[:, :, KINDS.index("workload")].argmax(axis=1)
    rows = numbers_of(tokens)[np.arange(len(tokens)), places]
    return np.array(ALL_OPERATORS)[rows[:, WORKLOAD.operator].argmax(axis=1)]


def _values(number: Number, decisions: np.ndarray) -> np.ndarray:
    """(N,) values of a number: the decision column, or the constant."""
    if not isinstance(number, Hole):
        return np.full(len(decisions), number, dtype=np.int64)
    column = decisions[:, number.column].astype(np.int64)
    return column if number.table is None else np.array(number.table, dtype=np.int64)[column]


def _workload_numbers(workload: Workload) -> Row:
    anchor = workload.anchor
    spatial, reduced = anchor.extents[~anchor.reduces].prod(), anchor.extents[anchor.reduces].prod()
    sizes = [workload.flops, workload.argument_bytes, workload.flops / workload.argument_bytes, spatial, reduced]
    return WORKLOAD.row(
        sizes=[*map(log2p, sizes)],
        blocks=len(workload.blocks) / AXES,
        operator=[float(workload.operator == name) for name in ALL_OPERATORS],
        extents=[*map(log2p, anchor.extents)],
    )


def _primitive_numbers(primitive: Primitive, workload: Workload, nest: _Nest, decisions: np.ndarray) -> Row:
    if primitive.kind == "Split":
        return _split_numbers(primitive, workload, decisions)
    if primitive.kind in LOCATED:
        return _location_numbers(primitive, workload, nest, decisions)
    if primitive.kind == "Annotate":
        return _annotation_numbers(primitive, nest, decisions)
    numbers = [log2p(_values(n, decisions)) for n in primitive.numbers]
    return PRIMITIVE.row(anchor=_is_anchor(primitive, workload), numbers=numbers)


def _annotation_numbers(primitive: Primitive, nest: _Nest, decisions: np.ndarray) -> Row:
    """Its key, its values, and how far it reaches in this nest."""
    one_hot = [float(primitive.key.endswith(name)) for name in ANNOTATIONS]
    values = [_values(number, decisions) for number in primitive.numbers]
    reaches = values and primitive.key.endswith(REACHING)
    reach = log2p(nest.reach(primitive.key, values[0])) if reaches else 0.0
    return ANNOTATE.row(key=one_hot, values=[*map(log2p, values)], reach=reach)


def _is_anchor(primitive: Primitive, workload: Workload) -> float:
    return float(primitive.block == workload.anchor.name)


def _split_numbers(primitive: Primitive, workload: Workload, decisions: np.ndarray) -> Row:
    loop = primitive.loops[0]
    known = {
        "factors": [log2p(_values(n, decisions)) for n in primitive.numbers],
        "anchor": _is_anchor(primitive, workload),
    }
    block = workload.block(loop.block)
    if block is None or loop.axis is None:
        return SPLIT.row(**known)
    return SPLIT.row(
        **known,
        extent=log2p(block.extents[loop.axis]),
        reduces=float(block.reduces[loop.axis]),
        axis=loop.axis / AXES,
        strides=[log2p(access.strides[loop.axis]) for access in block.accesses],
    )


def _location_numbers(primitive: Primitive, workload: Workload, nest: _Nest, decisions: np.ndarray) -> Row:
    """Where a block is computed: under which loop, and how much of the anchor's work one visit serves."""
    loop = primitive.loops[0]
    block = workload.block(primitive.block)
    size = log2p(block.iterations) if block else 0.0
    if loop.location is None:
        return LOCATION.row(size=size, fixed=1.0, extent=log2p(_values(loop.extent, decisions)))
    location = _values(loop.location, decisions)
    inside, footprints = nest.at_location(location)
    return LOCATION.row(
        loop=location / LOOPS,
        at_root=(location == -1).astype(float),
        inlined=(location == -2).astype(float),
        size=size,
        inside=inside,
        footprints=footprints,
    )


@dataclass
class _Nest:
    """The anchor block's loops from outermost to innermost, as far as one reorder states them.

    axes   (loops,) axis that each loop walks;  extents (N, loops)
    tiles  (N, loops + 1, axes): what each axis covers inside, from loop p on; the last entry is all ones
    """

    workload: Workload
    axes: list[int] = field(default_factory=list)
    extents: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    tiles: np.ndarray = field(default_factory=lambda: np.zeros((0, 1, 0)))

    @classmethod
    def of(cls, primitives: Sequence[Primitive], workload: Workload, decisions: np.ndarray) -> _Nest:
        anchor = workload.anchor
        for primitive in primitives:
            loops = primitive.loops
            known = all(loop.block == anchor.name and loop.axis is not None for loop in loops)
            if primitive.kind == "Reorder" and known and {loop.axis for loop in loops} == set(range(len(anchor.extents))):
                return cls._from_loops(workload, [loop.axis for loop in loops], [loop.extent for loop in loops], decisions)
        whole = [int(e) for e in anchor.extents]  # nobody reorders it: its own loops, untiled
        return cls._from_loops(workload, list(range(len(whole))), whole, decisions)

    @classmethod
    def _from_loops(cls, workload: Workload, axes: list[int], extents: list[Number], decisions: np.ndarray) -> _Nest:
        values = np.stack([_values(e, decisions) for e in extents], axis=1)
        tiles = np.ones((len(decisions), len(axes) + 1, len(workload.anchor.extents)), dtype=np.int64)
        for p in reversed(range(len(axes))):
            tiles[:, p] = tiles[:, p + 1]
            tiles[:, p, axes[p]] *= values[:, p]
        return cls(workload, axes, values, tiles)

    def levels(self) -> list[range]:
        """Loop positions of each tiling level: it ends where an axis comes again or spatial meets reduction."""
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
        """Of each level's last loop that turns more than once: its extent (N, levels), and how far a turn moves in each access,
        (accesses, N, levels); the level's last loop where none turns.
        """
        turns = self.extents > 1
        place = np.stack([level[-1] - turns[:, level][:, ::-1].argmax(axis=1) for level in levels], axis=1)
        programs, axis = np.arange(len(place))[:, None], axes[place]
        step = self.tiles[programs, place + 1, axis]
        return log2p(self.extents[programs, place]), log2p(strides[:, axis] * step)

    def reach(self, key: str, limit: np.ndarray) -> np.ndarray:
        """(N,) iterations that an annotation of the root with the value ``limit`` (N,) takes hold of, as TVM rewrites it.

        Those of the outermost spatial loops that run in parallel, of the innermost ones that become a vector, or of all
        innermost loops that are unrolled: as many loops as stay within the limit.
        """
        spatial = ~self.workload.anchor.reduces[self.axes]
        inwards = key.endswith("parallel")
        loops, spatial = (self.extents, spatial) if inwards else (self.extents[:, ::-1], spatial[::-1])
        count = len(spatial) if "unroll" in key or spatial.all() else int(spatial.argmin())
        turns = np.cumprod(loops[:, :count], axis=1)
        return np.where(turns <= limit[:, None], turns, 1).max(axis=1, initial=1)

    def at_location(self, location: np.ndarray) -> tuple[np.ndarray, Row]:
        """Work and footprints inside the loop number ``location`` (N,); everything where it is negative."""
        inside = np.where(location < 0, 0, np.minimum(location + 1, len(self.axes)))
        tiles = self.tiles[np.arange(len(location)), inside]
        return log2p(tiles.prod(axis=1)), self._footprints(tiles)

    def _footprints(self, tiles: np.ndarray) -> Row:
        return [log2p(access.footprint_bytes(tiles)) for access in self.workload.anchor.accesses[:ACCESSES]]

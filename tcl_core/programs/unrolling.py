"""How many steps a program unrolls, from its decisions: what makes its build slow.

A quarter of the programs that are drawn uniformly unroll up to 512 steps; they took more than half of all build time (docs/measuring.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tcl_core.programs.primitives import Hole, sketch_primitives
from tcl_core.programs.sketches import Sketch
from tcl_core.programs.workload import Workload

UNROLL = "unroll_explicit"
COSTLY = 512  # steps
COSTLY_SHARE = 0.1  # share of a search's programs that may unroll that many


def unrolled(sketches: Sequence[Sketch], workload: Workload) -> Callable[[tuple[int, Sequence[int]]], int]:
    """(place among ``sketches``, decisions) -> how many steps the program unrolls at most."""
    holes = [_hole(sketch, workload) for sketch in sketches]

    def steps(program: tuple[int, Sequence[int]]) -> int:
        place, decisions = program
        hole = holes[place]
        if not isinstance(hole, Hole):
            return hole
        value = int(decisions[hole.column])
        return value if hole.table is None else hole.table[value]

    return steps


def _hole(sketch: Sketch, workload: Workload) -> int | Hole:
    """The number that limits a sketch's unrolling; 0 for a sketch that unrolls nothing."""
    found = (p.numbers[0] for p in sketch_primitives(sketch, workload) if p.key.endswith(UNROLL) and p.numbers)
    return next(found, 0)

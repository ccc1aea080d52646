"""Draw programs of known tasks that have not been measured and never need be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tcl_core.checked import running_code
from tcl_core.programs.pool import Program, in_turn, sample_programs
from tcl_core.programs.sketches import DesignSpace, read_sketch, trace_from_json
from tcl_core.programs.tasks import Task
from tcl_core.progress import progress
from tcl_core.records import ProgramKey


STREAM = (1,)  # of a seed's random numbers: from the pool's stream, a third of the draw would be the pool's own programs


# The code that decides what is drawn.
DRAWS = ("gpu_limits.py", "pool.py", "primitives.py", "registers.py", "sketches.py", "unlabelled.py", "unrolling.py", "workload.py")


def drawn_by() -> str:
    """Digest of the code that draws, for caches of drawn programs."""
    code = "".join(running_code((Path(__file__).parent / name).read_text(encoding="utf-8")) for name in DRAWS)
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def draw_unlabelled(
    tasks: Iterable[Task],
    sketches: Mapping[tuple[str, int], str],
    measured: Iterable[ProgramKey],
    count: int,
    seed: int,
    target: dict[str, Any],
    lean: float = 0.0,
    costly: float = 1.0,
) -> list[ProgramKey]:
    """Draw up to ``count`` distinct programs of each task, as the pool's are drawn; none is ``measured``, hardly any invalid.

    ``sketches`` are the pool's, (task key, number) -> trace as JSON, and ``target`` is the pool's (``platforms.pool_target``);
    ``lean`` and ``costly`` as for ``sample_programs``.  A small design space gives fewer, or none.
    """
    tasks = list(tasks)
    known: dict[str, set[tuple[int, tuple[int, ...]]]] = {task.key: set() for task in tasks}
    for key, *program in measured:
        if key in known:
            known[key].add(tuple(program))

    def draw_of(task: Task) -> list[Program]:
        module = task.module()
        space = DesignSpace(task.key, module, target)
        mine = sorted((number, text) for (key, number), text in sketches.items() if key == task.key)
        read = [space.with_choices(read_sketch(task.key, number, trace_from_json(text, module))) for number, text in mine]
        return sample_programs(task, read, space, count, seed, STREAM, known[task.key], lean, costly, tried=False)

    found: list[ProgramKey] = []
    with progress("drawing programs for the teacher ensemble", len(tasks)) as shown:
        for task, drawn in in_turn(draw_of, tasks):
            found += [(task.key, program.sketch, program.decisions) for program in drawn]
            shown.advance(task.name[:40])
    return found

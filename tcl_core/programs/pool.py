"""The candidate pool: which tasks are worth a model, and which programs of them may be measured.

One pool serves every CPU platform, so that the same program is measured on each and platforms can be compared.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcl_core.programs.sketches import DesignSpace, InvalidProgram, Sketch, trace_to_json
from tcl_core.programs.tasks import EXTRACTION_TARGET, Task

# Draws per wanted program before a design space counts as exhausted.
DRAWS = 8


@dataclass(frozen=True)
class Program:
    """One candidate: a sketch of a task and its decisions; ``number`` counts within the task."""

    task_key: str
    number: int
    sketch: int
    decisions: tuple[int, ...]


def rank_tasks(networks: Mapping[str, Iterable[tuple[Task, int]]], without: Iterable[str] = ()) -> list[Task]:
    """Distinct tasks, taken in turn from each network, its heaviest (weight x FLOPs) first.

    ``without`` are keys of tasks to leave out, such as those that a held-out network also has.
    """
    left_out = set(without)
    ranked: dict[str, Task] = {}
    queues = [sorted(tasks, key=lambda t: -t[0].flops * t[1]) for tasks in networks.values()]
    for rank in range(max(map(len, queues), default=0)):
        for queue in queues:
            if rank < len(queue) and queue[rank][0].key not in left_out:
                ranked.setdefault(queue[rank][0].key, queue[rank][0])
    return list(ranked.values())


def sample_programs(task: Task, sketches: Sequence[Sketch], space: DesignSpace, count: int, seed: int) -> list[Program]:
    """Up to ``count`` distinct valid programs, drawn uniformly over sketches; fewer from a small design space.

    The draw depends on the seed and the task alone, not on which other tasks are in the pool.
    """
    rng = np.random.default_rng([seed, zlib.crc32(task.key.encode())])
    found: dict[tuple[int, tuple[int, ...]], None] = {}
    for _ in range(DRAWS * count):
        sketch = sketches[rng.integers(len(sketches))]
        try:
            decisions = space.canonical(sketch, sketch.sample(1, rng)[0])
        except InvalidProgram:
            continue
        found[sketch.index, tuple(int(d) for d in decisions)] = None
        if len(found) == count:
            break
    ordered = sorted(found)
    return [Program(task.key, number, *program) for number, program in enumerate(ordered)]


def build_pool(
    tasks: Sequence[Task], limit: int, count: int, seed: int, on_task: Callable[[Task], Any] = lambda task: None
) -> tuple[list[dict[str, Any]], list[Program]]:
    """The sketches (rows of the sketches table) and ``count`` programs each of the first ``limit`` (0: all) tasks.

    A task whose design space is a single program needs no model and is passed over.
    """
    rows: list[dict[str, Any]] = []
    programs: list[Program] = []
    used = 0
    for task in tasks:
        if limit and used == limit:
            break
        space = DesignSpace(task.key, task.module(), EXTRACTION_TARGET)
        sketches = space.sketches()
        drawn = sample_programs(task, sketches, space, count, seed) if _has_choice(sketches) else []
        if len(drawn) > 1:
            used += 1
            programs += drawn
            rows += [{"task_key": task.key, "sketch_id": s.index, "trace_json": trace_to_json(s.trace)} for s in sketches]
            on_task(task)
    return rows, programs


def _has_choice(sketches: Sequence[Sketch]) -> bool:
    return len(sketches) > 1 or any(len(slot.choices) > 1 for sketch in sketches for slot in sketch.slots)

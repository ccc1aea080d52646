"""Sampler: equally many programs per task, drawn uniformly within it.

Programs are compared only within a task, and a model generalises to other tasks from what the measured tasks share; so more
tasks teach more than more programs of one task.  But a task's lone program has none to compare with, so a second one follows at
once: a budget under two programs per task goes to pairs in some of the tasks.
"""

from __future__ import annotations

import heapq

import numpy as np

from tcl_core.sampling.pool import Pool


def pick(pool: Pool, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Row numbers in picking order: each a random program of the task that ``turns`` names.

    Raises ValueError if the pool has no tasks.
    """
    if pool.tasks is None or pool.labelled_tasks is None:
        raise ValueError("the sampler 'per-task' needs tasks and labelled_tasks of the pool")
    found, rows = turns(pool.tasks, pool.labelled_tasks, budget, rng), dict[int, list[int]]()
    for row in rng.permutation(len(pool)).tolist():
        rows.setdefault(int(pool.tasks[row]), []).append(row)
    return np.array([rows[task].pop() for task in found], dtype=np.int64)


def turns(tasks: np.ndarray, labelled_tasks: np.ndarray, budget: int, rng: np.random.Generator) -> list[int]:
    """The task of each pick, in picking order: first tasks with exactly one program, then those with the fewest.

    Both measured and picked programs count; ties are broken at random.  tasks (N,) are the pool's, labelled_tasks (M,) those of
    measured programs; O(N + budget log T) for T tasks.
    """
    has, has_left = (dict(zip(*map(np.ndarray.tolist, np.unique(of, return_counts=True)), strict=True)) for of in (labelled_tasks, tasks))
    places = rng.permutation(len(has_left)).tolist()
    queue = [(_rank(has.get(task, 0)), place, task, left) for place, (task, left) in zip(places, has_left.items(), strict=True)]
    heapq.heapify(queue)
    found: list[int] = []
    while queue and len(found) < budget:
        (_, count), place, task, left = heapq.heappop(queue)
        found.append(task)
        if left > 1:
            heapq.heappush(queue, (_rank(count + 1), place, task, left - 1))
    return found


def _rank(count: int) -> tuple[bool, int]:
    """Sort key of a task with ``count`` programs: exactly one first, then the fewest."""
    return count != 1, count

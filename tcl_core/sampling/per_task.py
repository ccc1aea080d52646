"""Equally many programs of each task, drawn evenly within it.

Pairs of programs are compared within a task only, and what is learned carries over to other tasks by what the measured ones
have in common: more tasks teach more than more programs of one.  But one alone teaches nothing, so a second follows it at once:
a budget of less than two programs for each task goes to pairs of some of them.
"""

from __future__ import annotations

import heapq

import numpy as np

from tcl_core.sampling.pool import Pool


def pick(pool: Pool, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Row numbers in picking order: each time a program of a task with one, else of a task with the fewest; those measured before count.

    Equal tasks come in random order.  Raises ValueError where the pool does not tell tasks.
    """
    if pool.tasks is None or pool.labelled_tasks is None:
        raise ValueError("the sampler 'per-task' needs tasks and labelled_tasks of the pool")
    found, rows = turns(pool.tasks, pool.labelled_tasks, budget, rng), dict[int, list[int]]()
    for row in rng.permutation(len(pool)).tolist():
        rows.setdefault(int(pool.tasks[row]), []).append(row)
    return np.array([rows[task].pop() for task in found], dtype=np.int64)


def turns(tasks: np.ndarray, labelled_tasks: np.ndarray, budget: int, rng: np.random.Generator) -> list[int]:
    """The task of each pick, in picking order: one with a lone program, measured or picked, else with the fewest; at random among equals.

    tasks (N,) of the pool, labelled_tasks (M,); O(N + budget log T) for T tasks.
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
    """Order of tasks with so many programs: a lone one first, then the fewest."""
    return count != 1, count

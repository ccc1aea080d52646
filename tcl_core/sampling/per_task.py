"""Equally many programs of each task, drawn evenly within it.

Pairs of programs are compared within a task only, and what is learned carries over to other tasks by what the measured ones
have in common: more tasks teach more than more programs of one.
"""

from __future__ import annotations

import heapq

import numpy as np

from tcl_core.sampling.pool import Pool


def pick(pool: Pool, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Row numbers in picking order: each time a program of a task with the fewest, those measured before among them.

    O(N + budget log T) for T tasks; equal tasks come in random order.  Raises ValueError where the pool does not tell tasks.
    """
    if pool.tasks is None or pool.labelled_tasks is None:
        raise ValueError("the sampler 'per-task' needs tasks and labelled_tasks of the pool")
    order = rng.permutation(len(pool))
    rows: dict[int, list[int]] = {}
    for row, task in zip(order.tolist(), pool.tasks[order].tolist(), strict=True):
        rows.setdefault(task, []).append(row)
    tasks, measured = np.unique(pool.labelled_tasks, return_counts=True)
    has = dict(zip(tasks.tolist(), measured.tolist(), strict=True))
    queue = [(has.get(task, 0), place, task) for place, task in enumerate(rows)]
    heapq.heapify(queue)
    picked: list[int] = []
    while queue and len(picked) < budget:
        count, place, task = heapq.heappop(queue)
        picked.append(rows[task].pop())
        if rows[task]:
            heapq.heappush(queue, (count + 1, place, task))
    return np.array(picked, dtype=np.int64)

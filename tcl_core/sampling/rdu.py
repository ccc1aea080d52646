"""The RDU sampler of TCL (arXiv 2604.12891): representativeness, diversity, uncertainty.

``pick_as_printed`` is the paper's, with two exceptions: an operator type leaves the pool once its quota is spent, for as printed, a
rejected argmax would be the argmax again, forever; and its quota is its share of the programs that are left, not of all.

``pick`` pursues the same aims by other means:

    representativeness  every task gets equally many programs, counting those measured before (``per_task``)
    diversity           a task's programs, ranked by the model, are cut into as many strata as the task gets picks, narrow among the
                        fast and wide among the slow; each stratum gives one pick
    uncertainty         the pick is random within its stratum, where the model's order is not trusted.  Picking the program whose
                        rank an ensemble disagrees on most was no better by any metric (bench/lean.py)
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from tcl_core.sampling.per_task import turns
from tcl_core.sampling.pool import Pool
from tcl_core.sampling.scores import normalised, paper_scores

LEAN = 1.5
"""The first i of k strata hold (i / k) ** LEAN of a task's programs: 1 makes all equally wide, more makes the fast ones narrower.
Chosen on devices that the samplers' table does not report (bench/lean.py)."""


def quota(operator_types: np.ndarray, budget: int) -> dict[Hashable, int]:
    """Programs to pick per operator type: budget * the type's share of the pool, by largest remainder.

    Sums to min(budget, N); no type gets more than it has.  Equal remainders go to the type that sorts first.
    """
    types, counts = np.unique(operator_types, return_counts=True)
    budget = min(budget, len(operator_types))
    seats, remainders = np.divmod(budget * counts, max(len(operator_types), 1))  # integers, so that equal remainders compare equal
    by_remainder = np.argsort(-remainders, kind="stable")
    seats[by_remainder[: budget - seats.sum()]] += 1
    return dict(zip(types.tolist(), seats.tolist(), strict=True))


def pick_as_printed(pool: Pool, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Row numbers in picking order, by the paper's scores; the labelled set grows only between rounds, so they are computed once.

    O((N + M) log M + N log N) per round.  Equal scores are picked in random order.
    """
    scores = paper_scores(*normalised(pool.predictions, pool.labelled_predictions))
    order = rng.permutation(len(pool))  # so that the stable sort leaves equal scores in random order
    left, picked = quota(pool.operator_types, budget), []
    for row in order[np.argsort(-scores[order], kind="stable")].tolist():
        kind = pool.operator_types[row]
        if left[kind]:
            left[kind] -= 1
            picked.append(row)
    return np.array(picked, dtype=np.int64)


def pick(pool: Pool, budget: int, rng: np.random.Generator, lean: float = LEAN, preferred: np.ndarray | None = None) -> np.ndarray:
    """Row numbers in picking order, O(N log N).

    lean       as ``LEAN``
    preferred  (N,) each stratum gives its program with the largest value; None: a random one

    Raises ValueError if the pool has no tasks.
    """
    if pool.tasks is None or pool.labelled_tasks is None:
        raise ValueError("the sampler 'rdu' needs tasks and labelled_tasks of the pool")
    preferred = rng.random(len(pool)) if preferred is None else preferred
    picks = turns(pool.tasks, pool.labelled_tasks, budget, rng)
    order = rng.permutation(len(pool))  # so that stable sorts leave equal programs in random order
    by_place = order[np.lexsort((-pool.predictions[order], pool.tasks[order]))]  # task by task, the fastest first
    tasks, sizes = np.unique(pool.tasks, return_counts=True)
    counts = np.bincount(np.searchsorted(tasks, picks), minlength=len(tasks))
    stratum = np.concatenate(
        [np.zeros(0, int), *(_strata(size, count, lean) for size, count in zip(sizes.tolist(), counts.tolist(), strict=True))]
    )
    stratum += np.repeat(np.cumsum(counts) - counts, sizes)  # numbered consecutively over all tasks
    kept = np.repeat(counts > 0, sizes)
    by_place, stratum = by_place[kept], stratum[kept]
    in_turn = np.lexsort((-preferred[by_place], stratum))  # stratum by stratum, the preferred first
    firsts = by_place[in_turn[np.unique(stratum[in_turn], return_index=True)[1]]]
    return firsts[rng.permutation(len(firsts))]


def _strata(size: int, count: int, lean: float) -> np.ndarray:
    """(size,) stratum of each rank, 0 the fastest, for ``count`` non-empty strata over ``size`` ranks."""
    if not count:
        return np.zeros(size, int)
    upper = np.round(size * (np.arange(1, count + 1) / count) ** lean).astype(int) - np.arange(1, count + 1)
    upper = np.minimum(np.maximum.accumulate(np.maximum(upper, 0)), size - count) + np.arange(1, count + 1)
    return np.searchsorted(upper, np.arange(size), side="right")

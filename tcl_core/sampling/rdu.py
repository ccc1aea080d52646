"""The RDU sampler of TCL (arXiv 2604.12891): representativeness, diversity, uncertainty.

``pick_as_printed`` is the paper's; ``pick`` keeps its quota and its total f * d + u, with d a distance
between embeddings and u what the model itself does not know.  When an operator type's quota is spent, the
type leaves the pool: as printed, a rejected argmax would be the argmax again, forever.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from tcl_core.sampling.pool import Pool
from tcl_core.sampling.scores import (
    embedding_gap,
    normalised,
    paper_scores,
    rescaled_variance,
    within_unit_ball,
)


def quota(operator_types: np.ndarray, budget: int) -> dict[Hashable, int]:
    """How many programs of each operator type: budget * share of the type in the pool, by largest remainder.

    Sums to min(budget, N), and no type gets more than it has.  Equal remainders go to the type that sorts
    first.
    """
    types, counts = np.unique(operator_types, return_counts=True)
    budget = min(budget, len(operator_types))
    seats, remainders = np.divmod(budget * counts, max(len(operator_types), 1))  # whole numbers: equal stays equal
    by_remainder = np.argsort(-remainders, kind="stable")
    seats[by_remainder[: budget - seats.sum()]] += 1
    return dict(zip(types.tolist(), seats.tolist(), strict=True))


def pick_as_printed(pool: Pool, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Row numbers in picking order; the labelled set grows by whole rounds, so scores are computed once.

    O((N + M) log M) for a round.  Equal scores are picked in random order.
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


def pick(pool: Pool, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Row numbers in picking order.  Each pick counts as labelled for the next (k-center), O(N * E) per pick.

    Raises ValueError where the pool has no uncertainty or no embeddings.
    """
    if pool.uncertainty is None or pool.embeddings is None or pool.labelled_embeddings is None:
        raise ValueError("the sampler 'rdu' needs uncertainty, embeddings and labelled_embeddings of the pool")
    order = rng.permutation(len(pool))  # so that argmax breaks ties at random
    points, labelled = within_unit_ball(pool.embeddings[order], pool.labelled_embeddings)
    value = normalised(pool.predictions, pool.labelled_predictions)[0][order]
    unknown = rescaled_variance(pool.uncertainty)[order]
    return order[_greedy(points, embedding_gap(points, labelled), value, unknown, pool.operator_types[order], budget)]


def _greedy(
    points: np.ndarray,
    gap: np.ndarray,
    value: np.ndarray,
    unknown: np.ndarray,
    kinds: np.ndarray,
    budget: int,
) -> np.ndarray:
    left = quota(kinds, budget)
    free = np.array([left[kind] > 0 for kind in kinds.tolist()], dtype=bool)
    picked = np.empty(sum(left.values()), dtype=np.int64)
    for turn in range(len(picked)):
        row = int(np.argmax(np.where(free, value * gap + unknown, -np.inf)))
        picked[turn], free[row] = row, False
        gap = np.minimum(gap, np.linalg.norm(points - points[row], axis=1))
        left[kinds[row]] -= 1
        if not left[kinds[row]]:
            free[kinds == kinds[row]] = False
    return picked

"""How sure a figure is: intervals over tasks and over random rankings, and the champion's duel.

Arguments as in ``metrics``.  All intervals are 95 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from tcl_core.evaluation.metrics import (
    Networks,
    Picks,
    first_of_random,
    forgetting,
    measured_tasks,
    pairwise_accuracy,
    picks,
    pooled,
    spearman,
    task_weights,
    top_k_network_average,
)


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Duel:
    """Two models on the same records.

    champion, candidate  top-k of each over all tasks
    probability          that the candidate's is higher, over resampled tasks; equal counts 1/2: twins get 0.5
    low, high            95 % interval of candidate - champion
    """

    champion: float
    candidate: float
    probability: float
    low: float
    high: float


def bootstrap_top_k(chosen: Picks, networks: Networks, draws: int, seed: int = 0) -> Interval:
    """Top-k and its interval over tasks drawn with replacement."""
    ratios = _resampled(task_weights(chosen.tasks, pooled(networks)), draws, seed, chosen)[0]
    return Interval(chosen.ratio(pooled(networks)), *np.percentile(ratios, [2.5, 97.5]).tolist())


def random_top_k(
    latencies_s: np.ndarray, tasks: np.ndarray, networks: Networks, k: int, draws: int = 1000, seed: int = 0
) -> Interval:
    """Top-k of a random ranking: the mean over ``draws`` rankings and the range of 95 % of them.

    Nothing is shuffled: the latency of the best of k random programs is drawn from its exact distribution.
    """
    rng, groups = np.random.default_rng(seed), list(measured_tasks(latencies_s, tasks))
    weight = task_weights(np.array([tasks[rows[0]] for rows, _ in groups]), pooled(networks))
    best_s = np.array([seconds.min() for _, seconds in groups])
    picked_s = np.stack(
        [
            rng.choice(np.sort(seconds), size=draws, p=first_of_random(len(seconds), k))
            for _, seconds in groups
        ]
    )  # (T, draws)
    ratios = (best_s @ weight) / (weight @ picked_s)
    return Interval(float(ratios.mean()), *np.percentile(ratios, [2.5, 97.5]).tolist())


def paired_bootstrap(
    champion: np.ndarray, candidate: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray,
    networks: Networks, k: int = 1, draws: int = 1000, seed: int = 0,
) -> Duel:  # fmt: skip
    """The promotion gate: two models' predictions (N,) on the same records, tasks drawn with replacement.

    With few tasks the probability is coarse; with one it can only be 0, 0.5 or 1.  Raises DataError as
    ``top_k`` does.
    """
    chosen = [picks(predictions, latencies_s, tasks, k) for predictions in (champion, candidate)]
    weight = task_weights(chosen[0].tasks, pooled(networks))
    old, new = _resampled(weight, draws, seed, *chosen)
    low, high = np.percentile(new - old, [2.5, 97.5]).tolist()
    probability = float(np.mean(new > old) + 0.5 * np.mean(new == old))
    return Duel(*(c.ratio(pooled(networks)) for c in chosen), probability, low, high)


def model_figures(
    predictions: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray, networks: Networks,
    ks: Sequence[int], draws: int = 1000, seed: int = 0,
) -> dict:  # fmt: skip
    """All figures of one model on one platform, as plain numbers for JSON and ``report``.

    {tasks, programs, failed, pairwise_accuracy, spearman, and for each k: top_k {value, low, high},
    top_k_random {...}, top_k_network_average}
    """
    figures: dict = {
        "tasks": len(np.unique(tasks)),
        "programs": len(tasks),
        "failed": int(np.isinf(latencies_s).sum()),
        "pairwise_accuracy": pairwise_accuracy(predictions, latencies_s, tasks),
        "spearman": spearman(predictions, latencies_s, tasks),
    }
    for k in ks:
        chosen = picks(predictions, latencies_s, tasks, k)
        figures[f"top_{k}"] = asdict(bootstrap_top_k(chosen, networks, draws, seed))
        figures[f"top_{k}_random"] = asdict(random_top_k(latencies_s, tasks, networks, k, draws, seed))
        figures[f"top_{k}_network_average"] = top_k_network_average(
            predictions, latencies_s, tasks, networks, k
        )
    return figures


def chain_figures(platforms: Sequence[str], top_1: Sequence[Sequence[float]]) -> dict:
    """The chain matrix for JSON and ``report``: row = model after a platform, column = platform ranked."""
    lost = forgetting(np.asarray(top_1, dtype=np.float64))
    return {
        "platforms": list(platforms),
        "top_1": [list(map(float, row)) for row in top_1],
        "forgetting": dict(zip(platforms, lost.tolist(), strict=True)),
    }


def _resampled(weight: np.ndarray, draws: int, seed: int, *chosen: Picks) -> list[np.ndarray]:
    """(draws,) ratios of each, all over the same resampled tasks; only tasks with a weight are drawn."""
    used = np.flatnonzero(weight)
    index = used[np.random.default_rng(seed).integers(0, len(used), (draws, len(used)))]
    return [(weight * c.best_s)[index].sum(axis=1) / (weight * c.picked_s)[index].sum(axis=1) for c in chosen]

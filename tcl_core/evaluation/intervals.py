"""Uncertainty of metrics: intervals over tasks and over random rankings, and comparisons of two models.

Arguments as in ``metrics``.  All intervals are 95 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from tcl_core.evaluation.metrics import (
    Networks,
    Picks,
    first_of_random,
    forgetting,
    mean_over_tasks,
    measured_tasks,
    pairwise_accuracy,
    picks,
    pooled,
    spearman,
    subset_top_1,
    task_weights,
    top_k_network_average,
)

FLIPS = 4096  # most sign choices evaluated: all of them for up to twelve tasks


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedComparison:
    """One metric of two models on the same records.

    champion, candidate  each model's value over all tasks
    probability          confidence that the candidate's is higher, from 0 to 1; defined by the function that made the comparison
    low, high            95 % interval of candidate - champion, over resampled tasks
    """

    champion: float
    candidate: float
    probability: float
    low: float
    high: float


def bootstrap_top_k(chosen: Picks, networks: Networks, draws: int, seed: int = 0) -> Interval:
    """Top-k with its bootstrap interval over tasks."""
    ratios = _resampled(task_weights(chosen.tasks, pooled(networks)), draws, seed, chosen)[0]
    return Interval(chosen.ratio(pooled(networks)), *np.percentile(ratios, [2.5, 97.5]).tolist())


def random_top_k(latencies_s: np.ndarray, tasks: np.ndarray, networks: Networks, k: int, draws: int = 1000, seed: int = 0) -> Interval:
    """Top-k of a random ranking: the mean over ``draws`` rankings and their central 95 % range.

    No ranking is shuffled: the latency of the best of k random programs is sampled from its exact distribution.
    """
    rng, groups = np.random.default_rng(seed), list(measured_tasks(latencies_s, tasks))
    weight = task_weights(np.array([tasks[rows[0]] for rows, _ in groups]), pooled(networks))
    best_s = np.array([seconds.min() for _, seconds in groups])
    picked_s = np.stack(
        [rng.choice(np.sort(seconds), size=draws, p=first_of_random(len(seconds), k)) for _, seconds in groups]
    )  # (T, draws)
    ratios = (best_s @ weight) / (weight @ picked_s)
    return Interval(float(ratios.mean()), *np.percentile(ratios, [2.5, 97.5]).tolist())


def paired_bootstrap(
    champion: np.ndarray, candidate: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray,
    networks: Networks, k: int = 1, draws: int = 1000, seed: int = 0,
) -> PairedComparison:  # fmt: skip
    """Compare top-k of two models' predictions (N,) on the same records, by a bootstrap over tasks.

    The probability is the share of draws in which the candidate's is higher; ties count 1/2, so identical models get 0.5.
    With few tasks it is coarse; with one it can only be 0, 0.5 or 1.  Raises DataError as ``top_k`` does.
    """
    chosen = [picks(predictions, latencies_s, tasks, k) for predictions in (champion, candidate)]
    weight = task_weights(chosen[0].tasks, pooled(networks))
    old, new = _resampled(weight, draws, seed, *chosen)
    low, high = np.percentile(new - old, [2.5, 97.5]).tolist()
    probability = float(np.mean(new > old) + 0.5 * np.mean(new == old))
    return PairedComparison(*(c.ratio(pooled(networks)) for c in chosen), probability, low, high)  # type: ignore[call-arg]


def flipped_signs(champion: Mapping[int, float], candidate: Mapping[int, float], draws: int = 1000, seed: int = 0) -> PairedComparison:
    """Compare the means over tasks of a metric (task -> value) of two models; each task counts the same.

    The probability is 1 - p of the sign-flip test: if the models were equally good, each task's difference could equally
    well have the other sign, and p is the share of all 2^T sign choices (of ``FLIPS`` random ones, if there are more) whose
    mean is at least the observed one.  It is exact for any number of tasks, with p at least 1 / 2^T for T tasks; a bootstrap
    over few tasks is overconfident.  Identical models get 0.

    Raises ValueError for different tasks, or none.
    """
    if not champion or champion.keys() != candidate.keys():
        raise ValueError(f"{len(champion)} and {len(candidate)} tasks do not pair")
    old, new = (np.array([figure[task] for task in sorted(champion)]) for figure in (champion, candidate))
    difference, rng = new - old, np.random.default_rng(seed)
    drawn = difference[rng.integers(0, len(difference), (draws, len(difference)))].mean(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5]).tolist()
    return PairedComparison(float(old.mean()), float(new.mean()), 1.0 - _share_at_least(difference, rng), low, high)


def _share_at_least(difference: np.ndarray, rng: np.random.Generator) -> float:
    """p of the sign-flip test: the share of sign choices whose sum is at least the observed one, which itself counts."""
    count, found = len(difference), difference.sum() - 1e-12
    if 2**count <= FLIPS:
        signs = 1 - 2 * (np.arange(2**count)[:, None] >> np.arange(count) & 1)
        return float(np.mean(signs @ difference >= found))
    signs = rng.choice([-1.0, 1.0], size=(FLIPS, count))
    return float((np.sum(signs @ difference >= found) + 1) / (FLIPS + 1))


def model_figures(
    predictions: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray, networks: Networks,
    ks: Sequence[int], draws: int = 1000, seed: int = 0,
) -> dict:  # fmt: skip
    """All metrics of one model on one platform, as plain numbers for JSON and ``report``.

    {tasks, programs, failed, pairwise_accuracy, spearman, subset_top_1, and for each k: top_k {value, low, high},
    top_k_random {...}, top_k_network_average}
    """
    figures: dict = {
        "tasks": len(np.unique(tasks[np.isfinite(latencies_s)])),  # only tasks in which a program ran can be judged
        "programs": len(tasks),
        "failed": int(np.isinf(latencies_s).sum()),
        "pairwise_accuracy": pairwise_accuracy(predictions, latencies_s, tasks),
        "spearman": spearman(predictions, latencies_s, tasks),
        "subset_top_1": mean_over_tasks(subset_top_1(predictions, latencies_s, tasks)),
    }
    for k in ks:
        chosen = picks(predictions, latencies_s, tasks, k)
        figures[f"top_{k}"] = asdict(bootstrap_top_k(chosen, networks, draws, seed))
        figures[f"top_{k}_random"] = asdict(random_top_k(latencies_s, tasks, networks, k, draws, seed))
        figures[f"top_{k}_network_average"] = top_k_network_average(predictions, latencies_s, tasks, networks, k)
    return figures


def chain_figures(platforms: Sequence[str], pairs: Sequence[Sequence[float]], before: Mapping[str, str]) -> dict:
    """The chain matrix for JSON and ``report``: row = model after a platform, column = platform ranked.

    platforms  in the order of learning
    pairs      ``pairwise_accuracy``, since a single held-out task's choice may decide top-1
               (None in the matrix where it is undefined)
    before     platform -> the platform whose model it continues from, for all but the first
    """
    known = lambda x: float(x) if np.isfinite(x) else None  # noqa: E731
    places = {platform: place for place, platform in enumerate(platforms)}
    lost = forgetting(np.asarray(pairs, dtype=np.float64), [places[before[p]] if p in before else None for p in platforms])
    return {
        "platforms": list(platforms),
        "pairs": [list(map(known, row)) for row in pairs],
        "forgotten": dict(zip(platforms, map(known, lost), strict=True)),
    }


def _resampled(weight: np.ndarray, draws: int, seed: int, *chosen: Picks) -> list[np.ndarray]:
    """(draws,) top-k ratios of each of ``chosen``, over the same resampled tasks; only tasks with a weight are drawn."""
    used = np.flatnonzero(weight)
    index = used[np.random.default_rng(seed).integers(0, len(used), (draws, len(used)))]
    return [(weight * c.best_s)[index].sum(axis=1) / (weight * c.picked_s)[index].sum(axis=1) for c in chosen]

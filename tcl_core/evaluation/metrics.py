"""How well a model ranks measured programs: pure functions on arrays, aligned on N programs.

    predictions  (N,) higher is better, compared only within a task
    latencies_s  (N,) seconds, inf where the program failed
    tasks        (N,) int, the task of each program
    networks     network name -> task -> weight, how often the network runs the task

A task in which nothing was measured or everything failed has no best program and is left out of every metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tcl_core.errors import DataError
from tcl_core.features.batches import rows_by_task

Networks = Mapping[str, Mapping[int, float]]
SUBSET, SUBSETS = 16, 64  # programs per subset of a task, and number of subsets
PAIRS_AT_ONCE = 1 << 22  # pairs compared at once: all pairs of tens of thousands of programs take gigabytes


@dataclass(frozen=True)
class Picks:
    """Result of choosing k programs per task: (T,) task numbers, each task's fastest latency, and its fastest pick's."""

    tasks: np.ndarray
    best_s: np.ndarray
    picked_s: np.ndarray

    def ratio(self, weights: Mapping[int, float]) -> float:
        """sum(best * weight) / sum(picked * weight) over the tasks that have a weight."""
        weight = task_weights(self.tasks, weights)
        return float((self.best_s @ weight) / (self.picked_s @ weight))


def picks(predictions: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray, k: int) -> Picks:
    """The fastest of the k programs ranked best, per task.

    A failed pick counts as the task's slowest program that ran, so k failures cost that much and no more.  For ties at the
    k-th place the expected latency of a random choice is taken, so the order of programs never matters.

    Raises DataError for NaN predictions, invalid latencies, or when no task has a program that ran.
    """
    check_inputs(predictions, latencies_s, tasks)
    found = [
        (tasks[rows[0]], seconds.min(), _expected_pick(predictions[rows], seconds, k))
        for rows, seconds in measured_tasks(latencies_s, tasks)
    ]
    if not found:
        raise DataError("no task has a program that ran, so there is nothing to rank; measure held-out programs first")
    return Picks(*(np.array(column) for column in zip(*found, strict=True)))


def top_k(predictions: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray, networks: Networks, k: int) -> float:
    """Top-k pooled over networks m with tasks s of weight w, as in TLP and TCL; in (0, 1], 1 is best:

        sum_m sum_s min latency(s) * w(m, s)  /  sum_m sum_s min latency(the k ranked best of s) * w(m, s)

    Raises DataError for NaN predictions, or when no task of the networks has a program that ran.
    """
    return picks(predictions, latencies_s, tasks, k).ratio(pooled(networks))


def top_k_network_average(predictions: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray, networks: Networks, k: int) -> float:
    """TenSet's variant of top-k: each network's own ratio, then their plain mean; not comparable with ``top_k``."""
    chosen = picks(predictions, latencies_s, tasks, k)
    present = set(chosen.tasks.tolist())
    return float(np.mean([chosen.ratio(weights) for weights in networks.values() if present & set(weights)]))


def subset_top_1(predictions: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray) -> dict[int, float]:
    """Task -> "U16": mean top-1 over fixed random subsets of ``SUBSET`` of its programs (of all, if it has fewer).

    Top-1 of a whole task depends on a few fast programs, so that a single one can decide between two models; over subsets many
    programs contribute.  Subsets depend only on the number of programs, so all models get the same ones.  Subsets in which
    nothing ran are left out; if nothing ran in any, the whole task is used instead.
    """
    check_inputs(predictions, latencies_s, tasks)
    return {
        int(tasks[rows[0]]): _mean_top_1(predictions[rows], seconds, np.isfinite(latencies_s[rows]))
        for rows, seconds in measured_tasks(latencies_s, tasks)
    }


def _mean_top_1(predictions: np.ndarray, seconds: np.ndarray, ran: np.ndarray) -> float:
    draw = np.random.default_rng([SUBSET, len(seconds)])
    order = np.argsort(draw.random((SUBSETS, len(seconds))), axis=1)[:, :SUBSET]
    order = order[ran[order].any(axis=1)] if ran[order].any() else np.arange(len(seconds))[None]
    drawn, seconds = predictions[order], seconds[order]
    chosen = drawn == drawn.max(axis=1, keepdims=True)  # for ties, the mean over a random choice among them
    worth = seconds.min(axis=1, keepdims=True) / seconds
    return float(np.mean((worth * chosen).sum(axis=1) / chosen.sum(axis=1)))


def pairwise_accuracy(predictions: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray) -> float:
    """Share of pairs with different latencies that are ranked right, per task, averaged over tasks.

    Equal predictions count 1/2.  A failed program counts as slower than any that ran.  NaN if no task has two different
    latencies.
    """
    return mean_over_tasks(task_pairs(predictions, latencies_s, tasks))


def task_pairs(predictions: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray) -> dict[int, float]:
    """Task -> share of its pairs ranked right, as in ``pairwise_accuracy``; leaves out tasks without two different latencies."""
    check_inputs(predictions, latencies_s, tasks)
    return _by_task(_pairs_right, predictions, latencies_s, tasks)


def spearman(predictions: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray) -> float:
    """Rank correlation of predictions with speed, per task, averaged over tasks; ties share their mean rank.

    Constant predictions give 0.  A failed program counts as slower than any that ran.  NaN as for ``pairwise_accuracy``.
    """
    check_inputs(predictions, latencies_s, tasks)
    return mean_over_tasks(_by_task(_rank_correlation, predictions, latencies_s, tasks))


def forgetting(accuracy: np.ndarray, before: Sequence[int | None]) -> np.ndarray:
    """(P,) accuracy lost on each platform: the best of any model on its line minus that of the line's last model, at least 0.

    A platform's line is its own model, those it was built on, and those built on it; a model of another branch of the chain has
    learned nothing of the platform.

    accuracy[i, p]  accuracy on platform p of the model after the chain's i-th platform; NaN where not evaluated
    before[i]       index of the platform whose model the i-th continues from; None for the first
    """
    lines: list[set[int]] = []  # each platform and its ancestors
    for place, former in enumerate(before):
        lines.append({place} | (set() if former is None else lines[former]))
    rows = [[i for i, line in enumerate(lines) if p in line or i in lines[p]] for p in range(len(lines))]
    return np.array([np.fmax.reduce(accuracy[of, p]) - accuracy[of[-1], p] for p, of in enumerate(rows)])


def pooled(networks: Networks) -> dict[int, float]:
    """Task -> weight summed over the networks."""
    total: dict[int, float] = {}
    for weights in networks.values():
        for task, weight in weights.items():
            total[task] = total.get(task, 0.0) + weight
    return total


def task_weights(tasks: np.ndarray, weights: Mapping[int, float]) -> np.ndarray:
    """(T,) weight of each task, 0 where it has none.  Raises DataError when all are 0."""
    found = np.array([weights.get(task, 0.0) for task in tasks.tolist()], dtype=np.float64)
    if not found.any():
        raise DataError("none of the networks' tasks has a program that ran; measure them first (stage holdout)")
    return found


def measured_tasks(latencies_s: np.ndarray, tasks: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(rows, latencies) of each task in which a program ran; failed programs get the slowest latency that ran."""
    for rows in rows_by_task(tasks):
        seconds = latencies_s[rows].astype(np.float64)
        ran = np.isfinite(seconds)
        if ran.any():
            yield rows, np.where(ran, seconds, seconds[ran].max())


def check_inputs(predictions: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray) -> None:
    if not len(predictions) == len(latencies_s) == len(tasks):
        raise ValueError(f"{len(predictions)} predictions, {len(latencies_s)} latencies, {len(tasks)} tasks do not align")
    if np.isnan(predictions).any():
        count, task = np.isnan(predictions).sum(), tasks[int(np.isnan(predictions).argmax())]
        raise DataError(f"the model predicts NaN for {count} programs, first in task {task}; train it again")
    if not (np.asarray(latencies_s) > 0).all():
        raise DataError("a latency is NaN, zero or negative; measure those programs again")


def first_of_random(count: int, k: int) -> np.ndarray:
    """(count,) probability that the best of k programs drawn from ``count`` is the i-th fastest:
    C(count - 1 - i, k - 1) / C(count, k)."""
    k = min(k, count)
    i = np.arange(count - 1)
    steps = np.maximum(count - k - i, 0) / (count - 1 - i)
    return k / count * np.concatenate([[1.0], np.cumprod(steps)])


def _expected_pick(predictions: np.ndarray, seconds: np.ndarray, k: int) -> float:
    if k >= len(seconds):
        return seconds.min()
    border = np.sort(predictions)[-k]
    above = predictions > border
    sure = seconds[above].min(initial=np.inf)
    tied = np.minimum(np.sort(seconds[predictions == border]), sure)
    return float(tied @ first_of_random(len(tied), k - int(above.sum())))


def _by_task(figure, predictions: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray) -> dict[int, float]:
    return {
        int(tasks[rows[0]]): figure(predictions[rows], -latencies_s[rows])
        for rows in rows_by_task(tasks)
        if len(np.unique(latencies_s[rows])) > 1
    }


def mean_over_tasks(of_tasks: Mapping[int, float]) -> float:
    """Plain mean over tasks; NaN if there are none."""
    return float(np.mean(list(of_tasks.values()))) if of_tasks else float("nan")


def _pairs_right(predictions: np.ndarray, speed: np.ndarray) -> float:
    right, pairs, rows = 0.0, 0, max(1, PAIRS_AT_ONCE // len(speed))
    for start in range(0, len(speed), rows):
        some = slice(start, start + rows)
        faster = speed[some, None] > speed[None, :]
        above = predictions[some, None] > predictions[None, :]
        equal = predictions[some, None] == predictions[None, :]
        right += float((faster & above).sum() + 0.5 * (faster & equal).sum())
        pairs += int(faster.sum())
    return right / pairs


def _rank_correlation(predictions: np.ndarray, speed: np.ndarray) -> float:
    left, right = (ranks - ranks.mean() for ranks in (_mean_ranks(predictions), _mean_ranks(speed)))
    spread = np.sqrt((left @ left) * (right @ right))
    return float(left @ right / spread) if spread > 0 else 0.0


def _mean_ranks(values: np.ndarray) -> np.ndarray:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[group]

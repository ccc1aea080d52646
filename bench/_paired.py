"""Whether one model ranks better than another, task by task.

Intervals over seeds show the variance of training; they do not show whether other test networks would order two models the
same way.  Both models rank the same tasks, so the interval given here is that of their mean difference per task, over
resampled tasks (paired bootstrap).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tcl_core.evaluation.metrics import picks, subset_top_1, task_pairs

JUDGED = {"pairs": "pairs", "u16": "U16", "top1": "top-1"}
DRAWS = 10_000
ENOUGH = 10  # tasks

ByTask = Mapping[int, float]
ByFold = Mapping[tuple[str, int], float]
"""(fold, task) -> value."""


def task_figures(scores: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray) -> dict[str, dict[int, float]]:
    """Figure -> task -> value, of the tasks in which programs differ; arguments as in ``evaluation.metrics``.

    pairs  share ranked right;  u16  top-1 over subsets of 16 programs;  top1  fastest latency / that of the program ranked first
    """
    pairs, u16 = task_pairs(scores, latencies_s, tasks), subset_top_1(scores, latencies_s, tasks)
    chosen = picks(scores, latencies_s, tasks, 1)
    top1 = dict(zip(chosen.tasks.tolist(), (chosen.best_s / chosen.picked_s).tolist(), strict=True))
    found = {"pairs": pairs, "u16": u16, "top1": top1}
    return {name: {task: float(values[task]) for task in pairs} for name, values in found.items()}


def against(ours: np.ndarray, theirs: np.ndarray, folds: np.ndarray | None = None) -> list[float | None]:
    """[mean, low, high] of our (T,) figures less theirs, of the same tasks; the 95 % interval is over draws of the tasks.

    (T,) ``folds``: tasks of one fold share a trained model, so folds are drawn first, and then tasks of each.
    Low and high are None for fewer than ``ENOUGH`` tasks, too few for such draws.
    """
    difference = ours - theirs
    if len(difference) < ENOUGH:
        return [float(difference.mean()), None, None]
    draw = np.random.default_rng(0)
    groups = [difference] if folds is None else [difference[folds == fold] for fold in np.unique(folds)]
    total, count = np.zeros(DRAWS), np.zeros(DRAWS)
    for _ in groups:
        drawn = draw.integers(0, len(groups), DRAWS)
        for number, group in enumerate(groups):
            rows = np.flatnonzero(drawn == number)
            total[rows] += group[draw.integers(0, len(group), (len(rows), len(group)))].sum(axis=1)
            count[rows] += len(group)
    return [float(difference.mean()), *(float(x) for x in np.quantile(total / count, [0.025, 0.975]))]


def by_fold(mine: ByFold, theirs: ByFold | None = None) -> list[float | None]:
    """``against``, with folds, over the tasks that both have; without ``theirs`` the mean itself and its interval.

    A task that occurs in several folds counts in the first.
    """
    first: dict[int, str] = {}
    both = [
        (fold, task)
        for fold, task in sorted(mine if theirs is None else mine.keys() & theirs.keys())
        if first.setdefault(task, fold) == fold
    ]
    of = lambda values: np.array([values[place] for place in both])  # noqa: E731
    return against(of(mine), np.zeros(len(both)) if theirs is None else of(theirs), np.array([fold for fold, _ in both]))


def compared(judged: Mapping[tuple[str, str], Mapping[int, Mapping[str, ByTask]]], ours: str) -> list[dict[str, Any]]:
    """Our model against every other on each platform, over the seeds that both have; models without such seeds are left out.

    ``judged`` is (platform, model) -> seed -> ``task_figures``.  A task counts once, with its mean over the seeds that were
    tested on it.  A row has each figure's mean over tasks, and as ``FIGURE_ours_less`` our difference from it (``against``).
    """
    rows = []
    for (platform, model), theirs in judged.items():
        mine = judged.get((platform, ours), {})
        if seeds := sorted(mine.keys() & theirs.keys()):
            row: dict[str, Any] = {"platform": platform, "model": model, "seeds": len(seeds)}
            for name in JUDGED:
                a, b = (_means([of[seed][name] for seed in seeds]) for of in (mine, theirs))
                row |= {"tasks": len(b), name: float(b.mean()), f"{name}_ours_less": against(a, b)}
            rows.append(row)
    return rows


def _means(seeds: Sequence[ByTask]) -> np.ndarray:
    """(T,) mean of each task over the seeds that have it, in order of the tasks."""
    tasks = sorted(set().union(*seeds))
    return np.array([np.mean([seed[task] for seed in seeds if task in seed]) for task in tasks])

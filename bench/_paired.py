"""Whether one model chooses better programs than another, task by task.

Means over seeds and their intervals say how much a model's luck in training counts; whether another choice of networks to
test on would give the same order of two models, they do not say.  Both models rank the same tasks, so their difference is
taken in each task and its mean's interval from drawing the tasks again (paired bootstrap).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tcl_core.evaluation.metrics import picks

DRAWS = 10_000
ENOUGH = 10  # tasks


def task_top1(scores: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray) -> dict[int, float]:
    """Task -> fastest latency / latency of the program ranked first; arguments as in ``evaluation.metrics``."""
    chosen = picks(scores, latencies_s, tasks, 1)
    return dict(zip(chosen.tasks.tolist(), (chosen.best_s / chosen.picked_s).tolist(), strict=True))


def against(ours: np.ndarray, theirs: np.ndarray) -> list[float | None]:
    """[mean, low, high] of our (T,) ``task_top1`` less theirs of the same tasks; 95 % over draws of the tasks.

    Low and high are None for fewer than ``ENOUGH`` tasks, of which draws say nothing.
    """
    difference = ours - theirs
    if len(difference) < ENOUGH:
        return [float(difference.mean()), None, None]
    draw = np.random.default_rng(0)
    means = difference[draw.integers(0, len(difference), (DRAWS, len(difference)))].mean(axis=1)
    return [float(difference.mean()), *(float(x) for x in np.quantile(means, [0.025, 0.975]))]


def compared(chosen: Mapping[tuple[str, str], Mapping[int, Mapping[int, float]]], ours: str) -> list[dict[str, Any]]:
    """Our model against every other on each platform, by the seeds that both have; left out where there are none.

    ``chosen`` is (platform, model) -> seed -> ``task_top1``.  A task counts once, with its mean over the seeds that were
    tested on it.
    """
    rows = []
    for (platform, model), theirs in chosen.items():
        mine = chosen.get((platform, ours), {})
        if seeds := sorted(mine.keys() & theirs.keys()):
            a, b = (_means([of[seed] for seed in seeds]) for of in (mine, theirs))
            about = {"platform": platform, "model": model, "seeds": len(seeds), "tasks": len(b)}
            rows.append(about | {"top1": float(b.mean()), "ours_less": against(a, b)})
    return rows


def _means(seeds: Sequence[Mapping[int, float]]) -> np.ndarray:
    """(T,) mean of each task over the seeds that have it, in order of the tasks."""
    tasks = sorted(set().union(*seeds))
    return np.array([np.mean([seed[task] for seed in seeds if task in seed]) for task in tasks])

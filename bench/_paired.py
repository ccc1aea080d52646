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


def task_top1(scores: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """(T,) fastest latency / latency of the program ranked first, of each task; arguments as in ``evaluation.metrics``."""
    chosen = picks(scores, latencies_s, tasks, 1)
    return chosen.best_s / chosen.picked_s


def against(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> list[float]:
    """[mean, low, high] of our ``task_top1`` less theirs: (T,) arrays, one for each seed; 95 % over draws of the tasks."""
    difference = np.mean(ours, axis=0) - np.mean(theirs, axis=0)
    draw = np.random.default_rng(0)
    means = difference[draw.integers(0, len(difference), (DRAWS, len(difference)))].mean(axis=1)
    return [float(difference.mean()), *(float(x) for x in np.quantile(means, [0.025, 0.975]))]


def compared(chosen: Mapping[tuple[str, str], Sequence[np.ndarray]], ours: str) -> list[dict[str, Any]]:
    """Our model against every other on each platform; ``chosen``: (platform, model) -> ``task_top1`` of each seed."""
    return [
        {"platform": platform, "model": model, "top1": float(np.mean(found)), "ours_less": against(chosen[platform, ours], found)}
        for (platform, model), found in chosen.items()
        if (platform, ours) in chosen
    ]

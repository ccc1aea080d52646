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


def against(ours: np.ndarray, theirs: np.ndarray) -> list[float]:
    """[mean, low, high] of our (T,) ``task_top1`` less theirs of the same tasks; 95 % over draws of the tasks."""
    difference = ours - theirs
    draw = np.random.default_rng(0)
    means = difference[draw.integers(0, len(difference), (DRAWS, len(difference)))].mean(axis=1)
    return [float(difference.mean()), *(float(x) for x in np.quantile(means, [0.025, 0.975]))]


def compared(chosen: Mapping[tuple[str, str], Mapping[int, np.ndarray]], ours: str, same_tasks: bool) -> list[dict[str, Any]]:
    """Our model against every other on each platform, by the seeds that both have; left out where there are none.

    ``chosen`` is (platform, model) -> seed -> ``task_top1``.  With ``same_tasks`` all seeds were tested on the same tasks,
    whose mean over seeds counts; else each seed's tasks are others, and count one by one.
    """
    rows = []
    for (platform, model), theirs in chosen.items():
        mine = chosen.get((platform, ours), {})
        if seeds := sorted(mine.keys() & theirs.keys()):
            a, b = (_joined([of[seed] for seed in seeds], same_tasks) for of in (mine, theirs))
            about = {"platform": platform, "model": model, "seeds": len(seeds)}
            rows.append(about | {"top1": float(b.mean()), "ours_less": against(a, b)})
    return rows


def _joined(seeds: Sequence[np.ndarray], same_tasks: bool) -> np.ndarray:
    return np.mean(seeds, axis=0) if same_tasks else np.concatenate(seeds)

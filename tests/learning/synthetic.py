"""A small ranking problem whose answer is known: latency follows from which tokens a program has."""

from __future__ import annotations

import numpy as np

from tcl_core.features.batches import Samples

FEATURES = 6


def ranking_problem(
    seed: int = 0, tasks: int = 6, programs: int = 16, length: int = 8, shift: float = 0.0, holds: str = "tokens"
) -> Samples:
    """log latency = -sum of tanh(w . row); ``shift`` turns w towards another platform's."""
    draw, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    direction = fixed.normal(size=FEATURES) + shift * fixed.normal(size=FEATURES)
    vocabulary = fixed.normal(size=(30, FEATURES)).astype(np.float32)
    count = tasks * programs
    lengths = draw.integers(length // 2, length + 1, count).astype(np.int32)
    rows = vocabulary[draw.integers(0, len(vocabulary), (count, length))]
    rows[np.arange(length) >= lengths[:, None]] = 0.0
    latencies_s = 1e-3 * np.exp(-0.5 * np.tanh(rows @ direction).sum(1))
    names, numbers = tuple(f"task-{i}" for i in range(tasks)), np.repeat(np.arange(tasks, dtype=np.int32), programs)
    return Samples(rows, lengths, numbers, latencies_s, names, holds=holds)


def top1(scores: np.ndarray, samples: Samples) -> float:
    """Mean over tasks of the true score of the program ranked first."""
    picked = [
        samples.scores[rows][scores[rows].argmax()] for rows in (np.flatnonzero(samples.tasks == task) for task in np.unique(samples.tasks))
    ]
    return float(np.mean(picked))

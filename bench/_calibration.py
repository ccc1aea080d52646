"""Calibration of cost models: predicted probabilities that one program beats another, against measurements.

For two programs with scores s and t a model predicts p = sigmoid(k (s - t)), an ensemble the mean of its members' p.  The single
parameter k is fitted on half of the tasks and evaluated on the other half, and vice versa.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tcl_core.features.batches import rows_by_task

BINS = 15
STEEPNESS = np.geomspace(0.05, 20.0, 60)
PAIRS = 2000  # of a task at most
TINY = 1e-6


def calibration(scores: Sequence[np.ndarray], latencies_s: np.ndarray, tasks: np.ndarray) -> dict[str, float | None]:
    """Figures of an ensemble (or of a single model) from its members' (N,) scores.

    ece     expected calibration error: |mean certainty - share right|, averaged over pairs by ``BINS`` of certainty
    sharp   area under the ROC curve of certainty as a predictor of being right: 0.5 is chance, 1 perfect
    error   Spearman correlation, within tasks, of the members' disagreement about a program with their error; None for a single model
    """
    left, right = pairs(latencies_s, tasks)
    faster = (latencies_s[left] < latencies_s[right]).astype(float)
    gaps = np.stack([s[left] - s[right] for s in scores])
    half = np.isin(tasks[left], np.unique(tasks)[::2])
    probability = np.empty(len(left))
    for fitted, judged in ((half, ~half), (~half, half)):
        best = min(STEEPNESS, key=lambda k: log_loss(certainty(gaps[:, fitted], k), faster[fitted]))
        probability[judged] = certainty(gaps[:, judged], best)
    sure, is_right = np.maximum(probability, 1 - probability), (probability > 0.5) == (faster > 0.5)
    return {"ece": ece(sure, is_right), "sharp": area(sure, is_right), "error": error_known(scores, latencies_s, tasks)}


def pairs(latencies_s: np.ndarray, tasks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(P,) rows of either side of program pairs within tasks whose latencies differ; the same pairs for every model."""
    found = []
    for rows in rows_by_task(tasks):
        left, right = (rows[places] for places in np.triu_indices(len(rows), 1))
        differ = np.flatnonzero(latencies_s[left] != latencies_s[right])
        kept = np.random.default_rng(int(tasks[rows[0]])).permutation(differ)[:PAIRS]
        found.append((left[kept], right[kept]))
    return tuple(np.concatenate(side) for side in zip(*found, strict=True))


def certainty(gaps: np.ndarray, steepness: float) -> np.ndarray:
    """(P,) mean over members of the sigmoid of (members, P) gaps."""
    return (1.0 / (1.0 + np.exp(-np.clip(steepness * gaps, -40, 40)))).mean(axis=0)


def log_loss(probability: np.ndarray, truth: np.ndarray) -> float:
    return float(-np.log(np.clip(np.where(truth > 0.5, probability, 1 - probability), TINY, 1)).mean())


def ece(sure: np.ndarray, is_right: np.ndarray) -> float:
    """Weighted mean over bins of |mean certainty - share right|; certainty lies in [0.5, 1]."""
    bins = np.minimum(((sure - 0.5) * 2 * BINS).astype(int), BINS - 1)
    return float(sum(abs((sure[bins == b] - is_right[bins == b]).sum()) for b in range(BINS)) / len(sure))


def area(sure: np.ndarray, is_right: np.ndarray) -> float:
    """Probability that a pair ranked right was ranked with more certainty than one ranked wrong."""
    _, place, count = np.unique(sure, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # ties share their mean rank
    right = int(is_right.sum())
    return float((ranks[is_right].sum() - right * (right + 1) / 2) / max(right * (len(sure) - right), 1))


def error_known(scores: Sequence[np.ndarray], latencies_s: np.ndarray, tasks: np.ndarray) -> float | None:
    """Mean over tasks of the rank correlation of the members' standard deviation with their mean score's error in rank."""
    if len(scores) < 2:
        return None
    found = []
    for rows in rows_by_task(tasks):
        members = np.stack([_standard(s[rows]) for s in scores])
        speed = _standard(_places(-latencies_s[rows]))
        found.append(_correlation(members.std(axis=0), np.abs(_standard(_places(members.mean(axis=0))) - speed)))
    return float(np.nanmean(found))


def _standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / max(values.std(), TINY)


def _places(values: np.ndarray) -> np.ndarray:
    return values.argsort(kind="stable").argsort(kind="stable").astype(float)


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    a, b = _standard(_places(a)), _standard(_places(b))
    return float((a * b).mean())

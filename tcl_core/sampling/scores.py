"""Acquisition scores of unlabelled programs: pure functions on arrays.

N unlabelled programs (the pool), M labelled ones.  Independent of model and task.
Source: TCL (arXiv 2604.12891), the RDU sampler: representativeness, diversity, uncertainty.
"""

from __future__ import annotations

import numpy as np


def normalised(predictions: np.ndarray, labelled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays scaled jointly to [0, 1], from the smallest to the largest of the N + M; all 0 if they are equal."""
    both = np.concatenate([predictions, labelled]).astype(np.float64)
    spread = np.ptp(both) if len(both) else 0.0
    both = (both - both.min()) / spread if spread > 0 else np.zeros(len(both))
    return both[: len(predictions)], both[len(predictions) :]


def prediction_gap(predictions: np.ndarray, labelled: np.ndarray) -> np.ndarray:
    """The paper's diversity, (N,): min over j of |f(x) - f(x_j)|; 1 if nothing is labelled yet.

    In one dimension only the two neighbours in sorted order can be nearest: O(log M) per program instead of O(M).
    """
    if not len(labelled):
        return np.ones(len(predictions))
    ordered = np.concatenate([[-np.inf], np.sort(labelled), [np.inf]])
    right = np.searchsorted(ordered, predictions)
    return np.minimum(ordered[right] - predictions, predictions - ordered[right - 1])


def prediction_variance(predictions: np.ndarray, labelled: np.ndarray) -> np.ndarray:
    """The paper's uncertainty, (N,): the variance of f(x) together with the M labelled predictions; 0 if nothing is labelled.

    Closed form, O(1) per program: M / (M + 1) * var + M / (M + 1)^2 * (f(x) - mean)^2.  So it measures only the distance from
    the labelled mean, not the model's uncertainty, and differences between programs fade like 1 / M.
    """
    m = len(labelled)
    if not m:
        return np.zeros(len(predictions))
    return m / (m + 1) * np.var(labelled) + m / (m + 1) ** 2 * (predictions - np.mean(labelled)) ** 2


def paper_scores(predictions: np.ndarray, labelled: np.ndarray) -> np.ndarray:
    """t(x) = f(x) * d(x) + u(x) as printed, (N,); both arguments normalised to [0, 1]."""
    return predictions * prediction_gap(predictions, labelled) + prediction_variance(predictions, labelled)


def paper_scores_reference(predictions: np.ndarray, labelled: np.ndarray) -> np.ndarray:
    """``paper_scores`` as the formula reads, O(N * M); a test holds the two equal.  M must be at least 1."""
    scores = []
    for f in predictions:
        diversity = min(abs(f - f_j) for f_j in labelled)
        mu = (f + sum(labelled)) / (len(labelled) + 1)
        uncertainty = ((f - mu) ** 2 + sum((f_j - mu) ** 2 for f_j in labelled)) / (len(labelled) + 1)
        scores.append(f * diversity + uncertainty)
    return np.array(scores)

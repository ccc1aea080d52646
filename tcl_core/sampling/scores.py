"""What makes an unlabelled program worth measuring: pure functions on arrays.

N unlabelled programs (the pool), M labelled ones, E embedding width.  Nothing here knows a model or a task.
Source: TCL (arXiv 2604.12891), the RDU sampler: representativeness, diversity, uncertainty.
"""

from __future__ import annotations

import numpy as np

_CHUNK = 4096  # pool rows per distance matrix, to bound memory


def normalised(predictions: np.ndarray, labelled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both on one scale, [0, 1] from the least to the greatest of the N + M; 0 where all are equal."""
    both = np.concatenate([predictions, labelled]).astype(np.float64)
    spread = np.ptp(both) if len(both) else 0.0
    both = (both - both.min()) / spread if spread > 0 else np.zeros(len(both))
    return both[: len(predictions)], both[len(predictions) :]


def prediction_gap(predictions: np.ndarray, labelled: np.ndarray) -> np.ndarray:
    """Diversity of the paper, (N,): min over j of |f(x) - f(x_j)|; 1 where nothing is labelled yet.

    In one dimension only the two neighbours in sorted order can be nearest: O(log M) per program instead of
    O(M).
    """
    if not len(labelled):
        return np.ones(len(predictions))
    ordered = np.concatenate([[-np.inf], np.sort(labelled), [np.inf]])
    right = np.searchsorted(ordered, predictions)
    return np.minimum(ordered[right] - predictions, predictions - ordered[right - 1])


def prediction_variance(predictions: np.ndarray, labelled: np.ndarray) -> np.ndarray:
    """Uncertainty of the paper, (N,): the variance of the M labelled predictions and f(x) together.

    Closed form, O(1) per program: M / (M + 1) * var + M / (M + 1)^2 * (f(x) - mean)^2.  So it is the distance
    from the labelled mean, says nothing about what the model does not know, and fades like 1 / M.
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


def rescaled_variance(variance: np.ndarray) -> np.ndarray:
    """Model uncertainty, (N,) in [0, 1]: ensemble or dropout variance over the greatest in the pool."""
    greatest = variance.max(initial=0.0)
    return variance / greatest if greatest > 0 else np.zeros(len(variance))


def within_unit_ball(embeddings: np.ndarray, labelled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both embeddings, (N, E) and (M, E), scaled together so that no two points are further apart than 1."""
    both = np.concatenate([embeddings, labelled]).astype(np.float64)
    both = both - both.mean(axis=0)
    radius = np.sqrt((both**2).sum(axis=1).max(initial=0.0))
    both = both / (2 * radius) if radius > 0 else both
    return both[: len(embeddings)], both[len(embeddings) :]


def embedding_gap(embeddings: np.ndarray, labelled: np.ndarray) -> np.ndarray:
    """Diversity in embedding space, (N,): Euclidean distance to the nearest labelled point; 1 without any."""
    if not len(labelled) or not len(embeddings):
        return np.ones(len(embeddings))
    chunks = [embeddings[start : start + _CHUNK] for start in range(0, len(embeddings), _CHUNK)]
    return np.concatenate([np.sqrt(_squared_distances(chunk, labelled).min(axis=1)) for chunk in chunks])


def _squared_distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """(N, M) from (N, E) and (M, E); the subtraction of near-equal squares may fall a rounding below 0."""
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :]
    return np.maximum(squares - 2 * left @ right.T, 0.0)

"""A search's belief about unmeasured programs: the champion's scores, corrected by the measurements of this run.

The belief is a Gaussian process over the gain of a program, -log(latency) in nats.  Its prior mean is the champion's score
s.  Its covariance

    1 + SLOPE * s s' + amplitude * matern(|x - x'| / length)

lets the records shift and stretch the scores, and depart from them for programs with similar features x.  Without records
the champion decides alone; each record reduces its weight, and the uncertainty near the measured program.  Without a
champion all scores are 0, and the records decide alone.  Length, amplitude and noise are the point of a small grid with
the greatest marginal likelihood: a small amplitude leaves a champion that is right alone, a large noise distrusts the
records of a task whose latencies are rough.

Source: GP-BUCB (Desautels et al., JMLR 15, 2014) for batches: each pick counts as measured for the next one, so that one
term serves both diversity and uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

SLOPE = 0.25  # prior variance of the factor (mean 1) that stretches the champion's scores
LENGTHS, AMPLITUDES, NOISES = (0.3, 1.0, 3.0), (0.03, 0.3, 1.0), (0.01, 0.03, 0.1, 0.3)
AT_FIRST = (1.0, 0.3, 0.03)  # length, amplitude and noise before any record
# Most records learned from: the fastest ones, and some of the others for contrast.  The cost grows with the cube of their number.
FASTEST, OTHERS = 192, 64
FAILED = 1.0  # nats by which a failed program counts as slower than the slowest that ran


@dataclass(frozen=True)
class Views:
    """What models make of N candidates: scores (N,), higher is better, and blocks of features, each (N, width)."""

    scores: np.ndarray
    blocks: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True)
class Points:
    """N candidates on the scale of their task: scores (N,) of variance 1; features (N, E), two candidates about sqrt(2) apart per block."""

    scores: np.ndarray
    features: np.ndarray

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, rows: Sequence[int] | np.ndarray) -> Points:
        return Points(self.scores[rows], self.features[rows])


def joined(parts: Sequence[Points]) -> Points:
    """Concatenate points, in order; (0,) scores and (0, 0) features without any."""
    if not parts:
        return Points(np.zeros(0), np.zeros((0, 0)))
    return Points(np.concatenate([part.scores for part in parts]), np.concatenate([part.features for part in parts]))


class Scale:
    """Turns views into points; learned from a sample of the task's programs."""

    def __init__(self, sample: Views) -> None:
        scores = sample.scores.astype(np.float64)  # in float32 the deviation of equal scores may not be 0
        self._middle, self._spread = scores.mean(), scores.std() or 1.0
        self._blocks = [_block_scale(block) for block in sample.blocks]

    def __call__(self, views: Views) -> Points:
        parts = [(block[:, columns] - middle) / spread for block, (columns, middle, spread) in zip(views.blocks, self._blocks, strict=True)]
        scores = (views.scores.astype(np.float64) - self._middle) / self._spread
        return Points(scores, np.concatenate([np.zeros((len(views), 0)), *parts], axis=1))


def _block_scale(block: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns that vary over the (N, width) sample, their means, and divisors that give the whole block variance 1."""
    columns = np.flatnonzero(block.max(axis=0, initial=-np.inf) > block.min(axis=0, initial=np.inf))
    differing = block[:, columns].astype(np.float64)
    return columns, differing.mean(axis=0), differing.std(axis=0) * max(1, len(columns)) ** 0.5


def gains_of(latencies_s: Sequence[float]) -> np.ndarray:
    """(N,) -log(latency) less its median over the programs that ran; a failed program (inf) gets ``FAILED`` less than the slowest."""
    seconds = np.asarray(latencies_s, dtype=np.float64)
    ran = np.isfinite(seconds)
    if not ran.any():
        return np.full(len(seconds), -FAILED)
    gains = -np.log(np.where(ran, seconds, 1.0))
    gains = gains - np.median(gains[ran])
    return np.where(ran, gains, gains[ran].min() - FAILED)


def worth_learning(latencies_s: Sequence[float]) -> np.ndarray:
    """Rows of the ``FASTEST`` fastest programs, and of at most ``OTHERS`` others, evenly spaced by rank."""
    order = np.argsort(latencies_s, kind="stable")
    others = order[FASTEST:]
    return np.concatenate([order[:FASTEST], others[:: max(1, -(-len(others) // OTHERS))]])


class Belief:
    """The posterior given measured programs: their points and (N,) gains."""

    def __init__(self, known: Points, gains: np.ndarray) -> None:
        self.known = known
        shape, trend = _distances(known, known), _trend(known, known)
        self.length, self.amplitude, self.noise = self._likeliest(shape, trend, gains)
        covariance = self.amplitude * _matern(shape, self.length) + trend
        self._root = np.linalg.cholesky(covariance + self.noise * np.eye(len(known)))
        self._residual = np.linalg.solve(self._root, gains - known.scores)

    def _likeliest(self, shape: np.ndarray, trend: np.ndarray, gains: np.ndarray) -> tuple[float, float, float]:
        """Length, amplitude and noise with the greatest marginal likelihood; ``AT_FIRST`` without records."""
        if not len(gains):
            return AT_FIRST

        def surprise(length: float, amplitude: float, noise: float) -> float:
            root = np.linalg.cholesky(amplitude * like[length] + trend + noise * np.eye(len(gains)))
            residual = np.linalg.solve(root, gains - self.known.scores)
            return float(residual @ residual / 2 + np.log(np.diag(root)).sum())

        like = {length: _matern(shape, length) for length in LENGTHS}
        return min(product(LENGTHS, AMPLITUDES, NOISES), key=lambda choice: surprise(*choice))

    def joint(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        """(N,) expected gains and their (N, N) covariance."""
        reach = self._reach(points)
        return points.scores + reach.T @ self._residual, self._covariance(points, points) - reach.T @ reach

    def of(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        """(N,) expected gains and (N,) standard deviations."""
        reach = self._reach(points)
        variance = self.amplitude + 1.0 + SLOPE * points.scores**2 - (reach**2).sum(axis=0)
        return points.scores + reach.T @ self._residual, np.sqrt(np.maximum(variance, 0.0))

    def _reach(self, points: Points) -> np.ndarray:
        """(M, N) covariance of the M records with the points, whitened by the records' Cholesky factor."""
        return np.linalg.solve(self._root, self._covariance(self.known, points))

    def has_opinion(self, points: Points) -> bool:
        """Whether anything tells these points apart: there are records, or their scores differ."""
        return bool(len(self.known)) or bool(np.ptp(points.scores) if len(points) else 0.0)

    def _covariance(self, left: Points, right: Points) -> np.ndarray:
        return self.amplitude * _matern(_distances(left, right), self.length) + _trend(left, right)


class Picker:
    """Picks points one by one; each pick then counts as measured, with its expected gain.

    So the means stay, and the deviations of similar points fall: the next pick is another kind of program.
    """

    def __init__(self, belief: Belief, points: Points, curiosity: float) -> None:
        self._mean, self._covariance = belief.joint(points)
        self._noise, self._curiosity = belief.noise, curiosity
        self._open = np.ones(len(points), dtype=bool)

    def best(self, allowed: np.ndarray) -> int | None:
        """The point with the greatest upper confidence bound, of those (N,) ``allowed`` and not taken; None if there is none."""
        merits = self._mean + self._curiosity * np.sqrt(np.maximum(np.diag(self._covariance), 0.0))
        merits = np.where(allowed & self._open, merits, -np.inf)
        return int(np.argmax(merits)) if np.isfinite(merits).any() else None

    def take(self, place: int) -> None:
        row = self._covariance[place]
        self._covariance = self._covariance - np.outer(row, row) / (row[place] + self._noise)
        self._open[place] = False


def _trend(left: Points, right: Points) -> np.ndarray:
    return 1.0 + SLOPE * np.outer(left.scores, right.scores)


def _distances(left: Points, right: Points) -> np.ndarray:
    """(N, M) Euclidean distances; clipped at 0, since rounding may make the difference of near-equal squares negative."""
    if not len(left) or not len(right):  # without points there are no features
        return np.zeros((len(left), len(right)))
    a, b = left.features, right.features
    return np.sqrt(np.maximum((a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2.0 * a @ b.T, 0.0))


def _matern(distances: np.ndarray, length: float) -> np.ndarray:
    """Matern kernel of smoothness 3/2."""
    scaled = 3.0**0.5 * distances / length
    return (1.0 + scaled) * np.exp(-scaled)

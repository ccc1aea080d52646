"""What the tasks of one run tell each other: how much the champion's scores are worth here, and what they miss.

A champion that was taught by another machine's measurements orders this one's programs less well, and in the same way in
every task.  A task's own records are too few to see that; those of all tasks of a network are not.  So the expected gain
of a program, -log(latency) in nats up to a constant of its task, is

    slope * score + trees(rows)

with scores of variance 1 within the task.  ``slope`` is the likeliest by the records of all tasks and a normal prior around
``SLOPE``; the few small trees learn what is left of these records.  Each search's own ``belief`` has this in the
place of the score.

Source: AutoTVM's transfer between workloads (arXiv 1805.08166, section 4), global model and local residual, here the other
way round: the champion is global, what is learned belongs to this run.
"""

from __future__ import annotations

import numpy as np
import torch
import xgboost

# Nats that a standard deviation of the champion's score is worth before anything is measured: .26, .37 and .50 on three platforms,
# among programs as a search draws them.
SLOPE = 0.4
PRIOR = 20.0  # 1 / its variance from champion to champion: .22 either way
NOISE = 0.1  # variance of a gain that no score explains, nats squared
ENOUGH = 24  # records from which trees are grown
TREES = 40
GROWING = {
    "max_depth": 3,
    "eta": 0.1,
    "lambda": 10.0,
    "min_child_weight": 4.0,
    "colsample_bynode": 0.3,
    "tree_method": "hist",
    "max_bin": 64,
    "base_score": 0.0,
    "seed": 0,
}


class Lessons:
    """Learned anew when it is asked after more was told."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._fresh = True  # whether slope and trees are of all that was told
        self._slope = SLOPE
        self._trees: xgboost.Booster | None = None

    def tell(self, task: int, scores: np.ndarray, rows: np.ndarray, gains: np.ndarray) -> None:
        """All records of a task, in the place of what was told of it: (N,) scores of variance 1, (N, C) rows, (N,) gains."""
        if len(gains) > 1:  # one alone says nothing of an order
            self._told[task], self._fresh = (scores, rows, gains), False

    def gains(self, scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(N,) expected gains of programs of one task, up to a constant."""
        if not self._fresh:
            self._learn()
            self._fresh = True
        expected = self._slope * scores
        if self._trees is not None and len(rows):
            expected = expected + self._trees.inplace_predict(_columns(scores, rows), predict_type="margin")
        return expected

    def _learn(self) -> None:
        told = list(self._told.values())
        scores = np.concatenate([scores - scores.mean() for scores, _, _ in told])
        gains = np.concatenate([gains - gains.mean() for _, _, gains in told])
        self._slope = float((scores @ gains / NOISE + SLOPE * PRIOR) / (scores @ scores / NOISE + PRIOR))
        self._trees = None
        if len(gains) >= ENOUGH:
            columns = np.concatenate([_columns(scores, rows) for scores, rows, _ in told])
            matrix = xgboost.DMatrix(columns, label=gains - self._slope * scores)
            self._trees = xgboost.train({**GROWING, "nthread": torch.get_num_threads()}, matrix, TREES)


def _columns(scores: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.concatenate([rows, scores[:, None]], axis=1).astype(np.float32)

"""Learns from all tasks of one run how much the champion's scores are worth here, and what they miss.

A champion trained on another machine's measurements ranks this machine's programs less well, and errs in the same way in
every task.  A task has too few records to show that; all tasks of a network together have enough.  So the expected gain
of a program, -log(latency) in nats up to a constant per task, is

    slope * score + trees(rows, score)

with scores of variance 1 within the task.  ``slope`` is the maximum a posteriori over the records of all tasks, with a
normal prior around ``SLOPE``; a few small trees learn the residual.  Each search's own ``belief`` takes this gain in
place of the score.

Source: AutoTVM's transfer between workloads (arXiv 1805.08166, section 4), global model and local residual, here the other
way round: the champion is global, what is learned belongs to this run.
"""

from __future__ import annotations

import numpy as np
import torch
import xgboost

# Prior nats per standard deviation of the champion's score: measured .26, .37 and .50 on three platforms, among programs
# as a search draws them.
SLOPE = 0.4
PRIOR = 20.0  # 1 / variance of the slope from champion to champion: a deviation of .22
NOISE = 0.1  # variance of a gain that no score explains, nats squared
ENOUGH = 24  # fewest records to grow trees from
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
    """The records of a run's tasks, and what they teach; relearned lazily, when asked after new records."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._fresh = True  # whether slope and trees have learned all records
        self._slope = SLOPE
        self._trees: xgboost.Booster | None = None

    def tell(self, task: int, scores: np.ndarray, rows: np.ndarray, gains: np.ndarray) -> None:
        """Replace a task's records: (N,) scores of variance 1, (N, C) rows, (N,) gains; a single record is ignored."""
        if len(gains) > 1:  # a single one has no order
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

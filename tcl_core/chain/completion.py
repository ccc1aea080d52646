"""Labels for programs that a platform never ran: another platform's latencies, corrected with the few programs both ran.

    log t_target(x)  =  log t_source(x)  +  level of x's task  +  share * correction(x)

Programs that are fast on one machine tend to be fast on another, and the difference follows from their structure; so the
residual can be learned from far fewer measurements than latencies.  The correction is a few trees over the tokens' row and
the program's latency on the source relative to its task.  ``share`` is the factor that predicts held-out tasks best
(cross-validation over tasks); in doubt the smaller one: with too few paired programs the source's own order remains.

Programs measured on the target keep their measured values.  (This residual view of transfer is that of Kennedy and O'Hagan's
multi-fidelity models, Biometrika 2000.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xgboost

from tcl_core.features.batches import Samples, rows_by_task
from tcl_core.models.trees import TreesModel

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
FOLDS = 5
# The target is the ratio itself, not centred per task, so that a task's only paired program counts too.  On training networks
# of the reference data, with 160 paired programs, that ordered .80 of sse4.2's pairs as avx512 does, against .78 centred.
GROWING = {
    "objective": "reg:squarederror", "base_score": 0.0, "tree_method": "hist", "eta": 0.05,
    "max_depth": 5, "min_child_weight": 2.0, "lambda": 4.0, "subsample": 0.8, "colsample_bynode": 0.3,
}  # fmt: skip
TREES = 150
# The nearest source's labels order fewer pairs right than a mean of all sources' labels, weighted by 1 / variance^POWER: of
# training networks of the reference data and of two machines .841 instead of .830 with 160 paired programs, and .836 instead of
# .804 with 64, which tell the nearest one too seldom (docs/experiments.md).
POWER, PRIOR = 2.0, 4.0


@dataclass(frozen=True)
class Completed:
    """Completed labels.

    latencies_s  (N,) seconds, up to a factor per task
    share        factor on the correction, 0 to 1
    left         share of the variance of log(target / source) left unexplained in held-out tasks
    """

    latencies_s: np.ndarray
    share: float
    left: float


def completed(programs: Samples, source_s: np.ndarray, target_s: np.ndarray, seed: int = 0) -> Completed:
    """Labels of all N programs from (N,) seconds on the source and (N,) on the target, NaN where not measured there.

    A program that failed on the source (inf) and was not measured on the target stays failed.
    """
    paired = np.flatnonzero(np.isfinite(source_s) & np.isfinite(target_s))
    ratio = np.log(target_s[paired] / source_s[paired])
    log_source = np.log(source_s)
    correction, share, left = _correction(_rows(programs, log_source), paired, ratio, programs.tasks, seed)
    found = log_source + share * correction
    for task in rows_by_task(programs.tasks):
        known = task[np.isfinite(target_s[task])]
        both = known[np.isfinite(found[known])]
        if len(both):
            found[task] += np.mean(np.log(target_s[both]) - found[both])
        elif len(known) and len(ratio):  # what is known of this task failed on the source: other tasks tell the level
            found[task] += ratio.mean()
        found[known] = np.log(target_s[known])
        found[task[np.isinf(target_s[task])]] = np.inf
    return Completed(np.exp(found), share, left)


def combined(found: Sequence[Completed], sources_s: Sequence[np.ndarray], target_s: np.ndarray, tasks: np.ndarray) -> Completed:
    """Labels of N programs from ``completed`` labels by each of K sources.

    A program's label is the weighted mean, in logarithms, of those by the sources that ran it.  A source weighs the more, the nearer
    it is to the target (``_distances``).  If no source measured a program, the one that measured the most programs labels it (of
    several the nearest); if all that measured it failed, it stays failed.  In each task the labels are brought to the level of the
    widest source's.  Programs measured on the target keep their values.  ``share`` and ``left`` are means over the programs.
    """
    logs, open_ = np.log([one.latencies_s for one in found]), np.isnan(target_s)
    there, distances = ~np.isnan(sources_s), _distances(sources_s, target_s, tasks)
    widest, measured = int(np.lexsort((distances, -there.sum(axis=1)))[0]), there & open_
    for task in rows_by_task(tasks):
        for labels in logs:
            both = task[open_[task] & np.isfinite(labels[task]) & np.isfinite(logs[widest, task])]
            if len(both):
                labels[task] += np.mean(logs[widest, both] - labels[both])
    ran = measured & np.isfinite(logs)
    weights = np.where(ran, distances[:, None] ** -POWER, 0.0)
    weights[widest, ~ran.any(axis=0)] = 1.0
    weights /= weights.sum(axis=0)
    told = np.multiply(weights, logs, out=np.zeros_like(logs), where=weights > 0).sum(axis=0)
    told[measured.any(axis=0) & ~ran.any(axis=0)] = np.inf
    counts = weights.mean(axis=1) if len(tasks) else np.zeros(len(found))
    share, left = (float(counts @ [getattr(one, name) for one in found]) for name in ("share", "left"))
    return Completed(np.exp(told), share, left)


def _distances(sources_s: Sequence[np.ndarray], target_s: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """(K,) variances within tasks of log(target / source), over programs that both ran.

    They are drawn towards the variance over all sources as if by ``PRIOR`` more degrees of freedom, so that a source that shares
    a few programs with the target does not outweigh the others for their luck.
    """
    squares, freedom = np.zeros(len(sources_s)), np.zeros(len(sources_s))
    for task in rows_by_task(tasks):
        for number, source_s in enumerate(sources_s):
            both = task[np.isfinite(source_s[task]) & np.isfinite(target_s[task])]
            if len(both) > 1:
                ratio = np.log(target_s[both] / source_s[both])
                squares[number] += np.sum((ratio - ratio.mean()) ** 2)
                freedom[number] += len(both) - 1
    usual = squares.sum() / max(freedom.sum(), 1.0) or 1.0
    return (squares + PRIOR * usual) / (freedom + PRIOR)


def _rows(programs: Samples, log_source: np.ndarray) -> np.ndarray:
    """(N, C) input of the correction: the row of ``TreesModel``, and log(latency / the task's geometric mean) on the source."""
    ran, beside = np.isfinite(log_source), np.zeros(len(programs), dtype=np.float32)
    for task in rows_by_task(programs.tasks):
        if ran[task].any():
            beside[task] = np.where(ran[task], log_source[task] - log_source[task][ran[task]].mean(), 0.0)
    return np.concatenate([TreesModel.rows(programs)[0], beside[:, None]], axis=1)


def _correction(rows: np.ndarray, paired: np.ndarray, ratio: np.ndarray, tasks: np.ndarray, seed: int) -> tuple[np.ndarray, float, float]:
    """(N,) correction of all programs, the share of it to apply, and the share of variance left unexplained."""
    groups = np.unique(tasks[paired])
    if len(groups) < FOLDS:
        return np.zeros(len(rows)), 0.0, 1.0
    level = ratio.mean()
    fold = dict(zip(np.random.default_rng(seed).permutation(groups).tolist(), np.arange(len(groups)) % FOLDS, strict=True))
    folds = np.array([fold[task] for task in tasks[paired].tolist()])
    outside = np.zeros(len(paired))
    for number in range(FOLDS):
        apart = folds == number
        outside[apart] = _grown(rows[paired[~apart]], ratio[~apart] - level, rows[paired[apart]], seed)
    share, left = best_share(ratio - level, outside, tasks[paired])
    correction = _grown(rows[paired], ratio - level, rows, seed) if share else np.zeros(len(rows))
    return correction, share, left


def best_share(ratio: np.ndarray, predicted: np.ndarray, tasks: np.ndarray) -> tuple[float, float]:
    """The smallest share whose squared error is within one standard error (over tasks) of the best one's, and its error.

    ``ratio``, ``predicted`` and ``tasks`` are (P,); the error is relative to that of share 0.
    """
    groups = list(rows_by_task(tasks))
    errors = np.array([[np.sum((ratio[task] - share * predicted[task]) ** 2) for task in groups] for share in SHARES])
    best = int(errors.sum(axis=1).argmin())
    for share, error in zip(SHARES, errors, strict=True):
        excess = error - errors[best]
        if excess.mean() <= excess.std(ddof=1) / np.sqrt(len(groups)):
            return share, float(error.sum() / max(errors[0].sum(), 1e-300))
    raise AssertionError("the best is within its own error")


def _grown(rows: np.ndarray, values: np.ndarray, asked: np.ndarray, seed: int) -> np.ndarray:
    """Predictions, float64, for the rows ``asked`` by trees trained on the (P,) ``values`` of ``rows``."""
    columns = np.flatnonzero(np.ptp(rows, axis=0) > 0)
    trees = xgboost.train({**GROWING, "seed": seed}, xgboost.QuantileDMatrix(rows[:, columns], values), TREES)
    return trees.inplace_predict(asked[:, columns]).astype(np.float64)

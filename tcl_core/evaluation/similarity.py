"""Similarity of two platforms' program orders, from the few programs that both measured."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tcl_core.evaluation.metrics import pairwise_accuracy
from tcl_core.features.batches import rows_by_task

UNKNOWN = 16  # pseudo-pairs, half of them ordered alike, that shrink a share from few pairs towards 1/2


def agreement(sources_s: Mapping[str, np.ndarray], target_s: np.ndarray, tasks: np.ndarray) -> dict[str, float]:
    """Source -> share of pairs it orders as the target does, of programs that both ran, mean over tasks; nearest first.

    ``UNKNOWN`` more pairs, half of them ordered alike, shrink the share towards 1/2, so that a source that shares two programs
    with the target does not beat one that agrees on most of hundreds of pairs.  0.5, no information, if no task has a pair.
    """
    found = {}
    for name, source_s in sources_s.items():
        both = np.isfinite(source_s) & np.isfinite(target_s)
        share = pairwise_accuracy(-np.log(source_s[both]), target_s[both], tasks[both]) if both.any() else np.nan
        pairs = sum(len(rows) * (len(rows) - 1) / 2 for rows in rows_by_task(tasks[both]))
        found[name] = 0.5 if np.isnan(share) else (share * pairs + 0.5 * UNKNOWN) / (pairs + UNKNOWN)
    return dict(sorted(found.items(), key=lambda one: -one[1]))

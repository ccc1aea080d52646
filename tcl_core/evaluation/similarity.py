"""How alike two platforms order programs, told by the few that both measured."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tcl_core.evaluation.metrics import pairwise_accuracy
from tcl_core.features.batches import rows_by_task

UNKNOWN = 16  # pairs that say nothing, beside which what a few say is weighed


def agreement(sources_s: Mapping[str, np.ndarray], target_s: np.ndarray, tasks: np.ndarray) -> dict[str, float]:
    """Source -> share of pairs that it orders as the target does, of programs that both measured; nearest first.

    Half of ``UNKNOWN`` more pairs count as ordered alike: a source that shares two programs with the target is no nearer than one that
    orders hundreds of pairs nearly as it does.  0.5, which says nothing, where no task has two of them.
    """
    found = {}
    for name, source_s in sources_s.items():
        both = np.isfinite(source_s) & np.isfinite(target_s)
        share = pairwise_accuracy(-np.log(source_s[both]), target_s[both], tasks[both]) if both.any() else np.nan
        pairs = sum(len(rows) * (len(rows) - 1) / 2 for rows in rows_by_task(tasks[both]))
        found[name] = 0.5 if np.isnan(share) else (share * pairs + 0.5 * UNKNOWN) / (pairs + UNKNOWN)
    return dict(sorted(found.items(), key=lambda one: -one[1]))

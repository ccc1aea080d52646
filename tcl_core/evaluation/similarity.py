"""How alike two platforms order programs, told by the few that both measured."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tcl_core.evaluation.metrics import pairwise_accuracy


def agreement(sources_s: Mapping[str, np.ndarray], target_s: np.ndarray, tasks: np.ndarray) -> dict[str, float]:
    """Source -> share of pairs that it orders as the target does, of programs that both measured; best first.

    0.5, which says nothing, where no task has two of them.
    """
    found = {}
    for name, source_s in sources_s.items():
        both = np.isfinite(source_s) & np.isfinite(target_s)
        pairs = pairwise_accuracy(-np.log(source_s[both]), target_s[both], tasks[both]) if both.any() else np.nan
        found[name] = 0.5 if np.isnan(pairs) else pairs
    return dict(sorted(found.items(), key=lambda one: -one[1]))

"""The baseline sampler: programs drawn uniformly from the whole pool."""

from __future__ import annotations

import numpy as np

from tcl_core.sampling.pool import Pool


def pick(pool: Pool, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Row numbers in picking order; ignores operator types and predictions."""
    return rng.permutation(len(pool))[:budget]

"""The sampler that every other has to beat: programs drawn evenly from the whole pool."""

from __future__ import annotations

import numpy as np

from tcl_core.sampling.pool import Pool


def pick(pool: Pool, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Row numbers in picking order, without regard to operator types or predictions."""
    return rng.permutation(len(pool))[:budget]

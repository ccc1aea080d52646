"""How much the outputs of a network or a program differ from those of its reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

FILL = 1e4  # magnitude from which on an element that both arrays have alike is taken for a fill value


def difference(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference over a network's outputs (``of_array``); inf where their number differs."""
    if len(found) != len(expected):
        return math.inf
    return max(map(of_array, found, expected), default=0.0)


def of_array(found: np.ndarray, expected: np.ndarray, equal_nan: bool = False) -> float:
    """Largest absolute difference, relative to the expected array's largest magnitude; of integers and booleans the share that differs.

    Fill values (``FILL``) do not count for that magnitude: masked logits are often -1e9 or the lowest float, beside which all other
    elements would seem right.  inf where shapes differ, or a value that is not finite is not the same in both.
    """
    if found.shape != expected.shape:
        return math.inf
    if expected.dtype.kind != "f":
        return float(np.mean(found != expected)) if expected.size else 0.0
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan) or not np.isfinite(found[finite]).all():
        return math.inf
    found, expected = found[finite].astype(np.float64), expected[finite].astype(np.float64)
    magnitude = np.abs(expected)
    counts = (magnitude < FILL) | (found != expected)
    return float(np.abs(found - expected).max(initial=0.0) / max(magnitude[counts].max(initial=0.0), 1e-30))

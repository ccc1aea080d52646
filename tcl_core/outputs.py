"""How much the outputs of a network or a program differ from those of its reference."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

# Elements from FILLED on are fill values where all others are below OTHERS: masked logits are -1e9, the lowest float, or as logits - 10,000.
FILLED, OTHERS = 5e3, 5e2


def difference(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference over a network's outputs (``of_array``); inf where their number differs."""
    if len(found) != len(expected):
        return math.inf
    return max(map(of_array, found, expected), default=0.0)


def of_array(found: np.ndarray, expected: np.ndarray, equal_nan: bool = False) -> float:
    """Largest absolute difference, relative to the expected array's largest magnitude; of integers and booleans the share that differs.

    Fill values are compared each with its own magnitude, and the others without them, since beside -1e9 anything would seem right.
    inf where shapes differ, or a value that is not finite is not the same in both.
    """
    if found.shape != expected.shape:
        return math.inf
    if expected.dtype.kind != "f":
        return float(np.mean(found != expected)) if expected.size else 0.0
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite], equal_nan) or not np.isfinite(found[finite]).all():
        return math.inf
    found, expected = found[finite].astype(np.float64), expected[finite].astype(np.float64)
    error, magnitude = np.abs(found - expected), np.abs(expected)
    filled = magnitude >= FILLED
    if not filled.any() or magnitude[~filled].max(initial=0.0) >= OTHERS:
        return _relative(error, magnitude)
    return max(_relative(error[~filled], magnitude[~filled]), float((error[filled] / magnitude[filled]).max()))


def _relative(error: np.ndarray, magnitude: np.ndarray) -> float:
    return float(error.max(initial=0.0) / max(magnitude.max(initial=0.0), 1e-30))

"""Statistics of a program's tokens: one fixed-width vector per program, for models that read no sequences."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from tcl_core.features.layout import ANNOTATE, HARDWARE, KINDS, NUMBERS, kinds_of, numbers_of
from tcl_core.features.tokens import REACHING
from tcl_core.platforms.hardware import Hardware

COUNTED = [number for number, kind in enumerate(KINDS) if kind not in ("workload", "hardware")]
PER_KIND = 1 + 3 * NUMBERS
THREADS = [field.name for field in fields(Hardware)].index("threads")
STATISTICS = len(COUNTED) * PER_KIND


def action_statistics(tokens: np.ndarray) -> np.ndarray:
    """(N, STATISTICS) float32 of (N, L, F) tokens: per kind of action, and for the tiling levels that the actions make,
    the number of rows and the sum, maximum and minimum of each number; zeros for a kind without rows.

    Programs of a sketch have the same kinds in the same order, so they are counted together.
    """
    kinds, numbers = kinds_of(tokens), numbers_of(tokens)
    found = np.zeros((len(tokens), len(COUNTED), PER_KIND), dtype=np.float32)
    orders, member = np.unique(np.where(kinds.any(2), kinds.argmax(2), -1), axis=0, return_inverse=True)
    for number, order in enumerate(orders):
        rows = np.flatnonzero(member == number)
        for place, kind in enumerate(COUNTED):
            mine = numbers[np.ix_(rows, np.flatnonzero(order == kind))]
            if mine.shape[1]:
                parts = [np.full((len(rows), 1), mine.shape[1]), mine.sum(1), mine.max(1), mine.min(1)]
                found[rows, place] = np.concatenate(parts, axis=1)
    return found.reshape(len(tokens), STATISTICS)


def annotation_reaches(tokens: np.ndarray) -> np.ndarray:
    """(N, 4) float32 of (N, L, F) tokens: iterations that run in parallel, that make a vector and that are unrolled, as log2(1 + x),
    which ``action_statistics`` sums; and how many times as long as if evenly divided the parallel ones take on the CPU's threads.
    """
    numbers = numbers_of(tokens) * kinds_of(tokens)[..., KINDS.index("Annotate"), None]
    first = ANNOTATE.key.start
    reaches = (numbers[..., first : first + len(REACHING)] * numbers[..., ANNOTATE.reach]).max(axis=1, initial=0.0)
    threads = np.maximum(np.rint(np.exp2(hardware_numbers(tokens)[:, HARDWARE.fields][:, THREADS])) - 1.0, 1.0)
    parallel = np.maximum(np.rint(np.exp2(reaches[:, 0])) - 1.0, 1.0)
    uneven = np.ceil(parallel / threads) * threads / parallel
    return np.concatenate([reaches, uneven[:, None]], axis=1).astype(np.float32)


def hardware_numbers(tokens: np.ndarray) -> np.ndarray:
    """(N, NUMBERS) the numbers of each program's hardware row; zeros where it has none."""
    mine = tokens[..., KINDS.index("hardware"), None]
    return (numbers_of(tokens) * mine).sum(1).reshape(len(tokens), NUMBERS)

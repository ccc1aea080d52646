"""Samplers by name; ``sampler_names`` lists them, each imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np

from tcl_core.errors import unknown_name
from tcl_core.sampler_names import SAMPLERS
from tcl_core.sampling.pool import Pool

Sampler = Callable[[Pool, int, np.random.Generator], np.ndarray]


def named(sampler: str) -> Sampler:
    """A sampler by name.  Raises UsageError that names the nearest known one."""
    if sampler not in SAMPLERS:
        raise unknown_name("sampler", sampler, SAMPLERS, "collect.sampler of params.yaml")
    module, _, function = SAMPLERS[sampler].partition(":")
    return getattr(importlib.import_module(module), function)


def pick(
    sampler: str,
    predictions: np.ndarray,
    operator_types: np.ndarray,
    labelled_predictions: np.ndarray,
    budget: int,
    *,
    tasks: np.ndarray | None = None,
    labelled_tasks: np.ndarray | None = None,
    rng: np.random.Generator,
) -> np.ndarray:
    """Select which of the N unlabelled programs to measure: min(budget, N) row numbers in picking order.

    Shapes as in ``Pool``.  A ranking model's raw outputs compare only within a task; if the pool has several tasks, pass
    scores that compare across tasks (for instance scaled within each task).

    Raises UsageError for an unknown sampler, ValueError for misaligned arrays, a negative budget or tasks that the sampler
    needs and are missing, DataError for non-finite predictions.
    """
    choose = named(sampler)
    if budget < 0:
        raise ValueError(f"the budget is {budget} programs; it cannot be negative")
    pool = Pool(np.asarray(predictions), np.asarray(operator_types), np.asarray(labelled_predictions), tasks, labelled_tasks)
    return choose(pool, budget, rng)

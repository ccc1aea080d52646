"""Training batches of whole tasks, so that one step can compare every pair of a task's programs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples, rows_by_task

log = logging.getLogger(__name__)

COMPARED = 2048  # most programs of a task compared at once outside training steps; memory grows with their square


@dataclass(frozen=True)
class Batch:
    """B programs of T tasks as tensors.

    number   index of the batch in its grouping; it identifies the same programs while the grouping is kept
    features (B, L, F) float32, cut to the longest program of the batch
    lengths  (B,) int64
    labels   (T, P) float32 scores of the programs, 0 in the padding
    index    (T, P) int64 row of each program in ``features``, 0 in the padding
    mask     (T, P) bool, false in the padding
    tasks    (T,) task numbers in the data set
    rows     (B,) rows of the programs in the data set
    """

    number: int
    features: Tensor
    lengths: Tensor
    labels: Tensor
    index: Tensor
    mask: Tensor
    tasks: np.ndarray
    rows: np.ndarray

    def by_task(self, values: Tensor) -> Tensor:
        """(B,) values of programs -> (T, P); the padding repeats the batch's first program and must be masked."""
        return values[self.index]


def any_usable(samples: Samples) -> bool:
    """Whether any task has at least two programs, at least one of which ran."""
    return any(_usable(samples, rows) for rows in rows_by_task(samples.tasks))


def _usable(samples: Samples, rows: np.ndarray) -> bool:
    return len(rows) >= 2 and bool(np.isfinite(samples.latencies_s[rows]).any())


def usable_tasks(samples: Samples) -> list[np.ndarray]:
    """Rows of each task with at least two programs, at least one of which ran; drops other tasks and logs how many.

    Raises DataError when no task is left, a feature is not finite, or a latency is not positive.
    """
    check_features(samples)
    check_latencies(samples)
    groups = list(rows_by_task(samples.tasks))
    kept = [rows for rows in groups if _usable(samples, rows)]
    if not kept:
        raise DataError(f"none of the {len(groups)} tasks has two measured programs to compare, one of which ran; collect more records.")
    if len(kept) < len(groups):
        lone = next(rows for rows in groups if not _usable(samples, rows))
        log.info(
            "%d of %d tasks have fewer than two programs, or none that ran, and are left out, e.g. '%s'",
            len(groups) - len(kept),
            len(groups),
            samples.task_name(int(samples.tasks[lone[0]])),
        )
    return kept


def check_features(samples: Samples) -> None:
    """Raise DataError, naming the task of the first program, if any feature is not finite."""
    _refuse(
        samples,
        ~np.isfinite(samples.features).all(axis=(1, 2)),
        "a feature that is not finite; make its features",
    )


def check_latencies(samples: Samples) -> None:
    """Raise DataError, naming the task of the first, if any latency is NaN or not positive (a failed program has inf)."""
    _refuse(samples, ~(samples.latencies_s > 0), "a latency that is not positive; make its records")


def _refuse(samples: Samples, bad: np.ndarray, what: str) -> None:
    if bad.any():
        task = samples.task_name(int(samples.tasks[bad.argmax()]))
        raise DataError(f"a program of task '{task}' has {what} again.")


def group_tasks(groups: Sequence[np.ndarray], batch_size: int, rng: np.random.Generator) -> list[list[np.ndarray]]:
    """Shuffled batches of whole tasks, up to ``batch_size`` programs each; larger tasks are split."""
    parts = [part for rows in groups for part in np.array_split(rng.permutation(rows), -(-len(rows) // batch_size))]
    batches, room = [], 0
    for i in rng.permutation(len(parts)):
        if not batches or len(parts[i]) > room:
            batches.append([])
            room = batch_size
        batches[-1].append(parts[i])
        room -= len(parts[i])
    return batches


def in_parts(rows: np.ndarray) -> list[np.ndarray]:
    """A task's rows, split into parts of up to ``COMPARED`` if there are more; the random split is the same each time."""
    count = -(-len(rows) // COMPARED)
    return [rows] if count == 1 else np.array_split(np.random.default_rng(len(rows)).permutation(rows), count)


def make_batch(
    samples: Samples,
    scores: np.ndarray,
    parts: Sequence[np.ndarray],
    number: int = 0,
    device: torch.device | str = "cpu",
) -> Batch:
    """The programs at ``parts`` (rows of one task each) as tensors; ``scores`` (N,) label the programs of ``samples``."""
    rows = np.concatenate(parts)
    lengths = samples.lengths[rows].astype(np.int64)
    features = samples.features[rows, : max(int(lengths.max()), 1)].astype(np.float32, copy=False)
    sizes = np.array([len(part) for part in parts])
    mask = np.arange(sizes.max()) < sizes[:, None]
    index = np.zeros(mask.shape, dtype=np.int64)
    index[mask] = np.arange(len(rows))
    labels = np.where(mask, scores[rows][index], 0.0).astype(np.float32)
    tensors = (torch.from_numpy(array).to(device) for array in (features, lengths, labels, index, mask))
    return Batch(number, *tensors, tasks=samples.tasks[[part[0] for part in parts]], rows=rows)


def batches_in_order(
    samples: Samples, groups: Sequence[np.ndarray], batch_size: int, device: torch.device | str = "cpu"
) -> Iterator[Batch]:
    """Batches of whole tasks in the order of ``groups``, for validation; very large tasks are split (``in_parts``)."""
    scores, waiting = samples.scores, []
    for rows in (part for group in groups for part in in_parts(group)):
        if waiting and sum(map(len, waiting)) + len(rows) > batch_size:
            yield make_batch(samples, scores, waiting, device=device)
            waiting = []
        waiting.append(rows)
    yield make_batch(samples, scores, waiting, device=device)

"""Samples: measured programs as arrays, the one form in which models see them.

Knows nothing of TVM, of files or of models.  Everything is aligned on the first axis, N programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from tcl_core.errors import DataError, UsageError


@dataclass(frozen=True)
class Samples:
    """N programs, their labels and their grouping.

    features     (N, L, F) float32, what a model reads of each program, row by row; rows from ``lengths`` on are zero
    lengths      (N,) int32, rows of ``features`` in use
    tasks        (N,) int32, the ranking group: programs are only ever compared within one task
    latencies_s  (N,) float64, median measured latency in seconds; inf where the program failed
    task_names   task index -> readable name, for error messages and reports
    states       (N,) objects or None: the real states of the programs whose schedules were replayed
                 (``features.states.Trajectory``), None for the others; only training a world model reads them
    holds        what the rows are: "tokens" of the schedule, its hardware and its workload (``features.encode``),
                 "per-store features" of the lowered program (``features.per_store``), or what a model derives from either for
                 one of its parts.  A model that reads another kind refuses them
    """

    features: np.ndarray
    lengths: np.ndarray
    tasks: np.ndarray
    latencies_s: np.ndarray
    task_names: tuple[str, ...] = ()
    states: np.ndarray | None = None
    holds: str = "tokens"

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def scores(self) -> np.ndarray:
        """(N,) float32 in [0, 1]: fastest latency of the task / own latency; 0 where the program failed."""
        return latency_scores(self.latencies_s, self.tasks)

    def take(self, index: np.ndarray | slice) -> Samples:
        """The programs at ``index`` (integers or a mask, or a slice: views); task numbering is kept."""
        aligned = {name: getattr(self, name) for name in ALIGNED}
        return replace(self, **{name: array if array is None else array[index] for name, array in aligned.items()})

    def task_name(self, task: int) -> str:
        return self.task_names[task] if 0 <= task < len(self.task_names) else f"task {task}"


ALIGNED = tuple(f.name for f in fields(Samples) if f.name not in ("task_names", "holds"))


def latency_scores(latencies_s: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """(fastest latency of the task) / latency, (N,) float32; 0 for a failed program (latency inf)."""
    scores = np.zeros(len(tasks), dtype=np.float32)
    for rows in rows_by_task(tasks):
        fastest = latencies_s[rows].min()
        if np.isfinite(fastest):
            scores[rows] = fastest / latencies_s[rows]
    return scores


def slowest_where_failed(latencies_s: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """(N,) latencies with failed programs (inf) given their task's slowest one; inf stays where none of the task ran.

    Regression leaves out programs without a label, so it would go on ranking programs like them as fast.
    """
    found = latencies_s.copy()
    for rows in rows_by_task(tasks):
        ran = np.isfinite(latencies_s[rows])
        if ran.any():
            found[rows[latencies_s[rows] == np.inf]] = latencies_s[rows[ran]].max()
    return found


def rows_by_task(tasks: np.ndarray) -> Iterator[np.ndarray]:
    """Row numbers of each task that occurs, in ascending task order."""
    order = np.argsort(tasks, kind="stable")
    bounds = np.flatnonzero(np.diff(tasks[order])) + 1
    return (rows for rows in np.split(order, bounds) if len(rows))


def concatenate(parts: Sequence[Samples]) -> Samples:
    """Stack parts that share one task numbering; shorter programs are padded with zero rows.

    Raises ValueError where the parts' rows are of different kinds or widths, UsageError where the task names show that each part
    numbers its tasks for itself, as two logs do.
    """
    holds = {p.holds for p in parts}
    if len(holds) > 1:
        raise ValueError(f"samples of {' and of '.join(sorted(holds))} cannot be put together")
    names = max((p.task_names for p in parts), key=len)
    if any(p.task_names != names[: len(p.task_names)] for p in parts):
        raise UsageError("samples that number their tasks each for itself cannot be put together; read them in one project (tcl import)")
    (width,) = {p.features.shape[2] for p in parts}
    shape = sum(map(len, parts)), max(p.features.shape[1] for p in parts), width
    features = np.zeros(shape, np.result_type(*{p.features.dtype for p in parts}))  # the largest array by far: no second copy of it
    for part, rows in zip(parts, np.split(features, np.cumsum([len(p) for p in parts])[:-1]), strict=True):
        rows[:, : part.features.shape[1]] = part.features
    return Samples(
        features=features,
        lengths=np.concatenate([p.lengths for p in parts]),
        tasks=np.concatenate([p.tasks for p in parts]),
        latencies_s=np.concatenate([p.latencies_s for p in parts]),
        task_names=names,
        states=_concatenated([p.states for p in parts]),
        holds=parts[0].holds,
    )


def _concatenated(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """Concatenate an optional field; None unless every part has it."""
    return None if any(part is None for part in parts) else np.concatenate(parts)


def scaled_within_task(predictions: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """(N,) predictions scaled to [0, 1] within each task; 0.5 where all predictions of a task are equal.

    Raises DataError for predictions that are not finite: a model that diverged must not select.
    """
    scaled = np.full(len(predictions), 0.5)
    for rows in rows_by_task(tasks):
        if not np.isfinite(predictions[rows]).all():
            raise DataError("the sampler's model predicts values that are not finite; train it with a lower learning rate")
        low, width = predictions[rows].min(), np.ptp(predictions[rows])
        if width > 0:
            scaled[rows] = (predictions[rows] - low) / width
    return scaled

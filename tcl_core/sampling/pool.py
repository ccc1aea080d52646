"""The unlabelled programs of one round, as a sampler sees them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tcl_core.errors import DataError


@dataclass(frozen=True)
class Pool:
    """N unlabelled programs and the M labelled ones they are compared with.

    predictions           (N,) model scores, higher is better
    operator_types        (N,) names or numbers
    labelled_predictions  (M,) scores by the same model
    tasks                 (N,) task numbers; labelled_tasks (M,) likewise

    Raises ValueError for arrays of other lengths, DataError for non-finite predictions.
    """

    predictions: np.ndarray
    operator_types: np.ndarray
    labelled_predictions: np.ndarray
    tasks: np.ndarray | None = None
    labelled_tasks: np.ndarray | None = None

    def __post_init__(self) -> None:
        rows_of = dict.fromkeys(("operator_types", "tasks"), len(self))
        rows_of["labelled_tasks"] = len(self.labelled_predictions)
        for name, rows in rows_of.items():
            values = getattr(self, name)
            if values is not None and len(values) != rows:
                raise ValueError(f"{name} has {len(values)} rows where there are {rows} programs")
        for name in ("predictions", "labelled_predictions"):
            if not np.isfinite(getattr(self, name)).all():
                raise DataError(f"the model's {name} are not all finite numbers; train it with a lower learning rate")

    def __len__(self) -> int:
        return len(self.predictions)

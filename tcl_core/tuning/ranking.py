"""Ranks the programs of one task by a trained model, corrected by the measurements of the task.

For searches other than TCL's: they bring their own programs, and ask for one number each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tcl_core.features.batches import Samples
from tcl_core.models.cost_model import CostModel
from tcl_core.tuning.belief import Belief, Points, Scale, gains_of, joined, worth_learning
from tcl_core.tuning.schedules import views_of


class TaskRanking:
    """The ``belief`` about the programs of one task; the first programs that it meets set the scale."""

    def __init__(self, model: CostModel) -> None:
        self._model = model
        self._scale: Scale | None = None
        self._measured: list[Points] = []
        self._latencies_s: list[float] = []
        self._belief: Belief | None = None  # reset by each measurement

    def speeds(self, samples: Samples) -> np.ndarray:
        """(N,) float64 expected speeds of the programs, above 0, in a unit of the task's own: comparable within the task only.

        Without measurements they rise with the model's scores.
        """
        points = self._points(samples)
        self._belief = self._belief or self._learned()
        return np.exp(self._belief.of(points)[0])

    def tell(self, samples: Samples, latencies_s: Sequence[float]) -> None:
        """Remember N measured programs and their latencies, inf for a program that failed."""
        self._measured.append(self._points(samples))
        self._latencies_s += latencies_s
        self._belief = None

    def _points(self, samples: Samples) -> Points:
        views = views_of(self._model, samples)
        self._scale = self._scale or Scale(views)
        return self._scale(views)

    def _learned(self) -> Belief:
        rows = worth_learning(self._latencies_s)
        known = joined(self._measured)
        return Belief(known.take(rows) if len(rows) else known, gains_of(self._latencies_s)[rows])

"""The smallest cost model: a random order, the baseline that any model must beat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from tcl_core.features.batches import Samples
from tcl_core.learning.fit_settings import FitSettings
from tcl_core.models.cost_model import CostModel, read_description, whole_model, write_description

if TYPE_CHECKING:
    from tcl_core.learning.fit import OnEpoch


class RandomScores(CostModel):
    """Uniform scores drawn from the settings' seed, for rows of any kind; learns nothing.  The n-th program of every call gets
    the same score.
    """

    name = "random"

    def fit(
        self,
        train: Samples,
        valid: Samples | None = None,
        on_epoch: OnEpoch | None = None,
        *,
        sources: Sequence[Samples] = (),
        checkpoint: Path | None = None,
    ) -> Self:
        """Return the model unchanged."""
        return self

    def predict(self, samples: Samples) -> np.ndarray:
        """(N,) float32 in [0, 1)."""
        return np.random.default_rng(self.settings.seed).random(len(samples), dtype=np.float32)

    def save(self, folder: Path) -> None:
        """Write ``model.json``; there are no weights."""
        with whole_model(folder) as aside:
            write_description(aside, {"class": self.name, "arguments": {"seed": self.settings.seed}})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote.  Raises DataError when the folder is missing or damaged."""
        return cls(FitSettings(seed=read_description(folder)["arguments"]["seed"]))

"""The world model as a cost model (arXiv 2606.09312): trees rank programs by the predicted state their schedule ends in.

    tokens -> latent state after the last action (``world_dynamics``) -+
    tokens -> statistics of the actions                               -+-> boosted trees -> score
    tokens -> hardware row                                            -+

Training uses real intermediate states of some replayed schedules (``features.states``).  It trains an encoder to tell
those states apart, then the dynamics to predict them from the actions alone, and finally grows the trees on predicted
states.  Predicting reads only tokens: no program is built.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from tcl_core.errors import UsageError
from tcl_core.features.action_statistics import STATISTICS, action_statistics, hardware_numbers
from tcl_core.features.batches import Samples
from tcl_core.features.layout import NUMBERS, WIDTH
from tcl_core.features.states import STATE_WIDTH
from tcl_core.learning.batches_by_task import usable_tasks
from tcl_core.learning.fit import FitReport, FitSettings, OnEpoch, fit_network
from tcl_core.models.cost_model import RANKER
from tcl_core.models.torch_model import TorchCostModel
from tcl_core.models.trees import BoostedTrees
from tcl_core.models.world_dynamics import LATENT, Dynamics, StateEncoder, contrastive_loss
from tcl_core.models.world_states import RealStates

# Largest batches of the two networks: there are only thousands of states, so batches must be small to give many steps.
STATES_PER_BATCH = 512
PROGRAMS_PER_BATCH = 16


SETTINGS = FitSettings(epochs=30)
"""30 epochs for each network, and 300 trees."""


class World(nn.Module):
    """State encoder and dynamics; only the dynamics are needed to predict."""

    EMBEDDING = LATENT

    def __init__(self, features: int, states: int = STATE_WIDTH) -> None:
        super().__init__()
        self.arguments = {"features": features, "states": states}
        self.state_encoder = StateEncoder(states)
        self.dynamics = Dynamics(features)

    def embed(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, LATENT) predicted latent state that each schedule ends in."""
        return self.dynamics(tokens, lengths)


class Ranker(BoostedTrees):
    """Boosted trees over the rows of ``WorldModel.describe``."""

    name = "world-ranker"
    reads = "descriptions"
    features = LATENT + STATISTICS + NUMBERS

    @staticmethod
    def rows(samples: Samples) -> tuple[np.ndarray, np.ndarray]:
        return samples.features[:, 0], np.arange(len(samples))


class WorldModel(TorchCostModel):
    """Trees on [terminal state, action statistics, hardware].  ``fit`` needs samples with states."""

    name = "world-model"
    build = World
    needs_states = True

    ranker: Ranker | None = None

    def __init__(self, settings: FitSettings = SETTINGS, device: str = "cpu") -> None:
        super().__init__(settings, device)

    def fit(
        self,
        train: Samples,
        valid: Samples | None = None,
        on_epoch: OnEpoch | None = None,
        *,
        sources: Sequence[Samples] = (),
        checkpoint: Path | None = None,
    ) -> Self:
        """Train the state encoder, then the dynamics, ``settings.epochs`` each, then grow the ranking trees.

        A second call trains the networks further and grows new trees, since the old ones were grown on other states.
        ``on_epoch`` is called after each epoch of the dynamics, which resume from ``checkpoint`` after an interruption;
        ``valid`` decides how many trees are kept.  Raises DataError when no program of ``train`` has states.
        """
        self.check_rows(train)
        usable_tasks(train)  # raises on non-finite values before any training
        real = RealStates.of(train)
        if self.network is None:
            self.network = self._seeded(WIDTH)
            self.network.state_encoder.standardise(torch.from_numpy(real.distinct))
        self._check_features(train)
        self.network.to(self.device)
        self._learn_states(real)
        report = self._learn_transition(real, on_epoch, checkpoint)
        self.ranker = Ranker(self.settings)
        self.ranker.fit(self.describe(train), self.describe(valid) if valid is not None else None)
        self.report = replace(report, programs=self.ranker.report.programs, tasks=self.ranker.report.tasks)
        return self

    def _learn_states(self, real: RealStates) -> None:
        """Train the state encoder to recognise each real state in a corrupted view."""
        generator = torch.Generator(self.device).manual_seed(self.settings.seed)
        fit_network(
            self.network.state_encoder,
            real.as_samples(),
            settings=replace(self.settings, batch_size=min(STATES_PER_BATCH, self.settings.batch_size)),
            loss=lambda encoder, batch: contrastive_loss(encoder, batch.features[:, 0], generator),
        )

    def _learn_transition(self, real: RealStates, on_epoch: OnEpoch | None, checkpoint: Path | None) -> FitReport:
        """Train the dynamics to predict the real states' latents; the encoder stays fixed."""
        with torch.no_grad():
            places = self.network.state_encoder.encode(torch.from_numpy(real.distinct).to(self.device))
        return fit_network(
            self.network.dynamics,
            real.samples,
            settings=replace(self.settings, batch_size=min(PROGRAMS_PER_BATCH, self.settings.batch_size)),
            loss=lambda dynamics, batch: real.loss(dynamics, batch, places),
            on_epoch=on_epoch,
            checkpoint=checkpoint,
            identity=f"{self.name} {zlib.crc32(real.distinct.tobytes())}",
        )

    def predict(self, samples: Samples) -> np.ndarray:
        """(N,) float32 scores, higher is better within a task; raises as ``TorchCostModel.predict``."""
        return self._trained_ranker().predict(self.describe(samples))

    def describe(self, samples: Samples) -> Samples:
        """The samples as the trees read them, one row per program instead of tokens: terminal state, statistics, hardware."""
        tokens, ones = samples.features, np.ones(len(samples), dtype=np.int32)
        rows = np.concatenate([self.embed(samples), action_statistics(tokens), hardware_numbers(tokens)], axis=1)
        return replace(samples, features=rows[:, None], lengths=ones, states=None, holds=Ranker.reads)

    def _trained_ranker(self) -> Ranker:
        if self.ranker is None:
            raise UsageError(f"the {self.name} model has not learned anything yet; fit or load it first.")
        return self.ranker

    def parameter_count(self) -> int:
        """Parameters of the dynamics plus nodes of the ranker's trees; the state encoder is not needed to predict."""
        if self.network is None or self.ranker is None:
            return 0
        return sum(p.numel() for p in self.network.dynamics.parameters()) + self.ranker.parameter_count()

    def write_into(self, folder: Path) -> None:
        """Write the networks' two files and the trees' folder into an existing folder."""
        ranker = self._trained_ranker()
        super().write_into(folder)
        ranker.save(folder / RANKER)

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> Self:
        """Read what ``save`` wrote.  Raises DataError for a missing or damaged folder, or another class."""
        model = super().load(folder, device)
        model.ranker = Ranker.load(Path(folder) / RANKER)
        return model

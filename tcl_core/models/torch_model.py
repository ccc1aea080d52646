"""Base class of the torch cost models: training by the shared loop, chunked prediction, saving and loading.

A subclass sets a name and a network class.  The network's constructor takes ``features`` and stores all its
arguments in ``arguments``.  Calling it maps (B, L, F) features and (B,) lengths to (B,) scores; ``embed`` maps
them to (B, EMBEDDING), and ``score_and_embed``, which is optional, to both, (B, 1 + EMBEDDING).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from tcl_core.errors import DataError, UsageError
from tcl_core.features.batches import Samples, slowest_where_failed
from tcl_core.learning.batches_by_task import check_features
from tcl_core.learning.fit import FitReport, FitSettings, OnEpoch, fit_network
from tcl_core.locks import ThreadLock
from tcl_core.models.cost_model import CostModel, read_model, whole_model, write_model
from tcl_core.models.torch_threads import torch_threads

CHUNK = 512  # most programs per forward pass of predict
LEAST = 64  # fewest programs per chunk that are worth a separate pass in another thread
SEEDING = ThreadLock()  # torch's random state is global, and members of an ensemble may start concurrently


class TorchCostModel(CostModel):
    """A cost model around one network, which the first ``fit`` builds for the features' width."""

    build: ClassVar[Callable[..., nn.Module]]

    def __init__(self, settings: FitSettings = FitSettings(), device: str = "cpu") -> None:
        super().__init__(settings)
        self.device = device
        self.network: nn.Module | None = None
        self.report: FitReport | None = None

    def fit(
        self,
        train: Samples,
        valid: Samples | None = None,
        on_epoch: OnEpoch | None = None,
        *,
        sources: Sequence[Samples] = (),
        checkpoint: Path | None = None,
    ) -> Self:
        """Train with the loss of ``settings`` (``learning.fit.fit_network``) and return the model; a second call continues
        training.  To regression a failed program is as slow as its task's slowest one.
        """
        self.check_rows(train)
        if self.network is None:
            self.network = self._start(train)
        self._check_features(train)
        self.network.to(self.device)
        if self.settings.loss == "scores":
            train = replace(train, latencies_s=slowest_where_failed(train.latencies_s, train.tasks))
        self.report = fit_network(self.network, train, valid, self.settings, on_epoch=on_epoch, checkpoint=checkpoint)
        return self

    def _start(self, train: Samples) -> nn.Module:
        """The initial network for the first ``fit``."""
        return self._seeded(train.features.shape[2])

    def _seeded(self, features: int, **arguments: int) -> nn.Module:
        """A fresh network whose weights depend only on the seed; leaves torch's global random state unchanged."""
        with SEEDING, torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.settings.seed)  # torch.manual_seed would seed a caller's GPUs too
            return type(self).build(features=features, **arguments)

    def predict(self, samples: Samples) -> np.ndarray:
        """(N,) float32 scores, higher is better within a task.

        Raises UsageError before the first fit, DataError for rows of another kind or width, or non-finite ones.
        """
        self._check_ready(samples)
        return self._in_chunks(samples, self.network.forward, np.empty(len(samples), dtype=np.float32))

    def embed(self, samples: Samples) -> np.ndarray:
        """(N, E) float32 activations of the last hidden layer; raises as ``predict``."""
        self._check_ready(samples)
        return self._in_chunks(samples, self.network.embed, np.empty((len(samples), self.network.EMBEDDING), np.float32))

    def predict_and_embed(self, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
        """As the base class, but in one pass if the network has ``score_and_embed``."""
        both = getattr(self.network, "score_and_embed", None)
        if both is None:
            return super().predict_and_embed(samples)
        self._check_ready(samples)
        found = self._in_chunks(samples, both, np.empty((len(samples), 1 + self.network.EMBEDDING), np.float32))
        return np.ascontiguousarray(found[:, 0]), np.ascontiguousarray(found[:, 1:])

    def _check_ready(self, samples: Samples) -> None:
        if self.network is None:
            raise UsageError(f"the {self.name} model has not learned anything yet; fit or load it first.")
        self._check_features(samples)
        check_features(samples)

    def _in_chunks(self, samples: Samples, function: Callable[[Tensor, Tensor], Tensor], values: np.ndarray) -> np.ndarray:
        """Fill and return ``values`` with ``function`` of all programs, in chunks of similar lengths.

        On a CPU each of torch's threads runs its own chunks: half of a pass is too small or too serial to be split.
        """
        equal = not len(samples) or np.ptp(samples.lengths) == 0
        by_length = None if equal else np.argsort(samples.lengths, kind="stable")
        if next(self.network.parameters()).device != torch.device(self.device):
            self.network.to(self.device)
        self.network.eval()
        threads = torch.get_num_threads() if torch.device(self.device).type == "cpu" else 1
        size = min(CHUNK, max(LEAST, math.ceil(len(samples) / threads)))

        def one(start: int) -> None:
            rows = slice(start, start + size)  # a view if all have the same length, else a copy
            rows = rows if by_length is None else by_length[rows]
            lengths = samples.lengths[rows].astype(np.int64)
            features = np.ascontiguousarray(samples.features[rows, : max(int(lengths.max()), 1)], dtype=np.float32)
            arrays = (torch.from_numpy(array).to(self.device) for array in (features, lengths))
            with torch.inference_mode():
                values[rows] = function(*arrays).cpu().numpy()

        starts = range(0, len(samples), size)
        list(torch_threads(threads).map(one, starts) if min(threads, len(starts)) > 1 else map(one, starts))
        return values

    def _check_features(self, samples: Samples) -> None:
        self.check_rows(samples)
        expected, found = self.network.arguments["features"], samples.features.shape[2]
        if expected != found:
            raise DataError(
                f"the {self.name} model reads {self.reads} of {expected} features, not of {found}; "
                "they were made by another version of the features: train the model again."
            )

    def parameter_count(self) -> int:
        """Number of the network's parameters, frozen ones included."""
        return 0 if self.network is None else sum(p.numel() for p in self.network.parameters())

    def save(self, folder: Path) -> None:
        """Write ``model.json`` and ``weights.safetensors``; the folder appears whole or not at all."""
        with whole_model(folder) as aside:
            self.write_into(aside)

    def write_into(self, folder: Path) -> None:
        """Write the model's two files into an existing folder, which may hold others."""
        if self.network is None:
            raise UsageError(f"the {self.name} model has not learned anything yet; there is nothing to save.")
        training = asdict(self.report) if self.report else {}
        write_model(
            folder,
            {
                "class": self.name,
                "arguments": self.network.arguments,
                "training": training,
                "settings": asdict(self.settings),
                "parameters": self.parameter_count(),
            },
            self.network.state_dict(),
        )

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> Self:
        """Read what ``save`` wrote.  Raises DataError for a missing or damaged folder, or another class."""
        facts, weights = read_model(folder, cls)
        try:
            model = cls(FitSettings(**facts.get("settings", {})), device)
            model.report = FitReport.told(facts.get("training", {}))
            model.network = cls.build(**facts["arguments"]).eval()
            model.network.load_state_dict(weights)
        except (RuntimeError, TypeError, AttributeError) as error:
            raise DataError(f"'{folder}' was saved by another version ({str(error).splitlines()[0]}); train the model again.") from None
        return model

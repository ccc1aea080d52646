"""TenSet's cost model (NeurIPS 2021), which TVM ships as its segment-sum MLP.

    stores (B, S, G) -> Linear 256, 256 (ReLU) -> sum over the stores -> two blocks x + ReLU(Linear(x))
    -> Linear 1 -> score (B,)

With TenSet's 174 features per store that is 242,433 parameters; with TVM's 172, 241,921.  As in the original, features
are divided by their largest values in the first training set.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcl_core.features.batches import Samples
from tcl_core.learning.batches_by_task import check_features
from tcl_core.learning.fit import FitSettings
from tcl_core.models.tlp import pool
from tcl_core.models.torch_model import TorchCostModel

SETTINGS = FitSettings(epochs=50, batch_size=512, weight_decay=1e-6)
"""How the public code trains: Adam at 7e-4, gradients clipped at 0.5."""


class TensetNetwork(nn.Module):
    """The MLP; the buffer ``largest`` (G,) scales its input and is not trained."""

    WIDTH = 256
    EMBEDDING = WIDTH

    def __init__(self, features: int) -> None:
        super().__init__()
        self.arguments = {"features": features}
        self.encoder = nn.ModuleList([nn.Linear(features, self.WIDTH), nn.Linear(self.WIDTH, self.WIDTH)])
        self.blocks = nn.ModuleList(nn.Linear(self.WIDTH, self.WIDTH) for _ in range(2))
        self.decoder = nn.Linear(self.WIDTH, 1)
        self.register_buffer("largest", torch.ones(features))

    def forward(self, stores: Tensor, counts: Tensor) -> Tensor:
        """(B,) scores of (B, S, G) stores; a program has the first ``counts`` (B,) of them."""
        return self.decoder(self.embed(stores, counts))[:, 0]

    def embed(self, stores: Tensor, counts: Tensor) -> Tensor:
        """(B, 256) output of the last block; the score is linear in it."""
        x = stores / self.largest
        for layer in self.encoder:
            x = F.relu(layer(x))
        x = pool(x, counts)
        for layer in self.blocks:
            x = x + F.relu(layer(x))
        return x


class TensetMlpModel(TorchCostModel):
    """TenSet-MLP on the per-store features of the lowered programs (``features.per_store``), trained with LambdaRank; the first
    ``fit`` also sets the scale of the features.
    """

    name = "tenset-mlp"
    build = TensetNetwork
    reads = "per-store features"

    def __init__(self, settings: FitSettings = SETTINGS, device: str = "cpu") -> None:
        super().__init__(settings, device)

    def _start(self, train: Samples) -> nn.Module:
        check_features(train)
        network = super()._start(train)
        network.largest.copy_(torch.from_numpy(largest_values(train.features)))
        return network


def largest_values(stores: np.ndarray) -> np.ndarray:
    """(G,) largest magnitude of each feature over (N, S, G) stores, 1 where a feature is always 0."""
    largest = np.abs(stores).max(axis=(0, 1), initial=0.0)
    return np.where(largest == 0, 1.0, largest).astype(np.float32)

"""The deployable model of a chained platform: active column, lateral adapters, and the frozen knowledge base.

Layer i of the active column (AC) also sees layer i - 1 of the frozen knowledge base (KB), as in progressive
networks (arXiv 2604.12891, section on continuous knowledge distillation):

    h_i = act( W_i h_{i-1} + alpha_i * ( U_i act( V_i hKB_{i-1} + c_i ) ) + b_i )        i = 2 ... 7

In the fourth layer W_i is the whole Mamba block with its norm and residual.  That layer and the last, the
score, have no outer act.  The first layer reads the tokens, which both columns share, and has no adapter.

Cost: predicting runs two Mamba columns and the adapters.  With 22 features that is 92,097 parameters for AC,
92,097 for KB and 33,473 for adapters of width 32: 217,667 in all, 2.4 times the plain model.  The paper's
92,097 is the size of one column only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcl_core.errors import UsageError
from tcl_core.features.batches import Samples
from tcl_core.learning.fit import FitSettings
from tcl_core.models.mamba import MambaNetwork, TokenBatch, pool
from tcl_core.models.torch_model import TorchCostModel


class Adapter(nn.Module):
    """alpha * (U act(V h + c)): maps a layer of KB to the next layer's width, through ``hidden`` units.

    alpha starts at 0: AC begins as the plain column it was initialised with, and learns how much of KB to use.
    """

    def __init__(self, base_width: int, hidden: int, width: int) -> None:
        super().__init__()
        self.V = nn.Linear(base_width, hidden)
        self.U = nn.Linear(hidden, width, bias=False)
        self.alpha = nn.Parameter(torch.zeros(width))

    def forward(self, base: Tensor) -> Tensor:
        return self.alpha * self.U(F.relu(self.V(base)))


class LateralMamba(nn.Module):
    """Two columns: ``base`` is frozen and only read, ``column`` and ``adapters`` learn."""

    EMBEDDING = MambaNetwork.EMBEDDING

    def __init__(self, column: MambaNetwork, base: MambaNetwork, adapter_width: int = 32) -> None:
        super().__init__()
        self.arguments = {**column.arguments, "adapter_width": adapter_width}
        self.column = column
        self.base = base.requires_grad_(False)
        widths = MambaNetwork.WIDTHS
        self.adapters = nn.ModuleList(Adapter(widths[i - 1], adapter_width, widths[i]) for i in range(1, len(widths)))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B,) scores of (B, L, F) tokens; only a program's first ``lengths`` (B,) tokens count."""
        batch = TokenBatch.of(tokens, lengths, self.column.last)
        return self.column.scored(pool(self.activations(batch)[-1], batch), tokens, lengths)[:, 0]

    def embed(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, 32) AC's last hidden layer, pooled like the score."""
        batch = TokenBatch.of(tokens, lengths, self.column.last)
        return pool(self.activations(batch)[-2], batch)

    def score_and_embed(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, 1 + 32) ``forward`` and ``embed`` in one pass."""
        batch = TokenBatch.of(tokens, lengths, self.column.last)
        *_, hidden, scores = self.activations(batch)
        return torch.cat([self.column.scored(pool(scores, batch), tokens, lengths), pool(hidden, batch)], dim=1)

    def activations(self, batch: TokenBatch) -> list[Tensor]:
        """Outputs of AC's seven layers, as in ``MambaNetwork.activations``."""
        with torch.no_grad():
            base = self.base.activations(batch)
        return self.column.activations(batch, self.lateral(base))

    def lateral(self, base: Sequence[Tensor]) -> list[Tensor | None]:
        """Input of each AC layer from KB's layers; None for the first."""
        return [None, *(adapter(h) for adapter, h in zip(self.adapters, base, strict=False))]


def two_columns(adapter_width: int, **column: int) -> LateralMamba:
    """Two untrained columns of the same shape, to load a saved model's weights into."""
    return LateralMamba(MambaNetwork(**column), MambaNetwork(**column), adapter_width)


class LateralMambaModel(TorchCostModel):
    """AC with adapters onto a frozen KB; ``fit`` is the CL phase, which leaves KB unchanged.

    ``fit`` raises UsageError if the model has no knowledge base.
    """

    name = "lateral-mamba"
    build = staticmethod(two_columns)

    @classmethod
    def of(cls, network: LateralMamba, settings: FitSettings) -> LateralMambaModel:
        """A model around a given network of both columns."""
        model = cls(settings)
        model.network = network
        return model

    def _start(self, train: Samples) -> nn.Module:
        raise UsageError("a lateral-mamba model learns beside a knowledge base; train a 'mamba' model first and distill along the chain.")

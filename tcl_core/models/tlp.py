"""TLP (arXiv 2211.03578): self-attention over the rows of a program's schedule primitives.

    tokens (B, L, F) -> Linear 64, 128, 256, 256 (ReLU) -> x + attention of 8 heads -> two blocks x + ReLU(Linear(x))
    -> Linear 256, 128, 64 (ReLU), 1 -> sum over the sequence -> score (B,)

With 22 features per token that is 676,161 parameters, the paper's 2.58 MB.  65,792 of them are the layer ``idle``,
which the public code builds and saves but never applies; it is kept so that sizes compare, and costs no time.

Differences from the public code: rows are our tokens; padding is masked (there it is attended to and summed, so a
score depends on the length that all programs are padded to); and a batch is ranked task by task, not across tasks.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcl_core.learning.fit import FitSettings
from tcl_core.models.torch_model import TorchCostModel

SETTINGS = FitSettings(epochs=50, weight_decay=1e-6)
"""How the public code trains: Adam at 7e-4, batches of 1024, gradients clipped at 0.5."""


class TlpTrunk(nn.Module):
    """(B, L, F) tokens, the first ``lengths`` (B,) in use -> (B, L, 256), with attention between all rows in use."""

    WIDTHS = (64, 128, 256, 256)
    HEADS = 8

    def __init__(self, features: int) -> None:
        super().__init__()
        sizes, width = (features, *self.WIDTHS), self.WIDTHS[-1]
        self.encoder = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(4))
        self.in_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        self.idle = nn.Linear(width, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        x = tokens
        for layer in self.encoder:
            x = F.relu(layer(x))
        x = x + self.attention(x, used(x, lengths))
        for layer in self.blocks:
            x = x + F.relu(layer(x))
        return x

    def attention(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D): every row attends to the rows in use, ``mask`` (B, L)."""
        heads = self.in_proj(x).unflatten(-1, (3, self.HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, attn_mask=mask[:, None, None, :])
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class TlpDecoder(nn.Module):
    """(B, L, 256) -> (B,) scores: the rows' contributions, summed over the rows in use."""

    WIDTHS = (256, 128, 64, 1)
    EMBEDDING = WIDTHS[-2]

    def __init__(self) -> None:
        super().__init__()
        sizes = (TlpTrunk.WIDTHS[-1], *self.WIDTHS)
        self.layers = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(4))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return pool(self.layers[-1](self.hidden(x)), lengths)[:, 0]

    def embed(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(B, 64) sum of the last hidden layer over the rows in use; the score is linear in it."""
        return pool(self.hidden(x), lengths)

    def hidden(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return x


class TlpNetwork(nn.Module):
    """Trunk and one decoder."""

    EMBEDDING = TlpDecoder.EMBEDDING

    def __init__(self, features: int) -> None:
        super().__init__()
        self.arguments = {"features": features}
        self.trunk = TlpTrunk(features)
        self.decoder = TlpDecoder()

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B,) scores of (B, L, F) tokens; only a program's first ``lengths`` (B,) tokens count."""
        return self.decoder(self.trunk(tokens, lengths), lengths)

    def embed(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, 64); see ``TlpDecoder.embed``."""
        return self.decoder.embed(self.trunk(tokens, lengths), lengths)


class TlpModel(TorchCostModel):
    """The TLP cost model, trained with LambdaRank."""

    name = "tlp"
    build = TlpNetwork

    def __init__(self, settings: FitSettings = SETTINGS, device: str = "cpu") -> None:
        super().__init__(settings, device)


def used(x: Tensor, lengths: Tensor) -> Tensor:
    """(B, L) true where a row of (B, L, D) ``x`` is in use."""
    return torch.arange(x.shape[1], device=x.device) < lengths[:, None]


def pool(x: Tensor, lengths: Tensor) -> Tensor:
    """(B, L, D) row values -> (B, D): the sum over each program's rows in use."""
    return (x * used(x, lengths)[..., None]).sum(1)

"""The Mamba cost model (arXiv 2604.12891, section on the cost model; block as in Mamba-1, arXiv 2312.00752).

    tokens (B, L, F) -> Linear 64, 128, 128 (ReLU) -> x + Mamba(RMSNorm(x)) -> RMSNorm -> Linear 64, 32
    (ReLU), 1 -> sum over the sequence -> score (B,)

With 22 features per token that is 92,097 parameters, the paper's 0.35 MB.  The paper does not say whether the
block stands in a residual connection; here it does, as in Mamba's own networks.

Everything before the convolution depends on one token only, and programs of a sketch share most of their
tokens: those layers run once per distinct token of the batch (``TokenBatch``), and the result is spread to
its places.

Symbols: B programs, L tokens of the longest, M distinct tokens, F features, D width of the block, N state
size, R rank of the step-size projection, K length of the convolution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcl_core.models.selective_scan import selective_scan
from tcl_core.models.torch_model import TorchCostModel

NO_LATERAL = (0.0,) * 7
HASH_SEED = 20260412


@dataclass(frozen=True)
class TokenBatch:
    """B programs as their M distinct tokens: ``rows`` (M, F), ``index`` (B, L) into them, ``lengths``
    (B,).
    """

    rows: Tensor
    index: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, tokens: Tensor, lengths: Tensor) -> TokenBatch:
        """Find the distinct tokens of (B, L, F) ``tokens``; keeps all of them should two hashes collide."""
        flat = tokens.flatten(0, 1)
        keys = _hash_rows(flat)
        distinct, index = torch.unique(keys, return_inverse=True)
        first = torch.empty_like(distinct).scatter_(0, index, torch.arange(len(keys), device=keys.device))
        rows = flat[first]
        if len(rows) * 2 > len(flat) or not torch.equal(rows[index], flat):
            rows, index = flat, torch.arange(len(flat), device=flat.device)
        return cls(rows, index.view(tokens.shape[:2]), lengths)

    def spread(self, values: Tensor) -> Tensor:
        """(M, W) values of the distinct tokens -> (B, L, W)."""
        if len(self.rows) == self.index.numel():
            return values.view(*self.index.shape, -1)
        return F.embedding(self.index, values)

    @property
    def mask(self) -> Tensor:
        """(B, L) true where a token is in use."""
        return torch.arange(self.index.shape[1], device=self.lengths.device) < self.lengths[:, None]


class MambaBlock(nn.Module):
    """One Mamba-1 block in two halves: ``project`` is per token, ``mix`` runs along the sequence."""

    def __init__(self, width: int, state: int, kernel: int, rank: int) -> None:
        super().__init__()
        self.rank, self.state = rank, state
        self.in_proj = nn.Linear(width, 2 * width, bias=False)
        self.conv = nn.Conv1d(width, width, kernel, groups=width, padding=kernel - 1)
        self.x_proj = nn.Linear(width, rank + 2 * state, bias=False)
        self.dt_proj = nn.Linear(rank, width)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, state + 1)).repeat(width, 1))
        self.D = nn.Parameter(torch.ones(width))
        self.out_proj = nn.Linear(width, width, bias=False)
        self._start_step_sizes()

    def _start_step_sizes(self, shortest: float = 1e-3, longest: float = 1e-1) -> None:
        """Step sizes log-uniform between the two, as softplus(bias) (arXiv 2312.00752, section 3.6)."""
        nn.init.uniform_(self.dt_proj.weight, -(self.rank**-0.5), self.rank**-0.5)
        steps = torch.exp(torch.empty_like(self.dt_proj.bias).uniform_(math.log(shortest), math.log(longest)))
        with torch.no_grad():
            self.dt_proj.bias.copy_(steps + torch.log(-torch.expm1(-steps)))

    def project(self, x: Tensor) -> Tensor:
        """(M, D) -> (M, 2D): input of the convolution and gate."""
        return self.in_proj(x)

    def mix(self, projected: Tensor) -> Tensor:
        """(B, L, 2D) -> (B, L, D)."""
        x, gate = projected.chunk(2, dim=-1)
        x = F.silu(causal_convolution(x, self.conv.weight[:, 0], self.conv.bias))
        step, B, C = self.x_proj(x).split([self.rank, self.state, self.state], dim=-1)
        delta = F.softplus(self.dt_proj(step))
        y = selective_scan(x, delta, -torch.exp(self.A_log), B, C, self.D)
        return self.out_proj(y * F.silu(gate))


class MambaNetwork(nn.Module):
    """One column: seven layers whose activations another column can read, and which can take lateral inputs.

    layer   1        2        3        4            5        6        7
            Linear   Linear   Linear   Mamba block  Linear   Linear   Linear
    width   64       128      128      128          64       32       1
    """

    WIDTHS = (64, 128, 128, 128, 64, 32, 1)
    EMBEDDING = WIDTHS[-2]

    def __init__(self, features: int, state: int = 8, kernel: int = 4, rank: int = 8) -> None:
        super().__init__()
        self.arguments = {"features": features, "state": state, "kernel": kernel, "rank": rank}
        sizes = (features, *self.WIDTHS)
        self.encoder = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(3))
        self.block_norm = nn.RMSNorm(sizes[4], eps=1e-5)
        self.block = MambaBlock(sizes[4], state, kernel, rank)
        self.decoder_norm = nn.RMSNorm(sizes[4], eps=1e-5)
        self.decoder = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(4, 7))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B,) scores of (B, L, F) tokens of which the first ``lengths`` (B,) count."""
        batch = TokenBatch.of(tokens, lengths)
        return pool(self.activations(batch)[-1], batch)[:, 0]

    def embed(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, 32) sum of the last hidden layer over the tokens in use; the score is linear in it."""
        batch = TokenBatch.of(tokens, lengths)
        return pool(self.activations(batch)[-2], batch)

    def activations(self, batch: TokenBatch, lateral: Sequence[Tensor | float] = NO_LATERAL) -> list[Tensor]:
        """Outputs of the seven layers: 1 to 3 (M, width) per distinct token, 4 to 7 (B, L, width).

        ``lateral[i]`` is added to layer i + 1 before its activation function (to the fourth, per distinct
        token, on the residual path).
        """
        h1 = F.relu(self.encoder[0](batch.rows) + lateral[0])
        h2 = F.relu(self.encoder[1](h1) + lateral[1])
        h3 = F.relu(self.encoder[2](h2) + lateral[2])
        per_token = torch.cat([self.block.project(self.block_norm(h3)), h3 + lateral[3]], dim=-1)
        projected, direct = batch.spread(per_token).split([2 * h3.shape[-1], h3.shape[-1]], dim=-1)
        h4 = direct + self.block.mix(projected)
        h5 = F.relu(self.decoder[0](self.decoder_norm(h4)) + lateral[4])
        h6 = F.relu(self.decoder[1](h5) + lateral[5])
        return [h1, h2, h3, h4, h5, h6, self.decoder[2](h6) + lateral[6]]


class MambaModel(TorchCostModel):
    """The Mamba cost model, trained with LambdaRank."""

    name = "mamba"
    build = MambaNetwork


def pool(values: Tensor, batch: TokenBatch) -> Tensor:
    """(B, L, W) of the tokens -> (B, W) of the programs: the sum over the tokens in use."""
    return (values * batch.mask[..., None]).sum(1)


def causal_convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, L, D) -> (B, L, D): each channel with its own kernel, ``weight`` (D, K), over the current and
    earlier steps.

    Written as K shifted products because a depthwise Conv1d wants time last, which would cost two transposes.
    """
    kernel = weight.shape[1]
    padded = F.pad(x, (0, 0, kernel - 1, 0))
    y = bias + weight[:, 0] * padded[:, : x.shape[1]]
    for k in range(1, kernel):
        y = torch.addcmul(y, padded[:, k : k + x.shape[1]], weight[:, k])
    return y


def _hash_rows(rows: Tensor) -> Tensor:
    """(M,) int64 keys of float32 rows; equal rows have equal keys."""
    generator = torch.Generator().manual_seed(HASH_SEED)
    factors = torch.randint(-(2**62), 2**62, (rows.shape[1],), generator=generator).to(rows.device)
    bits = (rows.contiguous() + 0.0).view(torch.int32).to(torch.int64)
    return (bits * (2 * factors + 1)).sum(1)

"""The Mamba cost model (arXiv 2604.12891, section on the cost model; block as in Mamba-1, arXiv 2312.00752).

    tokens (B, L, F), standardised -> Linear 64, 128, 128 (ReLU) -> x + Mamba(RMSNorm(x)) -> RMSNorm -> Linear 64, 32
    (ReLU), 1 -> sum over the sequence, or its last token -> + an analytical estimate (``estimate``) -> score (B,)

With 22 features per token that is 92,097 parameters, the paper's 0.35 MB.  The paper does not say whether the
block has a residual connection; here it does, as in Mamba's own networks.

Everything before the convolution depends on a single token, and programs of a sketch share most of their
tokens.  So those layers run once per distinct token of the batch, and the results are scattered to the tokens'
positions (``TokenBatch``).

Symbols: B programs, L tokens of the longest, M distinct tokens, F features, D width of the block, N state
size, R rank of the step-size projection, K length of the convolution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcl_core.features import layout
from tcl_core.features.batches import Samples
from tcl_core.features.tokens import with_hardware
from tcl_core.learning.batches_by_task import check_features
from tcl_core.learning.fit import FitSettings
from tcl_core.models import scan_kernel
from tcl_core.models.estimate import Estimate
from tcl_core.models.selective_scan import selective_scan
from tcl_core.models.torch_model import TorchCostModel

NO_LATERAL = (None,) * 7
HASH_SEED = 20260412


@dataclass(frozen=True)
class TokenBatch:
    """B programs stored as M distinct tokens: ``rows`` (M, F), ``index`` (B, L) into them, ``lengths`` (B,).

    Layers after the block run at R positions of each program: all L, or, with ``last``, only its last token in use.
    """

    rows: Tensor
    index: Tensor
    lengths: Tensor
    last: bool = False

    @classmethod
    def of(cls, tokens: Tensor, lengths: Tensor, last: bool = False) -> TokenBatch:
        """Deduplicate (B, L, F) ``tokens``; keeps all of them if over half are distinct, or if two hashes collide."""
        flat = tokens.flatten(0, 1)
        keys = _hash_rows(flat)
        distinct, index = torch.unique(keys, return_inverse=True)
        first = index.new_empty(len(distinct)).scatter_(0, index, torch.arange(len(keys), device=keys.device))
        rows = flat[first]
        if len(rows) * 2 > len(flat) or not torch.equal(rows[index], flat):
            rows, index = flat, torch.arange(len(flat), device=flat.device)
        return cls(rows, index.view(tokens.shape[:2]), lengths, last)

    def spread(self, values: Tensor) -> Tensor:
        """(M, W) values of the distinct tokens -> (B, L, W), at every position."""
        if len(self.rows) == self.index.numel():
            return values.view(*self.index.shape, -1)
        return F.embedding(self.index, values)

    def spread_read(self, values: Tensor) -> Tensor:
        """(M, W) values of the distinct tokens -> (B, R, W), at the positions computed after the block."""
        return F.embedding(self.index.gather(1, self._end), values) if self.last else self.spread(values)

    def read(self, values: Tensor) -> Tensor:
        """(B, L, W) -> (B, R, W): only the positions computed after the block."""
        return values.gather(1, self._end[..., None].expand(-1, -1, values.shape[2])) if self.last else values

    @property
    def _end(self) -> Tensor:
        """(B, 1) position of the last token in use."""
        return (self.lengths[:, None] - 1).clamp_min(0)

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
        """(M, D) -> (M, 2D): the convolution's input, then the gate."""
        return self.in_proj(x)

    def mix(self, projected: Tensor, batch: TokenBatch) -> Tensor:
        """(M, 2D) ``project`` of the distinct tokens -> (B, R, D), mixed along the sequences of ``batch``."""
        A = -torch.exp(self.A_log)
        taps, dt = self.conv.weight[:, 0], self.dt_proj
        weights = (taps, self.conv.bias, self.x_proj.weight, dt.weight, dt.bias, A, self.D)
        shape = self.state, self.rank, taps.shape[1]
        if batch.last and not torch.is_grad_enabled() and scan_kernel.available(projected, batch.index, *shape, "last"):
            return self.out_proj(scan_kernel.last_mixed(projected, batch.index, batch.lengths, *weights)[:, None])
        needed = ("forward", "backward") if torch.is_grad_enabled() else ("forward",)
        if all(scan_kernel.available(projected, batch.index, *shape, name) for name in needed):
            return self.out_proj(batch.read(scan_kernel.CompiledMix.apply(projected, batch.index, batch.lengths, *weights)))
        x, gate = batch.spread(projected).chunk(2, dim=-1)
        x = F.silu(causal_convolution(x, taps, self.conv.bias))
        step, B, C = self.x_proj(x).split([self.rank, self.state, self.state], dim=-1)
        y = selective_scan(x, F.softplus(dt(step)), A, B, C, self.D)
        return self.out_proj(batch.read(y * F.silu(gate)))


class Standardise(nn.Module):
    """Scale each number of a token to mean 0 and deviation 1 over the tokens of its kind; has no trained parameters.

    A column means something different in each kind of token, so each kind has its own scale.  Numbers that never varied
    in a kind are set to 0, since the network cannot have learned their effect.  The first ``kinds`` columns are the one-hot kind.
    """

    LARGEST = 5.0  # clip at this many deviations; linear layers would extrapolate without bound

    def __init__(self, features: int, kinds: int) -> None:
        super().__init__()
        self.kinds = kinds
        self.register_buffer("mean", torch.zeros(kinds, features - kinds))
        self.register_buffer("scale", torch.ones(kinds, features - kinds))

    def forward(self, rows: Tensor) -> Tensor:
        """(M, F) -> (M, F)."""
        kind, numbers = rows.split([self.kinds, rows.shape[1] - self.kinds], dim=1)
        which = kind.argmax(1)
        standard = (numbers - self.mean[which]) * self.scale[which]
        return torch.cat([kind, standard.clamp(-self.LARGEST, self.LARGEST)], dim=1)

    def learn(self, tokens: np.ndarray, lengths: np.ndarray, open_kinds: Sequence[int] = ()) -> None:
        """Set means and deviations from (N, L, F) tokens.

        In ``open_kinds``, numbers that never varied keep scale 1 instead of 0: later data may vary them, as another
        platform does the hardware's.
        """
        used = np.arange(tokens.shape[1]) < lengths[:, None]
        for kind in range(self.kinds):
            numbers = tokens[used & (tokens[..., kind] == 1), self.kinds :].astype(np.float64)
            if len(numbers):
                deviation, steady = numbers.std(axis=0), np.full(numbers.shape[1], float(kind in open_kinds))
                scale = np.divide(1.0, deviation, out=steady, where=deviation > 1e-6)
                self.mean[kind], self.scale[kind] = torch.from_numpy(numbers.mean(axis=0)), torch.from_numpy(scale)


class MambaNetwork(nn.Module):
    """One column of seven layers; another column can read their activations, and each can take a lateral input.

    layer   1        2        3        4            5        6        7
            Linear   Linear   Linear   Mamba block  Linear   Linear   Linear
    width   64       128      128      128          64       32       1
    """

    WIDTHS = (64, 128, 128, 128, 64, 32, 1)
    EMBEDDING = WIDTHS[-2]

    def __init__(
        self, features: int, kinds: int = 0, last: bool = False, state: int = 8, kernel: int = 4, rank: int = 8, estimate: bool = False
    ) -> None:
        """``kinds``: number of token kinds to standardise by; 0 leaves tokens unscaled.  ``last``: read the score at the
        last token in use, which has seen all the others, instead of summing over all tokens.  ``estimate``: add an analytical
        estimate to the score.
        """
        super().__init__()
        self.arguments = {
            "features": features, "kinds": kinds, "last": last, "state": state, "kernel": kernel, "rank": rank, "estimate": estimate
        }  # fmt: skip
        self.last = last
        self.estimate = Estimate() if estimate else None
        self.standardise = Standardise(features, kinds) if kinds else nn.Identity()
        sizes = (features, *self.WIDTHS)
        self.encoder = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(3))
        self.block_norm = nn.RMSNorm(sizes[4], eps=1e-5)
        self.block = MambaBlock(sizes[4], state, kernel, rank)
        self.decoder_norm = nn.RMSNorm(sizes[4], eps=1e-5)
        self.decoder = nn.ModuleList(nn.Linear(sizes[i], sizes[i + 1]) for i in range(4, 7))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B,) scores of (B, L, F) tokens; only a program's first ``lengths`` (B,) tokens count."""
        batch = TokenBatch.of(tokens, lengths, self.last)
        return self.scored(pool(self.activations(batch)[-1], batch), tokens, lengths)[:, 0]

    def scored(self, found: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, 1) scores: what the layers ``found``, with the estimate, if there is one."""
        return found if self.estimate is None else found + self.estimate(tokens, lengths)[:, None]

    def embed(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, 32) the last hidden layer, pooled like the score; the score, less its estimate, is linear in it."""
        batch = TokenBatch.of(tokens, lengths, self.last)
        return pool(self.activations(batch)[-2], batch)

    def score_and_embed(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, 1 + 32) ``forward`` and ``embed`` in one pass."""
        batch = TokenBatch.of(tokens, lengths, self.last)
        *_, hidden, scores = self.activations(batch)
        return torch.cat([self.scored(pool(scores, batch), tokens, lengths), pool(hidden, batch)], dim=1)

    def activations(self, batch: TokenBatch, lateral: Sequence[Tensor | None] = NO_LATERAL) -> list[Tensor]:
        """Outputs of the seven layers: 1 to 3 (M, width) per distinct token, 4 to 7 (B, R, width).

        ``lateral[i]`` is added to layer i + 1 before its activation function; for the fourth layer, per distinct
        token on the residual path.
        """
        h1 = relu(self.encoder[0](self.standardise(batch.rows)), lateral[0])
        h2 = relu(self.encoder[1](h1), lateral[1])
        h3 = relu(self.encoder[2](h2), lateral[2])
        mixed = self.block.mix(self.block.project(self.block_norm(h3)), batch)
        h4 = mixed.add_(batch.spread_read(plus(h3, lateral[3])))
        h5 = relu(normalised_linear(h4, self.decoder_norm, self.decoder[0]), lateral[4])
        h6 = relu(self.decoder[1](h5), lateral[5])
        return [h1, h2, h3, h4, h5, h6, plus(self.decoder[2](h6), lateral[6])]


def network_of_tokens(features: int, kinds: int | None = None, last: bool = True, estimate: bool = False, **shape: int) -> MambaNetwork:
    """A column that standardises the tokens of ``features.tokens``; it leaves tokens of another width unscaled."""
    known = len(layout.KINDS) if features == layout.WIDTH else 0
    return MambaNetwork(features, known if kinds is None else kinds, last, estimate=estimate, **shape)


SETTINGS = FitSettings(epochs=30, batch_size=512, learning_rate=2e-3, schedule="cosine", period=30, loss="scores")
"""Settings for training a fresh network on a teacher ensemble's scores (``teaching.teach``); tuned on networks that no
accuracy table reports (docs/models.md)."""


class MambaModel(TorchCostModel):
    """The Mamba cost model; the first ``fit`` also sets the scale of the tokens, and the costs of the analytical estimate.

    It learns best from a teacher ensemble's labels: ``Mamba().fit(teach(train))``.
    """

    name = "mamba"
    build = staticmethod(network_of_tokens)
    estimates: ClassVar[bool] = True  # whether a fresh network that reads the tokens of ``features.tokens`` adds an estimate

    def __init__(self, settings: FitSettings = SETTINGS, device: str = "cpu") -> None:
        super().__init__(settings, device)

    def _start(self, train: Samples) -> nn.Module:
        check_features(train)
        features = train.features.shape[2]
        network = self._seeded(features, estimate=self.estimates and features == layout.WIDTH)
        if network.arguments["kinds"]:
            network.standardise.learn(train.features, train.lengths, [layout.KINDS.index("hardware")])
        if network.estimate is not None:
            network.estimate.learn(train)
        return network

    def counted_change(self, programs: Samples, hardware: Sequence[float]) -> np.ndarray:
        """(N,) log(time under the programs' own hardware row / time on ``hardware``) by the estimate; zeros without one."""
        change = np.zeros(len(programs))
        if self.network is None or self.network.estimate is None:
            return change
        for samples, sign in ((programs, 1.0), (with_hardware(programs, hardware), -1.0)):
            change += sign * self._in_chunks(samples, self.network.estimate.log_time, np.empty(len(programs), np.float32))
        return change


def pool(values: Tensor, batch: TokenBatch) -> Tensor:
    """(B, R, W) token values -> (B, W) program values: the last token's, or the sum over the tokens in use."""
    return values[:, 0] if batch.last else (values * batch.mask[..., None]).sum(1)


def plus(x: Tensor, lateral: Tensor | None) -> Tensor:
    """A layer's output plus its lateral input, if any."""
    return x if lateral is None else x + lateral


def relu(x: Tensor, lateral: Tensor | None) -> Tensor:
    """ReLU of ``plus``; may overwrite ``x``, a layer's output that nothing else reads."""
    return F.relu(plus(x, lateral), inplace=True)


def normalised_linear(x: Tensor, norm: nn.RMSNorm, linear: nn.Linear) -> Tensor:
    """``linear(norm(x))``, dividing by the root mean square after the product, which is narrower than ``x``."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps)
    return torch.addcmul(linear.bias, F.linear(x, linear.weight * norm.weight), scale)


def causal_convolution(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, L, D) -> (B, L, D): depthwise convolution with ``weight`` (D, K) over the current and earlier steps.

    Written as K shifted products, because a depthwise Conv1d wants time last, which would cost two transposes.
    """
    kernel = weight.shape[1]
    padded = F.pad(x, (0, 0, kernel - 1, 0))
    y = bias + weight[:, 0] * padded[:, : x.shape[1]]
    for k in range(1, kernel):
        y = torch.addcmul(y, padded[:, k : k + x.shape[1]], weight[:, k])
    return y


def _hash_rows(rows: Tensor) -> Tensor:
    """(M,) float64 hash keys of float32 rows: their products with a fixed random direction, rarely equal for different rows."""
    generator = torch.Generator().manual_seed(HASH_SEED)
    direction = torch.randn(rows.shape[1], generator=generator, dtype=torch.float64)
    return (rows.double() * direction.to(rows.device)).sum(1)  # not a matrix product: equal rows must give equal sums

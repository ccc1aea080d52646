"""Latent dynamics of schedules (arXiv 2606.09312): predicts a program's state action by action, without building it.

    state encoder    real state (S,) -> MLP -> z (D,) of length 1; contrastively trained, used only in training
    first state      workload row (F,) -> MLP -> h_0 (H,)
    action encoder   primitive row (F,) -> MLP -> a (H,)
    transition       h_(t+1) = h_t + MLP([norm(h_t), a_t])
    read-out         z_hat_t = W norm(h_t), of length 1

The first state is computed from the workload row, the tokens' description of the unscheduled program; the transition
loss ties it to the real one's latent state.  Normalisation is inside the residual branch, because a state that is itself
normalised at every step forgets its first actions after about ten more.

Symbols: B programs, L tokens, F features per token, T actions of the longest program, S numbers of a real state
(``features.states``), D latent width, H width of the rolled-out state, P replayed states per program, M states of a
batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tcl_core.features.layout import KINDS, PRIMITIVES
from tcl_core.models.mamba import TokenBatch

LATENT = 64
HIDDEN = 128
_ACTIONS = [KINDS.index(kind) for kind in PRIMITIVES]
_WORKLOAD = KINDS.index("workload")


class StateEncoder(nn.Module):
    """(M, S) real states, standardised -> (M, D) latent states of length 1."""

    def __init__(self, features: int, width: int = LATENT) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.layers = _mlp(features, 2 * HIDDEN, width)

    def standardise(self, states: Tensor) -> None:
        """Set mean and scale of each number from (M, S) states; numbers that never vary keep scale 1."""
        spread = states.std(0)
        self.mean.copy_(states.mean(0))
        self.scale.copy_(torch.where(spread > 0, spread, 1.0))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(M, D) latent states of (M, 1, S) real states, each passed as a sequence of one token."""
        return self.encode(tokens[:, 0])

    def encode(self, states: Tensor) -> Tensor:
        return F.normalize(self.layers((states - self.mean) / self.scale), dim=-1)


class Dynamics(nn.Module):
    """Tokens -> latent states: the first from the workload row, then one transition per action."""

    def __init__(self, features: int, width: int = LATENT, hidden: int = HIDDEN) -> None:
        super().__init__()
        self.first = _mlp(features, hidden, hidden)
        self.action = _mlp(features, hidden, hidden)
        self.norm = nn.RMSNorm(hidden)
        self.change = nn.Sequential(nn.Linear(2 * hidden, 2 * hidden), nn.SiLU(), nn.Linear(2 * hidden, hidden))
        self.read = nn.Linear(hidden, width)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, D) latent states after all actions of (B, L, F) tokens."""
        states, counts = self.roll_out(tokens, lengths)
        return states[torch.arange(len(states), device=states.device), counts]

    def roll_out(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T + 1, D) latent states after 0 to T actions, and (B,) the programs' numbers of actions; after its last
        action a program's state no longer changes.
        """
        actions, counts = self._actions(tokens, lengths)
        hidden = self.first(_row(tokens, _WORKLOAD))
        trail = [hidden]
        for step in range(actions.shape[1]):
            hidden = torch.where((step < counts)[:, None], self.advance(hidden, actions[:, step]), hidden)
            trail.append(hidden)
        return self.place(torch.stack(trail, dim=1)), counts

    def advance(self, hidden: Tensor, action: Tensor) -> Tensor:
        """(B, H) rolled-out states after one more encoded action each, (B, H)."""
        return hidden + self.change(torch.cat([self.norm(hidden), action], dim=-1))

    def place(self, hidden: Tensor) -> Tensor:
        """(..., D) latent states, of length 1, read out from (..., H) rolled-out states."""
        return F.normalize(self.read(self.norm(hidden)), dim=-1)

    def _actions(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(B, T, H) encoded actions in order, and (B,) their number per program; each distinct row is encoded once."""
        batch = TokenBatch.of(tokens, lengths)
        acts = tokens[..., _ACTIONS].any(-1)
        counts = acts.sum(1)
        order = (~acts).int().argsort(dim=1, stable=True)[:, : int(counts.max())]
        return F.embedding(batch.index.gather(1, order), self.action(batch.rows)), counts


def _mlp(features: int, hidden: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, hidden), nn.LayerNorm(hidden), nn.SiLU(), nn.Linear(hidden, width))


def _row(tokens: Tensor, kind: int) -> Tensor:
    """(B, F) each program's row of a kind (at most one); zeros where it has none."""
    return (tokens * tokens[..., kind : kind + 1]).sum(1)


def contrastive_loss(
    encoder: StateEncoder, states: Tensor, generator: torch.Generator, corrupted: float = 0.6, temperature: float = 0.1
) -> Tensor:
    """InfoNCE between (M, S) states and corrupted views of them (SCARF, arXiv 2106.15147).

    A view takes a share ``corrupted`` of its numbers from random states of the batch; the encoder must match it to its own state.
    """
    drawn = torch.randint(len(states), states.shape, generator=generator, device=states.device)
    mask = torch.rand(states.shape, generator=generator, device=states.device) < corrupted
    views = torch.where(mask, states.gather(0, drawn), states)
    alike = encoder.encode(states) @ encoder.encode(views).T
    return F.cross_entropy(alike / temperature, torch.arange(len(states), device=states.device))


def transition_loss(predicted: Tensor, real: Tensor, names: Tensor, tasks: Tensor, attraction: float = 0.5, margin: float = 0.2) -> Tensor:
    """Mean over states of  attraction d(z_hat, z) + (1 - attraction) max(0, d(z_hat, z) - d(z_hat, z') + margin).

    predicted (z_hat) and real (z) are (M, D), d is the squared distance.  z' is the hard negative: the nearest other real
    state of the same task in the batch; ``names`` (M,) identify states, ``tasks`` (M,) their tasks.  Where a task has no
    other state, the second term is 0.
    """
    other = (tasks[:, None] == tasks) & (names[:, None] != names)
    nearest = torch.cdist(real, real).masked_fill(~other, torch.inf).argmin(1)
    error = (predicted - real).square().sum(1)
    to_negative = (predicted - real[nearest]).square().sum(1)
    hinge = F.relu(error - to_negative + margin) * other.any(1)
    return (attraction * error + (1.0 - attraction) * hinge).mean()

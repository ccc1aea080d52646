"""How a network is trained, as plain numbers: whoever names them need not load torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FitSettings:
    """What a training run depends on (defaults: arXiv 2604.12891, training details, where it gives them)."""

    epochs: int = 100
    batch_size: int = 1024  # programs, in whole tasks
    learning_rate: float = 7e-4
    weight_decay: float = 0.0
    clip_norm: float = 0.5  # of the whole gradient; the paper gives none, TLP's public code this
    schedule: str = "constant"  # of ``learning_names``: or cosine (restarts every period), step (times 0.8 every period)
    period: int = 10  # epochs
    loss: str = "rank"  # of ``learning_names``: LambdaRank; or scores: regression on the logarithm of the labels
    sigma: float = 1.0  # steepness of the ranking loss
    seed: int = 0
    checkpoint_every: int = 5  # epochs

"""Training settings as plain numbers, usable without loading torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FitSettings:
    """Settings of a training run (defaults: arXiv 2604.12891, training details, where it gives them)."""

    epochs: int = 100
    batch_size: int = 1024  # programs, in whole tasks
    learning_rate: float = 7e-4
    weight_decay: float = 0.0
    clip_norm: float = 0.5  # for the norm of the whole gradient; from TLP's public code, as the paper gives none
    schedule: str = "constant"  # see ``learning_names``; also cosine (restarts every period), step (times 0.8 every period)
    period: int = 10  # epochs
    loss: str = "rank"  # LambdaRank; also pairs: every pair alike; scores: regression on the logarithm of the labels
    sigma: float = 1.0  # steepness of the ranking loss
    seed: int = 0
    checkpoint_every: int = 5  # epochs

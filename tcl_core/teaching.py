"""Teaching: what a teacher ensemble of boosted trees finds is passed on to one network.

From some thousands of measurements trees learn to rank better than a network does.  But they are large, those on
per-store features need every candidate lowered, and none can be carried down a chain of platforms.  So the network learns to give
the teacher ensemble's scores, which are smoother than measured latencies: most of the gain is in these labels.  The rest comes
from programs that nobody measured, which the teacher ensemble scores as well and which cost nothing but their generation.  The
network ends up a hundredth of the pairs behind the teacher ensemble on tasks that it has not seen, at its own size and speed.
(Distillation into one network on unlabelled data is bucilua et al.'s model compression, KDD 2006.)

    measured programs -> teacher ensemble -> scores of measured and unlabelled programs -> pseudo-latencies -> the network

A score stands in the place of minus the logarithm of a latency, so what comes out are ``Samples`` like any others;
``FitSettings.loss`` "scores" makes a network learn the scores themselves and not their order alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tcl_core.features.batches import Samples, concatenate, rows_by_task
from tcl_core.models import catalogue, mamba

Views = Mapping[str, Samples]
"""What models read ("tokens", "per-store features") -> the same programs in those rows."""


@dataclass(frozen=True)
class Member:
    """``count`` models of one class, of different seeds; each one's scores count ``weight``."""

    model: str
    count: int
    weight: float


TEACHERS = (Member("trees", 2, 1.0), Member("xgboost", 2, 0.5))
"""Chosen on networks that no table reports (docs/models.md), as is how the network learns from it."""
STUDENT = mamba.SETTINGS


def pseudo_labelled(
    measured: Views,
    unlabelled: Views,
    seed: int = 0,
    teachers: Sequence[Member] = TEACHERS,
    on_member: Callable[[str], None] = lambda name: None,
) -> Samples:
    """The tokens of all programs, with pseudo-latencies (seconds up to a factor of the task) in which the teacher ensemble's scores lie.

    ``measured`` and ``unlabelled`` share one task numbering.  Members that read what is not given are left out.  Raises
    DataError when the others have nothing to learn from.
    """
    tokens = concatenate([replace(part["tokens"], states=None) for part in (measured, unlabelled)])
    total, weights = np.zeros(len(tokens)), 0.0
    for member in (member for member in teachers if catalogue.reads(member.model) in measured):
        reads = catalogue.reads(member.model)
        for number in range(member.count):
            model = catalogue.create(member.model)
            model.settings = replace(model.settings, seed=seed + 1000 * number)
            model.fit(measured[reads])
            scores = [model.predict(part[reads]) for part in (measured, unlabelled)]
            total += member.weight * standardised(np.concatenate(scores), tokens.tasks)
            weights += member.weight
            on_member(member.model)
    return replace(tokens, latencies_s=np.exp(-total / weights))


def teach(measured: Samples, unlabelled: Samples | None = None, seed: int = 0) -> Samples:
    """Measured programs, and further ones of the same task numbering, labelled by trees that learned from the measured ones.

    Of the teacher ensemble its readers of tokens alone are asked.  What comes out is for a network to learn: ``Mamba().fit(teach(train))``.
    Raises as ``pseudo_labelled``.
    """
    more = measured.take(np.arange(0)) if unlabelled is None else unlabelled
    return pseudo_labelled({"tokens": measured}, {"tokens": more}, seed)


def standardised(scores: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """(N,) scores less their task's mean, over the standard deviation of all: one scale for every task and model."""
    centred = scores.astype(np.float64)
    for rows in rows_by_task(tasks):
        centred[rows] -= centred[rows].mean()
    return centred / max(centred.std(), np.finfo(np.float64).tiny)

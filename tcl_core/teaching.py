"""Teaching: a teacher ensemble of boosted trees is distilled into one network.

From some thousands of measurements trees learn to rank better than a network does.  But they are large, those on
per-store features need every candidate lowered, and none can be carried along a chain of platforms.  So the network learns to
reproduce the teacher ensemble's scores, which are smoother than measured latencies: most of the gain comes from these labels.
The rest comes from unmeasured programs, which the teacher ensemble scores as well and which cost only their generation.  On
tasks that it has not seen, the network ranks a hundredth fewer pairs right than its teachers, at its own size and speed.
(Distillation into one network on unlabelled data is bucilua et al.'s model compression, KDD 2006.)

    measured programs -> teacher ensemble -> scores of measured and unlabelled programs -> pseudo-latencies -> the network

A score takes the place of minus the logarithm of a latency, so the results are ordinary ``Samples``;
``FitSettings.loss`` "scores" makes a network learn the scores themselves, not only their order.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import CancelledError, as_completed
from dataclasses import dataclass, replace
from threading import Event, Lock

import numpy as np
import torch

from tcl_core import environment
from tcl_core.features.batches import Samples, concatenate, rows_by_task
from tcl_core.models import catalogue, mamba
from tcl_core.models.torch_threads import torch_threads

Views = Mapping[str, Samples]
"""Kind of rows that models read ("tokens", "per-store features") -> the same programs in such rows."""


@dataclass(frozen=True)
class Member:
    """``count`` models of one class with different seeds, which learn by ``loss``; ``weight`` is that of each model's scores.

    Trees order programs better by a loss in which every pair counts alike, their own.  But the network learns the scores themselves,
    and in a run of the pipeline it ranked fewer pairs right after such teachers (docs/learning.md).
    """

    model: str
    count: int
    weight: float
    loss: str = "rank"


TEACHERS = (Member("trees", 2, 1.0), Member("xgboost", 2, 0.5))
"""Chosen, like the network's training settings, on networks that no table of accuracy ranks (docs/models.md)."""
STUDENT = mamba.SETTINGS


def pseudo_labelled(
    measured: Views,
    unlabelled: Views,
    seed: int = 0,
    teachers: Sequence[Member] = TEACHERS,
    on_epoch: Callable[[str], None] = lambda name: None,
) -> Samples:
    """Tokens of all programs, with the teacher ensemble's scores as pseudo-latencies (seconds up to a factor per task).

    ``measured`` and ``unlabelled`` share one task numbering.  Members whose kind of rows is not given are left out; the others
    train in parallel, and ``on_epoch`` gets a member's model name after each of its epochs.  Raises DataError when there is
    nothing to learn from.
    """
    tokens = concatenate([replace(part["tokens"], states=None) for part in (measured, unlabelled)])
    stopped, one_at_a_time = Event(), Lock()

    def ended(name: str) -> None:
        if stopped.is_set():
            raise CancelledError
        with one_at_a_time:
            on_epoch(name)

    def scores(member: Member, number: int) -> np.ndarray:
        """One model's weighted scores of all programs."""
        model, reads = catalogue.create(member.model), catalogue.reads(member.model)
        model.settings = replace(model.settings, seed=seed + 1000 * number, loss=member.loss)
        model.fit(measured[reads], on_epoch=lambda *_: ended(member.model))
        found = [model.predict(part[reads]) for part in (measured, unlabelled)]
        return member.weight * standardised(np.concatenate(found), tokens.tasks)

    asked, threads = members(measured, teachers), torch.get_num_threads()
    if (count := min(len(asked), threads)) > 1 and environment.processes() == 1:  # half of growing one model's trees is serial
        pool = torch_threads(count, threads // count)
        found = [pool.submit(scores, *one) for one in asked]
        try:
            for future in as_completed(found):  # so that one that fails is not waited for behind others
                future.result()
            total = sum(future.result() for future in found)
        except BaseException:
            stopped.set()
            for future in found:
                future.cancel()
            raise
    else:
        total = sum(scores(*one) for one in asked)
    return replace(tokens, latencies_s=np.exp(-total / sum(member.weight for member, _ in asked)))


def members(reads: Container[str], teachers: Sequence[Member] = TEACHERS) -> list[tuple[Member, int]]:
    """(member, number of the model within it) of each teacher model that reads one of the kinds ``reads``."""
    return [(member, number) for member in teachers if catalogue.reads(member.model) in reads for number in range(member.count)]


def teach(measured: Samples, unlabelled: Samples | None = None, seed: int = 0) -> Samples:
    """Measured programs, and further ones with the same task numbers, labelled by trees that learned from the measured ones.

    The result is for a network to learn: ``Mamba().fit(teach(train))``.  Only members of the teacher ensemble that read tokens are
    used.  Raises as ``pseudo_labelled``.
    """
    more = measured.take(np.arange(0)) if unlabelled is None else unlabelled
    return pseudo_labelled({"tokens": measured}, {"tokens": more}, seed)


def standardised(scores: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    """(N,) scores minus their task's mean, divided by the standard deviation over all tasks: one scale for every model."""
    centred = scores.astype(np.float64)
    for rows in rows_by_task(tasks):
        centred[rows] -= centred[rows].mean()
    return centred / max(centred.std(), np.finfo(np.float64).tiny)

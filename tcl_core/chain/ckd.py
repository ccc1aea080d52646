"""Continuous knowledge distillation (CKD) along a chain of platforms (arXiv 2604.12891, section on CKD).

Two columns of one architecture: the knowledge base (KB) is passed along the chain, the active column (AC) learns
the current platform.  Each platform after the first takes two phases, each a variation of ``fit_network``:

    CL phase  KB frozen; AC and its lateral adapters (``models.lateral_mamba``) learn with LambdaRank; cosine
              rate, restarting every 10 epochs
    KD phase  AC frozen as teacher; KB learns from it and from the measured labels, and is held near its former
              weights (``DistillationLoss``); rate times 0.8 every 5 epochs; skipped for the last platform

Departure from the paper: the paper splits a number of epochs evenly over the platforms and again over the two
phases; here params.yaml sets each (``train.epochs``, ``distill.epochs``, ``distill.kd_epochs``).

Choices that the paper leaves open:
- The first platform has no KB yet: a plain Mamba is trained, and KB starts as its copy.
- AC starts as a copy of KB (``column_start="knowledge_base"``), since a new platform brings few records;
  ``"fresh"`` starts at random.  Adapters are 32 wide and start closed.
- The Fisher diagonal is that of the LambdaRank loss on the training records of the platform just learned, with one
  gradient per task; each platform's replaces the previous one.
- P_T as labels: the teacher's scores, scaled to [0, 1] within the task.
- phi needs fixed batches, so the KD phase keeps one grouping into batches and shuffles only their order.  The sum
  over j runs over steps: each step adds the EWC term once.
- Both phases keep their last epoch, as in the paper.  Only if tasks are held out for validation does the CL phase
  keep the epoch with their lowest loss; the KD phase never does: validating on the newest platform alone would
  favour forgetting the others.

``mended`` keeps the two columns and phases, and changes these terms for the case of few measured programs:

    unlabelled_cl  AC learns by regression from a teacher ensemble, trained on the few, that labels measured and unlabelled
                   programs.  As printed, AC ranks only the measured programs, often one or two per task.
    unlabelled_kd  KB is distilled on all those programs.  As printed, only on the programs that AC was trained on.
    task_labels    P_T is the task's labels in the teacher's order.  Scores scaled to [0, 1], whose gains weight the pairs,
                   imply that programs differ equally much in every task.
    task_trust     phi is per task, from errors on held-out programs: two additional columns each learn half of the tasks and
                   rank the other half's.  As printed, phi is per batch, from errors on AC's own training programs.
    unit_fisher    The Fisher diagonal is divided by its mean.  As printed, lambda's strength depends on the number of programs
                   per task, because the loss sums over their pairs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tcl_core.chain.method import Learned, Method, Step
from tcl_core.chain.state import ChainState, OnPhaseEpoch, fit_settings, in_phase
from tcl_core.errors import UsageError, unknown_name
from tcl_core.features.batches import Samples
from tcl_core.learning.batches_by_task import any_usable
from tcl_core.learning.checkpoint import checksum
from tcl_core.learning.distillation_loss import DistillationLoss, batch_trust, fisher_diagonal, of_mean_one, trust_by_task
from tcl_core.learning.fit import FitSettings, fit_network
from tcl_core.learning_names import COLUMN_STARTS
from tcl_core.models.lateral_mamba import LateralMamba, LateralMambaModel
from tcl_core.models.mamba import MambaModel, MambaNetwork
from tcl_core.models.torch_model import SEEDING
from tcl_core.params import Params

MENDED_LAMBDA = 0.01  # factor on the printed lambda


@dataclass(frozen=True)
class DistillSettings:
    """Settings of a step along the chain (defaults: arXiv 2604.12891 where it gives them)."""

    fit: FitSettings = FitSettings()  # shared by both phases; its epochs are not used
    epochs: int = 50  # of the CL phase
    kd_epochs: int = 50  # of the KD phase
    beta: float = 0.5  # weight of the measured labels against the teacher
    ewc_lambda: float = 10_000.0  # how firmly KB is held near its former weights
    adapter_width: int = 32
    column_start: str = "knowledge_base"  # see ``learning_names``; also fresh
    cl_period: int = 10  # epochs after which the CL phase's cosine restarts
    kd_period: int = 5  # epochs after which the KD phase's rate is multiplied by 0.8
    # Mended terms: see the module docstring.
    unlabelled_cl: bool = False
    unlabelled_kd: bool = False
    task_labels: bool = False
    task_trust: bool = False
    unit_fisher: bool = False

    @classmethod
    def of(cls, params: Params) -> DistillSettings:
        """Settings from params.yaml's sections ``distill`` and ``train``: LambdaRank, on measured programs only.

        With a tenth of the programs, a teacher ensemble trained on them gained nothing (docs/models.md).
        """
        d, usual = params.distill, cls().fit
        own = {"learning_rate": d.learning_rate, "batch_size": d.batch_size, "loss": usual.loss, "schedule": usual.schedule}
        fit = replace(fit_settings(params), **own)
        return cls(fit, d.epochs, d.kd_epochs, d.beta, d.ewc_lambda, d.adapter_width, d.column_start)

    def column_fit(self) -> FitSettings:
        """Training settings of the CL phase."""
        return replace(self.fit, epochs=self.epochs, schedule="cosine", period=self.cl_period)

    def base_fit(self) -> FitSettings:
        """Training settings of the KD phase."""
        return replace(self.fit, epochs=self.kd_epochs, schedule="step", period=self.kd_period)


def mended(settings: DistillSettings) -> DistillSettings:
    """``settings`` with all terms mended; since the Fisher diagonal then has mean 1, ``ewc_lambda`` becomes a hundredth.

    So the paper's 10,000 becomes 100.  On one fold of the reference data, with 160 labels from AVX2 to AVX-512, a lambda of 1
    lost .05 to .10 of the earlier platform's pairs, 30 lost .02 to .03, 100 less than .005, 1,000 none.
    """
    return replace(
        settings, fit=replace(settings.fit, loss="scores"), ewc_lambda=settings.ewc_lambda * MENDED_LAMBDA,
        unlabelled_cl=True, unlabelled_kd=True, task_labels=True, task_trust=True, unit_fisher=True,
    )  # fmt: skip


class Ckd(Method):
    """``distill.method: ckd``: as printed."""

    sections = ("train", "distill")

    def epochs(self, step: Step) -> int:
        settings = step.params.distill
        return settings.epochs + (0 if step.is_last else settings.kd_epochs)

    def learn(self, step: Step, on_epoch: OnPhaseEpoch) -> Learned:
        settings = DistillSettings.of(step.params)
        state = learn_next(step.state, *step.own, settings, last=step.is_last, on_epoch=on_epoch, checkpoint=step.checkpoint)
        return self._learned(step, state)

    @staticmethod
    def _learned(step: Step, state: ChainState) -> Learned:
        """Record that KB has learned the platform, unless it is the last, which has no KD phase."""
        return Learned(state if step.is_last else state.with_platform(step.hardware))


class CkdMended(Ckd):
    """``distill.method: ckd-mended``: all terms mended, also learning from unlabelled programs."""

    def learn(self, step: Step, on_epoch: OnPhaseEpoch) -> Learned:
        settings, (train, valid) = mended(DistillSettings.of(step.params)), step.own
        state = learn_next(
            step.state, train, valid, settings,
            pseudo_labelled=step.labelled(train), last=step.is_last, on_epoch=on_epoch, checkpoint=step.checkpoint,
        )  # fmt: skip
        return self._learned(step, state)


def learn_next(
    state: ChainState,
    train: Samples,
    valid: Samples | None,
    settings: DistillSettings,
    *,
    pseudo_labelled: Samples | None = None,
    last: bool = False,
    on_epoch: OnPhaseEpoch | None = None,
    checkpoint: Path | None = None,
) -> ChainState:
    """Learn the chain's next platform; ``state`` is the previous platform's and is not modified.

    pseudo_labelled  the programs of ``train`` in order, then unlabelled ones, with a teacher ensemble's labels
                     (``teaching.pseudo_labelled``); only for settings with ``unlabelled_cl`` or ``unlabelled_kd``
    last             skip the KD phase: KB and its Fisher diagonal remain those of ``state``
    checkpoint       as in ``learn_first``

    Raises DataError when there is nothing to learn from, UsageError if the settings need ``pseudo_labelled`` and it is missing.
    """
    if pseudo_labelled is None and (settings.unlabelled_cl or settings.unlabelled_kd):
        raise UsageError(
            "mended distillation learns from unlabelled programs too; give it a teacher ensemble's labels of them (teaching.pseudo_labelled)"
        )
    lesson = pseudo_labelled if settings.unlabelled_cl else train
    model = start_column(state.knowledge_base.network, settings)
    folder = checkpoint / "column" if checkpoint else None
    model.fit(lesson, valid, in_phase("CL", on_epoch), checkpoint=folder)
    if last:
        return replace(state, model=model)
    folder = checkpoint / "knowledge_base" if checkpoint else None
    student = distill(
        state, model.network, train, settings, pseudo_labelled=pseudo_labelled, on_epoch=in_phase("KD", on_epoch), checkpoint=folder
    )
    return replace(state, model=model, knowledge_base=student, fisher=fisher_diagonal(student.network, train, settings.fit.sigma))


def start_column(base: MambaNetwork, settings: DistillSettings) -> LateralMambaModel:
    """AC before its CL phase, with a frozen copy of KB.  Raises UsageError for an unknown ``column_start``."""
    if settings.column_start not in COLUMN_STARTS:
        raise unknown_name("column start", settings.column_start, COLUMN_STARTS)
    with SEEDING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.fit.seed)  # torch.manual_seed would seed a caller's GPUs too
        column = MambaNetwork(**base.arguments)
        column.standardise.load_state_dict(base.standardise.state_dict())
        if base.estimate is not None:
            column.estimate.load_state_dict(base.estimate.state_dict())
        if settings.column_start == "knowledge_base":
            column.load_state_dict(base.state_dict())
        network = LateralMamba(column, copy.deepcopy(base), settings.adapter_width)
    return LateralMambaModel.of(network, settings.column_fit())


def distill(
    state: ChainState,
    teacher: LateralMamba,
    train: Samples,
    settings: DistillSettings,
    *,
    pseudo_labelled: Samples | None = None,
    on_epoch: Callable | None = None,
    checkpoint: Path | None = None,
) -> MambaModel:
    """The KD phase: distil the frozen ``teacher`` into a copy of ``state``'s KB and return it; arguments as in ``learn_next``."""
    student = copy.deepcopy(state.knowledge_base)
    student.settings = settings.base_fit()
    lesson, measured = train, None
    if settings.unlabelled_kd:
        lesson, measured = pseudo_labelled, np.full(len(pseudo_labelled), np.nan, np.float32)
        measured[: len(train)] = train.scores
    if settings.task_trust:
        learned, tasks = pseudo_labelled if settings.unlabelled_cl else train, 1 + int(lesson.tasks.max())
        trust = held_out_trust(state.knowledge_base.network, train, learned, tasks, settings)
    else:
        trust = batch_trust(teacher, lesson, student.settings)
    loss = DistillationLoss(
        teacher, trust, state.knowledge_base.network, of_mean_one(state.fisher) if settings.unit_fisher else state.fisher,
        settings.beta, settings.ewc_lambda, settings.fit.sigma,
        measured=measured, by_task=settings.task_trust, reordered=settings.task_labels,
    )  # fmt: skip
    student.report = fit_network(
        student.network,
        lesson,
        None,
        student.settings,
        loss=loss,
        on_epoch=on_epoch,
        checkpoint=checkpoint,
        identity=f"{settings!r} {trust.tolist()} {checksum(teacher.state_dict())} {checksum(state.fisher)}",
        regroup=False,
    )
    return student


def held_out_trust(base: MambaNetwork, measured: Samples, lesson: Samples, tasks: int, settings: DistillSettings) -> np.ndarray:
    """(tasks,) phi of each task number, by two-fold cross-validation over the measured programs' tasks.

    Two columns each learn ``lesson`` without one half of these tasks, and rank that half's measured programs.
    """
    drawn = np.random.default_rng([settings.fit.seed, 3]).permutation(np.unique(measured.tasks))
    scores, half = np.zeros(len(measured), np.float32), np.isin(measured.tasks, drawn[::2])
    for apart in (half, ~half):
        others = lesson.take(~np.isin(lesson.tasks, measured.tasks[apart]))
        column = start_column(base, settings)
        if any_usable(others):  # else the column ranks as it began
            column.fit(others)
        if apart.any():
            scores[apart] = column.predict(measured.take(apart))
    return trust_by_task(scores, measured, tasks, settings.fit.sigma)

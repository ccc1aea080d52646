"""Continuous knowledge distillation (CKD) along a chain of platforms (arXiv 2604.12891, section on CKD).

Two columns of one architecture: the knowledge base (KB) goes along the chain, the active column (AC) learns
the current platform.  Each platform after the first takes two phases, each a difference from ``fit_network``:

    CL phase  KB frozen; AC and its lateral adapters (``models.lateral_mamba``) learn with LambdaRank; cosine
              rate, restarting every 10 epochs
    KD phase  AC frozen as teacher; KB learns from it, from the measured labels, and is held near what it was
              (``DistillationLoss``); rate times 0.8 every 5 epochs; not after the last platform

Where this departs from the paper: it splits a number of epochs evenly over the platforms and again over the
two phases, while here params.yaml gives each its own (``train.epochs``, ``distill.epochs``,
``distill.kd_epochs``).

What the paper leaves open, and what is done here:
- The first platform has no KB yet: a plain Mamba is trained, and KB begins as its copy.
- AC begins as a copy of KB (``column_start="knowledge_base"``) since a new platform brings few records;
  ``"fresh"`` begins at random.  Adapters are 32 wide and begin closed.
- The Fisher diagonal is that of the LambdaRank loss of the platform just left, one gradient per task, on its
  training records; each platform's replaces the one before.
- P_T in the place of labels: the teacher's scores stretched to [0, 1] within the task.
- phi needs the batches of a run, so the KD phase keeps one grouping into batches and shuffles only their
  order.  The sum over j runs over steps: each step adds the EWC term once.
- Both phases keep their last epoch, as in the paper.  Only if tasks are kept apart for validation does the CL
  phase keep the best epoch by their loss; the KD phase never: validation on the newest platform alone would
  favour forgetting the others.

``mended`` keeps the two columns and phases, and changes what each term is made of, where few programs are measured:

    unlabelled_cl  AC learns by regression the labels that a teacher ensemble, which learned the few, gives measured and unlabelled
                   programs; as printed it ranks the measured alone, which are often one or two of a task
    unlabelled_kd  KB is distilled on all those programs.  As printed it hears AC of those alone whose labels taught AC.
    task_labels    P_T: the task's labels in the teacher's order.  Scores stretched to [0, 1] say that programs differ as much
                   in every task, and those gains weigh the pairs.
    task_trust     phi of each task, by errors on programs that were not learned: two further columns learn half of the tasks
                   each, and rank the other half's.  As printed it is of batches, and of what AC has learned by heart.
    unit_fisher    the Fisher diagonal over its mean.  As printed lambda is firm or nothing with the number of programs of a
                   task, over whose pairs the loss sums.
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
from tcl_core.learning.checkpoint import checksum
from tcl_core.learning.distillation_loss import DistillationLoss, batch_trust, fisher_diagonal, of_mean_one, trust_by_task
from tcl_core.learning.fit import FitSettings, fit_network
from tcl_core.learning_names import COLUMN_STARTS
from tcl_core.models.lateral_mamba import LateralMamba, LateralMambaModel
from tcl_core.models.mamba import MambaModel, MambaNetwork
from tcl_core.models.torch_model import SEEDING
from tcl_core.params import Params

MENDED_LAMBDA = 0.01  # of the printed one


@dataclass(frozen=True)
class DistillSettings:
    """What a step along the chain depends on (defaults: arXiv 2604.12891 where it gives them)."""

    fit: FitSettings = FitSettings()  # what both phases share; its epochs are not used
    epochs: int = 50  # of the CL phase
    kd_epochs: int = 50  # of the KD phase
    beta: float = 0.5  # share of the measured labels against the teacher
    ewc_lambda: float = 10_000.0  # how firmly KB is held near what it was
    adapter_width: int = 32
    column_start: str = "knowledge_base"  # of ``learning_names``: or fresh
    cl_period: int = 10  # epochs after which the CL phase's cosine begins again
    kd_period: int = 5  # epochs after which the KD phase's rate is 0.8 of what it was
    # What is mended, term by term: see above.
    unlabelled_cl: bool = False
    unlabelled_kd: bool = False
    task_labels: bool = False
    task_trust: bool = False
    unit_fisher: bool = False

    @classmethod
    def of(cls, params: Params) -> DistillSettings:
        """As params.yaml's section ``distill`` says: by LambdaRank, from measured programs alone.

        At a tenth of the programs a teacher ensemble of their own gained nothing (docs/models.md).
        """
        d, usual = params.distill, cls().fit
        own = {"learning_rate": d.learning_rate, "batch_size": d.batch_size, "loss": usual.loss, "schedule": usual.schedule}
        fit = replace(fit_settings(params), **own)
        return cls(fit, d.epochs, d.kd_epochs, d.beta, d.ewc_lambda, d.adapter_width, d.column_start)

    def column_fit(self) -> FitSettings:
        """How the CL phase trains."""
        return replace(self.fit, epochs=self.epochs, schedule="cosine", period=self.cl_period)

    def base_fit(self) -> FitSettings:
        """How the KD phase trains."""
        return replace(self.fit, epochs=self.kd_epochs, schedule="step", period=self.kd_period)


def mended(settings: DistillSettings) -> DistillSettings:
    """All terms mended.  The Fisher diagonal's mean is 1 then, and ``ewc_lambda`` counts a hundredth: the paper's 10,000 is 100.

    On one fold of the reference data, with 160 labels from AVX2 to AVX-512, 1 lost .05 to .10 of the earlier platform's pairs,
    30 .02 to .03, 100 less than .005, 1,000 none.
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
        """KB has heard of the platform, unless it is the last, whose KD phase is left out."""
        return Learned(state if step.is_last else state.with_platform(step.hardware))


class CkdMended(Ckd):
    """``distill.method: ckd-mended``: its terms mended, and learned from unlabelled programs too."""

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
    """Learn the chain's next platform; ``state`` is that of the platform before and stays as it is.

    ``pseudo_labelled`` are the programs of ``train`` in their order and unlabelled ones behind them, with a teacher ensemble's labels
    (``teaching.pseudo_labelled``), where the settings learn from such.  ``last`` leaves out the KD phase: KB and its Fisher diagonal
    then stay those of ``state``.  ``checkpoint`` as in ``learn_first``.  Raises DataError when there is nothing to learn
    from, UsageError for settings that need ``pseudo_labelled`` without it.
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
    """AC before its CL phase, beside a frozen copy of KB."""
    if settings.column_start not in COLUMN_STARTS:
        raise unknown_name("column start", settings.column_start, COLUMN_STARTS)
    with SEEDING, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(settings.fit.seed)  # a caller's GPUs keep their states
        column = MambaNetwork(**base.arguments)
        column.standardise.load_state_dict(base.standardise.state_dict())
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
    """The KD phase: KB, from where ``state`` left it, learns what the frozen ``teacher`` found; arguments as in ``learn_next``."""
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
    """(tasks,) phi of each task number, as two columns tell that learn ``lesson``, each without half of the measured programs'
    tasks, and rank those.
    """
    drawn = np.random.default_rng([settings.fit.seed, 3]).permutation(np.unique(measured.tasks))
    scores, half = np.zeros(len(measured), np.float32), np.isin(measured.tasks, drawn[::2])
    for apart in (half, ~half):
        others = lesson.take(~np.isin(lesson.tasks, measured.tasks[apart]))
        column = start_column(base, settings)
        if np.unique(others.tasks, return_counts=True)[1].max(initial=0) > 1:  # else there is nothing to learn
            column.fit(others)
        if apart.any():
            scores[apart] = column.predict(measured.take(apart))
    return trust_by_task(scores, measured, tasks, settings.fit.sigma)

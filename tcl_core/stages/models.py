"""Stages that make models and judge them: train, distill, evaluate."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core import provenance, registry, store
from tcl_core.bridge import BridgeSettings, bridged
from tcl_core.checked import write_contents, write_json
from tcl_core.ckd import ChainState, DistillSettings, learn_first, learn_next, mended
from tcl_core.errors import PlatformError
from tcl_core.evaluation import plots
from tcl_core.evaluation.intervals import chain_figures, model_figures
from tcl_core.evaluation.metrics import Networks, top_k
from tcl_core.evaluation.report import collection_progress, terminal_table
from tcl_core.features.batches import Samples
from tcl_core.files import whole_folder
from tcl_core.learning.distillation_loss import fisher_diagonal
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.mamba import MambaModel
from tcl_core.progress import Progress, progress
from tcl_core.stages import baselines
from tcl_core.stages.project import (
    JOURNAL,
    REPORTS,
    Project,
    judged_now,
    model_folder,
    read_saved_hardware,
    learning_curve,
    read_measured,
    records_folder,
    save_hardware,
    timed,
    training_alone,
)
from tcl_core.teaching import COMMITTEE, taught

SCRATCH = "scratch"  # below a platform's model: the plain model trained on that platform's records only


class _Curve:
    """Collects what each epoch reports and advances the progress bar."""

    def __init__(self, shown: Progress) -> None:
        self.shown = shown
        self.epochs: list[dict[str, Any]] = []

    def __call__(self, phase: str, epoch: int, loss: float, metrics: dict[str, float]) -> None:
        self.epochs.append({"phase": phase, "epoch": epoch, "loss": loss, **metrics})
        self.shown.advance(f"{phase} loss {loss:.4f}" + (f", top-1 {metrics['valid_top1']:.3f}" if metrics else ""))


def fit_settings(project: Project) -> FitSettings:
    """How a model of one platform trains: params.yaml's section ``train``."""
    t = project.params.train
    return FitSettings(
        epochs=t.epochs,
        batch_size=t.batch_size,
        learning_rate=t.learning_rate,
        weight_decay=t.weight_decay,
        clip_norm=t.gradient_clip,
        loss=t.loss,
        schedule=t.schedule,
        period=t.epochs,
        seed=project.params.seed,
    )


def distill_settings(project: Project) -> DistillSettings:
    """How a later platform is learned, and the plain model beside it: by LambdaRank, from measured programs alone.

    At a tenth of the programs a committee of their own gained nothing (docs/models.md).
    """
    given = asdict(project.params.distill)
    del given["method"]
    own, usual = {name: given.pop(name) for name in ("learning_rate", "batch_size")}, DistillSettings().fit
    return DistillSettings(replace(fit_settings(project), **own, loss=usual.loss, schedule=usual.schedule), **given)


def run_train(project: Project) -> str:
    """Train on the chain's first platform -> data/models/P/."""
    platform = project.params.chain.first
    if reason := store.skipped_reason(records_folder(platform)):
        raise PlatformError(f"the chain starts at {platform}, which was skipped ({reason}); set chain.first in params.yaml")
    checkpoint = JOURNAL / "checkpoints" / platform
    with training_alone(checkpoint), timed("train"):
        origin = _origin(project, "train", [platform], "train")
        measured, valid = project.split_by_task(project.samples(platform), project.params.train.validation_share)
        train = _with_unmeasured(project, platform, measured)
        with progress(f"training on {platform}", project.params.train.epochs) as shown:
            curve = _Curve(shown)
            state = learn_first(
                train, valid, fit_settings(project), measured=measured, on_epoch=curve, checkpoint=checkpoint
            )
        state = replace(state, hardware=(tuple(read_saved_hardware(records_folder(platform)).vector()),))
        _save(state, platform, curve, checkpoint, origin)
    more = f", and on {len(train) - len(measured)} that a committee labelled" if len(train) > len(measured) else ""
    return f"trained on {len(measured)} measured programs of {platform}{more}"


def _with_unmeasured(project: Project, platform: str, measured: Samples) -> Samples:
    """The programs with labels of a committee that learned from them, and further ones that it labelled (``teaching``)."""
    with progress(f"asking a committee about programs of {platform}", sum(member.count for member in COMMITTEE)) as shown:
        return _taught(project, platform, measured, ("tokens", "statements"), shown.advance)


def _taught(
    project: Project, platform: str, measured: Samples, reads: Sequence[str], on_member: Callable[[str], None] = lambda name: None
) -> Samples:
    """So labelled by those members of the committee that read one of these; unlabelled where params.yaml wants no further programs."""
    count, tasks = project.params.train.unmeasured, np.unique(measured.tasks)
    if not count:
        return measured
    more = project.unmeasured(tasks, count, platform, reads)
    views = {each: project.samples_in(each, platform) for each in more}
    views = {each: samples.take(np.isin(samples.tasks, tasks)) for each, samples in views.items()}
    return taught(views, more, project.params.seed, on_member=on_member)


def run_distill(project: Project, platform: str, from_registry: bool = False) -> str:
    """Learn the next platform of the chain, by params.yaml's ``distill.method`` -> data/models/P/.

    It goes on from the model of the platform before, or ``from_registry`` from that platform's champion, wherever it was trained.
    """
    if reason := store.skipped_reason(records_folder(platform)):
        # The next platform goes on from the model before this one: its digest makes DVC see when that one changes.
        before = store.data_digest(model_folder(project.params.previous(platform)))
        with whole_folder(model_folder(platform)) as folder:  # takes the place of a model of a better machine
            store.write_skipped(folder, platform, reason, model_before=before)
        return f"skipped: {reason}"
    method, checkpoint = METHODS[project.params.distill.method], JOURNAL / "checkpoints" / platform
    with training_alone(checkpoint), timed(f"distill@{platform}"):
        before, folder = _champion_before(project, platform) if from_registry else _model_before(project, platform)
        records = [name for name in (platform, before) if name == platform or method.reads_both and project.seconds(name)]
        origin = _origin(project, f"distill@{platform}", records, *method.sections, before=folder)
        step = _Step(project, before, platform, ChainState.load(folder), checkpoint)
        with progress(f"distilling {before} -> {platform}", method.epochs(step) + project.params.bridge.epochs) as shown:
            curve = _Curve(shown)
            state, said = method.learn(step, curve)
            alone = _own_data_only(step, shown)
        _save(state, platform, curve, checkpoint, origin, alone)
    return f"learned {platform} from {len(step.measured)} programs and what {before} knew{said}"


def _model_before(project: Project, platform: str) -> tuple[str, Path]:
    before = project.ran_before(platform)
    return before, model_folder(before)


def _champion_before(project: Project, platform: str) -> tuple[str, Path]:
    before = project.params.previous(platform)
    return before, registry.champion(before)[1]


@dataclass(frozen=True)
class _Step:
    """From one platform of the chain to the next."""

    project: Project
    before: str
    platform: str
    state: ChainState
    checkpoint: Path

    @cached_property
    def measured(self) -> Samples:
        return self.project.samples(self.platform)

    @property
    def own(self) -> tuple[Samples, Samples | None]:
        """What was measured, and of it the tasks that are kept apart."""
        return self.project.split_by_task(self.measured, self.project.params.train.validation_share)

    @property
    def is_last(self) -> bool:
        """Of the chain, whatever this machine skips: no other stage's doing."""
        return self.platform == self.project.params.chain_order[-1]


class _Ckd:
    """The paper's: CL phase, then KD unless it is the last."""

    sections, reads_both = ("train", "distill"), False

    @staticmethod
    def epochs(step: _Step) -> int:
        settings = step.project.params.distill
        return settings.epochs + (0 if step.is_last else settings.kd_epochs)

    @staticmethod
    def learn(step: _Step, curve: _Curve) -> tuple[ChainState, str]:
        settings = distill_settings(step.project)
        return learn_next(step.state, *step.own, settings, last=step.is_last, on_epoch=curve, checkpoint=step.checkpoint), ""


class _CkdMended(_Ckd):
    """The paper's with its terms mended, which also learns from unmeasured programs (``tcl_core.ckd``)."""

    @staticmethod
    def learn(step: _Step, curve: _Curve) -> tuple[ChainState, str]:
        settings, (train, valid) = mended(distill_settings(step.project)), step.own
        labelled = _taught(step.project, step.platform, train, ("tokens",))
        state = learn_next(
            step.state, train, valid, settings,
            taught=labelled, last=step.is_last, on_epoch=curve, checkpoint=step.checkpoint,
        )  # fmt: skip
        return state, ""


class _Bridge:
    """What is known, corrected by what is measured (``tcl_core.bridge``)."""

    sections, reads_both = ("train", "bridge"), True

    @staticmethod
    def epochs(step: _Step) -> int:
        return step.project.params.bridge.epochs

    @staticmethod
    def learn(step: _Step, curve: _Curve) -> tuple[ChainState, str]:
        project, hardware = step.project, read_saved_hardware(records_folder(step.platform)).vector()
        keys = [record.key for record in read_measured(step.platform)]
        there = project.seconds(step.before)
        with_records = set(keys)
        others = [key for key in there if key not in with_records]
        tasks = {project.encoder.numbers[key[0]] for key in (*keys, *others)}
        others += project.unmeasured_keys(sorted(tasks), project.params.train.unmeasured, with_records | set(others))
        model, labelled = bridged(
            step.state.knowledge_base, step.measured, project.encoder.encode(others, hardware), bridge_settings(project),
            source_s=np.array([there.get(key, np.nan) for key in (*keys, *others)]), earlier=step.state.hardware,
            on_epoch=lambda epoch, loss, metrics: curve("bridge", epoch, loss, metrics), checkpoint=step.checkpoint,
        )  # fmt: skip
        fisher = fisher_diagonal(model.network, step.measured)
        state = ChainState(model, copy.deepcopy(model), fisher, (*step.state.hardware, tuple(hardware)))
        return state, f"; the difference is believed by {labelled.share:.0%}, which leaves {labelled.left:.0%} of it unexplained"


METHODS: dict[str, type[_Bridge] | type[_Ckd]] = {"bridge": _Bridge, "ckd": _Ckd, "ckd-mended": _CkdMended}


def bridge_settings(project: Project) -> BridgeSettings:
    """params.yaml's section ``bridge``."""
    b, t = project.params.bridge, project.params.train
    fit = replace(
        BridgeSettings().fit, epochs=b.epochs, batch_size=b.batch_size, learning_rate=b.learning_rate,
        weight_decay=t.weight_decay, clip_norm=t.gradient_clip, period=b.epochs, seed=project.params.seed,
    )  # fmt: skip
    return BridgeSettings(fit, b.rehearsal)


def _own_data_only(step: _Step, shown: Progress) -> MambaModel:
    """What the chain is compared with: a network that knows this platform's records and nothing else.

    It is taught as the chain's first platform is, by the trees that read tokens alone, for as many epochs as the bridge's.  That
    one rehearses earlier platforms beside, and so takes more steps.
    """
    train = _taught(step.project, step.platform, step.measured, ("tokens",))
    model = MambaModel(bridge_settings(step.project).fit)
    note = lambda epoch, loss, metrics: shown.advance(f"for comparison, own data only: loss {loss:.4f}")  # noqa: E731
    model.fit(train, None, note, checkpoint=step.checkpoint / "scratch")
    return model


def _origin(
    project: Project, stage: str, platforms: Sequence[str], *sections: str, before: Path | None = None
) -> dict[str, Any]:
    """What a model of the chain is made of, the records of ``platforms`` and the model ``before`` among it; to be asked for
    before its training, for all of it may change meanwhile.
    """
    params, sections = project.params, (*sections, "collect", "measure")
    return provenance.collect(
        stage,
        {"seed": params.seed, **{name: asdict(getattr(params, name)) for name in sections}},
        {platform: records_folder(platform) for platform in platforms},
        before,
    )


def _save(
    state: ChainState,
    platform: str,
    curve: _Curve,
    checkpoint: Path,
    origin: dict[str, Any],
    alone: MambaModel | None = None,
) -> None:
    """The model's folder holds all that ranking needs, weights and hardware row, what it was made of, how it learned, and,
    in ``scratch/``, the model that it is compared with; it appears whole or not at all.
    """
    with whole_folder(model_folder(platform)) as folder:
        state.write_into(folder)
        save_hardware(folder, read_saved_hardware(records_folder(platform)))
        write_json(folder / "curve.json", {"epochs": curve.epochs})
        provenance.write(folder, origin)
        if alone:
            alone.save(folder / SCRATCH)
        write_contents(folder)
    shutil.rmtree(checkpoint, ignore_errors=True)


def run_evaluate(project: Project) -> str:
    """Rank every platform's held-out programs with every platform's model -> data/reports/evaluation.json, plots.

    Beside the chained model of a platform stand two that show what distillation is worth: ``zero-shot``, the model
    of the platform before, which has seen no measurement of this one but is given its hardware row, and
    ``own data only``, a plain model that knows nothing of the chain.  Then come those of params.yaml's ``baselines``.
    """
    ran = project.platforms_that_ran()
    with timed("evaluate"):
        judged = {p: judged_now(p) for p in ran}
        weights = project.task_weights("held_out")
        held_out = {p: project.samples(p, "holdout") for p in ran}
        models = {p: catalogue.load(model_folder(p)) for p in ran}
        bases = {p: catalogue.load(model_folder(p) / "knowledge_base") for p in ran}
        predicted = {(m, p): models[m].predict(held_out[p]) for m in ran for p in ran}
        others = project.params.baselines.models
        by_base = {(m, p): bases[m].predict(held_out[p]) for m in ran for p in ran}
        evaluation = {
            "platforms": _figures(project, held_out, weights, {p: predicted[p, p] for p in ran}),
            "baselines": {
                "zero-shot": _figures(project, held_out, weights, {p: predicted[b, p] for b, p in pairwise(ran)}),
                "own data only": _figures(project, held_out, weights, _by_scratch(held_out)),
                **{name: _figures(project, held_out, weights, baselines.predicted(project, name)) for name in others},
            },
            "chain": _chain(predicted, held_out, weights),
            "knowledge_base": _chain(by_base, held_out, weights),
            "parameters": {p: m.parameter_count() for p, m in models.items()},
            "judged": judged,
        }
        write_json(REPORTS / "evaluation.json", evaluation)
        _plot(project, evaluation, held_out, predicted)
    return terminal_table(evaluation)


def _figures(
    project: Project, held_out: dict[str, Samples], weights: Networks, predicted: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Platform -> figures of the predictions of its held-out programs."""
    e, seed = project.params.evaluate, project.params.seed
    return {
        p: model_figures(scores, held_out[p].latencies_s, held_out[p].tasks, weights, e.top_k, e.bootstrap, seed)
        for p, scores in predicted.items()
    }


def _by_scratch(held_out: dict[str, Samples]) -> dict[str, np.ndarray]:
    """Platform -> predictions of its model that was trained on its own records only; the chain's first has none."""
    folders = {p: model_folder(p) / SCRATCH for p in held_out}
    return {p: MambaModel.load(f).predict(held_out[p]) for p, f in folders.items() if f.exists()}


def _chain(
    predicted: dict[tuple[str, str], np.ndarray], held_out: dict[str, Samples], weights: Networks
) -> dict[str, Any]:
    """The matrix of top-1: row = model after a platform, column = platform ranked."""
    ran = list(held_out)
    top_1 = lambda m, p: top_k(predicted[m, p], held_out[p].latencies_s, held_out[p].tasks, weights, 1)  # noqa: E731
    return chain_figures(ran, [[top_1(m, p) for p in ran] for m in ran])


def _plot(
    project: Project,
    evaluation: dict[str, Any],
    held_out: dict[str, Samples],
    predicted: dict[tuple[str, str], np.ndarray],
) -> None:
    folder, ran = REPORTS / "plots", list(held_out)
    written = {
        plots.plot_top_k(evaluation, folder),
        plots.plot_chain(evaluation["chain"], folder),
        plots.plot_ranks({p: (predicted[p, p], held_out[p].scores, held_out[p].tasks) for p in ran}, folder),
        plots.plot_learning({p: learning_curve(model_folder(p)) for p in ran}, folder),
        plots.plot_collection({p: _collection(project, p) for p in ran}, folder),
    }
    for stale in set(folder.glob("*.png")) - written:
        stale.unlink()


def _collection(project: Project, platform: str) -> list[dict[str, Any]]:
    records = read_measured(platform)
    numbers = project.encoder.numbers
    return collection_progress(
        np.array([r.round for r in records]),
        np.array([r.latency_s for r in records]),
        np.array([numbers[r.task_key] for r in records]),
        project.encoder.operators([r.key for r in records]).tolist(),
    )

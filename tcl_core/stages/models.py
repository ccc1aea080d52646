"""Stages that make models and judge them: train, distill, evaluate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core import store
from tcl_core.distill import ChainState, DistillSettings, learn_first, learn_next
from tcl_core.errors import PlatformError, UsageError
from tcl_core.evaluation import plots
from tcl_core.evaluation.intervals import chain_figures, model_figures
from tcl_core.evaluation.metrics import top_k
from tcl_core.evaluation.report import collection_progress, terminal_table, write_json
from tcl_core.features.batches import Samples
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel
from tcl_core.progress import Progress, progress
from tcl_core.stages.project import (
    DATA,
    JOURNAL,
    REPORTS,
    Project,
    model_folder,
    read_saved_hardware,
    records_folder,
    save_hardware,
    timed,
)


class _Curve:
    """Collects what each epoch reports and advances the progress bar."""

    def __init__(self, shown: Progress) -> None:
        self.shown = shown
        self.epochs: list[dict[str, Any]] = []

    def __call__(self, phase: str, epoch: int, loss: float, metrics: dict[str, float]) -> None:
        self.epochs.append({"phase": phase, "epoch": epoch, "loss": loss, **metrics})
        self.shown.advance(f"{phase} loss {loss:.4f}" + (f", top-1 {metrics['valid_top1']:.3f}" if metrics else ""))


def fit_settings(project: Project) -> FitSettings:
    """How the first platform's model trains."""
    t = project.params.train
    return FitSettings(
        epochs=t.epochs,
        batch_size=t.batch_size,
        learning_rate=t.learning_rate,
        weight_decay=t.weight_decay,
        clip_norm=t.gradient_clip,
        seed=project.params.seed,
    )


def run_train(project: Project, name: str | None = None) -> str:
    """Train on the chain's first platform -> data/models/P/.

    Another model than params.yaml's goes to data/baselines/NAME/P/, so that no stage's output is touched.
    """
    platform, chosen = project.params.chain.first, project.params.train.model
    if name and name != chosen:
        return _train_baseline(project, platform, name)
    if chosen != "mamba":
        raise UsageError(
            f"train.model is '{chosen}', but only 'mamba' can start the chain of platforms; "
            f"train another one beside it with: tcl train --model {chosen}"
        )
    if reason := store.skipped_reason(records_folder(platform)):
        raise PlatformError(f"the chain starts at {platform}, which was skipped ({reason}); set chain.first in params.yaml")
    with timed("train"):
        train, valid = project.split_by_task(project.samples(platform), project.params.train.validation_share)
        with progress(f"training on {platform}", project.params.train.epochs) as shown:
            curve, checkpoint = _Curve(shown), JOURNAL / "checkpoints" / platform
            state = learn_first(train, valid, fit_settings(project), on_epoch=curve, checkpoint=checkpoint)
        _save(state, platform, curve, checkpoint)
    return f"trained on {len(train)} programs of {platform}"


def _train_baseline(project: Project, platform: str, name: str) -> str:
    model = catalogue.create(name, fit_settings(project))
    train, valid = project.split_by_task(project.samples(platform), project.params.train.validation_share)
    with progress(f"training {name} on {platform}", project.params.train.epochs) as shown:
        model.fit(train, valid, lambda epoch, loss, metrics: shown.advance(f"loss {loss:.4f}"))
    folder = DATA / "baselines" / name / platform
    model.save(folder)
    return f"trained {name} on {len(train)} programs of {platform}; it lies in {folder}"


def run_distill(project: Project, platform: str) -> str:
    """Learn the next platform of the chain: CL phase, then KD unless it is the last -> data/models/P/."""
    if reason := store.skipped_reason(records_folder(platform)):
        # The next platform goes on from the model before this one: its digest makes DVC see when that one changes.
        before = store.data_digest(model_folder(project.params.previous(platform)))
        store.write_skipped(model_folder(platform), platform, reason, model_before=before)
        return f"skipped: {reason}"
    d, t = project.params.distill, project.params.train
    last = platform == project.platforms_that_ran()[-1]
    settings = DistillSettings(
        epochs=d.epochs,
        kd_epochs=d.kd_epochs,
        batch_size=t.batch_size,
        learning_rate=t.learning_rate,
        weight_decay=t.weight_decay,
        clip_norm=t.gradient_clip,
        beta=d.beta,
        ewc_lambda=d.ewc_lambda,
        adapter_width=d.adapter_width,
        column_start=d.column_start,
        seed=project.params.seed,
    )
    with timed(f"distill@{platform}"):
        before = project.ran_before(platform)
        state = ChainState.load(model_folder(before))
        train, valid = project.split_by_task(project.samples(platform), t.validation_share)
        with progress(f"distilling {before} -> {platform}", d.epochs + (0 if last else d.kd_epochs)) as shown:
            curve, checkpoint = _Curve(shown), JOURNAL / "checkpoints" / platform
            state = learn_next(state, train, valid, settings, last=last, on_epoch=curve, checkpoint=checkpoint)
        _save(state, platform, curve, checkpoint)
    return f"learned {platform} from {len(train)} programs and what {before} knew"


def _save(state: ChainState, platform: str, curve: _Curve, checkpoint: Path) -> None:
    """The model's folder holds all that ranking needs: weights, hardware row; and how it learned."""
    folder = model_folder(platform)
    state.save(folder)
    save_hardware(folder, read_saved_hardware(records_folder(platform)))
    write_json(folder / "curve.json", curve.epochs)
    shutil.rmtree(checkpoint, ignore_errors=True)


def run_evaluate(project: Project) -> str:
    """Rank every platform's held-out programs with every platform's model -> data/reports/evaluation.json, plots."""
    params = project.params
    ran = project.platforms_that_ran()
    with timed("evaluate"):
        weights = project.task_weights("held_out")
        held_out = {p: project.samples(p, "holdout") for p in ran}
        models = {p: catalogue.load(model_folder(p)) for p in ran}
        predicted = {(m, p): models[m].predict(held_out[p]) for m in ran for p in ran}
        figures = {
            p: model_figures(
                predicted[p, p], held_out[p].latencies_s, held_out[p].tasks, weights,
                params.evaluate.top_k, params.evaluate.bootstrap, params.seed,
            )
            for p in ran
        }  # fmt: skip
        matrix = [[top_k(predicted[m, p], held_out[p].latencies_s, held_out[p].tasks, weights, 1) for p in ran] for m in ran]
        evaluation = {"platforms": figures, "chain": chain_figures(ran, matrix), "parameters": _sizes(models)}
        write_json(REPORTS / "evaluation.json", evaluation)
        _plot(project, evaluation, held_out, predicted)
    return terminal_table(evaluation)


def _sizes(models: dict[str, CostModel]) -> dict[str, int]:
    """Platform -> parameters of its deployable model."""
    return {p: sum(w.numel() for w in m.network.parameters()) for p, m in models.items()}


def _plot(
    project: Project,
    evaluation: dict[str, Any],
    held_out: dict[str, Samples],
    predicted: dict[tuple[str, str], np.ndarray],
) -> None:
    folder, ran = REPORTS / "plots", list(held_out)
    plots.plot_top_k(evaluation, folder)
    plots.plot_chain(evaluation["chain"], folder)
    plots.plot_ranks({p: (predicted[p, p], held_out[p].scores, held_out[p].tasks) for p in ran}, folder)
    plots.plot_learning({p: json.loads((model_folder(p) / "curve.json").read_text()) for p in ran}, folder)
    plots.plot_collection({p: _collection(project, p) for p in ran}, folder)


def _collection(project: Project, platform: str) -> list[dict[str, Any]]:
    records = store.read_records(records_folder(platform))
    numbers = project.encoder.numbers
    return collection_progress(
        np.array([r.round for r in records]),
        np.array([r.latency_s for r in records]),
        np.array([numbers[r.task_key] for r in records]),
        project.encoder.operators([r.key for r in records]).tolist(),
    )

"""Other cost models than the chain's, trained by name on the same records: what it is compared with."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core import provenance, store
from tcl_core.errors import DataError, UsageError
from tcl_core.features.batches import Samples
from tcl_core.models import catalogue
from tcl_core.progress import progress
from tcl_core.stages.project import (
    DATA,
    JOURNAL,
    Project,
    read_saved_hardware,
    records_folder,
    save_hardware,
    timed,
    training_alone,
)


LISTED = DATA / "models" / "beside_chain"  # stages' outputs; no platform can be called so
BY_HAND = DATA / "baselines"  # of models that params.yaml does not list


def baseline_folder(project: Project, name: str, platform: str = "") -> Path:
    return (LISTED if name in project.params.baselines.models else BY_HAND) / name / platform


def run_baseline(project: Project, name: str, platform: str | None = None) -> str:
    """Train a model of the catalogue on one platform's records, or on each one's -> NAME/PLATFORM/ below ``baseline_folder``.

    Its settings are its own, not params.yaml's, which were chosen for the chain's model.  Raises UsageError for a name or a
    platform that it cannot learn.
    """
    ran = platforms_of(project, name)
    project.check_lowering(name)
    if platform and platform not in ran:
        raise UsageError(f"{name} cannot be trained on {platform}: {_why_not(project, platform)}")
    if not ran:
        reason = f"{name} also learns from earlier platforms of the chain, and there is none"
        _remove_stale(project, name, ran)
        store.write_skipped(baseline_folder(project, name), project.params.chain.first, reason)
        return f"skipped: {reason}"
    checkpoints = JOURNAL / "checkpoints" / "baselines" / name
    with training_alone(checkpoints), timed(f"baseline@{name}"):
        said = [_train(project, name, place, checkpoints / place) for place in ([platform] if platform else ran)]
        if platform is None:
            _remove_stale(project, name, ran)
        shutil.rmtree(checkpoints, ignore_errors=True)  # only now: what a killed run had finished costs the next one nothing
    return "\n".join(said)


def _remove_stale(project: Project, name: str, ran: list[str]) -> None:
    """What an earlier run left: why there was no model and, in a stage's output, models of platforms that no longer run."""
    folder = baseline_folder(project, name)
    (folder / "skipped.json").unlink(missing_ok=True)
    for model in (LISTED / name).glob("*/hardware.json") if folder.is_relative_to(LISTED) else ():
        if model.parent.name not in ran and not model.parent.is_symlink():
            shutil.rmtree(model.parent)


def platforms_of(project: Project, name: str) -> list[str]:
    """The platforms that ran here and that a model can learn: one that learns from earlier ones needs such."""
    ran = project.platforms_that_ran()
    return ran[1:] if catalogue.model_class(name).learns_from_sources else ran


def predicted(project: Project, name: str) -> dict[str, np.ndarray]:
    """Platform -> (N,) scores of its held-out programs by the model that was trained on its records.

    Raises DataError where one has not been trained.
    """
    folders = {platform: baseline_folder(project, name, platform) for platform in platforms_of(project, name)}
    if missing := [folder for folder in folders.values() if not folder.exists()]:
        raise DataError(f"baselines.models lists {name}, but there is no {missing[0]}; run: tcl train --model {name}")
    held_out = {platform: project.samples_for(name, platform, "holdout") for platform in folders}
    return {platform: catalogue.load(folder).predict(held_out[platform]) for platform, folder in folders.items()}


def _why_not(project: Project, platform: str) -> str:
    if platform not in project.params.chain_order:
        return "it is not in the chain of params.yaml"
    return store.skipped_reason(records_folder(platform)) or "it also learns from earlier platforms, and there is none"


def _train(project: Project, name: str, platform: str, checkpoint: Path) -> str:
    settings = replace(catalogue.own_settings(name), seed=project.params.seed)
    model = catalogue.create(name, settings)
    origin = _origin(project, name, platform, asdict(settings), model.learns_from_sources)
    samples = project.samples_for(name, platform)
    if model.needs_states:
        samples = project.with_states(samples, platform)
    train, valid = project.split_by_task(samples, project.params.train.validation_share)
    sources = _sources(project, platform, valid) if model.learns_from_sources else []
    with progress(f"training {name} on {platform}", settings.epochs) as shown:
        note = lambda epoch, loss, metrics: shown.advance(f"loss {loss:.4f}")  # noqa: E731
        model.fit(train, valid, note, sources=sources, checkpoint=checkpoint)
    folder = baseline_folder(project, name, platform)
    model.save(folder)
    save_hardware(folder, read_saved_hardware(records_folder(platform)))  # what `tcl predict` gives its programs
    provenance.write(folder, origin)
    return f"trained {name} on {len(train)} programs of {platform}; it lies in {folder}"


def _origin(project: Project, name: str, platform: str, settings: dict[str, Any], all_earlier: bool) -> dict[str, Any]:
    """What a model beside the chain is made of: its settings are its own, its data those of one platform or of all up to it."""
    ran, params = project.platforms_that_ran(), project.params
    learned = ran[: ran.index(platform) + 1] if all_earlier else [platform]
    given = {"validation_share": params.train.validation_share, "collect": asdict(params.collect), "measure": asdict(params.measure)}
    return provenance.collect(f"baseline@{name}", settings | given, {p: records_folder(p) for p in learned})


def _sources(project: Project, platform: str, valid: Samples | None) -> list[Samples]:
    """What was measured on the platforms before this one, without the tasks that are kept apart."""
    apart = valid.tasks if valid is not None else []
    ran = project.platforms_that_ran()
    sources = [project.samples(earlier) for earlier in ran[: ran.index(platform)]]
    return [samples.take(~np.isin(samples.tasks, apart)) for samples in sources]

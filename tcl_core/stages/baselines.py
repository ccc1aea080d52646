"""Baselines: other cost models, trained by name on the chain's records, that the chain is compared with."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from itertools import dropwhile
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core import provenance, store
from tcl_core.errors import DataError, UsageError
from tcl_core.features.batches import Samples
from tcl_core.models import catalogue
from tcl_core.platforms import read_saved_hardware, save_hardware
from tcl_core.progress import progress
from tcl_core.stages.machine import training_alone
from tcl_core.stages.workspace import Skipped, Workspace, check_lowering, without_tasks


def listed_folder(workspace: Workspace) -> Path:
    """Folder of the baselines that stages train; no platform can have its name."""
    return workspace.data / "models" / "beside_chain"


def baseline_folder(workspace: Workspace, name: str, platform: str = "") -> Path:
    """Folder of a baseline; one that params.yaml does not list is no stage's output and lies elsewhere."""
    listed = name in workspace.params.baselines.models
    return (listed_folder(workspace) if listed else workspace.data / "baselines") / name / platform


@dataclass(frozen=True)
class BaselineReport:
    """How many programs a model learned from, and its folder."""

    model: str
    platform: str
    programs: int
    folder: Path

    def __str__(self) -> str:
        return f"trained {self.model} on {self.programs} programs of {self.platform}; it lies in {self.folder}"


def train_baseline(workspace: Workspace, name: str, platform: str | None = None) -> list[BaselineReport] | Skipped:
    """Train a catalogue model on one platform's records, or on each platform's in turn -> ``baseline_folder``.

    It uses its own settings, not params.yaml's, which were chosen for the chain's model; seed and validation share are
    params.yaml's.  Raises UsageError for a name or a platform that it cannot learn.
    """
    ran = platforms_of(name, platforms_measured(workspace))
    check_lowering(name, workspace.params.candidates.design_space)
    if platform and platform not in ran:
        raise UsageError(f"{name} cannot be trained on {platform}: {_why_not(workspace, platform)}")
    if not ran:
        reason = f"{name} also learns from earlier platforms of the chain, and there is none"
        _remove_stale(workspace, name, ran)
        store.write_skipped(baseline_folder(workspace, name), workspace.params.chain.first, reason)
        return Skipped(workspace.params.chain.first, reason)
    checkpoints = workspace.journal / "checkpoints" / "baselines" / name
    with training_alone(checkpoints), workspace.timed(f"baseline@{name}"):
        trained = [_train(workspace, name, place, checkpoints / place) for place in ([platform] if platform else ran)]
        if platform is None:
            _remove_stale(workspace, name, ran)
        shutil.rmtree(checkpoints / (platform or ""), ignore_errors=True)  # only now: after a kill the next run reuses what was finished
    return trained


def _remove_stale(workspace: Workspace, name: str, ran: list[str]) -> None:
    """Remove what an earlier run left: the reason for no model and, in a stage's output, models of platforms not measured here now."""
    folder = baseline_folder(workspace, name)
    (folder / "skipped.json").unlink(missing_ok=True)
    for model in folder.glob("*/hardware.json") if folder.parent == listed_folder(workspace) else ():
        if model.parent.name not in ran and not model.parent.is_symlink():
            shutil.rmtree(model.parent)


def platforms_of(name: str, platforms: list[str]) -> list[str]:
    """Those of ``platforms``, in chain order, that a model can learn: not the first, if it also learns from earlier ones."""
    return platforms[1:] if catalogue.model_class(name).learns_from_sources else platforms


def platforms_measured(workspace: Workspace) -> list[str]:
    """``platforms_that_ran`` from the first whose records lie here; all of them where none do.

    Unlike ``platforms_here`` it reads nothing but data/records, the stage's input: DVC would not see what else changes.
    """
    ran = workspace.platforms_that_ran()
    return list(dropwhile(lambda p: not workspace.records_folder(p).exists(), ran)) or ran


def predicted(workspace: Workspace, name: str, without: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Platform -> (N,) scores of its held-out programs by the baseline trained on its records.

    Tasks of the keys ``without`` are left out.  Raises DataError where a baseline has not been trained.
    """
    trained, here = platforms_of(name, platforms_measured(workspace)), workspace.platforms_here()
    folders = {platform: baseline_folder(workspace, name, platform) for platform in trained if platform in here}
    if missing := [folder for folder in folders.values() if not folder.exists()]:
        raise DataError(f"baselines.models lists {name}, but there is no {missing[0]}; run: tcl train --model {name}")
    held_out = {p: without_tasks(workspace, workspace.samples_for(name, p, "holdout"), without)[0] for p in folders}
    return {platform: catalogue.load(folder).predict(held_out[platform]) for platform, folder in folders.items()}


def _why_not(workspace: Workspace, platform: str) -> str:
    if platform not in workspace.params.chain_order:
        return "it is not in the chain of params.yaml"
    if reason := workspace.skipped(platform):
        return reason
    if platform not in platforms_measured(workspace):
        return f"no records of it lie here; run: dvc repro collect@{platform}"
    return "it also learns from earlier platforms, and there is none"


def _train(workspace: Workspace, name: str, platform: str, checkpoint: Path) -> BaselineReport:
    settings = replace(catalogue.own_settings(name), seed=workspace.params.seed)
    model = catalogue.create(name, settings)
    origin = _origin(workspace, name, platform, asdict(settings), model.learns_from_sources)
    samples = workspace.samples_for(name, platform)
    if model.needs_states:
        samples = workspace.with_states(samples, platform)
    train, valid = workspace.split_by_task(samples, workspace.params.train.validation_share)
    sources = _sources(workspace, platform, valid) if model.learns_from_sources else []
    with progress(f"training {name} on {platform}", settings.epochs) as shown:
        note = lambda epoch, loss, metrics: shown.advance(f"loss {loss:.4f}")  # noqa: E731
        model.fit(train, valid, note, sources=sources, checkpoint=checkpoint)
    folder = baseline_folder(workspace, name, platform)
    model.save(folder)
    save_hardware(folder, read_saved_hardware(workspace.records_folder(platform)))  # what `tcl predict` gives its programs
    provenance.write(folder, origin)
    return BaselineReport(name, platform, len(train), folder)


def _origin(workspace: Workspace, name: str, platform: str, settings: dict[str, Any], all_earlier: bool) -> dict[str, Any]:
    """Provenance of a baseline: its own settings, and the records of its platform or of all platforms up to it."""
    ran, params = platforms_measured(workspace), workspace.params
    learned = ran[: ran.index(platform) + 1] if all_earlier else [platform]
    given = {"validation_share": params.train.validation_share, "collect": asdict(params.collect), "measure": asdict(params.measure)}
    return provenance.collect(f"baseline@{name}", settings | given, {p: workspace.records_folder(p) for p in learned})


def _sources(workspace: Workspace, platform: str, valid: Samples | None) -> list[Samples]:
    """Samples of each platform before this one, without the validation tasks."""
    apart = valid.tasks if valid is not None else []
    ran = platforms_measured(workspace)
    sources = [workspace.samples(earlier) for earlier in ran[: ran.index(platform)]]
    return [samples.take(~np.isin(samples.tasks, apart)) for samples in sources]

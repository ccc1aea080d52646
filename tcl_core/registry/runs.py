"""The run behind a version: everything that is known of a model, on disk before a version names it.

A registration makes a run, then its files and, when these are on disk, a version.  A killed registration has no version,
and the next one removes what it left.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcl_core.files import sync_folder
from tcl_core.platforms import host_fingerprint
from tcl_core.registry import local_store
from tcl_core.registry.connection import made_or_found, pages
from tcl_core.registry.local_store import EXPERIMENT, path_of
from tcl_core.registry.names import RUN_KEY
from tcl_core.registry.serving import log_model

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.models.model import ModelInfo

# Tags of a version and its run: the lock it was made under, the digest of what was logged last, and how often.
REGISTRAR, LOGGED, TIMES_LOGGED = "registrar", "logged", "times_logged"
UNDER_WAY = "under way"  # value of LOGGED while a version is corrected


@dataclass(frozen=True)
class Facts:
    """What is logged of a model beside its bytes.

    parameters  of the run;  metrics: its final figures;  curves: one value per epoch, from 1
    tags        of run and version;  artifacts: files to keep beside the model;  description: of the version, Markdown
    """

    parameters: Mapping[str, Any]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)
    artifacts: Sequence[Path] = ()
    description: str = ""

    def digest(self) -> str:
        """SHA-256 of what a new evaluation may change; parameters and curves are left out, as they belong to the model's bytes."""
        files = {Path(file).name: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in self.artifacts}
        told = [dict(self.metrics), dict(self.tags), files, self.description]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def log_run(client: MlflowClient, platform: str, model_folder: Path, facts: Facts, tags: Mapping[str, str]) -> ModelInfo:
    """Log everything about a model as one MLflow run, synced to disk; returns MLflow's info on the logged model."""
    import mlflow

    title = f"{tags.get('dvc.stage', 'model')} {platform}"
    source = {"mlflow.source.name": "tcl register"}  # MLflow would put a path of this machine there
    # Tagged from the start, so that a run killed at any moment is known as ours.
    with mlflow.start_run(experiment_id=_experiment(client), run_name=title, tags={**tags, **source}) as run:
        mlflow.log_params(facts.parameters)
        mlflow.log_metrics(facts.metrics)
        _log_curves(client, run.info.run_id, facts.curves)
        for file in facts.artifacts:
            mlflow.log_artifact(str(file))
        model = log_model(model_folder, source)
        for location in (run.info.artifact_uri, client.get_logged_model(model.model_id).artifact_location):
            synced(location)
    return model


def correct(client: MlflowClient, known: ModelVersion, facts: Facts, tags: Mapping[str, str]) -> None:
    """Update a version and its run to what is known of the model now, such as another evaluation's figures.

    MLflow shows the value of a metric's highest step and cannot forget a metric, so a removed one becomes NaN.  A process
    that dies half-way leaves ``UNDER_WAY`` behind, so that the next registration corrects the version again.
    """
    from mlflow.entities import Metric, RunTag

    run, step = client.get_run(known.run_id), int(known.tags.get(TIMES_LOGGED, "1"))
    for name, value in {LOGGED: UNDER_WAY, TIMES_LOGGED: str(step + 1)}.items():
        client.set_model_version_tag(known.name, known.version, name, value)
    figures = {name: float("nan") for name in run.data.metrics if name not in facts.curves} | dict(facts.metrics)
    model = known.source.removeprefix("models:/") if known.source.startswith("models:/") else None  # has metrics, too
    points = [Metric(name, float(v), timestamp=0, step=step, model_id=model) for name, v in figures.items()]
    client.log_batch(known.run_id, metrics=points, tags=[RunTag(name, value) for name, value in tags.items()])
    former = {file.path for file in client.list_artifacts(known.run_id) if not file.is_dir}
    for gone in former - {Path(file).name for file in facts.artifacts}:
        delete_files(run.info.artifact_uri, gone)
    for file in facts.artifacts:
        client.log_artifact(known.run_id, str(file))
    synced(run.info.artifact_uri)
    if (known.description or "") != facts.description:
        client.update_model_version(known.name, known.version, facts.description)
    for name, value in sorted(tags.items(), key=lambda tag: tag[0] == LOGGED):  # LOGGED last
        client.set_model_version_tag(known.name, known.version, name, value)


def remove_unfinished(client: MlflowClient) -> None:
    """Remove what killed registrations left: runs of ours without a version, with their models and files.

    Under the store's lock nobody else registers, so the process of a run of ours that is still "running" has died.
    """
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if not experiment:
        return
    kept = {version.run_id for version in pages(client.search_model_versions)}
    for run in pages(client.search_runs, [experiment.experiment_id], f"tags.{RUN_KEY} LIKE '%'"):
        # Runs of older versions of TCL have no registrar; in a local store they were made under its lock.
        if run.data.tags.get(REGISTRAR, "" if local_store.local_store() is None else registrar()) == registrar():
            if run.info.run_id not in kept:
                _remove(client, run)
            elif run.info.status == "RUNNING":
                client.set_terminated(run.info.run_id)


def _remove(client: MlflowClient, run: Run) -> None:
    """Remove a run's models and files, then the run, so that a killed removal is resumed the next time."""
    experiment, number = run.info.experiment_id, run.info.run_id
    for model in pages(client.search_logged_models, [experiment], f"source_run_id = '{number}'"):
        delete_files(model.artifact_location)
        client.delete_logged_model(model.model_id)
    delete_files(run.info.artifact_uri)
    if run.info.status == "RUNNING":
        client.set_terminated(number, "KILLED")
    client.delete_run(number)


def delete_files(location: str, name: str | None = None) -> None:
    """Remove the files of a run or a model, or only the one called ``name``; local ones only if they lie beside the store."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    folder = path_of(location)
    if folder is None:
        with suppress(MlflowException):  # a server may forbid it
            get_artifact_repository(location).delete_artifacts(name)
    elif folder.is_relative_to(local_store.beside_store()):
        if name:
            (folder / name).unlink(missing_ok=True)
        else:
            with suppress(FileNotFoundError):  # a process killed between two folders made only the outer one
                shutil.rmtree(folder)
            with suppress(OSError):  # MLflow makes this outer folder for them alone
                folder.parent.rmdir()


def registrar() -> str:
    """Name of the lock that runs are made under: a local store's own; for a server's store, one per project and host."""
    if local_store.local_store():
        return "beside the store"
    lock = os.stat(local_store.lock_file("registry"))
    return hashlib.sha256(f"{host_fingerprint()} {lock.st_dev} {lock.st_ino}".encode()).hexdigest()[:16]


def synced(location: str) -> None:
    """Sync a run's or a model's files to disk before a version names them; a server does that itself."""
    folder = path_of(location)
    if folder and folder.exists():
        for path in (*folder.rglob("*"), folder, folder.parent, folder.parent.parent):
            sync_folder(path)  # it syncs files, too


def _log_curves(client: MlflowClient, run_id: str, curves: Mapping[str, Sequence[float]]) -> None:
    from mlflow.entities import Metric

    points = [
        Metric(name, float(value), timestamp=0, step=epoch)
        for name, values in curves.items()
        for epoch, value in enumerate(values, start=1)
    ]
    for start in range(0, len(points), 1000):  # the most that one request may hold
        client.log_batch(run_id, metrics=points[start : start + 1000])


def _experiment(client: MlflowClient) -> str:
    if found := client.get_experiment_by_name(EXPERIMENT):
        return found.experiment_id
    place = local_store.beside_store().as_uri() if local_store.local_store() else None
    return made_or_found(
        lambda: client.create_experiment(EXPERIMENT, place), lambda: client.get_experiment_by_name(EXPERIMENT).experiment_id
    )

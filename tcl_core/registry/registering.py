"""Versions of `tcl-PLATFORM`: registering a model, finding a model's version, and listing what a registry holds."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcl_core.errors import DataError, RegistryError
from tcl_core.registry import aliases
from tcl_core.registry.connection import made_or_found, opened, pages
from tcl_core.registry.model_files import folder_of
from tcl_core.registry.names import CHAMPION, RUN_KEY, model_name, platform_of, run_key
from tcl_core.registry.runs import LOGGED, REGISTRAR, TIMES_LOGGED, Facts, correct, log_run, registrar, remove_unfinished, synced

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

FLOW_RUN_ID = "TCL_FLOW_RUN_ID"  # set by the flow for the commands it starts
ABOUT = "Cost models of {platform}. Aliases: `champion`, what compilers load; `candidate`, the latest one that is not; `previous`, the champion before."
LOAD = (
    'Load it: `tcl_core.registry.load_champion("{platform}")` while it is the champion, `("{platform}:N")` by its number N as a '
    'version, or `mlflow.pyfunc.load_model("models:/{name}/N")`.'
)


@dataclass(frozen=True)
class Version:
    """One registered model.  ``registered``: when, ISO 8601 in UTC."""

    platform: str
    number: int
    aliases: tuple[str, ...]
    registered: str
    run_id: str
    tags: Mapping[str, str]


def register(
    platform: str,
    model_folder: Path,
    facts: Mapping[str, Any],
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
    curves: Mapping[str, Sequence[float]] | None = None,
    artifacts: Sequence[Path] = (),
    description: str = "",
) -> int:
    """Log one run and register its model as the next version of `tcl-PLATFORM`; returns the version.

    facts        parameters of the run, metrics its final figures, curves one value per epoch (from 1)
    tags         what only the caller knows, such as ``data.hash`` and ``dvc.stage``; the flow run is added
    artifacts    files to keep beside the model, such as plots and reports
    description  text for people; how to load the model is added

    The same model bytes from the same data are one version, however often they are registered; its metrics, tags,
    description and artifacts are those of the last time.  Unless it is the champion, it becomes the `candidate`.
    """
    if not (Path(model_folder) / "model.json").is_file():
        raise RegistryError(f"there is no model of {platform} in {model_folder} to register; run: make run")
    name, key = model_name(platform), run_key(platform, model_folder, tags)
    description = "\n\n".join(filter(None, (description, LOAD.format(platform=platform, name=name))))
    given = Facts(facts, metrics, tags, curves or {}, artifacts, description)
    logged = given.digest()
    tags = {**tags, RUN_KEY: key, "platform": platform, "prefect.flow_run_id": os.environ.get(FLOW_RUN_ID, "none")}
    with opened(alone=True) as client:
        remove_unfinished(client)
        version = known(client, name, key)
        if version and _is_sound(client, platform, version):
            if version.tags.get(LOGGED) != logged:
                correct(client, version, given, {**tags, LOGGED: logged})
        else:
            tags |= {LOGGED: logged, TIMES_LOGGED: "1", REGISTRAR: registrar()}
            model = log_run(client, platform, model_folder, given, tags)
            _make_model(client, name, ABOUT.format(platform=platform))
            version = client.create_model_version(
                name, model.model_uri, model.run_id, tags, description=description, model_id=model.model_id
            )
        aliases.settle(client, name, registered=int(version.version))
        return int(version.version)


def attach(platform: str, version: int, file: Path) -> None:
    """Attach a file to a version, replacing one of the same name; correcting the version later removes it."""
    with opened(alone=True) as client:
        run_id = client.get_model_version(model_name(platform), str(version)).run_id
        client.log_artifact(run_id, str(file))
        synced(client.get_run(run_id).info.artifact_uri)


def version_of(platform: str, model_folder: Path, tags: Mapping[str, str]) -> int:
    """The version under which exactly this model was registered; ``tags`` as for ``register``.

    Not simply the highest one: after a change of parameters was undone, the present model is an older version.  Raises
    RegistryError where it is not registered.
    """
    with opened() as client:
        version = known(client, model_name(platform), run_key(platform, model_folder, tags))
    if version is None:
        raise RegistryError(f"the model of {platform} in {model_folder} is not registered; run: tcl register --platform {platform}")
    return int(version.version)


def versions(platform: str | None = None) -> list[Version]:
    """All registered models, or those of a platform, by platform and number."""
    with opened() as client:
        models = {model.name: model for model in pages(client.search_registered_models) if platform_of(model.name)}
        found = [v for v in pages(client.search_model_versions) if v.name in models and platform in (None, platform_of(v.name))]
    return sorted((_plain(v, models[v.name].aliases) for v in found), key=lambda v: (v.platform, v.number))


def logged(version: Version) -> tuple[dict[str, str], dict[str, float]]:
    """Parameters and final figures of a version's run, without figures that a correction removed."""
    with opened() as client:
        data = client.get_run(version.run_id).data
    return dict(data.params), {name: value for name, value in data.metrics.items() if not math.isnan(value)}


def _plain(version: ModelVersion, of_model: Mapping[str, str]) -> Version:
    number = int(version.version)
    mine = tuple(sorted(alias for alias, its in of_model.items() if int(its) == number))
    mine = (CHAMPION,) if CHAMPION in mine else mine  # after a killed promotion the other aliases lag behind
    registered = datetime.fromtimestamp(version.creation_timestamp / 1000, UTC).isoformat(timespec="seconds")
    return Version(platform_of(version.name), number, mine, registered, version.run_id, dict(version.tags))


def _make_model(client: MlflowClient, name: str, about: str) -> None:
    """Make the registered model that versions belong to, if it is missing; update the description of an older TCL's."""
    found = client.search_registered_models(f"name = '{name}'")
    if not found:
        made_or_found(lambda: client.create_registered_model(name, description=about), lambda: client.get_registered_model(name))
    elif found[0].description != about:
        client.update_registered_model(name, about)


def known(client: MlflowClient, name: str, key: str) -> ModelVersion | None:
    """The version of exactly this model, or None; the last one, since a model whose files were lost is registered again."""
    found = [version for version in pages(client.search_model_versions, f"name = '{name}'") if version.tags.get(RUN_KEY) == key]
    return max(found, key=lambda version: int(version.version), default=None)


def _is_sound(client: MlflowClient, platform: str, version: ModelVersion) -> bool:
    """Whether a version's files are those that were registered."""
    try:
        return bool(folder_of(client, platform, version))
    except DataError:
        return False

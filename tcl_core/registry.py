"""Trained models with their history, in MLflow: versions of `tcl-PLATFORM`, and which of them is the champion.

The only file that knows MLflow; imported by it lazily, for it takes seconds.  Knows nothing of how a model is made or
which is better: the caller brings facts, metrics and the verdict.  The store is `mlflow.db` in the working folder
(`tcl` goes to the project's), or what MLFLOW_TRACKING_URI names.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import logging
import os
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcl_core import environment  # noqa: F401  (before MLflow is imported)
from tcl_core.errors import RegistryError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.models.model import ModelInfo

    from tcl_core.models.cost_model import CostModel

CODE = Path(__file__).resolve().parent  # what a registered version brings along to be served
EXPERIMENT = "tcl"
CHAMPION = "champion"
FLOW_RUN_ID = "TCL_FLOW_RUN_ID"  # set by the flow for the commands it starts
NEEDED = ("numpy", "torch", "safetensors", "mlflow")  # to load a model and rank with it
SERVED = "from tcl_core.registry import serve\n\nserve()\n"  # what MLflow runs to load a version


def register(
    platform: str,
    model_folder: Path,
    facts: Mapping[str, Any],
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
    curves: Mapping[str, Sequence[float]] | None = None,
    artifacts: Sequence[Path] = (),
) -> int:
    """Log one run and register its model as the next version of `tcl-PLATFORM`; returns the version.

    facts      parameters of the run, metrics its final figures, curves one value per epoch (from 1)
    tags       what only the caller knows, such as ``data.hash`` and ``dvc.stage``; git, TVM and flow run are added
    artifacts  files to keep beside the model, such as plots and reports

    The same model bytes from the same data are one version, however often they are registered.
    """
    if not (Path(model_folder) / "model.json").is_file():
        raise RegistryError(f"there is no model of {platform} in {model_folder} to register; run: make run")
    name, key = model_name(platform), run_key(platform, model_folder, tags)
    with _registry() as client, _alone(name):
        for known in _versions(client, name):
            if known.tags.get("run_key") == key:
                return int(known.version)
        tags = {**tags, **_provenance(), "run_key": key, "platform": platform}
        model = _log_run(client, platform, model_folder, facts, metrics, tags, curves or {}, artifacts)
        if not client.search_registered_models(f"name = '{name}'"):
            client.create_registered_model(name)
        version = client.create_model_version(name, model.model_uri, model.run_id, tags, model_id=model.model_id)
        return int(version.version)


def version_of(platform: str, model_folder: Path, tags: Mapping[str, str]) -> int:
    """The version as which exactly this model was registered; ``tags`` as for ``register``.

    Not simply the highest one: after a change of parameters was taken back, the present model is an older version.
    """
    name, key = model_name(platform), run_key(platform, model_folder, tags)
    with _registry() as client:
        for known in _versions(client, name):
            if known.tags.get("run_key") == key:
                return int(known.version)
    raise RegistryError(
        f"the model of {platform} in {model_folder} is not registered; run: tcl register --platform {platform}"
    )


def champion_version(platform: str) -> int | None:
    """The version that carries the alias `champion`; None while no version does."""
    from mlflow.exceptions import MlflowException

    with _registry() as client:
        try:
            return int(client.get_model_version_by_alias(model_name(platform), CHAMPION).version)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise


def champion(platform: str) -> tuple[int, Path]:
    """The champion's version and its model folder, fetched if the store is remote.  Raises RegistryError if none is."""
    version = champion_version(platform)
    if version is None:
        others = platforms_with_champion()
        there = f"; there are champions of {', '.join(others)}" if others else ""
        raise RegistryError(f"{platform} has no champion; run: tcl register and then: tcl promote{there}")
    return version, _model_folder(platform, version)


def platforms_with_champion() -> list[str]:
    """Names of the platforms one of whose versions carries the alias `champion`."""
    with _registry() as client:
        models = [model for model in client.search_registered_models() if CHAMPION in model.aliases]
    return sorted(model.name.removeprefix(model_name("")) for model in models if model.name.startswith(model_name("")))


def load_champion(platform: str) -> CostModel:
    """The champion, ready to rank programs: what a compiler calls."""
    from tcl_core.models.catalogue import load

    return load(champion(platform)[1])


def promote(platform: str, version: int, better: bool, reason: str, against: int | None) -> bool:
    """Make ``version`` the champion if it is ``better``; tag it with the reason either way.  Returns whether it moved.

    against  the champion that ``version`` was compared with, None where there was none.  If another promotion moved
             the alias meanwhile, the verdict is void and RegistryError says so: of two at once, one wins.
    """
    name = model_name(platform)
    with _registry() as client, _alone(name):
        now = champion_version(platform)
        if now != against:
            raise RegistryError(
                f"the champion of {platform} changed from version {against} to {now} while version {version} was "
                f"compared with it; run again: tcl promote --platform {platform}"
            )
        if better:
            client.set_registered_model_alias(name, CHAMPION, str(version))
        client.set_model_version_tag(name, str(version), "promotion", f"{'promoted' if better else 'kept back'}: {reason}")
    return better


def model_name(platform: str) -> str:
    return f"tcl-{platform}"


def run_key(platform: str, model_folder: Path, tags: Mapping[str, str]) -> str:
    """Sixteen hexadecimal digits that are equal for the same model bytes of the same stage and data."""
    from tcl_core.store import data_digest

    facts = [platform, tags.get("dvc.stage", ""), tags.get("data.hash", ""), data_digest(model_folder)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def serve() -> None:
    """Give MLflow a model that ranks: ``predict({"tokens": (N, L, F), "lengths": (N,), "tasks": (N,)})`` -> (N,) scores."""
    import numpy as np
    from mlflow.models import set_model
    from mlflow.pyfunc import PythonModel

    from tcl_core.features.batches import Samples
    from tcl_core.models.catalogue import load

    with warnings.catch_warnings(record=True):  # MLflow asks for a type hint, but has none for a group of arrays

        class Ranking(PythonModel):
            def load_context(self, context) -> None:
                self.model = load(Path(context.artifacts["model"]))

            def predict(self, context, model_input, params=None):
                tokens = np.asarray(model_input["tokens"], np.float32)
                lengths = np.asarray(model_input["lengths"], np.int32)
                tasks = np.asarray(model_input["tasks"], np.int32)
                return self.model.predict(Samples(tokens, lengths, tasks, np.full(len(tasks), np.inf)))

    set_model(Ranking())


def _log_run(client, platform, model_folder, facts, metrics, tags, curves, artifacts) -> ModelInfo:
    """One MLflow run with everything about a model in it; returns what MLflow says of the logged model."""
    import mlflow

    mlflow.set_experiment(experiment_id=_experiment(client))
    with mlflow.start_run(run_name=f"{tags.get('dvc.stage', 'model')} {platform}") as run:
        mlflow.set_tags(tags)
        mlflow.log_params(facts)
        mlflow.log_metrics(metrics)
        _log_curves(client, run.info.run_id, curves)
        for file in artifacts:
            mlflow.log_artifact(str(file))
        return _log_model(model_folder)


def _log_curves(client: MlflowClient, run_id: str, curves: Mapping[str, Sequence[float]]) -> None:
    from mlflow.entities import Metric

    points = [
        Metric(name, float(value), timestamp=0, step=epoch)
        for name, values in curves.items()
        for epoch, value in enumerate(values, start=1)
    ]
    for start in range(0, len(points), 1000):  # the most that one request may hold
        client.log_batch(run_id, metrics=points[start : start + 1000])


def _log_model(model_folder: Path) -> ModelInfo:
    """Code, not a pickled object: loading a version runs ``serve`` and reads safetensors."""
    import mlflow

    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "served.py"
        code.write_text(SERVED)
        return mlflow.pyfunc.log_model(
            name="model",
            python_model=str(code),
            artifacts={"model": str(model_folder)},
            pip_requirements=[f"{package}=={importlib.metadata.version(package).partition('+')[0]}" for package in NEEDED],
            code_paths=[str(CODE)],
        )


def _experiment(client: MlflowClient) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found:
        return found.experiment_id
    store = _local_store()
    return client.create_experiment(EXPERIMENT, (store / "mlruns").as_uri() if store else None)


def _provenance() -> dict[str, str]:
    """Where this model comes from: code, compiler and flow run."""
    commit = _git("rev-parse", "HEAD")
    return {
        "git.commit": commit or "none",
        "git.dirty": str(bool(_git("status", "--porcelain", "--untracked-files=no"))).lower() if commit else "unknown",
        "tvm.version": importlib.metadata.version("apache-tvm"),
        "prefect.flow_run_id": os.environ.get(FLOW_RUN_ID, "none"),
    }


def _git(*arguments: str) -> str:
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _versions(client: MlflowClient, name: str) -> list[ModelVersion]:
    return list(client.search_model_versions(f"name = '{name}'"))


def _model_folder(platform: str, version: int) -> Path:
    """The folder that was registered: in place for a local store, else fetched once and kept."""
    from mlflow.artifacts import download_artifacts

    with _registry() as client:
        name = model_name(platform)
        uri = f"models:/{name}/{version}"
        root = Path(download_artifacts(uri)) if _local_store() else _fetched(client, name, version, uri)
    found = list(root.glob("artifacts/*/model.json"))
    if not found:
        raise RegistryError(f"version {version} of {model_name(platform)} has no model in {root}; register it again")
    return found[0].parent


def _fetched(client: MlflowClient, name: str, version: int, uri: str) -> Path:
    """A version's files below `mlruns/fetched/`, whole or not there; the run's id tells stores apart."""
    from mlflow.artifacts import download_artifacts

    kept = _beside_store() / "fetched" / f"{name}-{version}-{client.get_model_version(name, str(version)).run_id}"
    with _alone(name):
        if not kept.exists():
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=kept.parent) as aside:
                os.replace(download_artifacts(uri, dst_path=aside), kept)
    return kept


@contextmanager
def _registry() -> Iterator[MlflowClient]:
    """A client of the store; what MLflow raises leaves as one sentence that names the store."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a server that is away is said within seconds
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    import mlflow
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    uri = _uri()
    mlflow.set_tracking_uri(uri)
    try:
        yield mlflow.MlflowClient()
    except (MlflowException, SQLAlchemyError, OSError) as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].split(" failed with exception ")[0]
        raise RegistryError(f"the model registry at {uri} failed ({reason}); check that it can be reached and written") from error


def _uri() -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path.cwd() / 'mlflow.db'}"


def _local_store() -> Path | None:
    """The folder of a local database, where models and locks are put as well; None for a server."""
    prefix = "sqlite:///"
    return Path(_uri().removeprefix(prefix)).resolve().parent if _uri().startswith(prefix) else None


def _beside_store() -> Path:
    """Where this machine keeps locks and what it fetched: beside a local database, else in the working folder."""
    return (_local_store() or Path.cwd()) / "mlruns"


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """One registration or promotion of a model at a time; the lock is freed when its process ends, however it ends."""
    folder = _beside_store()
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

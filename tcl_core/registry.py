"""Trained models with their history, in MLflow: versions of `tcl-PLATFORM`, and which of them is the champion.

The only file that knows MLflow; imported by it lazily, for it takes seconds.  Knows nothing of how a model is made or
which is better: the caller brings facts, metrics and the verdict.  The store is `mlflow.db` in the working folder
(`tcl` goes to the project's), or what MLFLOW_TRACKING_URI names.

Who writes holds the store's one lock.  A registration makes a run, then its files, then, with these on the disk, a
version: what was killed on the way has no version, and the next registration removes it.  A local store may be moved or
copied with its folder: whoever opens it there first makes its locations those of the new folder.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import re
import shutil
import sqlite3
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from tcl_core import environment  # noqa: F401  (before MLflow is imported)
from tcl_core.errors import DataError, RegistryError
from tcl_core.files import shown, sync_folder
from tcl_core.locks import wait_for_lock
from tcl_core.platforms import host_fingerprint

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.models.model import ModelInfo

    from tcl_core.models.cost_model import CostModel

CODE = Path(__file__).resolve().parent  # what a registered version brings along to be served
EXPERIMENT = "tcl"
CHAMPION = "champion"
FLOW_RUN_ID = "TCL_FLOW_RUN_ID"  # set by the flow for the commands it starts
NEEDED = ("numpy", "torch", "safetensors", "mlflow")  # to load a model and rank with it
SERVED = "from tcl_core.registry import serve\n\nserve()\n"  # what MLflow runs to load a version
# Tags of a version and its run: which model it is, under whose lock it was made, what was logged of it last, how often.
RUN_KEY, REGISTRAR, LOGGED, TIMES_LOGGED = "run_key", "registrar", "logged", "times_logged"
UNDER_WAY = "under way"  # LOGGED, while a version is corrected
_LOCAL = "sqlite:///"
_FILES = "mlruns"  # beside a local database: its models, its lock
_ASIDE = ".making-"  # a folder in which a database is made


def where() -> str:
    """The store that everything here reads and writes, as one may print it."""
    return str(_database() or _without_password(_uri()))


def is_there() -> bool:
    """Whether there is a store to read; to ask a local one that is not there would make it.  A server is taken to be there."""
    database = _database()
    return database is None or database.exists()


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
    tags       what only the caller knows, such as ``data.hash`` and ``dvc.stage``; the flow run is added
    artifacts  files to keep beside the model, such as plots and reports

    The same model bytes from the same data are one version, however often they are registered; its metrics, tags and
    artifacts are those of the last time.
    """
    if not (Path(model_folder) / "model.json").is_file():
        raise RegistryError(f"there is no model of {platform} in {model_folder} to register; run: make run")
    name, key, curves = model_name(platform), run_key(platform, model_folder, tags), curves or {}
    logged = _digest_of(metrics, tags, artifacts)
    tags = {**tags, RUN_KEY: key, "platform": platform, "prefect.flow_run_id": os.environ.get(FLOW_RUN_ID, "none")}
    with _registry(alone=True) as client:
        _remove_unfinished(client)
        known = _known(client, name, key)
        if known and _is_sound(client, platform, known):
            if known.tags.get(LOGGED) != logged:
                _correct(client, known, metrics, {**tags, LOGGED: logged}, curves, artifacts)
            return int(known.version)
        tags |= {LOGGED: logged, TIMES_LOGGED: "1", REGISTRAR: _registrar()}
        model = _log_run(client, platform, model_folder, facts, metrics, tags, curves, artifacts)
        if not client.search_registered_models(f"name = '{name}'"):
            client.create_registered_model(name)
        version = client.create_model_version(name, model.model_uri, model.run_id, tags, model_id=model.model_id)
        return int(version.version)


def attach(platform: str, version: int, file: Path) -> None:
    """Keep a file beside a version, in the place of one of its name: until the version is corrected, which removes it."""
    with _registry(alone=True) as client:
        run_id = client.get_model_version(model_name(platform), str(version)).run_id
        client.log_artifact(run_id, str(file))
        _sync(client.get_run(run_id).info.artifact_uri)


def version_of(platform: str, model_folder: Path, tags: Mapping[str, str]) -> int:
    """The version as which exactly this model was registered; ``tags`` as for ``register``.

    Not simply the highest one: after a change of parameters was taken back, the present model is an older version.
    """
    with _registry() as client:
        known = _known(client, model_name(platform), run_key(platform, model_folder, tags))
    if known is None:
        raise RegistryError(
            f"the model of {platform} in {model_folder} is not registered; run: tcl register --platform {platform}"
        )
    return int(known.version)


def champion_version(platform: str) -> int | None:
    """The version that carries the alias `champion`; None while no version does."""
    with _registry() as client:
        return _champion_version(client, model_name(platform))


def champion(platform: str) -> tuple[int, Path]:
    """The champion's version and its model folder, fetched if the store is remote.

    Raises RegistryError if there is none, DataError if its files are not those that were registered.
    """
    version = champion_version(platform)
    if version is None:
        others = platforms_with_champion()
        there = f"; there are champions of {', '.join(others)}" if others else ""
        raise RegistryError(f"{platform} has no champion; run: tcl register and then: tcl promote{there}")
    with _registry() as client:
        return version, _model_folder(client, platform, client.get_model_version(model_name(platform), str(version)))


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
    with _registry(alone=True) as client:
        now = _champion_version(client, name)
        if now != against:
            raise RegistryError(
                f"the champion of {platform} changed from version {against} to {now} while version {version} was "
                f"compared with it; run again: tcl promote --platform {platform}"
            )
        # The reason first: no champion is without one, whenever this dies.
        client.set_model_version_tag(name, str(version), "promotion", f"{'promoted' if better else 'kept back'}: {reason}")
        if better:
            client.set_registered_model_alias(name, CHAMPION, str(version))
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


# --- versions and runs ---


def _champion_version(client: MlflowClient, name: str) -> int | None:
    from mlflow.exceptions import MlflowException

    try:
        return int(client.get_model_version_by_alias(name, CHAMPION).version)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def _known(client: MlflowClient, name: str, key: str) -> ModelVersion | None:
    """The version of exactly this model; the last one, for one whose files were lost is registered once more."""
    found = [known for known in _all(client.search_model_versions, f"name = '{name}'") if known.tags.get(RUN_KEY) == key]
    return max(found, key=lambda known: int(known.version), default=None)


def _is_sound(client: MlflowClient, platform: str, version: ModelVersion) -> bool:
    """Whether its files are those that were registered."""
    try:
        return bool(_model_folder(client, platform, version))
    except DataError:
        return False


def _digest_of(metrics: Mapping[str, float], tags: Mapping[str, str], artifacts: Sequence[Path]) -> str:
    """SHA-256 of what is logged of a model beside its own bytes and what follows from them."""
    files = {Path(file).name: hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in artifacts}
    return hashlib.sha256(json.dumps([dict(metrics), dict(tags), files], sort_keys=True).encode()).hexdigest()


def _log_run(client, platform, model_folder, facts, metrics, tags, curves, artifacts) -> ModelInfo:
    """One MLflow run with everything about a model in it, on the disk; returns what MLflow says of the logged model."""
    import mlflow

    title = f"{tags.get('dvc.stage', 'model')} {platform}"
    source = {"mlflow.source.name": "tcl register"}  # MLflow would put a path of this machine there
    # With its tags from the first: a run that was killed at any moment is known as ours.
    with mlflow.start_run(experiment_id=_experiment(client), run_name=title, tags={**tags, **source}) as run:
        mlflow.log_params(facts)
        mlflow.log_metrics(metrics)
        _log_curves(client, run.info.run_id, curves)
        for file in artifacts:
            mlflow.log_artifact(str(file))
        model = _log_model(model_folder, source)
        for location in (run.info.artifact_uri, client.get_logged_model(model.model_id).artifact_location):
            _sync(location)
    return model


def _correct(client, known: ModelVersion, metrics, tags, curves, artifacts) -> None:
    """Let a version and its run say what is known of the model now, such as another evaluation's figures.

    MLflow shows the value of a metric's highest step and forgets no metric: one that is no more becomes NaN.  Who dies
    half-way leaves ``UNDER_WAY`` behind, so that the next registration corrects it once more.
    """
    from mlflow.entities import Metric, RunTag

    run, step = client.get_run(known.run_id), int(known.tags.get(TIMES_LOGGED, "1"))
    for name, value in {LOGGED: UNDER_WAY, TIMES_LOGGED: str(step + 1)}.items():
        client.set_model_version_tag(known.name, known.version, name, value)
    figures = {name: float("nan") for name in run.data.metrics if name not in curves} | dict(metrics)
    model = known.source.removeprefix("models:/") if known.source.startswith("models:/") else None  # has metrics, too
    points = [Metric(name, float(v), timestamp=0, step=step, model_id=model) for name, v in figures.items()]
    client.log_batch(known.run_id, metrics=points, tags=[RunTag(name, value) for name, value in tags.items()])
    former = {file.path for file in client.list_artifacts(known.run_id) if not file.is_dir}
    for gone in former - {Path(file).name for file in artifacts}:
        _delete_files(run.info.artifact_uri, gone)
    for file in artifacts:
        client.log_artifact(known.run_id, str(file))
    _sync(run.info.artifact_uri)
    for name, value in sorted(tags.items(), key=lambda tag: tag[0] == LOGGED):  # LOGGED last
        client.set_model_version_tag(known.name, known.version, name, value)


def _remove_unfinished(client: MlflowClient) -> None:
    """Remove what killed registrations left: runs of ours without a version, with their models and files.

    Under the store's lock nobody else registers, so a run of ours that runs has died.
    """
    experiment = client.get_experiment_by_name(EXPERIMENT)
    if not experiment:
        return
    kept = {version.run_id for version in _all(client.search_model_versions)}
    for run in _all(client.search_runs, [experiment.experiment_id], f"tags.{RUN_KEY} LIKE '%'"):
        # Runs of older versions of TCL have no registrar; a local store's are its lock's.
        if run.data.tags.get(REGISTRAR, "" if _local_store() is None else _registrar()) == _registrar():
            if run.info.run_id not in kept:
                _remove(client, run)
            elif run.info.status == "RUNNING":
                client.set_terminated(run.info.run_id)


def _remove(client: MlflowClient, run: Run) -> None:
    """Remove a run; itself last, so that a removal which is killed goes on the next time."""
    experiment, number = run.info.experiment_id, run.info.run_id
    for model in _all(client.search_logged_models, [experiment], f"source_run_id = '{number}'"):
        _delete_files(model.artifact_location)
        client.delete_logged_model(model.model_id)
    _delete_files(run.info.artifact_uri)
    if run.info.status == "RUNNING":
        client.set_terminated(number, "KILLED")
    client.delete_run(number)


def _delete_files(location: str, name: str | None = None) -> None:
    """Remove a run's or a model's files, or one of them; on this machine only such as lie beside the store."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    folder = _path_of(location)
    if folder is None:
        with suppress(MlflowException):  # a server may forbid it
            get_artifact_repository(location).delete_artifacts(name)
    elif folder.is_relative_to(_beside_store()):
        if name:
            (folder / name).unlink(missing_ok=True)
        elif folder.exists():
            shutil.rmtree(folder)
            with suppress(OSError):  # MLflow puts them one folder lower, which has no other use
                folder.parent.rmdir()


def _sync(location: str) -> None:
    """Bring a run's or a model's files to the disk before a version names them; a server does that itself."""
    folder = _path_of(location)
    if folder and folder.exists():
        for path in (*folder.rglob("*"), folder, folder.parent, folder.parent.parent):
            sync_folder(path)  # of a file likewise


def _registrar() -> str:
    """Under whose lock runs are made: a local store has its own, of a server's store each project on each host has one."""
    if _local_store():
        return "beside the store"
    lock = os.stat(_lock_file("registry"))
    return hashlib.sha256(f"{host_fingerprint()} {lock.st_dev} {lock.st_ino}".encode()).hexdigest()[:16]


def _all(search: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    """All pages of a search."""
    token = None
    while True:
        page = search(*arguments, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _log_curves(client: MlflowClient, run_id: str, curves: Mapping[str, Sequence[float]]) -> None:
    from mlflow.entities import Metric

    points = [
        Metric(name, float(value), timestamp=0, step=epoch)
        for name, values in curves.items()
        for epoch, value in enumerate(values, start=1)
    ]
    for start in range(0, len(points), 1000):  # the most that one request may hold
        client.log_batch(run_id, metrics=points[start : start + 1000])


def _log_model(model_folder: Path, tags: Mapping[str, str]) -> ModelInfo:
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
            tags=dict(tags),
        )


def _experiment(client: MlflowClient) -> str:
    found = client.get_experiment_by_name(EXPERIMENT)
    if found:
        return found.experiment_id
    return client.create_experiment(EXPERIMENT, _beside_store().as_uri() if _local_store() else None)


def _model_folder(client: MlflowClient, platform: str, version: ModelVersion) -> Path:
    """The folder that was registered: in place for a local store, else fetched once and kept.

    Raises DataError unless it holds the very bytes that were registered.
    """
    location = client.get_model_version_download_uri(version.name, str(version.version))
    in_place = _path_of(location) if _local_store() else None
    # MLflow's own download would write into the folder that it reads.
    return _checked(platform, version, in_place) if in_place else _fetched(platform, version)


def _checked(platform: str, version: ModelVersion, root: Path) -> Path:
    """The model's folder below ``root``, if ``run_key`` finds in it what was registered."""
    found = list(root.glob("artifacts/*/model.json"))
    if not found:
        raise _lost(version, f"there is no model in {root}")
    folder = found[0].parent
    if run_key(platform, folder, version.tags) != version.tags.get(RUN_KEY):
        raise _lost(version, f"{folder} holds other bytes than were registered")
    return folder


def _lost(version: ModelVersion, why: str) -> DataError:
    return DataError(
        f"version {version.version} of {version.name} cannot be used ({why}); "
        "register and promote a model that is whole: tcl register, tcl promote"
    )


def _fetched(platform: str, version: ModelVersion) -> Path:
    """A version's files below `mlruns/fetched/`, whole or not there; the run's id tells stores apart."""
    from mlflow.artifacts import download_artifacts

    kept = _beside_store() / "fetched" / f"{version.name}-{version.version}-{version.run_id}"
    with _alone("fetched"):
        if kept.exists():
            with suppress(DataError):
                return _checked(platform, version, kept)
            shutil.rmtree(kept)  # damaged since
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as aside:
            os.replace(download_artifacts(f"models:/{version.name}/{version.version}", dst_path=aside), kept)
    return _checked(platform, version, kept)


# --- the store ---


@contextmanager
def _registry(alone: bool = False) -> Iterator[MlflowClient]:
    """A client of the store; what MLflow raises leaves as one sentence that names the store.

    alone  with the store's lock, as who writes must; it is not to be asked for twice
    """
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a server that is away is said within seconds
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    import mlflow
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)  # an error is ours to tell, without a traceback
    try:
        database = _database()
        with _alone("registry") if alone else nullcontext():
            if database and (alone or not _is_ready(database)):
                with nullcontext() if alone else _alone("registry"):
                    _make_ready(database)
            mlflow.set_tracking_uri(_uri())
            yield mlflow.MlflowClient()
    except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError, ImportError) as error:
        raise RegistryError(
            f"the model registry at {where()} failed ({shown(_without_password(_reason(error)))}); "
            "check that it can be reached and written, that there is room on the disk, and MLFLOW_TRACKING_URI if it is set"
        ) from error


def _reason(error: BaseException) -> str:
    """Why it failed, in the words of what lies deepest: the layers above wrap the database's or the system's own."""
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    told = [cause for cause in causes if isinstance(cause, sqlite3.Error | OSError)] or causes[:1]
    return (str(told[-1]).strip().splitlines() or ["no reason given"])[0].split(" failed with exception ")[0]


def _uri() -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{_LOCAL}{Path.cwd() / 'mlflow.db'}"


def _without_password(text: str) -> str:
    return re.sub(r"//[^/@\s]*@", "//", text)


def _database() -> Path | None:
    """The file of a local store; None for a server."""
    if not _uri().startswith(_LOCAL):
        return None
    name = _uri().removeprefix(_LOCAL).partition("?")[0]
    if name in ("", ":memory:") or Path(name).is_dir():
        raise RegistryError(f"MLFLOW_TRACKING_URI is {_uri()}, which names no file; set it as in sqlite:////home/me/mlflow.db")
    return Path(name).resolve()


def _local_store() -> Path | None:
    """The folder of a local database, where models and locks are put as well; None for a server."""
    database = _database()
    return database.parent if database else None


def _beside_store() -> Path:
    """Where this machine keeps locks and what it fetched: beside a local database, else in the working folder."""
    return (_local_store() or Path.cwd()) / _FILES


def _lock_file(name: str) -> Path:
    return _beside_store() / f"{name}.lock"


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """One process, or thread, at a time; the lock is freed when its process ends, however it ends."""
    _lock_file(name).parent.mkdir(parents=True, exist_ok=True)
    with open(_lock_file(name), "w") as file:
        wait_for_lock(file)
        yield


def _is_ready(database: Path) -> bool:
    """Whether a local store is there, and its files are said to lie beside it."""
    locations = _experiments(database)
    return bool(locations) and _moved_from(database, locations) is None


def _make_ready(database: Path) -> None:
    """Make a local store, or let it lie where it lies.  Under the lock: another may have done so meanwhile."""
    for left_over in (database.parent / _FILES).glob(f"{_ASIDE}*"):
        shutil.rmtree(left_over)
    locations = _experiments(database)
    if not locations:
        _make(database)
    elif former := _moved_from(database, locations):
        _rebase(database, former)


def _experiments(database: Path) -> dict[str, str]:
    """Name -> where its files lie; empty where there is no store yet.  Raises RegistryError for a half-made one."""
    if not database.exists():
        return {}
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True, timeout=60)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        made = {"experiments", "alembic_version"} <= tables
        found = dict(connection.execute("SELECT name, artifact_location FROM experiments")) if made else {}
    if tables and not found:  # MLflow makes its first experiment last
        raise RegistryError(
            f"{database} was left half made, by a first start that was killed or is still under way, and holds no model; "
            f"if nothing uses it now, remove it and run again: rm {database}"
        )
    return found


def _make(database: Path) -> None:
    """Have MLflow make a database aside, which takes its place when it is whole: of a killed one nothing is in the way."""
    files = database.parent / _FILES
    with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=files) as aside:
        made = Path(aside) / database.name
        _initialise(made, files)
        sync_folder(made)  # of a file likewise
        os.replace(made, database)
        sync_folder(database.parent)


def _initialise(database: Path, files: Path) -> None:
    """A fresh database, all of whose experiments' files are to lie in ``files``, ours' too."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore(f"{_LOCAL}{database}", files.as_uri())
    store.create_experiment(EXPERIMENT, files.as_uri())
    store.engine.dispose()


def _moved_from(database: Path, locations: Mapping[str, str]) -> Path | None:
    """The folder in which a local store lay when its experiment of ours was last given a place; None if it is there still."""
    path = _path_of(locations.get(EXPERIMENT, ""))
    if path is None or _FILES not in path.parts:
        return None
    former = Path(*path.parts[: len(path.parts) - 1 - path.parts[::-1].index(_FILES)])
    return former if former != database.parent and former != Path("/") else None


def _path_of(location: str) -> Path | None:
    """A location on this machine as a path; None for a server's."""
    if location.startswith("file:"):
        return Path(unquote(urlsplit(location).path))
    return Path(location) if location.startswith("/") else None


def _rebase(database: Path, former: Path) -> None:
    """Let every text of a store that names its former folder name its present one; all of them or none."""
    olds, new = {str(former), quote(str(former))}, str(database.parent)
    path = re.compile(rf"(file://|sqlite:///|(?<![\w./-]))(?:{'|'.join(map(re.escape, olds))})(?=[/\"'\s]|$)")

    def rebased(text: str) -> str:
        return path.sub(lambda m: m[1] + (quote(new) if m[1] == "file://" else new), text)

    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
        connection.create_function("rebased", 1, rebased, deterministic=True)
        connection.execute("BEGIN IMMEDIATE")
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")
        for (table,) in tables.fetchall():
            for _, column, *_ in connection.execute(f'PRAGMA table_info("{table}")').fetchall():
                connection.execute(
                    f'UPDATE "{table}" SET "{column}" = rebased("{column}") '
                    f'WHERE typeof("{column}") = \'text\' AND rebased("{column}") <> "{column}"'
                )
        connection.execute("COMMIT")

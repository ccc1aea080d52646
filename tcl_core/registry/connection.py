"""A client of the store, with its errors as one sentence each: the store is away, denies us access, or failed.

Writers hold the store's one lock.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from tcl_core import environment  # noqa: F401  (before MLflow is imported)
from tcl_core.errors import RegistryError
from tcl_core.files import shown
from tcl_core.registry import local_store

if TYPE_CHECKING:
    from mlflow import MlflowClient

QUICK = {  # a server that is away is reported within seconds, not after minutes
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
TRACKING, REGISTRY, RUN = "MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_RUN_ID"
NOISY = {"mlflow": logging.CRITICAL, "alembic": logging.CRITICAL, "urllib3.connectionpool": logging.ERROR}
_NO_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)
_READ_ONLY = ("readonly database", "unable to open database file", "access denied", "permission denied", "authentication failed")
_AWAY = (502, 503, 504)  # a proxy's statuses when the server behind it is away


class NoRegistry(RegistryError):
    """There is no store to read, and asking MLflow would make one."""


class RegistryAway(RegistryError):
    """The store is on a server that does not answer."""


@contextmanager
def opened(alone: bool = False) -> Iterator[MlflowClient]:
    """A client of the store; MLflow's errors are raised as one sentence that names the store.

    alone  hold the store's lock, as writers must; not reentrant

    One thread of this process at a time, since MLflow's store is set per process.  Raises NoRegistry where a reader finds no store,
    RegistryAway where no server answers, else RegistryError.
    """
    with local_store.TURN:
        if not alone and not local_store.is_there():
            raise NoRegistry(
                f"there is no model registry at {local_store.where()}; run where it is, or set MLFLOW_TRACKING_URI to it, "
                "or begin one: tcl register"
            )
        import mlflow
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            file = local_store.database()
            with _lock() if alone else nullcontext(), _quiet():
                if file and (alone or not local_store.is_ready(file)):
                    with nullcontext() if alone else _lock():
                        local_store.make_ready(file)
                with _turned_to(local_store.uri()):
                    yield mlflow.MlflowClient()
        except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError, ImportError) as error:
            raise _told(error) from error


@contextmanager
def _turned_to(uri: str) -> Iterator[None]:
    """Point MLflow to a store, for runs and models alike, with short timeouts, and restore its settings afterwards.

    Otherwise all that runs later in this process, and its children, would use that store, whatever their working folder is.
    """
    import mlflow
    from mlflow.tracking._model_registry import utils as of_models
    from mlflow.tracking._tracking_service import utils as of_runs

    variables = {name: os.environ.get(name) for name in (TRACKING, REGISTRY, RUN, *QUICK)}
    # What was set in MLflow, not what the variables say: setting that would outlive a change of the variables.
    runs, models = getattr(of_runs, "_tracking_uri", None), getattr(of_models, "_registry_uri", None)
    try:
        os.environ.update({name: value for name, value in QUICK.items() if variables[name] is None})
        os.environ.pop(REGISTRY, None)
        os.environ.pop(RUN, None)  # of whatever started this process: MLflow would log into that run
        mlflow.set_registry_uri(None)  # None: the same store as the runs'
        mlflow.set_tracking_uri(uri)
        yield
    finally:
        mlflow.set_tracking_uri(runs)  # None: none is set
        mlflow.set_registry_uri(models)
        for name, value in variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence loggers: errors are reported by TCL, without a traceback, and a server that is away only once."""
    before = {name: logging.getLogger(name).level for name in NOISY}
    for name, level in NOISY.items():
        logging.getLogger(name).setLevel(level)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def pages(search: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
    """All entries of a search, page by page."""
    token = None
    while True:
        page = search(*arguments, page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def made_or_found(make: Callable[[], Any], find: Callable[[], Any]) -> Any:
    """Result of ``make``, or of ``find`` where another machine, which does not share our lock, has just made it."""
    from mlflow.exceptions import MlflowException

    try:
        return make()
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        return find()


def _lock():
    return local_store.alone(local_store.lock_file("registry"))


def _told(error: BaseException) -> RegistryError:
    """The error, as one sentence, for what MLflow, its database or the system raised."""
    causes, where = _causes(error), local_store.where()
    reason = shown(local_store.without_password(_reason(causes)))
    of_server = local_store.database() is None
    status = _status(causes) if of_server else None  # MLflow gives SQLite's errors a status, too
    if status in (401, 403):
        return RegistryError(
            f"the model registry at {where} refuses this user (HTTP {status}); "
            "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, to a user who may do that"
        )
    if _lacks_rights(causes):
        return RegistryError(
            f"the model registry at {where} failed ({reason}), for this user lacks the rights; "
            "see to the rights of the database and its folder, or be their owner"
        )
    if any(type(cause).__name__.startswith("Unsupported") for cause in causes):  # MLflow's, of a URI whose scheme it does not know
        return RegistryError(
            f"MLflow has no registry of the kind of {where}; set MLFLOW_TRACKING_URI to an http, sqlite or postgresql address"
        )
    if of_server and (status in _AWAY or _is_away(causes)):
        return RegistryAway(f"the model registry at {where} is away ({reason}); start it, or set MLFLOW_TRACKING_URI to one that answers")
    return RegistryError(
        f"the model registry at {where} failed ({reason}); "
        "check that it can be reached and written, that there is room on the disk, and MLFLOW_TRACKING_URI if it is set"
    )


def _causes(error: BaseException | None) -> list[BaseException]:
    """The chain of exceptions, outermost first; each wraps the message of the next."""
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes


def _reason(causes: list[BaseException]) -> str:
    """Why it failed: the message of the innermost error of SQLite or the system, else of the outermost error."""
    told = [cause for cause in causes if isinstance(cause, sqlite3.Error | OSError)] or causes[:1]
    return (str(told[-1]).strip().splitlines() or ["no reason given"])[0].split(" failed with exception ")[0]


def _status(causes: list[BaseException]) -> int | None:
    """The HTTP status with which a server refused; None where MLflow does not tell."""
    codes = {"UNAUTHENTICATED": 401, "PERMISSION_DENIED": 403, "TEMPORARILY_UNAVAILABLE": 503}
    for cause in causes:
        if found := re.search(r"failed with error code (\d{3})\b|too many (\d{3}) error responses", str(cause)):
            return int(found[1] or found[2])
        if status := codes.get(getattr(cause, "error_code", "")):
            return status
    return None


def _is_away(causes: list[BaseException]) -> bool:
    """Whether no server answers, be it MLflow's or a database's."""
    from requests.exceptions import ConnectionError as NotConnected, Timeout
    from sqlalchemy.exc import OperationalError

    return any(isinstance(cause, NotConnected | Timeout | ConnectionError | TimeoutError | OperationalError) for cause in causes)


def _lacks_rights(causes: list[BaseException]) -> bool:
    text = " ".join(str(cause) for cause in causes if not isinstance(cause, OSError)).lower()
    return any(isinstance(c, OSError) and c.errno in _NO_RIGHTS for c in causes) or any(part in text for part in _READ_ONLY)

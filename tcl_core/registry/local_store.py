"""Where the registry lies: a server's address, or `mlflow.db` with `mlruns/` beside it; its locks, creation and moves.

A local store may be moved or copied with its folder: the first process that opens it there changes its locations to the
new folder.  It is made aside and renamed, so that a kill leaves nothing in the way.  Knows SQLite and files; of MLflow
only its schema and how it makes a database.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from tcl_core.errors import RegistryError
from tcl_core.files import shown, sync_folder
from tcl_core.locks import ThreadLock, wait_for_lock

EXPERIMENT = "tcl"
_LOCAL = "sqlite:///"
_FILES = "mlruns"  # beside a local database: its models, its lock
_ASIDE = ".making-"  # a folder in which a database is made
TURN = ThreadLock()  # to use the store: MLflow puts its address into the environment, where ``uri`` would find another thread's
_folder: ContextVar[Path | None] = ContextVar("folder of a local store", default=None)


def where() -> str:
    """Address of the store in use, without user and password."""
    with TURN:
        return str(database() or without_password(uri()))


def is_there() -> bool:
    """Whether there is a store to read, without opening it, which would make a local one.  A server counts as there."""
    with TURN:
        file = database()
        return file is None or file.exists()


@contextmanager
def beside(folder: Path) -> Iterator[None]:
    """Let a local store lie in ``folder`` instead of the working folder; MLFLOW_TRACKING_URI, if set, takes precedence."""
    before = _folder.set(Path(os.path.abspath(folder)))
    try:
        yield
    finally:
        _folder.reset(before)


def _home() -> Path:
    return _folder.get() or Path.cwd()


def uri() -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{_LOCAL}{_home() / 'mlflow.db'}"


def without_password(text: str) -> str:
    """The text with user and password removed from its addresses; a password may have slashes, and a port is not taken for one."""
    return re.sub(r"//[^:/@\s]*(?::(?!\d+/)[^@\s]*)?@", "//", text)


def database() -> Path | None:
    """The file of a local store; None for a server.  Raises RegistryError where the address names no possible file."""
    if not uri().startswith(_LOCAL):
        return None
    name = uri().removeprefix(_LOCAL).partition("?")[0]
    if name in ("", ":memory:") or Path(name).is_dir():
        raise RegistryError(f"MLFLOW_TRACKING_URI is {uri()}, which names no file; set it as in sqlite:////home/me/mlflow.db")
    file = Path(name).resolve()
    if os.environ.get("MLFLOW_TRACKING_URI") and not file.parent.is_dir():  # a disk not mounted, say: begin no empty registry
        raise RegistryError(f"MLFLOW_TRACKING_URI is {uri()}, and there is no folder {file.parent}; make it, or correct the address")
    return file


def local_store() -> Path | None:
    """The folder of a local database, which also holds its models and locks; None for a server."""
    file = database()
    return file.parent if file else None


def beside_store() -> Path:
    """Where this machine keeps the files and locks of a store: beside a local database, else in the project."""
    return (local_store() or _home()) / _FILES


def lock_file(name: str) -> Path:
    return beside_store() / f"{name}.lock"


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock at ``path``, one process or thread at a time; it is freed when its process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as file:
        wait_for_lock(file)
        yield


def path_of(location: str) -> Path | None:
    """A location on this machine as a path; None for a server's."""
    if location.startswith("file:"):
        return Path(unquote(urlsplit(location).path))
    return Path(location) if location.startswith("/") else None


# --- making, and another MLflow's schema ---


def is_ready(file: Path) -> bool:
    """Whether a local store exists and its locations are beside it.  Raises RegistryError for another MLflow's schema."""
    locations = experiments(file)
    if locations:
        _check_schema(file)
    return bool(locations) and _moved_from(file, locations) is None


def make_ready(file: Path) -> None:
    """Make a local store, or rebase a moved one, unless another process just did.  The caller holds the lock."""
    for left_over in (file.parent / _FILES).glob(f"{_ASIDE}*"):
        shutil.rmtree(left_over)
    locations = experiments(file)
    if not locations:
        _make(file)
        return
    _check_schema(file)
    if former := _moved_from(file, locations):
        rebase(file, former)


def experiments(file: Path) -> dict[str, str]:
    """Experiment -> location of its files; empty where there is no store yet.  Raises RegistryError for a half-made one."""
    if not file.exists():
        return {}
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=rw", uri=True, timeout=60)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        made = {"experiments", "alembic_version"} <= tables
        found = dict(connection.execute("SELECT name, artifact_location FROM experiments")) if made else {}
    if tables and not found:  # MLflow makes its first experiment last
        raise RegistryError(
            f"{file} was left half made, by a first start that was killed or is still under way, and holds no model; "
            f"if nothing uses it now, remove it and run again: rm {file}"
        )
    return found


def _check_schema(file: Path) -> None:
    """Raise RegistryError for a database of another MLflow's schema.

    MLflow would upgrade some older ones just by opening them, without keeping a copy: that is left to the user.
    """
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=60)) as connection:
        found = [number for (number,) in connection.execute("SELECT version_num FROM alembic_version")]
    known = _schemas()
    if found == [known[0]]:
        return
    schema = shown(", ".join(map(str, found)) or "none")
    if found and set(found) <= set(known):
        raise RegistryError(
            f"the model registry at {file} was made by an older MLflow (schema {schema}, this one's is {known[0]}); "
            f"keep a copy of it, then run: mlflow db upgrade {_LOCAL}{file}"
        )
    raise RegistryError(
        f"the model registry at {file} was made by a newer MLflow (schema {schema} is not known to this one); "
        "install that MLflow's version, or let MLFLOW_TRACKING_URI name another registry"
    )


@functools.cache
def _schemas() -> tuple[str, ...]:
    """The schemas that this MLflow can read or upgrade, its own first."""
    import mlflow.store
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(mlflow.store.__path__[0]) / "db_migrations"))
    return tuple(script.revision for script in scripts.walk_revisions())


def _make(file: Path) -> None:
    """Have MLflow make a database aside, and move it into place when complete, so that a kill leaves nothing in the way."""
    files = file.parent / _FILES
    with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=files) as aside:
        made = Path(aside) / file.name
        _initialise(made, files)
        sync_folder(made)  # it syncs files, too
        os.replace(made, file)
        sync_folder(file.parent)


def _initialise(file: Path, files: Path) -> None:
    """Make a fresh database whose experiments, ours included, keep their files in ``files``."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore(f"{_LOCAL}{file}", files.as_uri())
    store.create_experiment(EXPERIMENT, files.as_uri())
    store.engine.dispose()


# --- moving ---


def _moved_from(file: Path, locations: Mapping[str, str]) -> Path | None:
    """The folder that a local store was in when our experiment's location was last set; None if it is still there."""
    path = path_of(locations.get(EXPERIMENT, ""))
    if path is None or _FILES not in path.parts:
        return None
    former = Path(*path.parts[: len(path.parts) - 1 - path.parts[::-1].index(_FILES)])
    return former if former != file.parent and former != Path("/") else None


def rebase(file: Path, former: Path) -> None:
    """Replace a store's ``former`` folder by its present one in every text of the database, in one transaction."""
    olds, new = {str(former), quote(str(former))}, str(file.parent)
    path = re.compile(rf"(file://|sqlite:///|(?<![\w./-]))(?:{'|'.join(map(re.escape, olds))})(?=[/\"'\s]|$)")

    def rebased(text: str) -> str:
        return path.sub(lambda m: m[1] + (quote(new) if m[1] == "file://" else new), text)

    with closing(sqlite3.connect(file, timeout=60, isolation_level=None)) as connection:
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

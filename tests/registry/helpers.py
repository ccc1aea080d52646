"""What the registry's tests share: registries, models to register, and commands in processes that may be killed.

MLflow takes seconds to make an empty registry; it does so once, and each test file has a copy.  A file takes the fixtures that
it needs by their names: ``store = helpers.store``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcl_core import registry
from tcl_core.features.batches import Samples
from tcl_core.learning.fit import FitSettings
from tcl_core.models.catalogue import create
from tcl_core.registry import local_store, serving
from tcl_core.registry.connection import opened

TAGS = {"data.hash": "d1", "dvc.stage": "train"}
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.copyfile", "shutil.rmtree")


def use(folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")


def saved(folder, seed=0):
    create("random", FitSettings(seed=seed)).save(folder)
    return folder


def aliases(platform: str) -> dict[str, int]:
    return {alias: version.number for version in registry.versions(platform) for alias in version.aliases}


def some_samples() -> Samples:
    tokens = np.zeros((4, 2, 3), np.float32)
    return Samples(tokens, np.full(4, 2, np.int32), np.zeros(4, np.int32), np.full(4, np.inf))


def child(act: Callable[[], Any], kill_at: int | None = None, changes: list[str] | None = None) -> Any:
    """What ``act`` returns in a process of its own; None if it was killed before the ``kill_at``-th change of the disk.

    A process of its own for each: connections to a database must not be shared by two.  ``changes`` gets their kinds.
    """
    import mlflow.pyfunc  # noqa: F401  (once, and not in each child)
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    reader, writer = os.pipe()
    if not (pid := os.fork()):
        seen: list[str] = []

        def note(kind: str) -> None:
            seen.append(kind)
            if len(seen) == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not the suite's own: it would only raise
        signal.alarm(60)
        sync = os.fsync
        os.fsync = lambda descriptor: (note("fsync"), sync(descriptor))
        event.listen(Engine, "commit", lambda connection: note("commit"))
        sys.addaudithook(lambda name, _: note(name) if name in CHANGES else None)
        try:
            os.write(writer, json.dumps([act(), seen]).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as file:
        answer = file.read()
    _, status = os.waitpid(pid, 0)
    assert answer or os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, "it ended without an answer"
    result, kinds = json.loads(answer) if answer else (None, [])
    if changes is not None:
        changes += kinds
    return result


def some_of(kinds: list[str]) -> Iterator[int]:
    """Numbers of changes, from 1: six commits, from the first to the last, and one of each other kind."""
    for kind in sorted(set(kinds)):
        places = [number for number, k in enumerate(kinds, start=1) if k == kind]
        chosen = np.linspace(0, len(places) - 1, 6) if kind == "commit" else [len(places) // 2]
        yield from (places[int(i)] for i in chosen)


def runs_without_version(folder: Path) -> list[tuple]:
    """Runs that are not deleted, and have no version or do not end."""
    with closing(sqlite3.connect(folder / "mlflow.db")) as connection:
        return connection.execute(
            "SELECT run_uuid, status FROM runs WHERE lifecycle_stage = 'active' AND "
            "(status <> 'FINISHED' OR run_uuid NOT IN (SELECT run_id FROM model_versions))"
        ).fetchall()


# --- fixtures ---

MADE: list[Path] = []


@pytest.fixture(scope="session")
def empty(tmp_path_factory) -> Path:
    """The database of a registry without models; of each file that has this fixture the same one."""
    if not MADE:
        folder = tmp_path_factory.mktemp("empty")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
            with opened(alone=True):  # which makes it
                pass
        MADE.append(folder / "mlflow.db")
    return MADE[0]


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory, empty):
    """The folder of one registry for the file; each test uses a platform of its own."""
    folder = tmp_path_factory.mktemp("registry")
    shutil.copy(empty, folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        patch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
        yield folder


@pytest.fixture
def fresh(empty, tmp_path, monkeypatch) -> Path:
    """The folder of an empty registry of the test's own, and little code to register: all for speed."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(empty, folder)
    use(folder, monkeypatch)
    (tmp_path / "code").mkdir()
    monkeypatch.setattr(serving, "CODE", tmp_path / "code")
    return folder


@pytest.fixture
def little_code(tmp_path, monkeypatch) -> None:
    """Versions bring along next to no code: for speed."""
    (tmp_path / "little").mkdir()
    monkeypatch.setattr(serving, "CODE", tmp_path / "little")


@pytest.fixture
def none_yet(fresh, empty, monkeypatch) -> Path:
    """As ``fresh``, but the registry must be made first; MLflow's seconds for that are spared."""

    def initialise(database: Path, files: Path) -> None:
        shutil.copy(empty, database)
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE experiments SET artifact_location = ?", [files.as_uri()])
        time.sleep(0.2)

    (fresh / "mlflow.db").unlink()
    monkeypatch.setattr(local_store, "_initialise", initialise)
    return fresh

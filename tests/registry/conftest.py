"""Registries for the tests: MLflow makes an empty one once, which takes seconds, and each test file has a copy."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tcl_core import registry
from tcl_core.registry import local_store, serving
from tests.registry.helpers import use


@pytest.fixture(scope="session")
def empty(tmp_path_factory) -> Path:
    """The database of a registry without models."""
    folder = tmp_path_factory.mktemp("empty")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        assert registry.champion_version("p-none") is None
    return folder / "mlflow.db"


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

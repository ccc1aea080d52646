"""A local store: where it lies, copies that stand alone, and stores that cannot be used, each said in one sentence."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tcl_core import registry
from tcl_core.errors import NoChampionError, RegistryError
from tcl_core.learning.fit import FitSettings
from tcl_core.models.catalogue import create
from tcl_core.registry import local_store
from tcl_core.registry.connection import opened
from tests.registry import helpers
from tests.registry.helpers import TAGS, child, saved, some_samples, use

empty, store, fresh, none_yet = helpers.empty, helpers.store, helpers.fresh, helpers.none_yet


def test_the_store_is_that_of_the_folder_that_one_works_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert local_store.uri() == f"sqlite:///{tmp_path}/mlflow.db"
    assert local_store.beside_store() == tmp_path / "mlruns"
    assert registry.where() == f"{tmp_path}/mlflow.db"


def test_one_process_asks_the_registry_of_each_folder_that_it_works_in(fresh, empty, tmp_path, monkeypatch):
    """MLflow hands the first one on, by a variable of the environment, to all that comes after and to children."""
    uri = os.environ["MLFLOW_TRACKING_URI"]
    registry.register("p-own", saved(tmp_path / "model", 4), {}, {}, TAGS)
    registry.promote("p-own", 1, True, "the first", None)
    assert os.environ["MLFLOW_TRACKING_URI"] == uri
    (tmp_path / "another").mkdir()
    shutil.copy(empty, tmp_path / "another" / "mlflow.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    for folder, number in ((fresh, 1), (tmp_path / "another", None), (fresh, 1)):
        monkeypatch.chdir(folder)
        assert registry.champion_version("p-own") == number and "MLFLOW_TRACKING_URI" not in os.environ


def test_who_asks_where_there_is_none_makes_none(tmp_path, monkeypatch):
    """As a compiler that is started in another folder: the next one would find an empty registry there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert registry.champion_version("p-none") is None
    for ask in (registry.champion, registry.load_champion):
        with pytest.raises(
            NoChampionError, match=f"^p-none has no champion: there is no model registry at {tmp_path}/mlflow.db; run where"
        ):
            ask("p-none")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["variable", "call"])
def test_the_registry_of_models_is_that_of_runs(fresh, empty, tmp_path, monkeypatch, given):
    """Whatever MLflow was told beside; and that is as it was afterwards."""
    import mlflow
    from mlflow.tracking._model_registry import utils

    (tmp_path / "other").mkdir()
    other = f"sqlite:///{shutil.copy(empty, tmp_path / 'other')}"
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", other)
    monkeypatch.setattr(utils, "_registry_uri", other if given == "call" else None)
    environment = dict(os.environ)
    registry.register("p-models", saved(tmp_path / "model", 4), {}, {}, TAGS)
    registry.promote("p-models", 1, True, "the first", None)
    assert registry.champion("p-models")[0] == 1
    assert dict(os.environ) == environment and utils._registry_uri == (other if given == "call" else None)
    assert mlflow.MlflowClient(registry_uri=other).search_registered_models() == []


def test_two_threads_leave_mlflow_as_it_was(fresh, monkeypatch):
    """Each would take the other's store for what was there before."""
    from mlflow.tracking._tracking_service import utils

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    monkeypatch.chdir(fresh)
    former, inside, leave, met = getattr(utils, "_tracking_uri", None), threading.Event(), threading.Event(), []

    def first():
        with opened():
            inside.set()
            leave.wait(20)

    def second():
        inside.wait(20)
        with opened():
            met.append(leave.is_set())

    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread in threads:
        thread.start()
    inside.wait(20)
    threads[1].join(0.5)  # it waits for the first one to leave
    leave.set()
    for thread in threads:
        thread.join(30)
    assert met == [True] and "MLFLOW_TRACKING_URI" not in os.environ and getattr(utils, "_tracking_uri", None) == former


@pytest.mark.parametrize("secret", ["secret", "se/cret", "se:cr/et"])
def test_no_password_is_shown(secret, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql://me:{secret}@db/mlflow")
    assert registry.where() == "postgresql://db/mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me@db/mlflow")
    assert registry.where() == "postgresql://db/mlflow"
    plain = "s3://bucket/a@b http://host:5000/x http://host:5000/a@b http://host/a@b"
    assert local_store.without_password(plain) == plain
    assert local_store.without_password(f"http://me:{secret}@host:5000/x") == "http://host:5000/x"


def test_a_copy_stands_alone(fresh, tmp_path, monkeypatch):
    import mlflow

    artifact = tmp_path / "report.txt"
    artifact.write_text("report")
    registry.register("p-copy", saved(tmp_path / "model", 4), {"epochs": 3}, {"top_1": 0.5}, TAGS, artifacts=[artifact])
    registry.promote("p-copy", 1, True, "the first", None)
    copy = tmp_path / "a copy"
    shutil.copytree(fresh, copy)
    shutil.rmtree(fresh)
    use(copy, monkeypatch)
    assert registry.where() == f"{copy}/mlflow.db"
    number, folder = registry.champion("p-copy")
    assert number == 1 and folder.is_relative_to(copy)
    samples = some_samples()
    served = mlflow.pyfunc.load_model("models:/tcl-p-copy/1")
    scores = served.predict({"tokens": samples.features, "lengths": samples.lengths, "tasks": samples.tasks})
    np.testing.assert_array_equal(scores, create("random", FitSettings(seed=4)).predict(samples))
    assert registry.register("p-copy", saved(tmp_path / "model", 5), {}, {}, TAGS) == 2
    assert registry.promote("p-copy", 2, True, "better", 1) and registry.champion("p-copy")[1].is_relative_to(copy)
    run = mlflow.MlflowClient().get_model_version("tcl-p-copy", "1").run_id
    assert [file.path for file in mlflow.MlflowClient().list_artifacts(run)] == ["report.txt"]
    assert not fresh.exists() and texts_with(str(fresh), copy / "mlflow.db") == []


def texts_with(part: str, database: Path) -> list[str]:
    """table.column of all texts that have ``part`` in them."""
    with closing(sqlite3.connect(database)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return [
            f"{table}.{column}"
            for table in tables
            for _, column, *_ in connection.execute(f'PRAGMA table_info("{table}")').fetchall()
            if connection.execute(f'SELECT 1 FROM "{table}" WHERE instr("{column}", ?)', [part]).fetchone()
        ]


def test_a_folder_whose_name_merely_begins_alike_is_another(tmp_path):
    """And a location in a URI is written as one."""
    database = tmp_path / "new place" / "mlflow.db"
    database.parent.mkdir()
    texts = ["file:///old/p/mlruns/0", "/old/p", "/old/p2/mlruns", "/very/old/p", '{"at": "/old/p/x"}', "s3://old/p"]
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE t (text)")
        connection.executemany("INSERT INTO t VALUES (?)", [[text] for text in texts])
    local_store.rebase(database, Path("/old/p"))
    with closing(sqlite3.connect(database)) as connection:
        found = [text for (text,) in connection.execute("SELECT text FROM t")]
    new = str(database.parent)
    uri = f"file://{new.replace(' ', '%20')}/mlruns/0"
    assert found == [uri, new, "/old/p2/mlruns", "/very/old/p", f'{{"at": "{new}/x"}}', "s3://old/p"]


def test_a_half_made_registry_is_named_with_its_remedy(none_yet):
    database = none_yet / "mlflow.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE experiments (name, artifact_location)")
    with pytest.raises(RegistryError, match=f"^{database} was left half made, .*, remove it and run again: rm {database}$"):
        registry.champion_version("p-half")
    database.write_bytes(b"no database" * 100)
    with pytest.raises(RegistryError, match="failed .file is not a database.; check"):
        registry.champion_version("p-half")
    database.write_bytes(b"")  # what a full disk leaves of it
    assert registry.champion_version("p-half") is None


def test_a_store_whose_folder_is_away_is_named_and_not_made_anew(tmp_path, monkeypatch):
    """An unmounted disk, say: to read it as an empty one would forget every champion."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/away/mlflow.db")
    for ask in (registry.is_there, lambda: registry.champion_version("p-away")):
        with pytest.raises(RegistryError, match=f"and there is no folder {tmp_path}/away; make it, or correct the address$"):
            ask()
    assert not (tmp_path / "away").exists()


def test_a_store_that_fails_is_named(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/mlflow.db")
    with pytest.raises(RegistryError, match="^the model registry at /proc/mlflow.db failed"):
        registry.rollback("p-away", "slow")


@pytest.mark.parametrize("uri", ["nonsense", "foo://bar", "http://", "http://127.0.0.1:1", "sqlite:///", "postgresql://me:secret@h/db"])
def test_an_address_that_is_none_is_said(uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RegistryError, match="MLFLOW_TRACKING_URI") as error:
        registry.register("p-nowhere", saved(tmp_path / "model"), {}, {}, TAGS)
    assert "secret" not in str(error.value) and "\n" not in str(error.value)


def test_a_registry_that_may_only_be_read_is_read(fresh, tmp_path):
    """By another user; as root all may be written."""

    def as_another() -> list:
        os.setresuid(65534, 65534, 65534) if os.getuid() == 0 else None
        os.chdir(public)
        number, folder = registry.champion("p-read")
        try:
            registry.promote("p-read", 1, True, "again", 1)
        except RegistryError as error:
            return [number, (folder / "model.json").is_file(), str(error)]

    with tempfile.TemporaryDirectory() as name:
        public = Path(name) / "project"
        model = saved(tmp_path / "model")
        assert child(lambda: registry.register("p-read", model, {}, {}, TAGS)) == 1
        assert child(lambda: registry.promote("p-read", 1, True, "the first", None))
        shutil.copytree(fresh, public)
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{public}/mlflow.db"  # put back by ``fresh``
        assert child(lambda: registry.champion_version("p-read")) == 1  # which brings it to its place
        for path in (*public.rglob("*"), public, public.parent):
            path.chmod(0o555 if path.is_dir() else 0o444)
        number, there, said = child(as_another)
        public.parent.chmod(0o755), public.chmod(0o755)
    assert number == 1 and there and said.startswith(f"the model registry at {public}/mlflow.db failed (")

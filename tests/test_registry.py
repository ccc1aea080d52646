"""The registry on a database of its own: versions, provenance, champions and promotions that meet."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcl_core import registry
from tcl_core.errors import DataError, RegistryError
from tcl_core.features.batches import Samples
from tcl_core.learning.fit import FitSettings
from tcl_core.models.catalogue import create

TAGS = {"data.hash": "d1", "dvc.stage": "train"}


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory):
    """One fresh database for the module, for making it takes seconds; each test uses a platform of its own."""
    folder = tmp_path_factory.mktemp("registry")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        patch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
        assert registry.champion_version("p-none") is None
        shutil.copy(folder / "mlflow.db", folder / "empty.db")
        yield folder


@pytest.fixture
def fresh(store, tmp_path, monkeypatch) -> Path:
    """The folder of an empty registry of the test's own, and little code to register: all for speed."""
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copy(store / "empty.db", folder / "mlflow.db")
    use(folder, monkeypatch)
    (tmp_path / "code").mkdir()
    monkeypatch.setattr(registry, "CODE", tmp_path / "code")
    return folder


@pytest.fixture
def none_yet(fresh, store, monkeypatch) -> Path:
    """As ``fresh``, but the registry must be made first; MLflow's seconds for that are spared."""

    def initialise(database: Path, files: Path) -> None:
        shutil.copy(store / "empty.db", database)
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE experiments SET artifact_location = ?", [files.as_uri()])
        time.sleep(0.2)

    (fresh / "mlflow.db").unlink()
    monkeypatch.setattr(registry, "_initialise", initialise)
    return fresh


def use(folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")


def saved(folder, seed=0):
    create("random", FitSettings(seed=seed)).save(folder)
    return folder


def some_samples() -> Samples:
    tokens = np.zeros((4, 2, 3), np.float32)
    return Samples(tokens, np.full(4, 2, np.int32), np.zeros(4, np.int32), np.full(4, np.inf))


def test_a_model_comes_back_as_it_was(tmp_path):
    model = saved(tmp_path / "model", seed=7)
    version = registry.register("p-back", model, {"epochs": 3}, {"top_1": 0.5}, TAGS)
    assert registry.promote("p-back", version, True, "the first", None)
    number, folder = registry.champion("p-back")
    assert number == version == 1
    assert (folder / "model.json").read_bytes() == (model / "model.json").read_bytes()
    expected = create("random", FitSettings(seed=7)).predict(some_samples())
    np.testing.assert_array_equal(registry.load_champion("p-back").predict(some_samples()), expected)


def test_mlflow_can_serve_a_version_without_pickle(tmp_path, store):
    import mlflow

    version = registry.register("p-served", saved(tmp_path / "model", seed=3), {}, {}, TAGS)
    served = mlflow.pyfunc.load_model(f"models:/tcl-p-served/{version}")
    samples = some_samples()
    scores = served.predict({"tokens": samples.tokens, "lengths": samples.lengths, "tasks": samples.tasks})
    np.testing.assert_array_equal(scores, create("random", FitSettings(seed=3)).predict(samples))
    assert not list(store.rglob("*.pkl"))


def test_the_same_bytes_are_one_version_and_other_data_another(tmp_path):
    model = saved(tmp_path / "model")
    versions = [registry.register("p-same", model, {}, {}, TAGS) for _ in range(2)]
    versions.append(registry.register("p-same", model, {}, {}, {**TAGS, "data.hash": "d2"}))
    versions.append(registry.register("p-same", saved(tmp_path / "model", seed=1), {}, {}, TAGS))
    assert versions == [1, 1, 2, 3]


def test_a_version_says_where_it_comes_from(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.setenv(registry.FLOW_RUN_ID, "run-42")
    plot = tmp_path / "plot.png"
    plot.write_bytes(b"picture")
    version = registry.register(
        "p-facts", saved(tmp_path / "model"), {"train.epochs": 60}, {"top_1": 0.9}, TAGS, {"loss": [3.0, 2.0]}, [plot]
    )
    client = mlflow.MlflowClient()
    found = client.get_model_version("tcl-p-facts", str(version))
    assert found.tags["data.hash"] == "d1" and found.tags["dvc.stage"] == "train"
    assert found.tags["prefect.flow_run_id"] == "run-42" and len(found.tags["run_key"]) == 16
    run = client.get_run(found.run_id)
    assert run.data.params["train.epochs"] == "60" and run.data.metrics["top_1"] == 0.9
    assert [(m.step, m.value) for m in client.get_metric_history(found.run_id, "loss")] == [(1, 3.0), (2, 2.0)]
    assert [file.path for file in client.list_artifacts(found.run_id)] == ["plot.png"]


def test_only_a_better_version_becomes_champion(tmp_path):
    import mlflow

    first = registry.register("p-better", saved(tmp_path / "a", 1), {}, {}, TAGS)
    second = registry.register("p-better", saved(tmp_path / "b", 2), {}, {}, TAGS)
    assert registry.promote("p-better", first, True, "no champion yet", None)
    assert not registry.promote("p-better", second, False, "top-1 .80 against .81", first)
    assert registry.champion_version("p-better") == first
    assert mlflow.MlflowClient().get_model_version("tcl-p-better", str(second)).tags["promotion"] == (
        "kept back: top-1 .80 against .81"
    )
    assert registry.promote("p-better", second, True, "top-1 .85 against .81", first)
    assert registry.champion_version("p-better") == second


def test_of_two_promotions_at_once_one_wins(tmp_path):
    versions = [registry.register("p-race", saved(tmp_path / f"m{i}", i), {}, {}, TAGS) for i in range(3)]
    registry.promote("p-race", versions[0], True, "the first", None)
    outcomes: list[str] = []

    def contend(version: int) -> None:
        try:
            registry.promote("p-race", version, True, "better than the first", versions[0])
            outcomes.append("won")
        except RegistryError as error:
            outcomes.append("told" if "changed from version 1" in str(error) else str(error))

    threads = [threading.Thread(target=contend, args=(version,)) for version in versions[1:]]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(outcomes) == ["told", "won"]


def test_what_is_missing_is_said_with_what_to_run(tmp_path):
    assert registry.champion_version("p-none") is None
    with pytest.raises(RegistryError, match="p-none has no champion; run: tcl register"):
        registry.champion("p-none")
    registry.promote("p-there", registry.register("p-there", saved(tmp_path / "a"), {}, {}, TAGS), True, "the first", None)
    with pytest.raises(RegistryError, match=r"p-their has no champion; .*; there are champions of .*p-there"):
        registry.champion("p-their")
    model = saved(tmp_path / "model")
    with pytest.raises(RegistryError, match="model of p-none in .* is not registered; run: tcl register --platform p-none"):
        registry.version_of("p-none", model, TAGS)
    with pytest.raises(RegistryError, match="there is no model of p-none in"):
        registry.register("p-none", tmp_path, {}, {}, TAGS)


def test_a_model_that_came_back_is_the_version_that_it_was(tmp_path):
    """Parameters changed and changed back: the present model is version 1 again, not the highest."""
    model = tmp_path / "model"
    found = [registry.register("p-again", saved(model, seed), {}, {}, TAGS) for seed in (0, 1, 2, 0)]
    assert found == [1, 2, 3, 1] and registry.version_of("p-again", model, TAGS) == 1
    with pytest.raises(RegistryError, match="not registered"):
        registry.version_of("p-again", model, {**TAGS, "data.hash": "d2"})


def test_a_version_of_a_server_is_fetched_once_and_kept_whole(tmp_path, monkeypatch):
    import mlflow.artifacts

    registry.register("p-far", saved(tmp_path / "model", 5), {}, {}, TAGS)
    registry.promote("p-far", 1, True, "the first", None)
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(registry, "_local_store", lambda: None)  # as for a server's address
    _, folder = registry.champion("p-far")
    assert folder.is_relative_to(tmp_path / "mlruns/fetched") and (folder / "model.json").is_file()
    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", lambda *_, **__: pytest.fail("fetched twice"))
    assert registry.champion("p-far") == (1, folder)
    assert list((tmp_path / "temporary").iterdir()) == [] and len(list((tmp_path / "mlruns/fetched").iterdir())) == 1


def test_the_store_is_that_of_the_folder_that_one_works_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert registry._uri() == f"sqlite:///{tmp_path}/mlflow.db"
    assert registry._beside_store() == tmp_path / "mlruns"
    assert registry.where() == f"{tmp_path}/mlflow.db"


def test_a_store_that_is_away_is_named(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:////proc/none/mlflow.db")
    with pytest.raises(RegistryError, match="^the model registry at /proc/none/mlflow.db failed"):
        registry.champion_version("p-away")


# --- kills ---

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.copyfile", "shutil.rmtree")


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


def test_a_killed_registration_leaves_nothing_and_stops_nothing(fresh, tmp_path):
    models, kinds = [saved(tmp_path / f"m{seed}", seed) for seed in range(30)], []

    def register(model: Path, champion: int | None = None) -> int:
        version = registry.register("p-kill", model, {"epochs": 3}, {"top_1": 0.5}, TAGS, {"loss": [2.0]}, [model / "model.json"])
        return registry.champion("p-kill")[0] if champion else version

    assert child(lambda: register(models[0])) == 1
    assert child(lambda: registry.promote("p-kill", 1, True, "the first", None))
    assert child(lambda: register(models[1]), changes=kinds) == 2
    assert kinds.count("commit") > 10 and kinds.count("fsync") > 5
    left = 0
    for model, number in zip(models[2:], sample := list(some_of(kinds)), strict=False):
        assert child(partial(register, model), kill_at=number) is None
        left += len(runs_without_version(fresh))
        assert child(partial(register, model, champion=1)) == 1
        assert runs_without_version(fresh) == []
    assert left > len(sample) / 2, "most kills leave a run behind, for the next one to remove"
    with closing(sqlite3.connect(fresh / "mlflow.db")) as connection:
        (versions,) = connection.execute("SELECT count(*) FROM model_versions").fetchone()
    kept = [folder for folder in (fresh / "mlruns/models").iterdir() if folder.is_dir()]
    assert len(kept) == versions == 2 + len(sample)


def test_a_killed_promotion_leaves_a_champion_with_its_reason(fresh, tmp_path):
    def ready() -> list[int]:
        return [registry.register("p-kill", saved(tmp_path / f"m{seed}", seed), {}, {}, TAGS) for seed in range(2)]

    def promote(version: int, against: int | None, time: int = 0) -> bool:
        return registry.promote("p-kill", version, True, f"better for the {time}. time", against)

    def champion_and_back_to_one() -> list:
        import mlflow

        version, folder = registry.champion("p-kill")
        tags = mlflow.MlflowClient().get_model_version("tcl-p-kill", str(version)).tags
        promote(1, promote(2, 1) * 2 if version == 1 else 2)
        return [version, folder.is_dir(), tags.get("promotion", "no reason")]

    kinds: list[str] = []
    assert child(ready) == [1, 2] and child(lambda: promote(1, None))
    assert child(lambda: promote(2, 1), changes=kinds) and child(lambda: promote(1, 2))
    for number in range(1, len(kinds) + 1):
        child(partial(promote, 2, 1, number), kill_at=number)
        now = child(champion_and_back_to_one)
        assert now in ([1, True, "promoted: better for the 0. time"], [2, True, f"promoted: better for the {number}. time"])


def test_a_killed_first_registration_leaves_none_half_made(none_yet, tmp_path):
    model, kinds = saved(tmp_path / "model"), []
    assert child(lambda: registry.register("p-first", model, {}, {}, TAGS), changes=kinds) == 1
    assert registry._experiments(none_yet / "mlflow.db")["tcl"] == f"file://{none_yet}/mlruns"
    until = kinds.index("commit") if "commit" in kinds else len(kinds)
    for number in range(1, until + 1):
        shutil.rmtree(none_yet)
        none_yet.mkdir()
        assert child(lambda: registry.champion_version("p-first") or "none", kill_at=number) in (None, "none")
        assert child(lambda: registry.register("p-first", model, {}, {}, TAGS)) == 1
        assert {path.name for path in (none_yet / "mlruns").iterdir()} == {"models", "registry.lock"}


def test_two_first_registrations_at_once_both_succeed(none_yet, tmp_path):
    models, versions = [saved(tmp_path / f"m{seed}", seed) for seed in range(2)], []
    register = [lambda model=model: registry.register("p-two", model, {}, {}, TAGS) for model in models]
    threads = [threading.Thread(target=lambda act=act: versions.append(child(act))) for act in register]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sorted(versions) == [1, 2] and runs_without_version(none_yet) == []


def test_a_full_disk_leaves_the_champion_and_the_next_registration_goes_on(fresh, tmp_path):
    def on_a_full_disk() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            registry.register("p-full", models[1], {}, {}, TAGS)
        except RegistryError as error:
            return str(error)

    models = [saved(tmp_path / f"m{seed}", seed) for seed in range(2)]
    assert child(lambda: registry.register("p-full", models[0], {}, {}, TAGS)) == 1
    assert child(lambda: registry.promote("p-full", 1, True, "the first", None))
    assert child(on_a_full_disk).startswith(f"the model registry at {fresh}/mlflow.db failed (")
    assert child(lambda: registry.champion("p-full")[0]) == 1
    assert child(lambda: registry.register("p-full", models[1], {}, {}, TAGS)) == 2 and runs_without_version(fresh) == []


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


# --- copies, damage, corrections ---


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
    scores = served.predict({"tokens": samples.tokens, "lengths": samples.lengths, "tasks": samples.tasks})
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
    registry._rebase(database, Path("/old/p"))
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


@pytest.mark.parametrize("uri", ["nonsense", "foo://bar", "http://", "http://127.0.0.1:1", "sqlite:///", "postgresql://me:secret@h/db"])
def test_an_address_that_is_none_is_said(uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(RegistryError, match="MLFLOW_TRACKING_URI") as error:
        registry.register("p-nowhere", saved(tmp_path / "model"), {}, {}, TAGS)
    assert "secret" not in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("how", ["changed", "lost"])
def test_a_champion_that_is_not_what_was_registered_is_refused_and_can_be_replaced(fresh, tmp_path, how):
    model = saved(tmp_path / "model", 1)
    registry.register("p-bytes", model, {}, {}, TAGS)
    registry.promote("p-bytes", 1, True, "the first", None)
    _, folder = registry.champion("p-bytes")
    saved(folder, 2) if how == "changed" else shutil.rmtree(folder)
    with pytest.raises(DataError, match="^version 1 of tcl-p-bytes cannot be used .*; register and promote"):
        registry.load_champion("p-bytes")
    assert registry.register("p-bytes", model, {}, {}, TAGS) == 2 == registry.version_of("p-bytes", model, TAGS)
    registry.promote("p-bytes", 2, True, "version 1 is damaged", 1)
    assert registry.champion("p-bytes")[0] == 2


def test_a_model_that_was_judged_anew_is_corrected(fresh, tmp_path):
    import mlflow

    model, report, plot = saved(tmp_path / "model"), tmp_path / "report.json", tmp_path / "plot.png"
    report.write_text("first"), plot.write_text("plot")

    def register(top_1: float, holdout: str, *files: Path, **more: float) -> dict:
        tags = TAGS | {"holdout.hash": holdout}
        assert registry.register("p-anew", model, {"epochs": 3}, {"top_1": top_1, **more}, tags, {"loss": [3.0, 2.0]}, files) == 1
        client = mlflow.MlflowClient()
        version = client.get_model_version("tcl-p-anew", "1")
        run, logged = client.get_run(version.run_id), client.get_logged_model(version.source.removeprefix("models:/"))
        files = {file.path for file in client.list_artifacts(version.run_id)}
        text = Path(client.download_artifacts(version.run_id, report.name)).read_text()
        figures = {metric.key: metric.value for metric in logged.metrics if metric.step == max(m.step for m in logged.metrics)}
        return {"tags": version.tags, "run": run.data, "files": files, "text": text, "model": figures}

    register(0.9, "h1", report, plot, top_5=1.0)
    report.write_text("second")
    found = register(0.4, "h2", report)
    assert found["run"].metrics["top_1"] == 0.4 == found["model"]["top_1"] and np.isnan(found["run"].metrics["top_5"])
    assert found["run"].metrics["loss"] == 2.0
    assert found["tags"]["holdout.hash"] == "h2" == found["run"].tags["holdout.hash"]
    assert found["files"] == {"report.json"} and found["text"] == "second"
    again = register(0.4, "h2", report)
    assert again["tags"] == found["tags"], "what is known already is not logged once more"
    mlflow.MlflowClient().set_model_version_tag("tcl-p-anew", "1", "logged", registry.UNDER_WAY)  # as a kill leaves it
    assert register(0.4, "h2", report)["run"].metrics["top_1"] == 0.4
    assert registry._known(mlflow.MlflowClient(), "tcl-p-anew", found["tags"]["run_key"]).tags["logged"] == found["tags"]["logged"]


def test_only_runs_of_ours_are_removed(fresh, tmp_path):
    import mlflow

    registry.register("p-ours", saved(tmp_path / "model"), {}, {}, TAGS)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("tcl").experiment_id
    theirs = client.create_run(experiment)
    over_a_server = client.create_run(experiment, tags={"run_key": "k", "registrar": "another project's lock"})
    before_registrars = client.create_run(experiment, tags={"run_key": "k"})
    registry.register("p-ours", saved(tmp_path / "model", 1), {}, {}, TAGS)
    stages = [client.get_run(run.info.run_id).info.lifecycle_stage for run in (theirs, over_a_server, before_registrars)]
    assert stages == ["active", "active", "deleted"]


def test_files_elsewhere_on_this_machine_are_never_removed(fresh, tmp_path):
    registry._delete_files(str(tmp_path / "code"))
    registry._delete_files(f"file://{tmp_path}/code")
    assert (tmp_path / "code").is_dir()

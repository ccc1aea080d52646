"""The registry on a database of its own: versions, provenance, champions and promotions that meet."""

from __future__ import annotations

import tempfile
import threading

import numpy as np
import pytest

from tcl_core import registry
from tcl_core.errors import RegistryError
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
        yield folder


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

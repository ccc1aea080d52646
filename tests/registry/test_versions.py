"""Registered models: what a version says, and which one a model is."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tcl_core import registry
from tcl_core.errors import RegistryError
from tcl_core.learning.fit import FitSettings
from tcl_core.models.catalogue import create
from tcl_core.registry import registering, runs
from tests.registry import helpers
from tests.registry.helpers import TAGS, saved, some_samples

empty, store, fresh, little_code = helpers.empty, helpers.store, helpers.fresh, helpers.little_code


def test_mlflow_can_serve_a_version_without_pickle(tmp_path, store):
    import mlflow

    version = registry.register("p-served", saved(tmp_path / "model", seed=3), {}, {}, TAGS)
    served = mlflow.pyfunc.load_model(f"models:/tcl-p-served/{version}")
    samples = some_samples()
    scores = served.predict({"tokens": samples.features, "lengths": samples.lengths, "tasks": samples.tasks})
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


def test_a_run_that_the_environment_names_is_left_alone(tmp_path, monkeypatch):
    """``mlflow run`` and other starters set MLFLOW_RUN_ID for the processes that they start."""
    import mlflow

    client = mlflow.MlflowClient()
    theirs = client.create_run("0", run_name="theirs").info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", theirs)
    version = registry.register("p-started", saved(tmp_path / "model"), {"train.epochs": 60}, {}, TAGS)
    assert client.get_model_version("tcl-p-started", str(version)).run_id != theirs
    run = client.get_run(theirs)
    assert run.info.run_name == "theirs" and run.info.status == "RUNNING" and not run.data.params
    assert os.environ["MLFLOW_RUN_ID"] == theirs


def test_a_model_that_came_back_is_the_version_that_it_was(tmp_path):
    """Parameters changed and changed back: the present model is version 1 again, not the highest."""
    model = tmp_path / "model"
    found = [registry.register("p-again", saved(model, seed), {}, {}, TAGS) for seed in (0, 1, 2, 0)]
    assert found == [1, 2, 3, 1] and registry.version_of("p-again", model, TAGS) == 1
    with pytest.raises(RegistryError, match="not registered"):
        registry.version_of("p-again", model, {**TAGS, "data.hash": "d2"})


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
    assert registering.known(mlflow.MlflowClient(), "tcl-p-anew", found["tags"]["run_key"]).tags["logged"] == found["tags"]["logged"]


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


@pytest.mark.parametrize("made", ["m-1", "m-1/artifacts", "m-1/artifacts/model.json", None])
def test_however_far_a_killed_registration_came_its_folder_goes(fresh, made):
    models = fresh / "mlruns" / "models"
    models.mkdir(parents=True, exist_ok=True)
    if made:
        (models / made).mkdir(parents=True)
    runs.delete_files(str(models / "m-1" / "artifacts"))
    assert models.is_dir() and not (models / "m-1").exists()


def test_files_elsewhere_on_this_machine_are_never_removed(fresh, tmp_path):
    runs.delete_files(str(tmp_path / "code"))
    runs.delete_files(f"file://{tmp_path}/code")
    assert (tmp_path / "code").is_dir()


def test_a_version_is_described_for_people_and_listed_for_programs(tmp_path, little_code):
    import mlflow

    model = saved(tmp_path / "model")
    first = registry.register("p-told", model, {"epochs": 3}, {"top_1": 0.5}, TAGS, description="Ranks programs for p-told.")
    found = mlflow.MlflowClient().get_model_version("tcl-p-told", str(first))
    assert found.description.startswith('Ranks programs for p-told.\n\nLoad it: `tcl_core.registry.load_champion("p-told")`')
    assert "Aliases: `champion`" in mlflow.MlflowClient().get_registered_model("tcl-p-told").description
    registry.register("p-told", model, {"epochs": 3}, {"top_1": 0.4}, TAGS, description="Ranks them worse.")
    assert mlflow.MlflowClient().get_model_version("tcl-p-told", str(first)).description.startswith("Ranks them worse.\n\nLoad it:")
    [listed] = registry.versions("p-told")
    assert (listed.platform, listed.number, listed.aliases, listed.tags["data.hash"]) == ("p-told", 1, ("candidate",), "d1")
    assert registry.logged(listed) == ({"epochs": "3"}, {"top_1": 0.4})
    assert listed in registry.versions() and registry.versions("p-nobody") == []


@pytest.mark.parametrize("asked, nothing", [("get_experiment_by_name", None), ("search_registered_models", [])])
def test_what_another_machine_made_meanwhile_is_taken(tmp_path, fresh, monkeypatch, asked, nothing):
    """No lock spans machines: what is not there when one looks may be there when one makes it."""
    import mlflow

    registry.register("p-both", saved(tmp_path / "first"), {}, {}, TAGS)
    look, looked = getattr(mlflow.MlflowClient, asked), []

    def sees_nothing_at_first(client, what):
        looked.append(what)
        return nothing if len(looked) == 1 else look(client, what)

    monkeypatch.setattr(mlflow.MlflowClient, asked, sees_nothing_at_first)
    monkeypatch.setattr(registering, "remove_unfinished", lambda client: None)  # it looks for the experiment too
    assert registry.register("p-both", saved(tmp_path / "second", seed=1), {}, {}, TAGS) == 2
    assert looked

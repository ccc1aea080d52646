"""`tcl.tune` outside a project: what it measured is found again, and nothing of it is left when all is done."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
from synthetic import FEATURES, ranking_problem

import tcl_core as tcl
from tcl_core.errors import PlatformError, UsageError
from tcl_core.features.layout import WIDTH
from tcl_core.learning.fit import FitSettings
from tcl_core.measure.job import Setup
from tcl_core.platforms import Hardware
from tcl_core.tuning import network
from tcl_core.tuning.network import Tuned

COMPARED = {"systems": {}, "missing": {}, "ratios": {}}


class Tuner:
    """Stands in for the search: measures one program more at each call, and is stopped before the end or is not."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.setups: list[Setup] = []
        self.stopped = True

    def __call__(self, name, graph, folder, out=None, **more) -> Tuned:
        self.folders.append(folder)
        self.setups.append(more["setup"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"measured-{len(self.folders)}").touch()
        if self.stopped:
            raise KeyboardInterrupt
        if out is not None:
            for file in ("network.so", "example.npz"):
                (out / file).write_text("built")
            shutil.copytree(folder, out / "measured")
        return Tuned(24, 3, 9.0, 2.0, 3.0, 1e-7, 30.0, compared=COMPARED)


@pytest.fixture
def tuner(monkeypatch, tmp_path):
    tuner = Tuner()
    monkeypatch.setattr(network, "tune_network", tuner)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tuner


def ranking_problem_in_tokens() -> tcl.Samples:
    found = ranking_problem(tasks=3)
    tokens = np.zeros((*found.features.shape[:2], WIDTH), dtype=np.float32)
    tokens[:, :, -FEATURES:] = found.features
    return tcl.Samples(tokens, found.lengths, found.tasks, found.latencies_s, found.task_names)


def stopped(*given, **more) -> None:
    with pytest.raises(KeyboardInterrupt):
        tcl.tune(*given, **more)


@pytest.mark.parametrize("with_folder", [True, False])
def test_the_same_call_goes_on_and_clears_up(tuner, tmp_path, with_folder):
    out = tmp_path / "fast" if with_folder else None
    stopped("bert-tiny", None, trials=24, out=out)
    stopped("bert-tiny", None, trials=48, out=out)  # more of the same
    tuner.stopped = False
    assert tcl.tune("bert-tiny", None, trials=24, out=out).tuned_ms == 2.0
    first, second, third = tuner.folders
    assert first == second == third and first.parent == tmp_path / "cache" / "tcl" / "tuning"
    assert not first.exists()
    if out:
        assert {file.name for file in (out / "measured").iterdir()} == {"measured-1", "measured-2", "measured-3"}


def test_what_another_call_measured_is_not_its(tuner, tmp_path):
    from tcl_core.models.random_scores import RandomScores

    file = tmp_path / "net.onnx"
    file.write_bytes(b"one")
    stopped("bert-tiny", None)
    stopped("deit-small", None)
    stopped("bert-tiny", None, seed=1)
    stopped(file, None)
    file.write_bytes(b"another")
    stopped(file, None)
    assert len(set(tuner.folders)) == 5
    model = tcl.Trained(RandomScores(), Hardware())
    stopped("bert-tiny", model)
    stopped("bert-tiny", dataclasses.replace(model, origin="the same, elsewhere"))
    assert tuner.folders[5] == tuner.folders[6] not in tuner.folders[:5]


def test_a_model_is_the_same_after_it_was_loaded(tuner, tmp_path):
    """So that a call that was stopped goes on tomorrow."""
    trees = tcl.Trees(FitSettings(epochs=1)).fit(ranking_problem_in_tokens())
    trained = tcl.Trained(trees, Hardware())
    stopped("bert-tiny", trained)
    stopped("bert-tiny", trained.save(tmp_path / "model"))
    stopped("bert-tiny", tcl.Trained(trees, Hardware(bandwidth_gbs=7.5)))  # which is measured anew in each process
    assert tuner.folders[0] == tuner.folders[1] == tuner.folders[2]


def test_one_database_to_start_from_need_not_be_in_a_list(tuner, tmp_path):
    for one in (str(tmp_path / "none"), tmp_path / "none"):
        with pytest.raises(UsageError, match=f"the folder {tmp_path}/none has no database_tuning_record.json|{tmp_path}/none"):
            tcl.tune("bert-tiny", None, warm_start=one)


def test_the_network_runs_on_as_many_threads_as_are_asked_for(tuner):
    stopped("bert-tiny", None, threads=1)
    assert tuner.setups[0].target["num-cores"] == 1 == tuner.setups[0].protocol.threads
    for count in (0, 10_000):
        with pytest.raises(UsageError, match=f"threads is {count}, and this process may use"):
            tcl.tune("bert-tiny", None, threads=count)


def test_a_model_that_cannot_be_saved_tunes_and_begins_anew(tuner):
    from tcl_core.models.cost_model import CostModel

    class Longest(CostModel):
        name = "longest"
        fit = predict = parameter_count = lambda self, *given: None

    for _ in range(2):
        stopped("bert-tiny", tcl.Trained(Longest(), Hardware()))
    assert len(set(tuner.folders)) == 2


def test_a_seed_that_numpy_refuses_is_refused_before_anything_is_read(tuner, tmp_path):
    samples = ranking_problem_in_tokens()
    for call in (
        lambda: tcl.tune(tmp_path / "none.pt2", None, seed=-1),
        lambda: tcl.samplers.random(samples, 0.5, seed=-1),
        lambda: tcl.distill(tcl.Mamba(), samples, seed=-1),
    ):
        with pytest.raises(UsageError, match="^the seed is -1; give a number from 0 to 4294967295$"):
            call()
    assert tuner.folders == []


def test_a_full_disk_at_the_end_costs_no_measurement(tuner, tmp_path, monkeypatch):
    def full(*given):
        raise OSError(28, "No space left on device")

    tuner.stopped = False
    monkeypatch.setattr("tcl_core.stages.tuned_folder.add_report", full)
    with pytest.raises(PlatformError, match="cannot write .*fast .*free some space and run again"):
        tcl.tune("bert-tiny", None, out=tmp_path / "fast")
    assert [file.name for file in tuner.folders[0].iterdir()] == ["measured-1"] and not (tmp_path / "fast").exists()


def test_a_user_without_a_home_is_told_what_to_set(tuner, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("Could not determine home directory.")))
    with pytest.raises(UsageError, match="no folder to keep what is measured in .*set XDG_CACHE_HOME to one"):
        tcl.tune("bert-tiny", None)
    assert tuner.folders == []

"""Other cost models than the chain's, trained by name on real programs with made-up latencies."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tcl_core import store
from tcl_core.errors import UsageError
from tcl_core.features.batches import Samples
from tcl_core.features.encode import Encoder
from tcl_core.learning import fit
from tcl_core.models import catalogue
from tcl_core.models.catalogue import own_settings
from tcl_core.params import Baselines, Chain, Link, load_params
from tcl_core.platforms import Hardware
from tcl_core.stages import baselines
from tcl_core.stages.baselines import BaselineReport, train_baseline
from tcl_core.platforms import read_saved_hardware, save_hardware
from tcl_core.stages.workspace import Workspace
from tests.shipped import SHIPPED


@pytest.fixture
def project(matmul, softmax, tmp_path, monkeypatch) -> Workspace:
    """Programs of two tasks, measured on the platforms a, b and c; the last one has but the first task's."""
    monkeypatch.chdir(tmp_path)
    records = [
        SimpleNamespace(key=(tiny.task.key, sketch.index, tuple(tiny.space.canonical(sketch, decisions).tolist())))
        for tiny in (matmul, softmax)
        for sketch in tiny.sketches
        for decisions in tiny.sample(sketch, 3)
    ]
    count = 3 * len(matmul.sketches)

    class TwoTasks(Workspace):
        encoder = Encoder([matmul.task, softmax.task], [*matmul.rows(), *softmax.rows()])

        def samples(self, platform: str, kind: str = "records") -> Samples:
            latencies_s = np.random.default_rng(ord(platform)).uniform(1e-4, 1e-3, len(records))
            samples = self.encoder.encode([r.key for r in records], [1.0 * ord(platform)], latencies_s)
            return samples.take(np.arange(count)) if platform == "c" else samples

    monkeypatch.setattr(
        "tcl_core.store.read_records", lambda folder, remedy=None: records[:count] if folder.name == "platform=c" else records
    )
    for cores, platform in enumerate("abc", start=1):
        save_hardware(Workspace().records_folder(platform), Hardware(cores=cores))
    params = load_params(SHIPPED)
    own = catalogue.own_settings
    monkeypatch.setattr(catalogue, "own_settings", lambda name: dataclasses.replace(own(name), epochs=2))
    return TwoTasks(params=dataclasses.replace(params, chain=Chain("a", {"b": Link("a"), "c": Link("b")}), seed=5))


@pytest.mark.parametrize("name", ["tlp", "tenset-mlp", "xgboost", "trees"])
def test_a_model_is_trained_by_name_and_ranks_what_it_reads(project, name):
    count = len(project.samples("a"))
    said = train_baseline(project, name, "a")
    assert said == [BaselineReport(name, "a", count, Path("data/baselines") / name / "a")]
    model, samples = catalogue.load(Path("data/baselines") / name / "a"), project.samples_for(name, "a")
    assert read_saved_hardware(Path("data/baselines") / name / "a").cores == 1
    assert model.settings == dataclasses.replace(own_settings(name), epochs=2, seed=5)  # not those of params.yaml
    assert model.name == name and np.ptp(model.predict(samples)) > 0
    lowered = {path.parent.name for path in Path("data").rglob("*.safetensors")} - {"a"}
    assert lowered == ({"per-store"} if catalogue.reads(name) == "per-store features" else set())


def test_mtl_tlp_learns_the_chains_last_platform_from_the_earlier_ones(project):
    said = train_baseline(project, "mtl-tlp")
    counts = {platform: len(project.samples(platform)) for platform in "bc"}
    assert said == [
        BaselineReport("mtl-tlp", platform, count, Path("data/baselines/mtl-tlp") / platform) for platform, count in counts.items()
    ]
    assert {platform: len(catalogue.load(Path("data/baselines/mtl-tlp") / platform).network.heads) for platform in "bc"} == {
        "b": 2, "c": 3,
    }  # fmt: skip
    assert np.ptp(catalogue.load(Path("data/baselines/mtl-tlp/c")).predict(project.samples("c"))) > 0
    with pytest.raises(UsageError, match="mtl-tlp cannot be trained on a: it also learns from earlier platforms"):
        train_baseline(project, "mtl-tlp", "a")


@pytest.mark.parametrize("name", ["tlp", "xgboost", "random"])
def test_models_of_all_platforms_rank_their_held_out_programs(project, name):
    train_baseline(project, name)
    found = baselines.predicted(project, name)
    assert list(found) == ["a", "b", "c"]
    for platform, scores in found.items():
        model = catalogue.load(Path("data/baselines") / name / platform)
        np.testing.assert_array_equal(scores, model.predict(project.samples_for(name, platform, "holdout")))


def listed(project: Workspace, *names: str, **other: object) -> Workspace:
    return type(project)(params=dataclasses.replace(project.params, baselines=Baselines(names), **other))


def test_listed_models_are_stages_outputs_and_others_lie_elsewhere(project):
    train_baseline(listed(project, "random"), "random", "a")
    train_baseline(listed(project, "tlp"), "random", "a")
    assert catalogue.load(Path("data/models/beside_chain/random/a")).name == "random"
    assert catalogue.load(Path("data/baselines/random/a")).name == "random"
    assert not re.fullmatch("[a-z0-9][a-z0-9-]*", "beside_chain")  # what platforms are called: params.py


def test_a_platform_that_was_skipped_is_left_out_and_named(project):
    store.write_skipped(Workspace().records_folder("b"), "b", "no AVX2 here")
    assert len(train_baseline(project, "random")) == 2
    assert list(baselines.predicted(project, "random")) == ["a", "c"]
    with pytest.raises(UsageError, match="random cannot be trained on b: no AVX2 here"):
        train_baseline(project, "random", "b")
    with pytest.raises(UsageError, match="random cannot be trained on z: it is not in the chain"):
        train_baseline(project, "random", "z")


def test_models_of_platforms_that_no_longer_run_go_from_a_stages_output(project):
    """And only from there: what was trained by hand stays until it is trained again."""
    for beside in (listed(project, "random"), project):
        train_baseline(beside, "random")
    (Path("data/models/beside_chain/random") / "notes").mkdir()
    store.write_skipped(Path("data/models/beside_chain/random"), "a", "once")
    store.write_skipped(Workspace().records_folder("b"), "b", "no AVX2 here")
    for beside in (listed(project, "random"), project):
        train_baseline(beside, "random")
    assert {path.name for path in Path("data/models/beside_chain/random").iterdir()} == {"a", "c", "notes"}
    assert {path.name for path in Path("data/baselines/random").iterdir()} == {"a", "b", "c"}


def test_what_is_trained_depends_on_records_alone(project):
    """DVC would not see that models or held-out records of the other platforms came later."""
    beside = listed(project, "random")
    Workspace().records_folder("c", "holdout").mkdir(parents=True)
    assert [report.platform for report in train_baseline(beside, "random")] == ["a", "b", "c"]
    assert [report.platform for report in train_baseline(beside, "random", "a")] == ["a"]
    assert list(baselines.predicted(beside, "random")) == ["c"]


def test_platforms_whose_records_lie_elsewhere_are_not_learned(project):
    """As where `tcl distill --add` went on from a champion."""
    shutil.rmtree(Workspace().records_folder("a"))
    assert [report.platform for report in train_baseline(project, "random")] == ["b", "c"]
    with pytest.raises(UsageError, match="random cannot be trained on a: no records of it lie here; run: dvc repro collect@a"):
        train_baseline(project, "random", "a")
    assert len(baselines._sources(project, "c", None)) == 1


def test_mtl_tlp_is_skipped_where_the_chain_is_one_platform(project):
    alone = listed(project, "mtl-tlp", chain=Chain("a", {}))
    assert train_baseline(alone, "mtl-tlp").reason.startswith("mtl-tlp also learns from earlier platforms")
    assert "earlier platforms" in store.skipped_reason("data/models/beside_chain/mtl-tlp")  # an output: DVC needs one
    assert baselines.predicted(alone, "mtl-tlp") == {}


@pytest.mark.parametrize("name", ["xgboost", "tenset-mlp", "world-model"])
def test_a_gpus_programs_are_not_taken_for_a_cpus(project, name):
    candidates = dataclasses.replace(project.params.candidates, design_space="cuda")
    with pytest.raises(UsageError, match=f"{name} learns from lowered programs, and only a CPU's"):
        train_baseline(listed(project, candidates=candidates), name)


class Interrupt(BaseException):
    pass


def test_a_killed_training_ends_in_the_same_bytes_and_trains_no_finished_platform_anew(project, monkeypatch):
    train_baseline(project, "tlp")
    expected = store.data_digest(Path("data/baselines/tlp"))
    shutil.rmtree("data/baselines")
    epochs, dies_at, run_epoch = [], 2 * 2 + 1, fit._run_epoch  # two of a, two of b, the first of c

    def counted(*arguments):
        epochs.append(arguments)
        if len(epochs) == dies_at:
            raise Interrupt
        return run_epoch(*arguments)

    monkeypatch.setattr(fit, "_run_epoch", counted)
    with pytest.raises(Interrupt):
        train_baseline(project, "tlp")
    assert len(train_baseline(project, "tlp")) == 3
    assert len(epochs) == dies_at + 2
    assert store.data_digest(Path("data/baselines/tlp")) == expected
    assert not Path("data/journal/checkpoints/baselines/tlp").exists()


def test_training_one_platform_leaves_the_others_checkpoints(project, monkeypatch):
    """Of a training of all platforms that was killed: it goes on from them."""
    epochs, run_epoch = [], fit._run_epoch

    def counted(*arguments):
        epochs.append(arguments)
        if len(epochs) == 2 * 2 + 1:  # the first of c
            raise Interrupt
        return run_epoch(*arguments)

    monkeypatch.setattr(fit, "_run_epoch", counted)
    with pytest.raises(Interrupt):
        train_baseline(project, "tlp")
    train_baseline(project, "tlp", "a")
    checkpoints = Path("data/journal/checkpoints/baselines/tlp")
    assert not (checkpoints / "a").exists() and (checkpoints / "b" / "checkpoint.safetensors").exists()
    before = len(epochs)
    train_baseline(project, "tlp")
    assert len(epochs) == before + 2 + 2  # of a and c
    assert not checkpoints.exists()


def test_only_models_that_stand_beside_the_chain_can_be_listed(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = SHIPPED.read_text()
    for name, message in {
        "mamba": "params.yaml: baselines.models lists 'mamba', which every evaluation judges anyway; remove it",
        "random": "params.yaml: baselines.models lists 'random', which every evaluation judges anyway; remove it",
        "tlb": "unknown model 'tlb' in baselines.models of params.yaml; did you mean 'tlp'?",
    }.items():
        Path("params.yaml").write_text(text.replace("  models: []", f"  models: [{name}]"))
        with pytest.raises(UsageError, match=re.escape(message)):
            Workspace().params  # noqa: B018
    Path("params.yaml").write_text(text.replace("  models: []", "  models: [tlp, xgboost]"))
    assert Workspace().params.baselines.models == ("tlp", "xgboost")


def test_tasks_kept_apart_are_kept_from_the_sources_too(project, monkeypatch):
    apart = project.samples("c").take(np.arange(2))
    assert [set(s.tasks) for s in baselines._sources(project, "c", apart)] == [{1}, {1}]
    assert [set(s.tasks) for s in baselines._sources(project, "c", None)] == [{0, 1}, {0, 1}]
    assert len(baselines._sources(project, "b", None)) == 1 and baselines._sources(project, "a", None) == []

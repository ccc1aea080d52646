"""Other cost models than the chain's, trained by name on real programs with made-up latencies."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tcl_core.features.batches import Samples
from tcl_core.features.encode import Encoder
from tcl_core.models import catalogue
from tcl_core.models.catalogue import own_settings
from tcl_core.params import Chain, Link, load_params
from tcl_core.platforms import Hardware
from tcl_core.stages import models
from tcl_core.stages.project import Project, read_saved_hardware, records_folder, save_hardware

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(matmul, softmax, tmp_path, monkeypatch) -> Project:
    """Programs of two tasks, measured on the platforms a, b and c; the last one has but the first task's."""
    monkeypatch.chdir(tmp_path)
    records = [
        SimpleNamespace(key=(tiny.task.key, sketch.index, tuple(tiny.space.canonical(sketch, decisions).tolist())))
        for tiny in (matmul, softmax)
        for sketch in tiny.sketches
        for decisions in tiny.sample(sketch, 3)
    ]
    count = 3 * len(matmul.sketches)

    class TwoTasks(Project):
        encoder = Encoder([matmul.task, softmax.task], [*matmul.rows(), *softmax.rows()])

        def samples(self, platform: str, kind: str = "records") -> Samples:
            latencies_s = np.random.default_rng(ord(platform)).uniform(1e-4, 1e-3, len(records))
            samples = self.encoder.encode([r.key for r in records], [1.0 * ord(platform)], latencies_s)
            return samples.take(np.arange(count)) if platform == "c" else samples

    monkeypatch.setattr("tcl_core.store.read_records", lambda folder: records)
    for cores, platform in enumerate("abc", start=1):
        save_hardware(records_folder(platform), Hardware(cores=cores))
    params = load_params(ROOT / "params.yaml")
    own = catalogue.own_settings
    monkeypatch.setattr(catalogue, "own_settings", lambda name: dataclasses.replace(own(name), epochs=2))
    return TwoTasks(dataclasses.replace(params, chain=Chain("a", {"b": Link("a"), "c": Link("b")}), seed=5))


@pytest.mark.parametrize("name", ["tlp", "tenset-mlp", "xgboost", "trees"])
def test_a_model_is_trained_by_name_and_ranks_what_it_reads(project, name):
    count = len(project.samples("a"))
    said = models.run_train(project, name)
    assert said == f"trained {name} on {count} programs of a; it lies in data/baselines/{name}/a"
    model, samples = catalogue.load(Path("data/baselines") / name / "a"), project.samples_for(name, "a")
    assert read_saved_hardware(Path("data/baselines") / name / "a").cores == 1
    assert model.settings == dataclasses.replace(own_settings(name), epochs=2, seed=5)  # not those of params.yaml
    assert model.name == name and np.ptp(model.predict(samples)) > 0
    lowered = {path.parent.name for path in Path("data").rglob("*.safetensors")} - {"a"}
    assert lowered == ({"statements"} if catalogue.reads(name) == "statements" else set())


def test_mtl_tlp_learns_the_chains_last_platform_from_the_earlier_ones(project):
    target = len(project.samples("c"))
    said = models.run_train(project, "mtl-tlp")
    assert said == f"trained mtl-tlp on {target} programs of c; it lies in data/baselines/mtl-tlp/c"
    model = catalogue.load(Path("data/baselines/mtl-tlp/c"))
    assert len(model.network.heads) == 3
    assert np.ptp(model.predict(project.samples("c"))) > 0


def test_tasks_kept_apart_are_kept_from_the_sources_too(project, monkeypatch):
    apart = project.samples("c").take(np.arange(2))
    sources = models._sources(project, apart)
    assert [set(s.tasks) for s in sources] == [{1}, {1}]
    assert [set(s.tasks) for s in models._sources(project, None)] == [{0, 1}, {0, 1}]

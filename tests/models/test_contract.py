"""The contract of a cost model, asked of every model of the catalogue, and of one that somebody writes."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tcl_core as tcl
from tcl_core import store
from tcl_core.checked import read_json, write_json
from tcl_core.errors import DataError
from tcl_core.features import layout, per_store
from tcl_core.features.batches import Samples
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel
from tcl_core.models.trees import ROUNDS, TreesModel
from tcl_core.trained import Trained

ROOT = Path(__file__).resolve().parents[2]
# reads, needs_states, learns_from_sources
DECLARED = {
    "random": ("tokens", False, False),
    "mamba": ("tokens", False, False),
    "mamba-paper": ("tokens", False, False),
    "lateral-mamba": ("tokens", False, False),
    "tlp": ("tokens", False, False),
    "mtl-tlp": ("tokens", False, True),
    "tenset-mlp": ("per-store features", False, False),
    "xgboost": ("per-store features", False, False),
    "trees": ("tokens", False, False),
    "world-model": ("tokens", True, False),
}
WIDTHS = {"tokens": layout.WIDTH, "per-store features": per_store.WIDTH}


def samples(holds: str = "tokens", count: int = 12) -> Samples:
    """Programs of three rows of random numbers, four to a task."""
    draw = np.random.default_rng(0)
    features = draw.normal(size=(count, 3, WIDTHS[holds])).astype(np.float32)
    tasks = np.repeat(np.arange(count // 4, dtype=np.int32), 4)
    return Samples(features, np.full(count, 3, np.int32), tasks, draw.uniform(1, 2, count), holds=holds)


def test_what_each_model_declares():
    found = {name: catalogue.model_class(name) for name in catalogue.CLASSES}
    assert {n: (m.reads, m.needs_states, m.learns_from_sources) for n, m in found.items()} == DECLARED
    assert {name: catalogue.reads(name) for name in found} == {name: reads for name, (reads, *_) in DECLARED.items()}


@pytest.mark.parametrize("name", DECLARED)
def test_each_model_answers_all_that_the_contract_asks(name):
    model, settings = catalogue.create(name), FitSettings(epochs=2, seed=7)
    assert isinstance(model, CostModel) and model.name == name
    assert model.settings == catalogue.own_settings(name) and catalogue.create(name, settings).settings == settings
    assert model.parameter_count() == 0  # nothing is learned yet
    parameters = [(p.name, p.kind, p.default) for p in inspect.signature(type(model).fit).parameters.values()]
    assert parameters == [(p.name, p.kind, p.default) for p in inspect.signature(CostModel.fit).parameters.values()]


@pytest.mark.parametrize("name", sorted(set(DECLARED) - {"random"}))
def test_rows_of_the_other_kind_are_refused(name):
    """Though they may be as wide as the model's own."""
    reads = catalogue.reads(name)
    (other,) = set(WIDTHS) - {reads}
    said = f"^the {name} model reads {reads}, and these samples hold {other}; give it samples that hold {reads}[.]$"
    with pytest.raises(DataError, match=said):
        catalogue.create(name).fit(replace(samples(reads), holds=other))


@pytest.mark.parametrize("name", ["mamba", "tenset-mlp", "trees", "xgboost"])
def test_what_has_learned_from_one_kind_does_not_rank_the_other(name):
    mine = samples(catalogue.reads(name))
    model = catalogue.create(name, FitSettings(epochs=1)).fit(mine)
    assert np.isfinite(model.predict(mine)).all() and model.parameter_count() > 0
    (other,) = set(WIDTHS) - {mine.holds}
    for ask in (model.predict, model.embed):
        with pytest.raises(DataError, match=f"reads {mine.holds}, and these samples hold {other}"):
            ask(replace(mine, holds=other))


SAVED = ("mamba", "mamba-paper", "tlp", "mtl-tlp", "tenset-mlp", "trees", "xgboost")


@pytest.mark.parametrize("name", SAVED)
def test_a_search_gets_scores_and_embeddings_together(name):
    some = samples(catalogue.reads(name))
    model = catalogue.create(name, FitSettings(epochs=1)).fit(some)
    scores, places = model.predict_and_embed(some)
    np.testing.assert_allclose(scores, model.predict(some), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(places, model.embed(some), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SAVED)
def test_a_loaded_model_saves_the_same_bytes(name, tmp_path):
    """How it was trained, too: whoever tells models apart by their files would take it for another one."""
    model = catalogue.create(name, FitSettings(epochs=1)).fit(samples(catalogue.reads(name)))
    model.save(tmp_path / "once")
    loaded = catalogue.load(tmp_path / "once")
    loaded.save(tmp_path / "again")
    assert loaded.report == model.report and model.report.programs == 12
    assert store.data_digest(tmp_path / "once") == store.data_digest(tmp_path / "again")


@pytest.mark.parametrize("name", SAVED)
def test_a_model_of_other_tokens_is_refused_by_its_own_class_too(name, tmp_path):
    """Saved again it would pass for one of these tokens."""
    model = catalogue.create(name, FitSettings(epochs=1)).fit(samples(catalogue.reads(name)))
    model.save(tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    write_json(file, {key: value for key, value in read_json(file, "").items() if key != "tokens"})
    if model.reads != "tokens":
        assert type(model).load(tmp_path / "model").parameter_count() > 0
        return
    for load in (type(model).load, catalogue.load):
        with pytest.raises(DataError, match=f"the {name} model in .*model reads tokens of version 1, and this version of TCL makes"):
            load(tmp_path / "model")


@pytest.mark.parametrize("name", ["mamba", "mtl-tlp", "trees", "xgboost"])
def test_records_of_which_nothing_ran_teach_nothing(name):
    """As of a board that is set up wrong: they would leave the model that chance began with, whatever earlier platforms have."""
    some = samples(catalogue.reads(name))
    sources = [some] if catalogue.model_class(name).learns_from_sources else []
    with pytest.raises(DataError, match="none of the 3 tasks has two measured programs to compare, one of which ran"):
        catalogue.create(name, FitSettings(epochs=1)).fit(replace(some, latencies_s=np.full(12, np.inf)), sources=sources)
    latencies_s = np.where(some.tasks == 0, np.inf, some.latencies_s)
    model = catalogue.create(name, FitSettings(epochs=1)).fit(replace(some, latencies_s=latencies_s), sources=sources)
    assert (model.report.tasks, model.report.programs) == (2 + 3 * len(sources), 8 + 12 * len(sources))


def test_a_network_that_learns_leaves_the_callers_gpus_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("a caller's generators"))
    before = torch.random.get_rng_state()
    catalogue.create("mamba", FitSettings(epochs=1)).fit(samples())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_trees_count_their_nodes():
    model = TreesModel(FitSettings(epochs=1)).fit(samples(count=48))
    trees = model.trees.get_dump(dump_format="json")
    nodes = sum(tree.count('"nodeid"') for tree in trees)
    assert len(trees) == ROUNDS and model.parameter_count() == nodes > ROUNDS  # roots alone would learn nothing


class Longest(CostModel):
    """A model that somebody writes: the more rows, the better."""

    name = "longest"

    def fit(self, train, valid=None, on_epoch=None, *, sources=(), checkpoint=None):
        return self

    def predict(self, samples):
        return samples.lengths.astype(np.float32)


def test_a_model_of_ones_own_needs_to_learn_and_to_predict(tmp_path, monkeypatch):
    some = replace(samples(), lengths=np.arange(12, dtype=np.int32) % 4)
    model = Longest(FitSettings(seed=3)).fit(some)
    assert (model.reads, model.needs_states, model.learns_from_sources) == ("tokens", False, False)
    assert model.settings.seed == 3 and Longest().settings == FitSettings() and model.parameter_count() == 0
    np.testing.assert_array_equal(model.embed(some), model.predict(some)[:, None])
    assert Trained(model).reads == "tokens" and tcl.CostModel is CostModel
    assert [row["rank"] for row in tcl.rank(model, some).table(top=1)] == [1, 1, 1]
    with pytest.raises(NotImplementedError, match="Longest has no save of its own"):
        model.save(tmp_path / "model")
    monkeypatch.setitem(catalogue.CLASSES, "longest", f"{__name__}:Longest")
    assert type(catalogue.create("longest")) is Longest and catalogue.reads("longest") == "tokens"


ASKED = {"reads", "needs_states", "settings", "learns_from_sources", "parameter_count"}


def asks_around(source: str) -> list[str]:
    """What of a file asks a model whether it has a part of the contract, or which class it is of."""
    found = []
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        name, given = ast.unparse(call.func), [ast.unparse(argument) for argument in call.args[1:2]]
        if name in ("getattr", "hasattr") and ASKED & {text.strip("'") for text in given}:
            found.append(ast.unparse(call))
        if name in ("isinstance", "issubclass") and {"TorchCostModel", "MtlTlpModel"} & set(given):
            found.append(ast.unparse(call))
    return found


def test_nobody_asks_around_the_contract():
    files = [file for folder in ("tcl_core", "flows", "bench", "examples") for file in (ROOT / folder).rglob("*.py")]
    assert {str(file): found for file in files if (found := asks_around(file.read_text()))} == {}


def test_asking_around_is_found():
    said = "getattr(model, 'reads', 'tokens')", "isinstance(model, MtlTlpModel)", "hasattr(model, 'parameter_count')"
    assert [asks_around(text) for text in said] == [[text] for text in said]
    assert asks_around("getattr(hardware, 'simd_bytes', 0); isinstance(model, MambaModel); model.reads") == []


def test_a_class_without_fit_or_predict_is_no_model():
    class Half(CostModel):
        name = "half"

        def predict(self, samples):
            return np.zeros(len(samples), np.float32)

    with pytest.raises(TypeError, match="abstract method '?fit'?"):
        Half()

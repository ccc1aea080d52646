"""One line in a program of plain TVM: its own entry points, builder and runner, with a champion from the registry."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial

import numpy as np
import pytest
from conftest import matmul_module

from tcl_core import registry
from tcl_core.registry.connection import opened
from tcl_core.checked import read_json, write_json
from tcl_core.compat import load_tvm, make_target, meta_schedule
from tcl_core.errors import DataError, RegistryError, UsageError
from tcl_core.features.encode import Encoder
from tcl_core.features.layout import VERSION
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.trees import TreesModel
from tcl_core.platforms import Hardware, save_hardware
from tcl_core.programs.tasks import EXTRACTION_TARGET
from tcl_core.tuning import adapters
from tcl_core.tuning.adapters import cost_model, search_strategy
from tcl_core.tuning.schedules import ScheduleSearch, SearchSettings
from tcl_core.trained import find_trained

P = "p-plain"
HARDWARE = Hardware(cores=2, simd_bytes=16)  # what plain x86-64 and AArch64 have


@pytest.fixture(scope="module")
def folder(matmul, tmp_path_factory):
    """A saved model: a few trees, on programs of one task."""
    sketch = matmul.sketches[-1]
    keys = [(matmul.task.key, sketch.index, tuple(row)) for row in np.unique(matmul.sample(sketch, 40), axis=0).tolist()]
    samples = Encoder([matmul.task], matmul.rows()).encode(keys, HARDWARE.vector(), [1e-3 / (1 + key[2][7]) for key in keys])
    model = TreesModel(FitSettings(epochs=1))
    model.fit(samples)
    folder = tmp_path_factory.mktemp("model") / "trees"
    model.save(folder)
    save_hardware(folder, HARDWARE)
    return folder


@pytest.fixture(scope="module", autouse=True)
def champion(folder, tmp_path_factory):
    """A registry with the champion of one platform."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path_factory.mktemp('registry')}/mlflow.db")
        version = registry.register(P, folder, {}, {}, {})
        registry.promote(P, version, True, "the first", None)
        yield folder


@pytest.fixture(scope="module")
def measuring():
    """MetaSchedule's own builder and runner, whose processes import as little as ours do."""
    ms, light = meta_schedule(), partial(load_tvm, without_torch=True)
    once = ms.runner.EvaluatorConfig(number=1, repeat=1, min_repeat_ms=0)
    builder = ms.builder.LocalBuilder(max_workers=1, initializer=light)
    return {"builder": builder, "runner": ms.runner.LocalRunner(evaluator_config=once, initializer=light)}


@pytest.fixture
def way(request, monkeypatch):
    """What is given to MetaSchedule, and the traces that are its doing, to compare with the database's."""
    ours = []
    if request.param == "strategy":

        class Listed(ScheduleSearch):
            def schedules(self, count):
                found = super().schedules(count)
                ours.extend(str(schedule.trace) for schedule in found)
                return found

        monkeypatch.setattr(adapters, "ScheduleSearch", Listed)
        return {"strategy": search_strategy(P, SearchSettings(population=32)), "cost_model": "none"}, ours
    ranked = TreesModel.predict_and_embed

    def listed(model, samples):
        ours.append(len(samples))
        return ranked(model, samples)

    monkeypatch.setattr(TreesModel, "predict_and_embed", listed)
    evolution = meta_schedule().search_strategy.EvolutionarySearch(
        population_size=8, init_measured_ratio=0.0, init_min_unmeasured=4, genetic_num_iters=1, max_fail_count=10
    )
    return {"strategy": evolution, "cost_model": cost_model(P)}, ours


both_ways = pytest.mark.parametrize("way", ["strategy", "cost_model"], indirect=True)


def check(database, ours, programs):
    """All programs ran; they are those that our search proposed, or our model was asked for more than were measured."""
    records = database.get_all_tuning_records()
    assert len(records) == programs and all(0 < float(s) < 1 for record in records for s in record.run_secs)
    if isinstance(ours[0], str):
        assert Counter(str(record.trace) for record in records) == Counter(ours)
    else:
        assert sum(ours) > programs


def fresh_loggers():
    logging.getLogger("tvm.s_tir.meta_schedule").handlers.clear()  # an entry point fails where an earlier one left its own


@both_ways
def test_tune_tir(tmp_path, measuring, way):
    parts, ours = way
    fresh_loggers()
    database = meta_schedule().tune_tir(
        matmul_module(64, 64, 64), make_target(EXTRACTION_TARGET), str(tmp_path), 4, num_tuning_cores=1, seed=1, **measuring, **parts
    )
    check(database, ours, 4)


def dense_network():
    """Two dense layers of different sizes, as plain TVM lowers a network."""
    load_tvm()
    from tvm import relax

    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 16), "float32"))
    weights = [relax.const(np.full(shape, 0.1, np.float32)) for shape in ((16, 32), (32, 8))]
    with builder.function("main", [x]):
        with builder.dataflow():
            hidden = builder.emit(relax.op.nn.relu(relax.op.matmul(x, weights[0])))
            output = builder.emit_output(relax.op.matmul(hidden, weights[1]))
        builder.emit_func_output(output)
    with make_target(EXTRACTION_TARGET):
        return relax.get_pipeline("zero")(builder.get())


@both_ways
def test_tune_tasks(tmp_path, measuring, way):
    """The tasks that a program extracts and weighs by itself."""
    parts, ours = way
    fresh_loggers()
    integration, place = meta_schedule().relax_integration, str(tmp_path)
    extracted = integration.extract_tasks(dense_network(), make_target(EXTRACTION_TARGET), {})
    tasks, weights = integration.extracted_tasks_to_tune_contexts(extracted, place, strategy=parts["strategy"], seed=1)
    rest = {name: part for name, part in (measuring | parts).items() if name != "strategy"}
    database = meta_schedule().tune_tasks(
        tasks=tasks, task_weights=weights, work_dir=place, max_trials_global=4, num_trials_per_iter=2, **rest
    )
    check(database, ours, 4)


@both_ways
def test_tune_relax(tmp_path, measuring, way):
    """Each of both tasks gets its programs; then the network runs with them and computes what it should."""
    parts, ours = way
    tvm, ms, network = load_tvm(), meta_schedule(), dense_network()
    fresh_loggers()
    database = ms.relax_integration.tune_relax(
        network, {}, make_target(EXTRACTION_TARGET), str(tmp_path), 4, num_trials_per_iter=2, seed=1, **measuring, **parts
    )
    check(database, ours, 4)
    assert len({str(record.workload.mod) for record in database.get_all_tuning_records()}) == 2
    built = ms.relax_integration.compile_relax(database, network, make_target(EXTRACTION_TARGET), {})
    given = np.random.default_rng(0).random((4, 16)).astype(np.float32)
    output = tvm.relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(given)).numpy()
    np.testing.assert_allclose(output, np.maximum(given @ np.full((16, 32), 0.1), 0) @ np.full((32, 8), 0.1), rtol=1e-4)


# --- names ---


def test_a_model_has_several_names(champion, tmp_path, monkeypatch):
    """Its platform's, its registered name, both with its version, its folder's, whether absolute or not."""
    monkeypatch.chdir(champion.parent)
    names = dict.fromkeys((P, f"tcl-{P}"), f"the champion of {P} (version 1)")
    names |= {f"{P}:1": f"version 1 of {P}", f"tcl-{P}:1": f"version 1 of tcl-{P}"}
    names |= dict.fromkeys((champion, str(champion)), f"the trees model in {champion}") | {"trees": "the trees model in trees"}
    for name, origin in names.items():
        found = find_trained(name)
        assert (found.origin, found.hardware, type(found.model)) == (origin, HARDWARE, TreesModel)


@pytest.mark.parametrize("ask", [cost_model, search_strategy])
def test_an_unknown_name_names_the_nearest(ask):
    with pytest.raises(UsageError, match=f"^unknown champion 'p-plane' in the registry at .*mlflow.db; did you mean '{P}'"):
        ask("p-plane")


def test_an_empty_registry_says_how_to_fill_it(tmp_path, monkeypatch):
    """One that is not there is not made either."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(RegistryError, match="^there is no model registry at .*; set MLFLOW_TRACKING_URI to one, or give the folder"):
        cost_model(P)
    assert list(tmp_path.iterdir()) == []
    assert registry.champion_version(P) is None and list(tmp_path.iterdir()) == []
    with opened(alone=True):  # which makes it
        pass
    with pytest.raises(RegistryError, match="has no champion yet; run: tcl register and then: tcl promote, or give the folder"):
        cost_model(P)


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(UsageError, match=r"is no saved model \(it has no model.json\); give the folder that a model was saved in"):
        cost_model(tmp_path)
    with pytest.raises(UsageError, match="none is no saved model"):
        cost_model(str(tmp_path / "none"))


def test_a_model_without_its_hardware(folder, tmp_path):
    TreesModel.load(folder).save(tmp_path / "model")
    with pytest.raises(UsageError, match="^the trees model in .*/model does not say which hardware it is of; "):
        cost_model(tmp_path / "model")


def test_a_model_of_other_tokens(folder, tmp_path):
    TreesModel.load(folder).save(tmp_path / "model")
    facts = read_json(tmp_path / "model" / "model.json", "")
    write_json(tmp_path / "model" / "model.json", facts | {"arguments": {"features": 40}})
    with pytest.raises(DataError, match="^the trees model in .* reads tokens of 40 numbers, and this version's have 48; train it again$"):
        cost_model(tmp_path / "model")


@pytest.mark.parametrize("told", [{}, {"tokens": 1}, {"tokens": VERSION + 1}])
def test_a_model_of_another_version_of_the_tokens(folder, tmp_path, told):
    """Of the first one no model says so."""
    TreesModel.load(folder).save(tmp_path / "model")
    facts = read_json(tmp_path / "model" / "model.json", "")
    assert facts.pop("tokens") == VERSION
    write_json(tmp_path / "model" / "model.json", facts | told)
    told = told.get("tokens", 1)
    with pytest.raises(DataError, match=f"reads tokens of version {told}, and this version of TCL makes {VERSION}; train it again$"):
        cost_model(tmp_path / "model")


def test_a_model_of_lowered_programs(tmp_path, folder):
    TreesModel.load(folder).save(tmp_path / "model")
    facts = read_json(tmp_path / "model" / "model.json", "")
    write_json(tmp_path / "model" / "model.json", facts | {"class": "xgboost"})
    assert catalogue.reads("xgboost") == "per-store features"
    with pytest.raises(
        UsageError, match="^the xgboost model in .* reads per-store features of lowered programs, .*; give a model that reads"
    ):
        search_strategy(tmp_path / "model")

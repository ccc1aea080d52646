"""`import tcl_core as tcl`: names, cost, and what people do with it outside a project."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch as torch
from synthetic import FEATURES, ranking_problem

import tcl_core as tcl
from tcl_core.checked import read_tensors, write_tensors
from tcl_core.errors import EXTRAS, DataError, UsageError, missing_extra, naming_extras
from tcl_core.features.batches import concatenate
from tcl_core.features.layout import ALL_OPERATORS, KINDS, WIDTH, WORKLOAD, token_row
from tcl_core.features.tokens import operators_of
from tcl_core.learning.fit import FitSettings
from tcl_core.platforms import Hardware
from tcl_core.programs.tuning_logs import reading

ROOT = Path(__file__).resolve().parents[1]
HARDWARE = Hardware(cores=2, threads=4, simd_bytes=32)
LIMIT_S = 120


@pytest.fixture(scope="module")
def samples():
    """96 programs of 6 tasks, in tokens of TCL's own width."""
    found = ranking_problem()
    tokens = np.zeros((*found.features.shape[:2], WIDTH), dtype=np.float32)
    tokens[:, :, -FEATURES:] = found.features
    return tcl.Samples(tokens, found.lengths, found.tasks, found.latencies_s, found.task_names)


@pytest.fixture(scope="module")
def model(samples):
    return tcl.Mamba(FitSettings(epochs=4, batch_size=64, learning_rate=3e-3)).fit(samples)


def python(code: str, **more: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, cwd=more.get("cwd", ROOT))


def test_importing_it_imports_nothing_heavy():
    ended = python(
        "import sys, tcl_core; print(sorted({'numpy', 'torch', 'tvm', 'mlflow', 'prefect', 'pyarrow', 'rich'} & set(sys.modules)))"
    )
    assert ended.stdout == "[]\n"


def test_every_public_name_is_there_and_listed_once():
    assert tcl.__all__ == ["__version__", *tcl._WHERE]
    assert all(getattr(tcl, name) is not None for name in tcl.__all__)
    assert set(tcl.__all__) <= set(dir(tcl))
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        tcl.lode  # noqa: B018


def test_the_version_is_the_one_that_a_package_gets():
    import importlib.metadata

    assert importlib.metadata.version("tcl") == tcl.__version__


def test_what_is_public_has_a_type_for_type_checkers():
    assert (ROOT / "tcl_core" / "py.typed").exists()
    source = (ROOT / "tcl_core" / "__init__.py").read_text().split("if TYPE_CHECKING:")[1].split("def __getattr__")[0]
    assert all(f"as {name}" in source for name in tcl._WHERE)


@pytest.mark.parametrize("name", ["folder", "mine.safetensors"])
@pytest.mark.parametrize("hardware", [HARDWARE, None])
def test_a_saved_model_ranks_as_before(name, hardware, model, samples, tmp_path):
    path = tcl.Trained(model, hardware).save(tmp_path / name)
    found = tcl.load(str(path))
    np.testing.assert_array_equal(found.predict(samples), model.predict(samples))
    assert found.hardware == hardware and found.reads == "tokens" and str(path) in found.origin


def test_saving_a_model_removes_nothing_else(tmp_path, model):
    """A folder of notes, a tuned network and a file stay; a saved model is replaced."""
    (tmp_path / "notes" / "deep").mkdir(parents=True)
    (tmp_path / "notes" / "deep" / "a.txt").write_text("precious")
    (tmp_path / "letter").write_text("dear")
    for save in (tcl.Trained(model).save, model.save):
        with pytest.raises(UsageError, match="notes holds deep, which is no part of a saved model; name another folder"):
            save(tmp_path / "notes")
        with pytest.raises(UsageError, match="letter is no folder; name another one to save the model in"):
            save(tmp_path / "letter")
    assert (tmp_path / "notes" / "deep" / "a.txt").read_text() == "precious" and (tmp_path / "letter").read_text() == "dear"
    (tmp_path / "empty").mkdir()
    for _ in range(2):
        tcl.Trained(model, HARDWARE).save(tmp_path / "empty")
    assert sorted(path.name for path in (tmp_path / "empty").iterdir()) == ["hardware.json", "model.json", "weights.safetensors"]


def test_names_that_there_are_not_are_sentences(tmp_path, samples):
    data = tcl.datasets.registers()
    for ask in (data.case, data.hardware, data.samples):
        with pytest.raises(UsageError, match="unknown platform 'host-avx5' in .*; did you mean 'host-avx512'"):
            ask("host-avx5")
    with pytest.raises(UsageError, match="is no data set .it has no tasks.parquet.; give the folder of one"):
        tcl.datasets.reference(tmp_path)
    with pytest.raises(UsageError, match=r"samples, and scores of shape \(2,\); give a number for each sample"):
        tcl.figures([1.0, 2.0], samples)
    with pytest.raises(UsageError, match="is no saved model .it has no model.json."):
        tcl.load(tmp_path)
    assert tcl.figures((-np.log(samples.latencies_s)).tolist(), samples)["pairs"] == 1.0


def test_a_file_that_is_no_model_is_told(tmp_path, model):
    with pytest.raises(UsageError, match="there is no model .*none.safetensors"):
        tcl.load(tmp_path / "none.safetensors")
    path = tcl.Trained(model).save(tmp_path / "flipped.safetensors")
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DataError, match="flipped.safetensors is damaged .*its checksum does not fit"):
        tcl.load(path)
    (tmp_path / "text.safetensors").write_text("no model at all")
    with pytest.raises(DataError, match="text.safetensors is damaged"):
        tcl.load(tmp_path / "text.safetensors")


def test_a_file_of_before_tokens_had_versions_is_of_the_first(tmp_path, model):
    """Though it is written into a folder of today on its way."""
    path = tcl.Trained(model).save(tmp_path / "old.safetensors")
    tensors, facts = read_tensors(path, torch.load, "")
    description = json.loads(facts["model"])
    del description["tokens"]
    write_tensors(path, torch.save, tensors, facts | {"model": json.dumps(description)})
    with pytest.raises(DataError, match=r"the \S+ model in .*old.safetensors reads tokens of version 1, and"):
        tcl.load(path)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"format": 2}, "is of another format than"),
        ({"arguments": {"features": WIDTH, "gone": 1}}, "was saved by another version"),
    ],
)
def test_a_file_of_another_version_is_named_itself(changed, told, tmp_path, model):
    """Not the folder that it passes through."""
    path = tcl.Trained(model).save(tmp_path / "old.safetensors")
    tensors, facts = read_tensors(path, torch.load, "")
    write_tensors(path, torch.save, tensors, facts | {"model": json.dumps(json.loads(facts["model"]) | changed)})
    with pytest.raises(DataError) as raised:
        tcl.load(path)
    assert str(raised.value).startswith(f"'{path}' {told}")


def test_a_search_wants_the_hardware(model, tmp_path):
    path = tcl.Trained(model).save(tmp_path / "bare")
    with pytest.raises(UsageError, match="does not say which hardware it is of"):
        tcl.cost_model(path)
    with pytest.raises(UsageError, match=r"does not say which hardware it is of; give tcl.Trained\(model, tcl.hardware\(\)\)"):
        tcl.tune("bert-tiny", path)
    for ask in (tcl.cost_model, tcl.search_strategy):  # what `distill` returns, and the registry's load_champion
        with pytest.raises(UsageError, match="the mamba model does not say which hardware it is of"):
            ask(model)


def test_tuning_refuses_what_cannot_be(model):
    with pytest.raises(UsageError, match="cannot tune for cortex-a72: this machine is"):
        tcl.tune("bert-tiny", None, mcpu="cortex-a72")
    with pytest.raises(UsageError, match="unknown CPU 'haswel'"):
        tcl.tune("bert-tiny", None, mcpu="haswel")
    with pytest.raises(UsageError, match="no CPU with vectors of 12 bytes"):
        tcl.tune("bert-tiny", tcl.Trained(model, Hardware(simd_bytes=12)))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"trials": 10, "minutes": 5}, "trials and minutes both say how long"),
        ({"trials": 0}, "the programs to measure are 0; give at least 1"),
        ({"minutes": 0}, "the minutes to tune are 0; give a number above 0"),
        ({"minutes": math.nan}, "the minutes to tune are nan; give a number above 0"),
    ],
)
def test_tuning_refuses_a_length_that_is_none(given, told):
    with pytest.raises(UsageError, match=told):
        tcl.tune("bert-tiny", None, **given)


def test_samples_are_ranked(model, samples):
    ranked = tcl.rank(model, samples)
    scores = model.predict(samples)
    assert len(ranked) == 96 and ranked.names == samples.task_names
    best = ranked.table(top=1)
    assert [row["task"] for row in best] == list(samples.task_names) and {row["rank"] for row in best} == {1}
    for number, row in enumerate(best):
        mine = np.flatnonzero(samples.tasks == number)
        assert row["line"] == mine[scores[mine].argmax()] + 1
        assert row["latency_s"] == pytest.approx(samples.latencies_s[row["line"] - 1])


def autotvm_log(path: Path, programs: int = 6) -> Path:
    arguments = [["TENSOR", [8, 16], "float32"], ["TENSOR", [32, 16], "float32"], None, "float32"]
    entity = lambda n: {"index": n, "code_hash": None, "entity": [["tile_y", "sp", [-1, 2**n]], ["tile_x", "sp", [-1, 4]]]}  # noqa: E731
    lines = [
        {
            "input": ["llvm", "dense_nopack.x86", arguments, {}],
            "config": entity(n),
            "result": [[1e-3 * (n + 1)], 0, 1.0, 1.0],
            "version": 0.2,
        }
        for n in range(programs)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def test_a_log_is_read_and_ranked(tmp_path):
    samples = tcl.datasets.log(autotvm_log(tmp_path / "some.log"))
    assert len(samples) == 6 and samples.features.shape[2] == WIDTH
    np.testing.assert_allclose(samples.latencies_s, 1e-3 * np.arange(1, 7))
    model = tcl.Trees(FitSettings(epochs=3)).fit(samples)
    ranked = tcl.rank(model, tmp_path / "some.log")
    np.testing.assert_array_equal(ranked.scores, model.predict(samples))
    assert ranked.table(top=1)[0]["latency_s"] == pytest.approx(1e-3) and ranked.lines.tolist() == [1, 2, 3, 4, 5, 6]


def test_programs_of_tvm_are_ranked(matmul_schedules, model):
    module, schedules = matmul_schedules
    by_schedule = tcl.rank(tcl.Trained(model, HARDWARE), schedules, module=module)
    by_trace = tcl.rank(tcl.Trained(model, HARDWARE), [each.trace for each in schedules], module=module)
    np.testing.assert_array_equal(by_schedule.scores, by_trace.scores)
    assert len(by_schedule) == len(schedules) and sorted(by_schedule.ranks)[0] == 1 and np.isinf(by_schedule.latencies_s).all()
    with pytest.raises(UsageError, match="do not tell which module they are of"):
        tcl.rank(model, schedules)
    with pytest.raises(UsageError, match="there is no program to rank"):
        tcl.rank(model, [], module=module)


def test_a_program_may_come_as_a_function_or_under_another_name(matmul_schedules, model):
    """As `tune_tir` takes them."""
    from tcl_core.compat import load_tvm

    module, schedules = matmul_schedules
    function = module["main"]
    renamed = load_tvm().IRModule({"my_product": function.with_attr("global_symbol", "my_product")})
    ranked = [tcl.rank(tcl.Trained(model, HARDWARE), schedules, module=form) for form in (module, function, renamed)]
    for each in ranked[1:]:
        np.testing.assert_array_equal(each.scores, ranked[0].scores)
        assert each.keys == ranked[0].keys
    row = ranked[0].table(top=1)[0]
    assert row["task"] == "matmul 32x32 32x32 32x32" and row["task_key"] == ranked[0].keys[0] and len(row["task_key"]) == 16


def test_a_model_of_unknown_hardware_is_told_of(matmul_schedules, model, caplog):
    """Its scores would be those of a machine of nothing."""
    module, schedules = matmul_schedules
    tcl.rank(model, schedules, module=module)
    assert "the mamba model does not say which hardware it is of: it is told none" in caplog.text
    caplog.clear()
    tcl.rank(tcl.Trained(model, HARDWARE), schedules, module=module)
    assert not caplog.records


def test_what_means_nothing_for_these_programs_is_refused(matmul_schedules, model, samples, tmp_path):
    module, schedules = matmul_schedules
    with pytest.raises(UsageError, match="target= keeps lines of a log and records of a database"):
        tcl.rank(model, schedules, module=module, target="skylake")
    with pytest.raises(UsageError, match="target= keeps lines"):
        tcl.rank(model, samples, target="skylake")
    for programs in (samples, autotvm_log(tmp_path / "some.log")):
        with pytest.raises(UsageError, match="module= is for schedules and traces"):
            tcl.rank(model, programs, module=module)


def test_what_has_no_loops_to_schedule_is_left_out(matmul_schedules, model, monkeypatch, caplog):
    """As scattering is, which MetaSchedule takes for a task, too."""
    from tcl_core import library

    module, schedules = matmul_schedules
    monkeypatch.setattr(library, "has_blocks", lambda module: False)
    with pytest.raises(UsageError, match="no program has loops to schedule, so there is none to rank"):
        tcl.rank(model, schedules, module=module)


def test_a_database_in_memory_is_ranked_task_by_task(matmul_schedules, model):
    from tcl_core.compat import make_target, meta_schedule
    from tcl_core.programs.tasks import EXTRACTION_TARGET

    ms, (module, schedules) = meta_schedule(), matmul_schedules
    database = ms.database.MemoryDatabase()
    workload = database.commit_workload(module)
    for number, schedule in enumerate(schedules):
        database.commit_tuning_record(
            ms.database.TuningRecord(schedule.trace, workload, [1e-3 * (number + 1)], make_target(EXTRACTION_TARGET))
        )
    failed = ms.database.TuningRecord(schedules[0].trace, workload, [1e10], make_target(EXTRACTION_TARGET))
    database.commit_tuning_record(failed)  # as MetaSchedule writes it
    ranked = tcl.rank(model, database)
    assert (
        sorted(ranked.latencies_s.tolist()) == pytest.approx([*(1e-3 * (n + 1) for n in range(len(schedules))), np.inf])
        and len(ranked.keys) == 1
    )
    other = make_target({"kind": "llvm", "mcpu": "haswell", "num-cores": 1})
    database.commit_tuning_record(ms.database.TuningRecord(schedules[1].trace, workload, [5e-3], other))
    both = tcl.rank(model, database)  # what ran for one target is not ranked beside what ran for another
    assert len(both.keys) == 2 and sorted(np.bincount(both.tasks).tolist()) == [1, len(schedules) + 1]
    assert len({row["task_key"] for row in both.table()}) == 2 == len({row["task"] for row in both.table()})
    with pytest.raises(UsageError, match="the database has no record whose target has 'cuda' in it"):
        tcl.rank(model, database, target="cuda")
    alone = tcl.rank(model, database, target="haswell")
    assert len(alone) == 1 and alone.latencies_s.tolist() == [5e-3]


def test_lines_that_are_no_programs_are_left_out_with_a_warning(tmp_path, caplog):
    path = autotvm_log(tmp_path / "some.log")
    path.write_text(path.read_text() + "\nno line\n" + path.read_text().splitlines()[0].replace('"llvm"', '"cuda"') + "\n")
    model = tcl.Trees(FitSettings(epochs=1)).fit(tcl.datasets.log(path))
    assert len(tcl.rank(tcl.Trained(model, HARDWARE), path)) == 6
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2 and all("2 of 8 lines of" in said and "are left out" in said for said in warnings)
    assert "line 8: its target 'cuda' is not 'llvm'" in warnings[0]
    caplog.clear()
    assert len(tcl.datasets.log(autotvm_log(tmp_path / "sound.log"))) == 6 and not caplog.records


@pytest.mark.parametrize("old, new", [("[8, 16]", "[16, 16]"), ('null, "float32"', 'null, "float16"')], ids=["shapes", "output"])
def test_samples_of_two_logs_are_not_put_together(tmp_path, old, new):
    """Each numbers its tasks for itself, so that the same number is another task, even one of the same shapes."""
    one = tcl.datasets.log(autotvm_log(tmp_path / "one.log"))
    text = autotvm_log(tmp_path / "two.log").read_text().replace(old, new)
    (tmp_path / "two.log").write_text(text)
    two = tcl.datasets.log(tmp_path / "two.log")
    assert one.task_names != two.task_names
    with pytest.raises(UsageError, match="number their tasks each for itself cannot be put together"):
        tcl.teach(one, two)


def test_samples_of_two_logs_of_the_same_tasks_are_put_together(tmp_path):
    one, two = (tcl.datasets.log(autotvm_log(tmp_path / name)) for name in ("one.log", "two.log"))
    both = concatenate([one, two])
    assert both.task_names == one.task_names and both.tasks.tolist() == [0] * 12


def test_a_log_of_several_blocks_has_one_encoder(tmp_path, monkeypatch):
    whole, made, plain = tcl.datasets.log(autotvm_log(tmp_path / "some.log")), [], tcl.datasets.encoder_of
    monkeypatch.setattr(reading, "BLOCK", 2)
    monkeypatch.setattr(tcl.datasets, "encoder_of", lambda *given: made.append(given) or plain(*given))
    parts = tcl.datasets.log(tmp_path / "some.log")
    np.testing.assert_array_equal(parts.features, whole.features)
    assert len(made) == 1 and parts.task_names == whole.task_names


def test_this_machines_hardware_goes_wherever_hardware_is_asked_for(tmp_path, model):
    here = tcl.hardware()
    assert isinstance(here, tcl.Hardware) and here.simd_bytes >= 16 and here.bandwidth_gbs > 0
    assert tcl.hardware("nehalem").simd_bytes == 16
    path = autotvm_log(tmp_path / "some.log")
    np.testing.assert_array_equal(tcl.datasets.log(path, here).features, tcl.datasets.log(path, here.vector()).features)
    with pytest.raises(UsageError, match="unknown CPU 'haswel'"):
        tcl.hardware("haswel")


@pytest.fixture(scope="module")
def matmul_schedules():
    from conftest import matmul_module

    from tcl_core.compat import load_tvm

    tvm, module = load_tvm(), matmul_module()
    schedules = []
    for factor in (2, 4, 8):
        schedule = tvm.s_tir.Schedule(module)
        loop, *_ = schedule.get_loops(schedule.get_sblock("matmul"))
        schedule.split(loop, [None, factor])
        schedules.append(schedule)
    return module, schedules


def test_each_task_counts_alike_in_all_figures():
    """A slow task's choice is worth no more than a fast one's, and a task's unit is nobody's business."""
    for factor in (1.0, 1000.0):
        latencies_s = np.array([0.1 * factor, 0.2 * factor, 1e-4, 1e-3])
        measured = tcl.Samples(np.zeros((4, 1, 1), np.float32), np.ones(4, np.int32), np.array([0, 0, 1, 1], np.int32), latencies_s)
        found = tcl.figures([1.0, 0.0, 0.0, 1.0], measured)
        assert found["top1"] == pytest.approx((1 + 0.1) / 2) == found["u16"] and found["top5"] == 1.0


def test_figures_of_a_perfect_and_of_a_wrong_order(samples):
    right = tcl.figures(-samples.latencies_s, samples)
    assert right == pytest.approx({"pairs": 1.0, "u16": 1.0, "top1": 1.0, "top5": 1.0, "spearman": 1.0})
    wrong = tcl.figures(samples.latencies_s, samples)
    assert wrong["pairs"] == pytest.approx(0.0) and wrong["spearman"] == pytest.approx(-1.0) and wrong["top1"] < 1


def test_teaching_labels_measured_and_further_programs(samples, monkeypatch):
    monkeypatch.setattr(tcl.Trees.__init__, "__defaults__", (FitSettings(epochs=4),))
    train, more = samples.take(samples.tasks < 4), samples.take(samples.tasks >= 2)
    taught = tcl.teach(train, more)
    assert len(taught) == len(train) + len(more) and np.isfinite(taught.latencies_s).all()
    assert tcl.figures(-taught.latencies_s[: len(train)], train)["pairs"] > 0.8
    assert len(tcl.teach(train)) == len(train)


def test_distilling_knows_on_which_hardware_the_sources_ran(samples, model, monkeypatch):
    """One source's is the model's own, if that is known; several are told."""
    asked: list[list[tuple[float, ...]]] = []
    told = lambda *_, machines, **others: asked.append(list(machines)) or (model, None)  # noqa: E731
    monkeypatch.setattr("tcl_core.chain.bridge.bridged", told)
    here, there = tcl.Hardware(simd_bytes=32), tcl.Hardware(simd_bytes=64)
    few, seconds = samples.take(np.arange(0, 96, 3)), np.ones(len(samples) + 32)
    tcl.distill(tcl.Trained(model, here), few, samples, source_latencies_s=seconds)
    tcl.distill(model, few, samples, source_latencies_s=seconds)
    tcl.distill(tcl.Trained(model, here), few, samples, source_latencies_s=[seconds, seconds])
    tcl.distill(model, few, samples, source_latencies_s=[seconds, seconds], source_hardware=[there, here.vector()])
    assert asked == [[here.vector()], [], [], [there.vector(), here.vector()]]


def test_distilling_needs_a_network_that_can(samples, model):
    moved = tcl.distill(model, samples.take(np.arange(0, 96, 3)), samples)
    assert moved is not model and moved.parameter_count() == model.parameter_count()
    assert np.isfinite(moved.predict(samples)).all()
    with pytest.raises(UsageError, match=r"there are 128 programs, and source_latencies_s of shape \(1,\)"):
        tcl.distill(model, samples.take(np.arange(0, 96, 3)), samples, source_latencies_s=[1e-3])
    with pytest.raises(UsageError, match=r"of shape \(2,\); give, for one earlier machine or for each, a number of seconds"):
        tcl.distill(model, samples.take(np.arange(0, 96, 3)), samples, source_latencies_s=[np.ones(128), np.ones(2)])
    with pytest.raises(DataError, match="a latency of an earlier platform is not positive"):  # a list as well as an array
        tcl.distill(model, samples.take(np.arange(0, 96, 3)), samples, source_latencies_s=[0.0] * 128)
    with pytest.raises(UsageError, match="the trees model is no mamba model, which alone is carried on"):
        tcl.distill(tcl.Trees(FitSettings(epochs=1)).fit(samples), samples)


# --- samplers ---


def with_operators(samples):
    """Tasks 0 to 2 are products, the others depthwise convolutions."""
    tokens = samples.features.copy()
    for row, task in enumerate(samples.tasks):
        name = "matmul" if task < 3 else "depthwise_conv2d"
        numbers = WORKLOAD.row(operator=[float(name == each) for each in ALL_OPERATORS])
        tokens[row, 0] = token_row("workload", numbers, 1)[0]
    return tcl.Samples(tokens, samples.lengths, samples.tasks, samples.latencies_s, samples.task_names)


def test_tokens_tell_the_operator(samples):
    assert "matmul" in ALL_OPERATORS and KINDS[0] == "workload"
    found = operators_of(with_operators(samples).features)
    assert found.tolist() == ["matmul" if task < 3 else "depthwise_conv2d" for task in samples.tasks]


@pytest.mark.parametrize("budget, count", [(0.25, 24), (7, 7), (1.0, 96), (500, 96), (0, 0)])
def test_a_budget_is_a_share_or_a_number(budget, count, samples):
    picked = tcl.samplers.random(samples, budget, seed=3)
    assert len(picked) == count == len(set(picked.tolist()))
    assert (picked == tcl.samplers.random(samples, budget, seed=3)).all()


def test_rdu_as_printed_keeps_the_share_of_each_operator(samples, model):
    pool = with_operators(samples)
    picked = tcl.samplers.rdu_paper(pool, model, 0.25)
    assert len(set(picked.tolist())) == 24
    assert np.unique(operators_of(pool.features[picked]), return_counts=True)[1].tolist() == [12, 12]
    told = tcl.samplers.rdu_paper(samples, model, 8, operator_types=["one"] * 90 + ["other"] * 6, labelled=samples.take(np.arange(4)))
    assert len(told) == 8


def test_rdu_takes_as_many_of_each_task_and_more_of_those_predicted_fast(samples, model):
    picked = tcl.samplers.rdu(samples, [model, model], 24)
    assert np.bincount(samples.tasks[picked]).tolist() == [4] * 6
    scores, above = model.predict(samples), []
    for task in range(6):
        mine, all_of_it = scores[picked[samples.tasks[picked] == task]], scores[samples.tasks == task]
        above.append(np.mean([np.mean(all_of_it < score) for score in mine]))
    assert np.mean(above) > 0.5
    known = samples.take(samples.tasks == 0)
    assert 0 not in samples.tasks[tcl.samplers.rdu(samples, model, 12, labelled=known)]


def test_per_task_counts_what_is_measured(samples):
    picked = tcl.samplers.per_task(samples, 12, labelled=samples.take(samples.tasks == 0))
    assert 0 not in samples.tasks[picked] and np.bincount(samples.tasks[picked], minlength=6)[1:].min() >= 2


def test_samplers_refuse_what_they_cannot_use(samples, model):
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match=f"the budget is {wrong}"):
            tcl.samplers.random(samples, wrong)
    with pytest.raises(UsageError, match="the ensemble has no model; give one"):
        tcl.samplers.rdu(samples, [])
    assert len(tcl.samplers.random(samples, np.float32(0.25))) == len(tcl.samplers.random(samples, np.int64(24))) == 24
    other = ranking_problem()
    with pytest.raises(UsageError, match="6 features per token, not the .* give operator_types"):
        tcl.samplers.rdu_paper(other, tcl.create("random"), 4)


# --- layers of dependencies ---


def test_a_missing_package_is_named_with_its_extra():
    with pytest.raises(
        UsageError, match=r"needs the package mlflow, which is not installed; run in TCL's checkout: pip install '\.\[pipeline\]'"
    ):
        with naming_extras():
            raise ModuleNotFoundError("No module named 'mlflow.entities'", name="mlflow.entities")
    with pytest.raises(ModuleNotFoundError):
        with naming_extras():
            raise ModuleNotFoundError("No module named 'of_ours'", name="of_ours")
    assert missing_extra(ModuleNotFoundError(name="xgboost")).endswith("pip install '.[trees]'")


BLOCKED = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {sorted(EXTRAS)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
sys.path.insert(0, {str(ROOT)!r})
import tcl_core as tcl
"""


def test_the_core_loads_and_ranks_without_any_extra(model, samples, tmp_path):
    tcl.Trained(model, HARDWARE).save(tmp_path / "m.safetensors")
    autotvm_log(tmp_path / "some.log")
    (tmp_path / "net.onnx").touch()
    code = (
        BLOCKED
        + """
model = tcl.load("m.safetensors")
print(len(tcl.rank(model, "some.log")), len(tcl.samplers.rdu(tcl.datasets.log("some.log"), model, 3)))
for wrong in (lambda: tcl.tune("net.onnx", None), lambda: tcl.Trees, lambda: tcl.create("xgboost"), lambda: tcl.load("host-avx2"), lambda: tcl.datasets.reference().case("host-avx2")):
    try:
        wrong()
    except tcl.errors.TclError as error:
        print(error)
"""
    )
    ended = python(code, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr[-2000:]
    counts, *sentences = ended.stdout.splitlines()
    assert counts == "6 3" and len(sentences) == 5
    assert all("pip install" in sentence or "there is no model registry" in sentence for sentence in sentences)


def test_the_command_says_what_it_lacks(tmp_path):
    ended = python(BLOCKED + "import runpy; runpy.run_module('tcl_core', run_name='__main__')", cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "tcl: this needs the package typer, which is not installed; run in TCL's checkout: pip install '.[pipeline]'\n"

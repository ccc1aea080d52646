from __future__ import annotations

import json
import logging
import os
import platform
import tempfile
from collections import Counter

import numpy as np
import psutil
import pytest
from _bad_programs import ABORTS, COPIES
from conftest import matmul_module

from tcl_core.models.cost_model import CostModel
from tcl_core.compat import load_tvm, make_target, meta_schedule
from tcl_core.errors import UsageError
from tcl_core.features.layout import ALL_OPERATORS, KINDS, WIDTH, WORKLOAD, numbers_of
from tcl_core.gpu import GpuHardware
from tcl_core.measure.runner import Runner
from tcl_core.platforms import Hardware
from tcl_core.programs.tasks import EXTRACTION_TARGET
from tcl_core.tuning import adapters
from tcl_core.tuning.adapters import cost_model, search_strategy
from tcl_core.tuning.database import Shelf
from tcl_core.tuning.measuring import module_builder, worker_runner
from tcl_core.tuning.schedules import SearchSettings
from tcl_core.trained import Trained

HARDWARE = Hardware(*(1.0,) * 10)  # of vectors that are unknown, so that it fits any target
SMALL = SearchSettings(population=32, generations=2, explore=0.2)


class SumModel:
    """Ranks by the sum of the tokens and keeps what it was shown."""

    name, reads = "sum", "tokens"

    def __init__(self):
        self.seen = []

    def predict(self, samples):
        self.seen.append(samples)
        return samples.features.sum(axis=(1, 2)).astype(np.float32)

    def embed(self, samples):
        return samples.features.sum(axis=1)

    predict_and_embed = CostModel.predict_and_embed


def known(model):
    return Trained(model, HARDWARE, "the model of this test")


@pytest.fixture(scope="module")
def runner(make_setup):
    with Runner(make_setup(), workers=1) as runner:
        yield runner


@pytest.fixture(autouse=True)
def nothing_left_behind(tmp_path_factory, monkeypatch):
    """Artifacts go into a folder of the test's own, which is empty again in the end."""
    folder = tmp_path_factory.mktemp("artifacts")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert os.listdir(folder) == []


def tune(tmp_path, runner, model, strategy, trials=8, outcomes=None):
    ms = meta_schedule()
    logging.getLogger("tvm.s_tir.meta_schedule").handlers.clear()  # tune_tir fails where an earlier one left its own
    return ms.tune_tir(
        matmul_module(),
        make_target(EXTRACTION_TARGET),
        work_dir=str(tmp_path),
        max_trials_global=trials,
        num_trials_per_iter=4,
        builder=module_builder(),
        runner=worker_runner(runner, (outcomes if outcomes is not None else []).append),
        database=ms.database.MemoryDatabase(),
        cost_model=cost_model(known(model)),
        measure_callbacks=[ms.measure_callback.AddToDatabase(), ms.measure_callback.UpdateCostModel()],
        strategy=strategy,
        num_tuning_cores=1,
        seed=1,
    )


def test_stock_evolution_with_our_cost_model(tmp_path, runner):
    """MetaSchedule's own search, ranked by a TCL model and measured in the worker process."""
    ms, model, outcomes = meta_schedule(), SumModel(), []
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=16, init_measured_ratio=0.0, init_min_unmeasured=8, genetic_num_iters=1, max_fail_count=10
    )
    database = tune(tmp_path, runner, model, strategy, outcomes=outcomes)
    assert len(outcomes) == 8 and {o.error for o in outcomes} == {"ok"}
    records = database.get_all_tuning_records()
    assert len(records) == 8
    fastest = min(float(np.mean([float(s) for s in r.run_secs])) for r in records)
    assert fastest == pytest.approx(min(np.mean(o.latencies_s) for o in outcomes), rel=1e-6)
    samples = model.seen[0]
    assert samples.features.shape[0] == len(samples) and samples.features.shape[2] == WIDTH
    assert (samples.features[:, 0, KINDS.index("hardware")] == 1).all()


def test_the_cost_model_knows_the_operator_where_the_task_has_no_telling_name(tmp_path, runner):
    """tune_tir calls every function main; the model must see the matmul that it was trained on."""
    ms, model = meta_schedule(), SumModel()
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=8, init_measured_ratio=0.0, init_min_unmeasured=4, genetic_num_iters=1, max_fail_count=10
    )
    tune(tmp_path, runner, model, strategy, trials=2)
    workload_row = numbers_of(model.seen[0].features[0, 1])[WORKLOAD.operator]
    assert ALL_OPERATORS[int(workload_row.argmax())] == "matmul"


def test_the_cost_model_sees_what_collection_would_have_seen(matmul):
    """Tokens of a replayed candidate are those that training had for the same decisions."""
    from tcl_core.features.encode import Encoder

    ms, model = meta_schedule(), SumModel()
    context = ms.TuneContext(matmul.module, target=make_target(EXTRACTION_TARGET), task_name=matmul.task.name, num_threads=1)
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    keys, candidates = [], []
    for sketch in matmul.sketches:
        decisions = matmul.space.canonical(sketch, matmul.sample(sketch, 1)[0])
        keys.append((matmul.task.key, sketch.index, tuple(decisions.tolist())))
        candidates.append(MeasureCandidate(matmul.space.materialise(sketch, decisions), []))
    scores = cost_model(known(model)).predict(context, candidates)
    wanted = Encoder([matmul.task], matmul.rows()).encode(keys, HARDWARE.vector())
    np.testing.assert_array_equal(model.seen[0].features, wanted.features)
    np.testing.assert_array_equal(model.seen[0].lengths, wanted.lengths)
    assert scores.dtype == np.float64 and scores.shape == (3,)


def test_our_search_inside_metaschedule(tmp_path, runner, matmul):
    model, outcomes = SumModel(), []
    strategy = search_strategy(known(model), SMALL)
    database = tune(tmp_path, runner, model, strategy, outcomes=outcomes)
    records = database.get_all_tuning_records()
    assert len(outcomes) == 8 == len(records) and {o.error for o in outcomes} == {"ok"}
    assert len({str(r.trace) for r in records}) == 8  # nothing twice
    tvm = load_tvm()
    workload = database.commit_workload(matmul.module)
    (best,) = database.get_top_k(workload, 1)
    schedule = tvm.s_tir.Schedule(matmul.module)
    best.trace.apply_to_schedule(schedule, remove_postproc=False)
    arrays = [np.random.default_rng(n).normal(size=(32, 32)).astype(np.float32) for n in range(2)]
    tensors = [tvm.runtime.tensor(a) for a in (*arrays, np.zeros((32, 32), np.float32))]
    tvm.tirx.build(schedule.mod, target=make_target(EXTRACTION_TARGET))["main"](*tensors)
    np.testing.assert_allclose(tensors[2].numpy(), np.maximum(arrays[0] @ arrays[1], 0), rtol=1e-4, atol=1e-4)


def result(seconds=None, error=None):
    return meta_schedule().runner.RunnerResult(seconds, error)


def context_of(module, strategy, target=EXTRACTION_TARGET, seed=1):
    return meta_schedule().TuneContext(
        module, target=make_target(target), search_strategy=strategy, task_name="main", rand_state=seed, num_threads=1
    )


def started(module, trials, per_iter, database=None, seed=1):
    strategy = search_strategy(known(SumModel()), SMALL)
    context_of(module, strategy, seed=seed)
    strategy.pre_tuning(trials, per_iter, [], database)
    return strategy


def test_trials_are_spent_exactly_and_then_the_search_ends(matmul):
    strategy = started(matmul.module, 10, 4)
    sizes, traces = [], []
    while (candidates := strategy.generate_measure_candidates()) is not None:
        sizes.append(len(candidates))
        traces += [str(c.sch.trace) for c in candidates]
        strategy.notify_runner_results(candidates, [result([1e-3])] * len(candidates))
    assert sizes == [4, 4, 2] and len(set(traces)) == 10


def test_a_failed_program_is_not_proposed_again(matmul):
    strategy = started(matmul.module, 100, 6)
    seen = set()
    for outcome in (result(None, "crash: the process"), result([1.0], "half an error"), result([2e-3, 1e-3, 9e-3])):
        candidates = strategy.generate_measure_candidates()
        traces = {str(c.sch.trace) for c in candidates}
        assert len(traces) == 6 and not traces & seen
        seen |= traces
        strategy.notify_runner_results(candidates, [outcome] * 6)
    assert Counter(strategy._inst.search.measured.values()) == {2e-3: 6, np.inf: 12}


def test_an_exhausted_space_ends_the_search():
    """Four programs in all, 50 trials: the search ends after the four."""
    strategy, traces = started(matmul_module(1, 1, 1), 50, 8), []
    for _ in range(10):
        candidates = strategy.generate_measure_candidates()
        if candidates is None:
            break
        traces += [str(c.sch.trace) for c in candidates]
        strategy.notify_runner_results(candidates, [result([1e-3])] * len(candidates))
    assert len(traces) == 4 == len(set(traces)) and candidates is None


def traces_of(candidates):
    return {str(candidate.sch.trace) for candidate in candidates}


def test_metaschedules_seed_decides(matmul):
    first, again, other = (traces_of(started(matmul.module, 8, 8, seed=seed).generate_measure_candidates()) for seed in (3, 3, 4))
    assert first == again != other


def test_a_task_without_loops_to_schedule_ends_nobodys_tuning(matmul, monkeypatch):
    """As scattering is, which MetaSchedule extracts as a task: its description would end the others' tuning, too."""
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    monkeypatch.setattr(adapters, "has_blocks", lambda module: False)
    monkeypatch.setattr(adapters, "describe", lambda name, module: pytest.fail("it has no blocks"))
    monkeypatch.setattr(adapters, "workload_of", lambda name, module: pytest.fail("it has no blocks"))
    strategy = started(matmul.module, 8, 4)
    assert strategy.generate_measure_candidates() is None
    ms, model = meta_schedule(), cost_model(known(SumModel()))
    context = ms.TuneContext(matmul.module, target=make_target(EXTRACTION_TARGET), task_name="index_put", num_threads=1)
    candidate = MeasureCandidate(matmul.space.materialise(matmul.sketches[0], matmul.sample(matmul.sketches[0], 1)[0]), [])
    assert model.predict(context, [candidate, candidate]).tolist() == [1.0, 1.0]
    model.update(context, [candidate], [result([1e-3])])


def test_a_clone_searches_by_itself(matmul, conv):
    """MetaSchedule makes a strategy for each task from the one that it was given."""
    original, rounds = search_strategy(known(SumModel()), SMALL), []
    for tiny in (matmul, conv, matmul):
        strategy = original.clone()
        context_of(tiny.module, strategy)
        strategy.pre_tuning(8, 4, [])
        rounds.append(strategy.generate_measure_candidates())
        strategy.notify_runner_results(rounds[-1], [result([1e-3])] * 4)
    assert [len(candidates[0].args_info) for candidates in rounds] == [3, 4, 3]
    assert traces_of(rounds[0]) == traces_of(rounds[2]) and original._inst.search is None


def test_what_the_database_holds_is_not_proposed_again(matmul):
    ms, first = meta_schedule(), started(matmul.module, 100, 8)
    database = ms.database.MemoryDatabase()
    shelf, candidates = Shelf(database, matmul.module, make_target(EXTRACTION_TARGET)), first.generate_measure_candidates()
    for number, candidate in enumerate(candidates):
        shelf.put(candidate.sch.trace, [] if number == 3 else [1e-3, 3e-3, 2e-3])
    later = started(matmul.module, 100, 8, database)
    assert Counter(later._inst.search.measured.values()) == {2e-3: 7, np.inf: 1}
    shelf.put(candidates[0].sch.trace, [])  # found wrong when it was measured again
    assert Counter(started(matmul.module, 100, 8, database)._inst.search.measured.values()) == {2e-3: 6, np.inf: 2}
    assert not traces_of(later.generate_measure_candidates()) & traces_of(candidates)


@pytest.mark.parametrize(
    ("hardware", "target", "message"),
    [
        (Hardware(simd_bytes=64), {"mcpu": "haswell"}, r"of 64 bytes, and those of the target \(haswell\) have 32; give the mcpu"),
        (Hardware(simd_bytes=32), {}, r"of 32 bytes, and those of the target \(no mcpu\) have 16; give the mcpu"),
        (Hardware(simd_bytes=16), {"mcpu": "znver4"}, r"of 16 bytes, and those of the target \(znver4\) have 64; give the mcpu"),
        (GpuHardware(cuda_cores=16896), {}, "of kind cuda, and the target is of kind llvm; give a model of its hardware"),
    ],
)  # fmt: skip
def test_a_target_of_other_features_is_a_sentence(matmul, monkeypatch, hardware, target, message):
    """In either form, as TVM hands it on to who called it."""
    monkeypatch.setattr(adapters, "load_intrinsics", lambda kind: None)  # those of CUDA take ten seconds
    given, target = Trained(SumModel(), hardware, "the model of p"), EXTRACTION_TARGET | target
    with pytest.raises(UsageError, match=f"^the model of p ranks programs .*{message}"):
        context_of(matmul.module, search_strategy(given, SMALL), target)
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    context = meta_schedule().TuneContext(matmul.module, target=make_target(target), task_name="main", num_threads=1)
    candidate = MeasureCandidate(matmul.space.materialise(matmul.sketches[0], matmul.sample(matmul.sketches[0], 1)[0]), [])
    with pytest.raises(UsageError, match=f"^the model of p ranks programs .*{message}"):
        cost_model(given).predict(context, [candidate])


@pytest.mark.parametrize("part", [cost_model, search_strategy])
def test_metaschedules_own_rules_for_the_target_work(matmul, part):
    """They tensorize for this CPU's newest instructions, and our light import of TVM does not register these."""
    part(known(SumModel()))
    newest = "neoverse-v1" if platform.machine() == "aarch64" else "sapphirerapids"
    context = meta_schedule().TuneContext(
        matmul.module, target=make_target(EXTRACTION_TARGET | {"mcpu": newest}), space_generator="post-order-apply", num_threads=1
    )
    assert len(context.generate_design_space()) >= 3


def test_the_cost_model_learns_what_is_measured(matmul):
    """Of four programs the one that the model likes least turns out to be a hundred times as fast; another task's are as before."""
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    sketch, learning = matmul.sketches[-1], cost_model(known(SumModel()))
    context = meta_schedule().TuneContext(matmul.module, target=make_target(EXTRACTION_TARGET), task_name="main", num_threads=1)
    candidates = [MeasureCandidate(matmul.space.materialise(sketch, d), []) for d in matmul.sample(sketch, 4)]
    before = learning.predict(context, candidates)
    assert (before > 0).all() and len(set(before)) == 4
    seconds = [1e-5 if n == before.argmin() else 1e-3 for n in range(4)]
    learning.update(context, candidates, [result([s]) for s in seconds])
    assert learning.predict(context, candidates).argmax() == before.argmin()
    learning.update(context, [], [])  # a round all of whose builds failed


# --- measuring inside MetaSchedule ---


def test_failures_reach_metaschedule_as_messages(runner, tmp_path):
    """A program that crashes is a result with an error, and its artifact is gone."""
    from tcl_core.tuning.measuring import new_artifact

    ms, outcomes = meta_schedule(), []
    paths = [new_artifact(text) for text in (ABORTS, COPIES, "{")]
    inputs = [ms.runner.RunnerInput(str(path), "llvm", []) for path in paths]
    results = [f.result() for f in worker_runner(runner, outcomes.append).run(inputs)]
    assert [o.error for o in outcomes] == ["crash", "ok", "build"]
    assert [r.run_secs is None for r in results] == [True, False, True]
    assert str(results[0].error_msg) == "crash: the process was killed by SIGABRT"
    assert results[1].error_msg is None and len(results[1].run_secs) == 2
    assert not any(path.exists() for path in paths)


def test_the_builder_writes_the_module(matmul):
    from tcl_core.compat import structural_key
    from tcl_core.tuning.measuring import remove_artifact

    tvm, ms = load_tvm(), meta_schedule()
    module = matmul.space.materialise(matmul.sketches[0], matmul.sample(matmul.sketches[0], 1)[0]).mod
    (result,) = module_builder().build([ms.builder.BuilderInput(module, make_target(EXTRACTION_TARGET))])
    assert result.error_msg is None
    path = str(result.artifact_path)
    assert structural_key(tvm.ir.load_json(open(path).read())) == structural_key(module)
    assert json.loads(open(path).read()) and remove_artifact(path)


def test_no_process_of_tvm_is_started(tmp_path, runner, matmul):
    """The stock builder starts processes on each call; ours starts none."""
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    strategy = search_strategy(known(SumModel()), SMALL)
    tune(tmp_path, runner, SumModel(), strategy, trials=2)
    assert {p.pid for p in psutil.Process().children(recursive=True)} == before

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from conftest import FakeRunner

from tcl_core.collect import Collection, Plan, collect, measure_all
from tcl_core.errors import BusyError, DataError, PlatformError
from tcl_core.features.batches import scaled_within_task
from tcl_core.features.encode import Encoder
from tcl_core.journal import Journal, iter_journal
from tcl_core.programs.pool import sample_programs
from tcl_core.records import Record

ROOT = Path(__file__).parents[1]
HOST = "this host"
PLAN = Plan(sampler="rdu", budget=24, initial=8, rounds=4, check_fraction=0.5, seed=0)


def ignore(*_):
    pass


# --- plan ---


@pytest.mark.parametrize(
    ("budget", "initial", "rounds", "goals"),
    [
        (24, 8, 4, [8, 12, 16, 20, 24]),
        (10, 3, 4, [3, 4, 6, 8, 10]),
        (10, 10, 4, [10]),
        (5, 9, 2, [5]),
        (1, 1, 4, [1]),
        (3, 1, 5, [1, 2, 3]),
    ],
)
def test_goals_by_hand(budget, initial, rounds, goals):
    assert replace(PLAN, budget=budget, initial=initial, rounds=rounds).goals() == goals


@pytest.mark.parametrize("initial", [1, 7, 100])
def test_goals_end_at_the_budget_whatever_the_rounds(initial):
    for rounds in range(1, 12):
        goals = replace(PLAN, budget=100, initial=initial, rounds=rounds).goals()
        assert goals[-1] == 100 and goals == sorted(set(goals))


# --- a collection on a runner in memory ---


class FakeModel:
    """A linear ranking whose weights depend on everything it was fitted on last, and on its seed."""

    def __init__(self, seed=0):
        self.seed, self.weights, self.fitted = seed, None, []

    def fit(self, train, valid=None, on_epoch=None):
        seen = zlib.crc32(train.features.tobytes() + train.latencies_s.tobytes())
        self.weights = np.random.default_rng([self.seed, seen]).normal(size=train.features.shape[2])
        self.fitted.append(len(train))
        on_epoch(0, 0.25, {})

    def predict(self, samples):
        assert self.weights is not None, "a model that has seen nothing must not select"
        return (samples.features.sum(axis=1) @ self.weights).astype(np.float32)

    def embed(self, samples):
        return samples.features.mean(axis=1)


def two_models():
    return [FakeModel(0), FakeModel(1)]


@pytest.fixture(scope="module")
def pool(matmul, conv):
    programs = [p for t in (matmul, conv) for p in sample_programs(t.task, t.sketches, t.space, 30, seed=0)]
    return programs, Encoder([matmul.task, conv.task], [*matmul.rows(), *conv.rows()])


@pytest.fixture
def collection_in(pool, make_setup):
    programs, encoder = pool

    def make(folder, **changes):
        given = dict(programs=programs, encoder=encoder, hardware=(1.0,) * 11, host=HOST, setup=make_setup(), journal=folder)
        return Collection(**{**given, **changes})

    return make


@pytest.fixture
def collected_in(collection_in):
    """Run a whole collection; the collection, the records in the order told, and the steps."""

    def run(folder, plan=PLAN, models=None, **changes):
        collection, told, steps = collection_in(folder, **changes), [], []
        collect(collection, plan, models or two_models(), steps.append, told.append)
        return collection, told, steps

    return run


def records_of(folder):
    return list(iter_journal(folder))


def outcome_of(collection):
    """What a collection ends with: row -> (program, latencies, error, round)."""
    return {row: (r.key, r.latencies_s, r.error, r.round) for row, r in collection.records.items()}


@pytest.mark.parametrize("sampler", ["rdu", "rdu-paper", "random"])
def test_a_budget_is_met_exactly_and_nothing_is_measured_twice(collected_in, runners, tmp_path, sampler):
    collection, told, _ = collected_in(tmp_path, replace(PLAN, sampler=sampler))
    records = records_of(tmp_path)
    assert len(records) == 24 == len({r.key for r in records})
    assert told == records and {r.key: r for r in records} == {r.key: r for r in collection.records.values()}
    assert [r.round for r in records] == [0] * 8 + [1] * 4 + [2] * 4 + [3] * 4 + [4] * 4
    for row, record in collection.records.items():
        protocol = collection.setup.protocol_json(record.error)
        assert (record.host, record.protocol, record.tvm_version) == (HOST, protocol, "0.0")
        program = collection.programs[row]
        assert record.key == collection.keys[row]
        assert (program.number, program.sketch) == (record.program_id, record.sketch_id)
    assert len(runners) == 1


def test_steps_are_told_in_order(collected_in, runners, tmp_path):
    model = FakeModel()
    _, _, steps = collected_in(tmp_path, models=[model, FakeModel(1)])
    order = [(0, "select"), (0, "measure"), (0, "refit")]
    order += [(r, s) for r in (1, 2, 3) for s in ("select", "measure", "refit")] + [(4, "select"), (4, "measure")]
    assert [(s["round"], s["step"]) for s in steps] == order  # nobody would use a model fitted after the last round
    assert model.fitted == [8, 12, 16, 20]
    assert [s["programs"] for s in steps if s["step"] == "measure"] == [8, 4, 4, 4, 4]
    assert [s["in_all"] for s in steps if s["step"] == "measure"] == [8, 12, 16, 20, 24]
    assert [s["from_journal"] for s in steps if s["step"] == "measure"] == [0] * 5
    assert [s["of"] for s in steps if s["step"] == "select"] == [60, 52, 48, 44, 40]
    assert [s.get("matmul", 0) + s.get("conv2d", 0) for s in steps if s["step"] == "select"] == [8, 4, 4, 4, 4]
    assert [(s["programs"], s["loss"]) for s in steps if s["step"] == "refit"] == [(n, 0.25) for n in (8, 12, 16, 20)]
    assert [json.loads(json.dumps(s)) for s in steps] == steps and {type(s["seconds"]) for s in steps} == {float}


def test_a_random_collection_fits_no_model(collected_in, runners, tmp_path):
    model = FakeModel()
    _, _, steps = collected_in(tmp_path, replace(PLAN, sampler="random"), [model])
    assert {s["step"] for s in steps} == {"select", "measure"} and model.fitted == []


def test_failures_are_counted_by_kind_and_recorded(collected_in, runners, tmp_path):
    _, told, steps = collected_in(tmp_path, replace(PLAN, budget=60, initial=60))
    counts = Counter(r.error for r in told)
    (measured,) = [s for s in steps if s["step"] == "measure"]
    assert {kind: measured[kind] for kind in counts} == counts
    assert counts["ok"] > 40 and counts["crash"] + counts["timeout"] > 2
    for record in told:
        assert (record.message, record.latencies_s == ()) == (("", False) if record.error == "ok" else ("why", True))


def check_best(jobs, told):
    """Each job knows the fastest of its task before it, of earlier rounds too; failures do not count."""
    best, waiting = {}, list(jobs)
    for record in told:
        if waiting and (waiting[0].task_key, waiting[0].decisions) == (record.task_key, record.decisions):
            assert waiting.pop(0).best_s == best.get(record.task_key, np.inf)
        best[record.task_key] = min(best.get(record.task_key, np.inf), record.latency_s)
    assert not waiting


def test_the_best_latency_of_a_task_stops_slow_programs_early(collected_in, runners, tmp_path):
    """What another plan measured does not count: an undisturbed run would not have known it."""
    _, first, _ = collected_in(tmp_path)
    check_best(runners[0].jobs, first)
    _, second, _ = collected_in(tmp_path, replace(PLAN, seed=5))
    assert 0 < len(runners[1].jobs) < 24
    check_best(runners[1].jobs, second)


def test_a_job_carries_its_program(collection_in, runners, tmp_path, pool, matmul, conv):
    measure_all(collection_in(tmp_path), 0.0, ignore)
    programs, encoder = pool
    traces = {(r["task_key"], r["sketch_id"]): r["trace_json"] for t in (matmul, conv) for r in t.rows()}
    assert len(runners[0].jobs) == 60
    for program, job in zip(programs, runners[0].jobs, strict=True):
        assert (job.task_key, job.decisions) == (program.task_key, program.decisions)
        assert job.trace_json == traces[program.task_key, program.sketch]
        assert job.module_json == encoder.tasks[program.task_key].module_json
        assert not job.check


def test_a_fixed_share_of_programs_is_checked(collection_in, runners, tmp_path):
    checked = {}
    for fraction in (0.0, 0.3, 1.0):
        measure_all(collection_in(tmp_path / str(fraction)), fraction, ignore)
        checked[fraction] = {j.decisions for j in runners[-1].jobs if j.check}
    assert len(checked[0.0]) == 0 and len(checked[1.0]) == len({j.decisions for j in runners[-1].jobs})
    assert 6 <= len(checked[0.3]) <= 32 and checked[0.3] < checked[1.0]


# --- too little to rank ---


def test_one_program_of_each_task_ranks_nothing(collected_in, runners, tmp_path, pool):
    """No pair to learn from: the rounds go on at random, without a refit and without an error."""
    programs, _ = pool
    model = FakeModel()
    collection, _, steps = collected_in(
        tmp_path,
        replace(PLAN, budget=2, initial=1, rounds=1),
        [model, FakeModel(1)],
        programs=[programs[0], programs[30]],
    )
    assert not collection.can_rank() and model.fitted == []
    assert [(s["round"], s["step"]) for s in steps] == [(r, s) for r in (0, 1) for s in ("select", "measure")]
    assert [r.round for r in records_of(tmp_path)] == [0, 1]


def test_the_first_model_comes_with_the_first_pair(collected_in, runners, tmp_path, pool):
    """Goals 1, 2, .. 6 of one task: round 1 is still at random, round 2 has a model of two programs."""
    model = FakeModel()
    collection, _, _ = collected_in(tmp_path, replace(PLAN, budget=6, initial=1, rounds=5), [model, FakeModel(1)], programs=pool[0][:30])
    assert model.fitted == [2, 3, 4, 5] and collection.can_rank()


# --- again and again ---


@pytest.mark.parametrize("sampler", ["rdu", "random"])
@pytest.mark.parametrize("stop", [1, 7, 8, 11, 23, 24])
def test_a_resumed_collection_ends_as_an_undisturbed_one(collected_in, runners, tmp_path, stop, sampler):
    plan = replace(PLAN, sampler=sampler)
    undisturbed, told, _ = collected_in(tmp_path / "undisturbed", plan)
    runners.limit = stop
    if stop < 24:
        with pytest.raises(KeyboardInterrupt):
            collected_in(tmp_path / "resumed", plan)
    else:
        collected_in(tmp_path / "resumed", plan)
    kept = (tmp_path / "resumed" / "records.jsonl").read_bytes()
    assert len(records_of(tmp_path / "resumed")) == stop
    runners.limit = None
    model = FakeModel()
    resumed, told_again, steps = collected_in(tmp_path / "resumed", plan, [model, FakeModel(1)])
    assert outcome_of(resumed) == outcome_of(undisturbed) and len(resumed.records) == 24
    assert [r.key for r in told_again] == [r.key for r in told]
    assert len(runners[-1].jobs) == 24 - stop
    assert sum(s["from_journal"] for s in steps if s["step"] == "measure") == stop
    assert model.fitted == ([8, 12, 16, 20] if sampler == "rdu" else [])
    assert (tmp_path / "resumed" / "records.jsonl").read_bytes().startswith(kept)
    in_journal = records_of(tmp_path / "resumed")
    assert len(in_journal) == 24 == len({r.key for r in in_journal})


def test_twice_interrupted(collected_in, runners, tmp_path):
    undisturbed, _, _ = collected_in(tmp_path / "undisturbed")
    for limit in (5, 6):
        runners.limit = limit
        with pytest.raises(KeyboardInterrupt):
            collected_in(tmp_path / "resumed")
    runners.limit = None
    resumed, _, _ = collected_in(tmp_path / "resumed")
    assert outcome_of(resumed) == outcome_of(undisturbed) and len(runners[-1].jobs) == 13


@pytest.mark.parametrize("changes", [{"sampler": "random"}, {"sampler": "rdu-paper"}, {"seed": 1}, {"budget": 40}], ids=str)
def test_another_plan_selects_anew_and_measures_only_what_is_missing(collected_in, runners, tmp_path, changes):
    """The journal is a cache: it neither steers what is picked nor is anything in it measured again."""
    plan = replace(PLAN, **changes)
    before, _, _ = collected_in(tmp_path / "shared")
    after, _, steps = collected_in(tmp_path / "shared", plan)
    alone, _, _ = collected_in(tmp_path / "alone", plan)
    assert outcome_of(after) == outcome_of(alone) and after.records.keys() != before.records.keys()
    assert len(after.records) == plan.budget and before.records.keys() & after.records.keys()
    assert Counter(r.round for r in after.records.values()) == Counter(
        {n: goal - last for n, (goal, last) in enumerate(zip(plan.goals(), [0, *plan.goals()], strict=False))}
    )
    missing = after.records.keys() - before.records.keys()
    jobs = [(j.task_key, j.decisions) for j in runners[1].jobs]
    assert sorted(jobs) == sorted((after.programs[row].task_key, after.programs[row].decisions) for row in missing)
    assert sum(s["from_journal"] for s in steps if s["step"] == "measure") == plan.budget - len(missing)
    assert after.known.keys() == before.records.keys() | after.records.keys()


def test_a_smaller_budget_gives_fewer_records(collected_in, runners, tmp_path):
    """The start is the same random one, so the smaller selection is cached as far as the two agree."""
    collected_in(tmp_path, replace(PLAN, sampler="random", initial=24))
    smaller, _, _ = collected_in(tmp_path, replace(PLAN, sampler="random", budget=10, initial=10))
    assert len(smaller.records) == 10 and len(smaller.known) == 24 and runners[-1].jobs == []


def test_measuring_all_completes_what_is_there(collected_in, collection_in, runners, tmp_path):
    collected_in(tmp_path)
    collection = collection_in(tmp_path)
    measure_all(collection, 0.0, ignore)
    assert len(runners[-1].jobs) == 36
    assert {r.key for r in records_of(tmp_path)} == set(collection.keys)
    assert [collection.records[row].key for row in range(60)] == collection.keys
    assert {r.round for r in collection.records.values()} == {0}


@pytest.mark.parametrize("sampler", ["random", "rdu"])
def test_a_budget_larger_than_the_pool_measures_the_pool(collected_in, runners, tmp_path, sampler):
    collection, _, _ = collected_in(tmp_path, replace(PLAN, sampler=sampler, budget=90, initial=30))
    assert len(records_of(tmp_path)) == 60 == len(collection.records)


# --- a machine that is not quiet ---


@pytest.fixture
def noisy(monkeypatch):
    """The machine is disturbed at about a third of the programs; set ``noisy[0]`` to False for a quiet one."""
    loud, real = [True], FakeRunner._measured

    def measured(runner, job):
        outcome = real(runner, job)
        disturbed = loud[0] and outcome.error == "ok" and zlib.crc32(repr((1, job.decisions)).encode()) % 3 == 0
        return replace(outcome, disturbed=disturbed)

    monkeypatch.setattr(FakeRunner, "_measured", measured)
    return loud


@pytest.mark.parametrize("sampler", ["random", "rdu"])
def test_disturbed_programs_are_measured_again_next_time_and_only_they(collected_in, runners, noisy, tmp_path, sampler):
    plan = replace(PLAN, sampler=sampler)
    first, told, steps = collected_in(tmp_path, plan)
    disturbed = [r.key for r in told if r.disturbed]
    assert 2 < len(disturbed) < 24 and len(runners[0].jobs) == 24  # not again in the same session
    assert sum(s.get("disturbed", 0) for s in steps if s["step"] == "measure") == len(disturbed)
    assert [r.disturbed for r in records_of(tmp_path)] == [r.disturbed for r in told]
    noisy[0] = False
    second, told, steps = collected_in(tmp_path, plan)
    assert [(j.task_key, j.decisions) for j in runners[1].jobs] == [(task, decisions) for task, _, decisions in disturbed]
    assert outcome_of(second) == outcome_of(first) and not any(r.disturbed for r in told)
    assert not any("disturbed" in s for s in steps)
    assert len(records_of(tmp_path)) == 24 + len(disturbed)
    collected_in(tmp_path, plan)
    assert runners[2].jobs == []


def test_a_disturbed_record_does_not_displace_a_quiet_one(collection_in, tmp_path):
    """Whichever came last."""
    empty = collection_in(tmp_path / "none")
    quiet, disturbed = record_of(empty), record_of(empty, latencies_s=(5e-3,), disturbed=True)
    for n, records in enumerate([(quiet, disturbed), (disturbed, quiet), (disturbed, quiet, disturbed)]):
        write_journal(tmp_path / str(n), *records)
        assert {row: r.latency_s for row, r in collection_in(tmp_path / str(n)).known.items()} == {0: 1e-3}
    write_journal(tmp_path / "disturbed", disturbed)
    assert collection_in(tmp_path / "disturbed").known == {}


def test_what_was_checked_is_recorded(collection_in, runners, tmp_path, monkeypatch):
    real = FakeRunner._measured

    def checking(runner, job):
        outcome = real(runner, job)
        return replace(outcome, checked=job.check and outcome.error == "ok")

    monkeypatch.setattr(FakeRunner, "_measured", checking)
    measure_all(collection_in(tmp_path), 0.5, ignore)
    wanted = {(j.task_key, j.decisions) for j in runners[0].jobs if j.check}
    records = records_of(tmp_path)
    assert {(r.task_key, r.decisions) for r in records if r.checked} == {
        (r.task_key, r.decisions) for r in records if r.error == "ok" and (r.task_key, r.decisions) in wanted
    }
    assert 10 < sum(r.checked for r in records) < 50


# --- what the journal holds ---


def record_of(collection, **changes):
    program = collection.programs[0]
    values = dict(
        task_key=program.task_key, sketch_id=program.sketch, program_id=program.number, decisions=program.decisions,
        latencies_s=(1e-3,), error="ok", message="", round=0, measured_at=datetime.now(UTC),
        protocol=collection.setup.protocol_json(), host=HOST, tvm_version="0.0",
    )  # fmt: skip
    return Record(**{**values, **changes})


def write_journal(folder, *records):
    with Journal(folder) as journal:
        journal.append(records)


def test_a_record_of_another_host_is_refused(collection_in, tmp_path):
    write_journal(tmp_path, record_of(collection_in(tmp_path / "none"), host="that host"))
    with pytest.raises(DataError) as raised:
        collection_in(tmp_path)
    assert str(raised.value) == (
        f"{tmp_path} holds measurements of another host (that host; this one is this host); "
        "give this host a platform name of its own in params.yaml, or move that folder away"
    )


def test_another_protocol_and_another_pool_are_passed_over(collection_in, tmp_path):
    empty = collection_in(tmp_path / "none")
    other = record_of(empty, protocol=json.dumps({"repeats": 99}), host="that host")
    foreign = record_of(empty, task_key="0123456789abcdef", host="that host")
    write_journal(tmp_path, other, foreign, record_of(empty, latencies_s=(2e-3,)), record_of(empty))
    collection = collection_in(tmp_path)
    assert {row: r.latency_s for row, r in collection.known.items()} == {0: 1e-3}  # the last one counts
    assert collection.records == {} and not collection.can_rank()


def test_latencies_of_another_target_are_not_this_ones(collection_in, tmp_path, make_setup):
    """The same platform name with another CPU name in params.yaml: what was measured before does not count."""
    nehalem, haswell = (replace(make_setup(), target={"kind": "llvm", "mcpu": mcpu, "num-cores": 1}) for mcpu in ("nehalem", "haswell"))
    write_journal(tmp_path, record_of(collection_in(tmp_path, setup=nehalem)))
    assert collection_in(tmp_path, setup=haswell).known == {}
    assert collection_in(tmp_path, setup=nehalem).known.keys() == {0}


@pytest.mark.parametrize("limits", [{"run_s": 20.0}, {"build_s": 60.0}, {"memory_bytes": 1 << 30}], ids=str)
@pytest.mark.parametrize(("error", "measured"), [("timeout", 1), ("ok", 0), ("crash", 0), ("wrong-result", 0)])
def test_other_limits_measure_again_only_what_timed_out(collection_in, runners, tmp_path, make_setup, pool, error, measured, limits):
    before = collection_in(tmp_path, programs=pool[0][:1])
    latencies = (1e-3,) if error == "ok" else ()
    write_journal(tmp_path, record_of(before, error=error, latencies_s=latencies, protocol=before.setup.protocol_json(error)))
    measure_all(collection_in(tmp_path, programs=pool[0][:1]), 0.0, ignore)
    assert runners[-1].jobs == []
    after = collection_in(tmp_path, programs=pool[0][:1], setup=make_setup(**limits))
    measure_all(after, 0.0, ignore)
    assert len(runners[-1].jobs) == measured
    assert after.records[0].error == ("ok" if measured else error)


def test_samples_are_what_was_selected(collected_in, runners, tmp_path):
    collected_in(tmp_path, replace(PLAN, budget=30, initial=30, seed=3))
    collection, _, _ = collected_in(tmp_path, replace(PLAN, budget=8))
    samples, rows = collection.samples(), sorted(collection.records)
    assert len(samples) == 8 < len(collection.known)
    assert samples.latencies_s.tolist() == [collection.records[row].latency_s for row in rows]
    keys = [collection.keys[row] for row in rows]
    np.testing.assert_array_equal(samples.features, collection.encoder.encode(keys, (1.0,) * 11).features)


# --- helpers ---


def test_scaling_within_a_task_by_hand():
    predictions, tasks = np.array([1.0, 30.0, 3.0, 10.0, 2.0, 7.0]), np.array([0, 1, 0, 1, 0, 2])
    assert scaled_within_task(predictions, tasks).tolist() == [0.0, 1.0, 1.0, 0.0, 0.5, 0.5]
    assert scaled_within_task(np.zeros(0), np.zeros(0, dtype=int)).tolist() == []


def test_a_diverged_model_does_not_select(collection_in, runners, tmp_path):
    """Predictions that are no numbers must stop the collection, not quietly make it random."""

    class Diverged(FakeModel):
        def predict(self, samples):
            return np.full(len(samples), np.nan, dtype=np.float32)

    with pytest.raises(DataError, match="values that are not finite; train it with a lower learning rate"):
        collect(collection_in(tmp_path), PLAN, [Diverged(), Diverged()], ignore, ignore)


# --- a full disk, a second collector ---


@contextmanager
def disk_of(free_bytes, path):
    """As if the disk were full when ``path`` has grown by so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + free_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_while_collecting(collected_in, collection_in, runners, tmp_path):
    """One sentence; what was told is in the journal, and the collection goes on from there."""
    undisturbed, _, _ = collected_in(tmp_path / "undisturbed")
    journal, told = tmp_path / "full", []
    Journal(journal).close()
    with disk_of(3000, journal / "records.jsonl"), pytest.raises(PlatformError) as raised:
        collect(collection_in(journal), PLAN, two_models(), ignore, told.append)
    assert str(raised.value) == (
        f"cannot write {journal / 'records.jsonl'} (file too large); what was there before is kept; free some space and run again"
    )
    assert 2 <= len(told) < 24 and records_of(journal) == told
    resumed, _, _ = collected_in(journal)
    assert outcome_of(resumed) == outcome_of(undisturbed) and len(runners[-1].jobs) == 24 - len(told)


def test_a_second_collector_of_one_journal_starts_no_worker(collection_in, runners, tmp_path):
    hold = "import sys; from tcl_core.journal import Journal; j = Journal(sys.argv[1]); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(tmp_path)]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    first.stdout.readline()
    with pytest.raises(BusyError, match=f"^process {first.pid} is already collecting into {tmp_path}; wait for it to end"):
        measure_all(collection_in(tmp_path), 0.0, ignore)
    assert runners == []
    first.communicate()
    measure_all(collection_in(tmp_path), 0.0, ignore)
    assert len(records_of(tmp_path)) == 60


# --- kill -9 ---

COLLECTOR = """
import sys
sys.path.insert(0, "tests")
import conftest
from tcl_core.measure import pool
pool.PER_LANE, pool.threads = 4, lambda: 2  # two workers, eight programs a batch
from tcl_core.collect import Collection, measure_all
from tcl_core.features.encode import Encoder
from tcl_core.programs.pool import sample_programs
from tcl_core.programs.tasks import describe
tiny = conftest.TinyTask(describe("fused_matmul_relu", conftest.matmul_module()))
collection = Collection(
    programs=sample_programs(tiny.task, tiny.sketches, tiny.space, 24, seed=0),
    encoder=Encoder([tiny.task], tiny.rows()), hardware=(1.0,) * 11, host="host", setup=conftest.quick_setup(),
    journal=sys.argv[1],
)
print("start", len(collection.known), flush=True)
measure_all(collection, 0.0, lambda record: print(record.error, flush=True))
print("end", flush=True)
"""


def collector(folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", COLLECTOR, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)


def test_a_collector_that_is_killed_goes_on_where_it_was(tmp_path):
    """All of the batches that it had measured are kept."""
    first = collector(tmp_path)
    seen = [first.stdout.readline().strip() for _ in range(9)]  # "start 0" and a batch
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert seen == ["start 0"] + ["ok"] * 8
    kept = records_of(tmp_path)
    assert 8 <= len(kept) < 24
    said = collector(tmp_path).communicate(timeout=120)[0].split("\n")
    assert said[0] == f"start {sum(not r.disturbed for r in kept)}" and said[-2] == "end"
    assert said[1:-2] == ["ok"] * 24  # those of before are told too
    records = records_of(tmp_path)
    assert records[: len(kept)] == kept
    disturbed = [r.key for r in kept if r.disturbed]
    assert len(records) == 24 + len(disturbed) and len({r.key for r in records}) == 24
    assert all(0 < min(r.latencies_s) and re.match(r"0\.27", r.tvm_version) for r in records)
    assert all(r.measured_at.timestamp() <= time.time() for r in records)

"""A collection: what it selects, measures and tells, step by step, from its plan."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from conftest import FakeRunner

from tcl_core.collect import collect, measure_all
from tcl_core.errors import DataError
from tcl_core.features.batches import scaled_within_task
from tcl_core.measure.job import Outcome
from tests import collections_in_memory
from tests.collections_in_memory import FakeModel, HOST, PLAN, ignore, records_of

pool, collection_in, collected_in = collections_in_memory.pool, collections_in_memory.collection_in, collections_in_memory.collected_in


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


def test_what_another_platform_measured_chooses_all_at_once(collected_in, collection_in, runners, tmp_path):
    """Its models pick before anything runs here, and nobody learns what this platform measures."""
    elsewhere = collection_in(tmp_path / "other")
    before = elsewhere.encoder.encode(elsewhere.keys, elsewhere.hardware, np.arange(1.0, 61.0))
    model = FakeModel()
    collection, told, steps = collected_in(tmp_path / "here", models=[model, FakeModel(1)], before=before)
    assert [(s["round"], s["step"]) for s in steps] == [(0, "refit"), (0, "select"), (0, "measure")]
    assert model.fitted == [60] and len(told) == 24 and {r.round for r in told} == {0}
    assert sorted(Counter(record.task_key for record in told).values()) == [12, 12]  # as many of each task
    other, _, _ = collected_in(tmp_path / "later", models=[FakeModel(5), FakeModel(6)], before=before)
    assert other.records.keys() != collection.records.keys()  # the models chose, not chance alone


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


def test_where_nothing_runs_the_rounds_go_on_at_random(collected_in, runners, tmp_path, pool, monkeypatch):
    monkeypatch.setattr(FakeRunner, "_measured", lambda self, job: self.jobs.append(job) or Outcome("crash", message="why"))
    model = FakeModel()
    collection, _, _ = collected_in(tmp_path, replace(PLAN, budget=6, initial=2, rounds=2), [model, FakeModel(1)], programs=pool[0][:30])
    assert len(collection.records) == 6 and not collection.can_rank() and model.fitted == []


def test_the_first_model_comes_with_the_first_pair(collected_in, runners, tmp_path, pool):
    """Goals 1, 2, .. 6 of one task: round 1 is still at random, round 2 has a model of two programs."""
    model = FakeModel()
    collection, _, _ = collected_in(tmp_path, replace(PLAN, budget=6, initial=1, rounds=5), [model, FakeModel(1)], programs=pool[0][:30])
    assert model.fitted == [2, 3, 4, 5] and collection.can_rank()


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

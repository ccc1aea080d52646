"""A collection that goes on, is run again or meets what others measured: the journal is a cache that steers nothing."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from conftest import FakeRunner

from tcl_core.collect import measure_all
from tcl_core.errors import DataError
from tests import collections_in_memory
from tests.collections_in_memory import FakeModel, PLAN, ignore, outcome_of, record_of, records_of, write_journal

pool, collection_in, collected_in = collections_in_memory.pool, collections_in_memory.collection_in, collections_in_memory.collected_in


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


def test_a_task_of_large_weights_is_timed_cold_and_what_was_timed_warm_does_not_count(
    collection_in, runners, tmp_path, make_setup, matmul, monkeypatch
):
    monkeypatch.setattr("tcl_core.measure.job.is_large_json", lambda text: text == matmul.task.module_json)
    warm, cold = make_setup(), replace(make_setup(), cold_weights=True)
    measure_all(collection_in(tmp_path, setup=warm), 0.0, ignore)
    assert not any(job.cold for job in runners[-1].jobs)
    collection = collection_in(tmp_path, setup=cold)
    assert {collection.keys[row][0] == matmul.task.key for row in collection.known} == {False}
    measure_all(collection, 0.0, ignore)
    assert len(runners[-1].jobs) == 30 and all(job.cold and job.task_key == matmul.task.key for job in runners[-1].jobs)
    told = {(record.task_key == matmul.task.key, json.loads(record.protocol).get("cold")) for record in collection.records.values()}
    assert told == {(True, "weights"), (False, None)}
    measure_all(collection_in(tmp_path, setup=cold), 0.0, ignore)
    assert runners[-1].jobs == []


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


@pytest.mark.parametrize(("error", "measured"), [("build", 1), ("run", 1), ("ok", 0), ("crash", 0)])
def test_more_memory_measures_again_what_may_have_lacked_it(collection_in, runners, tmp_path, make_setup, pool, error, measured):
    before = collection_in(tmp_path, programs=pool[0][:1])
    latencies = (1e-3,) if error == "ok" else ()
    write_journal(tmp_path, record_of(before, error=error, latencies_s=latencies, protocol=before.setup.protocol_json(error)))
    for setup, jobs in ((make_setup(run_s=77.0), 0), (make_setup(memory_bytes=1 << 30), measured)):
        measure_all(collection_in(tmp_path, programs=pool[0][:1], setup=setup), 0.0, ignore)
        assert len(runners[-1].jobs) == jobs


def test_samples_are_what_was_selected(collected_in, runners, tmp_path):
    collected_in(tmp_path, replace(PLAN, budget=30, initial=30, seed=3))
    collection, _, _ = collected_in(tmp_path, replace(PLAN, budget=8))
    samples, rows = collection.samples(), sorted(collection.records)
    assert len(samples) == 8 < len(collection.known)
    assert samples.latencies_s.tolist() == [collection.records[row].latency_s for row in rows]
    keys = [collection.keys[row] for row in rows]
    np.testing.assert_array_equal(samples.features, collection.encoder.encode(keys, (1.0,) * 11).features)

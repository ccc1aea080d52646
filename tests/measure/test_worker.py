from __future__ import annotations

import math
from dataclasses import replace
from multiprocessing import Pipe

import numpy as np
import pytest

from tcl_core.measure import worker as worker_module
from tcl_core.measure.job import Job, Protocol
from tcl_core.measure.worker import TOLERANCE, Worker, _answer, _relative_difference, _runs_per_repeat
from tcl_core.programs.sketches import trace_to_json


@pytest.fixture(scope="module")
def worker(make_setup) -> Worker:
    return Worker(make_setup())


@pytest.fixture
def job(matmul) -> Job:
    sketch = matmul.sketches[0]
    decisions = tuple(matmul.space.canonical(sketch, matmul.sample(sketch, 1)[0]).tolist())
    return Job(matmul.task.key, matmul.task.module_json, trace_to_json(sketch.trace), decisions, check=True)


# --- comparing outputs ---


def difference(found, expected):
    return _relative_difference(np.array(found, dtype=np.float32), np.array(expected, dtype=np.float32))


def test_differences_by_hand():
    assert difference([1, 2, 4], [1, 2, 4]) == 0
    assert difference([1, 2, 3], [1, 2, 4]) == 0.25  # of the largest magnitude, not of each
    assert difference([1e-6, 4], [0, 4]) == pytest.approx(2.5e-7)
    assert difference([], []) == 0
    assert difference([-4.0], [4.0]) == 2


@pytest.mark.filterwarnings("ignore:invalid value")
def test_numbers_that_are_not_finite():
    assert difference([1, np.nan], [1, 2]) == math.inf
    assert difference([1, 2], [1, np.inf]) == math.inf
    assert difference([1, np.nan], [1, np.nan]) == 0
    assert difference([1, np.inf], [1, np.inf]) == 0
    assert difference([1, -np.inf], [1, np.inf]) > TOLERANCE


def test_integers_are_compared_too():
    assert _relative_difference(np.array([1, 5]), np.array([1, 4])) == 0.25


def test_the_untuned_program_equals_the_tuned_one(worker, job):
    assert worker.difference(worker.build(job), job) < 1e-5


def test_a_wrong_program_differs(worker, job):
    """Half of everything: differs by half."""
    function = worker.build(job)

    def halves(*arguments):
        function(*arguments)
        arguments[-1].copyfrom(arguments[-1].numpy() / 2)

    assert worker.difference(halves, job) == pytest.approx(0.5, rel=1e-3)


def test_a_program_that_writes_nothing_differs(worker, job):
    """What an earlier program left in the output must not pass for this one's."""
    assert worker.difference(worker.build(job), job) < TOLERANCE
    assert worker.difference(lambda *arguments: None, job) > TOLERANCE


def test_a_program_that_writes_half_differs(worker, job):
    function = worker.build(job)

    def upper_half(*arguments):
        before = arguments[-1].numpy().copy()
        function(*arguments)
        after = arguments[-1].numpy().copy()
        after[16:] = before[16:]
        arguments[-1].copyfrom(after)

    assert worker.difference(upper_half, job) > TOLERANCE


# --- timing ---


@pytest.mark.parametrize(
    ("first_s", "number"), [(1e-3, 10), (3e-3, 4), (1.0, 1), (1e-5, 200), (0.0, 200), (10e-3, 1)]
)
def test_runs_until_a_repeat_has_lasted(first_s, number):
    assert _runs_per_repeat(first_s, Protocol(min_repeat_ms=10, max_number=200)) == number


@pytest.mark.parametrize("flush", [False, True])
def test_repeats_warmup_and_numbers(worker, job, monkeypatch, flush):
    """Counted calls: the warm-up (one at least), one run that chooses the number, then repeats x number."""
    calls = []
    monkeypatch.setattr(worker_module, "_runs_per_repeat", lambda first_s, protocol: 5)
    for warmup, wanted in ((0, 2), (1, 2), (3, 4)):
        protocol = replace(worker.setup.protocol, repeats=4, warmup=warmup, flush_cache=flush)
        monkeypatch.setattr(worker, "setup", replace(worker.setup, protocol=protocol))
        calls.clear()
        latencies = worker.time(lambda *arguments: calls.append(arguments), job)
        assert len(latencies) == 4 and all(x > 0 for x in latencies)
        assert len(calls) == wanted + 4 * 5


@pytest.mark.parametrize(
    ("warmup", "single_runs", "repeats"),
    [
        (1, [99.0, 1.0], 2),  # cold: the first run loads the code and makes the threads
        (1, [99.0, 9.9], 2),
        (1, [99.0, 10.1], 1),
        (1, [9.9, 99.0], 2),  # one slow run may be bad luck
        (3, [99.0, 98.0, 2.0, 99.0], 2),  # the last warm-up counts
        (3, [2.0, 2.0, 30.0, 20.0], 1),
        (0, [30.0, 20.0], 1),
    ],
)
def test_a_program_far_behind_is_given_up_after_two_slow_runs(worker, job, monkeypatch, warmup, single_runs, repeats):
    """Ten times slower than the best (1 s) in the last warm-up and in one run more; that run is then the latency."""
    protocol = replace(worker.setup.protocol, warmup=warmup, early_stop_factor=10.0, enough_s=1e3)
    monkeypatch.setattr(worker, "setup", replace(worker.setup, protocol=protocol))
    waiting = list(single_runs)
    monkeypatch.setattr(worker, "_once", lambda function, arguments: waiting.pop(0))
    monkeypatch.setattr(worker, "_repeat", lambda function, arguments, number: 7.0)
    latencies = worker.time(None, replace(job, best_s=1.0))
    assert latencies == ([single_runs[-1]] if repeats == 1 else [7.0, 7.0]) and waiting == []


def test_without_a_best_nothing_is_given_up(worker, job, monkeypatch):
    """The first program of a task has nothing to be behind of, however slow it is."""
    monkeypatch.setattr(worker, "setup", replace(worker.setup, protocol=replace(worker.setup.protocol, enough_s=1e9)))
    monkeypatch.setattr(worker, "_once", lambda function, arguments: 1e6)
    monkeypatch.setattr(worker, "_repeat", lambda function, arguments, number: float(number))
    assert worker.time(None, replace(job, best_s=math.inf)) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("run_s", "latencies"),
    [
        (0.01, [0.01] * 5),  # 5 repeats of 100 ms
        (0.15, [0.15] * 5),  # 0.15, 0.3 .. 0.75 s: none has yet lasted a second
        (0.3, [0.3] * 4),  # 0.9 s after three, 1.2 s after four
        (0.999, [0.999] * 2),
        (1.0, [1.0]),
        (1.001, [1.001]),  # the run that chose the number is the one repeat
        (30.0, [30.0]),
    ],
)
def test_a_slow_program_is_repeated_until_it_has_lasted_a_second(worker, job, monkeypatch, run_s, latencies):
    protocol = replace(worker.setup.protocol, repeats=5, min_repeat_ms=100, enough_s=1.0)
    monkeypatch.setattr(worker, "setup", replace(worker.setup, protocol=protocol))
    monkeypatch.setattr(worker, "_once", lambda function, arguments: run_s)
    repeated = []
    monkeypatch.setattr(worker, "_repeat", lambda function, arguments, number: repeated.append(number) or run_s)
    assert worker.time(None, job) == latencies
    assert repeated == [_runs_per_repeat(run_s, protocol)] * (len(latencies) if run_s <= 1.0 else 0)


def test_the_caches_are_flushed_before_each_timed_run(make_setup, monkeypatch):
    """Every byte of twice the largest cache is touched; and nothing is kept where nobody flushes."""
    monkeypatch.setattr(worker_module, "largest_cache_bytes", lambda: 3000)
    assert Worker(make_setup()).flush_buffer.nbytes == 0
    worker, seen = Worker(make_setup(flush_cache=True)), []
    assert worker.flush_buffer.nbytes == 6000
    worker._once(lambda: None, [])
    assert not worker.flush_buffer.any()
    worker._repeat(lambda: seen.append(set(worker.flush_buffer.tolist())), [], 3)
    assert seen == [{1}, {2}, {3}]


def test_inputs_are_reproducible_and_valid_indices(make_setup, worker):
    from tcl_core.compat import load_tvm
    from tcl_core.programs.tasks import describe

    tvm = load_tvm()
    from tvm import te

    x, i = te.placeholder((2, 8), name="x"), te.placeholder((5,), name="i", dtype="int64")
    y = te.compute((5, 8), lambda a, b: x[i[a], b], name="take")
    task = describe("take", tvm.IRModule({"main": te.create_prim_func([x, i, y])}))
    one, two = ([a.numpy() for a in w._inputs(task.key, task.module_json)] for w in (worker, Worker(make_setup())))
    assert [a.dtype.name for a in one] == ["float32", "int64", "float32"]
    assert set(one[1].tolist()) <= {0, 1}
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert worker.difference(worker.build(Job(task.key, task.module_json)), Job(task.key, task.module_json)) == 0


# --- answers ---


def answers(worker, job):
    ours, theirs = Pipe()
    _answer(worker, job, theirs)
    found = []
    while ours.poll():
        found.append(ours.recv())
    return found


def test_each_step_is_reported_before_the_next(worker, job):
    built, timed, done = answers(worker, job)
    assert (built[0], timed[0], done[0]) == ("built", "timed", "done")
    assert len(timed[1]) == 2 and done[1] < 1e-5
    assert answers(worker, replace(job, check=False))[-1] == ("done", None)


def test_a_failing_step_is_named(worker, job, monkeypatch):
    assert answers(worker, replace(job, decisions=()))[0] == ("failed", "build", "0 decisions given, the sketch has 12")

    def fails(function, job):
        raise ValueError("first line\nlast line")

    monkeypatch.setattr(worker, "time", fails)
    assert answers(worker, job)[1:] == [("failed", "run", "ValueError: last line")]

    def eats(function, job):
        raise MemoryError

    monkeypatch.setattr(worker, "time", eats)
    assert answers(worker, job)[1:] == [("failed", "run", "out of the worker's memory limit")]

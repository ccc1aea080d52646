"""A worker in this process: building, timing, comparing, answering."""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from conftest import matmul_module

from tcl_core import compat
from tcl_core.measure import device as device_module
from tcl_core.measure import worker as worker_module
from tcl_core.measure.device import HostProgram
from tcl_core.measure.device import HostClock
from tcl_core.measure.job import Job
from tcl_core.measure.worker import PER_WORKER, TOLERANCE, Worker, _answer, serve
from tcl_core.programs.sketches import trace_to_json
from tcl_core.programs.tasks import describe

ROOT = Path(__file__).parents[2]
CORES = os.sched_getaffinity(0)


@pytest.fixture(scope="module")
def worker(make_setup) -> Worker:
    return Worker(make_setup())


@pytest.fixture
def job(matmul) -> Job:
    sketch = matmul.sketches[0]
    decisions = tuple(matmul.space.canonical(sketch, matmul.sample(sketch, 1)[0]).tolist())
    return Job(matmul.task.key, matmul.task.module_json, trace_to_json(sketch.trace), decisions, check=True)


@pytest.fixture
def built(worker, job):
    """The job's program, built as number 0."""
    worker.build(0, job)
    yield worker.built[0][1]
    worker.drop(0)


def difference_of(worker, job, function):
    """What the check says of another function in the program's place."""
    worker.built[1] = worker.built[0]._replace(function=function)
    try:
        return worker.check(1)
    finally:
        worker.drop(1)


def test_the_untuned_program_equals_the_tuned_one(worker, built):
    assert worker.check(0) < 1e-5


def test_a_wrong_program_differs(worker, built, job):
    """Half of everything: differs by half."""

    def halves(*arguments):
        built(*arguments)
        arguments[-1].copyfrom(arguments[-1].numpy() / 2)

    assert difference_of(worker, job, halves) == pytest.approx(0.5, rel=1e-3)


def test_a_program_that_writes_nothing_differs(worker, built, job):
    """What an earlier program left in the output must not pass for this one's."""
    assert worker.check(0) < TOLERANCE
    assert difference_of(worker, job, lambda *arguments: None) > TOLERANCE


def test_a_program_that_writes_half_differs(worker, built, job):
    def upper_half(*arguments):
        before = arguments[-1].numpy().copy()
        built(*arguments)
        after = arguments[-1].numpy().copy()
        after[16:] = before[16:]
        arguments[-1].copyfrom(after)

    assert difference_of(worker, job, upper_half) > TOLERANCE


# --- building ---


def test_programs_are_kept_by_number(worker, job, matmul):
    other = matmul.sketches[1]
    decisions = tuple(matmul.space.canonical(other, matmul.sample(other, 1)[0]).tolist())
    second = replace(job, trace_json=trace_to_json(other.trace), decisions=decisions)
    assert worker.build(7, job) > 0 and worker.build(8, second) > 0
    assert [worker.built[n][0] for n in (7, 8)] == [job, second]
    assert all(isinstance(worker.built[n][1], HostProgram) for n in (7, 8))
    for _ in range(2):  # twice is harmless
        worker.drop(7)
    assert 7 not in worker.built and worker.check(8) < 1e-5
    worker.drop(8)


def test_a_module_without_a_sketch_runs_as_it_is(worker, job):
    worker.build(3, replace(job, trace_json=None, decisions=()))
    assert worker.check(3) == 0
    worker.drop(3)


def test_jobs_of_one_task_share_its_inputs(worker, built, job):
    inputs = worker.inputs(job.task_key, job.module_json)
    worker.build(4, job)
    assert all(a is b for a, b in zip(inputs, worker.inputs(job.task_key, job.module_json), strict=True))
    worker.drop(4)


def test_inputs_are_made_once_for_all_tasks_that_are_timed_by_turns(worker, job):
    """Each repeat would wait for them else, with the machine to itself."""
    kept = [worker.inputs(f"task {n}", job.module_json) for n in range(2 * PER_WORKER)]
    assert all(worker.inputs(f"task {n}", job.module_json) is inputs for n, inputs in enumerate(kept))


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("InternalError: std::bad_alloc"), RuntimeError("InternalError: CUDA: Out of memory"), ValueError("no")],
)
def test_what_is_kept_of_other_tasks_takes_no_program_its_memory(worker, built, job, monkeypatch, error):
    """As little to compile it as to run it; another failure is the program's at once."""
    real, attempts = worker._compile, []

    def with_little_memory(answer):
        attempts.append(worker.inputs.cache_info().currsize)
        if attempts[-1] > 1:
            raise error
        return answer()

    monkeypatch.setattr(worker, "_compile", lambda module: with_little_memory(lambda: real(module)))
    monkeypatch.setattr(worker_module, "time_repeat", lambda *_: with_little_memory(lambda: 0.5))
    for action in (lambda: worker.build(0, job), lambda: worker.time(0, math.inf)):
        attempts.clear()
        worker.inputs(job.task_key, job.module_json)
        worker.inputs("another task", job.module_json)
        if isinstance(error, ValueError):
            with pytest.raises(ValueError, match="^no$"):
                action()
            assert len(attempts) == 1
        else:
            assert action() > 0
            assert attempts[0] > 1 and attempts[1:] in ([0], [1])


def test_a_program_that_needs_too_much_memory_fails_once_more(worker, built, monkeypatch):
    attempts = []

    def time_repeat(*_):
        attempts.append(worker.inputs.cache_info().currsize)
        raise RuntimeError("std::bad_alloc")

    monkeypatch.setattr(worker_module, "time_repeat", time_repeat)
    with pytest.raises(RuntimeError, match="bad_alloc"):
        worker.time(0, math.inf)
    assert len(attempts) == 2


def test_inputs_are_reproducible_and_valid_indices(make_setup, worker):
    from tcl_core.compat import load_tvm

    tvm = load_tvm()
    from tvm import te

    x, i = te.placeholder((2, 8), name="x"), te.placeholder((5,), name="i", dtype="int64")
    y = te.compute((5, 8), lambda a, b: x[i[a], b], name="take")
    task = describe("take", tvm.IRModule({"main": te.create_prim_func([x, i, y])}))
    one, two = ([a.numpy() for a in w._inputs(task.key, task.module_json)] for w in (worker, Worker(make_setup())))
    assert [a.dtype.name for a in one] == ["float32", "int64", "float32"]
    assert set(one[1].tolist()) <= {0, 1}
    assert one[0].min() < 0 < one[0].max()
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    worker.build(5, Job(task.key, task.module_json))
    assert worker.check(5) == 0
    worker.drop(5)


# --- timing ---


def test_a_program_is_timed(worker, built):
    assert 1e-7 < worker.time(0, math.inf) < 1


def test_a_program_far_behind_the_best_is_run_once_more_only(worker, monkeypatch):
    """A repeat of one run, after the one that warms up."""
    slow = describe("fused_matmul_relu", matmul_module(128, 128, 128))
    worker.build(2, Job(slow.key, slow.module_json))
    protocol = replace(worker.setup.protocol, min_repeat_ms=1e3, max_number=9)
    monkeypatch.setattr(worker, "setup", replace(worker.setup, protocol=protocol))
    monkeypatch.setattr(HostClock, "mean", lambda self, number: 7.0)
    assert worker.time(2, math.inf) == 7.0 and 1e-7 < worker.time(2, 1e-9) < 1
    worker.drop(2)


def test_what_is_timed_is_what_was_built(worker, built, job, monkeypatch):
    """The program on its task's inputs, by the protocol that the worker was started with."""
    asked = []

    def time_repeat(clock, protocol, best_s):
        asked.append((clock._program, protocol, best_s))
        assert all(a is b for a, b in zip(clock._arguments, worker.inputs(job.task_key, job.module_json), strict=True))
        return 0.5

    monkeypatch.setattr(worker_module, "time_repeat", time_repeat)
    assert worker.time(0, 0.25) == 0.5 and asked == [(built, worker.setup.protocol, 0.25)]


def test_the_sentinel_is_built_once(worker, monkeypatch):
    assert 1e-6 < worker.sentinel() < 10
    monkeypatch.setattr(worker, "_compile", None)  # calling it would raise
    assert 1e-6 < worker.sentinel() < 10


def test_no_cache_is_flushed_before_the_sentinel(make_setup, monkeypatch):
    """It must fit the second-level cache, and take milliseconds."""
    monkeypatch.setattr(device_module, "largest_cache_bytes", lambda: 3000)
    worker = Worker(make_setup(flush_cache=True))
    assert 1e-6 < worker.sentinel() < 10
    assert worker._sentinel[0]._flushed.size == 0 and not worker.device._flushed.any()


@pytest.mark.skipif(len(CORES) < 2, reason="one core has no other to be kept from")
@pytest.mark.parametrize("pinned", [True, False])
def test_only_timing_is_bound_to_a_core(worker, built, job, monkeypatch, pinned):
    """Builds of several workers would else meet on one."""
    protocol = replace(worker.setup.protocol, pin_threads=pinned)
    monkeypatch.setattr(worker, "setup", replace(worker.setup, protocol=protocol))
    seen = []
    monkeypatch.setattr(worker_module, "time_repeat", lambda *_: seen.append(os.sched_getaffinity(0)) or 0.5)
    os.sched_setaffinity(0, CORES)
    worker.time(0, math.inf)
    worker.sentinel()
    worker.build(0, job)
    assert os.sched_getaffinity(0) == CORES
    assert [len(cores) for cores in seen] == [1 if pinned else len(CORES)]


def test_where_threads_cannot_be_bound_no_program_has_failed(worker, built, monkeypatch):
    """As in a container without the right to it: the supervisor ends the collection with that sentence."""
    monkeypatch.setattr(compat, "_bound_cores", lambda: os.listdir("/no/such/folder"))
    kind, message = _answer(worker.time, [0, math.inf])
    assert kind == "impossible" and message.endswith("; set measure.pin_threads to false in params.yaml")


THREADS = """
import os, sys
sys.path.insert(0, "tests")
from conftest import quick_setup
from tcl_core import compat
from tcl_core.measure.worker import Worker
worker = Worker(quick_setup(threads=2, pin_threads=sys.argv[1] == "pinned"))
worker.sentinel()  # starts the other thread
with worker._steady():
    own, others = os.sched_getaffinity(0), compat._bound_cores()
print(len(own), len(others), len(own & others), len(os.sched_getaffinity(0)))
"""


@pytest.mark.skipif(len(CORES) < 2, reason="two threads have one core")
@pytest.mark.parametrize(("how", "said"), [("pinned", [1, 1, 0]), ("free", [len(CORES), 0, 0])])
def test_each_thread_of_a_program_has_a_core_of_its_own(how, said):
    """Cores of the calling thread while it times, of its helper, and of both; and it may use all afterwards."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", THREADS, how]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [int(n) for n in done.stdout.split()] == [*said, len(CORES)]


# --- limits ---

ANY = resource.RLIM_INFINITY


@pytest.mark.parametrize(("hard", "limit"), [(ANY, 8 << 30), (9 << 30, 8 << 30), (7 << 30, 7 << 30)])
def test_a_worker_that_may_have_less_memory_than_wanted_has_that(monkeypatch, hard, limit):
    limited = []
    monkeypatch.setattr(worker_module.resource, "getrlimit", lambda what: (ANY, hard))
    monkeypatch.setattr(worker_module.resource, "setrlimit", lambda *arguments: limited.append(arguments))
    worker_module._limit_memory(8 << 30)
    assert limited == [(resource.RLIMIT_AS, (limit, limit))]


# --- answers ---


def test_an_answer_is_what_the_action_returns(worker, job):
    kind, seconds = _answer(worker.build, [6, job])
    assert kind == "done" and seconds > 0
    assert [_answer(worker.time, [6, math.inf])[0], _answer(worker.check, [6])[0]] == ["done", "done"]
    assert _answer(worker.drop, [6]) == ("done", None)


def fails(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("first line\nlast line"), "ValueError: last line"),
        (MemoryError(), "out of the worker's memory limit"),
        (RuntimeError(), "RuntimeError: "),
        (ValueError("x" * 1000), "ValueError: " + "x" * 288),
    ],
)
def test_a_failure_is_one_line(error, message):
    assert _answer(fails(error), []) == ("failed", message)


def test_a_program_that_cannot_be_made_says_why(worker, job):
    assert _answer(worker.build, [6, replace(job, decisions=())]) == ("failed", "0 decisions given, the sketch has 12")
    assert 6 not in worker.built


def test_a_session_of_requests(make_setup, job):
    """One answer for each, until the supervisor closes its end; a failure does not end it."""
    ours, theirs = Pipe()
    thread = Thread(target=serve, args=(theirs,), daemon=True)
    thread.start()
    ours.send(make_setup())
    assert ours.poll(60) and json.loads(ours.recv_bytes())[0] == "ready"
    answers = []
    for request in [("build", 0, job), ("sentinel",), ("time", 0, math.inf), ("time", 1, math.inf), ("check", 0), ("drop", 0)]:
        ours.send(request)
        assert ours.poll(60), request
        answers.append(json.loads(ours.recv_bytes()))
    ours.close()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert [kind for kind, _ in answers] == ["done", "done", "done", "failed", "done", "done"]
    assert answers[3][1] == "KeyError: 1" and answers[4][1] < 1e-5


@pytest.mark.parametrize(("number", "kind"), [(28, "impossible"), (30, "impossible"), (2, "failed")])
def test_a_full_disk_is_no_programs_fault(number, kind):
    """Where a library is linked, as for a device."""
    said = _answer(fails(OSError(number, os.strerror(number))), [])
    assert said[0] == kind and os.strerror(number) in said[1]

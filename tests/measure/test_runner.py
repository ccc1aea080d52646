"""The supervisor with real worker processes and programs that do what a candidate must not do."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace

import numpy as np
import psutil
import pytest
from _bad_programs import (
    ABORTS,
    CALLS_NOTHING,
    COPIES,
    HANGS,
    HOG,
    ILLEGAL,
    NEVER_BUILT,
    OVERFLOWS,
    TOO_BIG,
    TOO_DEEP,
    WRITES_FAR_AWAY,
    asking,
    signalling,
)
from conftest import matmul_module

from tcl_core.compat import TVM_VERSION
from tcl_core.errors import PlatformError
from tcl_core.measure import runner as runner_module
from tcl_core.measure import worker_handle
from tcl_core.measure.job import Job
from tcl_core.measure.runner import Runner
from tcl_core.programs.sketches import trace_to_json
from tcl_core.programs.tasks import describe
from tests.measure import real_programs
from tests.measure.real_programs import ROOT, measure, ordinary, worker_of

program = real_programs.program


@pytest.fixture(scope="module")
def runner(make_setup):
    with Runner(make_setup(run_s=2.0), workers=1) as runner:
        yield runner


def test_a_program_is_timed_and_checked(runner, program):
    (outcome,) = measure(runner, program)
    assert ordinary(outcome) and outcome.checked
    assert len(outcome.latencies_s) == 2
    assert 0 < outcome.build_s < 30
    assert runner.tvm_version.split("+")[0] in TVM_VERSION


def test_a_program_that_is_not_checked_says_so(runner, program):
    (outcome,) = measure(runner, replace(program, check=False))
    assert ordinary(outcome) and not outcome.checked


@pytest.mark.parametrize("name", ["matmul", "conv", "softmax"])
def test_every_sketch_computes_what_the_task_says(runner, tiny_tasks, name):
    tiny, jobs = tiny_tasks[name], []
    for sketch in tiny.sketches:
        decisions = tuple(tiny.space.canonical(sketch, tiny.sample(sketch, 1, seed=7)[0]).tolist())
        jobs.append(Job(tiny.task.key, tiny.task.module_json, trace_to_json(sketch.trace), decisions, check=True))
    outcomes = measure(runner, *jobs)
    assert len(outcomes) == len(jobs) and all(ordinary(o) and o.checked for o in outcomes), outcomes


def test_a_program_far_behind_the_best_is_not_repeated(runner):
    slow = describe("fused_matmul_relu", matmul_module(128, 128, 128))
    first, behind = (measure(runner, Job(slow.key, slow.module_json, best_s=best_s))[0] for best_s in (np.inf, 1e-9))
    assert [(o.error, len(o.latencies_s)) for o in (first, behind)] == [("ok", 2), ("ok", 1)]


def test_arrays_are_the_same_for_every_program(runner):
    """A copy's output is its input, so the check compares something: two runs of one program agree exactly."""
    checked, unchecked = measure(runner, Job("copies", COPIES, check=True), Job("copies", COPIES))
    assert checked.checked and not unchecked.checked
    assert np.isfinite(unchecked.latencies_s).all()


# --- programs that do what they must not ---


@pytest.mark.parametrize(
    ("module_json", "error", "message"),
    [
        (ABORTS, "crash", "the process was killed by SIGABRT"),
        (WRITES_FAR_AWAY, "crash", "the process was killed by SIGSEGV"),
        (CALLS_NOTHING, "crash", "the process was killed by SIGSEGV"),
        (OVERFLOWS, "crash", "the process was killed by SIGSEGV"),
        (TOO_DEEP, "crash", "the process was killed by SIGSEGV"),
        (ILLEGAL, "crash", "the process was killed by SIGILL"),
        (HANGS, "timeout", "not run within 2 s"),
        ("{", "build", "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("{}", "build", None),
    ],
    ids=[
        "abort", "segfault", "unknown-function", "stack-overflow", "stack-overflow-of-the-compiler", "illegal-instruction",
        "hang", "no-json", "no-module",
    ],
)  # fmt: skip
def test_a_bad_program_is_an_outcome_and_the_next_one_runs(runner, program, module_json, error, message):
    outcome, after = measure(runner, Job(f"bad {error}", module_json), program)
    assert (outcome.error, outcome.latencies_s, outcome.checked) == (error, (), False)
    assert outcome.message == message if message else outcome.message and "\n" not in outcome.message
    assert len(outcome.message) <= 300
    assert ordinary(after) and after.checked


def test_programs_that_need_too_much_memory(make_setup, program):
    """1.6 GB a matrix, or a workspace of 3.8 GB, under a limit of 3 GiB."""
    with Runner(make_setup(memory_bytes=3 << 30), workers=1) as runner:
        too_big, hog, after = measure(runner, Job("too big", TOO_BIG), Job("hog", HOG), program)
    assert (too_big.error, too_big.message) == ("build", "out of the worker's memory limit")
    assert hog.error == "run" and "bad_alloc" in hog.message
    assert ordinary(after)


def test_a_build_that_never_ends(make_setup, program):
    """What the worker had built before is built again."""
    with Runner(make_setup(build_s=6.0), workers=1) as runner:
        before, outcome, after = measure(runner, program, Job("never built", NEVER_BUILT), program)
    assert (outcome.error, outcome.message, outcome.build_s) == ("timeout", "not built within 6 s", 0.0)
    assert ordinary(before) and ordinary(after)


def test_a_failed_build_keeps_its_worker(runner, program):
    measure(runner, program)
    before = worker_of(runner)
    assert measure(runner, Job("bad", "{"))[0].error == "build"
    assert worker_of(runner) == before


@pytest.mark.parametrize("length", [0, 5, 13])
def test_decisions_of_a_wrong_length(runner, program, length):
    (outcome,) = measure(runner, replace(program, decisions=(1,) * length))
    assert (outcome.error, outcome.message) == ("build", f"{length} decisions given, the sketch has 12")


def test_a_sketch_of_another_task(runner, program, conv):
    (outcome,) = measure(runner, replace(program, task_key=conv.task.key, module_json=conv.task.module_json))
    assert outcome.error == "build" and "sketch does not fit its task" in outcome.message


# --- programs that reach for what is outside ---


@pytest.fixture
def target(tmp_path):
    """A file that everybody might write, where everybody might look."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o777)
    return tmp_path / "reached"


@pytest.mark.parametrize("function", ["creat", "system"])
def test_a_program_writes_no_file(runner, target, function):
    """Of the two, one would by itself, the other by a program that it starts; the same programs do so where they may."""
    text = str(target) if function == "creat" else f"touch {target}"
    (outcome,) = measure(runner, Job("writes", asking(function, text)))
    assert outcome.error == "ok" and not target.exists()


@pytest.mark.parametrize("function", ["creat", "system"])
def test_without_a_sandbox_it_would(monkeypatch, make_setup, target, function):
    monkeypatch.setenv("TCL_SANDBOX", "off")
    text = str(target) if function == "creat" else f"touch {target}"
    with Runner(make_setup(), workers=1) as runner:
        (outcome,) = measure(runner, Job("writes", asking(function, text)))
    assert outcome.error == "ok" and target.exists()


def test_a_program_ends_no_process_outside(runner):
    with subprocess.Popen(["sleep", "60"]) as outside:
        try:
            (outcome,) = measure(runner, Job("signals", signalling(outside.pid)))
            assert outcome.error == "ok"
            with pytest.raises(subprocess.TimeoutExpired):
                outside.wait(0.2)
        finally:
            outside.kill()


# --- a compiler that is broken ---

UNRULY = """
import os, sys
sys.path.insert(0, sys.argv[1])
from tcl_core.measure import worker
from tcl_core.measure.device import HostProgram

class OffByATenth(HostProgram):
    def __call__(self, *arguments):
        super().__call__(*arguments)
        arguments[-1].copyfrom(arguments[-1].numpy() * 1.1)

real = worker.Worker.build
def build(self, number, job):
    if job.task_key == "dies in build":
        os.abort()
    seconds = real(self, number, job)
    if job.task_key == "is wrong":
        self.built[number] = self.built[number]._replace(function=OffByATenth(self.built[number].function.module))
    return seconds

worker.Worker.build = build
sys.argv = sys.argv[1:]
worker.main()
"""


@pytest.fixture(scope="module")
def unruly(make_setup, tmp_path_factory):
    """Two workers whose compiler miscompiles the task ``is wrong`` and crashes on the task ``dies in build``."""
    script, start = tmp_path_factory.mktemp("unruly") / "worker.py", subprocess.Popen
    script.write_text(UNRULY)

    def start_unruly(command, **options):
        return start([command[0], str(script), str(ROOT), *command[-3:]], **options)

    class UnrulyHandle(worker_handle.WorkerHandle):
        def launch(self):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(worker_handle.subprocess, "Popen", start_unruly)
                super().launch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner_module, "WorkerHandle", UnrulyHandle)
        runner = Runner(make_setup(), workers=2)
    with runner:
        yield runner


def test_a_wrong_result(unruly, program):
    wrong = replace(program, task_key="is wrong")
    checked, unchecked, right = measure(unruly, wrong, replace(wrong, check=False), program)
    assert (checked.error, checked.latencies_s, checked.checked) == ("wrong-result", (), False)
    assert checked.message == "output differs from the untuned program's by 0.1 of its magnitude"
    assert unchecked.error == "ok"
    assert ordinary(right) and right.checked


def test_a_death_in_a_build_costs_only_that_program(unruly, program):
    """What its worker had built before is built again; nothing is lost, doubled or out of order."""
    keys = {3: "dies in build", 5: "is wrong"}
    jobs = [replace(program, task_key=keys.get(n, program.task_key)) for n in range(8)]
    outcomes = measure(unruly, *jobs)
    assert [o.error for o in outcomes] == ["ok"] * 3 + ["crash", "ok", "wrong-result", "ok", "ok"]
    assert outcomes[3].message == "the process was killed by SIGABRT" and outcomes[3].build_s == 0
    good = [o for o in outcomes if o.error == "ok"]
    assert all(ordinary(o) and o.checked for o in good) and len({o.latencies_s for o in good}) == 6


def test_overlapping_gives_the_same_outcomes_in_the_same_order(unruly, program, monkeypatch):
    keys, found = [program.task_key, "is wrong", "dies in build", program.task_key], {}
    bad = [Job("bad", "{"), Job("aborts", ABORTS), Job("copies", COPIES)]
    jobs = [*(replace(program, task_key=key) for key in keys), *bad]
    for overlap in (False, True):
        monkeypatch.setattr(unruly, "_overlap", overlap)
        found[overlap] = [(o.error, o.message, o.checked) for o in measure(unruly, *jobs)]
    assert found[False] == found[True]
    assert [error for error, *_ in found[True]] == ["ok", "wrong-result", "crash", "ok", "build", "crash", "ok"]


# --- workers come and go ---


def test_a_worker_that_died_between_two_jobs_is_not_the_next_ones_fault(runner, program):
    """The kernel may kill an idle worker for memory; the program that comes next has not crashed."""
    measure(runner, program)
    os.kill(worker_of(runner), signal.SIGKILL)
    os.waitid(os.P_PID, worker_of(runner), os.WEXITED | os.WNOWAIT)
    assert ordinary(measure(runner, program)[0])


def killing(runner, monkeypatch, times):
    """Kill the worker that has built programs before it times them, so many times."""
    real, left = runner._time_all, [True] * times

    def time_all(worker, batch):
        if left and left.pop():
            os.kill(worker.process.pid, signal.SIGKILL)
            os.waitid(os.P_PID, worker.process.pid, os.WEXITED | os.WNOWAIT)
        return real(worker, batch)

    monkeypatch.setattr(runner, "_time_all", time_all)


def test_programs_whose_worker_is_killed_before_they_are_timed_are_built_again(runner, program, monkeypatch):
    killing(runner, monkeypatch, 1)
    before = worker_of(runner)
    outcomes = measure(runner, program, Job("copies", COPIES))
    assert [o.error for o in outcomes] == ["ok", "ok"] and outcomes[0].checked and worker_of(runner) != before


def test_workers_that_are_killed_again_and_again(runner, program, monkeypatch):
    killing(runner, monkeypatch, 3)
    with pytest.raises(PlatformError, match="^the measuring processes died 3 times before they could time a program; "):
        measure(runner, program)
    assert ordinary(measure(runner, program)[0])  # that was all


def test_a_worker_that_holds_much_memory_is_replaced(runner, program, monkeypatch):
    workers = []
    for limit in (1 << 40, 1 << 40, 1 << 20):
        monkeypatch.setattr(worker_handle, "RECYCLE_BYTES", limit)
        assert ordinary(measure(runner, program)[0])
        workers.append(worker_of(runner))
    assert workers[0] == workers[1] != workers[2] and not psutil.pid_exists(workers[0])

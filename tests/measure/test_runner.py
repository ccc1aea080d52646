from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from measure_programs import ABORTS, CALLS_NOTHING, COPIES, HANGS, TOO_BIG, WRITES_FAR_AWAY

from tcl_core.compat import TVM_VERSION
from tcl_core.errors import PlatformError
from tcl_core.measure import pool
from tcl_core.measure.job import Job, Outcome
from tcl_core.measure.pool import Runner
from tcl_core.programs.sketches import trace_to_json

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runner(make_setup):
    with Runner(make_setup(run_s=2.0)) as runner:
        yield runner


@pytest.fixture
def program(matmul):
    """A valid candidate of the tiny matmul."""
    sketch = matmul.sketches[0]
    decisions = tuple(matmul.space.canonical(sketch, matmul.sample(sketch, 1)[0]).tolist())
    return Job(matmul.task.key, matmul.task.module_json, trace_to_json(sketch.trace), decisions, check=True)


def ordinary(outcome: Outcome) -> bool:
    return outcome.error == "ok" and not outcome.message and 1e-7 < min(outcome.latencies_s) <= max(outcome.latencies_s) < 1


def worker_of(runner: Runner) -> int:
    return runner._process.pid


def test_a_program_is_timed_and_checked(runner, program):
    outcome = runner.measure(program)
    assert ordinary(outcome) and outcome.checked
    assert len(outcome.latencies_s) == 2
    assert 0 < outcome.build_s < 30
    assert runner.tvm_version.split("+")[0] in TVM_VERSION


def test_a_program_that_is_not_checked_says_so(runner, program):
    outcome = runner.measure(Job(program.task_key, program.module_json, program.trace_json, program.decisions))
    assert ordinary(outcome) and not outcome.checked


@pytest.mark.parametrize("name", ["matmul", "conv", "softmax"])
def test_every_sketch_computes_what_the_task_says(runner, tiny_tasks, name):
    tiny = tiny_tasks[name]
    for sketch in tiny.sketches:
        decisions = tuple(tiny.space.canonical(sketch, tiny.sample(sketch, 1, seed=7)[0]).tolist())
        outcome = runner.measure(
            Job(tiny.task.key, tiny.task.module_json, trace_to_json(sketch.trace), decisions, check=True)
        )
        assert ordinary(outcome) and outcome.checked, (sketch.index, outcome)


def test_a_program_far_behind_the_best_is_not_repeated(runner, program):
    far_behind = Job(program.task_key, program.module_json, program.trace_json, program.decisions, best_s=1e-12)
    outcome = runner.measure(far_behind)
    assert outcome.error == "ok" and len(outcome.latencies_s) == 1


@pytest.mark.parametrize(
    ("module_json", "error", "message"),
    [
        (ABORTS, "crash", "the process was killed by SIGABRT"),
        (WRITES_FAR_AWAY, "crash", "the process was killed by SIGSEGV"),
        (CALLS_NOTHING, "crash", "the process was killed by SIGSEGV"),
        (HANGS, "timeout", "not run within 2 s"),
        ("{", "build", "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("{}", "build", None),
    ],
    ids=["abort", "segfault", "unknown-function", "hang", "no-json", "no-module"],
)
def test_a_bad_program_is_an_outcome_and_the_next_one_runs(runner, program, module_json, error, message):
    outcome = runner.measure(Job(f"bad {error}", module_json))
    assert (outcome.error, outcome.latencies_s, outcome.checked) == (error, (), False)
    assert outcome.message == message if message else outcome.message and "\n" not in outcome.message
    assert len(outcome.message) <= 300
    assert ordinary(runner.measure(program))


def test_a_program_that_needs_too_much_memory(make_setup, program):
    """1.6 GB a matrix, under a limit of 3 GiB."""
    with Runner(make_setup(memory_bytes=3 << 30)) as runner:
        outcome = runner.measure(Job("too big", TOO_BIG))
        assert (outcome.error, outcome.message) == ("build", "out of the worker's memory limit")
        assert ordinary(runner.measure(program))


def test_a_failed_build_keeps_its_worker(runner, program):
    runner.measure(program)
    before = worker_of(runner)
    assert runner.measure(Job("bad", "{")).error == "build"
    assert worker_of(runner) == before


@pytest.mark.parametrize("length", [0, 5, 13])
def test_decisions_of_a_wrong_length(runner, program, length):
    outcome = runner.measure(Job(program.task_key, program.module_json, program.trace_json, (1,) * length))
    assert (outcome.error, outcome.message) == ("build", f"{length} decisions given, the sketch has 12")


def test_a_sketch_of_another_task(runner, program, conv):
    outcome = runner.measure(Job(conv.task.key, conv.task.module_json, program.trace_json, program.decisions))
    assert outcome.error == "build" and "sketch does not fit its task" in outcome.message


def test_a_build_that_takes_too_long(make_setup, program):
    with Runner(make_setup(build_s=1e-4)) as runner:
        outcome = runner.measure(program)
        assert (outcome.error, outcome.message) == ("timeout", "not built within 0.0001 s")


def test_a_wrong_result(make_setup, program, tmp_path, monkeypatch):
    """A worker whose compiler is broken: it builds a module that only copies, where a task is scheduled."""
    broken = tmp_path / "broken_worker.py"
    broken.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from tcl_core.measure import worker\n"
        "real = worker.Worker.build\n"
        "def build(self, job):\n"
        "    function = real(self, job)\n"
        "    def off_by_a_tenth(*arguments):\n"
        "        function(*arguments)\n"
        "        arguments[-1].copyfrom(arguments[-1].numpy() * 1.1)\n"
        "    return off_by_a_tenth\n"
        "worker.Worker.build = build\n"
        "sys.argv = sys.argv[-3:]\n"
        "worker.main()\n"
    )
    start = subprocess.Popen
    monkeypatch.setattr(
        pool.subprocess, "Popen", lambda command, **options: start([command[0], str(broken), *command[2:]], **options)
    )
    with Runner(make_setup()) as runner:
        outcome = runner.measure(program)
        assert (outcome.error, outcome.latencies_s) == ("wrong-result", ())
        assert outcome.message == "output differs from the untuned program's by 0.1 of its magnitude"
        unchecked = runner.measure(Job(program.task_key, program.module_json, program.trace_json, program.decisions))
        assert unchecked.error == "ok"


# --- workers come and go ---


def test_a_worker_that_died_between_two_jobs_is_not_the_next_ones_fault(make_setup, program):
    """The kernel may kill an idle worker for memory; the program that comes next has not crashed."""
    with Runner(make_setup()) as runner:
        runner.measure(program)
        os.kill(worker_of(runner), signal.SIGKILL)
        os.waitid(os.P_PID, worker_of(runner), os.WEXITED | os.WNOWAIT)
        assert ordinary(runner.measure(program))


def test_a_worker_is_replaced_after_a_while(make_setup, program, monkeypatch):
    monkeypatch.setattr(pool, "RECYCLE", 2)
    with Runner(make_setup()) as runner:
        workers = []
        for _ in range(4):
            assert ordinary(runner.measure(program))
            workers.append(worker_of(runner))
        assert workers[0] == workers[1] != workers[2] == workers[3]


def test_nothing_is_left_behind(make_setup, program, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    children = {p.pid for p in psutil.Process().children(recursive=True)}
    files = len(os.listdir("/proc/self/fd"))
    with Runner(make_setup(run_s=1.0)) as runner:
        runner.measure(program)
        runner.measure(Job("hangs", HANGS))
        runner.measure(Job("aborts", ABORTS))
        runner.measure(program)
    assert {p.pid for p in psutil.Process().children(recursive=True)} == children
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == files


def test_the_worker_starts_with_the_first_job(make_setup, monkeypatch):
    """A collection whose journal knows everything pays for no process."""
    monkeypatch.setattr(pool.subprocess, "Popen", None)  # calling it would raise
    with Runner(make_setup()) as runner:
        assert runner._process is None and runner.tvm_version == ""


def test_an_exception_ends_the_worker(make_setup):
    with pytest.raises(KeyboardInterrupt), Runner(make_setup()) as runner:
        runner.measure(Job("bad", "{"))
        worker = worker_of(runner)
        raise KeyboardInterrupt
    assert not psutil.pid_exists(worker)


# --- a worker that does not start ---


def with_interpreter(tmp_path, monkeypatch, body):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setattr(pool.sys, "executable", str(script))


def test_an_installation_that_cannot_start_a_worker(make_setup, tmp_path, monkeypatch):
    with_interpreter(tmp_path, monkeypatch, "echo first; echo 'No module named tvm' >&2; exit 3")
    with pytest.raises(PlatformError) as raised, Runner(make_setup()) as runner:
        runner.measure(Job("any", "{"))
    assert str(raised.value) == (
        "the measuring process exited with 3 at its start; its last words: No module named tvm"
    )


def test_a_worker_that_hangs_at_its_start_is_not_left_running(make_setup, tmp_path, monkeypatch):
    with_interpreter(tmp_path, monkeypatch, "exec sleep 300")
    monkeypatch.setattr(pool, "START_S", 0.2)
    children = {p.pid for p in psutil.Process().children()}
    with pytest.raises(PlatformError, match="^the measuring process hung at its start; its last words: none$"):
        Runner(make_setup()).measure(Job("any", "{"))
    left = [p for p in psutil.Process().children() if p.pid not in children]
    for process in left:
        process.kill()
    assert not left


# --- the supervisor's end ---

SUPERVISOR = """
import sys
from tcl_core.measure.job import Job, Limits, Protocol, Setup
from tcl_core.measure.pool import Runner
setup = Setup({"kind": "llvm", "num-cores": 1}, Protocol(), Limits(run_s=300))
with Runner(setup) as runner:
    runner.measure(Job("bad", "{"))
    print(runner._process.pid, flush=True)
    print(runner.measure(Job("hangs", open(sys.argv[1]).read())), flush=True)
"""


@pytest.fixture
def supervisor(tmp_path):
    """A process that waits for a program that hangs, and its worker's id."""
    (tmp_path / "hangs.json").write_text(HANGS)
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path / "hangs.json")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    yield process, psutil.Process(int(process.stdout.readline()))
    process.kill()
    process.communicate()


def test_the_worker_dies_with_a_killed_supervisor(supervisor):
    process, worker = supervisor
    process.send_signal(signal.SIGKILL)
    process.wait()
    psutil.wait_procs([worker], timeout=20)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE


def test_ctrl_c_ends_supervisor_and_worker(supervisor):
    """The terminal sends SIGINT to both; the worker leaves it to the supervisor, which cleans up."""
    process, worker = supervisor
    time.sleep(0.3)
    worker.send_signal(signal.SIGINT)
    assert worker.is_running()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in said
    psutil.wait_procs([worker], timeout=20)
    assert not worker.is_running()


def test_arrays_are_the_same_for_every_program(runner):
    """A copy's output is its input, so the check compares something: two runs of one program agree exactly."""
    assert runner.measure(Job("copies", COPIES, check=True)).checked
    assert np.isfinite(runner.measure(Job("copies", COPIES)).latencies_s).all()

"""A runner's worker processes: they start with the first job, have all cores, and end with the runner whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

import psutil
import pytest
from _bad_programs import ABORTS, HANGS, NEVER_BUILT
from conftest import interruptible

from tcl_core.errors import PlatformError
from tcl_core.measure import worker_handle
from tcl_core.measure.job import Job
from tcl_core.measure.runner import Runner
from tcl_core.platforms import USABLE_CORES
from tests.measure import real_programs
from tests.measure.real_programs import ROOT, measure, ordinary, worker_of

program = real_programs.program


# --- workers come and go ---


def test_nothing_is_left_behind(make_setup, program, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    children = {p.pid for p in psutil.Process().children(recursive=True)}
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    with Runner(make_setup(run_s=2.0), workers=2) as runner:
        outcomes = measure(runner, program, Job("hangs", HANGS), Job("aborts", ABORTS), program)
    assert [o.error for o in outcomes] == ["ok", "timeout", "crash", "ok"]
    assert {p.pid for p in psutil.Process().children(recursive=True)} == children
    assert os.listdir(tmp_path) == []
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (files, threads)


def test_workers_start_with_the_first_job(make_setup, monkeypatch):
    """A collection whose journal knows everything pays for no process."""
    monkeypatch.setattr(worker_handle.subprocess, "Popen", None)  # calling it would raise
    with Runner(make_setup()) as runner:
        assert measure(runner) == []
        assert all(worker.process is None for worker in runner.workers) and runner.tvm_version == ""


@pytest.mark.skipif(len(USABLE_CORES) < 2, reason="one core leaves no choice")
def test_a_worker_has_all_cores_though_its_supervisor_is_bound_to_one(make_setup, program):
    """Libraries bind a process, as OpenMP does under OMP_PROC_BIND; a program whose threads share a core is slow."""
    os.sched_setaffinity(0, {min(USABLE_CORES)})
    with Runner(make_setup(), workers=1) as runner:
        assert ordinary(measure(runner, program)[0])
        assert set(psutil.Process(worker_of(runner)).cpu_affinity()) == USABLE_CORES


def test_an_exception_ends_the_workers(make_setup):
    with pytest.raises(KeyboardInterrupt), Runner(make_setup(), workers=2) as runner:
        measure(runner, Job("bad", "{"), Job("bad", "{"))
        workers = [worker.process.pid for worker in runner.workers]
        raise KeyboardInterrupt
    assert len(workers) == 2 and not any(psutil.pid_exists(worker) for worker in workers)


def test_an_installation_that_cannot_start_a_worker(make_setup, tmp_path, monkeypatch):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'No module named tvm' >&2; exit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(PlatformError, match="exited with 3 at its start; its last words: No module named tvm; run it again, and if"):
        with Runner(make_setup(), workers=2) as runner:
            measure(runner, Job("any", "{"), Job("any", "{"))


# --- the supervisor's end ---

SUPERVISOR = """
import sys
from tcl_core.measure.job import Job, Limits, Protocol, Setup
from tcl_core.measure.runner import Runner
setup = Setup({"kind": "llvm", "num-cores": 1}, Protocol(), Limits(build_s=300, run_s=300))
with Runner(setup, workers=2) as runner:
    list(runner.measure([Job("bad", "{")] * 2))
    print(*(worker.process.pid for worker in runner.workers), flush=True)
    print(list(runner.measure([Job("bad", open(sys.argv[1]).read())] * 2)), flush=True)
"""


@pytest.fixture(params=["build", "run"])
def supervisor(tmp_path, request):
    """A process that waits for programs that never end, its two workers, and the folder of its temporary files."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    (tmp_path / "endless.json").write_text({"build": NEVER_BUILT, "run": HANGS}[request.param])
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(tmp_path / "endless.json")], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}, preexec_fn=interruptible,
    )  # fmt: skip
    yield process, [psutil.Process(int(pid)) for pid in process.stdout.readline().split()], temporary
    process.kill()
    process.communicate()


def ended(workers) -> bool:
    _, alive = psutil.wait_procs(workers, timeout=20)
    return len(workers) == 2 and all(worker.status() == psutil.STATUS_ZOMBIE for worker in alive)


def test_the_workers_die_with_a_killed_supervisor(supervisor):
    process, workers, temporary = supervisor
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert ended(workers) and os.listdir(temporary) == []


def test_ctrl_c_ends_supervisor_and_workers(supervisor):
    """The terminal sends SIGINT to all; the workers leave it to the supervisor, which cleans up."""
    process, workers, temporary = supervisor
    time.sleep(0.3)
    for worker in workers:
        worker.send_signal(signal.SIGINT)
    time.sleep(0.1)
    assert all(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers)
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in complained and said == ""
    assert ended(workers) and os.listdir(temporary) == []

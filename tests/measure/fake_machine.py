"""Workers in memory, which do what a job's key says, and what happens on their machine, in order."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from itertools import count

import pytest

from tcl_core.errors import PlatformError
from tcl_core.measure import runner
from tcl_core.measure.job import Job, Limits, Protocol, Setup, Tracker
from tcl_core.measure.worker_handle import Died, Failed, Late, Stopped
from tcl_core.measure.runner import Runner

CPU, GPU = {"kind": "llvm"}, {"kind": "cuda"}
LIMITS = Limits(build_s=8, run_s=5)
BOARD = Tracker("10.0.0.2", 9190, "board")
BAD = {
    "fails in build": ("build", "ValueError: no"),
    "hangs in build": ("timeout", "not built within 8 s"),
    "dies in build": ("crash", "the process was killed by SIGSEGV"),
    "fails in time": ("run", "ValueError: no"),
    "hangs in time": ("timeout", "not run within 5 s"),
    "dies in time": ("crash", "the process was killed by SIGSEGV"),
}


class Machine:
    """What happens on it, in order, and what goes wrong.

    asked      (worker, action, number, seconds of patience)
    jobs       (worker, action, job's key), without the sentinel's
    bests      of each timing, the latency that it was told to be the task's best
    readings   of the sentinel, by worker or one after the other; 1 s where there is none left
    kills      one answer to "is the worker killed while idle?" for each reading; no where there is none left
    stillborn  workers that die as soon as they are ready
    meeting    action -> where workers wait for each other while they are at it
    releases   times that a worker gave its device to others;  described: what it raises when it should tell of its host
    """

    def __init__(self):
        self.workers, self.asked, self.jobs, self.bests, self.readings, self.kills = [], [], [], [], [], []
        self.worker_readings, self.stillborn, self.meeting, self.releases, self.described = {}, 0, {}, 0, None
        self.times, self.timing = count(1), threading.Lock()

    def actions(self, key):
        """What was done with a program."""
        return [action for _, action, k in self.jobs if k == key]


def told(error):
    """What a worker tells of a remote device, and outlives."""
    error.told = True
    return error


class FakeHandle:
    """A worker whose programs fail, hang or die as the job's key says, e.g. ``hangs in build`` or ``dies in time 2``."""

    def __init__(self, machine, setup):
        self.machine, self.setup, self.held, self.tvm_version = machine, setup, set(), ""
        self.is_alive, self.starts, self.built, self.counts, self.stopped = False, 0, {}, Counter(), threading.Event()
        self.number = len(machine.workers)
        machine.workers.append(self)

    def launch(self):
        if not self.is_alive:
            self.is_alive, self.built = True, {}
            self.starts += 1

    def wait_until_ready(self):
        self.tvm_version = "0.0"
        if self.machine.stillborn:
            self.machine.stillborn -= 1
            self.stop()

    def stop(self):
        self.stopped.set()
        self.is_alive = False
        self.held.clear()

    close = stop

    def ask(self, timeout_s, action, *arguments):
        self.machine.asked.append((self.number, action, arguments[0] if arguments else None, timeout_s))
        if not self.is_alive:
            raise Stopped
        try:
            return getattr(self, f"_{action}")(*arguments)
        except (Died, Late) as error:
            if not getattr(error, "told", False):
                self.stop()
            raise

    def _suffer(self, action, job):
        self.machine.jobs.append((self.number, action, job.task_key))
        self.counts[action, job.task_key] += 1
        if action in self.machine.meeting:
            self.machine.meeting[action].wait()
        how, _, when = job.task_key.partition(" in ")
        if how == "is stopped" and when == action:
            self.stopped.wait(20)
            raise Stopped
        if when in (action, f"{action} {self.counts[action, job.task_key]}"):
            raise {
                "fails": Failed("ValueError: no"), "wants memory": Failed("CUDA: out of memory"), "hangs": Late(), "dies": Died("the process was killed by SIGSEGV"),
                "is interrupted": KeyboardInterrupt(), "has no device": PlatformError("no device"),
                "crashes the device": told(Died("the process that ran it on the device died 2 times")),
                "is late": told(Late()),
            }[how]  # fmt: skip

    def _build(self, number, job):
        self._suffer("build", job)
        self.built[number] = job
        return 0.5

    def _time(self, number, best_s):
        job = self.built[number]
        self._suffer("time", job)
        self.machine.bests.append(best_s)
        alone = self.machine.timing.acquire(blocking=False)
        assert alone or "time" in self.machine.meeting, "two programs are timed at once"
        if alone:
            time.sleep(1e-4)  # so that another one would be noticed
            self.machine.timing.release()
        return float(next(self.machine.times))

    def _reference(self, number):
        if self.built[number].task_key.endswith("in reference"):
            self._suffer("reference", self.built[number])

    def _check(self, number):
        self._suffer("check", self.built[number])
        return 0.5 if self.built[number].task_key.startswith("is wrong") else 1e-6

    def _drop(self, number):
        del self.built[number]

    def _release(self):
        self.machine.releases += 1

    def _describe(self):
        if self.machine.described:
            raise self.machine.described
        return {"host": "rpc board: its CPU", "hardware": {}}

    def _sentinel(self):
        if self.machine.kills and self.machine.kills.pop(0):
            raise Died("the process was killed by SIGKILL")
        readings = self.machine.worker_readings.get(self.number, self.machine.readings)
        reading = readings.pop(0) if readings else 1.0
        if isinstance(reading, Exception):
            raise reading
        return reading


@pytest.fixture
def machine(monkeypatch):
    machine = Machine()
    monkeypatch.setattr(runner, "WorkerHandle", lambda setup: FakeHandle(machine, setup))
    return machine


@pytest.fixture
def measured(machine):
    """Measure jobs of these keys on new workers of the machine."""

    def measure(*keys, target=CPU, tracker=None, check=False, repeats=1, **options):
        options = {"workers": 1} | options
        protocol = Protocol(repeats=repeats, max_repeats=repeats, enough_s=math.inf, early_stop_factor=math.inf)
        with Runner(Setup(target, protocol, limits=LIMITS, tracker=tracker), **options) as runner:
            return list(runner.measure(Job(key, "{}", check=check) for key in keys))

    return measure


@pytest.fixture
def batches_of(monkeypatch):
    """Say how many programs a worker builds before they are timed."""
    return lambda per_worker: monkeypatch.setattr(runner, "PER_WORKER", per_worker)


def errors(outcomes):
    return [outcome.error for outcome in outcomes]


def latencies(outcomes):
    """The numbers of the timings that count; the machine numbers them from 1."""
    return [int(outcome.latencies_s[0]) for outcome in outcomes]

"""The supervisor on workers in memory, which do what a job's key says: what becomes of each program, and in which order."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from dataclasses import replace
from itertools import count

import pytest

from tcl_core.errors import PlatformError
from tcl_core.measure import pool
from tcl_core.measure.job import Job, Limits, Setup, Tracker
from tcl_core.measure.worker_handle import Died, Failed, Late, Stopped
from tcl_core.measure.pool import FUTILE, PER_WORKER, RETRIES, Runner
from tcl_core.measure.remote import answer_s

CPU, GPU = {"kind": "llvm"}, {"kind": "cuda"}
LIMITS = Limits(build_s=8, run_s=5)
ACTIONS = ("build", "time", "check")


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


class FakeLane:
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
                "fails": Failed("ValueError: no"), "hangs": Late(), "dies": Died("the process was killed by SIGSEGV"),
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
        return [float(next(self.machine.times))] * 3

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
    monkeypatch.setattr(pool, "WorkerHandle", lambda setup: FakeLane(machine, setup))
    return machine


@pytest.fixture
def measured(machine):
    """Measure jobs of these keys on new workers of the machine."""

    def measure(*keys, target=CPU, tracker=None, check=False, **options):
        options = {"workers": 1} | options
        with Runner(Setup(target, limits=LIMITS, tracker=tracker), **options) as runner:
            return list(runner.measure(Job(key, "{}", check=check) for key in keys))

    return measure


def batches_of(monkeypatch, per_worker):
    monkeypatch.setattr(pool, "PER_WORKER", per_worker)


def errors(outcomes):
    return [outcome.error for outcome in outcomes]


# --- every program has its outcome, in order ---

BAD = {
    "fails in build": ("build", "ValueError: no"),
    "hangs in build": ("timeout", "not built within 8 s"),
    "dies in build": ("crash", "the process was killed by SIGSEGV"),
    "fails in time": ("run", "ValueError: no"),
    "hangs in time": ("timeout", "not run within 5 s"),
    "dies in time": ("crash", "the process was killed by SIGSEGV"),
}


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("number", [0, 1, 16, 33, 170])
def test_nothing_is_lost_doubled_or_out_of_order(measured, machine, workers, number, overlap):
    """Each third program is bad in its own way; every death takes with it what its worker had built.

    With overlap all of them are checked too.
    """
    bad = list(BAD)
    keys = [f"good {n}" if n % 3 else bad[n // 3 % 6] for n in range(number)]
    outcomes = measured(*keys, workers=workers, overlap=overlap, check=overlap)
    assert [(o.error, o.message) for o in outcomes] == [BAD.get(key, ("ok", "")) for key in keys]
    good = [o for o in outcomes if o.error == "ok"]
    assert len({o.latencies_s for o in good}) == len(good) == sum(key.startswith("good") for key in keys)
    assert all(len(o.latencies_s) == 3 and o.checked == overlap and not o.disturbed and o.build_s == 0.5 for o in good)
    assert all(o.latencies_s == () and not o.checked for o in outcomes if o.error != "ok")
    assert all(not worker.is_alive for worker in machine.workers)


def test_seconds_of_the_build(measured):
    assert [o.build_s for o in measured("a", "fails in build", "fails in time", "dies in time")] == [0.5, 0.0, 0.5, 0.5]


def test_jobs_are_taken_batch_by_batch(machine, monkeypatch):
    """So that a caller's jobs can know what came of the batches before."""
    batches_of(monkeypatch, 3)
    taken = []

    def jobs():
        for n in range(14):
            taken.append(n)
            yield Job(str(n), "{}")

    with Runner(Setup(CPU), workers=2) as runner:
        outcomes = runner.measure(jobs())
        assert taken == [] and machine.workers[0].starts == 0
        seen = [len(taken) for _ in outcomes]
    assert seen == [6] * 6 + [12] * 6 + [14] * 2


def test_only_as_many_workers_as_there_are_programs(measured, machine):
    measured("a", "b", workers=5)
    assert [worker.starts for worker in machine.workers] == [1, 1, 0, 0, 0]


def test_workers_stay_for_the_next_batch(measured, machine):
    measured(*"abcdefgh" * 10, workers=2)
    assert [worker.starts for worker in machine.workers] == [1, 1]


def test_programs_are_dropped_when_they_are_done(measured, machine):
    measured("a", "b", "c", check=True)
    assert machine.workers[0].built == {}


def test_patience(measured, machine):
    """Each step has its own; the first reading of the sentinel builds it, and the check builds the untuned program."""
    measured("a", check=True)
    patience = {action: timeout_s for _, action, _, timeout_s in machine.asked}
    assert patience == {"build": 8, "time": 5, "check": 8 + 2 * 5, "sentinel": 8 + 5, "drop": 5}


# --- what is built and timed when ---


def test_nothing_is_built_while_programs_are_timed(measured, machine):
    """Both would use the same cores."""
    measured(*[str(n) for n in range(2 * PER_WORKER)], workers=2)
    order = [action for _, action, *_ in machine.asked if action in ("build", "time")]
    assert order == ["build"] * (2 * PER_WORKER) + ["time"] * (2 * PER_WORKER)


@pytest.mark.parametrize(
    ("options", "overlaps"),
    [
        ({}, False),
        ({"overlap": True}, True),
        ({"target": GPU}, True),
        ({"target": GPU, "overlap": False}, False),
        ({"tracker": Tracker("localhost", 9190, "board")}, True),
    ],
)
def test_where_programs_run_elsewhere_workers_build_meanwhile(measured, machine, options, overlaps):
    """A worker then builds half a batch and times it before it builds the rest."""
    measured(*[str(n) for n in range(PER_WORKER)], **options)
    order = [action for _, action, *_ in machine.asked if action in ("build", "time")]
    half = PER_WORKER // 2
    expected = (["build"] * half + ["time"] * half) * 2 if overlaps else ["build"] * PER_WORKER + ["time"] * PER_WORKER
    assert order == expected


def test_two_boards_run_two_programs_at_once(measured, machine):
    """Each waits for the other; on one device that would never end."""
    machine.meeting["time"] = threading.Barrier(2, timeout=20)
    keys = [str(n) for n in range(2 * (PER_WORKER // 2))]
    outcomes = measured(*keys, workers=2, tracker=Tracker("localhost", 9190, "board"))
    assert errors(outcomes) == ["ok"] * len(keys)


# --- the sentinel ---


def latencies(outcomes):
    """The numbers of the timings that count; the machine numbers them from 1."""
    return [int(outcome.latencies_s[0]) for outcome in outcomes]


@pytest.mark.parametrize(
    ("readings", "counted", "disturbed"),
    [
        ([1, 1, 1, 1], [1, 2, 3, 4], False),
        ([1, 1, 1.15, 1.1], [1, 2, 3, 4], False),  # within the tolerance
        ([1, 1, 2, 1, 1, 1], [1, 2, 5, 6], False),  # disturbed before
        ([1, 1, 1, 2, 1, 1], [1, 2, 5, 6], False),  # disturbed after
        ([1, 1, 1, 2, 2, 1, 1, 1], [1, 2, 7, 8], False),  # twice
        ([1, 1, 2, 2, 2, 2, 2, 2], [1, 2, 7, 8], True),  # the last timing stands
        ([1, 1, 2, 2, 2, 2, 1, 2, 1, 1], [1, 2, 7, 8], True),
    ],
)
def test_a_disturbed_batch_is_timed_again_and_then_marked(measured, machine, monkeypatch, readings, counted, disturbed):
    """Two batches of two programs: the first is quiet."""
    batches_of(monkeypatch, 2)
    machine.readings = list(readings)
    outcomes = measured("a", "b", "c", "d", check=True)
    assert latencies(outcomes) == counted
    assert all(o.error == "ok" and o.checked for o in outcomes)
    assert [o.disturbed for o in outcomes] == [False, False, disturbed, disturbed]
    assert machine.actions("c") == ["build"] + ["time"] * ((counted[2] - 1) // 2) + ["check"]
    assert len([1 for _, action, *_ in machine.asked if action == "sentinel"]) == min(len(readings), 2 * (2 + RETRIES))


def test_the_batch_after_a_disturbed_one_is_judged_anew(measured, machine, monkeypatch):
    batches_of(monkeypatch, 1)
    machine.readings = [1, 1, *[2] * 6, 1, 1]
    assert [o.disturbed for o in measured("a", "b", "c")] == [False, True, False]


def test_all_lanes_of_a_machine_share_one_watch(measured, machine, monkeypatch):
    """They are timed on the same cores: what disturbs one worker's reading is seen by the level of the other."""
    batches_of(monkeypatch, 1)
    machine.meeting["build"] = threading.Barrier(2, timeout=20)  # so that each worker builds one
    machine.worker_readings = {0: [1.0] * 9, 1: [3.0] * 9}
    assert [o.disturbed for o in measured("a", "b", workers=2)] == [False, True]


def test_each_board_has_a_watch_of_its_own(measured, machine):
    """A slower board is not a disturbed one."""
    machine.meeting["time"] = threading.Barrier(2, timeout=20)
    machine.worker_readings = {0: [1.0] * 9, 1: [3.0] * 9}
    outcomes = measured(*[str(n) for n in range(PER_WORKER)], workers=2, tracker=Tracker("localhost", 9190, "board"))
    assert not any(o.disturbed for o in outcomes)


def test_a_device_that_cannot_run_the_sentinel(measured, machine):
    """Its programs count as timed undisturbed, since nobody can tell."""
    machine.readings = [Failed("no such instruction")] * 2
    outcomes = measured("a", "b", "c")
    assert [(o.error, o.disturbed) for o in outcomes] == [("ok", False)] * 3 and latencies(outcomes) == [1, 2, 3]


def test_a_program_that_dies_when_it_is_timed_again(measured, machine, monkeypatch):
    """The others keep their first timing, which was disturbed, though the reading just before the death was quiet."""
    batches_of(monkeypatch, 3)
    machine.readings = [1, 1, 1, 2, 1]
    outcomes = measured("a", "b", "c", "dies in time 2", "d", "e")
    assert errors(outcomes) == ["ok", "ok", "ok", "crash", "ok", "ok"]
    assert [o.disturbed for o in outcomes] == [False] * 4 + [True] * 2
    assert machine.actions("d") == ["build", "time"]


def test_a_program_that_fails_when_it_is_timed_again_has_failed(measured, machine, monkeypatch):
    batches_of(monkeypatch, 2)
    machine.readings = [1, 1, 1, 2, 1, 1]
    outcomes = measured("a", "b", "fails in time 2", "c")
    assert errors(outcomes) == ["ok", "ok", "run", "ok"] and outcomes[2].latencies_s == ()
    assert outcomes[3].latencies_s == (5.0,) * 3 and not outcomes[3].disturbed


def test_a_program_that_failed_is_not_timed_again(measured, machine, monkeypatch):
    batches_of(monkeypatch, 2)
    machine.readings = [1, 1, 1, 2, 1, 1]
    outcomes = measured("a", "b", "fails in time 1", "c")
    assert errors(outcomes) == ["ok", "ok", "run", "ok"]
    assert [machine.actions(key) for key in ("fails in time 1", "c")] == [["build", "time"], ["build", "time", "time"]]


def test_a_worker_that_has_built_nothing_reads_no_sentinel(measured, machine):
    assert errors(measured("fails in build", "fails in build")) == ["build"] * 2
    assert {action for _, action, *_ in machine.asked} == {"build"}


# --- failures on a machine that is not quiet ---


@pytest.mark.parametrize(("readings", "attempts", "disturbed"), [([1], 1, False), ([2, 2], 2, True), ([2, 1], 2, False)])
def test_a_program_that_hangs_costs_its_limit_twice_only_where_the_machine_may_be_why(
    measured, machine, monkeypatch, readings, attempts, disturbed
):
    batches_of(monkeypatch, 1)
    machine.readings = [1, 1, *readings]
    _, outcome = measured("a", "hangs in time")
    assert (outcome.error, outcome.message, outcome.disturbed) == ("timeout", "not run within 5 s", disturbed)
    assert machine.actions("hangs in time") == ["build", "time"] * attempts


def test_a_program_that_the_machine_made_late_is_measured(measured, machine, monkeypatch):
    batches_of(monkeypatch, 1)
    machine.readings = [1, 1, 2, 1, 1]
    _, outcome = measured("a", "hangs in time 1")
    assert (outcome.error, outcome.disturbed) == ("ok", False)
    assert machine.actions("hangs in time 1") == ["build", "time"] * 2


@pytest.mark.parametrize("reading", [1, 2])
@pytest.mark.parametrize("key", ["fails in time", "dies in time"])
def test_what_fails_after_a_slow_reading_is_disturbed(measured, machine, monkeypatch, key, reading):
    """So that the next collection tries it again."""
    batches_of(monkeypatch, 1)
    machine.readings = [1, 1, reading]
    _, outcome = measured("a", key)
    assert (outcome.error, outcome.disturbed) == (BAD[key][0], reading == 2)
    assert machine.actions(key) == ["build", "time"]


@pytest.mark.parametrize(("target", "reading", "attempts"), [(CPU, 1, 1), (CPU, 2, 2), (GPU, 2, 1)])
def test_a_build_that_is_late_after_a_slow_reading(measured, machine, monkeypatch, target, reading, attempts):
    """The reading is of the batch before; a slow GPU tells nothing of the CPU that builds for it."""
    batches_of(monkeypatch, 1)
    machine.readings = [1, reading] * (1 + RETRIES)
    _, outcome = measured("a", "hangs in build", target=target)
    assert (outcome.error, outcome.message, outcome.disturbed) == ("timeout", "not built within 8 s", attempts == 2)
    assert machine.actions("hangs in build") == ["build"] * attempts


def test_programs_that_are_late_one_after_the_other_are_no_dying_workers(measured, machine, monkeypatch):
    """Each takes its worker with it, and what that had built; but each only once."""
    batches_of(monkeypatch, 3)
    machine.readings = [1, 2] * (1 + RETRIES)
    late = [f"hangs in build {attempt}" for attempt in range(FUTILE, 0, -1)]
    assert errors(measured("a", "b", "c", *late)) == ["ok"] * 6
    assert machine.workers[0].starts == 1 + FUTILE


# --- a worker that dies ---


def test_a_death_in_a_build_costs_only_that_program(measured, machine):
    outcomes = measured("a", "b", "dies in build", "c")
    assert errors(outcomes) == ["ok", "ok", "crash", "ok"]
    assert [machine.actions(k) for k in "abc"] == [["build", "build", "time"]] * 2 + [["build", "time"]]
    assert machine.actions("dies in build") == ["build"] and machine.workers[0].starts == 2


@pytest.mark.parametrize("key", ["dies in time", "hangs in time"])
def test_a_death_while_timing_costs_only_that_program(measured, machine, key):
    """What was timed before it stands; what was not is built again."""
    outcomes = measured("a", key, "b", "c")
    assert errors(outcomes) == ["ok", BAD[key][0], "ok", "ok"]
    assert [machine.actions(k) for k in "abc"] == [["build", "time"]] + [["build", "build", "time"]] * 2
    assert machine.actions(key) == ["build", "time"] and machine.workers[0].starts == 2


def test_a_death_leaves_the_other_workers_alone(measured, machine, monkeypatch):
    """The other one takes over what is left of the batch; the next one finds both."""
    batches_of(monkeypatch, 4)
    outcomes = measured("dies in build", *"abcdefghijk", workers=2)
    assert errors(outcomes) == ["crash"] + ["ok"] * 11
    assert sorted(worker.starts for worker in machine.workers) == [1, 2]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_is_killed_while_idle_blames_nobody(measured, machine, workers):
    """The kernel may kill it for memory between two steps: what it had built is built again."""
    machine.kills = [True]
    outcomes = measured("a", "b", "c", "d", workers=workers)
    assert errors(outcomes) == ["ok"] * 4 and len(set(latencies(outcomes))) == 4
    assert sorted(worker.starts for worker in machine.workers) == [1, 2][-workers:]
    assert len([1 for _, action, _ in machine.jobs if action == "time"]) == 4


@pytest.mark.parametrize("check", [False, True])
def test_a_worker_that_dies_after_the_timings_takes_none_with_it(measured, machine, check):
    """No program is to blame, so nothing tells that it would not happen again: they stand, unchecked."""
    machine.kills = [False, True]
    outcomes = measured("a", "b", check=check)
    assert [(o.error, o.checked, o.build_s) for o in outcomes] == [("ok", False, 0.5)] * 2
    assert [machine.actions(k) for k in "ab"] == [["build", "time"]] * 2


@pytest.mark.parametrize("key", ["dies in time", "hangs in time", "dies in check", "hangs in check"])
def test_a_death_saves_no_program_from_its_check(measured, machine, key):
    """What should be compared and cannot is measured again, or a wrong program would pass for a right one."""
    outcomes = measured("is wrong", "a", key, "is wrong too", "b", check=True)
    wrong, right = ("wrong-result", False), ("ok", True)
    assert [(o.error, o.checked) for o in outcomes[:2] + outcomes[3:]] == [wrong, right, wrong, right]


def test_what_was_checked_stays_checked(measured, machine):
    """The first is checked in the second round; in the third the worker is killed, and the last one stands unchecked."""
    machine.kills = [False, False, False, True]
    outcomes = measured("a", "dies in time", "dies in check", "b", check=True)
    assert [(o.error, o.checked) for o in outcomes] == [("ok", True), ("crash", False), ("crash", False), ("ok", False)]


SAID = (
    "the measuring processes died 3 times before they could time a program; "
    "something else on this machine kills them: look at its memory and at the system log"
)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_are_killed_again_and_again(measured, machine, workers):
    machine.kills = [True] * 99
    machine.meeting["build"] = threading.Barrier(workers, timeout=20)  # so that each worker builds equally many
    with pytest.raises(PlatformError) as raised:
        measured("a", "b", "c", "d", workers=workers)
    assert str(raised.value) == SAID and [worker.starts for worker in machine.workers] == [FUTILE] * workers
    assert not any(worker.is_alive for worker in machine.workers)


def test_what_was_measured_before_is_kept(machine, monkeypatch):
    """Batches before, and of the last one what comes before a program without an outcome."""
    batches_of(monkeypatch, 4)
    machine.kills = [False, False, False, *[True] * FUTILE]
    jobs = [Job(key, "{}") for key in ("a", "b", "fails in build", "c", "d", "dies in time", "e", "f")]
    found = []
    with Runner(Setup(CPU), workers=1) as runner, pytest.raises(PlatformError, match="^" + SAID):
        for outcome in runner.measure(jobs):
            found.append(outcome)
    assert errors(found) == ["ok", "ok", "build", "ok", "ok", "crash"]


@pytest.mark.parametrize(("stillborn", "ends_well"), [(2, True), (99, False)])
def test_workers_that_die_as_soon_as_they_are_ready(measured, machine, stillborn, ends_well):
    """Then there is no worker to give a program to."""
    machine.stillborn = stillborn
    if ends_well:
        assert errors(measured("a", "b")) == ["ok"] * 2
    else:
        with pytest.raises(PlatformError, match="^" + SAID):
            measured("a", "b")


def test_only_deaths_in_a_row_are_too_many(measured, machine, monkeypatch):
    """Two in each batch are many, but the session goes on."""
    batches_of(monkeypatch, 2)
    machine.kills = [True, True, False, False] * 5
    assert errors(measured(*"abcdefghij")) == ["ok"] * 10


# --- remote devices ---

BOARD = Tracker("10.0.0.2", 9190, "board")


def test_what_a_device_tells_ends_the_program_and_not_the_worker(measured, machine):
    outcomes = measured("a", "crashes the device in time", "is late in time", "b", tracker=BOARD)
    assert [(o.error, o.message) for o in outcomes] == [
        ("ok", ""), ("crash", "the process that ran it on the device died 2 times"), ("timeout", "not run within 5 s"), ("ok", ""),
    ]  # fmt: skip
    assert machine.workers[0].starts == 1


@pytest.mark.parametrize("key", ["hangs in time 1", "dies in time 1", "hangs in check 1", "dies in check 1"])
def test_a_device_that_falls_silent_blames_nobody(measured, machine, key):
    """Nor does the end of a worker that runs no program itself: what was timed stands, another device takes the rest."""
    outcomes = measured(key, "a", "b", tracker=BOARD, check=True)
    assert errors(outcomes) == ["ok"] * 3 and [o.checked for o in outcomes] == ["check" not in key, True, True]


def test_a_build_for_a_device_may_fail_like_any_other(measured):
    outcomes = measured("hangs in build", "dies in build", "a", tracker=BOARD)
    assert errors(outcomes) == ["timeout", "crash", "ok"]


def test_devices_that_stay_silent(measured):
    with pytest.raises(PlatformError) as raised:
        measured("hangs in time", tracker=BOARD)
    assert str(raised.value) == (
        f"the devices of key 'board' at the RPC tracker 10.0.0.2:9190 fell silent {FUTILE} times before they could time a "
        "program; look at their network, and start their servers anew"
    )


def until_no_device(runner, *keys):
    """What was measured when a worker said that it can have none."""
    found = []
    with runner, pytest.raises(PlatformError, match="^no device$"):
        for outcome in runner.measure(Job(key, "{}") for key in keys):
            found.append(outcome)
    return errors(found)


def test_without_a_device_what_was_measured_is_kept(machine, monkeypatch):
    batches_of(monkeypatch, 2)
    runner = Runner(Setup(CPU, tracker=BOARD), workers=1)
    assert until_no_device(runner, "a", "fails in time", "b", "has no device in time", "c") == ["ok", "run", "ok"]


def test_a_build_that_is_stopped_for_want_of_a_device_is_no_crash(machine, monkeypatch):
    batches_of(monkeypatch, 2)
    runner = Runner(Setup(CPU, tracker=BOARD), workers=2)
    assert until_no_device(runner, "is stopped in build", "has no device in time") == []


def test_a_device_is_given_to_others_while_its_worker_builds(measured, machine):
    measured(*[str(n) for n in range(PER_WORKER)], tracker=BOARD)
    order = [action for _, action, *_ in machine.asked if action in ("build", "release")]
    half = ["build"] * (PER_WORKER // 2)
    assert order == [*half, "release", *half, "release"] and machine.releases == 2


def test_patience_with_devices(measured, machine):
    """A device needs time beyond the program's own; the build is here."""
    measured("a", check=True, tracker=BOARD)
    patience = {action: timeout_s for _, action, _, timeout_s in machine.asked}
    more = answer_s(Setup(CPU, limits=LIMITS, tracker=BOARD))
    assert patience == {
        "build": 8, "time": 5 + more, "check": 18 + more, "sentinel": 13 + more, "drop": 5 + more, "release": more,
    }  # fmt: skip


def test_what_a_device_tells_of_its_host(machine):
    with Runner(Setup(CPU, limits=LIMITS, tracker=BOARD), workers=1) as runner:
        assert runner.describe() == {"host": "rpc board: its CPU", "hardware": {}}


@pytest.mark.parametrize(
    "error, why", [(Late(), "too late"), (Died("the process was killed by SIGKILL"), "the process was killed by SIGKILL")]
)
def test_a_device_that_does_not_tell(machine, error, why):
    machine.described = error
    with Runner(Setup(CPU, limits=LIMITS, tracker=BOARD), workers=1) as runner, pytest.raises(PlatformError) as raised:
        runner.describe()
    assert str(raised.value) == (f"a device of key 'board' at the RPC tracker 10.0.0.2:9190 does not answer ({why}); start it anew")


@pytest.mark.parametrize(("cpus", "devices", "workers"), [(2, 5, 5), (2, 1, 2), (64, 1, 4), (64, 5, 20), (64, 0, 4), (1, 0, 1)])
def test_workers_for_devices(machine, monkeypatch, cpus, devices, workers):
    """One for each, however few CPUs there are; and few enough that none waits too long for its turn."""
    monkeypatch.setattr(pool, "threads", lambda: cpus)
    monkeypatch.setattr(pool, "count_devices", lambda tracker: devices if tracker == BOARD else 99)
    assert len(Runner(Setup(CPU, tracker=BOARD)).workers) == workers
    assert len(Runner(Setup(CPU)).workers) == cpus and len(Runner(Setup(CPU, tracker=BOARD), workers=1).workers) == 1


# --- early stop ---


def test_each_timing_knows_the_best_before_it(machine):
    """The machine's n-th timing takes n seconds; the first task's best is given, the second's is not."""
    given = [("one", 0.5), ("one", 9.0), ("two", math.inf), ("two", math.inf), ("one", math.inf)]
    jobs = [Job(key, "{}", best_s=best_s) for key, best_s in given]
    with Runner(Setup(CPU), workers=1) as runner:
        list(runner.measure(jobs))
        list(runner.measure([Job("two", "{}"), Job("two", "{}", best_s=2.5)]))
    assert machine.bests == [0.5, 1.0, math.inf, 3.0, 1.0, 3.0, 2.5]


def test_a_wrong_program_sets_no_mark_for_others(machine):
    """It may be fast because it leaves something out."""
    with Runner(Setup(CPU), workers=1) as runner:
        for check in (True, False, False):
            list(runner.measure([Job("is wrong", "{}", check=check)]))
    assert machine.bests == [math.inf, math.inf, 2.0]


def test_a_program_that_is_checked_sets_its_mark_after_the_check(machine):
    """Those of the same batch must not be measured against one that may be wrong."""
    jobs = [Job(key, "{}", check=check) for key in ("is wrong", "is right") for check in (True, False)]
    with Runner(Setup(CPU), workers=1) as runner:
        list(runner.measure(jobs))
        list(runner.measure([Job("is wrong", "{}"), Job("is right", "{}")]))
    assert machine.bests == [math.inf] * 4 + [2.0, 3.0]


def test_a_failure_sets_no_mark_for_others(machine):
    with Runner(Setup(CPU), workers=1) as runner:
        list(runner.measure([Job("fails in time 1", "{}")] * 3))
    assert machine.bests == [math.inf, 1.0]


# --- checks ---


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("is wrong", "wrong-result", "output differs from the untuned program's by 0.5 of its magnitude"),
        ("fails in check", "run", "ValueError: no"),
        ("dies in check", "crash", "the process was killed by SIGSEGV"),
        ("hangs in check", "ok", ""),  # the untuned program may be too slow
        ("is right", "ok", ""),
    ],
)
def test_what_a_check_finds(measured, machine, key, error, message):
    before, outcome, after = measured("a", key, "b", check=True)
    assert (outcome.error, outcome.message, outcome.checked) == (error, message, key == "is right")
    assert bool(outcome.latencies_s) == (error == "ok") and outcome.build_s == 0.5
    assert before.checked and after.checked
    assert machine.actions(key) == ["build", "time", "check"]


def test_programs_are_checked_only_where_it_is_asked(machine):
    with Runner(Setup(CPU), workers=1) as runner:
        outcomes = list(runner.measure([Job("a", "{}"), replace(Job("b", "{}"), check=True), Job("is wrong", "{}")]))
    assert [(o.error, o.checked) for o in outcomes] == [("ok", False), ("ok", True), ("ok", False)]
    assert [key for _, action, key in machine.jobs if action == "check"] == ["b"]


# --- the supervisor's end ---


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("action", ACTIONS)
def test_an_interrupt_ends_all_workers(measured, machine, action, overlap):
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        measured("a", f"is interrupted in {action}", "b", "c", workers=2, overlap=overlap, check=True)
    assert [worker.starts for worker in machine.workers] == [1, 1]
    assert not any(worker.is_alive for worker in machine.workers) and threading.active_count() == threads

"""The supervisor on workers in memory: every program has its outcome, in order; marks, checks and interrupts."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

import pytest

from tcl_core.errors import PlatformError
from tcl_core.measure.job import Job, Protocol, Setup, Tracker
from tcl_core.measure.runner import PER_WORKER, Runner, _batch_size
from tcl_core.measure.worker_handle import Died, Failed, Late
from tests.measure import fake_machine
from tests.measure.fake_machine import BAD, BOARD, CPU, GPU, errors

machine, measured, batches_of = fake_machine.machine, fake_machine.measured, fake_machine.batches_of
ACTIONS = ("build", "time", "check")


# --- every program has its outcome, in order ---


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
    assert all(len(o.latencies_s) == 1 and o.checked == overlap and not o.disturbed and o.build_s == 0.5 for o in good)
    assert all(o.latencies_s == () and not o.checked for o in outcomes if o.error != "ok")
    assert all(not worker.is_alive for worker in machine.workers)


def test_seconds_of_the_build(measured):
    assert [o.build_s for o in measured("a", "fails in build", "fails in time", "dies in time")] == [0.5, 0.0, 0.5, 0.5]


def test_jobs_are_taken_batch_by_batch(machine, batches_of):
    """So that a caller's jobs can know what came of the batches before."""
    batches_of(3)
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
    """Each step has its own; the first reading of the sentinel builds it, and the reference is the untuned program, which is built too."""
    measured("a", check=True)
    patience = {action: timeout_s for _, action, _, timeout_s in machine.asked}
    assert patience == {"build": 8, "time": 5, "reference": 8 + 5, "check": 2 * 5, "sentinel": 8 + 5, "drop": 5}


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


def test_a_gpu_without_memory_is_no_program_s_fault(measured):
    """Others of the machine may hold it: whoever measures again what was disturbed does so."""
    for target, disturbed in ((GPU, True), (CPU, False)):
        outcomes = measured("a", "wants memory in build", "wants memory in time", target=target)
        assert [(o.error, o.disturbed) for o in outcomes] == [("ok", False), ("build", disturbed), ("run", disturbed)]


def test_two_boards_run_two_programs_at_once(measured, machine):
    """Each waits for the other; on one device that would never end."""
    machine.meeting["time"] = threading.Barrier(2, timeout=20)
    keys = [str(n) for n in range(2 * (PER_WORKER // 2))]
    outcomes = measured(*keys, workers=2, tracker=Tracker("localhost", 9190, "board"))
    assert errors(outcomes) == ["ok"] * len(keys)


def test_workers_check_side_by_side_once_all_is_timed(measured, machine):
    """Each waits for the other, with its builds too, so that both have as many programs."""
    machine.meeting |= {action: threading.Barrier(2, timeout=20) for action in ("build", "check")}
    outcomes = measured(*[str(n) for n in range(2 * PER_WORKER)], workers=2, check=True)
    assert errors(outcomes) == ["ok"] * len(outcomes) and all(outcome.checked for outcome in outcomes)
    order = [action for _, action, *_ in machine.asked if action in ("time", "check")]
    assert order == ["time"] * (2 * PER_WORKER) + ["check"] * (2 * PER_WORKER)


def test_a_task_whose_untuned_program_is_too_slow_to_compare_with_is_asked_once(measured, machine):
    """Each check that is late costs the worker, and with it all that it holds."""
    outcomes = measured("hangs in check", "hangs in check", "b", check=True)
    assert [(o.error, o.checked) for o in outcomes] == [("ok", False), ("ok", False), ("ok", True)]
    assert machine.actions("hangs in check").count("check") == 1


# --- repeats ---


def test_repeats_are_made_by_turns(measured, machine):
    """What slows the machine for a moment slows one repeat of several programs, not all repeats of one."""
    outcomes = measured("a", "b", "c", repeats=3)
    assert [key for _, action, key in machine.jobs if action == "time"] == [*"abc"] * 3
    assert [outcome.latencies_s for outcome in outcomes] == [(1.0, 4.0, 7.0), (2.0, 5.0, 8.0), (3.0, 6.0, 9.0)]


def test_a_program_that_needs_no_more_repeats_waits_for_nobody(machine):
    """The second has lasted long enough after two seconds; the machine's n-th repeat takes n."""
    protocol = Protocol(repeats=3, max_repeats=3, enough_s=2.0, early_stop_factor=math.inf)
    with Runner(Setup(CPU, protocol), workers=1) as runner:
        outcomes = list(runner.measure([Job("a", "{}"), Job("b", "{}")]))
    assert [outcome.latencies_s for outcome in outcomes] == [(1.0, 3.0), (2.0,)]


@pytest.mark.parametrize("how", ["fails", "hangs", "dies"])
def test_a_program_that_fails_in_a_later_repeat_has_failed(measured, how):
    """Where its worker died with it, the others are built and timed again, by one that lives to the end."""
    a, bad, b = measured("a", f"{how} in time 2", "b", repeats=3)
    assert bad.error == BAD[f"{how} in time"][0] and bad.latencies_s == ()
    again = ((5.0, 7.0, 9.0), (6.0, 8.0, 10.0))
    assert (a.latencies_s, b.latencies_s) == (((1.0, 4.0, 6.0), (3.0, 5.0, 7.0)) if how == "fails" else again)
    assert not a.disturbed and not b.disturbed


def test_repeats_without_a_reading_after_them_count_only_where_nothing_else_is_to_be_had(measured, machine):
    """The worker is killed at the end of each share, at no program's fault."""
    machine.kills = [False, True]
    outcomes = measured("a", "b", repeats=2)
    assert [(o.latencies_s, o.disturbed) for o in outcomes] == [((1.0, 3.0), True), ((2.0, 4.0), True)]


def test_a_device_that_stops_a_later_repeat_is_asked_for_no_more_of_them(measured, machine, batches_of):
    """The machine was not quiet, so the program may be measured again; what it took before stands meanwhile."""
    batches_of(2)
    machine.readings = [1, 1, 2, 1, 1, 1]
    _, outcome = measured("a", "is late in time 2", tracker=BOARD, repeats=2)
    assert outcome.error == "ok" and machine.actions("is late in time 2") == ["build"] + ["time"] * 4


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


@pytest.mark.parametrize("how", ["fails", "dies", "hangs"])
def test_an_untuned_program_that_does_not_run_is_no_candidate_s_fault(measured, machine, how):
    """Timings stand, unchecked, and the next ones of the task do not ask again."""
    key = f"{how} in reference"
    outcomes = measured("a", key, key, "b", check=True)
    assert [(o.error, o.checked, bool(o.latencies_s)) for o in outcomes] == [
        ("ok", True, True),
        *[("ok", False, True)] * 2,
        ("ok", True, True),
    ]
    assert machine.actions(key).count("reference") == 1 and "check" not in machine.actions(key)


def test_a_gpu_without_memory_for_a_check_leaves_the_timing(measured):
    found = [measured("wants memory in check", target=target, check=True)[0] for target in (GPU, CPU)]
    assert [(o.error, o.disturbed, bool(o.latencies_s)) for o in found] == [("ok", True, True), ("run", False, False)]


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


@pytest.mark.parametrize("setup", [Setup(GPU), Setup(CPU, tracker=BOARD)], ids=["gpu", "board"])
def test_where_not_even_the_sentinel_can_be_built_no_program_is_to_blame(machine, batches_of, setup):
    """A compiler is gone, or has nowhere to write.  A new worker tells, since the first has built its sentinel before."""
    batches_of(2)
    machine.readings = [1.0, 1.0, Failed("OSError: no nvcc")]
    found, said = [], r"^none of 2 programs can be built, nor can the sentinel \(OSError: no nvcc\); look at the compiler, "
    with Runner(setup, workers=1) as runner, pytest.raises(PlatformError, match=said):
        for outcome in runner.measure(Job(key, "{}") for key in ["good", *["fails in build"] * 3]):
            found.append(outcome)
    assert errors(found) == ["ok", "build"]
    assert [worker.starts for worker in machine.workers] == [1, 1] and not any(worker.is_alive for worker in machine.workers)


@pytest.mark.parametrize(
    ("key", "target", "reading"),
    [
        ("fails in build", GPU, 1.0),
        ("fails in build", GPU, Late()),
        ("fails in build", GPU, Died("the process was killed by SIGKILL")),
        ("wants memory in build", GPU, Failed("CUDA: out of memory")),  # others may hold it
        ("fails in build", GPU, Failed("CUDA: out of memory")),
        ("fails in build", CPU, Failed("ValueError: no")),  # nothing outside the worker builds for it
    ],
)
def test_programs_that_cannot_be_built_are_recorded_however_many_they_are(measured, machine, key, target, reading):
    """A collection that ended with them instead would end with them at every start, as where inputs of all tasks are too large."""
    machine.readings = [reading]
    outcomes = measured(*[key] * (PER_WORKER - 1), f"{key} 1", target=target)
    assert errors(outcomes) == ["build"] * PER_WORKER
    assert not any(worker.is_alive for worker in machine.workers)


def test_many_workers_share_a_batch_that_may_be_lost():
    assert [_batch_size(workers) for workers in (1, 2, 8, 64, 100)] == [16, 32, 128, 128, 200]

"""The supervisor on workers in memory: what is timed again, and what is marked, where the machine is not quiet."""

from __future__ import annotations

import threading

import pytest

from tcl_core.measure.job import Tracker
from tcl_core.measure.worker_handle import Failed
from tcl_core.measure.runner import FUTILE, PER_WORKER, RETRIES
from tests.measure import fake_machine
from tests.measure.fake_machine import BAD, CPU, GPU, errors, latencies

batches_of, machine, measured = fake_machine.batches_of, fake_machine.machine, fake_machine.measured


# --- the sentinel ---


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
def test_a_disturbed_batch_is_timed_again_and_then_marked(measured, machine, batches_of, readings, counted, disturbed):
    """Two batches of two programs: the first is quiet."""
    batches_of(2)
    machine.readings = list(readings)
    outcomes = measured("a", "b", "c", "d", check=True)
    assert latencies(outcomes) == counted
    assert all(o.error == "ok" and o.checked for o in outcomes)
    assert [o.disturbed for o in outcomes] == [False, False, disturbed, disturbed]
    assert machine.actions("c") == ["build"] + ["time"] * ((counted[2] - 1) // 2) + ["check"]
    assert len([1 for _, action, *_ in machine.asked if action == "sentinel"]) == min(len(readings), 2 * (2 + RETRIES))


def test_the_batch_after_a_disturbed_one_is_judged_anew(measured, machine, batches_of):
    batches_of(1)
    machine.readings = [1, 1, *[2] * 6, 1, 1]
    assert [o.disturbed for o in measured("a", "b", "c")] == [False, True, False]


def test_all_lanes_of_a_machine_share_one_watch(measured, machine, batches_of):
    """They are timed on the same cores: what disturbs one worker's reading is seen by the level of the other."""
    batches_of(1)
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


def test_a_program_that_dies_when_it_is_timed_again(measured, machine, batches_of):
    """The others keep their first timing, which was disturbed, though the reading just before the death was quiet."""
    batches_of(3)
    machine.readings = [1, 1, 1, 2, 1]
    outcomes = measured("a", "b", "c", "dies in time 2", "d", "e")
    assert errors(outcomes) == ["ok", "ok", "ok", "crash", "ok", "ok"]
    assert [o.disturbed for o in outcomes] == [False] * 4 + [True] * 2
    assert machine.actions("d") == ["build", "time"]


def test_a_program_that_fails_when_it_is_timed_again_has_failed(measured, machine, batches_of):
    batches_of(2)
    machine.readings = [1, 1, 1, 2, 1, 1]
    outcomes = measured("a", "b", "fails in time 2", "c")
    assert errors(outcomes) == ["ok", "ok", "run", "ok"] and outcomes[2].latencies_s == ()
    assert outcomes[3].latencies_s == (5.0,) and not outcomes[3].disturbed


def test_a_program_that_failed_is_not_timed_again(measured, machine, batches_of):
    batches_of(2)
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
    measured, machine, batches_of, readings, attempts, disturbed
):
    batches_of(1)
    machine.readings = [1, 1, *readings]
    _, outcome = measured("a", "hangs in time")
    assert (outcome.error, outcome.message, outcome.disturbed) == ("timeout", "not run within 5 s", disturbed)
    assert machine.actions("hangs in time") == ["build", "time"] * attempts


def test_a_program_that_the_machine_made_late_is_measured(measured, machine, batches_of):
    batches_of(1)
    machine.readings = [1, 1, 2, 1, 1]
    _, outcome = measured("a", "hangs in time 1")
    assert (outcome.error, outcome.disturbed) == ("ok", False)
    assert machine.actions("hangs in time 1") == ["build", "time"] * 2


@pytest.mark.parametrize("reading", [1, 2])
@pytest.mark.parametrize("key", ["fails in time", "dies in time"])
def test_what_fails_after_a_slow_reading_is_disturbed(measured, machine, batches_of, key, reading):
    """So that the next collection tries it again."""
    batches_of(1)
    machine.readings = [1, 1, reading]
    _, outcome = measured("a", key)
    assert (outcome.error, outcome.disturbed) == (BAD[key][0], reading == 2)
    assert machine.actions(key) == ["build", "time"]


@pytest.mark.parametrize(("target", "reading", "attempts"), [(CPU, 1, 1), (CPU, 2, 2), (GPU, 2, 1)])
def test_a_build_that_is_late_after_a_slow_reading(measured, machine, batches_of, target, reading, attempts):
    """The reading is of the batch before; a slow GPU tells nothing of the CPU that builds for it."""
    batches_of(1)
    machine.readings = [1, reading] * (1 + RETRIES)
    _, outcome = measured("a", "hangs in build", target=target)
    assert (outcome.error, outcome.message, outcome.disturbed) == ("timeout", "not built within 8 s", attempts == 2)
    assert machine.actions("hangs in build") == ["build"] * attempts


def test_programs_that_are_late_one_after_the_other_are_no_dying_workers(measured, machine, batches_of):
    """Each takes its worker with it, and what that had built; but each only once."""
    batches_of(3)
    machine.readings = [1, 2] * (1 + RETRIES)
    late = [f"hangs in build {attempt}" for attempt in range(FUTILE, 0, -1)]
    assert errors(measured("a", "b", "c", *late)) == ["ok"] * 6
    assert machine.workers[0].starts == 1 + FUTILE

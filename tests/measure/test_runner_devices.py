"""The supervisor on workers in memory that stand for remote devices, which fall silent, are shared and are missing."""

from __future__ import annotations

import pytest

from tcl_core.errors import PlatformError
from tcl_core.measure import runner
from tcl_core.measure.job import Job, Setup
from tcl_core.measure.worker_handle import Died, Late
from tcl_core.measure.runner import FUTILE, PER_WORKER, Runner
from tcl_core.measure.remote import answer_s
from tests.measure import fake_machine
from tests.measure.fake_machine import BOARD, CPU, LIMITS, errors

machine, measured, batches_of = fake_machine.machine, fake_machine.measured, fake_machine.batches_of


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


@pytest.mark.parametrize(("key", "checked"), [("hangs in check 1", [False, True]), ("is late in check", [False, False])])
def test_a_device_that_falls_silent_at_a_check_leaves_its_task_to_be_checked(measured, key, checked):
    """One that stops the check and answers tells of the task: its untuned program is too slow."""
    outcomes = measured(key, key, tracker=BOARD, check=True)
    assert errors(outcomes) == ["ok"] * 2 and [o.checked for o in outcomes] == checked


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


def test_without_a_device_what_was_measured_is_kept(machine, batches_of):
    batches_of(2)
    runner = Runner(Setup(CPU, tracker=BOARD), workers=1)
    assert until_no_device(runner, "a", "fails in time", "b", "has no device in time", "c") == ["ok", "run", "ok"]


def test_a_build_that_is_stopped_for_want_of_a_device_is_no_crash(machine, batches_of):
    batches_of(2)
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
        "build": 8, "time": 5 + more, "reference": 13 + more, "check": 10 + more, "sentinel": 13 + more, "drop": 5 + more, "release": more,
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
    monkeypatch.setattr(runner, "threads", lambda: cpus)
    monkeypatch.setattr(runner, "count_devices", lambda tracker: devices if tracker == BOARD else 99)
    assert len(Runner(Setup(CPU, tracker=BOARD)).workers) == workers
    assert len(Runner(Setup(CPU)).workers) == cpus and len(Runner(Setup(CPU, tracker=BOARD), workers=1).workers) == 1

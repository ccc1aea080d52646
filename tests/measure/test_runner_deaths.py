"""The supervisor on workers in memory: a worker that dies costs the program that killed it, and nothing else."""

from __future__ import annotations

import threading

import pytest

from tcl_core.errors import PlatformError
from tcl_core.measure.job import Job, Setup
from tcl_core.measure.runner import FUTILE, Runner
from tests.measure import fake_machine
from tests.measure.fake_machine import BAD, CPU, errors, latencies

machine, measured, batches_of = fake_machine.machine, fake_machine.measured, fake_machine.batches_of


def test_a_death_in_a_build_costs_only_that_program(measured, machine):
    outcomes = measured("a", "b", "dies in build", "c")
    assert errors(outcomes) == ["ok", "ok", "crash", "ok"]
    assert [machine.actions(k) for k in "abc"] == [["build", "build", "time"]] * 2 + [["build", "time"]]
    assert machine.actions("dies in build") == ["build"] and machine.workers[0].starts == 2


@pytest.mark.parametrize("key", ["dies in time", "hangs in time"])
def test_a_death_while_timing_costs_only_that_program(measured, machine, key):
    """What was timed before it lacks a reading of the sentinel after it: all are built again."""
    outcomes = measured("a", key, "b", "c")
    assert errors(outcomes) == ["ok", BAD[key][0], "ok", "ok"]
    assert [machine.actions(k) for k in "abc"] == [["build", "time"] * 2] + [["build", "build", "time"]] * 2
    assert machine.actions(key) == ["build", "time"] and machine.workers[0].starts == 2


def test_a_death_leaves_the_other_workers_alone(measured, machine, batches_of):
    """The other one takes over what is left of the batch; the next one finds both."""
    batches_of(4)
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


def test_what_was_measured_before_is_kept(machine, batches_of):
    """Batches before, and of the last one what comes before a program without an outcome."""
    batches_of(4)
    machine.kills = [False, False, False, *[True] * (FUTILE + 1)]  # the first costs those before it their second try
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


def test_only_deaths_in_a_row_are_too_many(measured, machine, batches_of):
    """Two in each batch are many, but the session goes on."""
    batches_of(2)
    machine.kills = [True, True, False, False] * 5
    assert errors(measured(*"abcdefghij")) == ["ok"] * 10


def test_a_worker_that_dies_while_it_waits_for_the_others_costs_nothing(measured, machine, monkeypatch):
    """Its programs were timed and still had to be checked: another checks them, and none is blamed."""
    machine.meeting["build"] = threading.Barrier(2, timeout=20)  # so that both have programs
    time_all, (first, second) = Runner._time_all, (0, 1)

    def then_the_first_dies(self, worker, batch):
        timed = time_all(self, worker, batch)
        if worker.number == second and machine.workers[first].starts == 1:
            machine.workers[first].is_alive = False
        return timed

    monkeypatch.setattr(Runner, "_time_all", then_the_first_dies)
    outcomes = measured("a", "b", "c", "d", workers=2, check=True)
    assert errors(outcomes) == ["ok"] * 4 and all(outcome.checked for outcome in outcomes)
    assert machine.workers[first].starts == 2

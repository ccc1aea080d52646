"""`tcl drift`: which programs are measured again, what is written down, and what is compared with the champion."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from tcl_core import store
from tcl_core.checked import plain_json
from tcl_core.compat import TVM_VERSION
from tcl_core.errors import DRIFT, DataError, NoChampionError, PlatformError, RegistryError, UsageError
from tcl_core.features.batches import Samples
from tcl_core.records import Record
from tcl_core.measure.job import Outcome, Setup
from tcl_core.params import load_params
from tcl_core.platforms import Hardware
from tcl_core.stages import drifting
from tcl_core.stages.drifting import HISTORY, choose_probes, drift_text, history, check_drift
from tcl_core.platforms import save_hardware
from tcl_core.stages.workspace import Workspace
from tests.commands import tcl
from tests.shipped import SHIPPED

P = "host-avx2"
SETUP = Setup(target={"kind": "llvm", "mcpu": "haswell"})
HOST = "this one"


def record(task: int, number: int, latency_s: float = 0.0, **changes) -> Record:
    facts = dict(
        task_key=f"task{task}", sketch_id=0, program_id=number, decisions=(number,), latencies_s=(latency_s or 1e-3 * 2**number,),
        error="ok", message="", round=0, measured_at=datetime(2027, 1, 1, tzinfo=UTC), protocol=SETUP.protocol_json(), host=HOST,
        tvm_version=TVM_VERSION,
    )  # fmt: skip
    return Record(**{**facts, **changes})


RECORDS = [record(task, number) for task in range(12) for number in range(6)]


class Encoder:
    """Programs without features."""

    def encode(self, keys, hardware, latencies_s) -> Samples:
        tasks = np.array([int(key[0].removeprefix("task")) for key in keys], dtype=np.int32)
        return Samples(np.zeros((len(keys), 1, 1), np.float32), np.ones(len(keys), np.int32), tasks, np.array(latencies_s))


class TinyWorkspace(Workspace):
    encoder = Encoder()


class Machine:
    """Stands in for the measuring: each program takes as long as ``seconds`` says of its number within the task."""

    def __init__(self) -> None:
        self.seconds = lambda number: 1e-3 * 2**number
        self.measured: list[list] = []
        self.busy: list[float] = []  # percent of the CPUs that others take, look by look
        self.disturbed: list[bool] = []  # whether others are at work, measurement by measurement
        self.setup, self.host = SETUP, HOST
        self.cold: set[str] = set()  # tasks that are timed with cold weights

    def measure_now(self, project, platform, keys):
        self.measured.append(list(keys))
        found = [self.seconds(key[2][0]) for key in keys]
        loud = self.disturbed.pop(0) if self.disturbed else False
        return (
            [Outcome("ok", (s,), disturbed=loud) if np.isfinite(s) else Outcome("build", message="no g++") for s in found],
            [self.setup.protocol_json(cold=key[0] in self.cold) for key in keys],
            self.host,
        )


class Champion:
    """Ranks as the old measurement did."""

    def predict(self, samples: Samples) -> np.ndarray:
        return -samples.latencies_s


@pytest.fixture
def machine(tmp_path, monkeypatch) -> Machine:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the lock is not that of real measurements
    machine = Machine()
    monkeypatch.setattr(drifting, "measure_now", machine.measure_now)
    monkeypatch.setattr(drifting.registry, "is_there", lambda: False)
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: machine.busy.pop(0) if machine.busy else 5.0)
    write(P, RECORDS)
    return machine


def write(platform: str, records) -> None:
    folder = Workspace().records_folder(platform, "holdout")
    store.write_records(folder, records)
    save_hardware(folder, Hardware())


@pytest.fixture
def project(machine) -> Workspace:
    return TinyWorkspace(params=load_params(SHIPPED))


def with_champion(monkeypatch) -> None:
    monkeypatch.setattr(drifting.registry, "is_there", lambda: True)
    monkeypatch.setattr(drifting.registry, "champion", lambda platform: (7, Path("champion")))
    monkeypatch.setattr(drifting.catalogue, "load", lambda folder: Champion())


def test_probes_are_spread_over_tasks_and_over_what_is_fast_and_slow():
    probes = choose_probes(RECORDS, 24, seed=0)
    assert len(probes) == 24 and len({probe.task_key for probe in probes}) == 6
    for task in {probe.task_key for probe in probes}:
        assert [probe.program_id for probe in probes if probe.task_key == task] == [0, 2, 3, 5]
    assert probes == choose_probes(RECORDS[::-1], 24, seed=0)
    assert probes != choose_probes(RECORDS, 24, seed=1)


def test_what_failed_or_was_disturbed_is_no_probe():
    bad = [record(0, 8, latencies_s=(), error="crash"), record(0, 9, disturbed=True), record(1, 0)]
    assert choose_probes(bad, 24, seed=0) == []
    assert [probe.program_id for probe in choose_probes([*bad, record(0, 1), record(0, 2)], 24, seed=0)] == [1, 2]


def test_an_unchanged_machine(machine, project, monkeypatch):
    with_champion(monkeypatch)
    (check,) = check_drift(project, P)
    assert (check["verdict"], check["changed"], check["measured"], check["champion_version"]) == ("no drift", [], 1, 7)
    assert check["then"] == check["now"] == check["agreement"]["value"] == 1.0
    assert drift_text(check).startswith("host-avx2: no drift: the machine is as fast as then, ranking unchanged: 100% of 72 clear pairs")
    check_drift(project, P)
    assert [one["verdict"] for one in history(Workspace())] == ["no drift"] * 2 and machine.measured[0] == machine.measured[1]


def test_a_slower_machine_of_the_same_order_is_no_drift(machine, project):
    machine.seconds = lambda number: 1.7e-3 * 2**number
    (check,) = check_drift(project, P)
    assert check["verdict"] == "no drift" and "the machine is slower by a factor of 1.70, ranking unchanged" in check["reason"]


def test_another_order_is_measured_twice_before_it_is_called_drift(machine, project, monkeypatch, capsys):
    with_champion(monkeypatch)
    machine.seconds = lambda number: 64e-3 / 2**number
    (check,) = check_drift(project, P)
    assert (check["verdict"], check["measured"], check["then"], check["now"]) == ("drift", 2, 1.0, 0.0)
    assert (
        "keeps the order of only 0% of 72 clear pairs" in check["reason"]
        and "the champion orders 0% of clear pairs right" in check["reason"]
    )
    assert "measuring once more, to be sure" in capsys.readouterr().err


def test_a_neighbour_that_has_gone_by_the_second_time_is_no_drift(machine, project):
    machine.seconds = lambda number: 1.0 / 2**number if len(machine.measured) == 1 else 1e-3 * 2**number
    (check,) = check_drift(project, P)
    assert (check["verdict"], check["measured"]) == ("no drift", 2)


def test_on_a_loud_machine_nothing_can_be_told(machine, project):
    machine.disturbed, machine.seconds = [True, True], lambda number: 64e-3 / 2**number
    (check,) = check_drift(project, P)
    assert (check["verdict"], check["measured"], check["disturbed"]) == ("undecided", 2, 48)
    assert "others on this machine disturbed 48 programs; try again when it is quieter" in check["reason"]
    machine.disturbed, machine.seconds = [True, False], lambda number: 1e-3 * 2**number
    (check,) = check_drift(project, P)
    assert (check["verdict"], check["measured"], check["disturbed"]) == ("no drift", 2, 0)


def test_where_others_take_all_cpus_nothing_is_measured(machine, project):
    machine.busy = [97.0]
    (check,) = check_drift(project, P)
    assert (check["verdict"], check["measured"], check["pairs"], machine.measured) == ("undecided", 0, 0, [])
    assert check["reason"] == "other processes take 97% of this machine's CPUs; try again when it is quieter"
    machine.busy, machine.seconds = [60.0, 90.0], lambda number: 64e-3 / 2**number  # they came before the second measuring
    (check,) = check_drift(project, P)
    assert (check["verdict"], check["measured"], check["agreement"]["value"]) == ("undecided", 1, 0.0)
    assert [one["verdict"] for one in history(Workspace())] == ["undecided"] * 2


def test_what_is_measured_otherwise_is_told(machine, project):
    machine.host, machine.setup = "another", Setup(target={"kind": "llvm", "mcpu": "nehalem"})
    (check,) = check_drift(project, P)
    assert check["changed"][0] == "measured on this one then, on another now" and "nehalem" in check["changed"][1]
    assert drift_text(check).endswith(", ".join(check["changed"]))


def test_what_is_timed_with_cold_weights_now_is_told_once(machine, project):
    """Also where the first probe's task has none; a record that says so is compared with another that says so."""
    machine.cold = {"task3", "task4"}
    (check,) = check_drift(project, P)
    assert check["changed"] == ["cold was None then and is weights now"]
    cold = SETUP.protocol_json(cold=True)
    write(P, [record(task, number, **({"protocol": cold} if task in (3, 4) else {})) for task in range(12) for number in range(6)])
    (check,) = check_drift(project, P)
    assert check["changed"] == []


def test_a_champion_that_cannot_rank_is_left_out(machine, project, monkeypatch, capsys):
    with_champion(monkeypatch)

    def broken(folder):
        raise DataError("the model reads 47 features")

    monkeypatch.setattr(drifting.catalogue, "load", broken)
    assert check_drift(project, P)[0]["champion_version"] is None
    assert "its champion is left out of the check: the model reads 47 features" in capsys.readouterr().err

    def nobody(platform):
        raise NoChampionError("no champion")

    monkeypatch.setattr(drifting.registry, "champion", nobody)
    assert check_drift(project, P)[0]["then"] is None and capsys.readouterr().err.count("its champion") == 0

    def refused(platform):
        raise RegistryError("the model registry refuses this user (HTTP 401)")

    monkeypatch.setattr(drifting.registry, "champion", refused)
    assert check_drift(project, P)[0]["then"] is None
    assert "its champion is left out of the check: the model registry refuses this user (HTTP 401)" in capsys.readouterr().err


def test_each_platform_that_was_measured_is_checked(machine, project):
    write("host-sse42", RECORDS)
    store.write_skipped(Workspace().records_folder("host-avx512", "holdout"), "host-avx512", "no AVX-512 here")
    assert [check["platform"] for check in check_drift(project, None)] == ["host-sse42", P]


def test_a_platform_that_is_away_keeps_nobody_from_the_others(machine, project, monkeypatch, capsys):
    write("host-sse42", RECORDS)

    def away(workspace, platform, keys):
        if platform == "host-sse42":
            raise PlatformError("no device answers")
        return machine.measure_now(workspace, platform, keys)

    monkeypatch.setattr(drifting, "measure_now", away)
    assert [check["platform"] for check in check_drift(project, None)] == [P]
    assert "host-sse42 could not be checked: no device answers" in capsys.readouterr().err
    with pytest.raises(PlatformError, match="no device answers"):
        check_drift(project, "host-sse42")
    assert [one["platform"] for one in history(Workspace())] == [P]


def test_the_history_holds_the_last_checks(machine, project, monkeypatch):
    monkeypatch.setattr(drifting, "KEPT", 2)
    found = [check_drift(project, P)[0] for _ in range(3)]
    assert history(Workspace()) == plain_json({"checks": found[1:]})["checks"] and len(found) == 3


def test_what_cannot_be_checked_is_a_sentence(machine, project):
    with pytest.raises(UsageError, match="unknown platform 'host-avx3'"):
        check_drift(project, "host-avx3")
    with pytest.raises(DataError, match="host-sse42 cannot be checked: it has no held-out records; run: tcl holdout --platform host-sse42"):
        check_drift(project, "host-sse42")
    store.write_skipped(Workspace().records_folder("host-avx512", "holdout"), "host-avx512", "no AVX-512 here")
    with pytest.raises(DataError, match=r"it was skipped \(no AVX-512 here\)"):
        check_drift(project, "host-avx512")
    write("host-sse42", [record(0, 0)])
    with pytest.raises(DataError, match="no task of which two held-out programs ran"):
        check_drift(project, "host-sse42")
    machine.seconds = lambda number: np.inf
    with pytest.raises(PlatformError, match=r"none of the probes of host-avx2 can be built any more \(no g\+\+\)"):
        check_drift(project, P)
    assert history(Workspace()) == []


def test_a_damaged_history_is_refused_before_anything_is_measured(machine, project):
    (Workspace().reports / HISTORY).parent.mkdir(parents=True)
    (Workspace().reports / HISTORY).write_text("{}")
    with pytest.raises(DataError, match="drift.json is damaged .* move it away, and the next check begins a new history"):
        check_drift(project, P)
    assert machine.measured == []


def test_as_text_and_as_json(machine, project, monkeypatch, capsys):
    monkeypatch.setattr(drifting, "check_drift", lambda workspace, platform: check_drift(project, platform))
    Path("params.yaml").touch()
    assert tcl("drift", "-p", P).startswith("host-avx2: no drift: ")
    machine.seconds = lambda number: 64e-3 / 2**number
    with pytest.raises(SystemExit) as ended:
        tcl("drift", "-p", P, "--json")
    assert ended.value.code == DRIFT
    said = capsys.readouterr().out
    assert [check["verdict"] for check in json.loads(said)["checks"]] == ["drift"]

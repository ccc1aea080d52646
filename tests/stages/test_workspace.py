"""What all stages share: the host's hardware, the machine for oneself, the data set as it lies there."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from conftest import matmul_module

from tcl_core import store
from tcl_core.checked import read_json
from tcl_core.errors import DataError, UsageError
from tcl_core.features.batches import Samples
from tcl_core.params import load_params
from tcl_core.platforms import Hardware
from tcl_core.programs.pool import build_pool
from tcl_core.programs.tasks import describe
from tcl_core.records import Record
from tcl_core.stages import machine, workspace
from tcl_core.platforms import read_saved_hardware, save_hardware
from tcl_core.stages.machine import hardware_here, measuring_alone
from tcl_core.stages.workspace import Workspace
from tests.shipped import SHIPPED

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


# --- hardware ---


@pytest.fixture
def bandwidths(monkeypatch):
    """The bandwidths that measurements of two readings will find, in order; empty when all were taken."""
    found = [7.5, 12.5, 99.0, 80.0]
    monkeypatch.setattr(machine, "READINGS", 2)
    monkeypatch.setattr(machine, "copy_bandwidth_gbs", lambda: found.pop(0))
    return found


def test_bandwidth_is_measured_once_per_host_and_kept(bandwidths, monkeypatch):
    """Two platforms of one host differ in nothing but their vectors; a second run has the same hardware vector."""
    first, second = hardware_here(Workspace(), "nehalem", {}), hardware_here(Workspace(), "haswell", {})
    assert (first.bandwidth_gbs, second.bandwidth_gbs, bandwidths) == (12.5, 12.5, [99.0, 80.0])
    assert (first.simd_bytes, second.simd_bytes) == (16, 32)
    assert hardware_here(Workspace(), "nehalem", {}) == first
    kept = read_json(Path("data/journal/hardware.json"), "")
    assert kept == {"host": machine.host_fingerprint(), "bandwidth_gbs": 12.5}
    monkeypatch.setattr(machine, "host_fingerprint", lambda: "another host")
    assert hardware_here(Workspace(), "nehalem", {}).bandwidth_gbs == 99.0
    assert hardware_here(Workspace(), "haswell", {}).bandwidth_gbs == 99.0 and bandwidths == []
    assert read_json(Path("data/journal/hardware.json"), "")["host"] == "another host"


def test_what_params_give_counts_more(bandwidths):
    hardware = hardware_here(Workspace(), "haswell", {"bandwidth_gbs": 51.2, "memory_channels": 2})
    assert (hardware.bandwidth_gbs, hardware.memory_channels) == (51.2, 2)


def test_saved_hardware_comes_back(tmp_path):
    hardware = Hardware(*(float(n) for n in range(11)))
    save_hardware(tmp_path / "records", hardware)
    assert read_saved_hardware(tmp_path / "records") == hardware
    with pytest.raises(DataError, match=r"^there is no .*none/hardware\.json; run the stage that writes .*none \(dvc repro\)$"):
        read_saved_hardware(tmp_path / "none")


# --- measuring alone ---

MEASURER = """
import sys
from pathlib import Path
from tcl_core.stages.machine import measuring_alone
with measuring_alone():
    print("measuring", Path(sys.argv[1]).exists(), flush=True)
    sys.stdin.readline()
    Path(sys.argv[1]).touch()
"""


@pytest.fixture
def measurer(tmp_path):
    """Start a process that measures until it is told to end, and then leaves a file."""
    started = []

    def start():
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [sys.executable, "-c", MEASURER, str(tmp_path / "ended")]
        started.append(subprocess.Popen(command, env=environment, text=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_second_measurement_waits_for_the_first_ones_end(measurer):
    first = measurer()
    assert first.stdout.readline() == "measuring False\n"
    second = measurer()
    told = second.stderr.readline()
    assert re.fullmatch(f"(process {first.pid}|another process) measures on this machine; waiting for its end\n", told)
    print(file=first.stdin, flush=True)
    assert second.stdout.readline() == "measuring True\n"  # the first one had ended when the second began
    assert first.wait(20) == 0 and first.stderr.read() == ""


def test_a_killed_measurement_lets_the_next_one_begin(measurer):
    first = measurer()
    assert first.stdout.readline() == "measuring False\n"
    second = measurer()
    second.stderr.readline()
    first.kill()
    assert second.stdout.readline() == "measuring False\n"


def test_one_after_the_other_does_not_wait(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(machine.tempfile, "tempdir", str(tmp_path))
    for _ in range(2):
        with measuring_alone():
            pass
    with pytest.raises(KeyboardInterrupt), measuring_alone():
        raise KeyboardInterrupt
    with measuring_alone():
        assert capfd.readouterr().err == ""


LOCK = "tcl-measuring.lock"


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe"])
def test_what_is_no_lock_is_refused_and_left_alone(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(machine.tempfile, "tempdir", str(tmp_path))
    lock, other = tmp_path / LOCK, tmp_path / "other"
    if kind == "link":
        other.write_text("years of work")
    make = {"folder": lock.mkdir, "pipe": lambda: os.mkfifo(lock)}.get(kind, lambda: lock.symlink_to(other))
    make()
    with pytest.raises(UsageError, match=f"^{lock} cannot be locked .*; remove it, or set TMPDIR to a folder of your own$"):
        with measuring_alone():
            pass
    assert os.path.lexists(lock) and (other.read_text() == "years of work" if kind == "link" else not other.exists())


def test_whoever_measures_can_be_waited_for_by_other_users(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.tempfile, "tempdir", str(tmp_path))
    mask = os.umask(0o077)
    try:
        with measuring_alone():
            assert stat.S_IMODE((tmp_path / LOCK).stat().st_mode) == 0o644
    finally:
        os.umask(mask)
    (tmp_path / LOCK).chmod(0o444)  # as another user's is to us
    with measuring_alone():
        pass


NOBODYS = """
import os
from tcl_core.errors import UsageError
from tcl_core.stages.machine import measuring_alone
os.setgid(65534); os.setuid(65534)
try:
    with measuring_alone():
        print("measuring")
except UsageError as error:
    print(error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="takes a second user")
@pytest.mark.parametrize(("mode", "said"), [(0o644, "measuring"), (0o600, "{} cannot be locked (permission denied); remove it, or set")])
def test_the_lock_of_another_user(mode, said):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        lock = Path(folder) / LOCK
        lock.touch()
        lock.chmod(mode)
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": folder}
        done = subprocess.run([sys.executable, "-c", NOBODYS], env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith(said.format(lock)), done.stderr


def test_a_wait_is_told_again_each_minute(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(machine.tempfile, "tempdir", str(tmp_path))
    clock = [0.0]

    def sleep(seconds):
        clock[0] += 31.0
        if clock[0] > 130:
            raise KeyboardInterrupt

    monkeypatch.setattr(machine.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(machine.time, "sleep", sleep)
    monkeypatch.setattr(machine, "holder", lambda path: "process 7")
    with open(tmp_path / LOCK, "w") as held, pytest.raises(KeyboardInterrupt):
        fcntl.flock(held, fcntl.LOCK_EX)
        with measuring_alone():
            pass
    waiting = "process 7 measures on this machine; waiting for its end"
    assert capfd.readouterr().err.splitlines() == [waiting, f"{waiting} (1 min)", f"{waiting} (2 min)"]


def test_a_lock_that_was_removed_and_made_anew_is_the_one_that_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(machine.tempfile, "tempdir", str(tmp_path))
    real, opened = machine._open_lock, []

    def removed_meanwhile(path, otherwise):
        opened.append(real(path, otherwise))
        if len(opened) == 1:
            path.unlink()
        return opened[-1]

    monkeypatch.setattr(machine, "_open_lock", removed_meanwhile)
    with measuring_alone(), open(tmp_path / LOCK) as second, pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert len(opened) == 2


# --- how long stages took ---


def test_seconds_of_the_last_run(monkeypatch):
    clock = iter([10.0, 12.54, 100.0, 101.0, 200.0, 203.0])
    monkeypatch.setattr(machine.time, "monotonic", lambda: next(clock))
    for stage in ("tasks", "collect@a", "tasks"):
        with Workspace().timed(stage):
            pass
    assert Workspace().stage_seconds() == {"collect@a": 1.0, "tasks": 3.0}


def test_a_failed_stage_keeps_the_time_of_the_last_good_run():
    with pytest.raises(ValueError), Workspace().timed("tasks"):
        raise ValueError
    assert Workspace().stage_seconds() == {}


# --- programs for the teacher ensemble ---


def write_programs(programs) -> None:
    rows = [
        {"task_key": p.task_key, "split": "train", "program_id": p.number, "sketch_id": p.sketch, "decisions": list(p.decisions)}
        for p in programs
    ]
    store.write_table(Workspace().pool / "train" / "programs.parquet", "programs", rows)


def test_further_programs_are_drawn_once_for_a_pool(monkeypatch, caplog):
    """Another pool, number or seed: another draw; a damaged file: the same one again."""
    task = describe("matmul", matmul_module(4, 4, 4))
    sketches, programs = build_pool([task], 0, 8, 0, 1)
    store.write_table(Workspace().task_tables / "tasks.parquet", "tasks", [task.as_row()])
    store.write_table(Workspace().pool / "train" / "sketches.parquet", "sketches", sketches)
    write_programs(programs)
    draws, params = [], load_params(SHIPPED)
    draw = workspace.draw_unlabelled
    monkeypatch.setattr(workspace, "draw_unlabelled", lambda *given: draws.append(given) or draw(*given))
    pool = [(p.task_key, p.sketch, p.decisions) for p in programs]
    first = Workspace(params=params).unlabelled_keys([0], 12, pool[:3])
    assert first[:5] == pool[3:] and len(set(first)) == 12 and not set(first) & set(pool[:3])
    assert Workspace(params=params).unlabelled_keys([0], 12, pool[:3]) == first
    assert Workspace(params=params).unlabelled_keys([0], 12, ())[:8] == pool and len(draws) == 1
    preferred = [first[7], pool[0], first[7], pool[4]]
    assert Workspace(params=params).unlabelled_keys([0], 12, pool[:3], preferred)[:4] == [first[7], pool[4], pool[3], pool[5]]
    Path("data/journal/further.json").write_text("{}")
    assert Workspace(params=params).unlabelled_keys([0], 12, pool[:3]) == first and len(draws) == 2
    assert "further.json is damaged" in caplog.text
    assert len(Workspace(params=params).unlabelled_keys([0], 11, pool[:3])) == 11 and len(draws) == 3
    assert Workspace(params=params).unlabelled_keys([], 11, ()) == []


def test_unlabelled_programs_are_those_of_which_a_platform_has_no_record():
    """A design space of four programs, of which three were measured."""
    task = describe("matmul", matmul_module(1, 1, 1))
    sketches, programs = build_pool([task], 0, 50, 0, 1)
    store.write_table(Workspace().task_tables / "tasks.parquet", "tasks", [task.as_row()])
    store.write_table(Workspace().pool / "train" / "sketches.parquet", "sketches", sketches)
    write_programs(programs[:2])  # the others are drawn
    about = ((1e-3,), "ok", "", 0, datetime.now(UTC), "{}", "this host", "0")
    records = [Record(task.key, p.sketch, p.number, p.decisions, *about) for p in programs]
    save_hardware(Workspace().records_folder("a"), Hardware(cores=2.0))
    for count in (3, 4):
        store.write_records(Workspace().records_folder("a"), records[:count])
        found = Workspace(params=load_params(SHIPPED)).unlabelled([0], 50, "a")
        assert {reads: len(samples) for reads, samples in found.items()} == {"tokens": 4 - count, "per-store features": 4 - count}


def test_damaged_seconds_are_left_out_and_that_is_said(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    for stage in ("train", "tasks"):
        with Workspace().timed(stage):
            pass
    shutil.copy("data/journal/seconds/train.json", "data/journal/seconds/evaluate.json")
    Path("data/journal/seconds/tasks.json").write_text("{}")
    assert list(Workspace().stage_seconds()) == ["train"]
    assert "tasks.json is damaged (it has no checksum" in caplog.text and "it is left out of the summary" in caplog.text
    assert "evaluate.json is damaged (it is another stage's); it is left out of the summary" in caplog.text


def test_tasks_kept_apart_have_something_to_compare(tmp_path, monkeypatch):
    """Of one program, or of one that ran, nothing can be said; not all that can be compared are kept apart."""
    shutil.copy(SHIPPED, tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    project, count = Workspace(), 60
    tasks = np.repeat(np.arange(count, dtype=np.int32), 2)
    latencies_s = np.ones(2 * count)
    latencies_s[1::6] = np.inf  # of each third task
    samples = Samples(np.zeros((2 * count, 2, 4), np.float32), np.full(2 * count, 2, np.int32), tasks, latencies_s)
    comparable = {task for task in range(count) if task % 3}

    def apart(samples, share):
        train, valid = project.split_by_task(samples, share)
        kept = set(valid.tasks.tolist()) if valid else set()
        assert kept | set(train.tasks.tolist()) == set(samples.tasks.tolist()) and not kept & set(train.tasks.tolist())
        return kept

    half = apart(samples, 0.5)
    assert half < comparable and 10 <= len(half) <= 30 and apart(samples, 0.1) < half
    assert apart(samples.take(np.flatnonzero(tasks % 2)), 0.5) == {task for task in half if task % 2}  # as on another platform
    assert len(apart(samples, 1.0)) == len(comparable) - 1 and apart(samples, 0.0) == set()
    assert apart(samples.take(np.flatnonzero(tasks == 0)), 1.0) == apart(samples.take(np.flatnonzero(tasks == 1)), 1.0) == set()

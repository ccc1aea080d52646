"""Programs measured on devices behind a real tracker: two servers of this machine, one of which must not survive."""

from __future__ import annotations

import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
from _bad_programs import ABORTS, HANGS, WRITES_FAR_AWAY

from tcl_core import platforms
from tcl_core.collect import Collection, measure_all
from tcl_core.errors import PlatformError
from tcl_core.features.encode import Encoder
from tcl_core.journal import iter_journal
from tcl_core.measure import remote, runner
from tcl_core.measure.device import Crashed, TimedOut
from tcl_core.measure.job import Job
from tcl_core.measure.runner import Runner
from tcl_core.measure.serving import start_tracker
from tcl_core.measure.tracker import list_devices
from tcl_core.measure.worker import Worker
from tcl_core.platforms import host_fingerprint
from tcl_core.programs.pool import sample_programs
from tests.measure import boards
from tests.measure.boards import HERE, MCPU, free_port, kill_in_a_session, serving_key, sessions_of, setup_for

job = boards.job
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tracker():
    served = start_tracker(HERE, free_port())
    yield served.port
    served.stop()


@pytest.fixture(scope="module")
def board(tracker):
    with serving_key(tracker, "board") as served:
        yield served


@pytest.fixture(scope="module")
def worker(tracker, board):
    worker = Worker(setup_for(tracker))
    yield worker
    worker.release()


@pytest.fixture(autouse=True)
def released(request):
    """No test leaves the device to itself."""
    yield
    if "worker" in request.fixturenames:
        request.getfixturevalue("worker").release()


def free(tracker, key="board"):
    """How many devices are free, once the server has had time to register anew."""
    for _ in range(200):
        if (listed := list_devices(HERE, tracker)[key]).free == listed.servers:
            break
        time.sleep(0.02)
    return listed.free


# --- one program ---


def test_a_program_is_built_here_and_timed_there(worker, job, tracker):
    assert worker.build(0, job) > 0
    assert 0 < worker.time(0, math.inf) < 1
    assert worker.check(0) < 1e-5
    assert 0 < worker.sentinel() < 1
    assert list_devices(HERE, tracker)["board"].free == 0
    worker.release()
    assert free(tracker) == 1


def test_its_weights_can_be_cold_there(worker, job):
    worker.build(0, replace(job, cold=True))
    assert 0 < worker.time(0, math.inf) < 1


def test_a_wrong_result_is_seen_on_the_device(worker, job):
    """The check reads what the device computed."""
    worker.build(0, job)
    real = worker.built[0][1]

    def off_by_a_tenth(*arguments):
        real(*arguments)
        there = worker.device.session.tensor(arguments[-1])
        there.copyfrom(there.numpy() * np.float32(1.1))

    worker.built[0] = worker.built[0]._replace(function=off_by_a_tenth)
    assert worker.check(0) == pytest.approx(0.1, rel=1e-3)


def test_every_thread_of_the_protocol_runs_there(tracker, board, monkeypatch):
    asked = []
    real = remote._Session._set_threads
    monkeypatch.setattr(remote._Session, "_set_threads", lambda self, *a: (asked.append(a), real(self, *a)))
    setup = setup_for(tracker)
    worker = Worker(replace(setup, protocol=replace(setup.protocol, threads=2, pin_threads=True)))
    threads = worker.device.run(lambda: int(worker.device.session._rpc.get_function("runtime.NumThreads")()))
    worker.release()
    assert asked == [(2, True)] and threads == 2


@pytest.mark.parametrize("module_json", [ABORTS, WRITES_FAR_AWAY], ids=["abort", "segfault"])
def test_a_program_that_crashes_two_sessions_is_the_one_that_crashes_them(worker, job, module_json, board):
    worker.build(0, Job("bad", module_json))
    worker.build(1, job)
    with pytest.raises(Crashed, match="^the process that ran it on the device died 2 times$"):
        worker.time(0, math.inf)
    assert worker.time(1, math.inf) > 0  # the same server serves the next one
    assert board.process.poll() is None


def test_a_program_that_hangs_is_stopped_by_the_server(tracker, job, board):
    worker = Worker(setup_for(tracker, run_s=0.2, lease_s=0.0, transfer_s=0.6))
    worker.build(0, Job("hangs", HANGS))
    worker.build(1, job)
    with pytest.raises(TimedOut):
        worker.time(0, math.inf)
    assert worker.time(1, math.inf) > 0
    worker.release()


def test_a_failure_of_the_program_itself_keeps_the_session(worker, job):
    worker.build(0, job)
    worker.time(0, math.inf)
    session = worker.device.session

    def fails():
        raise ValueError("no")

    with pytest.raises(ValueError, match="^no$"):
        worker.device.run(fails)
    assert worker.device.session is session and session.is_alive()


def test_a_device_is_handed_on_when_its_lease_is_over(tracker, board, job):
    """So that workers, and others, take turns where there are fewer devices than workers."""
    worker = Worker(setup_for(tracker, lease_s=0.0))
    worker.build(0, job)
    sessions = []
    for _ in range(2):
        worker.time(0, math.inf)
        sessions.append(worker.device.session)
    worker.release()
    assert sessions[0] is not sessions[1] and not sessions[0].is_alive()


def test_programs_and_arguments_are_sent_once_a_session(worker, job, monkeypatch):
    sent = []
    worker.build(0, job)
    worker.sentinel()
    rpc = worker.device.session._rpc
    monkeypatch.setattr(rpc, "upload", lambda data, name, real=rpc.upload: (sent.append(name), real(data, name)))
    worker.time(0, math.inf)
    worker.time(0, math.inf)
    assert len(sent) == 1
    assert len(worker.device.session._tensors) == 6  # the program's and the sentinel's


# --- what a device is ---


def test_what_a_server_tells_of_its_host(worker):
    told = worker.describe()
    assert told["host"] == f"rpc board: {host_fingerprint()}"
    fields = {name: value for name, value in told["hardware"].items() if name != "bandwidth_gbs"}
    assert fields == pytest.approx(platforms.host_fields()) and told["hardware"]["bandwidth_gbs"] > 0.1


def test_devices_that_are_not_alike_are_refused(tracker, board, job):
    setup = setup_for(tracker, host_told="rpc board: another CPU x4 00000000")
    with Runner(setup, workers=1) as runner, pytest.raises(PlatformError) as raised:
        list(runner.measure([job]))
    address = f"{HERE}:{board.port}"
    assert str(raised.value) == (
        f"the devices of key 'board' are not alike (rpc board: another CPU x4 00000000; {address} is rpc board: "
        f"{host_fingerprint()}), and their latencies do not compare; give each kind of device a key and a platform of its own"
    )
    assert free(tracker) == 1


def test_a_server_of_tvms_own(tracker, job):
    """It tells nothing, and its threads are set as TVM can."""
    port = free_port()
    command = [sys.executable, "-m", "tvm.exec.rpc_server", "--host", HERE, "--port", str(port), "--port-end", str(port + 1)]
    process = subprocess.Popen(
        [*command, "--tracker", f"{HERE}:{tracker}", "--key", "stock"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        env=os.environ | {"TVM_NUM_THREADS": "2"},
    )  # fmt: skip
    try:
        setup = setup_for(tracker, "stock")
        worker = Worker(replace(setup, protocol=replace(setup.protocol, threads=2)))
        assert worker.describe() == {"host": "rpc stock: its host unknown", "hardware": {}}
        assert int(worker.device.session._rpc.get_function("runtime.NumThreads")()) == 2
        worker.build(0, job)
        assert worker.time(0, math.inf) > 0 and worker.check(0) < 1e-5
        worker.release()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# --- other machine types ---


def test_a_server_links_the_objects(tracker, board, job, monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(remote.host_platform, "machine", lambda: "another")
        elsewhere.setattr(remote.shutil, "which", lambda name: None)
        worker = Worker(setup_for(tracker))
    worker.build(0, job)
    assert worker.built[0][1].suffix == ".tar"
    assert worker.time(0, math.inf) > 0
    worker.release()


def test_a_device_that_loads_nothing_is_nobodys_failure_but_the_set_ups(tracker, board, job):
    worker = Worker(setup_for(tracker))
    worker.build(0, job)
    worker.built[0][1].library = b"no library"
    with pytest.raises(PlatformError) as raised:
        worker.time(0, math.inf)
    start = f"the device {HERE}:{board.port} of key 'board' cannot load a program for {MCPU} ("
    assert str(raised.value).startswith(start) and "install g++ there" in str(raised.value)
    worker.build(0, job)
    worker.time(0, math.inf)
    worker.build(1, job)
    worker.built[1][1].library = b"no library"
    with pytest.raises(Exception) as raised:  # after one that was loaded, it is the program's
        worker.time(1, math.inf)
    assert not isinstance(raised.value, PlatformError)
    worker.release()


# --- no device ---


def test_no_device_of_the_key(tracker, job):
    with Runner(setup_for(tracker, "nobody", wait_s=0.1), workers=1) as runner:
        with pytest.raises(PlatformError, match=f"at {HERE}:{tracker} has had no device of key 'nobody' for 0.1 s; start one"):
            list(runner.measure([job]))
        with pytest.raises(PlatformError, match="no device of key 'nobody'"):
            runner.describe()


# --- devices come and go ---


def test_a_session_that_dies_at_its_start_blames_nobody(tracker, board, job, monkeypatch):
    """The next one serves."""
    real, ends = remote._Session._set_threads, [True]

    def ended(self, *arguments):
        if ends and ends.pop():
            sessions_of(board)[0].kill()
        real(self, *arguments)

    monkeypatch.setattr(remote._Session, "_set_threads", ended)
    worker = Worker(setup_for(tracker))
    worker.build(0, job)
    assert worker.time(0, math.inf) > 0 and ends == []
    worker.release()


@pytest.fixture
def collection(tracker, tiny_tasks, tmp_path, monkeypatch):
    """Real programs of three tasks, in batches of eight, on devices of the key ``pair``."""
    monkeypatch.setattr(runner, "PER_WORKER", 4)
    monkeypatch.setattr(runner, "threads", lambda: 2)
    tinies = tiny_tasks.values()
    programs = [p for t in tinies for p in sample_programs(t.task, t.sketches, t.space, 6, 0)]
    encoder = Encoder([t.task for t in tinies], [row for t in tinies for row in t.rows()])
    setup = setup_for(tracker, "pair")
    return Collection(programs, encoder, (1.0,) * 11, "rpc pair: here", setup, tmp_path / "journal")


def test_a_server_that_dies_in_the_middle_loses_nothing(tracker, collection):
    """Two workers on two devices; every program is recorded once, none is blamed, and no process is left."""
    with serving_key(tracker, "pair") as doomed, serving_key(tracker, "pair"):
        children = {p.pid for p in psutil.Process().children(recursive=True)} - {doomed.process.pid}
        killer = threading.Thread(target=kill_in_a_session, args=(doomed, 1), daemon=True)
        killer.start()
        measure_all(collection, 0.5, lambda record: None)
        killer.join(timeout=90)
        assert doomed.process.wait(timeout=30) == -signal.SIGKILL
        left = {p.pid for p in psutil.Process().children(recursive=True)} - children
    records = list(iter_journal(collection.journal))
    assert Counter(r.key for r in records) == Counter(collection.keys)
    assert {r.error for r in records} == {"ok"} and any(r.checked for r in records)
    assert left == set()


def test_sessions_die_with_their_server(tracker, job):
    with serving_key(tracker, "pair") as served:
        worker = Worker(setup_for(tracker, "pair"))
        worker.build(0, job)
        worker.time(0, math.inf)
        (session,) = sessions_of(served)
        served.process.kill()
        psutil.wait_procs([session], timeout=20)
        assert not session.is_running() or session.status() == psutil.STATUS_ZOMBIE
        assert not worker.device.session.is_alive()
        worker.release()


def test_when_no_device_is_left_what_was_recorded_is_kept(tracker, collection):
    """And the same command goes on from there when there are devices again."""
    tracker_there = replace(collection.setup.tracker, wait_s=0.3)
    collection.setup = replace(collection.setup, tracker=tracker_there)
    recorded = []
    with serving_key(tracker, "pair") as doomed:

        def on_program(record):
            recorded.append(record)
            doomed.process.kill()

        with pytest.raises(PlatformError, match=rf"at {HERE}:{tracker} has had no device of key 'pair' for 0.3 s"):
            measure_all(collection, 0, on_program)
    kept = list(iter_journal(collection.journal))
    assert kept == recorded and 0 < len(kept) < len(collection.programs) and {r.error for r in kept} == {"ok"}
    with serving_key(tracker, "pair"):
        measure_all(replace(collection, known={}, records={}), 0, lambda record: None)
    times = Counter(r.key for r in iter_journal(collection.journal))
    assert times.keys() == set(collection.keys)
    assert all(times[r.key] == 1 for r in kept if not r.disturbed)


# --- servers ---


def test_a_port_that_is_taken(tracker):
    with pytest.raises(PlatformError, match=r"^the tracker exited with 1 at its start \(.*bind.*\); if its port is taken, give another$"):
        start_tracker(HERE, tracker)


def test_a_tracker_says_nothing_of_a_peer_that_left(capfd):
    from tvm.rpc.base import RPC_TRACKER_MAGIC

    served = start_tracker(HERE, free_port())
    try:
        with socket.create_connection((HERE, served.port), timeout=20) as peer:
            peer.sendall(struct.pack("<i", RPC_TRACKER_MAGIC))
            assert peer.recv(4) == struct.pack("<i", RPC_TRACKER_MAGIC)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets the connection
        for _ in range(3):
            assert list_devices(HERE, served.port) == {}
    finally:
        served.stop()
    assert capfd.readouterr() == ("", "")


def test_a_server_dies_with_whoever_started_it(tracker):
    code = (
        "import sys, time; from tcl_core.measure.serving import start_server\n"
        f"print(start_server({HERE!r}, 0, 'orphan', ({HERE!r}, {tracker})).process.pid, flush=True); time.sleep(300)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    server = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    psutil.wait_procs([server], timeout=20)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE

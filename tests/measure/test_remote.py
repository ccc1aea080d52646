"""Programs measured on devices behind a real tracker: two servers of this machine, one of which must not survive."""

from __future__ import annotations

import math
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from _bad_programs import ABORTS, HANGS, WRITES_FAR_AWAY

from tcl_core import platforms
from tcl_core.collect import Collection, measure_all
from tcl_core.errors import PlatformError
from tcl_core.features.encode import Encoder
from tcl_core.journal import iter_journal
from tcl_core.measure import pool, remote
from tcl_core.measure.device import Crashed, TimedOut
from tcl_core.measure.job import Job, Limits, Protocol, Setup, Tracker
from tcl_core.measure.pool import Runner
from tcl_core.measure.remote import RemoteClock, answer_s, session_s
from tcl_core.measure.serving import start_server, start_tracker
from tcl_core.measure.tracker import NoDevice, list_devices
from tcl_core.measure.worker import Worker
from tcl_core.platforms import CPUS, host_fingerprint, remote_target
from tcl_core.programs.pool import sample_programs
from tcl_core.programs.sketches import trace_to_json

HERE = "127.0.0.1"
MCPU = next(name for name, cpu in CPUS.items() if cpu.machine == platform.machine())
TARGET = remote_target(MCPU, 1)
ROOT = Path(__file__).parents[2]
FOREIGN = {"x86_64": "aarch64-linux-gnu", "aarch64": "x86_64-linux-gnu"}[platform.machine()]


def free_port():
    with socket.create_server((HERE, 0)) as taken:
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def tracker():
    served = start_tracker(HERE, free_port())
    yield served.port
    served.stop()


@contextmanager
def serving_key(tracker, key):
    served = start_server(HERE, free_port(), key, (HERE, tracker))
    try:
        while key not in list_devices(HERE, tracker):
            time.sleep(0.05)
        yield served
    finally:
        served.stop()


@pytest.fixture(scope="module")
def board(tracker):
    with serving_key(tracker, "board") as served:
        yield served


def setup_for(tracker, key="board", run_s=5.0, **options):
    options = {"wait_s": 20.0, "lease_s": 20.0, "transfer_s": 2.0} | options
    protocol = Protocol(repeats=2, max_repeats=2, min_repeat_ms=0.2, max_number=10, threads=1)
    return Setup(TARGET, protocol, Limits(30.0, run_s, 16 << 30), Tracker(HERE, tracker, key, **options))


@pytest.fixture(scope="module")
def worker(tracker, board):
    worker = Worker(setup_for(tracker))
    yield worker
    worker.release()


@pytest.fixture
def job(matmul):
    sketch = matmul.sketches[0]
    decisions = tuple(matmul.space.canonical(sketch, matmul.sample(sketch, 1)[0]).tolist())
    return Job(matmul.task.key, matmul.task.module_json, trace_to_json(sketch.trace), decisions, check=True)


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
    latencies_s = worker.time(0, math.inf)
    assert len(latencies_s) == 2 and all(0 < s < 1 for s in latencies_s)
    assert worker.check(0) < 1e-5
    assert 0 < worker.sentinel() < 1
    assert list_devices(HERE, tracker)["board"].free == 0
    worker.release()
    assert free(tracker) == 1


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


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core leaves no choice")
def test_a_worker_of_a_device_is_bound_to_no_core():
    """It runs nothing; and where threads cannot be bound here, they may be there."""
    worker, before = Worker(setup_for(9190)), os.sched_getaffinity(0)
    assert worker.setup.protocol.pin_threads
    with worker._steady():
        assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("is_ours", [True, False])
def test_threads_are_set_as_the_server_can(is_ours):
    """TVM's own takes no list of cores: it is asked for its fast ones, and binds what it will."""
    known, asked = {"runtime.config_threadpool": "TVM's", **({remote.SET_THREADS: "ours"} if is_ours else {})}, []

    def get_function(name):
        if name not in known:
            raise AttributeError(name)
        return lambda *arguments: asked.append((known[name], *arguments))

    session = remote._Session.__new__(remote._Session)
    session._rpc = SimpleNamespace(get_function=get_function)
    session._set_threads(4, True)
    assert asked == [("ours", 4, 1) if is_ours else ("TVM's", 1, 4)]


@pytest.mark.parametrize("module_json", [ABORTS, WRITES_FAR_AWAY], ids=["abort", "segfault"])
def test_a_program_that_crashes_two_sessions_is_the_one_that_crashes_them(worker, job, module_json, board):
    worker.build(0, Job("bad", module_json))
    worker.build(1, job)
    with pytest.raises(Crashed, match="^the process that ran it on the device died 2 times$"):
        worker.time(0, math.inf)
    assert len(worker.time(1, math.inf)) == 2  # the same server serves the next one
    assert board.process.poll() is None


def test_a_program_that_hangs_is_stopped_by_the_server(tracker, job, board):
    worker = Worker(setup_for(tracker, run_s=0.2, lease_s=0.0, transfer_s=0.6))
    worker.build(0, Job("hangs", HANGS))
    worker.build(1, job)
    with pytest.raises(TimedOut):
        worker.time(0, math.inf)
    assert len(worker.time(1, math.inf)) == 2
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


def test_the_clock_is_the_devices(monkeypatch):
    """Each repeat is one evaluation there; with cold caches each run is one."""
    calls = []

    class Module:
        def time_evaluator(self, name, device, number, repeat, cache_flush_bytes):
            calls.append((name, device, number, repeat, cache_flush_bytes))
            seconds = np.arange(1, repeat + 1, dtype=float)
            return lambda *arguments: type("Result", (), {"results": tuple(seconds)})

    class Device:
        session = type("Session", (), {"device": "its cpu", "tensor": staticmethod(lambda tensor: tensor)})

        def module(self, program):
            return Module()

    warm, cold = (RemoteClock(Device(), "program", ["a"], flush) for flush in (False, True))
    assert (warm.once(), warm.means(5, 3)) == (1.0, [1.0, 2.0, 3.0])
    assert (cold.once(), cold.means(2, 2)) == (1.0, [1.5, 3.5])
    flushed = remote.FLUSHED_BYTES
    assert [call[2:] for call in calls] == [(1, 1, 0), (5, 3, 0), (1, 1, flushed), (1, 4, flushed)]


def test_limits():
    """The server ends a session before its silence means that it is gone."""
    setup = setup_for(1, run_s=5.0, lease_s=20.0, transfer_s=10.0)
    assert session_s(setup) == 40.0 < answer_s(setup)


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
        assert len(worker.time(0, math.inf)) == 2 and worker.check(0) < 1e-5
        worker.release()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# --- other machine types ---


def built_for(machine, matmul):
    from tcl_core.compat import load_tvm, make_target

    target = make_target({"kind": "llvm", "mtriple": machine, "num-cores": 1})
    return load_tvm().tirx.build(matmul.module, target=target)


def test_code_of_another_machine_type_is_sent_as_objects(matmul, monkeypatch, tmp_path):
    """Which the server links, where no cross compiler is here; nothing is left of them."""
    monkeypatch.setattr(remote.shutil, "which", lambda name: None)
    monkeypatch.setattr(remote.tempfile, "tempdir", str(tmp_path))
    suffix, data = remote._exporter({"mtriple": FOREIGN})(built_for(FOREIGN, matmul))
    assert suffix == ".tar" and os.listdir(tmp_path) == []
    archive = tmp_path / "program.tar"
    archive.write_bytes(data)
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    headers = [path.read_bytes()[:20] for path in tmp_path.glob("*.o")]
    machine = {"aarch64": 183, "x86_64": 62}[FOREIGN.split("-")[0]]  # e_machine of ELF
    assert headers and all(h[:4] == b"\x7fELF" and int.from_bytes(h[18:20], "little") == machine for h in headers)


def test_a_cross_compiler_links_here_where_there_is_one(matmul, monkeypatch, tmp_path):
    compiler = tmp_path / "cross-g++"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done; echo linked > "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setattr(remote.shutil, "which", {f"{FOREIGN}-g++": str(compiler)}.get)
    assert remote._exporter({"mtriple": FOREIGN})(built_for(FOREIGN, matmul)) == (".so", b"linked\n")


def test_a_server_links_the_objects(tracker, board, job, monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(remote.host_platform, "machine", lambda: "another")
        elsewhere.setattr(remote.shutil, "which", lambda name: None)
        worker = Worker(setup_for(tracker))
    worker.build(0, job)
    assert worker.built[0][1].suffix == ".tar"
    assert len(worker.time(0, math.inf)) == 2
    worker.release()


def test_a_device_that_loads_nothing_is_nobodys_failure_but_the_set_ups(tracker, board, job, monkeypatch):
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


def test_a_device_that_takes_no_session(monkeypatch, job):
    """The tracker lists it, but nothing listens there."""
    port = free_port()
    monkeypatch.setattr(remote, "request_device", lambda tracker, on_wait: (HERE, port, "board:0.1"))
    worker = Worker(setup_for(9190, wait_s=0.0))
    worker.build(0, job)
    with pytest.raises(NoDevice) as raised:
        worker.time(0, math.inf)
    start = f"the device {HERE}:{port} of key 'board', which the RPC tracker at {HERE}:9190 offers, takes no session ("
    assert str(raised.value).startswith(start) and str(raised.value).endswith("(what was recorded is kept)")


def test_waiting_for_a_busy_device_takes_nothing_from_the_patience_with_sessions(monkeypatch):
    """Which begins with the first session that fails."""
    now, starts = [0.0], [OSError("refused"), OSError("refused"), "a session"]

    def request_device(tracker, on_wait):
        now[0] += 1000.0 if len(starts) == 3 else 5.0
        return HERE, 1, "board:0.1"

    def start(*arguments):
        found = starts.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(remote, "request_device", request_device)
    monkeypatch.setattr(remote, "_Session", start)
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None))
    assert remote.RemoteDevice(setup_for(9190, wait_s=20.0), lambda: None)._connect() == "a session"


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
    assert len(worker.time(0, math.inf)) == 2 and ends == []
    worker.release()


@pytest.fixture
def collection(tracker, tiny_tasks, tmp_path, monkeypatch):
    """Real programs of three tasks, in batches of eight, on devices of the key ``pair``."""
    monkeypatch.setattr(pool, "PER_WORKER", 4)
    monkeypatch.setattr(pool, "threads", lambda: 2)
    tinies = tiny_tasks.values()
    programs = [p for t in tinies for p in sample_programs(t.task, t.sketches, t.space, 6, 0)]
    encoder = Encoder([t.task for t in tinies], [row for t in tinies for row in t.rows()])
    setup = setup_for(tracker, "pair")
    return Collection(programs, encoder, (1.0,) * 11, "rpc pair: here", setup, tmp_path / "journal")


def sessions_of(served):
    return psutil.Process(served.process.pid).children()


def kill_in_a_session(served, count):
    """Wait until the server is at work for the ``count``-th time, and kill it."""
    seen = set()
    while len(seen) < count and served.process.poll() is None:
        seen |= {child.pid for child in sessions_of(served)}
        time.sleep(0.002)
    served.process.kill()


def test_a_server_that_dies_in_the_middle_loses_nothing(tracker, collection):
    """Two workers on two devices; every program is recorded once, none is blamed, and no process is left."""
    with serving_key(tracker, "pair") as doomed, serving_key(tracker, "pair"):
        children = {p.pid for p in psutil.Process().children(recursive=True)} - {doomed.process.pid}
        killer = threading.Thread(target=kill_in_a_session, args=(doomed, 1), daemon=True)
        killer.start()
        measure_all(collection, 0.5, lambda record: None)
        killer.join()
        assert doomed.process.wait() == -signal.SIGKILL
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
    with pytest.raises(PlatformError, match="^the tracker exited with 1 at its start; is the port taken?"):
        start_tracker(HERE, tracker)


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


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", '{"host": 7, "hardware": {}}', '{"host": "a", "hardware": []}', "[" * 100_000, None]
)
def test_a_server_that_does_not_say_what_its_host_is(text):
    with pytest.raises(PlatformError, match="^the device 10.0.0.4:9090 does not say what its host is"):
        remote._read_description(text, "10.0.0.4:9090")
    told = remote._read_description('{"host": "a\\u001b[2J", "hardware": {"cores": 4}, "more": 1}', "10.0.0.4:9090")
    assert told == {"host": "a\\x1b[2J", "hardware": {"cores": 4}}

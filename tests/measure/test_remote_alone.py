"""The side of a remote device that is here, without any device: limits, clocks, threads, exported code, patience."""

from __future__ import annotations

import math
import os
import platform
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tcl_core.errors import PlatformError
from tcl_core.measure import remote, serving as serving_module
from tcl_core.measure.eviction import SLOW
from tcl_core.measure.remote import RemoteClock, answer_s, session_s
from tcl_core.measure.tracker import NoDevice
from tcl_core.measure.worker import Worker
from tests.measure import boards
from tests.measure.boards import HERE, free_port, setup_for

job = boards.job
FOREIGN = {"x86_64": "aarch64-linux-gnu", "aarch64": "x86_64-linux-gnu"}[platform.machine()]


# --- one program ---


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


def test_the_clock_is_the_devices():
    """Each repeat is one evaluation there; with cold caches each run is one."""
    calls = []

    class Module:
        def time_evaluator(self, name, device, number, repeat, cache_flush_bytes, f_preproc):
            calls.append((name, device, number, repeat, cache_flush_bytes, f_preproc))
            seconds = np.arange(1, repeat + 1, dtype=float)
            return lambda *arguments: type("Result", (), {"results": tuple(seconds)})

    class Device:
        session = type("Session", (), {"device": "its cpu", "tensor": staticmethod(lambda tensor: tensor), "flushed_bytes": 7})

        def module(self, program):
            return Module()

    warm, flushed = (RemoteClock(Device(), "program", ["a"], flush) for flush in (False, True))
    assert (warm.once(), warm.mean(5)) == (1.0, 1.0)
    assert (flushed.once(), flushed.mean(4)) == (1.0, 2.5)
    assert RemoteClock(Device(), "program", ["a"], flush=False, cold=True).mean(3) == 2.0
    assert RemoteClock(Device(), "program", ["a"], flush=True, cold=True).mean(2) == 1.5  # all is evicted as it is
    assert [call[2:] for call in calls] == [
        (1, 1, 0, ""), (5, 1, 0, ""), (1, 1, 7, ""), (1, 4, 7, ""), (1, 3, 0, SLOW), (1, 2, 7, ""),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("hardware", "mib"),
    [({}, 64), ({"l1_kib": 48.0, "l2_kib": 1024.0}, 64), ({"l2_kib": 2048.0, "l3_kib": 98304.0}, 192), ({"l3_kib": 1e308}, 1024)],
)
def test_as_much_is_written_as_empties_the_devices_caches(monkeypatch, hardware, mib):
    monkeypatch.setattr(remote._Session, "describe", lambda self: {"host": "rpc board: a CPU", "hardware": hardware})
    assert remote._Session.__new__(remote._Session).flushed_bytes == mib << 20


def test_a_clock_flushes_where_the_protocol_says_so_but_for_the_sentinel():
    setup = setup_for(9190)
    setup = replace(setup, protocol=replace(setup.protocol, flush_cache=True))
    device = remote.RemoteDevice(setup, lambda: None)
    assert [device.clock("program", [], flush=flush)._flush for flush in (True, False)] == [True, False]
    assert not remote.RemoteDevice(setup_for(9190), lambda: None).clock("program", [])._flush


def test_limits():
    """The server ends a session before its silence means that it is gone."""
    setup = setup_for(1, run_s=5.0, lease_s=20.0, transfer_s=10.0)
    assert session_s(setup) == 40.0 < answer_s(setup)


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


# --- no device ---


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


def test_a_device_that_takes_no_session_keeps_nobody_from_another(monkeypatch):
    """Patience is with each device, and ends the work only where no other is left."""
    now, offered = [0.0], iter(["bad", "bad", "good"])

    def request_device(tracker, on_wait):
        now[0] += 30.0
        return next(offered), 1, "board:0.1"

    def start(address, *arguments):
        if address == "bad":
            raise OSError("refused")
        return f"a session of {address}"

    monkeypatch.setattr(remote, "request_device", request_device)
    monkeypatch.setattr(remote, "count_devices", lambda tracker: 2)
    monkeypatch.setattr(remote, "_Session", start)
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None))
    device = remote.RemoteDevice(setup_for(9190, wait_s=20.0), lambda: None)
    monkeypatch.setattr(device, "_require_same_host", lambda session: None)
    assert device._connect() == "a session of good"
    offered = iter(["bad"] * 100)
    with pytest.raises(NoDevice, match="bad:1 of key 'board'"):
        device._connect()
    assert next(offered, None)  # long before the last


# --- servers ---


@pytest.mark.parametrize("error", [RuntimeError("it died"), OSError(28, "No space left on device"), BlockingIOError("no fork")])
def test_a_session_that_ends_badly_or_cannot_begin_ends_no_server(error, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    closed = []

    def serving(sock, address, options, libraries):
        os.chdir("/")
        raise error

    serving_module._surviving_crashes(serving)(SimpleNamespace(close=lambda: closed.append(True)), None, {}, None)
    assert closed == [True] and Path.cwd() == tmp_path and "a session ended badly" in capfd.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "[]", "{}", '{"host": 7, "hardware": {}}', '{"host": "a", "hardware": []}', "[" * 100_000, None),
        *(f'{{"host": "a", "hardware": {{"{name}": {value}}}}}' for name, value in (("sockets", 1), ("cores", "NaN"), ("cores", 10**400))),
    ],
    ids=lambda text: repr(text)[:40],
)
def test_a_server_that_does_not_say_what_its_host_is(text):
    with pytest.raises(PlatformError, match="^the device 10.0.0.4:9090 does not say what its host is"):
        remote._read_description(text, "10.0.0.4:9090")
    told = remote._read_description('{"host": "a\\u001b[2J", "hardware": {"cores": 4}, "more": 1}', "10.0.0.4:9090")
    assert told == {"host": "a\\x1b[2J", "hardware": {"cores": 4}}

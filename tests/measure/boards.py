"""Servers of this machine in the place of boards, and what a worker of one is given: an address, a key, a program."""

from __future__ import annotations

import platform
import socket
import time
from contextlib import contextmanager

import psutil
import pytest

from tcl_core.measure.job import Job, Limits, Protocol, Setup, Tracker
from tcl_core.measure.serving import start_server
from tcl_core.measure.tracker import list_devices
from tcl_core.platforms import CPUS, remote_target
from tcl_core.programs.sketches import trace_to_json

HERE = "127.0.0.1"
MCPU = next(name for name, cpu in CPUS.items() if cpu.machine == platform.machine())
TARGET = remote_target(MCPU, 1)
START_S = 60.0


def free_port():
    with socket.create_server((HERE, 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def serving_key(tracker, key):
    served = start_server(HERE, free_port(), key, (HERE, tracker))
    end = time.monotonic() + START_S
    try:
        while key not in list_devices(HERE, tracker):
            assert time.monotonic() < end and served.process.poll() is None, "the server does not register"
            time.sleep(0.05)
        yield served
    finally:
        served.stop()


def sessions_of(served):
    return psutil.Process(served.process.pid).children()


def kill_in_a_session(served, count):
    """Wait until the server is at work for the ``count``-th time, and kill it; not at work for long, it lives on."""
    seen, end = set(), time.monotonic() + START_S
    while len(seen) < count and served.process.poll() is None:
        if time.monotonic() > end:
            return
        seen |= {child.pid for child in sessions_of(served)}
        time.sleep(0.002)
    served.process.kill()


def setup_for(tracker, key="board", run_s=5.0, **options):
    options = {"wait_s": 20.0, "lease_s": 20.0, "transfer_s": 2.0} | options
    protocol = Protocol(repeats=2, max_repeats=2, min_repeat_ms=0.2, max_number=10, threads=1)
    return Setup(TARGET, protocol, Limits(30.0, run_s, 16 << 30), Tracker(HERE, tracker, key, **options))


@pytest.fixture
def job(matmul):
    sketch = matmul.sketches[0]
    decisions = tuple(matmul.space.canonical(sketch, matmul.sample(sketch, 1)[0]).tolist())
    return Job(matmul.task.key, matmul.task.module_json, trace_to_json(sketch.trace), decisions, check=True)

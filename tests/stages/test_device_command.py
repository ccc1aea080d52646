"""`tcl device`: what it starts, says and ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from conftest import interruptible

from tcl_core.errors import PlatformError, UsageError
from tcl_core.measure.tracker import Listed
from tcl_core.stages import device

ROOT = Path(__file__).parents[2]
HERE = "127.0.0.1"


def free_port():
    with socket.create_server((HERE, 0)) as taken:
        return taken.getsockname()[1]


@pytest.fixture
def tcl(tmp_path):
    """Start `tcl device ...` without a project, with temporary files in ``tmp``; all of it is gone at the end."""
    started = []
    (tmp_path / "tmp").mkdir()

    def start(*words, **options):
        process = subprocess.Popen(
            [sys.executable, "-m", "tcl_core.cli", "device", *words], cwd=tmp_path, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path / "tmp")},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **{"preexec_fn": interruptible, **options},
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def said_until(process, last):
    lines = []
    while not lines or last not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], f"it ended before it said {last!r}: {lines}"
    return [line.rstrip("\n") for line in lines]


def test_a_tracker_and_a_server_until_ctrl_c(tcl):
    address = f"{HERE}:{free_port()}"
    first = tcl("serve", "--key", "board", "--tracker", address)
    lines = said_until(first, "Ctrl-C")
    assert lines[0] == f"tracker listens at {address}" and lines[2] == "Ctrl-C ends it"
    assert lines[1].startswith(f"server of key 'board' listens at {HERE}:")
    assert lines[1].endswith(f", registered with the tracker at {address}")
    second = tcl("serve", "--key", "board", "--tracker", address, "--port", str(port := free_port()))
    assert said_until(second, "Ctrl-C")[0].startswith(f"server of key 'board' listens at {HERE}:{port}, ")
    listed, _ = tcl("list", "--tracker", address).communicate(timeout=60)
    assert [line.split() for line in listed.splitlines()] == [["key", "free", "total", "waiting"], ["board", "2", "2", "0"]]
    children = [p for process in (first, second) for p in psutil.Process(process.pid).children(recursive=True)]
    assert len(children) >= 3
    for process in (second, first):
        process.send_signal(signal.SIGINT)
        assert (process.communicate(timeout=60)[0], process.returncode) == ("", 0)
    psutil.wait_procs(children, timeout=20)
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in children)
    listed, _ = tcl("list", "--tracker", address).communicate(timeout=60)
    assert listed.startswith(f"tcl: no RPC tracker answers at {address} (") and listed.count("\n") == 1


def test_a_child_that_ends_ends_it_all(tcl):
    address = f"{HERE}:{free_port()}"
    process = tcl("serve", "--tracker", address)
    assert said_until(process, "Ctrl-C") == [f"tracker listens at {address}", "Ctrl-C ends it"]
    (tracker,) = psutil.Process(process.pid).children()
    tracker.kill()
    said, _ = process.communicate(timeout=60)
    assert (said, process.returncode) == ("tcl: the tracker or the server ended; its last words are above\n", 4)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_it_leaves_nothing(tcl, tmp_path, number):
    """Such as the end of its terminal."""
    process = tcl("serve", "--tracker", f"{HERE}:{free_port()}")
    said_until(process, "Ctrl-C")
    assert len(os.listdir(tmp_path / "tmp")) == 1
    process.send_signal(number)
    assert process.wait(timeout=20) == 128 + number
    assert os.listdir(tmp_path / "tmp") == []


def test_under_nohup_it_outlives_its_terminal(tcl):
    ignoring = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    process = tcl("serve", "--tracker", f"{HERE}:{free_port()}", **ignoring)
    said_until(process, "Ctrl-C")
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert int(re.search(r"SigIgn:\s*(\w+)", status)[1], 16) & 1 << signal.SIGHUP - 1


class Child:
    """In place of a process; ends at once."""

    def __init__(self, *arguments):
        self.arguments, self.port, self.process, self.stopped = arguments, 9091, self, 0

    def poll(self):
        return 0

    def stop(self):
        self.stopped += 1


@pytest.fixture
def children(monkeypatch):
    """What is started instead of processes, and the trackers: where each answers, and the keys of its servers."""
    started, trackers = [], {}

    def list_devices(host, port):
        if (host, port) not in trackers:
            raise PlatformError("no tracker")
        return {key: Listed(count, count, 0) for key, count in Counter(trackers[host, port]).items()}

    def start_tracker(host, port):
        trackers[host, port] = []
        started.append(Child("tracker", host, port))
        return started[-1]

    def start_server(host, port, key, tracker):
        trackers[tracker].append(key)
        started.append(Child("server", host, port, key, tracker))
        return started[-1]

    for name, fake in (("list_devices", list_devices), ("start_tracker", start_tracker), ("start_server", start_server)):
        monkeypatch.setattr(device, name, fake)
    started_and_trackers = type("Children", (), {"started": started, "trackers": trackers})
    return started_and_trackers


def serve(key, tracker=f"{HERE}:9190", host=HERE, port=None):
    said = []
    with pytest.raises(PlatformError, match="^the tracker or the server ended"):
        device.serve(key, tracker, host, port, said.append)
    return said


def test_a_tracker_that_answers_is_used(children):
    children.trackers["10.9.9.9", 9190] = []
    said = serve("board", "10.9.9.9:9190", host="0.0.0.0", port=9095)
    (server,) = children.started
    assert server.arguments == ("server", "0.0.0.0", 9095, "board", ("10.9.9.9", 9190)) and server.stopped == 1
    assert said[-2] == "server of key 'board' listens at 0.0.0.0:9091, registered with the tracker at 10.9.9.9:9190"


def test_an_address_that_others_reach_is_warned_of(children):
    warning = (
        "warning: {} can be reached from other machines, and TVM's RPC asks nobody who they are: whoever reaches it can run "
        "any program here as you; do so only in a network that you trust"
    )
    assert serve("board", tracker="0.0.0.0:9190", host="0.0.0.0")[0] == warning.format("0.0.0.0")
    assert serve("other", host="0.0.0.0")[0] == warning.format("0.0.0.0")
    assert serve(None, tracker="0.0.0.0:9191")[0] == warning.format("0.0.0.0")
    assert not any("warning" in line for line in serve("board"))


def test_a_tracker_elsewhere_is_not_started_here(children):
    with pytest.raises(PlatformError) as raised:
        device.serve("board", "192.0.2.1:9190", "0.0.0.0", None, lambda line: None)
    assert str(raised.value) == (
        "no RPC tracker answers at 192.0.2.1:9190; start one there with: tcl device serve --tracker 192.0.2.1:9190"
    )
    assert children.started == []


def test_a_server_that_its_tracker_could_not_reach(children):
    children.trackers["192.0.2.1", 9190] = []
    with pytest.raises(UsageError, match="^nobody else could reach a server at 127.0.0.1; name this machine's address"):
        device.serve("board", "192.0.2.1:9190", HERE, None, lambda line: None)


def test_nothing_to_do(children):
    children.trackers[HERE, 9190] = []
    with pytest.raises(UsageError, match=f"^a tracker answers at {HERE}:9190 already; name a --key"):
        device.serve(None, f"{HERE}:9190", HERE, None, lambda line: None)


def test_a_server_that_does_not_register(children, monkeypatch):
    monkeypatch.setattr(device, "REGISTER_S", 0.0)
    monkeypatch.setattr(device, "POLL_S", 0.0)
    lost = Child()
    monkeypatch.setattr(device, "start_server", lambda *arguments: time.sleep(0.01) or lost)
    with pytest.raises(PlatformError, match=f"^the server did not register with the tracker at {HERE}:9190 within 0 s; try again$"):
        device.serve("board", f"{HERE}:9190", HERE, None, lambda line: None)
    assert lost.stopped == 1 and children.started[0].stopped == 1


def test_another_server_of_the_key_is_not_taken_for_this_one(children, monkeypatch):
    """It has registered when there is one more."""
    children.trackers[HERE, 9190], said = ["board"], []
    monkeypatch.setattr(device, "POLL_S", 0.0)
    monkeypatch.setattr(device, "start_server", lambda *arguments: Child())
    monkeypatch.setattr(device, "REGISTER_S", 0.0)
    with pytest.raises(PlatformError, match="^the server did not register"):
        device.serve("board", f"{HERE}:9190", HERE, None, said.append)
    assert said == []


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":9190", "localhost:port", "localhost:99999", "localhost:0"])
def test_an_address_that_is_none(children, address):
    for act in (lambda: device.devices_at(address), lambda: device.serve(None, address, HERE, None, print)):
        with pytest.raises(UsageError) as raised:
            act()
        assert str(raised.value) == f"--tracker is '{address}'; it must be a host and a port, such as 127.0.0.1:9190"


def test_a_host_that_is_none(children):
    with pytest.raises(UsageError, match="^there is no host 'no.such.host.invalid' here"):
        device.serve(None, "no.such.host.invalid:9190", HERE, None, lambda line: None)


def test_a_tracker_without_devices(children):
    children.trackers[HERE, 9190] = []
    assert device.devices_text(device.devices_at(f"{HERE}:9190")) == (
        f"the tracker at {HERE}:9190 has no devices; register one with: tcl device serve --key NAME --tracker {HERE}:9190"
    )


@pytest.mark.parametrize("key", ["", "a b", "a\x1b[31m", "a\nb", "a" * 101, "a'"])
def test_a_key_that_no_list_could_show(children, key):
    with pytest.raises(UsageError, match="^--key is '.*'; it must be a name of letters, digits and . _ : ") as raised:
        device.serve(key, f"{HERE}:9190", HERE, None, print)
    assert str(raised.value).isprintable() and children.started == []


@pytest.mark.parametrize("host", ["", "a" * 64, "..", "é" * 300])
def test_a_host_to_listen_at_that_is_none(children, host):
    with pytest.raises(UsageError, match="^there is no host '"):
        device.serve("board", f"{HERE}:9190", host, None, lambda line: None)


def test_keys_of_a_tracker_are_shown_as_what_they_are(children):
    children.trackers[HERE, 9190] = ["\x1b[2Jboard"]
    assert device.devices_text(device.devices_at(f"{HERE}:9190")).splitlines()[1].split() == ["\\x1b[2Jboard", "1", "1", "0"]
    assert device.devices_at(f"{HERE}:9190") == {
        "tracker": f"{HERE}:9190", "devices": [{"key": "\x1b[2Jboard", "servers": 1, "free": 1, "waiting": 0}],
    }  # fmt: skip

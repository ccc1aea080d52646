"""What the RPC tracker is asked, against a stand-in that speaks its language; real ones are in test_remote."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from contextlib import suppress

import pytest

from tcl_core.errors import PlatformError
from tcl_core.measure import tracker as tracker_module
from tcl_core.measure.job import Tracker
from tcl_core.measure.tracker import MAGIC, REQUEST, SUMMARY, Listed, NoDevice, count_devices, list_devices, request_device

SERVERS = [{"key": "server:pi4", "addr": ["10.0.0.4", 9090]}, {"key": "server:pi4", "addr": ["10.0.0.5", 9090]}]


class StandIn:
    """A tracker that answers as told: bytes instead of its magic number, or (request's code -> answer; None: silence;
    bytes: these, and then the connection is closed).
    """

    def __init__(self, answers, magic=struct.pack("<i", MAGIC)):
        self.answers, self.magic, self.asked = answers, magic, []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self.socket.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, connection.makefile("rb") as file:
            assert file.read(4) == struct.pack("<i", MAGIC)
            connection.sendall(self.magic)
            while size := file.read(4):
                message = json.loads(file.read(*struct.unpack("<i", size)))
                self.asked.append(message)
                answer = self.answers[message[0]]
                answer = answer() if callable(answer) else answer
                if isinstance(answer, bytes):
                    connection.sendall(answer)
                    return
                if answer is not None:
                    text = json.dumps(answer).encode()
                    connection.sendall(struct.pack("<i", len(text)) + text)


def summary(servers, **queues):
    return [0, {"server_info": servers, "queue_info": queues}]


@pytest.fixture
def stand_in(monkeypatch):
    monkeypatch.setattr(tracker_module, "POLL_S", 0.01)
    monkeypatch.setattr(tracker_module, "ANSWER_S", 0.5)
    made = []

    def start(answers, **options):
        made.append(StandIn(answers, **options))
        return made[-1]

    yield start
    for one in made:
        one.socket.close()


def test_devices_by_key(stand_in):
    told = summary(SERVERS, pi4={"free": 1, "pending": 0}, gone={"free": 0, "pending": 3})
    tracker = stand_in({SUMMARY: told})
    assert list_devices(tracker.host, tracker.port) == {"gone": Listed(0, 0, 3), "pi4": Listed(2, 1, 0)}
    assert [count_devices(Tracker(tracker.host, tracker.port, key)) for key in ("pi4", "gone", "other")] == [2, 0, 0]


def test_a_device_that_is_free(stand_in):
    tracker = stand_in({REQUEST: [0, ["10.0.0.4", 9090, "pi4:0.123"]]})
    assert request_device(Tracker(tracker.host, tracker.port, "pi4")) == ("10.0.0.4", 9090, "pi4:0.123")
    assert tracker.asked == [[REQUEST, "pi4", "", 1]]


def test_a_busy_device_is_waited_for_as_long_as_it_is_listed(stand_in, monkeypatch):
    """Longer than one that is not there: it serves somebody else."""
    monkeypatch.setattr(tracker_module, "BUSY_S", 0.2)
    tracker, waits = stand_in({REQUEST: None, SUMMARY: summary(SERVERS, pi4={"free": 0, "pending": 1})}), []
    with pytest.raises(NoDevice) as raised:
        request_device(Tracker(tracker.host, tracker.port, "pi4", wait_s=0), lambda: waits.append(1))
    assert str(raised.value) == (
        f"no device of key 'pi4' at the RPC tracker 127.0.0.1:{tracker.port} was free for 0.2 s; "
        "tcl device list shows who waits; run again when one is (what was recorded is kept)"
    )
    assert len(waits) > 1


def test_a_device_that_is_not_there(stand_in):
    tracker = stand_in({REQUEST: None, SUMMARY: summary(SERVERS)})
    with pytest.raises(NoDevice) as raised:
        request_device(Tracker(tracker.host, tracker.port, "pi5", wait_s=0.1))
    address = f"127.0.0.1:{tracker.port}"
    assert str(raised.value) == (
        f"the RPC tracker at {address} has had no device of key 'pi5' for 0.1 s; start one with: "
        f"tcl device serve --key pi5 --tracker {address} (what was recorded is kept)"
    )


def test_a_tracker_that_comes_back_is_asked_again(stand_in):
    """It is away while it starts anew; a device's servers register by themselves."""
    tracker = stand_in({REQUEST: [0, ["10.0.0.4", 9090, "pi4:0.1"]]}, magic=b"")
    seen = []

    def on_wait():
        seen.append(1)
        tracker.magic = struct.pack("<i", MAGIC)

    assert request_device(Tracker(tracker.host, tracker.port, "pi4"), on_wait)[1] == 9090
    assert seen


@pytest.mark.parametrize("magic", [b"HTTP", b"", struct.pack("<i", MAGIC + 1)], ids=["other", "closed", "not-ours"])
def test_what_is_no_tracker(stand_in, magic):
    other = stand_in({}, magic=magic)
    with pytest.raises(PlatformError) as raised:
        list_devices(other.host, other.port)
    message = str(raised.value)
    assert message.startswith(f"no RPC tracker answers at 127.0.0.1:{other.port} (") and "\n" not in message
    assert message.endswith(f"; start one with: tcl device serve --tracker 127.0.0.1:{other.port}")


def test_a_tracker_that_falls_silent_is_not_waited_for(stand_in):
    silent = stand_in({SUMMARY: None})
    with pytest.raises(PlatformError, match="timed out"):
        list_devices(silent.host, silent.port)


def test_where_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(PlatformError, match=rf"^no RPC tracker answers at 127.0.0.1:{port} \(.*refused"):
        list_devices("127.0.0.1", port)
    assert count_devices(Tracker("127.0.0.1", port, "pi4")) == 0


def framed(text: bytes) -> bytes:
    return struct.pack("<i", len(text)) + text


LIES = {
    "two-gigabytes": (struct.pack("<i", 2**31 - 1), "its answer would have 2,147,483,647 bytes"),
    "negative": (struct.pack("<i", -5), "its answer would have -5 bytes"),
    "no-json": (framed(b"hello"), "its answer is no JSON"),
    "no-utf8": (framed(b'["\xff"]'), "its answer is no JSON"),
    "nested": (framed(b"[" * 100_000), "its answer is no JSON"),
    "null": (framed(b"null"), "its answer is not a tracker's"),
    "short": (framed(b"[0]"), "its answer is not a tracker's"),
    "texts-for-numbers": (framed(json.dumps(summary([], a={"free": "1", "pending": 0})).encode()), "its answer is not a tracker's"),
    "keys-in-no-list": (framed(json.dumps(summary(7)).encode()), "its answer is not a tracker's"),
    "key-no-text": (framed(json.dumps(summary([{"key": 7}])).encode()), "its answer is not a tracker's"),
    "torn": (struct.pack("<i", 100) + b"[0", "the tracker closed the connection"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_no_tracker_gives(stand_in, lie):
    answer, told = LIES[lie]
    tracker = stand_in({SUMMARY: answer, REQUEST: answer})
    with pytest.raises(PlatformError) as raised:
        list_devices(tracker.host, tracker.port)
    assert str(raised.value).startswith(f"no RPC tracker answers at 127.0.0.1:{tracker.port} ({told}); start one with: ")
    with pytest.raises(NoDevice, match="has had no device of key 'pi4' for 0.02 s"):
        request_device(Tracker(tracker.host, tracker.port, "pi4", wait_s=0.02))


@pytest.mark.parametrize("device", [None, [], ["10.0.0.4"], ["10.0.0.4", "9090", "k"], ["10.0.0.4", 99999, "k"], [7, 9090, "k"]])
def test_a_device_that_is_none(stand_in, device):
    tracker = stand_in({REQUEST: [0, device]})
    with pytest.raises(NoDevice):
        request_device(Tracker(tracker.host, tracker.port, "pi4", wait_s=0.02))


def test_an_answer_has_a_time_limit_as_a_whole(monkeypatch):
    """A byte now and then does not make it endless."""
    monkeypatch.setattr(tracker_module, "ANSWER_S", 0.3)

    def dribble(listening):
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.sendall(struct.pack("<i", MAGIC) + struct.pack("<i", 1000))
            for _ in range(200):
                connection.sendall(b" ")
                time.sleep(0.05)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=dribble, args=(listening,), daemon=True).start()
        started = time.monotonic()
        with pytest.raises(PlatformError, match=r"\(timed out\)"):
            list_devices(*listening.getsockname())
    assert time.monotonic() - started < 5

"""Client of TVM's RPC tracker: lists its devices, and requests one that is free.

The protocol is length-prefixed JSON, after both sides have sent a magic number (``tvm/rpc/tracker.py``).  This module
does not load TVM, so that listing devices is instant, and every wait has a limit.  Anything may listen at an address:
an answer has a limit on its total time and on its size, and must have a tracker's shape.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tcl_core.errors import PlatformError
from tcl_core.files import shown
from tcl_core.measure.job import Tracker

MAGIC = 0x2F271
REQUEST, SUMMARY = 4, 6  # of tvm.rpc.base.TrackerCode
ANSWER_S = 5.0  # a live tracker answers within it
LONGEST = 16 << 20  # bytes of an answer; one of ten thousand servers has about 1 MB
POLL_S = 1.0
# How long a device may serve somebody else.
BUSY_S = 600.0


@dataclass(frozen=True)
class Listed:
    """Number of servers that the tracker knows under one key, of free ones, and of waiting requests."""

    servers: int
    free: int
    waiting: int


NONE = Listed(0, 0, 0)


def list_devices(host: str, port: int) -> dict[str, Listed]:
    """The devices under each key.  Raises PlatformError where no tracker answers."""
    with _connected(host, port) as tracker, _shape_checked():
        summary = tracker.ask(SUMMARY)[1]
        servers = Counter(server["key"].removeprefix("server:") for server in summary["server_info"])
        queues = {key: (_count(queue["free"]), _count(queue["pending"])) for key, queue in summary["queue_info"].items()}
    return {key: Listed(servers[key], *queues.get(key, (0, 0))) for key in sorted({*servers, *queues})}


@contextmanager
def _shape_checked() -> Iterator[None]:
    """Turn what Python raises for an answer of another shape into ConnectionError."""
    try:
        yield
    except (TypeError, LookupError, AttributeError):
        raise ConnectionError("its answer is not a tracker's") from None


def _count(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


class NoDevice(PlatformError):
    """No device could be had in time."""


def count_devices(tracker: Tracker) -> int:
    """Number of devices now listed under the key; 0 where no tracker answers, which ``request_device`` reports."""
    try:
        return list_devices(tracker.host, tracker.port).get(tracker.key, NONE).servers
    except PlatformError:
        return 0


def request_device(tracker: Tracker, on_wait: Callable[[], Any] = lambda: None) -> tuple[str, int, str]:
    """Wait for a free device and return its address, port and session key; calls ``on_wait`` while there is none.

    Raises NoDevice when none is listed for ``tracker.wait_s``, or none is free for ``BUSY_S``.
    """
    patience = _Patience(tracker)
    while True:
        try:
            with _connected(tracker.host, tracker.port) as connection:
                connection.send(REQUEST, tracker.key, "", 1)
                while not connection.has_answer(POLL_S):
                    on_wait()
                    patience.renew(list_devices(tracker.host, tracker.port))
                return _address(connection.receive())
        except NoDevice:
            raise
        except PlatformError:  # the tracker may be restarting
            on_wait()
            patience.renew({})
            time.sleep(POLL_S)


def _address(answer: Any) -> tuple[str, int, str]:
    with _shape_checked():
        address, port, key = answer[1]
        if not (isinstance(address, str) and isinstance(key, str) and 0 < _count(port) < 2**16):
            raise TypeError
        return address, port, key


class _Patience:
    """Limits the wait for a device: longer for one that serves somebody else than for one that is not listed."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.started = self.last_listed = time.monotonic()

    def renew(self, devices: Mapping[str, Listed]) -> None:
        """Note which devices are listed now.  Raises NoDevice once the wait has been too long."""
        tracker, now = self.tracker, time.monotonic()
        if devices.get(tracker.key, NONE).servers:
            self.last_listed = now
        if now - self.last_listed > tracker.wait_s:
            raise NoDevice(
                f"the RPC tracker at {tracker.address} has had no device of key '{tracker.key}' for {tracker.wait_s:g} s; "
                f"start one with: tcl device serve --key {tracker.key} --tracker {tracker.address} "
                "(what was recorded is kept)"
            )
        if now - self.started > BUSY_S:
            raise NoDevice(
                f"no device of key '{tracker.key}' at the RPC tracker {tracker.address} was free for {BUSY_S:g} s; "
                "tcl device list shows who waits; run again when one is (what was recorded is kept)"
            )


class _Connection:
    """One connection to a tracker; every wait for it has a limit."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._deadline = time.monotonic() + ANSWER_S
        sock.sendall(struct.pack("<i", MAGIC))
        if struct.unpack("<i", self._read(4))[0] != MAGIC:
            raise ConnectionError("this is no RPC tracker")

    def ask(self, *message: Any) -> Any:
        self.send(*message)
        return self.receive()

    def send(self, *message: Any) -> None:
        text = json.dumps(message).encode()
        self._socket.settimeout(ANSWER_S)
        self._socket.sendall(struct.pack("<i", len(text)) + text)

    def receive(self) -> Any:
        self._deadline = time.monotonic() + ANSWER_S
        (size,) = struct.unpack("<i", self._read(4))
        if not 0 <= size <= LONGEST:
            raise ConnectionError(f"its answer would have {size:,} bytes")
        return json.loads(self._read(size))

    def has_answer(self, within_s: float) -> bool:
        return bool(select.select([self._socket], [], [], within_s)[0])

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:  # a byte now and then must not prolong it forever
                raise TimeoutError("timed out")
            self._socket.settimeout(left_s)
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionError("the tracker closed the connection")
            data += part
        return bytes(data)


@contextmanager
def _connected(host: str, port: int) -> Iterator[_Connection]:
    """A connection to the tracker.  Raises PlatformError where none answers, or it stops answering."""
    try:
        with socket.create_connection((host, port), ANSWER_S) as sock:
            yield _Connection(sock)
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not JSON, or an invalid host name
        why = "its answer is no JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError) else shown(error)
        raise PlatformError(
            f"no RPC tracker answers at {host}:{port} ({why}); start one with: tcl device serve --tracker {host}:{port}"
        ) from None

"""`tcl device`: start TVM's RPC tracker and servers, and list registered devices.  Needs no project and no data."""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any

from tcl_core.errors import PlatformError, UsageError
from tcl_core.files import printable, shown
from tcl_core.measure.serving import Served, start_server, start_tracker
from tcl_core.measure.tracker import NONE, list_devices
from tcl_core.platforms.rpc import check_key, parse_address

REGISTER_S = 30.0
POLL_S = 0.5


def serve(key: str | None, tracker: str, host: str, port: int | None, say: Callable[[str], Any]) -> None:
    """Run a server under ``key`` (None: no server) and, if no tracker answers at ``tracker``, a tracker, until interrupted.

    The server listens at ``host`` and ``port`` (None: the first free one); ``say`` gets the messages for the user.
    Raises UsageError for an invalid address and where there is nothing to do; PlatformError where no tracker answers at
    another machine's address, where a port is taken, and when the tracker or the server ends.
    """
    address = parse_address(tracker, "--tracker")
    if key is not None:
        check_key(key, "--key")
    for name in {address[0], host} if key else {address[0]}:
        _warn_of(name, say)
    if key and _is_loopback(host) and not _is_loopback(address[0]):
        raise UsageError(f"nobody else could reach a server at {host}; name this machine's address with --host")
    with ExitStack() as children, suppress(KeyboardInterrupt):
        served = _tracker(key, address, children, say)
        if key:
            served.append(_server(key, address, host, port, children, say))
        say("Ctrl-C ends it")
        _until_one_ends(served)


def _tracker(key: str | None, address: tuple[str, int], children: ExitStack, say: Callable[[str], Any]) -> list[Served]:
    """Start the tracker if none answers; returns it in a list, which is empty otherwise."""
    if _answers(address):
        if key is None:
            raise UsageError(f"a tracker answers at {_text(address)} already; name a --key to serve this machine under")
        return []
    if not _is_here(address[0]):
        raise PlatformError(
            f"no RPC tracker answers at {_text(address)}; start one there with: tcl device serve --tracker {_text(address)}"
        )
    tracker = start_tracker(*address)
    children.callback(tracker.stop)
    say(f"tracker listens at {_text(address)}")
    return [tracker]


def _server(key: str, tracker: tuple[str, int], host: str, port: int | None, children: ExitStack, say: Callable[[str], Any]) -> Served:
    before = _servers(key, tracker)
    server = start_server(host, port or 0, key, tracker)
    children.callback(server.stop)
    deadline = time.monotonic() + REGISTER_S
    while _servers(key, tracker) <= before:
        if time.monotonic() > deadline:
            raise PlatformError(f"the server did not register with the tracker at {_text(tracker)} within {REGISTER_S:g} s; try again")
        time.sleep(POLL_S)
    say(f"server of key '{key}' listens at {host}:{server.port}, registered with the tracker at {_text(tracker)}")
    return server


def _servers(key: str, tracker: tuple[str, int]) -> int:
    return list_devices(*tracker).get(key, NONE).servers


def _until_one_ends(served: list[Served]) -> None:
    while all(child.process.poll() is None for child in served):
        time.sleep(POLL_S)
    raise PlatformError("the tracker or the server ended; its last words are above")


def devices_at(tracker: str) -> dict[str, Any]:
    """A tracker's keys with their devices, for JSON.  Raises UsageError for an invalid address, PlatformError where none answers."""
    listed = list_devices(*parse_address(tracker, "--tracker"))
    return {"tracker": tracker, "devices": [{"key": key, **asdict(devices)} for key, devices in listed.items()]}


def devices_text(found: Mapping[str, Any]) -> str:
    """What ``devices_at`` found, as a table."""
    tracker, devices = found["tracker"], found["devices"]
    if not devices:
        return f"the tracker at {tracker} has no devices; register one with: tcl device serve --key NAME --tracker {tracker}"
    lines = [f"{'key':20s} {'free':>5s} {'total':>5s} waiting"]
    return "\n".join([*lines, *(f"{printable(d['key']):20s} {d['free']:5d} {d['servers']:5d} {d['waiting']:7d}" for d in devices)])


def _answers(address: tuple[str, int]) -> bool:
    try:
        list_devices(*address)
    except PlatformError:
        return False
    return True


def _warn_of(host: str, say: Callable[[str], Any]) -> None:
    if not _is_loopback(host):
        say(
            f"warning: {host} can be reached from other machines, and TVM's RPC asks nobody who they are: "
            "whoever reaches it can run any program here as you; do so only in a network that you trust"
        )


def _is_loopback(host: str) -> bool:
    return _ip(host).is_loopback


def _is_here(host: str) -> bool:
    """Whether this machine has the address, so that a tracker can listen at it."""
    with socket.socket(socket.AF_INET6 if _ip(host).version == 6 else socket.AF_INET) as sock:
        try:
            sock.bind((host, 0))
        except (OSError, UnicodeError):
            return False
    return True


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(socket.getaddrinfo(host, None)[0][4][0])
    except (OSError, UnicodeError):  # a label longer than 63 characters, or an empty one
        raise UsageError(f"there is no host '{shown(host)}' here; name an address such as 127.0.0.1") from None


def _text(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"

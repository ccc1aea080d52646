"""Platforms of kind ``rpc``: the CPUs of devices behind TVM's RPC tracker."""

from __future__ import annotations

import re
from typing import Any

from tcl_core.errors import UsageError
from tcl_core.files import shown
from tcl_core.platforms.cpus import cpu_named, target_of
from tcl_core.platforms.hardware import hardware_under
from tcl_core.platforms.kind import Ask, CpuKind, Found, Platform


class Rpc(CpuKind):
    """Programs are built here and sent to a device, which also describes itself."""

    name = "rpc"
    keys = ("tracker", "key", "mcpu", "threads")
    remote = apart = True
    elsewhere = "a device behind RPC"

    def check(self, platform: Platform, where: str) -> None:
        parse_address(platform.tracker, f"{where}.tracker")
        check_key(platform.key, f"{where}.key")

    def why_not(self, platform: Platform, design_space: str) -> str | None:
        """Always None: a missing device is an error, not a reason to skip its platform."""
        return None

    def target(self, platform: Platform) -> dict[str, Any]:
        return remote_target(platform.mcpu, platform.threads)

    def behind(self, platform: Platform) -> tuple[str, int, str]:
        return *parse_address(platform.tracker, "tracker"), platform.key

    def find(self, platform: Platform, ask: Ask) -> Found:
        told = ask.describe()
        fields = {**told["hardware"], "threads": platform.threads}
        return Found(told["host"], hardware_under(platform.mcpu, fields, platform.hardware))


def remote_target(mcpu: str, threads: int) -> dict[str, Any]:
    """TVM's target dictionary of another machine, for which code is generated here: Linux on the CPU's machine type.

    Raises UsageError for an unknown CPU name.
    """
    return {**target_of(mcpu, threads), "mtriple": f"{cpu_named(mcpu).machine}-linux-gnu"}


def parse_address(text: str, where: str) -> tuple[str, int]:
    """Host and port of ``host:port``.  Raises UsageError, which names ``where`` the text stands."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 2**16):
        raise UsageError(f"{where} is '{shown(text)}'; it must be a host and a port, such as 127.0.0.1:9190")
    return host, int(port)


def check_key(key: str, where: str) -> None:
    """Raise UsageError for a device key that a command line or a tracker's list could not show."""
    if not re.fullmatch(r"[\w.:+-]{1,100}", key):
        raise UsageError(f"{where} is '{shown(key)}'; it must be a name of letters, digits and . _ : + -, such as pi4")

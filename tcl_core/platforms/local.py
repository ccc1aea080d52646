"""Platforms of kind ``local``: this machine's CPU under an LLVM CPU name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tcl_core.platforms.cpus import target_of
from tcl_core.platforms.hardware import read_hardware
from tcl_core.platforms.host import host_fingerprint, threads, why_not
from tcl_core.platforms.kind import Ask, CpuKind, Found, Platform


class Local(CpuKind):
    """Programs run in the process that compiled them."""

    name = "local"
    keys = ("mcpu",)

    def why_not(self, platform: Platform, design_space: str) -> str | None:
        return why_not(platform.mcpu)

    def target(self, platform: Platform) -> dict[str, Any]:
        return target_of(platform.mcpu, threads())

    def why_unfit(self, target: Mapping[str, Any]) -> str | None:
        return why_not(str(target["mcpu"])) if "mcpu" in target else None

    def find(self, platform: Platform, ask: Ask) -> Found:
        given = {"bandwidth_gbs": ask.bandwidth_gbs(), **platform.hardware}
        return Found(host_fingerprint(), read_hardware(platform.mcpu, given))

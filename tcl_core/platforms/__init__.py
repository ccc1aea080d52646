"""Platforms: their hardware, this host, and the kinds of platform.

The rest of TCL knows kinds only by ``KINDS``: it asks a kind its questions, never which kind it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tcl_core.platforms.cpus import (
    CPUS as CPUS,
    cpu_named as cpu_named,
    simd_bytes as simd_bytes,
    target_cpu as target_cpu,
    target_of as target_of,
)
from tcl_core.platforms.cuda import Cuda
from tcl_core.platforms.hardware import (
    Hardware as Hardware,
    hardware_under as hardware_under,
    read_hardware as read_hardware,
    read_saved_hardware as read_saved_hardware,
    save_hardware as save_hardware,
    saved_hardware as saved_hardware,
    vector_of as vector_of,
)
from tcl_core.platforms.host import (
    USABLE_CORES as USABLE_CORES,
    copy_bandwidth_gbs as copy_bandwidth_gbs,
    cpu_flags as cpu_flags,
    host_fields as host_fields,
    host_fingerprint as host_fingerprint,
    largest_cache_bytes as largest_cache_bytes,
    threads as threads,
    why_not as why_not,
    widest_cpu as widest_cpu,
)
from tcl_core.platforms.kind import Ask as Ask, Found as Found, Kind as Kind, Platform
from tcl_core.platforms.local import Local
from tcl_core.platforms.rpc import Rpc, remote_target as remote_target


KINDS: dict[str, Kind] = {kind.name: kind for kind in (Local(), Rpc(), Cuda())}
DESIGN_SPACES = tuple(dict.fromkeys(space for kind in KINDS.values() for space in kind.design_spaces))


def kind_of(platform: Platform) -> Kind:
    """The kind of a platform of params.yaml."""
    return KINDS[platform.kind]


def kind_measured(target: Mapping[str, Any], remote: bool) -> Kind:
    """The kind whose programs TVM compiles for ``target``; ``remote``: whether its devices are behind a tracker."""
    return next(kind for kind in KINDS.values() if (kind.code, kind.remote) == (target["kind"], remote))


def pool_target(design_space: str, threads: int) -> dict[str, Any]:
    """The target for which the candidates' design space is generated, whichever platform they are for."""
    return next(kind for kind in KINDS.values() if design_space in kind.design_spaces).pool_target(design_space, threads)


def what_to_add(design_space: str) -> str:
    """Advice for a machine that runs no platform of params.yaml."""
    if Local().name not in {kind.name for kind in KINDS.values() if design_space in kind.design_spaces}:
        return "programs of this design space need a GPU: run where one is, or go back to CPUs (tcl profile cpu)"
    return f"add one to params.yaml that it can, with mcpu: {widest_cpu() or 'a name by which LLVM knows its CPU'}"

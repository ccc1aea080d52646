"""This host as Linux describes it (/proc, /sys), so that listing platforms needs no compiler."""

from __future__ import annotations

import hashlib
import os
import platform as host_platform
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tcl_core.platforms.cpus import CPUS, cpu_named

AMD = "sse4a"  # a feature that no other maker's CPUs have
# What identifies a host beside other things; others vary with the kernel.  Frozen: with a flag more, records of old would be of another
# host, so it does not grow with ``CPUS``.
FINGERPRINT_FLAGS = frozenset({
    "amx_tile", "asimd", "asimddp", "avx", "avx2", "avx512_bf16", "avx512_fp16", "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl",
    "bmi2", "fma", "sha_ni", "sse4_2", "sve",
})  # fmt: skip

# The main thread's, whichever thread imports this first; read at import, since TVM's runtime pins a process that runs programs to one.
USABLE_CORES = os.sched_getaffinity(os.getpid())


def why_not(mcpu: str) -> str | None:
    """One sentence that says why this machine cannot run code for ``mcpu``; None if it can.  Raises as ``cpu_named``."""
    cpu = cpu_named(mcpu)
    if host_platform.machine() != cpu.machine:
        return f"this machine is {host_platform.machine()}, {mcpu} is {cpu.machine}"
    missing = sorted(cpu.features - cpu_flags())
    return f"this CPU lacks {', '.join(missing)}" if missing else None


def widest_cpu(simd_bytes: float = 0) -> str | None:
    """The CPU name with the widest vectors, then the most features, whose code this machine can run; None if there is none.

    simd_bytes  only names with vectors of this size; 0: any

    AMD's names are only for AMD's CPUs: ``CPUS`` does not list all that they add, and LLVM orders instructions to suit them.
    """
    of_amd = AMD in cpu_flags()
    named = [name for name, cpu in CPUS.items() if simd_bytes in (0, cpu.simd_bytes) and (of_amd or not name.startswith("znver"))]
    there = [name for name in named if why_not(name) is None]
    return max(there, key=lambda name: (CPUS[name].simd_bytes, len(CPUS[name].features)), default=None)


@cache
def cpu_flags() -> frozenset[str]:
    """The host CPU's feature flags as Linux names them."""
    return frozenset(_cpuinfo().get("flags", _cpuinfo().get("Features", "")).split())


@cache
def _cpuinfo() -> dict[str, str]:
    """The first processor's entry of /proc/cpuinfo."""
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def threads() -> int:
    """Logical CPUs that this process may use; what ``num-cores`` and the runtime's threads are set to.

    The CPU quota of a container or a service counts too: with more threads than it grants, timings would measure the scheduler.
    """
    return max(1, min([len(USABLE_CORES), *_quotas()]))


def _quotas() -> Iterator[int]:
    """Whole CPUs that each control group grants of those that hold this process, its own and all above; of cgroup v2 and v1."""
    for line in (_read_text("/proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        names = path.strip("/").split("/")
        for depth in range(len(names) + 1):
            group = "/".join(names[:depth])
            if not controllers:  # v2
                quota, _, period = (_read_text(f"/sys/fs/cgroup/{group}/cpu.max") or "").partition(" ")
            elif "cpu" in controllers.split(","):
                quota, period = (_read_text(f"/sys/fs/cgroup/cpu/{group}/cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
            else:
                continue
            if quota.isdigit() and period.isdigit():
                yield int(quota) // int(period)


def host_fingerprint() -> str:
    """Identify the machine that latencies belong to: CPU model, number of threads, and a hash over stepping, flags and cache sizes.

    Two machines with equal fingerprints have the same processor, so their latencies may be compared.
    """
    info = _cpuinfo()
    model = re.sub(r"\s+", " ", info.get("model name", info.get("CPU part", host_platform.machine())))
    details = repr((model, info.get("stepping"), sorted(cpu_flags() & FINGERPRINT_FLAGS), sorted(_caches_kib().items())))
    return f"{model} x{threads()} {hashlib.sha256(details.encode()).hexdigest()[:8]}"


def host_fields() -> dict[str, float]:
    """What Linux reports about this machine, by field name of ``Hardware``; 0 where it reports nothing."""
    caches = _caches_kib()
    return {
        "cores": min(_physical_cores(), threads()),  # a quota grants no more
        "threads": threads(),
        "base_ghz": _base_ghz(),
        "turbo_ghz": _read_number("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq") / 1e6,
        "l1_kib": caches.get(1, 0.0),
        "l2_kib": caches.get(2, 0.0),
        "l3_kib": caches.get(3, 0.0),
        "memory_gib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30,
    }


@cache
def _caches_kib() -> dict[int, float]:
    """Level -> KiB of the data or unified caches that the first CPU sees."""
    found = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            scale = {"K": 1, "M": 1024, "G": 1024**2}[size[-1]]
            found[int(level)] = float(size[:-1]) * scale
    return found


def largest_cache_bytes() -> int:
    """Bytes of the largest cache; 64 MiB where Linux reports none."""
    return int(max(_caches_kib().values(), default=65536.0) * 1024)


def _physical_cores() -> int:
    """Distinct (package, core) pairs among the CPUs this process may use."""
    pairs = set()
    for cpu in USABLE_CORES:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            pairs.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            pairs.add(("", str(cpu)))
    return len(pairs)


def _base_ghz() -> float:
    """Base clock from cpufreq, else from the model's name, else the rate of the time stamp counter (half the BogoMIPS on x86)."""
    if khz := _read_number("/sys/devices/system/cpu/cpu0/cpufreq/base_frequency"):
        return khz / 1e6
    if named := re.search(r"@\s*([\d.]+)GHz", _cpuinfo().get("model name", "")):
        return float(named.group(1))
    return float(_cpuinfo().get("bogomips", 0)) / 2e3 if host_platform.machine() == "x86_64" else 0.0


def _read_text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _read_number(path: str) -> float:
    try:
        return float(_read_text(path) or 0)
    except ValueError:
        return 0.0


def copy_bandwidth_gbs() -> float:
    """Memory bandwidth, GB/s read plus written: the fastest of six copies of 64 MiB by one thread."""
    import numpy as np

    source = np.ones(64 << 20, dtype=np.uint8)
    target = np.empty_like(source)
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - start)
    return 2 * source.nbytes / min(seconds) / 1e9

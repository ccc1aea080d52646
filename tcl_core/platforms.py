"""Platforms: name -> TVM target, whether this machine can run it, and its hardware vector (a GPU's are in ``gpu``).

Knows the host through /proc and /sys only, so that listing platforms needs no compiler.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform as host_platform
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from tcl_core.checked import damaged, read_json, write_json
from tcl_core.errors import DataError, unknown_name
from tcl_core.files import shown
from tcl_core.gpu import DESIGN_SPACES, POOL_LIMITS, GpuHardware

AGAIN = "delete it and run its stage again, or fetch it with: dvc checkout"  # what is to be done about a stage's damaged file


@dataclass(frozen=True)
class Cpu:
    """What an LLVM CPU name stands for: machine type, features that code for it uses, bytes of a SIMD register."""

    machine: str
    features: frozenset[str]
    simd_bytes: int


_AVX2 = {"sse4_2", "avx2", "fma", "bmi2"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}
CPUS: dict[str, Cpu] = {
    "nehalem": Cpu("x86_64", frozenset({"sse4_2"}), 16),
    "sandybridge": Cpu("x86_64", frozenset({"sse4_2", "avx"}), 32),
    "haswell": Cpu("x86_64", frozenset(_AVX2), 32),
    "znver3": Cpu("x86_64", frozenset(_AVX2 | {"sha_ni"}), 32),
    "skylake-avx512": Cpu("x86_64", frozenset(_AVX512), 64),
    "znver5": Cpu("x86_64", frozenset(_AVX512 | {"avx512_bf16", "sha_ni"}), 64),
    "sapphirerapids": Cpu("x86_64", frozenset(_AVX512 | {"amx_tile", "avx512_fp16"}), 64),
    "cortex-a72": Cpu("aarch64", frozenset({"asimd"}), 16),
    "neoverse-n1": Cpu("aarch64", frozenset({"asimd", "asimddp"}), 16),
    "neoverse-v1": Cpu("aarch64", frozenset({"asimd", "sve"}), 32),
}


@dataclass(frozen=True)
class Hardware:
    """The eleven CPU fields of arXiv 2604.12891, in the order in which models see them; 0 stands for unknown.

    Frequencies in GHz, caches in KiB (L1 and L2 per core, L3 shared), memory in GiB, bandwidth in GB/s.
    """

    cores: float = 0.0
    threads: float = 0.0
    base_ghz: float = 0.0
    turbo_ghz: float = 0.0
    l1_kib: float = 0.0
    l2_kib: float = 0.0
    l3_kib: float = 0.0
    memory_channels: float = 0.0
    memory_gib: float = 0.0
    bandwidth_gbs: float = 0.0
    simd_bytes: float = 0.0

    def vector(self) -> tuple[float, ...]:
        return tuple(getattr(self, f.name) for f in fields(self))


def target_of(mcpu: str, threads: int) -> dict[str, Any]:
    """TVM's target dictionary of the host under an LLVM CPU name."""
    return {"kind": "llvm", "mcpu": mcpu, "num-cores": threads}


def remote_target(mcpu: str, threads: int) -> dict[str, Any]:
    """The same of another machine, whose code is made here: Linux on the CPU's own machine type.  Raises as ``cpu_named``."""
    return {**target_of(mcpu, threads), "mtriple": f"{cpu_named(mcpu).machine}-linux-gnu"}


def pool_target(design_space: str, threads: int) -> dict[str, Any]:
    """The target whose design space the candidates are of: plain LLVM for all CPUs, or CUDA for all GPUs so new."""
    if design_space == "cpu":
        return {"kind": "llvm", "num-cores": threads}
    return {"kind": "cuda", "arch": DESIGN_SPACES[design_space], **POOL_LIMITS}


def cpu_named(mcpu: str) -> Cpu:
    """Raises UsageError for a CPU name that is not in ``CPUS``."""
    if mcpu not in CPUS:
        raise unknown_name("CPU", mcpu, CPUS, "platforms of params.yaml")
    return CPUS[mcpu]


def why_not(mcpu: str) -> str | None:
    """One sentence that says why this machine cannot run code for ``mcpu``; None if it can.  Raises as ``cpu_named``."""
    cpu = cpu_named(mcpu)
    if host_platform.machine() != cpu.machine:
        return f"this machine is {host_platform.machine()}, {mcpu} is {cpu.machine}"
    missing = sorted(cpu.features - cpu_flags())
    return f"this CPU lacks {', '.join(missing)}" if missing else None


# Read at import: TVM's runtime pins a process that runs programs to one of them.
USABLE_CORES = os.sched_getaffinity(0)


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

    A container's CPU quota counts too: with more threads than it grants, timings are of the scheduler.
    """
    quota, _, period = (_read_text("/sys/fs/cgroup/cpu.max") or "max").partition(" ")
    granted = math.ceil(int(quota) / int(period)) if quota.isdigit() and period.isdigit() else len(USABLE_CORES)
    return max(1, min(len(USABLE_CORES), granted))


def host_fingerprint() -> str:
    """Names the machine that latencies belong to: CPU model, usable CPUs, and a hash over cache sizes and flags.

    Two machines with equal fingerprints have the same processor, so their latencies may be compared.
    """
    info = _cpuinfo()
    model = re.sub(r"\s+", " ", info.get("model name", info.get("CPU part", host_platform.machine())))
    known = frozenset().union(*(cpu.features for cpu in CPUS.values()))  # others come and go with the kernel
    details = repr((model, info.get("stepping"), sorted(cpu_flags() & known), sorted(_caches_kib().items())))
    return f"{model} x{threads()} {hashlib.sha256(details.encode()).hexdigest()[:8]}"


def read_hardware(mcpu: str, given: Mapping[str, float] | None = None) -> Hardware:
    """The hardware vector of the host under ``mcpu``; bandwidth is measured (0.2 s) unless it is ``given``.

    Raises UsageError as ``hardware_under`` does.
    """
    measured = {} if "bandwidth_gbs" in (given or {}) else {"bandwidth_gbs": copy_bandwidth_gbs()}
    return hardware_under(mcpu, {**host_fields(), **measured}, given or {})


def hardware_under(mcpu: str, told: Mapping[str, float], given: Mapping[str, float]) -> Hardware:
    """The hardware vector, under ``mcpu``, of a machine that ``told`` these fields of itself.

    What it does not tell stays 0 (unknown) unless ``given``.  Raises UsageError for a given field that does not exist.
    """
    known = {f.name for f in fields(Hardware)}
    for name in given:
        if name not in known:
            raise unknown_name("hardware field", name, known, "platforms of params.yaml")
    told = {"simd_bytes": cpu_named(mcpu).simd_bytes, **told}
    return Hardware(**{k: round(float(v), 3) for k, v in {**told, **given}.items()})


def saved_hardware(saved: Mapping[str, float]) -> Hardware | GpuHardware:
    """The vector whose fields were saved, of a CPU or of a GPU."""
    return GpuHardware(**saved) if "cuda_cores" in saved else Hardware(**saved)


def save_hardware(folder: Path, hardware: Hardware | GpuHardware) -> None:
    write_json(folder / "hardware.json", {**_place(folder), **asdict(hardware)})


def read_saved_hardware(folder: Path) -> Hardware | GpuHardware:
    """The hardware row of records or of a model.  Raises DataError when it is not there."""
    path = folder / "hardware.json"
    try:
        found = read_json(path, AGAIN)
    except FileNotFoundError:
        raise DataError(f"there is no {path}; the stage that writes {folder} writes it: run dvc repro") from None
    platform = found.pop("platform", None)
    if platform is not None and _place(folder).get("platform", platform) != platform:
        raise damaged(path, f"it is that of {shown(platform)}", AGAIN)
    return saved_hardware(found)


def _place(folder: Path) -> dict[str, str]:
    """What a file of ``platform=P/`` says of its place, so that another platform's is noticed there."""
    name = folder.absolute().name
    return {"platform": name.removeprefix("platform=")} if name.startswith("platform=") else {}


def host_fields() -> dict[str, float]:
    """What Linux tells of this machine, by the names of ``Hardware``; 0 where it does not."""
    caches = _caches_kib()
    return {
        "cores": _physical_cores(),
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
    """Bytes of the largest cache; 64 MiB where Linux does not tell."""
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
    """From cpufreq, else from the model's name, else the rate of the time stamp counter (half the BogoMIPS on x86)."""
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
    """Fastest of several copies of 64 MiB by one thread, read plus written bytes per second."""
    import numpy as np

    source = np.ones(64 << 20, dtype=np.uint8)
    target = np.empty_like(source)
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        np.copyto(target, source)
        seconds.append(time.perf_counter() - start)
    return 2 * source.nbytes / min(seconds) / 1e9

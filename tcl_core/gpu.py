"""This machine's NVIDIA GPU as its driver describes it, without a CUDA toolkit, a compiler or a child process.

Of several GPUs, CUDA_VISIBLE_DEVICES selects one.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar

from tcl_core.errors import PlatformError, unknown_name

# Numbers of CUdevice_attribute (CUDA Driver API, "Device Management"); clocks in kHz.
ATTRIBUTES = {
    "max_threads_per_block": 1,
    "max_shared_memory_per_block": 8,
    "thread_warp_size": 10,
    "registers_per_block": 12,
    "clock_khz": 13,
    "multiprocessors": 16,
    "memory_clock_khz": 36,
    "bus_bits": 37,
    "major": 75,
    "minor": 76,
    "fp32_per_fp64": 87,
}
# Compute capability -> FP32 lanes of a multiprocessor (CUDA C++ Programming Guide, "Arithmetic Instructions").
CORES_PER_MULTIPROCESSOR = {
    "6.0": 64, "6.1": 128, "7.0": 64, "7.5": 64, "8.0": 64, "8.6": 128, "8.7": 128, "8.9": 128,
    "9.0": 128, "10.0": 128, "10.3": 128, "11.0": 128, "12.0": 128, "12.1": 128,
}  # fmt: skip
# Library that TVM's CUDA runtime is linked with; without it TVM silently leaves CUDA out.
RUNTIME = "libcudart.so.13"
OLDEST = 75  # ten times the lowest compute capability that CUDA 13, the version of RUNTIME, supports
# Design space of the candidates -> the oldest architecture that runs them; from 8.0 on, copies may be asynchronous.
DESIGN_SPACES = {"cuda": "sm_60", "cuda-sm80": "sm_80"}
# Limits that all desktop and server GPUs since sm_60 share, so that one pool of programs serves all of them.
POOL_LIMITS = {
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
    "registers_per_block": 65536,
}


@dataclass(frozen=True)
class GpuHardware:
    """The twelve GPU fields of arXiv 2604.12891, in the order in which models see them; 0 stands for unknown.

    Frequencies in GHz, memory in GiB, bus width in bits, bandwidth in GB/s, rates in 10^12 operations a second.
    """

    cuda_cores: float = 0.0
    base_ghz: float = 0.0
    boost_ghz: float = 0.0
    memory_ghz: float = 0.0
    memory_gib: float = 0.0
    bus_bits: float = 0.0
    bandwidth_gbs: float = 0.0
    fp64_tflops: float = 0.0
    fp32_tflops: float = 0.0
    fp16_tflops: float = 0.0
    int8_tops: float = 0.0
    int4_tops: float = 0.0
    code: ClassVar[str] = "cuda"  # kind of its TVM target

    def vector(self) -> tuple[float, ...]:
        return tuple(getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True)
class Gpu:
    """What the driver tells of a GPU: name, bytes of memory, and ``ATTRIBUTES`` by name."""

    name: str
    memory_bytes: int
    attributes: Mapping[str, int]

    @property
    def capability(self) -> str:
        return f"{self.attributes['major']}.{self.attributes['minor']}"

    @property
    def arch(self) -> str:
        return f"sm_{self.capability.replace('.', '')}"


@cache
def read_gpu() -> Gpu:
    """The first GPU that the driver shows.  Raises PlatformError: no driver, or no GPU behind it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise PlatformError("this machine has no NVIDIA driver (libcuda.so.1); measure on one that has") from None
    count, device, size, name = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        raise PlatformError("the NVIDIA driver shows no GPU; look at nvidia-smi and at CUDA_VISIBLE_DEVICES")
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    return Gpu(name.value.decode(), size.value, {key: _attribute(driver, n, device) for key, n in ATTRIBUTES.items()})


def _attribute(driver: Any, number: int, device: ctypes.c_int) -> int:
    """Value of a device attribute; 0 if the driver does not tell it."""
    value = ctypes.c_int()
    return 0 if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device) else value.value


def why_no_gpu(design_space: str) -> str | None:
    """One sentence that says why this machine cannot build and run programs of a design space; None if it can."""
    if why := why_not_run(design_space):
        return why
    if not cuda_compiler():
        return "there is neither nvcc on the PATH, nor the Python package cuda-bindings and a CUDA toolkit to compile CUDA programs with"
    return None


def why_not_run(design_space: str) -> str | None:
    """One sentence that says why this machine cannot run programs of a design space that were built; None if it can."""
    try:
        arch = read_gpu().arch
    except PlatformError as error:
        return str(error).partition(";")[0]
    if int(arch[3:]) < int(DESIGN_SPACES[design_space][3:]):
        return f"this GPU is {arch}, and the programs of design space {design_space} need {DESIGN_SPACES[design_space]}"
    if int(arch[3:]) < OLDEST:
        return f"this GPU is {arch}, and CUDA 13, which TVM's runtime needs, knows none before sm_{OLDEST}"
    if not _can_load(RUNTIME):
        return f"TVM's CUDA runtime needs {RUNTIME}, which is not found; install CUDA 13, or set LD_LIBRARY_PATH"
    return None


def why_other_gpu(arch: str) -> str | None:
    """Why this machine's GPU cannot run machine code built for an architecture; None if it can."""
    here = read_gpu().arch
    return None if here == arch else f"it was built for {arch}, and this GPU is {here}"


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def cuda_compiler() -> str:
    """Compiler of CUDA code that TVM can use here: "nvcc", "nvrtc" (a library), or "" if there is none.

    nvrtc also needs the toolkit's headers, which it finds by CUDA_PATH or in the toolkit's default folder.
    """
    if shutil.which("nvcc"):
        return "nvcc"
    toolkit = os.environ.get("CUDA_PATH") or os.path.exists("/usr/local/cuda/bin/nvcc")
    return "nvrtc" if toolkit and importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings") else ""


def gpu_target() -> dict[str, Any]:
    """TVM's target dictionary of this machine's GPU.  Raises PlatformError where there is none."""
    gpu = read_gpu()
    return {"kind": "cuda", "arch": gpu.arch, **{name: gpu.attributes[name] for name in POOL_LIMITS}}


def gpu_fingerprint() -> str:
    """Name and digest of the GPU that latencies belong to; equal for the same model with the same clocks and memory."""
    gpu = read_gpu()
    details = repr((gpu.name, gpu.memory_bytes >> 30, sorted(gpu.attributes.items())))
    return f"{gpu.name} {hashlib.sha256(details.encode()).hexdigest()[:8]}"


def read_gpu_hardware(given: Mapping[str, float]) -> GpuHardware:
    """The hardware vector of this machine's GPU.

    The driver knows neither the base clock nor the rates of tensor cores: what it does not tell stays 0 unless
    ``given``.  Raises UsageError for a given field that does not exist, PlatformError where there is no GPU.
    """
    known = {f.name for f in fields(GpuHardware)}
    for name in given:
        if name not in known:
            raise unknown_name("hardware field", name, known, "platforms of params.yaml")
    return GpuHardware(**{k: round(float(v), 3) for k, v in {**_told(read_gpu()), **given}.items()})


def _told(gpu: Gpu) -> dict[str, float]:
    told = gpu.attributes
    cores = CORES_PER_MULTIPROCESSOR.get(gpu.capability, 0) * told["multiprocessors"]
    fp32 = 2 * cores * told["clock_khz"] / 1e9  # a fused multiply-add counts as two operations
    return {
        "cuda_cores": cores,
        "boost_ghz": told["clock_khz"] / 1e6,
        "memory_ghz": told["memory_clock_khz"] / 1e6,
        "memory_gib": gpu.memory_bytes / 2**30,
        "bus_bits": told["bus_bits"],
        "bandwidth_gbs": 2 * told["memory_clock_khz"] * told["bus_bits"] / 8 / 1e6,  # two transfers a clock
        "fp32_tflops": fp32,
        "fp64_tflops": fp32 / told["fp32_per_fp64"] if told["fp32_per_fp64"] else 0.0,
    }

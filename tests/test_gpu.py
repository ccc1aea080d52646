"""What a driver tells of a GPU, and what stands in for one here."""

from __future__ import annotations

import ctypes
import dataclasses
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tcl_core import gpu
from tcl_core.errors import PlatformError, UsageError
from tcl_core.gpu import (
    ATTRIBUTES,
    DESIGN_SPACES,
    Gpu,
    GpuHardware,
    gpu_fingerprint,
    gpu_target,
    read_gpu_hardware,
    why_no_gpu,
    why_not_run,
)
from tcl_core.measure.job import Setup
from tcl_core.measure.runner import _workers_for
from tcl_core.platforms import KINDS, Hardware, pool_target, saved_hardware

H200 = {
    "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152, "thread_warp_size": 32, "registers_per_block": 65536,
    "clock_khz": 1980000, "multiprocessors": 132, "memory_clock_khz": 3201000, "bus_bits": 6144, "major": 9, "minor": 0,
    "fp32_per_fp64": 2,
}  # fmt: skip


can_load = gpu._can_load


@pytest.fixture
def one(monkeypatch):
    """A GPU that this machine seems to have."""

    def pretend(name="NVIDIA H200", memory_bytes=141 << 30, **attributes):
        monkeypatch.setattr(gpu, "read_gpu", lambda: Gpu(name, memory_bytes, H200 | attributes))
        monkeypatch.setattr(gpu.shutil, "which", lambda command: f"/usr/bin/{command}")
        monkeypatch.setattr(gpu, "_can_load", lambda library: True)

    pretend()
    return pretend


class Driver:
    """In place of libcuda: the second GPU of two is never looked at."""

    def __init__(self, attributes=H200, init=0, count=2):
        self.init, self.count = init, count
        self.told = {ATTRIBUTES[name]: value for name, value in attributes.items()}

    def cuInit(self, flags):
        return self.init

    def cuDeviceGetCount(self, count):
        count._obj.value = self.count
        return 0

    def cuDeviceGet(self, device, ordinal):
        assert ordinal == 0
        device._obj.value = 7
        return 0

    def cuDeviceGetName(self, name, length, device):
        name.value = b"NVIDIA H200"
        return 0

    def cuDeviceTotalMem_v2(self, size, device):
        size._obj.value = 141 << 30
        return 0

    def cuDeviceGetAttribute(self, value, number, device):
        assert device.value == 7
        value._obj.value = self.told.get(number, -1)
        return 0 if number in self.told else 1


@pytest.fixture
def driver(monkeypatch):
    def load(driver):
        def library(name):
            assert name == "libcuda.so.1"
            if driver is None:
                raise OSError("no such file")
            return driver

        monkeypatch.setattr(ctypes, "CDLL", library)
        gpu.read_gpu.cache_clear()

    yield load
    gpu.read_gpu.cache_clear()


def test_what_the_driver_tells(driver):
    driver(Driver())
    found = gpu.read_gpu()
    assert (found.name, found.memory_bytes, dict(found.attributes)) == ("NVIDIA H200", 141 << 30, H200)
    assert (found.capability, found.arch) == ("9.0", "sm_90")


def test_what_the_driver_does_not_tell_is_unknown(driver):
    driver(Driver({name: value for name, value in H200.items() if name != "memory_clock_khz"}))
    hardware = read_gpu_hardware({})
    assert (hardware.memory_ghz, hardware.bandwidth_gbs) == (0, 0) and hardware.cuda_cores == 16896


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        (None, "this machine has no NVIDIA driver (libcuda.so.1)"),
        (Driver(init=100), "the NVIDIA driver shows no GPU"),
        (Driver(count=0), "the NVIDIA driver shows no GPU"),
    ],
    ids=["no-driver", "no-init", "none"],
)
def test_why_there_is_no_gpu(driver, there, reason):
    driver(there)
    assert why_no_gpu("cuda") == reason
    with pytest.raises(PlatformError, match="^" + reason.replace("(", r"\(").replace(")", r"\)") + "; "):
        gpu_target()


def test_what_else_a_gpu_needs(one, monkeypatch):
    assert why_no_gpu("cuda") is None and why_no_gpu("cuda-sm80") is None
    one(major=7, minor=5)
    assert why_no_gpu("cuda") is None
    assert why_no_gpu("cuda-sm80") == "this GPU is sm_75, and the programs of design space cuda-sm80 need sm_80"
    one(major=7, minor=0)
    assert why_no_gpu("cuda") == "this GPU is sm_70, and CUDA 13, which TVM's runtime needs, knows none before sm_75"
    one(major=12)
    assert why_no_gpu("cuda-sm80") is None
    monkeypatch.setattr(gpu.shutil, "which", lambda command: None)
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(gpu.os.path, "exists", lambda path: False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert why_no_gpu("cuda").startswith("there is neither nvcc on the PATH, nor the Python package cuda-bindings and a CUDA toolkit")
    assert why_not_run("cuda") is None  # what was built elsewhere runs
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: name)
    assert gpu.cuda_compiler() == ""  # its headers are missing, which PyTorch's packages do not bring
    monkeypatch.setenv("CUDA_PATH", "/opt/cuda")
    assert (gpu.cuda_compiler(), why_no_gpu("cuda")) == ("nvrtc", None)
    monkeypatch.undo()
    one()
    monkeypatch.setattr(gpu, "RUNTIME", "libno-such-cudart.so.13")
    monkeypatch.setattr(gpu, "_can_load", can_load)
    assert why_no_gpu("cuda").startswith("TVM's CUDA runtime needs libno-such-cudart.so.13, which is not found; install CUDA 13")


def test_the_target(one):
    assert gpu_target() == {
        "kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152,
        "thread_warp_size": 32, "registers_per_block": 65536,
    }  # fmt: skip


def test_the_target_of_a_pool():
    assert pool_target("cpu", 4) == {"kind": "llvm", "num-cores": 4}
    for name, arch in DESIGN_SPACES.items():
        assert pool_target(name, 4) == pool_target(name, 8) and pool_target(name, 4)["arch"] == arch


def test_the_vector(one):
    """Derived from the driver's numbers: 132 multiprocessors of 128 lanes, two transfers a clock."""
    hardware = read_gpu_hardware({"base_ghz": 1.1, "fp16_tflops": 989.4})
    assert dataclasses.asdict(hardware) == {
        "cuda_cores": 16896, "base_ghz": 1.1, "boost_ghz": 1.98, "memory_ghz": 3.201, "memory_gib": 141, "bus_bits": 6144,
        "bandwidth_gbs": 4916.736, "fp64_tflops": 33.454, "fp32_tflops": 66.908, "fp16_tflops": 989.4, "int8_tops": 0,
        "int4_tops": 0,
    }  # fmt: skip
    assert hardware.vector() == tuple(dataclasses.asdict(hardware).values()) and len(hardware.vector()) == 12
    one(major=99)
    assert read_gpu_hardware({}).cuda_cores == 0 == read_gpu_hardware({}).fp32_tflops


def test_an_unknown_field(one):
    with pytest.raises(UsageError, match="^unknown hardware field 'bus_bit' in platforms of params.yaml; did you mean 'bus_bits'"):
        read_gpu_hardware({"bus_bit": 4})


def test_the_fingerprint_tells_gpus_apart(one):
    first = gpu_fingerprint()
    assert first.startswith("NVIDIA H200 ") and gpu_fingerprint() == first
    for change in ({"name": "NVIDIA H100"}, {"memory_bytes": 80 << 30}, {"clock_khz": 1755000}):
        one(**change)
        assert gpu_fingerprint() != first, change


def test_saved_vectors_come_back():
    for hardware in (Hardware(cores=2), GpuHardware(cuda_cores=16896)):
        assert saved_hardware(dataclasses.asdict(hardware)) == hardware


def test_looking_for_a_gpu_loads_no_compiler():
    code = "import sys; from tcl_core.gpu import why_no_gpu; why_no_gpu('cuda'); print('tvm' in sys.modules, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


ROOT = Path(__file__).parents[1]
STAGES = (
    "cli",
    "stages.candidates",
    "stages.collecting",
    "stages.training",
    "stages.tuning",
    "tuning.network",
    "models.catalogue",
    "models.mamba",
)


def names_in(lines) -> set[str]:
    """Of packages, as indices write them."""
    found = (re.match(r"[\w.-]+", line) for line in lines if not line.startswith("#"))
    return {match[0].lower().replace("_", "-").replace(".", "-") for match in found if match}


def test_what_gpu_sh_installs_is_all_that_its_stages_need():
    """Beside PyTorch, and what that brings: no other package of the project is there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = names_in([*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)])
    listed = names_in((ROOT / "bench/gpu-requirements.txt").read_text().splitlines())
    assert listed <= declared
    absent = declared - listed - {"numpy", "torch"}
    modules = sorted(module for module, owners in packages_distributions().items() if names_in(owners) & absent)
    assert {"mlflow", "prefect", "transformers"} <= set(modules)
    code = f"import sys; sys.modules.update(dict.fromkeys({modules})); import " + ", ".join(f"tcl_core.{stage}" for stage in STAGES)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_gpu_has_as_many_workers_as_its_memory_holds(monkeypatch):
    """Each has a context and inputs of its own there: sixty-four of them fill a small one, and programs would be blamed."""
    for gib, most in ((1, 1), (8, 4), (141, 70)):
        monkeypatch.setattr("tcl_core.platforms.cuda.read_gpu", lambda gib=gib: Gpu("a GPU", gib << 30, H200))
        assert KINDS["cuda"].most_workers() == most
        monkeypatch.setattr("tcl_core.measure.runner.threads", lambda: 16)
        assert _workers_for(Setup({"kind": "cuda"})) == min(16, most)
    assert _workers_for(Setup({"kind": "llvm"})) == 16

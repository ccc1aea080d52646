"""The LLVM CPU names that TCL knows, and what code for each of them requires of a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tcl_core.compat import load_tvm
from tcl_core.errors import unknown_name


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


def cpu_named(mcpu: str) -> Cpu:
    """The entry of an LLVM CPU name.  Raises UsageError for one that is not in ``CPUS``."""
    if mcpu not in CPUS:
        raise unknown_name("CPU", mcpu, CPUS, "platforms of params.yaml")
    return CPUS[mcpu]


WIDER, NARROWEST = {"avx512f": 64, "avx": 32, "sve": 32}, 16  # bytes of a vector: with each feature, and with none of them


def target_cpu(target: Any) -> str:
    """LLVM's name of a target's CPU; empty if the target names none."""
    return str(target.attrs.get("mcpu", ""))


def simd_bytes(target: Any) -> int:
    """Bytes of a vector register of an LLVM target's CPU: by name where ``CPUS`` has it, else by the target's features."""
    if cpu := CPUS.get(target_cpu(target)):
        return cpu.simd_bytes
    has = load_tvm().target.codegen.target_has_features
    return next((width for feature, width in WIDER.items() if has([feature], target)), NARROWEST)


def target_of(mcpu: str, threads: int) -> dict[str, Any]:
    """TVM's target dictionary for an LLVM CPU name and a number of threads."""
    return {"kind": "llvm", "mcpu": mcpu, "num-cores": threads}

"""Platforms of kind ``cuda``: this machine's NVIDIA GPU (``tcl_core.gpu`` asks its driver)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tcl_core.errors import UsageError
from tcl_core.gpu import (
    DESIGN_SPACES,
    POOL_LIMITS,
    gpu_fingerprint,
    gpu_target,
    read_gpu,
    read_gpu_hardware,
    why_no_gpu,
    why_not_run,
    why_other_gpu,
)
from tcl_core.platforms.kind import Ask, Found, Kind, Measure, Platform


WORKER_BYTES = 2 << 30  # of the GPU's memory per worker


class Cuda(Kind):
    """Programs run on this machine's GPU, whose driver describes it: params.yaml need not."""

    name = code = device = "cuda"
    design_spaces = tuple(DESIGN_SPACES)
    apart = True
    bounded = False  # CUDA reserves far more addresses than it uses

    def check_measure(self, name: str, measure: Measure) -> None:
        if measure.flush_cache:
            raise UsageError(f"measure.flush_cache empties a CPU's caches, and {name} is a GPU; set it to false in params.yaml")

    def why_not(self, platform: Platform, design_space: str) -> str | None:
        return why_no_gpu(design_space)

    def shown_as(self, platform: Platform, runs: bool) -> str:
        return read_gpu().name if runs else "GPU"

    def target(self, platform: Platform) -> dict[str, Any]:
        return gpu_target()

    def pool_target(self, design_space: str, threads: int) -> dict[str, Any]:
        """A target that stands for all GPUs of the design space's architecture or a newer one."""
        return {"kind": self.code, "arch": DESIGN_SPACES[design_space], **POOL_LIMITS}

    def find(self, platform: Platform, ask: Ask) -> Found:
        return Found(gpu_fingerprint(), read_gpu_hardware(platform.hardware))

    def why_unfit(self, target: Mapping[str, Any]) -> str | None:
        return why_not_run("cuda") or why_other_gpu(str(target.get("arch")))

    def unsearched(self, module: Any, target: Any) -> Any:
        """Schedule by TVM's general rules for GPUs: loops that are bound to no thread cannot run on one."""
        from tcl_core.compat import schedule_by_rules

        return schedule_by_rules(module, target)

    def most_workers(self) -> int | None:
        """As many as the GPU's memory holds: each has its own context there, and its tasks' inputs."""
        return max(1, read_gpu().memory_bytes // WORKER_BYTES)

    def prepare(self) -> None:
        from tcl_core.compat import choose_cuda_compiler

        choose_cuda_compiler()

"""The hardware vector of a CPU, as models see it (a GPU's is in ``gpu``), and the file in which records and models keep theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import ClassVar

from tcl_core.checked import AGAIN, damaged, read_json, write_json
from tcl_core.errors import DataError, unknown_name
from tcl_core.files import shown
from tcl_core.gpu import GpuHardware
from tcl_core.platforms.cpus import cpu_named
from tcl_core.platforms.host import copy_bandwidth_gbs, host_fields


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
    code: ClassVar[str] = "llvm"  # kind of TVM's targets for it

    def vector(self) -> tuple[float, ...]:
        return tuple(getattr(self, f.name) for f in fields(self))


def vector_of(hardware: Hardware | Sequence[float]) -> tuple[float, ...]:
    """The numbers of a hardware row, from hardware of any kind or from the numbers themselves."""
    return hardware.vector() if hasattr(hardware, "vector") else tuple(hardware)


def read_hardware(mcpu: str, given: Mapping[str, float] | None = None) -> Hardware:
    """This host's hardware under the CPU name ``mcpu``; measures the bandwidth (0.2 s) unless it is ``given``.

    Raises UsageError as ``hardware_under`` does.
    """
    measured = {} if "bandwidth_gbs" in (given or {}) else {"bandwidth_gbs": copy_bandwidth_gbs()}
    return hardware_under(mcpu, {**host_fields(), **measured}, given or {})


def hardware_under(mcpu: str, told: Mapping[str, float], given: Mapping[str, float]) -> Hardware:
    """Hardware, under the CPU name ``mcpu``, of a machine that reports the fields ``told``.

    Fields in ``given`` override these; what neither has is 0 (unknown), but for the vector width, which follows from ``mcpu``.
    Raises UsageError for an unknown ``mcpu`` or given field.
    """
    known = {f.name for f in fields(Hardware)}
    for name in given:
        if name not in known:
            raise unknown_name("hardware field", name, known, "platforms of params.yaml")
    told = {"simd_bytes": cpu_named(mcpu).simd_bytes, **told}
    return Hardware(**{k: round(float(v), 3) for k, v in {**told, **given}.items()})


def saved_hardware(saved: Mapping[str, float]) -> Hardware | GpuHardware:
    """The hardware, of a CPU or a GPU, whose fields were saved."""
    return GpuHardware(**saved) if "cuda_cores" in saved else Hardware(**saved)


def save_hardware(folder: Path, hardware: Hardware | GpuHardware) -> None:
    write_json(folder / "hardware.json", {**_place(folder), **asdict(hardware)})


def read_saved_hardware(folder: Path) -> Hardware | GpuHardware:
    """The hardware row of records or of a model.  Raises DataError if it is missing, damaged or of another platform."""
    path = folder / "hardware.json"
    try:
        found = read_json(path, AGAIN)
    except FileNotFoundError:
        raise DataError(f"there is no {path}; run the stage that writes {folder} (dvc repro)") from None
    platform = found.pop("platform", None)
    if platform is not None and _place(folder).get("platform", platform) != platform:
        raise damaged(path, f"it is that of {shown(platform)}", AGAIN)
    try:
        return saved_hardware(found)
    except TypeError:
        raise damaged(path, "it has fields that this version does not know", AGAIN) from None


def _place(folder: Path) -> dict[str, str]:
    """The platform that a file in ``platform=P/`` names, so that a file of another platform is noticed there."""
    name = folder.absolute().name
    return {"platform": name.removeprefix("platform=")} if name.startswith("platform=") else {}

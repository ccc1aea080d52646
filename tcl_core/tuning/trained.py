"""A trained cost model, found by its name in the registry or by its folder, with the hardware that it ranks programs for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcl_core import registry
from tcl_core.compat import load_tvm
from tcl_core.errors import DataError, RegistryError, UsageError, unknown_name
from tcl_core.features.tokens import WIDTH
from tcl_core.files import shown
from tcl_core.gpu import GpuHardware
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel, read_description
from tcl_core.platforms import CPUS, Hardware, read_saved_hardware

WIDER, NARROWEST = {"avx512f": 64, "avx": 32, "sve": 32}, 16  # bytes of vectors: with such features, and without
ELSE = "or give the folder of a saved model"


@dataclass(frozen=True)
class Trained:
    """A cost model that reads tokens, the hardware that its programs run on, and what to call it in a sentence."""

    model: CostModel
    hardware: Hardware | GpuHardware
    origin: str

    def check_target(self, target: Any) -> None:
        """Raise UsageError for a TVM target of another kind, or with vectors of another width, than the model's hardware."""
        kind, mine = str(target.kind.name), "cuda" if isinstance(self.hardware, GpuHardware) else "llvm"
        if kind != mine:
            raise UsageError(f"{self.origin} ranks programs of kind {mine}, and the target is of kind {kind}; give a model of its hardware")
        wanted = getattr(self.hardware, "simd_bytes", 0)  # 0: unknown
        if wanted and wanted != (found := simd_bytes(target)):
            raise UsageError(
                f"{self.origin} ranks programs for vectors of {wanted:g} bytes, and those of the target "
                f"({target_cpu(target) or 'no mcpu'}) have {found}; give the mcpu of the model's platform, or a model of this target's"
            )


def target_cpu(target: Any) -> str:
    """LLVM's name of a target's CPU; empty where the target does not say."""
    return str(target.attrs.get("mcpu", ""))


def simd_bytes(target: Any) -> int:
    """Bytes of a vector register of an LLVM target's CPU: by its name where that is known, else by its features."""
    if cpu := CPUS.get(target_cpu(target)):
        return cpu.simd_bytes
    has = load_tvm().target.codegen.target_has_features
    return next((width for feature, width in WIDER.items() if has([feature], target)), NARROWEST)


def find_trained(name: str | Path) -> Trained:
    """The champion of a platform (``host-avx2``) or of its name in the registry (``tcl-host-avx2``), a version of it
    (``host-avx2:3``), or a folder's model.

    A text is a folder where it has a separator in it or names a folder with a model; else the registry is asked.  Raises
    UsageError for a name without a champion and as ``load_trained``, RegistryError where nothing was promoted yet, and where
    there is no such version.
    """
    if isinstance(name, Path) or os.sep in name or (Path(name) / "model.json").exists():
        return load_trained(Path(name))
    if not registry.is_there():
        raise RegistryError(f"there is no model registry at {registry.where()}; set MLFLOW_TRACKING_URI to one, {ELSE}")
    platform, pin = registry.pinned(name)
    if pin is not None:
        platform = platform.removeprefix(registry.model_name(""))
        version, folder = registry.champion(f"{platform}:{pin}")
        return load_trained(folder, f"version {version} of {platform}")
    platform = _with_champion(name)
    version, folder = registry.champion(platform)
    return load_trained(folder, f"the champion of {platform} (version {version})")


def _with_champion(name: str) -> str:
    """The platform that a name means."""
    platforms = registry.platforms_with_champion()
    if not platforms:
        raise RegistryError(f"the registry at {registry.where()} has no champion yet; run: tcl register and then: tcl promote, {ELSE}")
    platform = name if name in platforms else name.removeprefix(registry.model_name(""))
    if platform not in platforms:
        raise unknown_name("champion", shown(name), platforms, f"the registry at {registry.where()}")
    return platform


def load_trained(folder: Path, origin: str = "") -> Trained:
    """The saved model of a folder and the hardware that was saved beside it.

    Raises DataError where either is missing or damaged, and for a model of other tokens than this version makes; UsageError
    for a file, and for a model that reads no tokens, since the search lowers no program before it is measured.
    """
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError(f"{shown(folder)} is no folder; give the folder that a model was saved in")
    description = read_description(folder)
    name, arguments = description["class"], description["arguments"]
    origin = origin or f"the {name} model in {shown(folder)}"
    if catalogue.reads(name) != "tokens":
        raise UsageError(
            f"{origin} reads {catalogue.reads(name)} of lowered programs, and a search ranks programs that are not lowered; "
            "give a model that reads tokens, such as a platform's champion"
        )
    if arguments.get("features", WIDTH) != WIDTH:
        raise DataError(f"{origin} reads tokens of {arguments['features']} numbers, and this version's have {WIDTH}; train it again")
    return Trained(catalogue.load(folder), read_saved_hardware(folder), origin)

"""A trained cost model, found by its name in the registry, by its folder or by its file, with the hardware it ranks programs for.

model = tcl.load("host-avx512")       # the champion of a platform; also "tcl-host-avx512"
model = tcl.load("models/mine")       # a folder that a model was saved in
model.save("mine.safetensors")        # one file, for a compiler that ships with it
model = tcl.load("mine.safetensors")
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core import registry
from tcl_core.checked import read_tensors, write_tensors
from tcl_core.errors import DataError, RegistryError, UsageError, naming_extras, unknown_name
from tcl_core.features.batches import Samples
from tcl_core.files import shown, tidy
from tcl_core.gpu import GpuHardware
from tcl_core.models import catalogue
from tcl_core.models.cost_model import AGAIN, CostModel, read_description, read_weights, whole_model, write_model
from tcl_core.platforms import Hardware, read_saved_hardware, save_hardware, saved_hardware, simd_bytes, target_cpu

ELSE = "or give the folder of a saved model"
FILE = ".safetensors"  # how the name of a model in one file ends


@dataclass(frozen=True)
class Trained:
    """A cost model and the hardware that its programs run on (None where nobody saved it), with what to call it in a sentence."""

    model: CostModel
    hardware: Hardware | GpuHardware | None = None
    origin: str = "the model"

    @property
    def reads(self) -> str:
        """What it reads of a program: tokens, or the per-store features of the lowered program."""
        return self.model.reads

    @property
    def hardware_vector(self) -> tuple[float, ...]:
        """The fields of the hardware row; empty where it is not known."""
        return self.hardware.vector() if self.hardware else ()

    def predict(self, samples: Samples) -> np.ndarray:
        """(N,) float32, higher is better within a task.

        Raises DataError for samples of another width than the model's, and for a model that predicts NaN.
        """
        return self._checked(self.model.predict(samples))

    def _checked(self, scores: np.ndarray) -> np.ndarray:
        if np.isnan(scores).any():
            raise DataError(f"{self.origin} predicts values that are not numbers; train it again")
        return scores

    def embed(self, samples: Samples) -> np.ndarray:
        """(N, E) float32: programs that the model sees alike lie close together."""
        return self.model.embed(samples)

    def predict_and_embed(self, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
        """Both, of programs that are read once; raises as ``predict``."""
        scores, places = self.model.predict_and_embed(samples)
        return self._checked(scores), places

    def save(self, path: str | Path) -> Path:
        """Write the model with its hardware: as one file where the name ends in .safetensors, else as a folder.

        Either appears whole or not at all, and ``load`` reads it.  Raises UsageError for a folder that holds anything else, and for a
        file of a model that is no network alone.
        """
        path = Path(path)
        if path.suffix != FILE:
            with whole_model(path) as folder:
                self._write_into(folder)
            return path
        from safetensors.torch import save

        with tempfile.TemporaryDirectory(prefix="tcl-model-") as scratch:
            folder = Path(scratch) / "model"
            folder.mkdir()
            self._write_into(folder)
            if {file.name for file in folder.iterdir()} - {"hardware.json"} != {"model.json", "weights.safetensors"}:
                raise UsageError(f"{self.origin} is more than one file can hold; save it as a folder, under a name without {FILE}")
            facts = {"model": json.dumps(read_description(folder)), "hardware": json.dumps(asdict(self.hardware) if self.hardware else {})}
            write_tensors(path, save, read_weights(folder / "weights.safetensors"), facts)
        return path

    def _write_into(self, folder: Path) -> None:
        self.model.save(folder / "model")
        for file in (folder / "model").iterdir():
            file.rename(folder / file.name)
        (folder / "model").rmdir()
        if self.hardware:
            save_hardware(folder, self.hardware)

    def check_searches(self) -> None:
        """Raise UsageError unless a search can rank with it: by tokens, since no candidate is lowered, and for known hardware."""
        if self.reads != "tokens":
            raise UsageError(
                f"{self.origin} reads {self.reads} of lowered programs, and a search ranks programs that are not lowered; "
                "give a model that reads tokens, such as a platform's champion"
            )
        if self.hardware is None:
            raise UsageError(
                f"{self.origin} does not say which hardware it is of; give tcl.Trained(model, tcl.hardware()) where it is of this machine, "
                "or a platform's champion"
            )

    def check_target(self, target: Any) -> None:
        """Raise UsageError for a TVM target of another kind, or with vectors of another width, than the model's hardware."""
        kind, mine = str(target.kind.name), self.hardware.code if self.hardware else "llvm"
        if kind != mine:
            raise UsageError(f"{self.origin} ranks programs of kind {mine}, and the target is of kind {kind}; give a model of its hardware")
        wanted = getattr(self.hardware, "simd_bytes", 0)  # 0: unknown
        if wanted and wanted != (found := simd_bytes(target)):
            raise UsageError(
                f"{self.origin} ranks programs for vectors of {wanted:g} bytes, and those of the target "
                f"({target_cpu(target) or 'no mcpu'}) have {found}; give the mcpu of the model's platform, or a model of this target's"
            )


def load(source: str | Path) -> Trained:
    """A trained model: the champion of a platform (``host-avx2``, or by its name in the registry, ``tcl-host-avx2``), a version of
    it (``host-avx2:3``), the model of a folder, or of one file (``.safetensors``).

    A text is a path where it has a separator in it, ends in .safetensors or names a folder with a model; else the registry is
    asked.  Nothing is unpickled.  Raises UsageError for a name without a champion and for a path without a model, RegistryError where nothing was promoted yet or there is no such version,
    DataError where the model is damaged or of other tokens than this version makes.
    """
    path = Path(source)
    if isinstance(source, Path) or os.sep in source or path.suffix == FILE or (path / "model.json").exists():
        return _load_file(path) if path.suffix == FILE else load_folder(path)
    with naming_extras():
        if not registry.is_there():
            raise RegistryError(f"there is no model registry at {registry.where()}; set MLFLOW_TRACKING_URI to one, {ELSE}")
        platform, pin = registry.pinned(source)
        if pin is not None:
            platform = platform.removeprefix(registry.model_name(""))
            version, folder = registry.champion(f"{platform}:{pin}")
            return load_folder(folder, f"version {version} of {platform}")
        platform = _with_champion(source)
        version, folder = registry.champion(platform)
    return load_folder(folder, f"the champion of {platform} (version {version})")


Model = str | Path | Trained | CostModel
"""A trained model, or what ``load`` finds one by."""


def trained_of(model: Model) -> Trained:
    """The model itself, with nothing known of its hardware where it is a bare ``CostModel``.  Raises as ``load``."""
    if isinstance(model, str | Path):
        return load(model)
    return model if isinstance(model, Trained) else Trained(model, origin=f"the {model.name} model")


def find_trained(source: Model) -> Trained:
    """As ``trained_of``, for a search.  Raises also as ``Trained.check_searches``."""
    trained = trained_of(source)
    trained.check_searches()
    return trained


def _with_champion(name: str) -> str:
    """The platform that a name means."""
    platforms = registry.platforms_with_champion()
    if not platforms:
        raise RegistryError(f"the registry at {registry.where()} has no champion yet; run: tcl register and then: tcl promote, {ELSE}")
    platform = name if name in platforms else name.removeprefix(registry.model_name(""))
    if platform not in platforms:
        if os.path.isdir(name):
            raise UsageError(f"{shown(name)} is no saved model (it has no model.json); give the folder that a model was saved in")
        raise unknown_name("champion", shown(name), platforms, f"the registry at {registry.where()}")
    return platform


def load_folder(folder: Path, origin: str = "") -> Trained:
    """The saved model of a folder, and the hardware that was saved beside it, if any was.

    Raises DataError where either is damaged, and for a model of other tokens than this version makes; UsageError where there is no
    model, if no ``origin`` says that one was kept there.
    """
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError(f"{shown(folder)} is no folder; give the folder that a model was saved in")
    tidy(folder)
    if not origin and not (folder / "model.json").exists():
        raise UsageError(f"{shown(folder)} is no saved model (it has no model.json); give the folder that a model was saved in")
    description = read_description(folder)
    origin = origin or f"the {description['class']} model in {shown(folder)}"
    catalogue.check_tokens(description, origin)
    hardware = read_saved_hardware(folder) if (folder / "hardware.json").exists() else None
    return Trained(catalogue.load(folder), hardware, origin)


def _load_file(path: Path) -> Trained:
    """What ``Trained.save`` wrote into one file."""
    from safetensors.torch import load as from_bytes

    try:
        weights, facts = read_tensors(path, from_bytes, AGAIN)
    except FileNotFoundError:
        raise UsageError(f"there is no model {shown(path)}; save one there with: tcl.load(...).save(...)") from None
    if "model" not in facts:
        raise DataError(f"{shown(path)} is no model that Trained.save wrote; save it again")
    description, hardware = {"tokens": 1} | json.loads(facts["model"]), json.loads(facts["hardware"])  # of before they had versions: 1
    with tempfile.TemporaryDirectory(prefix="tcl-model-") as scratch:
        folder = Path(scratch)
        write_model(folder, description, weights)
        found = load_folder(folder, f"the {description['class']} model in {shown(path)}")
    return replace(found, hardware=saved_hardware(hardware) if hardware else None)

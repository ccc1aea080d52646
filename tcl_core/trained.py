"""A trained cost model, found by its name in the registry, by its folder or by its file, with the hardware it ranks programs for.

model = tcl.load("host-avx512")       # the champion of a platform; also "tcl-host-avx512"
model = tcl.load("models/mine")       # a folder that a model was saved in
model.save("mine.safetensors")        # one file, for a compiler that ships with it
model = tcl.load("mine.safetensors")
"""

from __future__ import annotations

import json
import os
import re
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
FILE = ".safetensors"  # suffix of a model in one file


@dataclass(frozen=True)
class Trained:
    """A cost model, the hardware that its programs run on (None: unknown), and what messages call it (``origin``)."""

    model: CostModel
    hardware: Hardware | GpuHardware | None = None
    origin: str = "the model"

    @property
    def reads(self) -> str:
        """Kind of rows that the model reads: "tokens", or "per-store features" of lowered programs."""
        return self.model.reads

    @property
    def hardware_vector(self) -> tuple[float, ...]:
        """Fields of the hardware row; empty if the hardware is unknown."""
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
        """(N, E) float32 embeddings, close together for programs that the model finds similar."""
        return self.model.embed(samples)

    def predict_and_embed(self, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
        """``predict`` and ``embed`` in one pass, if the model can.  Raises as ``predict``."""
        scores, places = self.model.predict_and_embed(samples)
        return self._checked(scores), places

    def save(self, path: str | Path) -> Path:
        """Write the model with its hardware: as one file where the name ends in .safetensors, else as a folder.

        Either appears whole or not at all, and ``load`` reads it.  Raises UsageError for a folder that holds anything else, and for
        one file if the model consists of more than its description and one set of weights.
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
        """Raise UsageError unless a search can use the model: it must read tokens, as no candidate is lowered, and know its hardware."""
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
    """Load a trained model from the registry, a folder or a file.

    source  a platform, for its champion (``host-avx2``, or its name in the registry, ``tcl-host-avx2``); a version of it
            (``host-avx2:3``); or the path of a model's folder or ``.safetensors`` file

    A text is a path if it contains a separator, ends in .safetensors or names a folder with a model; otherwise the registry is
    asked.  Nothing is unpickled.
    Raises UsageError for a name without a champion and for a path without a model, RegistryError if nothing was promoted yet or
    there is no such version, DataError for a model that is damaged or reads other tokens than this version makes.
    """
    path = Path(source)
    if isinstance(source, Path) or os.sep in source or path.suffix == FILE or (path / "model.json").exists():
        return _load_file(path) if path.suffix == FILE else load_folder(path)
    with naming_extras():
        if not registry.is_there():
            raise RegistryError(f"there is no model registry at {registry.where()}; set MLFLOW_TRACKING_URI to one, {ELSE}")
        platform, pin = registry.pinned(source)
        if pin is not None:
            version, folder = registry.champion(f"{platform}:{pin}")
            return load_folder(folder, f"version {version} of {platform}")
        platform = _with_champion(source)
        version, folder = registry.champion(platform)
    return load_folder(folder, f"the champion of {platform} (version {version})")


Model = str | Path | Trained | CostModel
"""A model, or a source that ``load`` takes."""


def trained_of(model: Model) -> Trained:
    """The model as ``Trained``, loaded if need be; the hardware of a bare ``CostModel`` is unknown.  Raises as ``load``."""
    if isinstance(model, str | Path):
        return load(model)
    return model if isinstance(model, Trained) else Trained(model, origin=f"the {model.name} model")


def find_trained(source: Model) -> Trained:
    """``trained_of`` for a search.  Raises as it does, and as ``Trained.check_searches``."""
    trained = trained_of(source)
    trained.check_searches()
    return trained


def _with_champion(name: str) -> str:
    """The platform with a champion that a platform's or a registry's name means.  Raises RegistryError and UsageError as ``load``."""
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
    """Load the model saved in a folder, with the hardware saved beside it, if any.

    Raises DataError if either is damaged, and for a model of other tokens than this version makes; UsageError if there is no
    model, unless ``origin`` says that one was kept there.
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
    """Load what ``Trained.save`` wrote into one file."""
    from safetensors.torch import load as from_bytes

    try:
        weights, facts = read_tensors(path, from_bytes, AGAIN)
    except FileNotFoundError:
        raise UsageError(f"there is no model {shown(path)}; save one there with: tcl.load(...).save(...)") from None
    if "model" not in facts:
        raise DataError(f"{shown(path)} is no model that Trained.save wrote; save it again")
    description, hardware = {"tokens": 1} | json.loads(facts["model"]), json.loads(facts["hardware"])  # 1: from before tokens had versions
    with tempfile.TemporaryDirectory(prefix="tcl-model-") as scratch:
        folder = Path(scratch)
        write_model(folder, description, weights)
        try:
            found = load_folder(folder, f"the {description['class']} model in {shown(path)}")
        except DataError as error:  # may name the folder or a file in it, which nobody will find
            raise DataError(re.sub(rf"{re.escape(scratch)}(/[\w.]+)?", lambda _: shown(path), str(error))) from None
    return replace(found, hardware=saved_hardware(hardware) if hardware else None)

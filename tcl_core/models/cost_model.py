"""The cost model interface, and the format of a saved model.

A cost model ranks programs: it reads ``Samples`` and gives each program one number.  Collection, evaluation and
tuning treat baselines, the Mamba model and its distilled successors alike: they use only this interface and never
test a model's class.

A saved model is a folder: ``model.json`` (class, arguments, training) and ``weights.safetensors``, both with
checksums (``checked``).  Nothing is pickled, so loading a model runs no code from the file.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from tcl_core.checked import damaged, read_json, read_tensors, tensor_bytes, write_json
from tcl_core.errors import DataError, UsageError
from tcl_core.features.batches import Samples
from tcl_core.features import layout
from tcl_core.files import reading, replacing, shown, tidy, whole_folder
from tcl_core.learning.fit_settings import FitSettings

if TYPE_CHECKING:
    from torch import Tensor

    from tcl_core.learning.fit import OnEpoch

FORMAT = 3
AGAIN = "train the model again."


class CostModel(ABC):
    """Ranks the programs of a task; the highest number is best.

    A custom model subclasses this and defines ``name``, ``fit`` and ``predict``, and ``save`` and ``load`` if it is to be
    stored.

    name                 its name in the catalogue and in a saved folder
    reads                kind of rows it reads, "tokens" or "per-store features" (``Samples.holds``)
    row_width            numbers per row at its network's input; only for a model that reads tokens
    needs_states         whether it learns from ``Samples.states``, which requires replaying schedules
    learns_from_sources  whether it also learns from the measurements of earlier platforms
    settings             training settings, including the seed
    """

    name: ClassVar[str]
    reads: ClassVar[str] = "tokens"
    row_width: ClassVar[int] = layout.WIDTH
    needs_states: ClassVar[bool] = False
    learns_from_sources: ClassVar[bool] = False
    settings: FitSettings

    def __init__(self, settings: FitSettings = FitSettings()) -> None:
        """An untrained model; a class's default settings are those of its paper, or those its file chooses."""
        self.settings = settings

    @abstractmethod
    def fit(
        self,
        train: Samples,
        valid: Samples | None = None,
        on_epoch: OnEpoch | None = None,
        *,
        sources: Sequence[Samples] = (),
        checkpoint: Path | None = None,
    ) -> Self:
        """Learn from measured programs and return the model; a second call continues from what the first one learned.

        valid       held-out tasks, to choose the epoch whose weights are kept
        on_epoch    called after each epoch, if the model trains in epochs
        sources     measurements of earlier platforms, in chain order, with ``train``'s task numbers; ignored unless the
                    model ``learns_from_sources``
        checkpoint  folder from which an interrupted call resumes, for a model that trains long; the caller removes it

        Raises DataError when ``train`` holds nothing to learn from, rows that the model does not read, or a non-finite
        value.
        """

    @abstractmethod
    def predict(self, samples: Samples) -> np.ndarray:
        """(N,) float32, higher is better; comparable only among the programs of one task."""

    def embed(self, samples: Samples) -> np.ndarray:
        """(N, E) float32 embeddings, close together for programs the model finds similar; by default the scores, (N, 1)."""
        return self.predict(samples)[:, None]

    def predict_and_embed(self, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
        """``predict`` and ``embed`` together, so that a model can compute both in one pass; a search calls only this."""
        return self.predict(samples), self.embed(samples)

    def parameter_count(self) -> int:
        """Learned numbers needed to predict; 0 before the first ``fit``, and for a model that learns none."""
        return 0

    def save(self, folder: Path) -> None:
        """Write the model as ``folder``, which appears whole or not at all."""
        raise NotImplementedError(f"{type(self).__name__} has no save of its own")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote.  Raises DataError when the folder is missing or damaged."""
        raise NotImplementedError(f"{cls.__name__} has no load of its own")

    def check_rows(self, samples: Samples) -> None:
        """Raise DataError for samples whose rows are not what the model reads."""
        if samples.holds != self.reads:
            raise DataError(
                f"the {self.name} model reads {self.reads}, and these samples hold {samples.holds}; give it samples that hold {self.reads}."
            )


def write_model(folder: Path, description: dict, weights: dict[str, Tensor]) -> None:
    """Write ``weights.safetensors``, and ``model.json`` with their digest, into an existing folder."""
    from safetensors.torch import save

    raw = tensor_bytes(save, {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})
    with replacing(folder / "weights.safetensors") as file:
        file.write(raw)
    write_description(folder, {**description, "weights_sha256": hashlib.sha256(raw).hexdigest()})


MODEL_FILES = {"model.json", "weights.safetensors", "hardware.json", "provenance.json"}
RANKER = "ranker"  # a model within a world model's folder


@contextmanager
def whole_model(folder: Path) -> Iterator[Path]:
    """As ``files.whole_folder``.  Raises UsageError if ``folder`` holds anything but a saved model, since it would be lost."""
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError(f"{shown(folder)} is no folder; name another one to save the model in")
    known = MODEL_FILES | ({RANKER} if (Path(folder) / RANKER / "model.json").exists() else set())
    if os.path.isdir(folder) and (others := sorted(set(os.listdir(folder)) - known)):
        raise UsageError(f"{shown(folder)} holds {shown(others[0])}, which is no part of a saved model; name another folder")
    with whole_folder(folder) as aside:
        yield aside


def write_description(folder: Path, description: dict) -> None:
    """Write ``model.json``."""
    write_json(folder / "model.json", {"format": FORMAT, "tokens": layout.VERSION, **description})


def read_description(folder: Path) -> dict:
    """Contents of a saved model's ``model.json``, with at least the keys ``class`` and ``arguments``.

    Raises DataError when the folder is missing, damaged or of another format.
    """
    path = Path(folder) / "model.json"
    if not path.parent.exists():
        tidy(path.parent)
    try:
        facts = read_json(path, AGAIN)
    except FileNotFoundError:
        raise DataError(f"no model in '{shown(folder)}' (model.json is missing); train one into it first.") from None
    if facts.get("format") != FORMAT or not {"class", "arguments"} <= facts.keys():
        raise DataError(f"'{path}' is of another format than {FORMAT}, the one read here; {AGAIN}")
    return facts


def check_version(description: Mapping[str, Any], reads: str, origin: str) -> None:
    """Raise DataError, naming ``origin``, if a saved model that ``reads`` tokens was made for another version of them."""
    version = description.get("tokens", 1)
    if reads == "tokens" and version != layout.VERSION:
        raise DataError(f"{origin} reads tokens of version {version}, and this version of TCL makes {layout.VERSION}; train it again")


def read_model(folder: Path, kind: type[CostModel]) -> tuple[dict, dict[str, Tensor]]:
    """Description and weights that ``write_model`` wrote for a model of class ``kind``.

    Raises DataError if they are missing or damaged, of another class or token version, or if the weights are not those
    that the description names.
    """
    facts, path = read_description(folder), Path(folder) / "weights.safetensors"
    if facts["class"] != kind.name:
        raise DataError(f"'{folder}' holds a {facts['class']} model, not a {kind.name} model.")
    check_version(facts, kind.reads, f"the {kind.name} model in {shown(folder)}")
    weights = read_weights(path)
    with reading(path):
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    if facts.get("weights_sha256") != found:
        raise damaged(path, "these are not the weights that model.json tells of", AGAIN)
    return facts, weights


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a checksummed safetensors file.  Raises DataError when it is missing or damaged."""
    from safetensors.torch import load

    try:
        return read_tensors(path, load, AGAIN)[0]
    except FileNotFoundError:
        raise DataError(f"'{path}' is missing; {AGAIN}") from None

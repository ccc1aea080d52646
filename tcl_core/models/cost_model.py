"""The contract of a cost model, and how a model lies on disk.

A cost model ranks programs: it reads ``Samples`` and gives each program one number.  Baselines, the Mamba
model and its distilled successors all look the same to collection, evaluation and tuning.

A saved model is a folder: ``model.json`` (which class, with which arguments, from which training) and
``weights.safetensors``.  Nothing is pickled, so loading a model runs no code from the file.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import numpy as np

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.files import disk_full_named, sync_folder

if TYPE_CHECKING:
    from torch import Tensor

    from tcl_core.learning.fit import OnEpoch

FORMAT = 2


@runtime_checkable
class CostModel(Protocol):
    """Ranks the programs of a task, best first by the highest number."""

    name: str

    def fit(self, train: Samples, valid: Samples | None = None, on_epoch: OnEpoch | None = None) -> None:
        """Learn from measured programs; a second call goes on from what the first one learned.

        Raises DataError when ``train`` holds nothing to learn from or a value that is not finite.
        """

    def predict(self, samples: Samples) -> np.ndarray:
        """(N,) float32, higher is better; comparable only among the programs of one task."""

    def embed(self, samples: Samples) -> np.ndarray:
        """(N, E) float32: programs that the model sees alike lie close together."""

    def save(self, folder: Path) -> None:
        """Write the model as ``folder``, which appears whole or not at all."""

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote.  Raises DataError when the folder is missing or damaged."""


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A fresh folder to write into, which takes the place of ``folder`` when the block ends without an error.

    After a kill or a power cut at any moment ``folder`` is the former or the new one: a folder cannot be
    renamed over another, and who dies between the two renames leaves the former aside, where ``tidy`` finds it.
    Raises PlatformError when the disk is full; whatever ``folder`` held before is then still there.
    """
    folder = Path(folder)
    tidy(folder)
    aside, former = (folder.with_name(f".{folder.name}.{os.getpid()}.{end}") for end in ("new", "old"))
    aside.mkdir(parents=True)
    try:
        with disk_full_named(folder):
            yield aside
            for path in (*aside.rglob("*"), aside):
                sync_folder(path)  # of a file likewise: its bytes must be there before its folder's new name
            if folder.exists():
                os.replace(folder, former)
            os.replace(aside, folder)
            sync_folder(folder.parent)
    finally:
        tidy(folder)


def tidy(folder: Path) -> None:
    """Remove what this process or dead ones left beside ``folder``; if it is gone, put the former one back."""
    pattern = re.compile(rf"\.{re.escape(folder.name)}\.(\d+)\.(new|old)")
    for path in folder.parent.glob(f".{glob.escape(folder.name)}.*"):
        found = pattern.fullmatch(path.name)
        if found is None or _works_elsewhere(int(found[1])):
            continue
        if found[2] == "old" and not folder.exists():
            os.replace(path, folder)
            sync_folder(folder.parent)
        shutil.rmtree(path, ignore_errors=True)


def _works_elsewhere(process: int) -> bool:
    """Whether another process of this number is alive."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # alive, but another user's
        pass
    return True


def write_model(folder: Path, description: dict, weights: dict[str, Tensor]) -> None:
    """Write ``model.json`` and ``weights.safetensors`` into an existing folder."""
    from safetensors.torch import save

    facts = json.dumps({"format": FORMAT, **description}, indent=2, sort_keys=True)
    (folder / "model.json").write_text(facts + "\n")
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
    (folder / "weights.safetensors").write_bytes(save(tensors))


def read_description(folder: Path) -> dict:
    """``model.json`` of a saved model, with at least the keys ``class`` and ``arguments``.

    Raises DataError when the folder is missing, damaged or of another format.
    """
    path = Path(folder) / "model.json"
    if not path.parent.exists():
        tidy(path.parent)
    try:
        facts = json.loads(path.read_text())
        known = facts["format"] == FORMAT and {"class", "arguments"} <= facts.keys()
    except FileNotFoundError:
        raise DataError(f"no model in '{folder}' (model.json is missing); train one into it first.") from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"'{path}' is damaged; train the model again.") from None
    if not known:
        raise DataError(
            f"'{path}' is of another format than {FORMAT}, the one read here; train the model again."
        )
    return facts


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file.  Raises DataError when it is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except FileNotFoundError:
        raise DataError(f"'{path}' is missing; train the model again.") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"'{path}' is damaged ({error}); train the model again.") from None

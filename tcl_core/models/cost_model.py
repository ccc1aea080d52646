"""The contract of a cost model, and how a model lies on disk.

A cost model ranks programs: it reads ``Samples`` and gives each program one number.  Baselines, the Mamba
model and its distilled successors all look the same to collection, evaluation and tuning.

A saved model is a folder: ``model.json`` (which class, with which arguments, from which training) and
``weights.safetensors``.  Nothing is pickled, so loading a model runs no code from the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import numpy as np

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.files import tidy

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

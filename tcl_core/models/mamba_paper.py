"""The Mamba cost model with the paper's input (arXiv 2604.12891): only the schedule's primitives, no derived features.

A program is a hardware row and one row per primitive, of 22 numbers each, at most 26 rows: the paper's size for CPUs.  (For GPUs the
paper has 41 rows of 20 numbers, and this model does not.)  A row is the primitive's one-hot kind, then as many of its raw, unscaled
arguments as fit.  The rows are built from our tokens by undoing their logarithms; the workload's and tiling levels' tokens are dropped, and so are the numbers of a primitive's token that are not its arguments.  With 22 numbers the
network has the paper's 92,097 parameters.  Training is the paper's: Adam at 7e-4, batches of 1024, 100 epochs (the
defaults of ``FitSettings``).

The hardware's numbers keep their logarithms: the paper gives no units, and raw bytes would dwarf everything else.  A batch
is ranked task by task; the public code of this family mixes tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from tcl_core.errors import DataError
from tcl_core.features import layout
from tcl_core.features.batches import Samples
from tcl_core.features.layout import ANNOTATE, KINDS, LOCATED, LOCATION, LOOPS, PRIMITIVE, SPLIT, kinds_of, numbers_of
from tcl_core.learning.fit import OnEpoch
from tcl_core.models.mamba import MambaNetwork
from tcl_core.models.torch_model import TorchCostModel

ROWS, WIDTH = 26, 22
DERIVED = tuple(KINDS.index(kind) for kind in ("workload", "level"))
HARDWARE = KINDS.index("hardware")
FIRST = len(layout.BESIDE)  # index of the first kind that is a primitive
ARGUMENTS = WIDTH - (len(KINDS) - FIRST)


class MambaPaperModel(TorchCostModel):
    """One Mamba column on the paper's rows, trained with LambdaRank."""

    name = "mamba-paper"
    row_width = WIDTH
    build = MambaNetwork

    def fit(
        self,
        train: Samples,
        valid: Samples | None = None,
        on_epoch: OnEpoch | None = None,
        *,
        sources: Sequence[Samples] = (),
        checkpoint: Path | None = None,
    ) -> Self:
        """Train as ``TorchCostModel.fit``, on the samples' ``primitive_rows``."""
        valid = primitive_rows(valid) if valid is not None else None
        return super().fit(primitive_rows(train), valid, on_epoch, checkpoint=checkpoint)

    def predict(self, samples: Samples) -> np.ndarray:
        """(N,) float32 scores, higher is better within a task; raises as ``TorchCostModel.predict``."""
        return super().predict(primitive_rows(samples))

    def embed(self, samples: Samples) -> np.ndarray:
        """(N, 32) float32; raises as ``predict``."""
        return super().embed(primitive_rows(samples))

    def predict_and_embed(self, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
        """``predict`` and ``embed`` in one pass; raises as ``predict``."""
        return super().predict_and_embed(primitive_rows(samples))


def primitive_rows(samples: Samples) -> Samples:
    """The samples with their tokens replaced by hardware and primitive rows, (N, at most 26, 22).

    Raises DataError for tokens of another layout.
    """
    if samples.features.shape[2] != layout.WIDTH:
        raise DataError(
            f"mamba-paper takes its rows from tokens of {layout.WIDTH} features, not {samples.features.shape[2]}; "
            "make the features of these programs again."
        )
    tokens, lengths = samples.features, samples.lengths
    kept = np.arange(tokens.shape[1]) < lengths[:, None]
    kept &= ~tokens[..., DERIVED].any(axis=2)
    counts = np.minimum(kept.sum(axis=1), ROWS).astype(np.int32)
    order = np.argsort(~kept, axis=1, kind="stable")[:, : max(1, counts.max(initial=0))]
    rows = np.take_along_axis(tokens, order[..., None], axis=1)
    there = np.arange(order.shape[1]) < counts[:, None]
    return replace(samples, features=_as_written(rows) * there[..., None], lengths=counts, states=None)


def _as_written(rows: np.ndarray) -> np.ndarray:
    """(N, L, 22) rows of (N, L, F) tokens: kind and unscaled arguments, or the hardware's numbers."""
    kinds, numbers = kinds_of(rows), numbers_of(rows)
    raw = np.exp2(numbers[..., :ARGUMENTS]) - 1.0
    out = np.zeros((*rows.shape[:2], WIDTH), dtype=np.float32)
    out[..., : len(KINDS) - FIRST] = kinds[..., FIRST:]
    arguments = out[..., len(KINDS) - FIRST :]
    for kind in range(FIRST, len(KINDS)):
        mine = kinds[..., kind] > 0
        arguments[mine] = _arguments(KINDS[kind], numbers[mine][:, :ARGUMENTS], raw[mine])
    hardware = kinds[..., HARDWARE] > 0
    out[hardware] = numbers[hardware][:, :WIDTH]
    return out


def _arguments(kind: str, numbers: np.ndarray, raw: np.ndarray) -> np.ndarray:
    """(n, 9) arguments of primitives of one kind: a split's factors, a location, an annotation's key and value..."""
    found = np.zeros_like(numbers)
    if kind == "Split":
        found[:, SPLIT.factors] = raw[:, SPLIT.factors]
    elif kind in LOCATED:
        found[:, LOCATION.loop] = numbers[:, LOCATION.loop] * LOOPS
    elif kind == "Annotate":
        found[:, ANNOTATE.key], found[:, ANNOTATE.values.start :] = numbers[:, ANNOTATE.key], raw[:, ANNOTATE.values.start :]
    else:  # as many numbers as fit: only logs' primitives have more than PRIMITIVE.numbers
        found[:, PRIMITIVE.anchor], found[:, PRIMITIVE.numbers.start :] = numbers[:, PRIMITIVE.anchor], raw[:, PRIMITIVE.numbers.start :]
    return np.round(found)

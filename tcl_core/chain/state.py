"""State passed from one platform of a chain to the next, and training of the first platform, which starts without one.

KB is the knowledge base: the network passed along the chain.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from tcl_core.checked import read_json, write_json, write_tensors
from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.files import shown
from tcl_core.learning.batches_by_task import any_usable
from tcl_core.learning.distillation_loss import fisher_diagonal
from tcl_core.learning.fit import FitSettings, OnEpoch
from tcl_core.models import catalogue
from tcl_core.models.cost_model import AGAIN, read_weights
from tcl_core.models.lateral_mamba import LateralMambaModel
from tcl_core.models.mamba import MambaModel
from tcl_core.params import Params
from tcl_core.provenance import LEARNED

OnPhaseEpoch = Callable[[str, int, float, dict[str, float]], None]
"""Called after each epoch with the phase ("CL", "KD" or "bridge"), the epoch, the mean loss and validation metrics."""


@dataclass(frozen=True)
class ChainState:
    """State that one platform passes to the next: its deployable model, and KB with its Fisher diagonal.

    hardware  hardware vector of each platform that KB has learned, in chain order
    shipped   whether KB has learned the data that comes with TCL
    tasks     keys of all tasks that KB has learned, on any platform; evaluation must not use them (``provenance.learned_tasks``)
    """

    model: MambaModel | LateralMambaModel
    knowledge_base: MambaModel
    fisher: dict[str, Tensor]
    hardware: tuple[tuple[float, ...], ...] = ()
    shipped: bool = False
    tasks: frozenset[str] = frozenset()

    def with_platform(self, hardware: Sequence[float]) -> ChainState:
        """This state with one more platform recorded as learned by KB."""
        return replace(self, hardware=(*self.hardware, tuple(hardware)))

    def write_into(self, folder: Path) -> None:
        """Write the model into an existing folder, with ``knowledge_base/``, ``fisher.safetensors`` and ``learned.json``."""
        self.model.write_into(folder)
        self.knowledge_base.save(folder / "knowledge_base")
        tensors = {name: value.contiguous().cpu() for name, value in self.fisher.items()}
        write_tensors(folder / "fisher.safetensors", save, tensors)
        write_json(folder / LEARNED, {"hardware": self.hardware, "shipped": self.shipped, "tasks": sorted(self.tasks)})

    @classmethod
    def load(cls, folder: Path) -> ChainState:
        """Read what ``write_into`` wrote.  Raises DataError when the folder is missing or damaged."""
        folder = Path(folder)
        try:
            learned = read_json(folder / LEARNED, AGAIN)
        except FileNotFoundError:
            raise DataError(f"'{shown(folder)}' does not say which platforms its model has learned (learned.json); {AGAIN}") from None
        return cls(
            catalogue.load(folder),
            MambaModel.load(folder / "knowledge_base"),
            read_weights(folder / "fisher.safetensors"),
            tuple(map(tuple, learned["hardware"])),
            learned.get("shipped", False),
            frozenset(learned.get("tasks", ())),
        )


def fit_settings(params: Params) -> FitSettings:
    """Training settings of a single platform's model: params.yaml's section ``train`` and its seed."""
    t = params.train
    return FitSettings(
        epochs=t.epochs,
        batch_size=t.batch_size,
        learning_rate=t.learning_rate,
        weight_decay=t.weight_decay,
        clip_norm=t.gradient_clip,
        loss=t.loss,
        schedule=t.schedule,
        period=t.epochs,
        seed=params.seed,
    )


def within_steps(settings: FitSettings, programs: int, steps: int) -> FitSettings:
    """The settings with their epochs reduced to fit ``steps`` optimiser steps over ``programs`` programs, to one at least.

    Assumes full batches; they hold whole tasks, so there are slightly more steps in practice.
    """
    epochs = max(1, min(settings.epochs, steps * settings.batch_size // max(programs, 1)))
    return replace(settings, epochs=epochs, period=epochs)


def learn_first(
    train: Samples,
    valid: Samples | None,
    settings: FitSettings,
    *,
    measured: Samples | None = None,
    on_epoch: OnPhaseEpoch | None = None,
    checkpoint: Path | None = None,
) -> ChainState:
    """Train the chain's first platform: a plain Mamba, whose copy becomes KB.

    measured    the measured programs, if ``train`` holds others too (``teaching``).  The Fisher diagonal is computed on
                these, unless each is alone in its task: a task's ranking loss sums over pairs, so with ten times the
                programs it would hold KB a thousand times as firmly, and KB could learn nothing more.
    checkpoint  folder from which an interrupted call resumes; the caller removes it after saving the state

    Raises DataError when there is nothing to learn from.
    """
    model = MambaModel(settings)
    model.fit(train, valid, in_phase("CL", on_epoch), checkpoint=checkpoint)
    told = measured if measured is not None and any_usable(measured) else train
    fisher = fisher_diagonal(model.network, told, settings.sigma)
    return ChainState(model, copy.deepcopy(model), fisher)


def in_phase(phase: str, on_epoch: OnPhaseEpoch | None) -> OnEpoch | None:
    """Callback for a training loop that reports its epochs to ``on_epoch`` under the name ``phase``."""
    if on_epoch is None:
        return None
    return lambda epoch, loss, metrics: on_epoch(phase, epoch, loss, metrics)

"""The contract of a way to learn a later platform.  A new one is one file beside this one, a line of ``METHODS`` in params.py, where
its numbers are declared as well, and their lines in params.yaml.

A method is an object without state, which the stage ``distill`` asks.  It knows no project's folder: what it may read there, a
``Step`` gives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from tcl_core.chain.state import ChainState, OnPhaseEpoch
from tcl_core.features.batches import Samples
from tcl_core.params import Params


class Step(Protocol):
    """From one platform of the chain to the next: what is known.  All programs have the next platform's hardware row, and one task
    numbering.
    """

    @property
    def params(self) -> Params: ...

    @property
    def state(self) -> ChainState:
        """Of the platform before."""

    @property
    def hardware(self) -> Sequence[float]:
        """The next platform's vector."""

    @property
    def is_last(self) -> bool:
        """Of the chain: no platform goes on from this one."""

    @property
    def checkpoint(self) -> Path:
        """A folder from which an interrupted step goes on, as in ``fit_network``."""

    @property
    def measured(self) -> Samples:
        """Programs that ran on the next platform, or failed."""

    @property
    def own(self) -> tuple[Samples, Samples | None]:
        """The measured ones of the tasks to learn, and those of the tasks that params.yaml keeps apart for validation, if any."""

    def labelled(self, measured: Samples) -> Samples:
        """The measured programs and, behind them, unlabelled ones of their tasks, with the labels of a teacher ensemble that reads
        tokens; the measured ones as they are where params.yaml wants no unlabelled programs.
        """

    def others(self) -> tuple[Samples, np.ndarray]:
        """U programs of the same tasks that were not measured here: those that the platform before measured, then unlabelled ones.
        And (M + U,) seconds of the M measured ones and these on the platform before, inf where they failed there, NaN where they
        did not run.
        """


class Learned(NamedTuple):
    """What a method found.

    state        what the next platform goes on from; its ``model`` ranks this one's programs
    share, left  by how much the difference between the platforms is believed, and how much of it that leaves unexplained, of 1
    """

    state: ChainState
    share: float | None = None
    left: float | None = None


class Method(ABC):
    """One way to learn a later platform.

    sections    of params.yaml that it depends on: its model's provenance has them
    reads_both  it also reads what the platform before measured (``Step.others``)
    """

    sections: ClassVar[tuple[str, ...]]
    reads_both: ClassVar[bool] = False

    @abstractmethod
    def epochs(self, step: Step) -> int:
        """How many ``learn`` will report."""

    @abstractmethod
    def learn(self, step: Step, on_epoch: OnPhaseEpoch) -> Learned:
        """Learn the next platform; ``step.state`` stays as it is.  Raises DataError where there is nothing to learn from."""

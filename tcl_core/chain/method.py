"""Interface of a method for learning a later platform of the chain.

To add one: a file beside this one, a line in ``METHODS`` of params.py, its parameters declared there, and their lines in
params.yaml.

A method is a stateless object that the stage ``distill`` calls.  It never reads the project's folder itself: a ``Step`` provides
everything it may read.
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
    """Everything known for the step from one platform of the chain to the next.

    All programs have the next platform's hardware row and share one task numbering.
    """

    @property
    def params(self) -> Params: ...

    @property
    def state(self) -> ChainState:
        """State after the previous platform."""

    @property
    def hardware(self) -> Sequence[float]:
        """The next platform's hardware vector."""

    @property
    def is_last(self) -> bool:
        """Whether the next platform is the chain's last, from which none continues."""

    @property
    def checkpoint(self) -> Path:
        """Folder from which an interrupted step resumes, as in ``fit_network``."""

    @property
    def measured(self) -> Samples:
        """Programs measured on the next platform, failed ones included."""

    @property
    def own(self) -> tuple[Samples, Samples | None]:
        """Measured programs split by task: to train on, and, if params.yaml holds tasks out, to validate on."""

    def labelled(self, measured: Samples) -> Samples:
        """The measured programs, then unlabelled ones of their tasks, all with labels of a teacher ensemble that reads tokens.

        If params.yaml asks for no unlabelled programs, returns the measured ones with their own latencies, failed ones with
        their task's slowest.
        """

    def others(self) -> tuple[Samples, Sequence[np.ndarray], Sequence[Sequence[float]]]:
        """U programs not measured on the next platform, and seconds on each of K earlier ones with records, the nearest first, and
        these platforms' hardware vectors.

        The programs are of the same tasks: first those that the nearest of these measured, then, up to ``train.unlabelled`` of a task,
        those of the others and unmeasured ones.  The seconds, (M + U,) of each, are of the M measured programs, then of these: inf
        where they failed there, NaN where they were not measured.
        """


class Learned(NamedTuple):
    """A method's result.

    state  what the next platform continues from; its ``model`` ranks this one's programs
    share  factor on the learned difference between the platforms, 0 to 1; None if the method has none
    left   share of that difference left unexplained; None likewise
    """

    state: ChainState
    share: float | None = None
    left: float | None = None


class Method(ABC):
    """A method for learning a later platform.

    sections    sections of params.yaml that it depends on; recorded in its model's provenance
    reads_all   whether it also reads the earlier platforms' measurements (``Step.others``)
    """

    sections: ClassVar[tuple[str, ...]]
    reads_all: ClassVar[bool] = False

    @abstractmethod
    def epochs(self, step: Step) -> int:
        """Number of epochs that ``learn`` will report."""

    @abstractmethod
    def learn(self, step: Step, on_epoch: OnPhaseEpoch) -> Learned:
        """Learn the next platform; ``step.state`` is not modified.  Raises DataError when there is nothing to learn from."""

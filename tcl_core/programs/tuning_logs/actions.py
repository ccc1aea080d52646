"""What the programs of a log's sketch do, whatever the dialect: one action per step, from which features make tokens.

Programs of a sketch differ in their decisions alone, so a ``Number`` is a constant or (n,), one for each of n programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

Number = np.ndarray | float
Steps = Sequence[tuple[Any, np.ndarray]]
"""The steps of a sketch, each with its (n, width) int64 decisions."""
AT_ROOT = -1  # in place of a loop's number: inside none


class Split(NamedTuple):
    """A loop is split.

    factors  (n, f), from the outermost loop to the innermost
    extent   of the axis, 0 where it is not known
    reduces  whether the axis is reduced
    anchor   whether the loop belongs to the stage that does the work
    axis     index among the stage's axes
    knob     index among a template's knobs
    """

    factors: np.ndarray
    extent: Number
    reduces: bool
    anchor: bool
    axis: int
    knob: int = 0


class ComputeAt(NamedTuple):
    """A stage is computed inside the loop of this number, or ``AT_ROOT``; ``anchor`` as in ``Split``."""

    loop: Number
    anchor: bool


class Annotate(NamedTuple):
    """Loops or a stage are annotated: the values, and whether they make a loop parallel, vectorised or unrolled.

    bound  whether the loop is bound to a thread index instead
    """

    values: Iterable[Number]
    parallel: Number = False
    vectorize: Number = False
    unroll: Number = False
    bound: np.ndarray | bool = False


class Other(NamedTuple):
    """Any other primitive: TVM's name for it (``PRIMITIVES`` of ``features.layout``) and its numbers; ``anchor`` as in ``Split``."""

    kind: str
    numbers: Iterable[Number]
    anchor: bool


Action = Split | ComputeAt | Annotate | Other


class Programs(NamedTuple):
    """Programs of one sketch: their actions in order, and their anchor's spatial and reduced iterations, 0 where unknown."""

    actions: list[Action]
    spatial: Number
    reduced: Number

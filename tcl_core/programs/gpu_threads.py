"""Which programs of a GPU's sketch launch blocks of an allowed number of threads, told from their decisions alone.

Nine of ten decision vectors drawn at random ask for too few or too many, and a replay that shows it takes milliseconds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tcl_core.programs.sketches import Sketch

THREADS = "threadIdx.x"
LEAST, MOST = "meta_schedule.thread_extent_low_inclusive", "meta_schedule.thread_extent_high_inclusive"
TOGETHER = 64  # vectors drawn at once for one that is launchable

Columns = tuple[int | None, ...]
"""Of the decision vector, whose product is a loop's extent; None stands for an extent that no decision tells."""


def draw(sketch: Sketch, rng: np.random.Generator) -> np.ndarray:
    """(width,) decisions drawn uniformly; of a GPU's sketch, if soon found, among those that are launchable."""
    if LEAST not in _annotations(sketch.trace):
        return sketch.sample(1, rng)[0]
    drawn = sketch.sample(TOGETHER, rng)
    return drawn[np.argmax(launchable(sketch, drawn))]  # the first one; where none is, the first of all


def launchable(sketch: Sketch, decisions: np.ndarray) -> np.ndarray:
    """(N,) False for those of the (N, width) vectors whose blocks have a number of threads that is not allowed."""
    bounds, fits = _annotations(sketch.trace), np.ones(len(decisions), dtype=bool)
    for columns in _bound_loops(sketch):
        if None not in columns:
            threads = decisions[:, list(columns)].astype(np.int64).prod(axis=1)
            fits &= (threads >= bounds.get(LEAST, 1)) & (threads <= bounds.get(MOST, np.inf))
    return fits


def _annotations(trace: Any) -> dict[str, int]:
    """Key -> number of those annotations that are constant numbers."""
    found = {str(i.attrs[0]): getattr(i.inputs[1], "value", None) for i in trace.insts if i.kind.name == "Annotate"}
    return {key: value for key, value in found.items() if isinstance(value, int)}


def _bound_loops(sketch: Sketch) -> list[Columns]:
    """The columns of each loop that is bound to the threads of a block."""
    numbers = {slot.instruction: range(slot.offset, slot.offset + slot.width) for slot in sketch.slots}
    column: dict[Any, int] = {}
    extent: dict[Any, Columns] = {}
    bound = []
    for position, instruction in enumerate(sketch.trace.insts):
        kind, inputs, outputs = instruction.kind.name, instruction.inputs, instruction.outputs
        if position in numbers and kind == "SamplePerfectTile":
            column.update(zip(outputs, numbers[position], strict=True))
        elif kind == "Split":
            extent.update((loop, (column.get(factor),)) for loop, factor in zip(outputs, inputs[1:], strict=True))
        elif kind == "Fuse":
            extent[outputs[0]] = tuple(c for loop in inputs for c in extent.get(loop, (None,)))
        elif kind == "Bind" and str(instruction.attrs[0]) == THREADS:
            bound.append(extent.get(inputs[0], (None,)))
    return bound

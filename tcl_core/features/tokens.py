"""Tokens: a program as a sequence of feature rows, computed for thousands of decision vectors at once.

One row for the hardware, one for the workload, one per schedule primitive and one per tiling level.  The hardware
comes first, so that a model which reads from left to right knows the platform when it meets the schedule
(arXiv 2604.12891 gives the row, not its place).  Within a sketch only decisions differ, so a sketch is a template
plus a scatter of its holes.
The tiling-level rows say what boosted trees get from the lowered programs (extents, footprints, strides per level):
they are functions of the decisions, so they cost array operations and no lowering.  ``layout`` says which column is what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.features.layout import (
    ALL_OPERATORS,
    ANNOTATE,
    ANNOTATIONS,
    AXES,
    HARDWARE,
    KINDS,
    LOCATED,
    LOCATION,
    LOOPS,
    PRIMITIVE,
    SPLIT,
    WORKLOAD,
    Row,
    kinds_of,
    log2p,
    numbers_of,
    token_row,
)
from tcl_core.features.nest import Nest, values_of
from tcl_core.programs.primitives import Primitive
from tcl_core.programs.workload import Workload

REACHING = ANNOTATIONS[:3]  # annotations that apply to loops
IGNORED = ("Unannotate",)


def program_tokens(primitives: Sequence[Primitive], workload: Workload, hardware: Sequence[float], decisions: np.ndarray) -> np.ndarray:
    """(N, L, F) float32 rows of the N programs that ``decisions`` (N, width) make of one sketch.

    ``hardware`` are the platform's fields in fixed order; 0 stands for unknown.
    """
    nest = Nest.of(primitives, workload, decisions)
    rows = [
        hardware_rows(hardware, len(decisions)),
        token_row("workload", _workload_numbers(workload), len(decisions)),
    ]
    for primitive in primitives:
        if primitive.kind not in IGNORED:
            kind = primitive.kind if primitive.kind in KINDS else "other"
            rows.append(token_row(kind, _primitive_numbers(primitive, workload, nest, decisions), len(decisions)))
    return np.concatenate([np.stack(rows, axis=1), nest.level_tokens()], axis=1)


def hardware_rows(hardware: Sequence[float], count: int) -> np.ndarray:
    """(count, F) of the platform's row, the first of every program."""
    return token_row("hardware", HARDWARE.row(fields=[log2p(x) for x in hardware]), count)


def check_hardware(samples: Samples) -> None:
    """Raise DataError for programs whose first row is of another kind than hardware: models would take it for the hardware's."""
    first = kinds_of(samples.features[:, :1])
    if ((first == 1).any(axis=2) & (first[:, :, KINDS.index("hardware")] != 1)).any():
        raise DataError("these programs have no hardware row; read them with the hardware that they were measured on.")


def with_hardware(samples: Samples, hardware: Sequence[float]) -> Samples:
    """The same programs with another platform's hardware row."""
    tokens = samples.features.copy()
    tokens[:, :1] = hardware_rows(hardware, len(samples))[:, None]  # without samples L may be 0
    return replace(samples, features=tokens)


def operators_of(tokens: np.ndarray) -> np.ndarray:
    """(N,) operator names from the workload rows of (N, L, F) tokens; "unknown" where a row names none."""
    places = kinds_of(tokens)[:, :, KINDS.index("workload")].argmax(axis=1)
    rows = numbers_of(tokens)[np.arange(len(tokens)), places]
    named = rows[:, WORKLOAD.operator]
    return np.where(named.any(axis=1), np.array(ALL_OPERATORS)[named.argmax(axis=1)], "unknown")


def _workload_numbers(workload: Workload) -> Row:
    anchor = workload.anchor
    spatial, reduced = anchor.extents[~anchor.reduces].prod(), anchor.extents[anchor.reduces].prod()
    sizes = [workload.flops, workload.argument_bytes, workload.flops / max(workload.argument_bytes, 1), spatial, reduced]
    return WORKLOAD.row(
        sizes=[*map(log2p, sizes)],
        blocks=len(workload.blocks) / AXES,
        operator=[float(workload.operator == name) for name in ALL_OPERATORS],
        extents=[*map(log2p, anchor.extents)],
    )


def _primitive_numbers(primitive: Primitive, workload: Workload, nest: Nest, decisions: np.ndarray) -> Row:
    if primitive.kind == "Split":
        return _split_numbers(primitive, workload, decisions)
    if primitive.kind in LOCATED:
        return _location_numbers(primitive, workload, nest, decisions)
    if primitive.kind == "Annotate":
        return _annotation_numbers(primitive, nest, decisions)
    numbers = [log2p(values_of(n, decisions)) for n in primitive.numbers]
    if (
        primitive.kind == "RFactor" and primitive.loops
    ):  # over the outer or inner loop of a split reduction, whose extent is the number of partial results
        loop = primitive.loops[0]
        numbers = [log2p(values_of(loop.extent, decisions)), float(loop.part)]
    return PRIMITIVE.row(anchor=_is_anchor(primitive, workload), numbers=numbers)


def _annotation_numbers(primitive: Primitive, nest: Nest, decisions: np.ndarray) -> Row:
    """Its key, its values, and how far it reaches in this nest."""
    one_hot = [float(primitive.key.endswith(name)) for name in ANNOTATIONS]
    values = [values_of(number, decisions) for number in primitive.numbers]
    reaches = values and primitive.key.endswith(REACHING)
    reach = log2p(nest.reach(primitive.key, values[0])) if reaches else 0.0
    return ANNOTATE.row(key=one_hot, values=[*map(log2p, values)], reach=reach)


def _is_anchor(primitive: Primitive, workload: Workload) -> float:
    return float(primitive.block == workload.anchor.name)


def _split_numbers(primitive: Primitive, workload: Workload, decisions: np.ndarray) -> Row:
    loop = primitive.loops[0]
    known = {
        "factors": [log2p(values_of(n, decisions)) for n in primitive.numbers],
        "anchor": _is_anchor(primitive, workload),
    }
    block = workload.block(loop.block)
    if block is None or loop.axis is None:
        return SPLIT.row(**known)
    return SPLIT.row(
        **known,
        extent=log2p(block.extents[loop.axis]),
        reduces=float(block.reduces[loop.axis]),
        axis=loop.axis / AXES,
        strides=[log2p(access.strides[loop.axis]) for access in block.accesses],
    )


def _location_numbers(primitive: Primitive, workload: Workload, nest: Nest, decisions: np.ndarray) -> Row:
    """Where a block is computed: under which loop, and how much of the anchor's work one visit serves."""
    block = workload.block(primitive.block)
    size = log2p(block.iterations) if block else 0.0
    if not primitive.loops:  # under a loop made by an unknown instruction
        return LOCATION.row(size=size, fixed=1.0)
    loop = primitive.loops[0]
    if loop.location is None:
        fixed = {"size": size, "fixed": 1.0, "extent": log2p(values_of(loop.extent, decisions))}
        if (place := nest.place(loop)) is None:
            return LOCATION.row(**fixed)
        inside, footprints = nest.at_location(np.full(len(decisions), place))
        return LOCATION.row(**fixed, loop=place / LOOPS, inside=inside, footprints=footprints)
    location = values_of(loop.location, decisions)
    inside, footprints = nest.at_location(location)
    return LOCATION.row(
        loop=location / LOOPS,
        at_root=(location == -1).astype(float),
        inlined=(location == -2).astype(float),
        size=size,
        inside=inside,
        footprints=footprints,
    )

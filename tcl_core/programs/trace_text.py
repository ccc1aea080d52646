"""The text of a sketch's trace, read without replaying it.

A replay takes TVM some five milliseconds, and what a trace does to its task stands in its text.  ``sketches.trace_from_json`` replays it, as
whoever wants to make a program must: only then is it certain that the trace fits its task.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Any

from tcl_core.compat import load_tvm
from tcl_core.errors import DataError, last_line
from tcl_core.programs.primitives import QUERIES, Primitive, sketch_primitives
from tcl_core.programs.sketches import KINDS, read_sketch
from tcl_core.programs.workload import Workload

ROOT = "root"  # the block around a task's blocks
INTEGERS = range(-(2**63), 2**63)


@dataclass(frozen=True, eq=False)
class Instruction:
    """As TVM's, with variables as their names in the text, such as "l5"; strings that are no variables have quotation marks."""

    kind: Any
    inputs: tuple[Any, ...]
    attrs: tuple[Any, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class TextTrace:
    """The instructions of a trace, as ``read_sketch`` and ``sketch_primitives`` read them of TVM's."""

    insts: Sequence[Instruction]


def read_template(text: str, workload: Workload) -> tuple[list[Primitive], int]:
    """The primitives of a sketch of the task, with holes where its decisions go, and how many decisions it has.

    text  as ``sketches.trace_to_json`` wrote it

    Raises DataError for damaged text, and where none of its blocks is the task's.  That its loops are those of the task's blocks is not
    checked.
    """
    try:
        instructions, _ = json.loads(text)
        trace = TextTrace([Instruction(_kind(kind), *map(_frozen, parts)) for kind, *parts in instructions])
        _check(trace.insts, workload)
        sketch = read_sketch("", 0, trace)
        return sketch_primitives(sketch, workload), sketch.width
    except Exception as error:  # json, TVM and what is no list raise unrelated types
        raise DataError(f"a sketch does not fit its task ({last_line(error)}); run the stage candidates again") from error


@cache
def _kind(name: str) -> Any:
    """TVM's instruction of that name; raises for an unknown one."""
    return load_tvm().s_tir.schedule.InstructionKind.get(name)


def _frozen(value: Any) -> Any:
    """The value with tuples for lists and maps, so that it can be looked up among variables.  Raises ValueError for a huge integer."""
    if isinstance(value, dict):
        return tuple((name, _frozen(each)) for name, each in value.items())
    if isinstance(value, int) and value not in INTEGERS:
        raise ValueError("an integer has more than 64 bits")
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _check(instructions: Sequence[Instruction], workload: Workload) -> None:
    """Raise ValueError for a variable that nothing defined, a tiling of another number of parts than it says, and another task's blocks."""
    defined: set[str] = set()
    for instruction in instructions:
        kind = instruction.kind.name
        names = [value for value in instruction.inputs if isinstance(value, str) and not value.startswith('"')]
        if undefined := set(names) - defined:
            raise ValueError(f"{kind} takes {min(undefined)}, which is not defined")
        if KINDS.get(kind) == "tile" and instruction.attrs[0] != len(instruction.outputs):
            raise ValueError(f"{kind} says {instruction.attrs[0]} parts and has {len(instruction.outputs)}")
        defined.update(instruction.outputs)
    first = takewhile(lambda instruction: instruction.kind.name in QUERIES, instructions)  # later ones may ask for blocks that were made
    asked = {str(instruction.attrs[0]) for instruction in first if instruction.kind.name == "GetSBlock"} - {ROOT}
    if asked and not any(workload.block(name) for name in asked):
        raise ValueError(f"the task has no block {min(asked)}")

"""The text of a sketch's trace, read without replaying it.

A replay takes TVM some five milliseconds, and what a trace does to its task stands in its text.  ``sketches.trace_from_json`` replays it, as
whoever wants to make a program must: only then is it certain that the trace fits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tcl_core.compat import load_tvm
from tcl_core.errors import DataError, last_line
from tcl_core.programs.workload import Workload

ROOT = "root"  # the block around a task's blocks


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


def read_trace_text(text: str, workload: Workload) -> TextTrace:
    """The trace that ``sketches.trace_to_json`` wrote of a sketch of the task.

    Raises DataError for damaged text, and where its blocks are not the task's.
    """
    try:
        instructions, _ = json.loads(text)
        found = [Instruction(_kind(kind), *map(_frozen, parts)) for kind, *parts in instructions]
        _check(found, workload)
    except Exception as error:  # json, TVM and what is no list raise unrelated types
        raise DataError(f"a sketch does not fit its task ({last_line(error)}); run the stage candidates again") from error
    return TextTrace(found)


@cache
def _kind(name: str) -> Any:
    """TVM's instruction of that name; raises for an unknown one."""
    return load_tvm().s_tir.schedule.InstructionKind.get(name)


def _frozen(value: Any) -> Any:
    """The value with tuples for lists, so that it can be looked up among variables."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _check(instructions: Sequence[Instruction], workload: Workload) -> None:
    """Raise ValueError for a variable that nothing defined, and for a block that the task does not have."""
    known = {ROOT, *(block.name for block in workload.blocks)}
    defined: set[str] = set()
    for instruction in instructions:
        kind = instruction.kind.name
        names = [value for value in instruction.inputs if isinstance(value, str) and not value.startswith('"')]
        if undefined := set(names) - defined:
            raise ValueError(f"{kind} takes {min(undefined)}, which is not defined")
        if kind == "GetSBlock" and instruction.attrs[0] not in known:
            raise ValueError(f"there is no block {instruction.attrs[0]}")
        defined.update(instruction.outputs)

"""Primitives: what a trace does to a task, step by step, without TVM's objects.

A trace first queries (get loops, get producers), then samples, then transforms.  Here the queries are resolved, the
samples are merged into the primitives that use them, and what is left is one ``Primitive`` per transformation.
A number is an ``int`` where the trace fixes it and a ``Hole`` where it is a decision of the sketch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tcl_core.programs.sketches import Sketch
from tcl_core.programs.workload import Workload

QUERIES = {"GetSBlock", "GetLoops", "GetProducers", "GetConsumers", "GetChildBlocks", "GetOutputBlocks", "EnterPostproc"}


@dataclass(frozen=True)
class Hole:
    """A number that is a decision: column ``column`` of the decision vector, looked up in ``table`` if there is one."""

    column: int
    table: tuple[int, ...] | None = None


Number = int | Hole


@dataclass(frozen=True)
class Loop:
    """A loop: which axis of which block it walks (None: fused or of a derived block), its extent, or its location.

    part  its place among the loops of its split, the outermost 1; 0 for a loop that no split made
    """

    block: str = ""
    axis: int | None = None
    extent: Number = 0
    location: Number | None = None
    part: int = 0


@dataclass(frozen=True)
class Primitive:
    """One transformation.

    kind     TVM's instruction name, e.g. ``Split``
    block    name of the block it acts on, "" if it is a block made by an earlier primitive
    loops    the loops it takes
    numbers  its integer arguments: the factors of a split (0 for an inferred one), the value of an annotation
    key      annotation key, or ""
    """

    kind: str
    block: str = ""
    loops: tuple[Loop, ...] = ()
    numbers: tuple[Number, ...] = ()
    key: str = ""


@dataclass
class _Reader:
    """Resolves the variables of a trace while walking through it."""

    workload: Workload
    sampled: Mapping[int, tuple[Number, ...]]
    blocks: dict[Any, str] = field(default_factory=dict)
    loops: dict[Any, Loop] = field(default_factory=dict)
    numbers: dict[Any, Number] = field(default_factory=dict)

    def step(self, position: int, instruction: Any) -> Primitive | None:
        kind = instruction.kind.name
        if kind.startswith("Sample"):
            self._sample(kind, instruction, self.sampled[position])
            return None
        if kind in QUERIES:
            self._query(kind, instruction)
            return None
        primitive = self._primitive(kind, instruction)
        self._define(kind, instruction, primitive)
        return primitive

    def _sample(self, kind: str, instruction: Any, values: tuple[Number, ...]) -> None:
        outputs = instruction.outputs
        if kind == "SampleComputeLocation":
            self.loops[outputs[0]] = Loop(location=values[0])
        elif kind == "SampleCategorical":
            table = tuple(int(c) for c in instruction.attrs[0])
            value = values[0]
            self.numbers[outputs[0]] = replace(value, table=table) if isinstance(value, Hole) else table[value]
        else:
            self.numbers.update(zip(outputs, values, strict=True))

    def _query(self, kind: str, instruction: Any) -> None:
        if kind == "GetSBlock":
            self.blocks[instruction.outputs[0]] = str(instruction.attrs[0])
        elif kind == "GetLoops":
            self._get_loops(instruction)

    def _get_loops(self, instruction: Any) -> None:
        """The loops of an untouched block are its axes, one by one; nothing is known of others."""
        name = self.blocks.get(instruction.inputs[0], "")
        block = self.workload.block(name)
        whole = block is not None and len(block.extents) == len(instruction.outputs)
        for axis, output in enumerate(instruction.outputs):
            self.loops[output] = Loop(name, axis, int(block.extents[axis])) if whole else Loop(name)

    def _primitive(self, kind: str, instruction: Any) -> Primitive:
        inputs = [i for i in instruction.inputs if i is not None]
        blocks = [self.blocks[i] for i in inputs if i in self.blocks]
        loops = tuple(self.loops[i] for i in inputs if i in self.loops)
        given = [0 if i is None else self._number(i) for i in (instruction.inputs if kind == "Split" else inputs)]  # 0: inferred
        numbers = tuple(n for n in given if n is not None)
        if kind == "Annotate" and not numbers:
            numbers = tuple(most for value in inputs if (most := _largest(value)) is not None)
        key = str(instruction.attrs[0]) if kind in ("Annotate", "Unannotate") else ""
        return Primitive(kind, (blocks + [loop.block for loop in loops] + [""])[0], loops, numbers, key)

    def _number(self, value: Any) -> Number | None:
        if value in self.numbers:
            return self.numbers[value]
        constant = getattr(value, "value", value)
        return int(constant) if isinstance(constant, int) else None

    def _define(self, kind: str, instruction: Any, primitive: Primitive) -> None:
        outputs = instruction.outputs
        if kind == "Split":
            source = primitive.loops[0]
            for part, (output, extent) in enumerate(zip(outputs, primitive.numbers, strict=False), 1):
                self.loops[output] = Loop(source.block, source.axis, 1 if extent == 0 else extent, part=part)
        elif kind == "Fuse":
            self.loops[outputs[0]] = Loop(primitive.block)
        elif kind.startswith("Cache"):
            self.blocks.update((output, "") for output in outputs)


def _largest(value: Any) -> int | None:
    """The largest of an annotation's array of integers, such as a software pipeline's stages; None for any other value."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return None
    found = [getattr(each, "value", each) for each in value]
    return max(found) if found and all(isinstance(each, int) for each in found) else None


def sketch_primitives(sketch: Sketch, workload: Workload) -> list[Primitive]:
    """The primitives of a sketch, with holes where its decisions go."""
    sampled = {}
    for slot in sketch.slots:
        columns = range(slot.offset, slot.offset + slot.width)
        sampled[slot.instruction] = tuple(Hole(column) for column in columns)
    parallel = {slot.instruction: Hole(slot.offset) for slot in sketch.slots if slot.kind == "constant"}
    return _read(sketch.trace, workload, sampled, parallel)


def trace_primitives(trace: Any, workload: Workload) -> list[Primitive]:
    """The primitives of one filled trace, read literally: every number is the trace's own."""
    decisions, sampled = trace.decisions, {}
    for position, instruction in enumerate(trace.insts):
        if instruction in decisions:
            decision = decisions[instruction]
            many = instruction.kind.name in ("SamplePerfectTile", "SamplePartitionedTile")
            sampled[position] = tuple(int(d) for d in decision) if many else (int(decision),)
    return _read(trace, workload, sampled, {})


def _read(trace: Any, workload: Workload, sampled: Mapping[int, tuple[Number, ...]], parallel: Mapping[int, Hole]) -> list[Primitive]:
    reader, found = _Reader(workload, sampled), []
    for position, instruction in enumerate(trace.insts):
        if instruction.kind.name == "EnterPostproc":
            break  # what follows is derived from the annotations, not chosen
        primitive = reader.step(position, instruction)
        if primitive is not None:
            found.append(replace(primitive, numbers=(parallel[position],)) if position in parallel else primitive)
    return found

"""Sketches: a program is a sketch plus a small vector of decisions.

MetaSchedule's design space of a task is a few traces with holes.  A ``Sketch`` is one such trace; its holes are
``Slot`` s of four kinds, laid side by side in one integer vector:

    tile         SamplePerfectTile: n factors whose product is the loop's extent
    categorical  SampleCategorical: the index of a candidate
    location     SampleComputeLocation: the loop under which a block is computed (-1 root, -2 inline)
    constant     the argument of ``meta_schedule.parallel``: fixed in the sketch, but evolutionary search mutates it

Sampling and mutation work on vectors alone; only a program that is to be measured is replayed (``materialise``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import permutations
from typing import Any, TypeVar

import numpy as np

from tcl_core.compat import load_tvm, make_target, meta_schedule, quiet_compiler
from tcl_core.errors import DataError, last_line
from tcl_core.platforms import threads

Given = TypeVar("Given")
Found = TypeVar("Found")

KINDS = {
    "SamplePerfectTile": "tile",
    "SampleCategorical": "categorical",
    "SampleComputeLocation": "location",
}
PARALLEL = "meta_schedule.parallel"
# Replays with fresh random choices, to see compute locations beyond the known loops, and which tile extents vary.
PROBES = 6
# One in this many mutations of a tiling draws it anew.
REDRAWN = 4


class InvalidProgram(Exception):
    """The decisions do not make a valid program of the sketch."""


@dataclass(frozen=True)
class Slot:
    """One hole of a sketch.

    kind         tile, categorical, location or constant
    instruction  index of the instruction in the sketch's trace
    offset       first position in the decision vector
    width        positions it takes there
    choices      (C, width) integers: every value that the slot may take; None until ``DesignSpace.with_choices``
    """

    kind: str
    instruction: int
    offset: int
    width: int
    choices: np.ndarray | None = None

    @property
    def columns(self) -> slice:
        return slice(self.offset, self.offset + self.width)

    @cached_property
    def extent(self) -> int | None:
        """The extent that it tiles; None for slots of other kinds, and where it depends on other decisions."""
        if self.kind != "tile":
            return None
        extents = set(np.prod(self.choices, axis=1, dtype=np.int64).tolist())
        return extents.pop() if len(extents) == 1 else None

    @cached_property
    def _offered(self) -> frozenset[tuple[int, ...]]:
        return frozenset(map(tuple, self.choices.tolist()))

    def neighbour(self, tiling: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The (width,) tiling with one prime factor moved to another level; a random choice if no such tiling is among the choices."""
        factors = [int(factor) for factor in tiling]
        moves = [(source, target, prime) for source, target in permutations(range(self.width), 2) for prime in _primes(factors[source])]
        for place in rng.permutation(len(moves)):
            source, target, prime = moves[place]
            moved = list(factors)
            moved[source], moved[target] = moved[source] // prime, moved[target] * prime
            if tuple(moved) in self._offered:
                return np.array(moved, dtype=np.int32)
        return self.choices[rng.integers(len(self.choices))]


@dataclass(frozen=True)
class Sketch:
    """One trace with holes of one task; ``index`` numbers the task's sketches."""

    task_key: str
    index: int
    trace: Any
    slots: tuple[Slot, ...]

    @cached_property
    def width(self) -> int:
        """Length of a decision vector."""
        return sum(slot.width for slot in self.slots)

    @cached_property
    def moves_blocks(self) -> bool:
        """Whether a decision says where a block is computed; TVM changes an impossible location."""
        return any(slot.kind == "location" for slot in self.slots)

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """(count, width) decision vectors, every slot drawn uniformly from its choices."""
        columns = [slot.choices[rng.integers(len(slot.choices), size=count)] for slot in self.slots]
        return np.concatenate(columns, axis=1).astype(np.int32) if columns else np.zeros((count, 0), np.int32)

    def mutate(self, decisions: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A copy of (N, width) vectors with one slot of each row mutated, among the slots that have a choice.

        In a tiling, one prime factor moves to another level, which keeps what was good about the rest; one tiling in
        ``REDRAWN``, and any other slot, is drawn anew.
        """
        free = [slot for slot in self.slots if len(slot.choices) > 1]
        mutated = decisions.copy()
        if free:
            which = rng.integers(len(free), size=len(decisions))
            for number, slot in enumerate(free):
                rows = np.flatnonzero(which == number)
                mutated[rows, slot.columns] = slot.choices[rng.integers(len(slot.choices), size=len(rows))]
                if slot.kind == "tile":
                    for row in rows[rng.integers(REDRAWN, size=len(rows)) > 0]:
                        mutated[row, slot.columns] = slot.neighbour(decisions[row, slot.columns], rng)
        return mutated

    def crossover(self, left: np.ndarray, right: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """(N, width): each slot taken from one of two parents at random."""
        child = left.copy()
        for slot in self.slots:
            take = rng.random(len(left)) < 0.5
            child[take, slot.columns] = right[take, slot.columns]
        return child

    def decisions_of(self, trace: Any) -> np.ndarray:
        """The decision vector of a trace of this sketch.  Raises InvalidProgram for another sketch's trace."""
        instructions = trace.insts
        if tuple(i.kind.name for i in instructions) != self.signature:
            raise InvalidProgram("the trace has other primitives than the sketch")
        parts = [_read_slot(slot.kind, instructions[slot.instruction], trace.decisions) for slot in self.slots]
        return np.array([value for part in parts for value in part], dtype=np.int32)

    @cached_property
    def signature(self) -> tuple[str, ...]:
        """The names of the trace's primitives, in order."""
        return tuple(i.kind.name for i in self.trace.insts)

    def trace_with(self, decisions: Sequence[int]) -> Any:
        """The sketch's trace with its holes filled."""
        if len(decisions) != self.width:
            raise InvalidProgram(f"{len(decisions)} decisions given, the sketch has {self.width}")
        instructions, filled = list(self.trace.insts), {}
        for slot in self.slots:
            values = [int(v) for v in decisions[slot.columns]]
            if slot.kind == "constant":
                instructions[slot.instruction] = _with_argument(instructions[slot.instruction], values[0])
            else:
                filled[instructions[slot.instruction]] = values if slot.kind == "tile" else values[0]
        return load_tvm().s_tir.schedule.Trace(instructions, filled)


def _with_argument(instruction: Any, value: int) -> Any:
    """An Annotate instruction whose annotated value is replaced."""
    tvm = load_tvm()
    block = instruction.inputs[0]
    return tvm.s_tir.schedule.Instruction(instruction.kind, [block, value], instruction.attrs, instruction.outputs)


def _read_slot(kind: str, instruction: Any, decisions: Any) -> list[int]:
    if kind == "constant":
        return [int(instruction.inputs[1])]
    decision = decisions[instruction]
    return [int(v) for v in decision] if kind == "tile" else [int(decision)]


def read_sketch(task_key: str, index: int, trace: Any) -> Sketch:
    """The sketch that a trace is an instance of; its slots have no choices yet."""
    slots, offset = [], 0
    for number, instruction in enumerate(trace.insts):
        name = instruction.kind.name
        parallel = name == "Annotate" and str(instruction.attrs[0]) == PARALLEL
        kind = "constant" if parallel else KINDS.get(name)
        if kind:
            width = int(instruction.attrs[0]) if kind == "tile" else 1
            slots.append(Slot(kind, number, offset, width))
            offset += width
    return Sketch(task_key, index, trace, tuple(slots))


class DesignSpace:
    """The sketches of one task under one target, and how to make programs of them.

    One design space serves all CPU platforms: the rules are those of plain LLVM, whatever the vector width.  The rules for
    CUDA leave out tensor cores, whose intrinsics would take ten seconds to load and which round float32 inputs.
    """

    def __init__(self, task_key: str, module: Any, target_spec: dict[str, Any]) -> None:
        tvm = load_tvm()
        ms = meta_schedule()
        self.task_key = task_key
        self.module = module
        self.target = make_target(target_spec)
        rules = "cuda" if target_spec["kind"] == "cuda" else "llvm"
        space = ms.space_generator.PostOrderApply(
            sch_rules=ms.ScheduleRule.create(rules),
            postprocs=ms.Postproc.create(rules),
            mutator_probs=ms.Mutator.create(rules),
        )
        with self.target:
            self.context = ms.TuneContext(
                mod=module, target=self.target, space_generator=space, task_name=task_key, rand_state=1, num_threads=1
            )
        self._schedule = tvm.s_tir.Schedule

    def sketches(self) -> list[Sketch]:
        """The task's sketches, in MetaSchedule's order, ready to sample."""
        with quiet_compiler():
            schedules = self.context.generate_design_space()
        traces = [schedule.trace.simplified(remove_postproc=True) for schedule in schedules]
        return [self.with_choices(read_sketch(self.task_key, n, trace)) for n, trace in enumerate(traces)]

    def with_choices(self, sketch: Sketch) -> Sketch:
        """The sketch with every slot's choices, some of which only random replays reveal."""
        seen: list[list[tuple[int, ...]]] = [[] for _ in sketch.slots]
        seeds = range(1, (PROBES if sketch.moves_blocks else 2) + 1)
        for replayed in in_threads(lambda seed: self._replay_at_random(sketch.trace, seed), seeds):
            for values, slot in zip(seen, sketch.slots, strict=True):
                values.append(tuple(_read_slot(slot.kind, replayed.insts[slot.instruction], replayed.decisions)))
        slots = (replace(slot, choices=_choices(slot, sketch.trace.insts, values)) for slot, values in zip(sketch.slots, seen, strict=True))
        return replace(sketch, slots=tuple(slots))

    def _replay_at_random(self, trace: Any, seed: int) -> Any:
        blank = load_tvm().s_tir.schedule.Trace(trace.insts, {})
        schedule = self._schedule(self.module, seed=seed, error_render_level="none")
        blank.apply_to_schedule(schedule, remove_postproc=True)
        return schedule.trace

    def materialise(self, sketch: Sketch, decisions: Sequence[int]) -> Any:
        """The schedule (a ``tvm.s_tir.Schedule``, post-processed) of a program.

        Raises InvalidProgram if TVM refuses the decisions or a post-processor (such as VerifyGPUCode) rejects them.
        """
        return self.apply(sketch.trace_with(decisions))

    def apply(self, trace: Any) -> Any:
        """Replay a filled trace and run the post-processors; raises as ``materialise``."""
        schedule = self._replay(trace)
        for postproc in self.context.space_generator.postprocs:
            try:
                accepted = postproc.apply(schedule)
            except Exception as error:  # one that fails inside TVM
                raise InvalidProgram(f"{type(postproc).__name__}: {last_line(error)}") from error
            if not accepted:
                raise InvalidProgram(f"rejected by {type(postproc).__name__}")
        return schedule

    def _replay(self, trace: Any) -> Any:
        schedule = self._schedule(self.module, seed=1, error_render_level="none")
        try:
            trace.apply_to_schedule(schedule, remove_postproc=True)
            schedule.enter_postproc()
        except Exception as error:  # TVM reports an impossible decision by several types
            raise InvalidProgram(last_line(error)) from error
        return schedule

    def canonical(self, sketch: Sketch, decisions: Sequence[int]) -> np.ndarray:
        """The decisions as TVM understands them (it changes an impossible compute location).  Raises as ``materialise``."""
        return _decisions(sketch, self.materialise(sketch, decisions))

    def replayed(self, sketch: Sketch, decisions: np.ndarray) -> np.ndarray:
        """As ``canonical``, in a fraction of the time, for a vector that a CPU's sketch offers, or of a GPU's that can be launched.

        Post-processors refuse hardly any of these, so they are not run, and TVM changes nothing but compute locations.
        """
        return _decisions(sketch, self._replay(sketch.trace_with(decisions))) if sketch.moves_blocks else decisions


def in_threads(replay: Callable[[Given], Found], given: Iterable[Given]) -> list[Found]:
    """What ``replay`` returns for each, in order; TVM lets threads replay at the same time.  Raises what it raises first."""
    with ThreadPoolExecutor(threads()) as pool:
        return list(pool.map(replay, given))


def _decisions(sketch: Sketch, schedule: Any) -> np.ndarray:
    return sketch.decisions_of(schedule.trace.simplified(remove_postproc=True))


def _choices(slot: Slot, instructions: Sequence[Any], seen: Sequence[tuple[int, ...]]) -> np.ndarray:
    """(C, width) values of a slot: all tilings of the extent, all categories, all loops, or what replays showed."""
    instruction = instructions[slot.instruction]
    if slot.kind == "categorical":
        return np.arange(len(instruction.attrs[0]), dtype=np.int32)[:, None]
    if slot.kind == "location":
        return _locations(instructions, {values[0] for values in seen})
    extents = {int(np.prod(values)) for values in seen}
    if slot.kind == "tile" and len(extents) == 1:
        parts, largest_inner = (int(v) for v in instruction.attrs)
        return perfect_tilings(extents.pop(), parts, largest_inner)
    return np.array(sorted(set(seen)), dtype=np.int32)


def _locations(instructions: Sequence[Any], seen: set[int]) -> np.ndarray:
    """(C, 1): inlining, the root, and every loop of the largest nest.

    A few replays do not show them all.  TVM changes an impossible location, so offering all is safe.
    """
    nests = [len(i.inputs) for i in instructions if i.kind.name == "Reorder"]
    deepest = max([*seen, *(n - 1 for n in nests)])
    return np.arange(-2, deepest + 1, dtype=np.int32)[:, None]


@lru_cache(maxsize=4096)
def perfect_tilings(extent: int, parts: int, largest_inner: int) -> np.ndarray:
    """(C, parts) all ordered factorisations of ``extent`` whose last factor is at most ``largest_inner``."""
    rows = [
        (*outer, inner) for inner in _divisors(extent) if inner <= largest_inner for outer in _ordered_factors(extent // inner, parts - 1)
    ]
    return np.array(rows, dtype=np.int32)


@lru_cache(maxsize=65536)
def _ordered_factors(extent: int, parts: int) -> tuple[tuple[int, ...], ...]:
    if parts == 0:
        return ((),) if extent == 1 else ()
    if parts == 1:
        return ((extent,),)
    return tuple((d, *rest) for d in _divisors(extent) for rest in _ordered_factors(extent // d, parts - 1))


@lru_cache(maxsize=65536)
def _divisors(number: int) -> tuple[int, ...]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


@lru_cache(maxsize=65536)
def _primes(number: int) -> tuple[int, ...]:
    """The different primes that divide a number."""
    return tuple(d for d in _divisors(number)[1:] if len(_divisors(d)) == 2)


def trace_to_json(trace: Any) -> str:
    """A trace, with its decisions, as text that ``trace_from_json`` reads."""
    return json.dumps(trace.as_json(), default=_plain_number, separators=(",", ":"))


def _plain_number(node: Any) -> int | float:
    value = node.value
    return value if isinstance(value, int | float) else float(value)


def trace_from_json(text: str, module: Any) -> Any:
    """The trace written by ``trace_to_json``, replayed on its task's module.

    Raises DataError if the text is damaged or belongs to another task.
    """
    tvm = load_tvm()
    schedule = tvm.s_tir.Schedule(module, seed=1, error_render_level="none")
    try:
        tvm.s_tir.schedule.Trace.apply_json_to_schedule(json.loads(text), schedule)
    except Exception as error:  # json and TVM raise unrelated types
        raise DataError(f"a sketch does not fit its task ({last_line(error)}); run the stage candidates again") from error
    return schedule.trace.simplified(remove_postproc=True)

"""Real intermediate states: the program that a schedule has made after some of its actions.

A world model learns from them what each action does (arXiv 2606.09312).  An action is a primitive, one token row;
the state after n actions is the program that would be measured if the schedule ended there, post-processed, so that
annotations show.  Its numbers are TVM's per-store features (FLOPs, loop annotations, bytes and strides of every
buffer access), pooled over the stores.

Replaying costs some 10 ms per state, so only a share of the programs is replayed, at some of their steps, and the
states are cached.  Nothing here is needed to predict.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core.compat import TVM_VERSION, load_tvm, meta_schedule, quiet_compiler
from tcl_core.errors import DataError
from tcl_core.features.batches import Samples, rows_by_task
from tcl_core.features.cache import Cache
from tcl_core.features.encode import Encoder
from tcl_core.features.layout import log2p
from tcl_core.features.tokens import IGNORED
from tcl_core.programs.primitives import QUERIES
from tcl_core.programs.sketches import DesignSpace, InvalidProgram, Sketch, read_sketch, trace_from_json
from tcl_core.programs.tasks import EXTRACTION_TARGET
from tcl_core.progress import progress
from tcl_core.records import ProgramKey

log = logging.getLogger(__name__)
FORMAT = f"2 {TVM_VERSION}"  # of the cache; the features are those of this TVM
STATE_WIDTH = 1 + 2 * 164  # stores, mean and maximum of TVM's 164 features
PROGRAMS = 4096  # replayed in all
PROGRAMS_PER_TASK = 32
STEPS_BETWEEN = 3  # states per program beside the untouched and the finished one


@dataclass(frozen=True)
class Trajectory:
    """P real states of one program on the way from the untouched task to the finished schedule.

    steps   (P,) int32, ascending: actions done so far; the first is 0, the last the number of all actions
    states  (P, STATE_WIDTH) float32
    """

    steps: np.ndarray
    states: np.ndarray


def with_states(samples: Samples, keys: Sequence[ProgramKey], encoder: Encoder, cache: Path) -> Samples:
    """The samples with the real states of a bounded share of their programs; the same ones every time.

    ``keys`` are aligned with ``samples``, ``encoder`` knows their tasks and sketches, and ``cache`` is a folder that
    gets one file per task.  Raises DataError when none of the programs can be replayed, ValueError when the keys are
    not those of the samples.
    """
    if [encoder.numbers[key[0]] for key in keys] != samples.tasks.tolist():
        raise ValueError(f"{len(keys)} keys of programs do not align with {len(samples)} samples")
    found = np.full(len(keys), None)
    chosen = chosen_rows(samples.tasks, keys)
    with progress("replaying schedules", sum(map(len, chosen))) as shown, quiet_compiler():
        for rows in chosen:
            task_key = keys[rows[0]][0]
            known = Cache(cache / f"{task_key}.safetensors", FORMAT)
            replay = _TaskReplay(encoder, task_key, known)
            for row in rows:
                found[row] = replay.trajectory(keys[row])
                shown.advance(encoder.tasks[task_key].name)
            known.write()
    if not any(found):
        raise DataError(f"none of {len(keys)} programs can be replayed to its states; run the stage candidates again.")
    return replace(samples, states=found)


def chosen_rows(tasks: np.ndarray, keys: Sequence[ProgramKey]) -> list[np.ndarray]:
    """Rows to replay, per task: at most PROGRAMS_PER_TASK, a limit that falls to two where there are many tasks.

    Programs are ordered by a hash of their keys, so that adding programs changes little of the choice.
    """
    groups = list(rows_by_task(tasks))
    limit = max(2, min(PROGRAMS_PER_TASK, PROGRAMS // max(len(groups), 1)))
    return [np.array(sorted(rows, key=lambda row: _hash(keys[row]))[:limit]) for rows in groups]


def _hash(key: ProgramKey) -> int:
    return zlib.crc32(repr(key).encode())


def chosen_steps(key: ProgramKey, count: int) -> np.ndarray:
    """(P,) steps of a program of ``count`` actions: 0, ``count``, and STEPS_BETWEEN drawn from between."""
    between = np.random.default_rng(_hash(key)).permutation(np.arange(1, count))[:STEPS_BETWEEN]
    return np.unique([0, *between, count]).astype(np.int32)


def action_ends(trace: Any) -> list[int]:
    """How many leading instructions of a trace make the state after 0, 1, ... actions; the last state has them all."""
    silent = QUERIES | set(IGNORED)
    names = [instruction.kind.name for instruction in trace.insts]
    acts = [n + 1 for n, name in enumerate(names) if not name.startswith("Sample") and name not in silent]
    return [0, *acts[:-1], len(names)] if acts else [0]


def pooled(stores: np.ndarray) -> np.ndarray:
    """(STATE_WIDTH,) log2(1 + stores), mean and maximum of the features (S, 164) of a program's S stores."""
    return np.concatenate([[log2p(len(stores))], stores.mean(axis=0), stores.max(axis=0)]).astype(np.float32)


class _TaskReplay:
    """Replays schedules of one task; makes the design space and feature extractor when the cache first lacks a state."""

    def __init__(self, encoder: Encoder, task_key: str, known: Cache) -> None:
        self.encoder, self.task_key, self.known = encoder, task_key, known
        self.sketches: dict[int, Sketch] = {}

    @cached_property
    def module(self) -> Any:
        return self.encoder.tasks[self.task_key].module()

    @cached_property
    def space(self) -> DesignSpace:
        return DesignSpace(self.task_key, self.module, EXTRACTION_TARGET)

    @cached_property
    def extractor(self) -> Any:
        return meta_schedule().feature_extractor.PerStoreFeature()

    def trajectory(self, key: ProgramKey) -> Trajectory | None:
        """The chosen states of a program; None where TVM refuses the program."""
        sketch = self._sketch(key[1])
        try:
            trace = sketch.trace_with(key[2])
            ends = action_ends(trace)
            steps = chosen_steps(key, len(ends) - 1)
            return Trajectory(steps, np.stack([self._state(sketch, key, trace, ends[step]) for step in steps]))
        except InvalidProgram as error:
            log.info("a program of task %s cannot be replayed (%s)", self.task_key, error)
            return None

    def _sketch(self, index: int) -> Sketch:
        if index not in self.sketches:
            trace = trace_from_json(self.encoder.trace_json(self.task_key, index), self.module)
            self.sketches[index] = read_sketch(self.task_key, index, trace)
        return self.sketches[index]

    def _state(self, sketch: Sketch, key: ProgramKey, trace: Any, end: int) -> np.ndarray:
        """The state after the trace's first ``end`` instructions."""
        name = self._name(sketch, key, end)
        if name not in self.known.arrays:
            self.known.arrays[name] = self._replayed(trace, end)
        return self.known.arrays[name]

    def _name(self, sketch: Sketch, key: ProgramKey, end: int) -> bytes:
        """The state's name in the cache, equal for programs that agree in the sketch and in the decisions before ``end``."""
        made = [key[2][slot.columns] for slot in sketch.slots if slot.instruction < end]
        start = self.encoder.trace_json(self.task_key, key[1]) if end else ""
        return hashlib.blake2b(repr((start, end, made)).encode(), digest_size=16).digest()

    def _replayed(self, trace: Any, end: int) -> np.ndarray:
        instructions = list(trace.insts)[:end]
        decisions = {i: trace.decisions[i] for i in instructions if i in trace.decisions}
        schedule = self.space.apply(load_tvm().s_tir.schedule.Trace(instructions, decisions))
        candidate = meta_schedule().MeasureCandidate(schedule, [])
        return pooled(self.extractor.extract_from(self.space.context, [candidate])[0].numpy())

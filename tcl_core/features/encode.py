"""Encode programs, given by task, sketch and decisions, as the arrays that models see.

Keeps the templates of sketches, so that encoding costs array operations alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tcl_core.compat import load_module
from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.features.groups import by_sketch, samples_of
from tcl_core.features.layout import WIDTH
from tcl_core.features.tokens import program_tokens
from tcl_core.programs.primitives import Primitive, sketch_primitives
from tcl_core.programs.sketches import Sketch
from tcl_core.programs.tasks import Task
from tcl_core.programs.trace_text import read_template
from tcl_core.programs.workload import Workload, read_workload
from tcl_core.records import ProgramKey
from tcl_core.store import Columns


@dataclass(frozen=True)
class _Template:
    """A sketch's primitives with holes, and the length of the decision vectors that fill them."""

    primitives: list[Primitive]
    width: int


# Data sets share tasks and sketches, each of which takes TVM milliseconds to read: encoders share what was read recently.
@lru_cache(maxsize=1024)
def _read_task(operator: str, flops: float, module_json: str) -> Workload:
    """What a task computes."""
    return read_workload(operator, flops, load_module(module_json))


@lru_cache(maxsize=4096)
def _read_template(trace_json: str, *task: Any) -> _Template:
    """The template of a sketch; ``task`` are the arguments of ``_read_task`` for its task."""
    return _Template(*read_template(trace_json, _read_task(*task)))


class Encoder:
    """Turns programs into tokens; reads each task and sketch at its first program."""

    def __init__(self, tasks: Sequence[Task], sketches: Iterable[Mapping[str, Any]]) -> None:
        self.tasks = {task.key: task for task in tasks}
        self.numbers = {task.key: number for number, task in enumerate(tasks)}
        self.names = tuple(task.name for task in tasks)
        self.texts = {(row["task_key"], row["sketch_id"]): row["trace_json"] for row in sketches}
        self._workloads: dict[str, Workload] = {}
        self._templates: dict[tuple[str, int], _Template] = {}

    def add(self, sketch: Sketch) -> None:
        """Learn one more sketch of a known task."""
        primitives = sketch_primitives(sketch, self.workload(sketch.task_key))
        self._templates[sketch.task_key, sketch.index] = _Template(primitives, sketch.width)

    def workload(self, task_key: str) -> Workload:
        """What a task computes; read from its module on first use."""
        if task_key not in self._workloads:
            self._workloads[task_key] = _read_task(*self._of_task(task_key))
        return self._workloads[task_key]

    def _of_task(self, task_key: str) -> tuple[str, float, str]:
        task = self.tasks[task_key]
        return task.operator, task.flops, task.module_json

    def trace_json(self, task_key: str, sketch: int) -> str:
        """A sketch's trace as text.  Raises DataError for a sketch of another pool."""
        if task_key not in self.tasks or (task_key, sketch) not in self.texts:
            raise DataError(f"sketch {sketch} of task {task_key} is not in the pool; run the stage candidates again")
        return self.texts[task_key, sketch]

    def _template(self, group: tuple[str, int]) -> _Template:
        if group not in self._templates:
            self._templates[group] = _read_template(self.trace_json(*group), *self._of_task(group[0]))
        return self._templates[group]

    def operators(self, keys: Sequence[ProgramKey]) -> np.ndarray:
        """(N,) operator type of each program."""
        return np.array([self.tasks[key[0]].operator for key in keys])

    def encode(self, keys: Sequence[ProgramKey], hardware: Sequence[float], latencies_s: Sequence[float] | None = None) -> Samples:
        """The programs as ``Samples``, in order; latencies default to inf (unknown)."""
        groups: dict[tuple[str, int], list[int]] = {}
        for row, (task_key, sketch, _) in enumerate(keys):
            groups.setdefault((task_key, sketch), []).append(row)
        parts = {group: self._tokens(group, [keys[r][2] for r in rows], hardware) for group, rows in groups.items()}
        length = max((part.shape[1] for part in parts.values()), default=0)
        lengths = np.full(len(keys), length, dtype=np.int32)
        if len(parts) == 1:  # as in a search, which asks for the programs of one sketch at a time
            (tokens,) = parts.values()
        else:
            tokens = np.zeros((len(keys), length, WIDTH), dtype=np.float32)
            for group, rows in groups.items():
                tokens[rows, : parts[group].shape[1]] = parts[group]
                lengths[rows] = parts[group].shape[1]
        return Samples(
            features=tokens,
            lengths=lengths,
            tasks=np.array([self.numbers[key[0]] for key in keys], dtype=np.int32),
            latencies_s=np.full(len(keys), np.inf) if latencies_s is None else np.asarray(latencies_s, dtype=np.float64),
            task_names=self.names,
        )

    def encode_columns(self, columns: Columns, hardware: Sequence[float]) -> Samples:
        """As ``encode``, for a block of records as columns (``store.iter_columns`` of ``groups.COLUMNS``)."""
        groups = by_sketch(columns)
        parts = [(group, self._tokens((group.task_key, group.sketch_id), group.decisions, hardware)) for group in groups]
        return samples_of(parts, columns, self.numbers, self.names)

    def _tokens(self, group: tuple[str, int], decisions: Sequence[Sequence[int]], hardware: Sequence[float]) -> np.ndarray:
        template = self._template(group)
        try:
            matrix = np.array(decisions, dtype=np.int32).reshape(len(decisions), template.width)
        except ValueError:  # rows of several lengths, or of another one
            raise DataError(
                f"a program of sketch {group[1]} of task {group[0]} has not the sketch's {template.width} decisions; "
                "it belongs to another pool: run the stage candidates again"
            ) from None
        return program_tokens(template.primitives, self.workload(group[0]), hardware, matrix)

"""From programs, known by task, sketch and decisions, to the arrays that models see.

Holds the templates of all sketches, so that encoding costs array operations alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.features.tokens import WIDTH, program_tokens
from tcl_core.programs.primitives import Primitive, sketch_primitives
from tcl_core.programs.sketches import Sketch, read_sketch, trace_from_json
from tcl_core.programs.tasks import Task
from tcl_core.programs.workload import Workload, read_workload

ProgramKey = tuple[str, int, tuple[int, ...]]
"""(task key, sketch index, decisions)."""


class Encoder:
    """Knows every task's workload and every sketch's primitives; turns programs into tokens."""

    def __init__(self, tasks: Sequence[Task], sketches: Iterable[Mapping[str, Any]]) -> None:
        self.tasks = {task.key: task for task in tasks}
        self.numbers = {task.key: number for number, task in enumerate(tasks)}
        self.names = tuple(task.name for task in tasks)
        self.workloads: dict[str, Workload] = {}
        self.primitives: dict[tuple[str, int], list[Primitive]] = {}
        modules: dict[str, Any] = {}
        for row in sketches:
            key = row["task_key"]
            if key not in self.tasks:
                raise DataError(f"a sketch of the unknown task {key}; run the stages tasks and candidates again")
            if key not in modules:
                modules[key] = self.tasks[key].module()
                self.workloads[key] = read_workload(self.tasks[key].operator, self.tasks[key].flops, modules[key])
            sketch = read_sketch(key, row["sketch_id"], trace_from_json(row["trace_json"], modules[key]))
            self.add(sketch)

    def add(self, sketch: Sketch) -> None:
        """Learn one more sketch of a known task."""
        self.primitives[sketch.task_key, sketch.index] = sketch_primitives(sketch, self.workloads[sketch.task_key])

    def operators(self, keys: Sequence[ProgramKey]) -> np.ndarray:
        """(N,) operator type of each program."""
        return np.array([self.tasks[key[0]].operator for key in keys])

    def encode(
        self, keys: Sequence[ProgramKey], hardware: Sequence[float], latencies_s: Sequence[float] | None = None
    ) -> Samples:
        """The programs as ``Samples``, in order; latencies default to inf (unknown)."""
        groups: dict[tuple[str, int], list[int]] = {}
        for row, (task_key, sketch, _) in enumerate(keys):
            groups.setdefault((task_key, sketch), []).append(row)
        parts = {group: self._tokens(group, [keys[r][2] for r in rows], hardware) for group, rows in groups.items()}
        length = max((part.shape[1] for part in parts.values()), default=0)
        tokens = np.zeros((len(keys), length, WIDTH), dtype=np.float32)
        lengths = np.zeros(len(keys), dtype=np.int32)
        for group, rows in groups.items():
            tokens[rows, : parts[group].shape[1]] = parts[group]
            lengths[rows] = parts[group].shape[1]
        return Samples(
            tokens=tokens,
            lengths=lengths,
            tasks=np.array([self.numbers[key[0]] for key in keys], dtype=np.int32),
            latencies_s=np.full(len(keys), np.inf) if latencies_s is None else np.asarray(latencies_s, dtype=np.float64),
            task_names=self.names,
        )

    def _tokens(self, group: tuple[str, int], decisions: Sequence[Sequence[int]], hardware: Sequence[float]) -> np.ndarray:
        if group not in self.primitives:
            raise DataError(f"sketch {group[1]} of task {group[0]} is not in the pool; run the stage candidates again")
        matrix = np.array(decisions, dtype=np.int32).reshape(len(decisions), -1)
        return program_tokens(self.primitives[group], self.workloads[group[0]], hardware, matrix)

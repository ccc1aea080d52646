"""The tasks and sketches of imported logs, as rows of the tables that all programs share.

A sketch's number is derived from what the sketch does, so that a program has the same key whichever log and platform
it comes from: records of one program on two platforms can be joined.  A trace finds blocks by their names, so of MetaSchedule's
programs this holds only where both platforms keep modules whose blocks have the same names.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from tcl_core.programs.sketches import PARALLEL

Row = dict[str, Any]


class Known:
    """Known tasks and sketches of a platform; grows while logs are read.

    ``tasks`` and ``sketches`` are rows imported before; ``pool`` are sketches of the candidate pool, which keep their
    numbers where a log has them too, and ``modules`` those of its tasks.
    """

    def __init__(
        self,
        tasks: Iterable[Row] = (),
        sketches: Iterable[Row] = (),
        pool: Iterable[Mapping[str, Any]] = (),
        modules: Mapping[str, str] | None = None,
    ) -> None:
        self._modules = modules or {}
        self._tasks = {row["task_key"]: row for row in tasks}
        self._texts = {(row["task_key"], row["sketch_id"]): row["trace_json"] for row in sketches}
        self._numbers = {(key, identity(text)): number for (key, number), text in self._texts.items()}
        self._wanted = {(row["task_key"], identity(row["trace_json"])): row["sketch_id"] for row in pool}

    def add_task(self, row: Row) -> None:
        """Add a task, or replace the description of a known one."""
        self._tasks[row["task_key"]] = row

    def module_json(self, task_key: str) -> str | None:
        """The module whose blocks a task's sketches name: the one imported before, else the pool's; None where there is neither."""
        return self._tasks[task_key]["module_json"] if task_key in self._tasks else self._modules.get(task_key)

    def sketch_id(self, task_key: str, text: str) -> int:
        """The number of a task's sketch: the pool's, else the CRC-32 of its identity (31 bits); the next free one if that is taken."""
        named = (task_key, identity(text))
        if named not in self._numbers:
            number = self._wanted.get(named, zlib.crc32(named[1]) & 0x7FFFFFFF)
            while (task_key, number) in self._texts:
                number = (number + 1) & 0x7FFFFFFF
            self._numbers[named], self._texts[task_key, number] = number, text
        return self._numbers[named]

    def task_rows(self) -> list[Row]:
        """Rows of the tasks table, ordered by key."""
        return [self._tasks[key] for key in sorted(self._tasks)]

    def sketch_rows(self) -> list[Row]:
        """Rows of the sketches table, ordered by task and number."""
        ordered = sorted(self._texts.items())
        return [{"task_key": key, "sketch_id": number, "trace_json": text} for (key, number), text in ordered]


def identity(text: str) -> bytes:
    """The part of a sketch's text that holds no decisions: all of a log's text, or a trace's instructions."""
    sketch = orjson.loads(text)
    return text.encode() if isinstance(sketch, dict) else orjson.dumps(blank_instructions(sketch[0]))


def blank_instructions(instructions: list[Any]) -> list[Any]:
    """A trace's instructions with the constant of ``meta_schedule.parallel``, which is a decision, set to 0."""
    return [_blank(instruction) for instruction in instructions]


def _blank(instruction: list[Any]) -> list[Any]:
    kind, inputs, attributes, outputs = instruction
    decides = kind == "Annotate" and attributes == [PARALLEL]
    return [kind, [inputs[0], 0], attributes, outputs] if decides else instruction

"""Stream a log, gzip or plain, into record columns, with one block of lines in memory at a time.

Nothing is dropped silently: a line that cannot become a record is refused with its number and a reason, and every
other line becomes one record.  Knows neither where the data set lies nor Parquet.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import zlib
from abc import ABC, abstractmethod
from array import array
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import numpy as np
import orjson

from tcl_core.errors import DataError, UsageError
from tcl_core.files import printable, shown
from tcl_core.programs.tuning_logs.known import Known
from tcl_core.programs.tuning_logs.line import ERRORS, Line, Malformed, Shape
from tcl_core.store import Coded, Columns, Ragged

BLOCK = 65_536  # records
MOST_NUMBERS = 1 << 24  # decisions and latencies of a block, since one record may have many
MOST_OF_A_LINE = 1 << 14  # decisions or latencies; real programs have some hundreds
LONGEST = 16 << 20  # bytes of a line; the longest of real logs are some 100 KB
LARGEST = 1 << 62  # bound on the numbers derived from a task's sizes
NAME = 1_000  # characters of a task's name
Refuse = Callable[[int, str], None]
"""Takes the number of a line, from 1, and why it cannot become a record."""


def open_log_file(path: Path) -> BinaryIO:
    """Open a log's bytes, still compressed.  Raises UsageError unless it is a readable regular file: a log is read more than once."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer would block
    except OSError as error:
        raise UsageError(f"cannot read the log {shown(path)} ({error.strerror.lower()}); give a tuning log") from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device, and a log is read more than once"
    raise UsageError(f"cannot read the log {shown(path)} (it is {what}); give a file")


def text_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The number (from 1) and text of each line that is not blank, cut off after LONGEST + 1 bytes.  A byte-order mark at the start
    of the file is dropped.

    Raises UsageError as ``open_log_file``, DataError where its compression is damaged or cut off.
    """
    number = 0
    try:
        with open_log_file(path) as raw:
            file = gzip.open(raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw  # type: ignore[attr-defined]
            while text := file.readline(LONGEST + 1):
                number += 1
                if len(text) > LONGEST:
                    _skip_line(file, text)
                if number == 1:
                    text = text.removeprefix(BOM_UTF8)
                if text and not text.isspace():
                    yield number, text
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{shown(path)} is damaged or cut off after line {number} ({error}); fetch it again, or unpack what is sound"
        ) from error


def _skip_line(file: BinaryIO, start: bytes) -> None:
    """Read on to the end of the line that begins with ``start``."""
    part = start
    while part and not part.endswith(b"\n"):
        part = file.readline(1 << 20)


class Log(ABC):
    """A log while it is read: what all dialects share.

    lines   lines read so far;  errors  error kind -> records so far
    target  of all its records: the platform's, or else the first one that contains ``wanted``
    """

    name: str

    def __init__(self, path: Path, known: Known, target: str | None = None, wanted: str = "") -> None:
        self.path, self.known, self.target, self.wanted = path, known, target, wanted
        self.lines, self.errors = 0, Counter()
        self._keys: list[str] = []
        self._protocols: dict[bytes, int] = {}
        self._versions: dict[str, int] = {}

    def columns(self, refuse: Refuse) -> Iterator[Columns]:
        """Columns of the records table, a block at a time; calls ``refuse`` for each line that cannot become a record."""
        block = _Block()
        for number, text in text_lines(self.path):
            self.lines += 1
            try:
                self._add(block, number, *self._read(text))
            except Malformed as error:
                refuse(number, str(error))
            if block.is_full():
                yield self._columns(block)
                block = _Block()
        if block.lines:
            yield self._columns(block)

    def _read(self, text: bytes) -> tuple[int, int, array, Line]:
        """A line's task (index among the keys), sketch id, decisions and ``Line``; raises Malformed."""
        if len(text) > LONGEST:
            raise Malformed(f"longer than {LONGEST >> 20} MiB")
        try:
            line = self._parse(orjson.loads(text))
        except Malformed:
            raise
        except orjson.JSONDecodeError as error:
            raise Malformed(f"no JSON ({error})") from None
        except KeyError as error:
            raise Malformed(f"lacks {error}") from None
        except RecursionError:
            raise Malformed("nested too deeply") from None
        except (TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            raise Malformed(f"not shaped as a line of {self.name} ({error})") from None
        self._check_target(line.target)
        try:
            task, sketch, decisions = self._program(line)
        except OverflowError:
            raise Malformed("a number of its program does not fit 32 bits") from None
        except RecursionError:
            raise Malformed("its program is nested too deeply") from None
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise Malformed(f"its program is none of {self.name} ({error})") from None
        if max(len(decisions), len(line.costs or ())) > MOST_OF_A_LINE:
            raise Malformed(f"it has more than {MOST_OF_A_LINE:,} decisions or latencies, and no program does")
        self.target = line.target  # of the first program, if the platform had none
        return task, sketch, decisions, line

    @abstractmethod
    def _parse(self, entry: Any) -> Line:
        """What a line's JSON says; raises Malformed or what Python raises for missing keys and wrong types."""

    @abstractmethod
    def _program(self, line: Line) -> tuple[int, int, array]:
        """The line's program: task (index among the keys), sketch id, decisions; raises as ``_parse``."""

    def _check_target(self, target: str) -> None:
        if self.wanted not in target:
            raise Malformed(f"its target '{target}' is not the wanted one")
        if target == self.target:
            return
        if self.target is not None:
            raise Malformed(f"its target '{target}' is not '{self.target}', which the platform's records have")

    def _add(self, block: _Block, number: int, task: int, sketch: int, decisions: array, line: Line) -> None:
        block.add(number, task, sketch, decisions, line)
        block.protocols.append(self._protocols.setdefault(line.protocol, len(self._protocols)))
        block.versions.append(self._versions.setdefault(line.tvm_version, len(self._versions)))

    def _columns(self, block: _Block) -> Columns:
        codes = np.frombuffer(block.errors, dtype=np.int8).astype(np.int32)
        for code, count in zip(*np.unique(codes, return_counts=True), strict=True):
            self.errors[ERRORS[int(code)][0]] += int(count)
        nothing = np.zeros(len(codes), dtype=np.int32)
        return {
            "task_key": Coded(_integers(block.tasks), list(self._keys)),
            "sketch_id": _integers(block.sketches),
            "program_id": _integers(block.lines),
            "decisions": _ragged(_integers(block.decisions), block.widths),
            "latencies_s": _ragged(np.frombuffer(block.costs, dtype=np.float32), block.repeats),
            "error": Coded(codes, [kind for kind, _ in ERRORS.values()]),
            "message": Coded(codes, [message for _, message in ERRORS.values()]),
            "round": nothing,
            "measured_at": (np.frombuffer(block.stamps, dtype=np.float64) * 1e6).astype("datetime64[us]"),
            "protocol": Coded(_integers(block.protocols), [text.decode() for text in self._protocols]),
            "host": Coded(nothing, [str(self.target)]),
            "tvm_version": Coded(_integers(block.versions), list(self._versions)),
            "checked": nothing.astype(bool),
            "disturbed": nothing.astype(bool),
        }


class LineLog(Log):
    """A log with self-contained lines; ``dialect`` is its module (see ``dialects``)."""

    def __init__(self, dialect: ModuleType, path: Path, known: Known, **about_target: Any) -> None:
        super().__init__(path, known, **about_target)
        self.name, self._dialect = dialect.NAME, dialect
        self._tasks: dict[bytes, int] = {}
        self._sketches: dict[tuple[int, Shape], int] = {}

    def _parse(self, entry: Any) -> Line:
        return self._dialect.parse(entry)

    def _program(self, line: Line) -> tuple[int, int, array]:
        task = self._tasks.get(line.task)
        if task is None:
            task = self._new_task(line)
        shape, numbers = self._dialect.take_apart(line.steps)
        decisions, sketch = array("i", numbers), self._sketches.get((task, shape))
        if sketch is None:
            sketch = self._new_sketch(task, shape, line.steps)
        return task, sketch, decisions

    def _new_task(self, line: Line) -> int:
        key = hashlib.sha256(line.task).hexdigest()[:16]
        about = {"log": self.name, "target": line.target, **self._dialect.describe(line.task)}
        workload = self._dialect.read_workload(about)
        if not 0 <= workload.largest < LARGEST:
            raise Malformed("the sizes of its task are none that a program could have")
        self.known.add_task(
            {"task_key": key, "name": printable(workload.name)[:NAME], "op_type": workload.operator, "flops": workload.flops,
             "module_json": orjson.dumps(about).decode()}
        )  # fmt: skip
        self._keys.append(key)
        return self._tasks.setdefault(line.task, len(self._tasks))

    def _new_sketch(self, task: int, shape: Shape, steps: list[Any]) -> int:
        self._dialect.check_sketch(steps)
        blank = self._dialect.fill(steps, repeat(0))
        text = orjson.dumps({"log": self.name, "steps": blank}).decode()
        return self._sketches.setdefault((task, shape), self.known.sketch_id(self._keys[task], text))


class _Block:
    """Columns under construction, as arrays of machine numbers."""

    def __init__(self) -> None:
        self.tasks, self.sketches, self.lines = array("i"), array("i"), array("i")
        self.decisions, self.widths = array("i"), array("i")
        self.costs, self.repeats = array("f"), array("i")
        self.errors, self.stamps = array("b"), array("d")
        self.protocols, self.versions = array("i"), array("i")

    def is_full(self) -> bool:
        return len(self.lines) >= BLOCK or len(self.decisions) + len(self.costs) >= MOST_NUMBERS

    def add(self, number: int, task: int, sketch: int, decisions: array, line: Line) -> None:
        self.tasks.append(task)
        self.sketches.append(sketch)
        self.lines.append(number)
        self.decisions += decisions
        self.widths.append(len(decisions))
        if line.error_no == 0:
            self.costs.extend(line.costs)
            self.repeats.append(len(line.costs))
        else:
            self.repeats.append(0)
        self.errors.append(line.error_no)
        self.stamps.append(line.stamp)


def _integers(values: array) -> np.ndarray:
    return np.frombuffer(values, dtype=np.int32)


def _ragged(values: np.ndarray, lengths: array) -> Ragged:
    return Ragged(values, np.concatenate([[0], np.cumsum(_integers(lengths))]))

"""MetaSchedule's JSON databases: read into records of sketches and decisions, and written from them.

    database_workload.json       per task [structural hash, the module in base64]
    database_tuning_record.json  per program [its task's line, [[instructions, decisions], seconds, target, arguments]]

In a record's trace the sketch comes before EnterPostproc, the post-processors' work after it.  One record of each
sketch is replayed to read the sketch; for all others the decisions are picked from the text.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson

from tcl_core.compat import load_module, load_tvm, make_target, meta_schedule, quiet_compiler
from tcl_core.errors import DataError, UsageError, last_line
from tcl_core.files import replacing, shown, writing
from tcl_core.programs.sketches import (
    KINDS,
    DesignSpace,
    InvalidProgram,
    Sketch,
    Slot,
    read_sketch,
    trace_from_json,
    trace_to_json,
)
from tcl_core.programs.tasks import Task, block_names, describe, named, operator_type
from tcl_core.programs.tuning_logs.known import Known, blank_instructions
from tcl_core.programs.tuning_logs.line import Line, Malformed, check_result
from tcl_core.programs.tuning_logs.opening import RECORDS, WORKLOADS
from tcl_core.programs.tuning_logs.reading import Log, text_lines
from tcl_core.records import ProgramKey

NAME = "MetaSchedule"
POSTPROC = "EnterPostproc"
WRITTEN_S = 1e10  # latency that MetaSchedule writes for a failed program, and never chooses
MOST_WORKLOADS = 1 << 30  # bytes of a database's workloads, unpacked
FAILED_S = 1e9  # no program takes this long: a record that says so is of a failed one
MOST_LOOPS = 256  # that a block can be moved below: more than any program nests
RUN_FAILED = 4  # TVM's number of a runtime error, since records do not say how a program failed


@dataclass(frozen=True)
class _Template:
    """A sketch read so far: its number, and for each slot the index of its instruction in a record.

    extents  of the loop that each slot tiles; None for slots of other kinds, and where it depends on other decisions
    """

    sketch_id: int
    slots: tuple[tuple[int, Slot], ...]
    extents: tuple[int | None, ...]


def is_record(entry: Any) -> bool:
    """Whether a line's JSON is one of a database's records."""
    return isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], int) and isinstance(entry[1], list)


def files_of(path: Path) -> list[Path]:
    """A database's records and, beside them, its workloads, compressed or not.  Raises UsageError where these are missing."""
    name = path.name.removesuffix(".gz").replace("tuning_record", "workload")
    for candidate in (path.with_name(name), path.with_name(f"{name}.gz")):
        if candidate != path and os.path.lexists(candidate):
            return [path, candidate]
    expected = f"its workloads, {shown(name)}, are not beside it" if name != path.name else "its name does not tell that of its workloads"
    raise UsageError(
        f"{shown(path)} are a MetaSchedule database's records, but {expected}; name them as TVM does, database_tuning_record.json and "
        "database_workload.json, in one folder"
    )


def _workload_lines(workloads: Path) -> list[bytes]:
    """All workloads' lines, since records refer to them by number.

    Raises DataError for more than MOST_WORKLOADS bytes: a small file may unpack to any size.
    """
    lines, size = list[bytes](), 0
    for _, text in text_lines(workloads):
        size += len(text)
        if size > MOST_WORKLOADS:
            raise DataError(
                f"{shown(workloads)} unpacks to more than {MOST_WORKLOADS >> 20} MiB, and no database's workloads are so many; give another"
            )
        lines.append(text)
    return lines


def open_log(path: Path, known: Known, **about_target: Any) -> DatabaseLog:
    """The log of a database's records."""
    records, workloads = files_of(path)
    return DatabaseLog(records, workloads, known, **about_target)


def has_failed(line: bytes) -> bool:
    """Whether a line of a database's records has no latency or is damaged."""
    try:
        return _failed(orjson.loads(line)[1][1])
    except (ValueError, LookupError, TypeError):
        return True


def _failed(seconds: Sequence[float]) -> bool:
    return not seconds or max(seconds) >= FAILED_S


class DatabaseLog(Log):
    """A database's records, read with the workloads of the file ``workloads``."""

    name = NAME

    def __init__(self, path: Path, workloads: Path, known: Known, **about_target: Any) -> None:
        super().__init__(path, known, **about_target)
        self._lines = _workload_lines(workloads)
        self._modules: dict[int, Any] = {}
        self._places: dict[int, int] = {}
        self._unread: dict[int, str] = {}  # workload -> why it cannot be read
        self._names: dict[int, dict[str, str]] = {}  # workload -> its blocks' names -> the known task's module's, where these differ
        self._templates: dict[tuple[int, bytes], _Template] = {}

    def _parse(self, entry: Any) -> Line:
        workload, (trace, seconds, target, _) = entry
        failed = _failed(seconds)
        check_result(seconds, RUN_FAILED if failed else 0, 0.0)
        return Line(
            task=workload,
            target=orjson.dumps(target, option=orjson.OPT_SORT_KEYS).decode(),
            steps=trace,
            costs=seconds,
            error_no=RUN_FAILED if failed else 0,
            stamp=0.0,
            protocol=b'{"log": "MetaSchedule"}',
            tvm_version="unknown",
        )

    def _program(self, line: Line) -> tuple[int, int, array]:
        instructions, decisions = line.steps
        kinds = [instruction[0] for instruction in instructions]
        end = kinds.index(POSTPROC) if POSTPROC in kinds else len(kinds)
        instructions, decided = instructions[:end], dict(decisions)
        _check_tilings(decided)
        place = self._place(line.task)
        if names := self._names.get(line.task):
            instructions = [_renamed(instruction, names) for instruction in instructions]
        met = (line.task, orjson.dumps(blank_instructions(instructions)))
        if met not in self._templates:
            self._templates[met] = self._template(line.task, instructions, [d for d in decisions if d[0] < end])
        template = self._templates[met]
        return place, template.sketch_id, array("i", _picked(template, instructions, decided))

    def _place(self, workload: int) -> int:
        """Index of a workload's task among the keys; tries to read the module once, on first use."""
        if not (type(workload) is int and 0 <= workload < len(self._lines)):  # before it is looked up: True and 1.0 are equal to 1
            raise Malformed(f"the database has no workload {workload}")
        if workload in self._unread:
            raise Malformed(self._unread[workload])
        if workload not in self._places:
            try:
                self._add_workload(workload)
            except Malformed as error:
                self._unread[workload] = str(error)
                raise
        return self._places[workload]

    def _add_workload(self, workload: int) -> None:
        module = self._read_module(workload)
        try:
            task = describe("", module)
            kept = self.known.module_json(task.key) or task.module_json
            if kept != task.module_json:  # the same structure, whose blocks may have other names, by which traces find them
                own, module = module, load_module(kept)
                pairs = zip(block_names(own), block_names(module), strict=True)
                self._names[workload] = {given: name for given, name in pairs if given != name}
                task = replace(task, operator=operator_type("", module), module_json=kept)
            task = replace(task, name=named(task.operator, module))
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
            # From TVM for a single opaque block, such as a scatter; for symbolic extents; for arguments that are no tensors.
            raise Malformed(f"workload {workload} has no blocks that could be scheduled ({last_line(error)})") from None
        self.known.add_task(task.as_row())
        self._keys.append(task.key)
        self._modules[workload], self._places[workload] = module, len(self._keys) - 1

    def _read_module(self, workload: int) -> Any:
        try:
            with quiet_compiler():
                return meta_schedule().database.Workload.from_json(json.loads(self._lines[workload])).mod
        except Exception as error:  # json and TVM raise unrelated types
            raise Malformed(f"this TVM cannot read workload {workload} ({last_line(error)})") from None

    def _template(self, workload: int, instructions: list[Any], decisions: list[Any]) -> _Template:
        schedule = self._replayed(workload, instructions, decisions)
        kept, whole = schedule.trace.simplified(remove_postproc=True), list(schedule.trace.insts)
        if unknown := [i.kind.name for i in kept.insts if i.kind.name.startswith("Sample") and i.kind.name not in KINDS]:
            raise Malformed(f"its trace draws by {unknown[0]}, which this version does not know")
        sketch = read_sketch(self._keys[self._places[workload]], 0, kept)
        places = [next(n for n, i in enumerate(whole) if i.same_as(kept.insts[slot.instruction])) for slot in sketch.slots]
        number = self.known.sketch_id(sketch.task_key, trace_to_json(kept))
        tilings = [place for place, slot in zip(places, sketch.slots, strict=True) if slot.kind == "tile"]
        extents = self._extents(workload, instructions, [d for d in decisions if d[0] not in tilings], tilings)
        return _Template(number, tuple(zip(places, sketch.slots, strict=True)), tuple(map(extents.get, places)))

    def _replayed(self, workload: int, instructions: list[Any], decisions: list[Any], seed: int = 1) -> Any:
        """A schedule of the instructions with these decisions, and with random ones where there are none."""
        schedule = load_tvm().s_tir.Schedule(self._modules[workload], seed=seed, error_render_level="none")
        try:
            with quiet_compiler():
                load_tvm().s_tir.schedule.Trace.apply_json_to_schedule([instructions, decisions], schedule)
        except Exception as error:  # TVM reports an impossible trace by several types
            raise Malformed(f"its trace cannot be replayed ({last_line(error)})") from None
        return schedule

    def _extents(self, workload: int, instructions: list[Any], others: list[Any], tilings: list[int]) -> dict[int, int]:
        """Instruction -> the extent that it tiles, where two random draws of all tilings agree on it."""
        drawn = []
        for seed in (1, 2):
            try:
                trace = self._replayed(workload, instructions, others, seed).trace
            except Malformed:  # the drawn tilings do not go with the other decisions: the extents stay unknown
                return {}
            drawn.append([math.prod(map(int, trace.decisions[trace.insts[place]])) for place in tilings])
        return {place: one for place, one, other in zip(tilings, *drawn, strict=True) if one == other}


def _renamed(instruction: list[Any], names: Mapping[str, str]) -> list[Any]:
    """The instruction; one that looks a block up by its name looks for the new name."""
    kind, inputs, attributes, outputs = instruction
    if kind != "GetSBlock":
        return instruction
    name, *function = attributes
    return [kind, inputs, [names.get(name, name), *function], outputs]


def _check_tilings(decided: Mapping[int, Any]) -> None:
    """Raise Malformed for a factor below 1: TVM would divide by it, and the process would die."""
    for place, value in decided.items():
        if isinstance(value, list) and min(value, default=1) < 1:
            raise Malformed(f"instruction {place} of its trace splits a loop by {min(value)}")


def _picked(template: _Template, instructions: list[Any], decided: dict[int, Any]) -> Iterator[int]:
    for (place, slot), extent in zip(template.slots, template.extents, strict=True):
        if slot.kind == "constant":
            value = instructions[place][1][1]
            if value < 0:  # with -1 TVM's post-processor would run until memory is exhausted
                raise Malformed(f"instruction {place} of its trace asks for {value} parallel iterations")
            yield value
            continue
        if place not in decided:
            raise Malformed(f"instruction {place} of its trace has no decision")
        values = decided[place] if slot.kind == "tile" else [decided[place]]
        if len(values) != slot.width:
            raise Malformed(f"instruction {place} of its trace has {len(values)} decisions instead of {slot.width}")
        if extent is not None and math.prod(values) != extent:
            raise Malformed(f"instruction {place} of its trace splits a loop of {extent} into {math.prod(values)}")
        if slot.kind == "location" and not -2 <= values[0] < MOST_LOOPS:  # -1 and -2: not moved, and inlined
            raise Malformed(f"instruction {place} of its trace moves a block to loop {values[0]}")
        if slot.kind == "categorical" and not 0 <= values[0] < len(instructions[place][2][0]):
            raise Malformed(f"instruction {place} of its trace chooses number {values[0]}, which it does not offer")
        yield from values


@dataclass(frozen=True)
class Tuned:
    """A measured program to export.

    trace_json   its sketch's text;  key: task, sketch, decisions
    latencies_s  one per repeat, seconds;  target: TVM's target as a dictionary
    """

    trace_json: str
    key: ProgramKey
    latencies_s: tuple[float, ...]
    target: dict[str, Any]


@contextmanager
def _without(path: Path) -> Iterator[None]:
    """Delete the old file when the block ends well, before the file beside it is replaced: the two belong together."""
    yield
    with writing(path):
        path.unlink(missing_ok=True)


def write_database(
    folder: Path, tasks: Mapping[str, Task], programs: Iterable[Tuned], on_program: Callable[[], None] = lambda: None
) -> tuple[int, int]:
    """Write a database that ``ms.database.JSONDatabase`` loads; return the numbers of records written and programs refused.

    Each program is materialised, which takes some 2 to 10 ms, since a database holds post-processed traces; TVM refuses
    programs that it can no longer build.  Consecutive ``programs`` of one task and target share a design space.

    Raises DataError for an unknown task or another task's sketch, PlatformError when the disk is full.
    """
    written: dict[str, int] = {}
    counts = Counter()
    with (
        replacing(folder / RECORDS) as records,
        replacing(folder / WORKLOADS) as workloads,
        _without(folder / RECORDS),
    ):
        for (key, target), group in groupby(programs, key=lambda p: (p.key[0], json.dumps(p.target, sort_keys=True))):
            if key not in tasks:
                raise DataError(f"task {key} of a record is not among the tasks; run the stage tasks again")
            exporter = _Exporter(tasks[key], json.loads(target))
            if key not in written:
                written[key] = len(written)
                workloads.write(_line(exporter.workload.as_json()))
            for program in group:
                on_program()
                try:
                    record = exporter.record(program)
                except InvalidProgram:
                    counts["refused"] += 1
                    continue
                records.write(_line([written[key], _record_json(record)]))
                counts["written"] += 1
        for file in (records, workloads):  # a full disk must be noticed while the old files are still there
            file.flush()
            os.fsync(file.fileno())
    return counts["written"], counts["refused"]


def _record_json(record: Any) -> Any:
    """MetaSchedule's JSON of a TuningRecord; its own ``as_json`` fails on the new order of a weight (an IndexMap)."""
    from tvm.s_tir.meta_schedule import _ffi_api

    return _plain(_ffi_api.TuningRecordAsJSON(record))


def _plain(value: Any) -> Any:
    tvm = load_tvm()
    if isinstance(value, tvm.tirx.IndexMap):
        return tvm.ir.save_json(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    return value.value if isinstance(value, tvm.tirx.IntImm | tvm.tirx.FloatImm) else value


def _line(entry: Any) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


class _Exporter:
    """One task under one target."""

    def __init__(self, task: Task, target: dict[str, Any]) -> None:
        self.module = task.module()
        with quiet_compiler():
            self.space = DesignSpace(task.key, self.module, target)
        self.target = make_target(target)
        self.workload = meta_schedule().database.Workload(self.module)
        self.arguments = meta_schedule().arg_info.ArgInfo.from_prim_func(self.module["main"])
        self._sketches: dict[int, Sketch] = {}

    def record(self, program: Tuned) -> Any:
        """MetaSchedule's TuningRecord of a program."""
        task_key, number, decisions = program.key
        if number not in self._sketches:
            self._sketches[number] = read_sketch(task_key, number, trace_from_json(program.trace_json, self.module))
        schedule = self.space.materialise(self._sketches[number], decisions)
        return meta_schedule().database.TuningRecord(schedule.trace, self.workload, list(program.latencies_s), self.target, self.arguments)

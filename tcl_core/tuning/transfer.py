"""Transfer-Tuning: a task borrows schedules from other, tuned networks.

A donor is a program that ran, from a MetaSchedule database or from a task of this run.  It fits a task that has a sketch of
the same structure: the same instructions for the same operator, whatever the extents and whatever is inlined.  Its
decisions, adapted to the task's extents, become a candidate of the search.  Databases may come from anywhere: they are read
as ``tcl import`` reads them, line by line, and never written to.

Source: Transfer-Tuning (PACT 2022, arXiv 2201.05587).  There, kernels form one class if all their operators are the same,
and all that fit are measured; here, inlined operators may differ, and the cost model chooses a few.
"""

from __future__ import annotations

import heapq
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tcl_core.compat import make_target
from tcl_core.errors import DataError, UsageError
from tcl_core.files import shown
from tcl_core.programs.registers import Fits
from tcl_core.programs.sketches import InvalidProgram, Sketch, trace_to_json
from tcl_core.programs.tuning_logs.known import Known, blank_instructions
from tcl_core.programs.tuning_logs.metaschedule import DatabaseLog
from tcl_core.programs.tuning_logs.opening import open_log
from tcl_core.store import Columns, Ragged
from tcl_core.tuning.database import records_file
from tcl_core.tuning.schedules import ScheduleSearch
from tcl_core.tuning.search import Candidate

FEW = 4  # donors per tuned task, its fastest programs: slower ones would teach the same, worse
INLINING = ("ComputeInline", "ReverseComputeInline")
NEAREST = 64  # most donors of one structure that are adapted and ranked, by their extents: a network may have hundreds of like tasks
TRANSFERRED = 4  # candidates from donors that a task measures: half of its first round, since it may be unlike all donors


_Readings = dict[tuple[bytes, tuple[int, ...]], list[tuple[float, ...]]]
"""(structure of the sketch, decisions) -> latencies of each measurement of the program, empty where it failed."""


class Donor(NamedTuple):
    """A program that ran: its task, its decisions, and the median of its latencies in seconds."""

    task_key: str
    decisions: tuple[int, ...]
    latency_s: float


class Donors:
    """The fastest programs of each task in some databases, looked up by the structure of their sketches.

    most     the most candidates that a task gets
    refused  number of lines that are no programs
    """

    def __init__(self, folders: Sequence[Path], target: Mapping[str, Any], most: int = TRANSFERRED) -> None:
        """``folders`` are MetaSchedule databases, or folders that ``tcl tune`` wrote, measured on the hardware of ``target``.

        Raises UsageError for a folder without a database and for one measured on other hardware, DataError for a damaged one.
        """
        self.most, self.refused = most, 0
        readings: dict[str, _Readings] = defaultdict(dict)
        for folder in folders:
            self._read(folder, target, readings)
        self._by_structure: dict[bytes, list[Donor]] = defaultdict(list)
        for task_key, programs in readings.items():
            for (of, decisions), latency_s in _fastest(programs):
                self._by_structure[of].append(Donor(task_key, decisions, latency_s))

    def lend(self, task_key: str, sketches: Sequence[Sketch], readings: Mapping[Candidate, tuple[float, ...]]) -> None:
        """Add the fastest programs of a task that was measured in this run (empty latencies: it failed)."""
        structures = [structure(trace_to_json(sketch.trace)) for sketch in sketches]
        programs = {(structures[index], decisions): [latencies_s] for (index, decisions), latencies_s in readings.items()}
        for (of, decisions), latency_s in _fastest(programs):
            self._by_structure[of].append(Donor(task_key, decisions, latency_s))

    def of(self, sketch: Sketch) -> Sequence[Donor]:
        """Donors, from any task, whose sketches have the structure of this one."""
        return self._by_structure.get(structure(trace_to_json(sketch.trace)), ())

    def _read(self, folder: Path, target: Mapping[str, Any], readings: dict[str, _Readings]) -> None:
        refused: list[str] = []
        known = Known()
        log = open_log(records_file(folder), known)
        if not isinstance(log, DatabaseLog):
            raise UsageError(f"{shown(folder)} is a log of {log.name}, whose programs TVM cannot replay; give a MetaSchedule database")
        blocks = list(log.columns(lambda number, reason: refused.append(f"line {number}: {reason}")))
        if log.target is not None:
            _check_target(folder, json.loads(log.target), target)
        if not blocks:
            raise DataError(f"no line of the database in {shown(folder)} is a program ({shown(refused[0])}); give another one")
        self.refused += len(refused)
        structures = {(row["task_key"], row["sketch_id"]): structure(row["trace_json"]) for row in known.sketch_rows()}
        for task_key, sketch_id, decisions, latencies_s in (row for block in blocks for row in _rows(block)):
            readings[task_key].setdefault((structures[task_key, sketch_id], decisions), []).append(latencies_s)


def structure(text: str) -> bytes:
    """What a sketch (its ``trace_to_json``) does to the blocks that are not inlined; sketches of one structure have the same slots.

    Inlined blocks are left out, and the remaining variables renumbered.
    """
    instructions = blank_instructions(json.loads(text)[0])
    inlined = {inputs[0] for kind, inputs, _, _ in instructions if kind in INLINING}
    kept = [
        (kind, inputs, attributes, outputs)
        for kind, inputs, attributes, outputs in instructions
        if kind not in INLINING and not (kind == "GetSBlock" and outputs[0] in inlined)
    ]
    names: dict[str, str] = {}
    for _, _, _, outputs in kept:
        names |= {output: f"v{len(names) + n}" for n, output in enumerate(outputs)}

    def renamed(values: list[Any]) -> list[Any]:
        return [names.get(value, value) if isinstance(value, str) else value for value in values]

    return json.dumps([(kind, renamed(inputs), attributes, renamed(outputs)) for kind, inputs, attributes, outputs in kept]).encode()


def _check_target(folder: Path, theirs: Any, target: Mapping[str, Any]) -> None:
    ours = make_target(dict(target)).export()
    if _cpu(theirs) != _cpu(ours):
        raise UsageError(
            f"the programs in {shown(folder)} were measured on {_cpu(theirs)}, and what is tuned runs on {_cpu(ours)}; "
            "give a database of the same target"
        )


def _cpu(target: Any) -> str:
    if not isinstance(target, Mapping):
        return shown(target)
    mcpu = target.get("mcpu")
    return shown(f"{target.get('kind')} -mcpu={mcpu}" if mcpu else target.get("kind"))


def _rows(columns: Columns) -> Iterator[tuple[str, int, tuple[int, ...], tuple[float, ...]]]:
    """Task, sketch, decisions and latencies of each record."""
    keys = columns["task_key"]
    for n, (code, sketch_id) in enumerate(zip(keys.codes.tolist(), columns["sketch_id"].tolist(), strict=True)):
        yield keys.names[code], sketch_id, _row(columns["decisions"], n), _row(columns["latencies_s"], n)


def _row(lists: Ragged, n: int) -> tuple[Any, ...]:
    return tuple(lists.values[lists.offsets[n] : lists.offsets[n + 1]].tolist())


def _fastest(programs: _Readings) -> list[tuple[tuple[bytes, tuple[int, ...]], float]]:
    """The ``FEW`` fastest of a task's programs, and their median latencies; leaves out programs that ever failed."""
    ran = {
        program: statistics.median(seconds for latencies_s in times for seconds in latencies_s)
        for program, times in programs.items()
        if all(times)
    }
    return sorted(ran.items(), key=lambda item: (item[1], item[0]))[:FEW]


def transferred(search: ScheduleSearch, donors: Donors) -> list[Candidate]:
    """Up to ``donors.most`` valid candidates of a task that come from donors, the most promising first.

    Programs of the very same task come first, by their known latencies.  The others follow as the champion ranks them; without
    a champion, those with the most similar extents first.
    """
    offers = _offers(search, donors)
    scores = search.view(list(offers)).scores.tolist() if offers else []
    places = {c: _place(search, c, donor, score) for (c, donor), score in zip(offers.items(), scores, strict=True)}
    found: dict[Candidate, None] = {}
    for index, decisions in sorted(places, key=lambda candidate: (places[candidate], candidate)):
        try:
            canonical = search.space.canonical(search.sketches[index], decisions)
        except InvalidProgram:
            continue
        found[index, tuple(canonical.tolist())] = None
        if len(found) == donors.most:
            break
    return list(found)


def _place(search: ScheduleSearch, candidate: Candidate, donor: Donor, score: float) -> tuple[float, ...]:
    """Sort key that puts the most promising candidates first."""
    if donor.task_key == search.space.task_key:
        return 0, donor.latency_s
    return 1, -score, _distance(donor.decisions, search.sketches[candidate[0]]), donor.latency_s


def _offers(search: ScheduleSearch, donors: Donors) -> dict[Candidate, Donor]:
    """Candidate of the task -> the donor it comes from, among the ``NEAREST``; of several that give the same one, the same task's."""
    offers: dict[Candidate, Donor] = {}
    for sketch in search.sketches:
        near = lambda donor, sketch=sketch: (donor.task_key != search.space.task_key, _distance(donor.decisions, sketch))  # noqa: E731
        for donor in heapq.nsmallest(NEAREST, donors.of(sketch), key=near):
            for decisions in adapted(donor.decisions, sketch, search.splits):
                offers.setdefault((sketch.index, decisions), donor)
    return offers


def adapted(decisions: Sequence[int], sketch: Sketch, splits: Fits) -> list[tuple[int, ...]]:
    """Adapt a donor's decisions to a sketch of the same structure and other extents, in two ways; one result where these agree.

    Adapts tilings (``retiled``, ``nearest``) and keeps all else.  TVM itself corrects impossible compute locations, and tilings
    of loops whose extents depend on other decisions.

    Of the nearest tilings those that ``splits`` refuses count only if it refuses all: for 24 channels, 24 would be nearest to a donor's
    vectors of 32, takes ten times as long as 8 or 12, and is what a model ranks first that has seen few such programs.  A donor of the
    very same extents gives its own program alone, whose latency is known.
    """
    kept = [number for slot in sketch.slots for number in _retiled(decisions[slot.columns], slot.extent)]
    near = np.array(kept)
    if kept == list(decisions):
        return [tuple(kept)]
    for slot in sketch.slots:
        if slot.extent is not None:
            vectors = np.tile(near, (len(slot.choices), 1))
            vectors[:, slot.columns] = slot.choices
            split = splits(sketch, vectors)
            near[slot.columns] = nearest(decisions[slot.columns], slot.choices[split] if split.any() else slot.choices)
    return list(dict.fromkeys((tuple(kept), tuple(near.tolist()))))


def _retiled(given: Sequence[int], extent: int | None) -> Sequence[int]:
    return given if extent is None else retiled(given, extent)


def retiled(factors: Sequence[int], extent: int) -> tuple[int, ...]:
    """Fit positive tile factors, outermost first, to a loop of another extent.

    From the innermost level outwards, each factor becomes its greatest common divisor with the rest of the extent; the outermost
    takes what is left.  So vector lengths and register tiles stay, and the loop over them grows or shrinks.
    """
    inner: list[int] = []
    for factor in reversed(factors[1:]):
        inner.append(math.gcd(factor, extent))
        extent //= inner[-1]
    return extent, *reversed(inner)


def nearest(factors: Sequence[int], choices: np.ndarray) -> tuple[int, ...]:
    """The tiling of the (C, width) ``choices`` whose levels, compared from the innermost outwards, are closest to these factors.

    Example: 8 does not divide 198 rows.  Of a block of 8 ``retiled`` leaves 2; this takes 9.
    """
    left = choices
    for level in reversed(range(1, len(factors))):
        ratios = np.abs(np.log(left[:, level] / max(factors[level], 1)))  # a database may hold any numbers, 0 too
        left = left[ratios <= ratios.min() + 1e-9]
    return tuple(left[0].tolist())


def _distance(decisions: Sequence[int], sketch: Sketch) -> float:
    """Distance between the extents of a donor and a task: the sum of |log ratio| over the loops that both tile."""
    tiled = ((slot, slot.extent) for slot in sketch.slots if slot.extent is not None)
    return sum(abs(math.log(math.prod(decisions[slot.columns]) / extent)) for slot, extent in tiled)

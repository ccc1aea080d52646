"""Measure what searches meet: the programs that a search proposes for the tasks of a data set, given its earlier measurements.

    python bench/searched.py [--minutes M] [--platform host-avx2] [--like data/registers] [--draws FOLDER] [--to data/searched] [--again [--large]]

The search's model is the one that comes with TCL.  Each pass measures ``EACH`` programs of every training and held-out task of the data
set; so a run that is stopped, or whose minutes are over, has equally many of each task, and the same command resumes it.  Unmeasured
programs are added: the next ones that each search would propose.

The passes over a task are minutes apart, and its latencies shift by some hundredths from one to the next, as much as programs near the
fastest differ (bench/repeats.py): the order of two programs of different passes also reflects the passes.  With --again all programs of
a platform in the data set, draws included, are measured once more, each task's in one go; the new records replace the old ones when the
last one is done.  --large: those of tasks with large weights alone, which were timed warm in some data sets and are timed cold today.
Both work on any data set: --to data/registers.

Further platforms can join a data set, each measured by a machine of its own: programs keep their numbers, and new ones follow.

A search meets only programs that its model prefers.  A model that learns these alone learns the opposite preference: a program that
lacks what the model prefers was only measured because it is good otherwise.  So with --draws this machine's measurements of drawn
programs are added, in the same tasks.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from _tables import arguments, result_file
from reference import BENCH, check_folder, hardware_of

from tcl_core import environment, store  # noqa: F401  (before torch is imported)
from tcl_core.collect import Collection
from tcl_core.compat import quiet_compiler
from tcl_core.errors import DataError, TclError
from tcl_core.features.encode import Encoder
from tcl_core.journal import iter_journal
from tcl_core.models.cost_model import CostModel
from tcl_core.platforms import host_fingerprint, save_hardware
from tcl_core.profiles import load_patched
from tcl_core.programs.pool import Program
from tcl_core.programs.sketches import trace_to_json
from tcl_core.programs.tasks import Task
from tcl_core.programs.weights import is_large_json
from tcl_core.progress import progress
from tcl_core.records import Record
from tcl_core.shipped_model import pretrained
from tcl_core.stages.collecting import setup_of
from tcl_core.stages.machine import measuring_alone
from tcl_core.stages.workspace import Workspace
from tcl_core.tuning.schedules import ScheduleSearch, SearchSettings

SPLITS = ("train", "held_out")
EACH = 8  # programs of a task in a pass: a search's batch
FURTHER = 48  # unmeasured programs of a task that are written too


class Searches:
    """The search of every task, and all measurements."""

    def __init__(self, workspace: Workspace, platform: str, tasks: Sequence[Task], journal: Path, model: CostModel | None) -> None:
        self.workspace, self.platform, self.tasks, self.journal = workspace, platform, tasks, journal
        self.setup, self.hardware = setup_of(workspace, platform), hardware_of(workspace, platform)
        settings = SearchSettings(seed=workspace.params.seed)
        self._of: dict[str, ScheduleSearch] = {}
        with progress("finding design spaces", len(tasks)) as shown, quiet_compiler():
            for task in tasks:
                self._of[task.key] = ScheduleSearch(task, model, self.hardware.vector(), self.setup.target, settings)
                shown.advance(task.name[:40])
        self.sketches = [
            {"task_key": key, "sketch_id": sketch.index, "trace_json": trace_to_json(sketch.trace)}
            for key, search in self._of.items()
            for sketch in search.sketches
        ]
        self.programs: list[Program] = []
        self.records: dict[tuple, Record] = {}
        self._take(record for record in iter_journal(journal) if record.protocol == self.setup.protocol_json(record.error))

    def _take(self, records: Iterable[Record]) -> None:
        known = {(p.task_key, p.sketch, p.decisions) for p in self.programs}
        for record in records:
            if record.key not in known:
                known.add(record.key)
                self.programs.append(Program(record.task_key, record.program_id, record.sketch_id, tuple(record.decisions)))
            self.records[record.key] = record
            self._of[record.task_key].tell(record.key[1:], record.latency_s)

    def proposed(self, count: int) -> list[Program]:
        """Unmeasured programs that each task's search proposes, up to ``count`` of each."""
        found = []
        numbers = defaultdict(int)
        for program in self.programs:
            numbers[program.task_key] = max(numbers[program.task_key], program.number + 1)
        with progress("searching", len(self.tasks)) as shown, quiet_compiler():
            for task in self.tasks:
                search = self._of[task.key]
                search.schedules(count)
                found += [Program(task.key, numbers[task.key] + n, *candidate) for n, candidate in enumerate(search.waiting)]
                shown.advance(task.name[:40])
        return found

    def measure(self, programs: Sequence[Program]) -> None:
        """Measure these programs, beside the known records of their tasks, and tell the searches."""
        collection = Collection(
            programs=[*self.programs, *programs],
            encoder=Encoder(self.tasks, self.sketches),
            hardware=self.hardware.vector(),
            host=host_fingerprint(),
            setup=self.setup,
            journal=self.journal,
        )
        first = len(self.programs)
        collection.records |= {row: record for row, record in collection.known.items() if row < first}
        with progress("measuring", len(programs)) as shown, collection.measuring() as measuring:
            rows = range(first, len(collection.programs))
            found: list[Record] = []
            measuring.measure(rows, 0, self.workspace.params.measure.check_fraction, lambda record: (found.append(record), shown.advance()))
        self._take(found)


def tasks_of(like: Path) -> tuple[dict[str, str], list[Task], list[dict]]:
    """The split of each task to search, these tasks, and the networks' uses of them.

    As in ``Reference``, a task of a held-out or sealed network is no training task, and sealed tasks are left out.
    """
    if not (like / "tasks.parquet").exists():
        raise DataError(f"{like} is no data set: it has no tasks.parquet; give --like the folder of one, such as data/registers")
    uses = store.read_table(like / "networks.parquet", "networks")
    splits = {use["task_key"]: use["split"] for last in ("train", "sealed", "held_out") for use in uses if use["split"] == last}
    splits = {key: split for key, split in splits.items() if split in SPLITS}
    tasks = [Task.from_row(row) for row in store.read_table(like / "tasks.parquet", "tasks") if row["task_key"] in splits]
    return splits, tasks, [use for use in uses if use["task_key"] in splits]


def draws_of(folder: Path, platform: str, tasks: Container[str], sketches: Sequence[Mapping[str, Any]]) -> list[Record]:
    """This machine's records of drawn programs of the tasks, of sketches identical to the searched ones.

    Raises DataError where another machine measured them.
    """
    texts = {(row["task_key"], row["sketch_id"]): row["trace_json"] for row in sketches}
    theirs = {(row["task_key"], row["sketch_id"]): row["trace_json"] for row in store.read_table(folder / "sketches.parquet", "sketches")}
    records = [record for record in store.read_records(folder / f"platform={platform}") if record.task_key in tasks]
    if others := {record.host for record in records} - {host_fingerprint()}:
        raise DataError(f"{folder} was measured on {' and '.join(sorted(others))}; give --draws a data set of this machine")
    return [record for record in records if texts.get(record.key[:2]) == theirs[record.key[:2]]]


def write(searches: Searches, draws: Sequence[Record], splits: Mapping[str, str], uses: Sequence[dict], folder: Path) -> str:
    """Write the platform's records and all programs of the data set, existing ones first; return a line on the platform."""
    searched = [searches.records[p.task_key, p.sketch, p.decisions] for p in searches.programs]
    measured = sorted({record.key: record for record in (*draws, *searched)}.values(), key=lambda record: record.task_key)
    further = sorted((p.task_key, p.sketch, p.decisions) for p in searches.proposed(FURTHER))
    table(folder, "tasks", [task.as_row() for task in searches.tasks])
    table(folder, "networks", list(uses))
    table(folder, "sketches", searches.sketches)
    rows = store.read_table(folder / "programs.parquet", "programs") if (folder / "programs.parquet").exists() else []
    numbers = {(row["task_key"], row["sketch_id"], tuple(row["decisions"])): row["program_id"] for row in rows}
    counts = Counter(task for task, *_ in numbers)
    new = dict.fromkeys(key for key in (*(record.key for record in measured), *further) if key not in numbers)
    for task, sketch, decisions in new:
        number = numbers[task, sketch, decisions] = counts[task]
        counts[task] += 1
        row = {"task_key": task, "split": splits[task], "program_id": number, "sketch_id": sketch, "decisions": list(decisions)}
        rows.append(row)
    store.write_table(folder / "programs.parquet", "programs", rows)
    place = folder / f"platform={searches.platform}"
    store.write_records(place, [replace(record, program_id=numbers[record.key]) for record in measured])
    save_hardware(place, searches.hardware)
    failed, disturbed = sum(r.error != "ok" for r in measured), sum(r.disturbed for r in measured)
    return (
        f"{searches.platform}: {len(measured):,} records of {len({r.task_key for r in measured})} tasks, {len(searched):,} of them searched: "
        f"{failed} failed, {disturbed} disturbed; {len(rows):,} programs in all, {len(new):,} of them new"
    )


def again(workspace: Workspace, platform: str, folder: Path, large: bool) -> str:
    """Measure each of the platform's programs in the folder once more, task by task, and write the records when all are measured.

    With ``large`` only those of tasks with large weights; then the others stay, so this must be the machine that measured them.
    """
    tasks = [Task.from_row(row) for row in store.read_table(folder / "tasks.parquet", "tasks")]
    chosen = {task.key for task in tasks if not large or is_large_json(task.module_json)}
    place = folder / f"platform={platform}"
    records = store.read_records(place)
    if others := {record.host for record in records if record.task_key not in chosen} - {host_fingerprint()}:
        raise DataError(f"{place} was measured on {' and '.join(sorted(others))}; measure all of it again, or its large weights there")
    measured = sorted((r for r in records if r.task_key in chosen), key=lambda record: (record.task_key, record.program_id))
    hardware = hardware_of(workspace, platform)
    collection = Collection(
        programs=[Program(record.task_key, record.program_id, record.sketch_id, tuple(record.decisions)) for record in measured],
        encoder=Encoder(tasks, store.read_table(folder / "sketches.parquet", "sketches")),
        hardware=hardware.vector(),
        host=host_fingerprint(),
        setup=setup_of(workspace, platform),
        journal=workspace.journal / folder.name / f"{platform}-again",
    )
    with progress("measuring again", len(measured)) as shown, collection.measuring() as measuring:
        measuring.measure(range(len(measured)), 0, workspace.params.measure.check_fraction, lambda record: shown.advance())
    new = {record.key: record for record in collection.records.values()}
    store.write_records(place, [new.get(record.key, record) for record in records])
    if not large:
        save_hardware(place, hardware)
    return f"{platform}: {len(measured):,} programs measured again, {sum(record.disturbed for record in new.values())} of them disturbed"


def table(folder: Path, name: str, rows: list[dict]) -> None:
    """Write a table.  Raises DataError where a different one is there, on which other platforms' programs depend."""
    place = folder / f"{name}.parquet"
    if not place.exists():
        store.write_table(place, name, rows)
    elif store.read_table(place, name) != rows:
        raise DataError(f"{place} is of other {name} than {folder} would get now; give another folder with --to")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=40.0, help="begin no further pass after so many")
    parser.add_argument("--platform", default="host-avx2", help="name in params.yaml")
    parser.add_argument("--like", type=Path, default=Path("data/registers"), metavar="FOLDER", help="whose tasks are searched")
    parser.add_argument("--draws", type=Path, metavar="FOLDER", help="a data set in which this machine measured draws of these tasks")
    parser.add_argument("--to", type=Path, default=Path("data/searched"), help="folder of the data set")
    parser.add_argument("--again", action="store_true", help="measure what it has of the platform once more, each task in one go")
    parser.add_argument("--large", action="store_true", help="with --again: the tasks with large weights alone")
    given = parser.parse_args()
    workspace = Workspace(".", load_patched(BENCH / "registers.yaml"))
    try:
        splits, tasks, uses = tasks_of(given.like)
        if given.smallest:
            from _smallest import scratch

            short = replace(workspace.params.measure, repeats=1, max_repeats=1, min_repeat_ms=1)
            workspace = Workspace(scratch(), replace(workspace.params, measure=short))
            given.to, given.minutes, tasks = result_file("searched"), 0.0, tasks[:2]
        if given.again:
            with measuring_alone():
                print(again(workspace, given.platform, given.to, given.large))
            return
        check_folder(workspace, given.to, given.platform)
        end = time.monotonic() + 60 * given.minutes
        model = None if given.smallest else pretrained(workspace.params.platforms[given.platform].mcpu).model
        with measuring_alone():
            searches = Searches(workspace, given.platform, tasks, workspace.journal / given.to.name / given.platform, model)
            with suppress(KeyboardInterrupt):
                while not searches.records or time.monotonic() < end:
                    if not (programs := searches.proposed(EACH)):
                        break
                    searches.measure(programs)
            draws = draws_of(given.draws, given.platform, splits, searches.sketches) if given.draws else []
            print(write(searches, draws, splits, uses, given.to))
    except TclError as error:
        sys.exit(f"searched: {error}")


if __name__ == "__main__":
    main()

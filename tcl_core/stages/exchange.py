"""Exchange with other tuners: logs in (`tcl import`), a MetaSchedule database out (`tcl export`).

data/imported/platform=P/   tasks.parquet, sketches.parquet; records/LOG.parquet; reports/LOG.json, LOG.refused.txt
data/tuned/platform=P/      the same of what `tcl tune` measured here, which training learns
data/exported/platform=P/   database_workload.json, database_tuning_record.json
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tcl_core import store
from tcl_core.checked import read_json, write_json
from tcl_core.errors import BusyError, DataError, UsageError, unknown_name
from tcl_core.features import log_tokens
from tcl_core.features.batches import Samples
from tcl_core.features.encode import Encoder
from tcl_core.features.groups import COLUMNS
from tcl_core.files import check_not_there, replacing, shown, writing
from tcl_core.locks import is_still, try_lock
from tcl_core.programs.tasks import Task
from tcl_core.programs.tuning_logs.known import Known
from tcl_core.programs.tuning_logs.metaschedule import Tuned, has_failed, write_database
from tcl_core.programs.tuning_logs.opening import RECORDS, WORKLOADS, log_file, log_name, open_log
from tcl_core.programs.tuning_logs.reading import Log, open_log_file
from tcl_core.progress import Progress, progress
from tcl_core.records import ProgramKey
from tcl_core.stages.workspace import SPLITS, Workspace, by_stage

BY_IMPORT = store.Remedy("import a log again: tcl import LOG --platform P", "delete it and import its log again")
BY_TUNING = store.Remedy("tune a network again: tcl tune", "delete data/tuned/platform=P: what was tuned there is forgotten")
KINDS = ("records", "holdout")
BLOCK = 16_384  # programs encoded at a time, of some 10 KB each
SHOWN = 3  # refused lines that are said aloud; all stand in the report
TABLES = ("tasks", "sketches")
LOCK = ".lock"
REASON = 1_000  # characters of why a line was refused
LONGEST_NAME = 100  # characters of a platform's or a log's name


@dataclass(frozen=True)
class ImportReport:
    """What became of a log's lines.

    outcomes  kind -> lines, ``refused`` among them;  first: the reasons of the first refused lines;  listed: the file of all
    """

    name: str
    dialect: str
    records: int
    lines: int
    outcomes: Mapping[str, int]
    first: Sequence[str]
    listed: Path

    def __str__(self) -> str:
        return outcomes_text(
            f"{self.name} ({self.dialect}): {self.records:,} records", self.lines, self.outcomes, self.first, str(self.listed)
        )


def import_logs(
    workspace: Workspace,
    paths: Sequence[Path],
    platform: str,
    wanted: str = "",
    into: Path | None = None,
    name: str = "",
    told: Callable[[ImportReport], object] = lambda report: None,
) -> list[ImportReport]:
    """Read logs into data/imported/platform=P/, or ``into`` another folder, a file of records per log.

    A log of the same name and folder replaces its own records; ``name`` is that of one log, without which it has its file's.
    ``wanted`` keeps only lines whose target has it in it.  Each log's report goes to ``told`` as soon as its records are there.
    Raises UsageError for a name or file that is wrong, DataError for a file that is no log or has no record of the
    platform's target, PlatformError when the disk is full.
    """
    if len(platform) > LONGEST_NAME or not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", platform):
        raise UsageError(
            f"'{shown(platform)}' cannot name a platform; use letters, digits and . _ + -, as in ryzen-3700x, "
            f"at most {LONGEST_NAME} of them"
        )
    folder = into or workspace.imported_folder(platform)
    logs = _named(workspace, paths, folder, name)
    megabytes = {name: 1 + path.stat().st_size // 2**20 for name, path in logs.items()}
    with _alone(folder), progress(f"importing into {platform}, MiB", sum(megabytes.values())) as bar:
        known = Known(*(_rows(folder, table) for table in TABLES), pool=_pool_sketches(workspace))
        reports = []
        for name, path in logs.items():
            log = open_log(path, known, _target_beside(folder, name), wanted)
            reports.append(_import(workspace, log, folder, name))
            told(reports[-1])
            _advance(bar, megabytes[name], name)
    return reports


def _named(workspace: Workspace, paths: Sequence[Path], folder: Path, given: str) -> dict[str, Path]:
    """Log name -> file.  Raises UsageError where two logs, now or before, have one name."""
    logs: dict[str, Path] = {}
    for path in map(log_file, paths):
        open_log_file(path).close()
        name = given or log_name(path)
        if len(os.fsencode(name)) > LONGEST_NAME or not name.isprintable():
            raise UsageError(f"records cannot be filed under '{shown(name)}'; give the log a plain name of at most {LONGEST_NAME} bytes")
        if os.path.realpath(logs.get(name, path)) != os.path.realpath(path):
            raise UsageError(f"{path} and {logs[name]} are both named '{name}'; rename one, or import them as two platforms")
        _check_same_log(workspace, folder / "reports" / f"{name}.json", path)
        _check_no_other_name(workspace, folder / "reports", name, path)
        logs[name] = path
    return logs


def _check_same_log(workspace: Workspace, report: Path, path: Path) -> None:
    """Raise UsageError where a report is of another log of the same name; compressed since then it is the same one."""
    if report.exists():
        before = workspace.root / read_json(report, BY_IMPORT.damaged)["log"]
        if os.path.realpath(before).removesuffix(".gz") != os.path.realpath(path).removesuffix(".gz"):
            raise UsageError(
                f"{shown(path)} and {shown(before)}, which was imported before, have one name; rename one, or delete {report} to replace it"
            )


def _check_no_other_name(workspace: Workspace, reports: Path, name: str, path: Path) -> None:
    """Raise UsageError for a log that was imported under another name: each of its programs would be there twice."""
    for report in sorted(reports.glob("*.json")):
        before = workspace.root / read_json(report, BY_IMPORT.damaged)["log"]
        if report.stem != name and os.path.realpath(before) == os.path.realpath(path):
            raise UsageError(f"{shown(path)} was imported as '{shown(report.stem)}' before; delete {report} and its records first")


def _rows(folder: Path, table: str, remedy: store.Remedy = BY_IMPORT) -> list[dict[str, Any]]:
    path = folder / f"{table}.parquet"
    return store.read_table(path, table, remedy=remedy) if path.exists() else []


def _pool_sketches(workspace: Workspace) -> list[dict[str, Any]]:
    return [row for split in SPLITS for row in _rows(workspace.pool / split, "sketches", by_stage("candidates"))]


def _target_beside(folder: Path, name: str) -> str | None:
    """The target of the platform's other logs: records that are to be compared must share it."""
    others = [path for path in sorted((folder / "records").glob("*.parquet")) if path.stem != name]
    return next((host for path in others for host in store.record_hosts(path, BY_IMPORT)), None)


class Refused:
    """Takes the refused lines of a log: counts them, writes each to ``file`` if there is one, keeps the first ones to be said aloud."""

    def __init__(self, log: Log, file: BinaryIO | None = None) -> None:
        self.log, self.file = log, file
        self.first: list[str] = []

    def __call__(self, number: int, reason: str) -> None:
        reason = shown(reason, REASON)
        if self.file is not None:
            self.file.write(f"{number}\t{reason}\n".encode())
        self.log.errors["refused"] += 1
        if len(self.first) < SHOWN:
            self.first.append(f"  line {number}: {reason}")

    def warn(self) -> None:
        """Say so, where nobody shows what was refused: a warning of ``logging``, with the first lines and why."""
        if count := self.log.errors["refused"]:
            text = "%d of %d lines of %s are left out:\n%s"
            logging.getLogger(__name__).warning(text, count, self.log.lines, shown(self.log.path), "\n".join(self.first))


def outcomes_text(became: str, lines: int, outcomes: Mapping[str, int], first: Sequence[str], where: str) -> str:
    counts = ", ".join(f"{number:,} {kind}" for kind, number in sorted(outcomes.items()))
    more = [f"  all of them: {where}"] if outcomes.get("refused", 0) > SHOWN else []
    return "\n".join([f"{became} of {lines:,} lines: {counts}", *first, *more])


def _import(workspace: Workspace, log: Log, folder: Path, name: str) -> ImportReport:
    """Write a log's records and its report."""
    listed = folder / "reports" / f"{name}.refused.txt"
    with replacing(listed) as file:
        refused = Refused(log, file)
        records = folder / "records" / f"{name}.parquet"
        count = store.write_record_columns(records, _then_tables(log, folder, refused))
    about = {"log": _place_of(workspace, log.path), "dialect": log.name, "target": log.target}
    counts = {"lines": log.lines, "records": count, "outcomes": dict(sorted(log.errors.items()))}
    write_json(folder / "reports" / f"{name}.json", about | counts)
    return ImportReport(name, log.name, count, log.lines, counts["outcomes"], tuple(refused.first), listed)


def _place_of(workspace: Workspace, path: Path) -> str:
    """A log's path, relative to the project where it lies there, so that the project may be moved."""
    there, here = os.path.realpath(path), os.path.realpath(workspace.root)
    return os.path.relpath(there, here) if Path(there).is_relative_to(here) else str(path.absolute())


def _then_tables(log: Log, folder: Path, refused: Refused) -> Iterator[store.Columns]:
    """The log's columns, and at their end the tables that they refer to: records appear only after what they need."""
    some = False
    for columns in log.columns(refused):
        some = True
        yield columns
    if not some:
        platform = folder.name.removeprefix("platform=")
        raise DataError(f"no line of {shown(log.path)} can become a record of {platform} ({refused.first[0].strip()}); give another log")
    store.write_table(folder / "tasks.parquet", "tasks", log.known.task_rows())
    store.write_table(folder / "sketches.parquet", "sketches", log.known.sketch_rows())


def _advance(bar: Progress, steps: int, note: str) -> None:
    for _ in range(steps):
        bar.advance(note)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time that imports into a folder, or exports; one into which nothing came goes with it."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK, "wb")
    with file:
        if not (try_lock(file) and is_still(folder / LOCK, file.fileno())):
            raise BusyError(f"another process is writing into {folder}; wait for its end")
        try:
            yield
        finally:
            _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # of one in which something is
        for part in filter(Path.exists, (folder / "records", folder / "reports")):
            part.rmdir()
        if [path.name for path in folder.iterdir()] == [LOCK]:
            (folder / LOCK).unlink()
            folder.rmdir()


def imported_batches(
    workspace: Workspace, platform: str, logs: Sequence[str] | None = None, hardware: Sequence[float] = ()
) -> Iterator[Samples]:
    """The imported programs of a platform, encoded, a block at a time; all with one numbering of tasks.

    ``logs`` are names of imported logs (none: all), such as "random"; ``hardware`` the platform's hardware vector, if
    it is known.  Raises UsageError for an unknown platform or log.
    """
    folder = workspace.imported_folder(platform)
    if not (folder / "tasks.parquet").exists():
        known = [path.name.removeprefix("platform=") for path in folder.parent.glob("platform=*")]
        raise unknown_name("imported platform", platform, known, str(folder.parent))
    yield from _batches(folder, logs, hardware)


def _batches(folder: Path, logs: Sequence[str] | None, hardware: Sequence[float]) -> Iterator[Samples]:
    encoder = None
    for columns in store.iter_columns(folder / "records", COLUMNS, logs, BLOCK, BY_IMPORT):
        if encoder is None:  # after the records, which an import writes after what they need
            encoder = encoder_of(*(_rows(folder, table) for table in TABLES), columns["task_key"])
        yield encoder.encode_columns(columns, hardware)


def keep_tuned(workspace: Workspace, database: Path, platform: str) -> ImportReport:
    """Take what tuning measured on a platform into data/tuned/platform=P/, where training finds it.  Raises as ``import_logs``.

    Filed under its folder's name and its first measured latency: the same network tuned once more is another log.
    """
    name = f"{database.name}-{_first_measured(log_file(database))}"
    (report,) = import_logs(workspace, [database], platform, into=workspace.tuned_folder(platform), name=name)
    return report


def _first_measured(records: Path) -> str:
    """Digits of a database's lines up to the first that has a latency: before it failures may stand, which are alike in two tunings."""
    digest = hashlib.sha256()
    with open_log_file(records) as file:
        for line in file:
            digest.update(line)
            if not has_failed(line):
                break
    return digest.hexdigest()[:8]


def was_tuned(workspace: Workspace, platform: str) -> bool:
    """Whether tuning has measured something on a platform that training may learn."""
    return any((workspace.tuned_folder(platform) / "records").glob("*.parquet"))


def tuned_samples(workspace: Workspace, platform: str, hardware: Sequence[float], without: Collection[str] = ()) -> Samples:
    """What tuning measured on a platform, of which there is some, but for tasks of the keys ``without``.

    A program is one row of a tuning, with the median of all that was measured of it, inf where it failed once: finalists are measured
    again, and then checked.  Each tuning's tasks are numbered apart: another one may have timed them cold, by another protocol, or on
    another day.
    """
    folder = workspace.tuned_folder(platform)
    readings: dict[tuple[str, ProgramKey], list[Sequence[float]]] = {}
    for log, record in store.read_records_by_file(folder / "records", BY_TUNING):
        if record.task_key not in without:
            readings.setdefault((log, record.key), []).append(record.latencies_s)
    latencies_s = [statistics.median(chain.from_iterable(each)) if all(each) else math.inf for each in readings.values()]
    encoder = Encoder([Task.from_row(row) for row in _rows(folder, "tasks", BY_TUNING)], _rows(folder, "sketches", BY_TUNING))
    found = encoder.encode([key for _, key in readings], hardware, latencies_s)
    logs = sorted({log for log, _ in readings})
    apart = np.array([len(encoder.numbers) * logs.index(log) for log, _ in readings], dtype=found.tasks.dtype)
    return replace(found, tasks=found.tasks + apart, task_names=()) if len(logs) > 1 else found


def tuned_keys(workspace: Workspace, platform: str, without: Collection[str] = ()) -> set[str]:
    """Keys of the tasks that ``tuned_samples`` has programs of."""
    records = store.read_records_by_file(workspace.tuned_folder(platform) / "records", BY_TUNING)
    return {record.task_key for _, record in records} - set(without)


def encoder_of(tasks: list[dict], sketches: list[dict], keys: store.Coded) -> log_tokens.LogEncoder | Encoder:
    """What encodes these records: programs of a log, or of sketches; a platform has either, for its target is one."""
    of_log = {row["task_key"]: log_tokens.is_of_log(row["module_json"]) for row in tasks}
    if of_log[keys.names[keys.codes[0]]]:
        return log_tokens.LogEncoder(tasks, sketches)
    return Encoder([Task.from_row(row) for row in tasks], sketches)


@dataclass(frozen=True)
class ExportReport:
    """How many programs a database got, and how many TVM refused."""

    platform: str
    programs: int
    refused: int
    folder: Path

    def __str__(self) -> str:
        return f"{self.programs} measured programs -> {self.folder}" + (f"; {self.refused} refused by TVM" if self.refused else "")


def export_database(workspace: Workspace, platform: str, to: Path | None = None, overwrite: bool = False) -> ExportReport:
    """Write what was measured on a platform as a MetaSchedule database -> data/exported/platform=P/ or ``to``.

    Programs that failed are left out: a database is asked for what may be used.  Raises UsageError where ``to`` cannot be
    a folder, or has a database that is not to be overwritten (``overwrite``).
    """
    workspace.check_platform(platform)
    if to is not None:
        _check_place(to, overwrite)
    folder = to or workspace.data / "exported" / f"platform={platform}"
    tasks = {task.key: task for task in workspace.tasks}
    programs = list(_measured(workspace, platform))
    with _alone(folder), progress(f"exporting {platform}", len(programs)) as bar:
        written, refused = write_database(folder, tasks, programs, lambda: bar.advance())
        (folder / LOCK).unlink()  # a database has two files
    return ExportReport(platform, written, refused, folder)


def _check_place(to: Path, overwrite: bool) -> None:
    if os.path.lexists(to) and not os.path.isdir(to):
        raise UsageError(f"{shown(to)} is no folder; name a folder for the database's two files")
    for name in (RECORDS, WORKLOADS):
        check_not_there(to / name, overwrite)


def _measured(workspace: Workspace, platform: str) -> Iterator[Tuned]:
    """The programs of a platform's records, held-out ones too, that ran and computed what they should."""
    texts = {(row["task_key"], row["sketch_id"]): row["trace_json"] for row in _pool_sketches(workspace)}
    kinds = [kind for kind in KINDS if workspace.records_folder(platform, kind).exists()]
    for kind in kinds or KINDS[:1]:  # without any, the error names the stage that measures
        for record in workspace.records(platform, kind):
            if record.error == "ok":
                text = texts.get(record.key[:2])
                if text is None:
                    raise DataError(
                        f"sketch {record.sketch_id} of task {record.task_key}, which was measured on {platform}, "
                        "is not in the pool; run the stage candidates again"
                    )
                yield Tuned(text, record.key, record.latencies_s, json.loads(record.protocol)["target"])

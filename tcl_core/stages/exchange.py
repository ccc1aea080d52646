"""Exchange with other tuners: logs in (`tcl import`), a MetaSchedule database out (`tcl export`).

data/imported/platform=P/   tasks.parquet, sketches.parquet; records/LOG.parquet; reports/LOG.json, LOG.refused.txt
data/tuned/platform=P/      the same for what `tcl tune` measured here; training learns it
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
from tcl_core.locks import lock_if_there
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
BLOCK = 16_384  # programs encoded at a time, about 10 KB each
SHOWN = 3  # refused lines that the user is shown; a file beside the report lists all
TABLES = ("tasks", "sketches")
LOCK = ".tcl-lock"  # the folder may be a user's, with files of any other name
REASON = 1_000  # characters of the reason why a line was refused
LONGEST_NAME = 100  # characters of a platform's name, bytes of a log's


@dataclass(frozen=True)
class ImportReport:
    """What became of a log's lines.

    outcomes  outcome, including ``refused`` -> lines;  first: reasons for the first refused lines;  listed: the file with all
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
    """Import logs into data/imported/platform=P/, or into the folder ``into``, as one file of records per log.

    Importing a log again replaces its records; ``name`` names a single log, which else has its file's name.
    ``wanted`` keeps only lines whose target contains it.  ``told`` gets each log's report as soon as its records are written.
    Raises UsageError for a wrong name or file, DataError for a file that is no log or has no record of the platform's
    target, BusyError while another process writes into the folder, PlatformError when the disk is full.
    """
    if len(platform) > LONGEST_NAME or not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", platform):
        raise UsageError(
            f"'{shown(platform)}' cannot name a platform; use letters, digits and . _ + -, as in ryzen-3700x, "
            f"at most {LONGEST_NAME} of them"
        )
    folder = into or workspace.imported_folder(platform)
    logs = _named(workspace, paths, folder, name)
    megabytes = {name: 1 + path.stat().st_size // 2**20 for name, path in logs.items()}
    with _alone(folder, ("records", "reports")), progress(f"importing into {platform}, MiB", sum(megabytes.values())) as bar:
        modules = {row["task_key"]: row["module_json"] for row in _rows(workspace.task_tables, "tasks", by_stage("tasks"))}
        known = Known(*(_rows(folder, table) for table in TABLES), pool=_pool_sketches(workspace), modules=modules)
        reports = []
        for name, path in logs.items():
            log = open_log(path, known, _target_beside(folder, name), wanted)
            reports.append(_import(workspace, log, folder, name))
            told(reports[-1])
            _advance(bar, megabytes[name], name)
    return reports


def _named(workspace: Workspace, paths: Sequence[Path], folder: Path, given: str) -> dict[str, Path]:
    """Log name -> file.  Raises UsageError for an unusable name, and where, now or before, two logs have one name or one log two."""
    logs: dict[str, Path] = {}
    for path in map(log_file, paths):
        open_log_file(path).close()
        name = given or log_name(path)
        if len(os.fsencode(name)) > LONGEST_NAME or not name.isprintable():
            raise UsageError(f"records cannot be filed under '{shown(name)}'; give the log a plain name of at most {LONGEST_NAME} bytes")
        if os.path.realpath(logs.get(name, path)) != os.path.realpath(path):
            raise UsageError(f"{path} and {logs[name]} are both named '{name}'; rename one, or import them as two platforms")
        _check_same_log(workspace, folder / "reports" / f"{name}.json", path)
        if not given:
            _check_no_other_name(workspace, folder / "reports", name, path)
        logs[name] = path
    return logs


def _check_same_log(workspace: Workspace, report: Path, path: Path) -> None:
    """Raise UsageError where a report is of another log of the same name; the same log compressed is no other."""
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
            records = reports.with_name("records") / f"{report.stem}.parquet"
            raise UsageError(f"{shown(path)} was imported as '{shown(report.stem)}' before; delete {records} and {report} first")


def _rows(folder: Path, table: str, remedy: store.Remedy = BY_IMPORT) -> list[dict[str, Any]]:
    path = folder / f"{table}.parquet"
    return store.read_table(path, table, remedy=remedy) if path.exists() else []


def _pool_sketches(workspace: Workspace) -> list[dict[str, Any]]:
    return [row for split in SPLITS for row in _rows(workspace.pool / split, "sketches", by_stage("candidates"))]


def _target_beside(folder: Path, name: str) -> str | None:
    """The target of the platform's other logs, which records must share to be comparable; None without other logs."""
    others = [path for path in sorted((folder / "records").glob("*.parquet")) if path.stem != name]
    return next((host for path in others for host in store.record_hosts(path, BY_IMPORT)), None)


class Refused:
    """Receives the refused lines of a log: counts them, writes each to ``file`` if given, keeps the first ``SHOWN`` for the user."""

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
        """Log a warning with the number of refused lines and the first reasons, for callers that show no report."""
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
    """A log's path, relative to the project if it lies inside, so that the project may be moved; else absolute."""
    there, here = os.path.realpath(path), os.path.realpath(workspace.root)
    return os.path.relpath(there, here) if Path(there).is_relative_to(here) else str(path.absolute())


def _then_tables(log: Log, folder: Path, refused: Refused) -> Iterator[store.Columns]:
    """Yield the log's columns, then write the tables that they refer to, so that records never appear before these."""
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
def _alone(folder: Path, parts: Sequence[str] = ()) -> Iterator[None]:
    """Hold a folder to import or export into, as the only process.

    At the end its lock goes, and whatever is empty of its ``parts`` and of the folder itself, unless the user made it.
    """
    made = bool(parts) or not os.path.lexists(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    try:
        if not lock_if_there(folder / LOCK, lock):
            raise BusyError(f"another process is writing into {folder}; wait for its end")
        try:
            yield
        finally:
            with suppress(OSError):
                (folder / LOCK).unlink()
            for part in (*(folder / name for name in parts), *([folder] if made else ())):
                with suppress(OSError):  # not empty, or not there
                    part.rmdir()
    finally:
        os.close(lock)


def imported_batches(
    workspace: Workspace, platform: str, logs: Sequence[str] | None = None, hardware: Sequence[float] = ()
) -> Iterator[Samples]:
    """Yield the imported programs of a platform, encoded, a block at a time, all with one task numbering.

    ``logs`` are names of imported logs (None: all), such as "random"; ``hardware`` is the platform's hardware vector, if
    known.  Raises UsageError for an unknown platform or log.
    """
    folder = workspace.imported_folder(platform)
    if not (folder / "tasks.parquet").exists():
        known = [path.name.removeprefix("platform=") for path in folder.parent.glob("platform=*")]
        raise unknown_name("imported platform", platform, known, str(folder.parent))
    yield from _batches(folder, logs, hardware)


def _batches(folder: Path, logs: Sequence[str] | None, hardware: Sequence[float]) -> Iterator[Samples]:
    encoder = None
    for columns in store.iter_columns(folder / "records", COLUMNS, logs, BLOCK, BY_IMPORT):
        if encoder is None:  # read the tables after the records: an import writes them before
            tasks, sketches = (_rows(folder, table) for table in TABLES)
            encoder = encoder_of(tasks, sketches, columns["task_key"])
        yield encoder.encode_columns(columns, hardware)


def keep_tuned(workspace: Workspace, database: Path, platform: str) -> ImportReport:
    """Import what tuning measured on a platform into data/tuned/platform=P/, where training finds it.  Raises as ``import_logs``.

    The log is named after the database's folder and its lines up to the first latency: tuning a network again makes another log.
    """
    name = f"{database.name}-{_first_measured(log_file(database))}"
    (report,) = import_logs(workspace, [database], platform, into=workspace.tuned_folder(platform), name=name)
    return report


def _first_measured(records: Path) -> str:
    """Digest of a database's lines up to the first with a latency; failures before it may be equal in two tunings."""
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
    """Samples of what tuning measured on a platform (``was_tuned``), without tasks of the keys ``without``.

    Each program is one row per tuning: the median of all its readings, or inf if it ever failed, since finalists are measured again
    and checked only then.  Each tuning has task numbers of its own: another one may have timed a task cold, by another protocol, or
    on another day.
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
    """Encoder for these records, of logs' programs or of sketches'; a platform has only one kind, since it has one target."""
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

    Failed programs are left out, since a database is queried for usable ones.  Raises UsageError where ``to`` cannot be a
    folder, or has a database and ``overwrite`` is not given.
    """
    workspace.check_platform(platform)
    if to is not None:
        _check_place(to, overwrite)
    folder = to or workspace.data / "exported" / f"platform={platform}"
    tasks = {task.key: task for task in workspace.tasks}
    programs = list(_measured(workspace, platform))
    with _alone(folder), progress(f"exporting {platform}", len(programs)) as bar:
        written, refused = write_database(folder, tasks, programs, lambda: bar.advance())
    return ExportReport(platform, written, refused, folder)


def _check_place(to: Path, overwrite: bool) -> None:
    if os.path.lexists(to) and not os.path.isdir(to):
        raise UsageError(f"{shown(to)} is no folder; name a folder for the database's two files")
    for name in (RECORDS, WORKLOADS):
        check_not_there(to / name, overwrite)


def _measured(workspace: Workspace, platform: str) -> Iterator[Tuned]:
    """Programs of a platform's records, held-out ones included, that ran and computed the right result."""
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

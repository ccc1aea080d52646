"""Tuning's measurements as a MetaSchedule database: in memory, or in a folder from which a later run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tcl_core.compat import meta_schedule
from tcl_core.errors import DataError, PlatformError, UsageError
from tcl_core.files import shown, writing
from tcl_core.programs.tuning_logs.metaschedule import FAILED_S, WRITTEN_S
from tcl_core.programs.tuning_logs.opening import RECORDS, WORKLOADS, files_of, log_file

GUESSED_S = 2 * FAILED_S  # stands for a program that nobody measured: TVM applies it where a task has no other


def records_file(folder: Path) -> Path:
    """The file with a database's records, for reading only.  Raises UsageError where there is none."""
    if not os.path.lexists(folder):
        raise UsageError(f"there is no {shown(folder)} to start from; give the folder of a tuned network, or of a MetaSchedule database")
    return log_file(folder)


def database_files(folder: Path) -> list[Path]:
    """All files of a database that is only read.  Raises UsageError where one is missing, DataError for what is no log."""
    return files_of(records_file(folder))


def open_database(folder: Path | None) -> Any:
    """Return a ``JSONDatabase`` in the folder, which is made if missing; a ``MemoryDatabase`` for None.

    Cuts off a file's last line where a kill has torn it.  Raises DataError where TVM cannot read the rest, and what
    ``files.writing`` raises where nothing can be written.
    """
    ms = meta_schedule()
    if folder is None:
        return ms.database.MemoryDatabase()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name in (RECORDS, WORKLOADS):
            _cut_torn_line(folder / name)
    try:
        return ms.database.JSONDatabase(work_dir=str(folder))
    except Exception as error:  # TVM raises several types for a damaged file
        reason = (str(error).strip().splitlines() or ["no reason given"])[-1]
        raise DataError(f"TVM cannot read the database in {folder} ({reason}); remove the folder to begin anew") from error


def _cut_torn_line(path: Path) -> None:
    if path.exists():
        text = path.read_bytes()
        if whole := text[: text.rfind(b"\n") + 1]:
            if whole != text:
                os.truncate(path, len(whole))  # not rewritten: a kill in between would lose the whole file
        else:
            path.unlink()


@contextmanager
def _kept() -> Iterator[None]:
    """Turn the internal error that TVM raises for a file that it cannot write into a PlatformError of one sentence."""
    try:
        yield
    except (RuntimeError, ValueError) as error:  # TVM raises either
        reason = (str(error).strip().splitlines() or ["no reason given"])[-1]
        raise PlatformError(f"what was measured cannot be kept ({shown(reason)}); free some space and run again") from error


@contextmanager
def _appended(file: str | None) -> Iterator[None]:
    """Check the line that TVM appends within: TVM ignores a full disk.  Restores the file and raises PlatformError if it is not whole."""
    if file is None:  # in memory
        yield
        return
    before = os.path.getsize(file) if os.path.exists(file) else 0
    yield
    with open(file, "r+b") as written:
        whole = written.seek(0, os.SEEK_END) > before and written.seek(-1, os.SEEK_END) >= 0 and written.read() == b"\n"
        if not whole:
            written.truncate(before)
            raise PlatformError(f"what was measured cannot be kept ({shown(file)} takes no more); free some space and run again")


def in_order(database: Any) -> list[Any]:
    """All records of a database, in the order they were added.

    Of a database in files, records with equal latencies, such as all failed ones, take the place of the last of them.
    """
    found = list(database.get_all_tuning_records())
    if found and (places := _order(getattr(database, "path_tuning_record", None))):
        found.sort(key=lambda record: places.get(_name(record.run_secs or ()), len(places)))
    return found


def seconds_of(record: Any) -> tuple[float, ...]:
    """A record's latencies, seconds; empty if the program failed."""
    seconds = tuple(float(second) for second in record.run_secs or ())
    return () if not seconds or max(seconds) >= FAILED_S else seconds


def _order(file: str | None) -> dict[tuple[str, ...], int]:
    """Each record's latencies -> its line in the file; TVM returns records in the order of their mean latency."""
    if file is None:
        return {}
    with open(file, encoding="utf-8") as lines:
        return {_name(json.loads(line)[1][1] or ()): place for place, line in enumerate(lines)}


def _name(latencies_s: Sequence[Any]) -> tuple[str, ...]:
    """Latencies as text, rounded so that TVM's and Python's parsers agree on the same digits."""
    return tuple(f"{float(seconds):.9e}" for seconds in latencies_s)


class Shelf:
    """One task's records in a database.  Raises PlatformError where its files cannot be written.

    module  the task's module as the compiler will look it up
    """

    def __init__(self, database: Any, module: Any, target: Any) -> None:
        self._database, self._target = database, target
        self._records, workloads = (getattr(database, name, None) for name in ("path_tuning_record", "path_workload"))
        with _kept(), _appended(None if database.has_workload(module) else workloads):
            self._workload = database.commit_workload(module)
        self._arguments = meta_schedule().arg_info.ArgInfo.from_entry_func(module, remove_preproc=True)

    def put(self, trace: Any, latencies_s: Sequence[float]) -> None:
        """Add a program; empty latencies if it failed."""
        record = meta_schedule().database.TuningRecord(
            trace, self._workload, list(latencies_s) or [WRITTEN_S], self._target, self._arguments
        )
        with _kept(), _appended(self._records):
            self._database.commit_tuning_record(record)

    def programs(self, records: Sequence[Any] | None = None) -> list[tuple[Any, tuple[float, ...]]]:
        """Traces and latencies of the task's programs, in the order they were added; empty latencies for one that failed.

        ``records`` is the whole database's ``in_order``: pass it when several tasks ask, so that it is computed once.
        """
        records = in_order(self._database) if records is None else records
        return [(record.trace, seconds_of(record)) for record in records if record.workload.same_as(self._workload)]

    def first(self, records: Sequence[Any]) -> int:
        """Index of the task's first record among ``records``; their number if it has none."""
        return next((place for place, record in enumerate(records) if record.workload.same_as(self._workload)), len(records))

"""Find and open the log that a user gives: the records of a database's folder, the dialect by a file's content."""

from __future__ import annotations

import os
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType

import orjson

from tcl_core.errors import DataError, UsageError
from tcl_core.files import shown
from tcl_core.programs.tuning_logs.dialects import DIALECTS, dialect_named, dialect_names
from tcl_core.programs.tuning_logs.known import Known
from tcl_core.programs.tuning_logs.reading import LineLog, Log, text_lines

LOOKED_AT = 100  # first lines, one of which must be a record
RECORDS, WORKLOADS = "database_tuning_record.json", "database_workload.json"
# Folders of databases in a tuned network's folder: what was measured (an earlier version wrote it into the second one), and what the
# network was built with.
INSIDE = MEASURED, DATABASE = "measured", "database"
SUFFIXES = (".gz", ".log", ".json", ".jsonl", ".txt")


def log_file(given: Path) -> Path:
    """The file with a log's records: ``given`` itself, or the records of the database that ``given`` is, holds or belongs to.

    A folder that ``tcl tune --out`` wrote has its databases in ``INSIDE``, of which the first counts.  Raises UsageError for a folder
    without one.
    """
    if os.path.isdir(given):
        for folder in (given, *(given / name for name in INSIDE)):
            if found := _plain_or_compressed(folder / RECORDS):
                return found
        raise UsageError(f"the folder {shown(given)} has no {RECORDS}; give a log file or a MetaSchedule database")
    if WORKLOADS not in given.name:
        return given
    records = given.with_name(given.name.removesuffix(".gz").replace(WORKLOADS, RECORDS))
    return _plain_or_compressed(records) or records


def _plain_or_compressed(file: Path) -> Path | None:
    """The file, else the same with the suffix .gz; None where there is neither."""
    return next((path for path in (file, file.with_name(f"{file.name}.gz")) if os.path.lexists(path)), None)


def log_name(path: Path) -> str:
    """The name that a log's records are filed under: the file's without suffixes; for a database, the name of its folder, or of
    the tuned network's folder around it.

    Leading dots are dropped too, since hidden files do not count as records.
    """
    folder = Path(os.path.abspath(path)).parent  # ``absolute`` would keep a "..", which is no name
    folder = folder.parent if folder.name in INSIDE and (folder.parent / "report.json").is_file() else folder
    name = folder.name if path.name.startswith(RECORDS) else path.name
    while name.lower().endswith(SUFFIXES):
        name = name[: name.rindex(".")]
    return name.lstrip(".") or "log"


def open_log(path: Path, known: Known, target: str | None = None, wanted: str = "") -> Log:
    """Open the log in a file.  Raises UsageError or DataError where it is no log or cannot be read."""
    dialect = _dialect_of(path)
    opened = getattr(dialect, "open_log", partial(LineLog, dialect))
    return opened(path, known, target=target, wanted=wanted)


def files_of(path: Path) -> list[Path]:
    """The files that the log with these records is made of."""
    dialect = _dialect_of(path)
    return dialect.files_of(path) if hasattr(dialect, "files_of") else [path]


def _dialect_of(path: Path) -> ModuleType:
    looked_at = 0
    for _, text in islice(text_lines(path), LOOKED_AT):
        looked_at += 1
        try:
            entry = orjson.loads(text)
        except orjson.JSONDecodeError:
            continue
        for dialect in map(dialect_named, DIALECTS):
            if dialect.is_record(entry):
                return dialect
    if not looked_at:
        raise DataError(f"{shown(path)} is empty; give a tuning log")
    raise DataError(
        f"{shown(path)} is no tuning log: in its first lines ({looked_at}) there is no record of {dialect_names()}; give another file"
    )

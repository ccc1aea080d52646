"""From what a user gives to logs: dialects told from the content, the two files of a MetaSchedule database joined."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import orjson

from tcl_core.errors import DataError, UsageError
from tcl_core.files import shown
from tcl_core.programs.tuning_logs import ansor, autotvm
from tcl_core.programs.tuning_logs.known import Known
from tcl_core.programs.tuning_logs.metaschedule import DatabaseLog
from tcl_core.programs.tuning_logs.reading import LineLog, Log, text_lines

LOOKED_AT = 100  # lines of which one must be a record
RECORDS, WORKLOADS = "database_tuning_record.json", "database_workload.json"
SUFFIXES = (".gz", ".log", ".json", ".jsonl", ".txt")


def log_file(given: Path) -> Path:
    """The file with a log's records: the file itself, or that of the database which the folder or file is (part of).

    Raises UsageError for a folder without a database.
    """
    if not os.path.isdir(given):
        return given.with_name(given.name.replace(WORKLOADS, RECORDS))
    for name in (RECORDS, f"{RECORDS}.gz"):
        if os.path.lexists(given / name):
            return given / name
    raise UsageError(f"the folder {shown(given)} has no {RECORDS}; give a log file or a MetaSchedule database")


def log_name(path: Path) -> str:
    """What a log's records are filed under: its name without suffixes; of a database, its folder's name.

    Without leading dots too, for hidden files are no records.
    """
    name = path.absolute().parent.name if path.name.startswith(RECORDS) else path.name
    while name.lower().endswith(SUFFIXES):
        name = name[: name.rindex(".")]
    return name.lstrip(".") or "log"


def open_log(path: Path, known: Known, target: str | None = None, wanted: str = "") -> Log:
    """The log in a file.  Raises UsageError and DataError for what is none or cannot be read."""
    dialect = _dialect_of(path)
    if isinstance(dialect, ModuleType):
        return LineLog(path, known, dialect, target=target, wanted=wanted)
    return DatabaseLog(path, _workloads_beside(path), known, target=target, wanted=wanted)


def files_of(path: Path) -> list[Path]:
    """The files that the log with these records is made of."""
    return [path, _workloads_beside(path)] if _dialect_of(path) == DatabaseLog.name else [path]


def _workloads_beside(path: Path) -> Path:
    name = path.name.removesuffix(".gz").replace("tuning_record", "workload")
    for candidate in (path.with_name(name), path.with_name(f"{name}.gz")):
        if candidate != path and os.path.lexists(candidate):
            return candidate
    raise UsageError(f"{shown(path)} are a MetaSchedule database's records, but its workloads, {name}, are not beside it")


def _dialect_of(path: Path) -> ModuleType | str:
    looked_at = 0
    for _, text in islice(text_lines(path), LOOKED_AT):
        looked_at += 1
        try:
            dialect = _dialect_of_entry(orjson.loads(text))
        except orjson.JSONDecodeError:
            continue
        if dialect:
            return dialect
    if not looked_at:
        raise DataError(f"{shown(path)} is empty; give a tuning log")
    raise DataError(f"{shown(path)} is no tuning log: its first {looked_at} lines hold no record of AutoTVM, Ansor or MetaSchedule")


def _dialect_of_entry(entry: Any) -> ModuleType | str | None:
    if isinstance(entry, dict):
        return autotvm if {"input", "config"} <= entry.keys() else ansor if {"i", "r"} <= entry.keys() else None
    paired = isinstance(entry, list) and len(entry) == 2
    return DatabaseLog.name if paired and isinstance(entry[0], int) and isinstance(entry[1], list) else None

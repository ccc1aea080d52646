"""The dialects of tuning logs that TCL reads: their names, and the module of each, imported when first needed.

To add one: a module beside this one, a line in ``DIALECTS`` and a row in docs/data.md.  Never rename one: imported data
holds the names.  A module describes what a task computes and what steps do independently of the dialect (``workload``,
``actions``); features are made from that.  A dialect with self-contained lines, such as ``autotvm`` or ``ansor``, has

    NAME                         its name in ``DIALECTS``
    is_record(entry)             whether a line's JSON, which may be anything, is of this dialect; the first to say so reads the log
    parse(entry)                 one line's JSON -> Line; raises Malformed, or what Python raises for missing keys and wrong types
    take_apart(steps)            steps -> (shape, decisions): what all programs of a sketch share, hashable, and integers
    check_sketch(steps)          raises Malformed for invalid steps; called once per sketch
    fill(steps, decisions)       steps with their decisions replaced by those of an iterator
    describe(task)               a Line's task -> a dictionary that describes it, for the tasks table
    read_workload(about)         that dictionary -> LogWorkload
    read_programs(steps, workload)    a sketch's steps, each with the (n, width) int64 decisions of n programs -> Programs

A dialect whose records need other files too, such as ``metaschedule``, has ``NAME``, ``is_record`` and

    files_of(path)               all files of the log with these records; raises UsageError where one is missing
    open_log(path, known, **about_target)    the ``reading.Log`` of these records
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

DIALECTS = {
    "AutoTVM": "tcl_core.programs.tuning_logs.autotvm",
    "Ansor": "tcl_core.programs.tuning_logs.ansor",
    "MetaSchedule": "tcl_core.programs.tuning_logs.metaschedule",
}


def dialect_named(name: str) -> ModuleType:
    """The module of a dialect.  Raises KeyError for an unknown name."""
    return import_module(DIALECTS[name])


def dialect_names() -> str:
    """All names, as a sentence lists them: "AutoTVM, Ansor or MetaSchedule"."""
    *others, last = DIALECTS
    return f"{', '.join(others)} or {last}"

"""`tcl predict`: the programs of a tuning log, scored by a model and ranked within their tasks.

The log is read as for `tcl import` and encoded a block at a time, but nothing of it is written below data/: about twenty
bytes per program stay in memory.  Of the registry it uses only the champions.
"""

from __future__ import annotations

import codecs
import csv
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tcl_core import registry
from tcl_core.errors import DataError, UsageError
from tcl_core.evaluation.metrics import pairwise_accuracy, spearman, top_k
from tcl_core.features.batches import rows_by_task
from tcl_core.features.groups import COLUMNS
from tcl_core.files import is_special, printable, replacing_given, shown, writing
from tcl_core.models import catalogue
from tcl_core.models.cost_model import read_description
from tcl_core.programs.tuning_logs.known import Known
from tcl_core.programs.tuning_logs.opening import files_of, log_file, log_name, open_log
from tcl_core.programs.tuning_logs.reading import Log, text_lines
from tcl_core.progress import progress
from tcl_core.stages.exchange import BLOCK, Refused, encoder_of, outcomes_text
from tcl_core.stages.workspace import Workspace, with_registry
from tcl_core.store import Coded, Columns, Ragged
from tcl_core.trained import Trained, load, load_folder

TOP = 3  # programs of a task in the table
TASKS = 10  # tasks in the table; a file has all of them
PAIRED = 4096  # most programs of a task whose pairs are compared: each pair takes some bytes meanwhile
HEADER = ("line", "task", "task_key", "latency_s", "score", "rank")


@dataclass(frozen=True)
class Scored:
    """N programs of a log, in its order, and its tasks in order of first appearance.

    lines        (N,) int32, the program's line in the log, from 1
    tasks        (N,) int32, index of the program's task in ``keys`` and ``names``
    latencies_s  (N,) float64, median latency in the log, seconds; inf where it has none
    scores       (N,) float32, higher is better within a task
    """

    lines: np.ndarray
    tasks: np.ndarray
    latencies_s: np.ndarray
    scores: np.ndarray
    keys: tuple[str, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.lines)

    @cached_property
    def ranks(self) -> np.ndarray:
        """(N,) int64, 1 + number of the task's programs with a higher score."""
        ranks = np.zeros(len(self), dtype=np.int64)
        for rows in rows_by_task(self.tasks):
            _, place, counts = np.unique(-self.scores[rows], return_inverse=True, return_counts=True)
            ranks[rows] = 1 + (np.cumsum(counts) - counts)[place]
        return ranks

    def best(self, top: int | None) -> list[np.ndarray]:
        """Rows of each task's ``top`` best ranked programs (None: all), best first, ties in the log's order."""
        return [rows[np.argsort(-self.scores[rows], kind="stable")[:top]] for rows in rows_by_task(self.tasks)]

    def table(self, top: int | None = None) -> list[dict[str, Any]]:
        """The same programs, one row each, task by task: task and its key, line, score, rank and measured latency_s or None."""
        return [
            {
                "task": self.names[self.tasks[row]],
                "task_key": self.keys[self.tasks[row]],
                "line": int(self.lines[row]),
                "score": float(self.scores[row]),
                "rank": int(self.ranks[row]),
                "latency_s": float(self.latencies_s[row]) if np.isfinite(self.latencies_s[row]) else None,
            }
            for rows in self.best(top)
            for row in rows
        ]


@dataclass(frozen=True)
class Prediction:
    """A log's programs, scored, and what became of its lines.

    origin, with_hardware  which model scored them, and whether it was saved with a hardware row
    top                    programs per task that are written or shown; None: all in the file, ``TOP`` in the table
    written, to            number of scores in the file, and the file, if there is one
    """

    log: str
    dialect: str
    scored: Scored
    lines: int
    outcomes: Mapping[str, int]
    first: Sequence[str]
    listed: str
    origin: str
    with_hardware: bool
    top: int | None = None
    written: int = 0
    to: Path | None = None

    def __str__(self) -> str:
        became = f"{shown(self.log)} ({self.dialect}): {len(self.scored):,} programs"
        row = "as saved with the model" if self.with_hardware else "none, for none was saved with the model"
        said = [
            outcomes_text(became, self.lines, self.outcomes, self.first, self.listed),
            f"scored by {self.origin}; hardware row: {row}",
            ranking_text(self.scored),
        ]
        if self.to is None:
            return "\n".join([*said, *_table(self.scored, self.top or TOP)])
        return "\n".join([*said, f"{self.written:,} scores, which compare only within a task -> {self.to}"])


@with_registry
def predict_log(
    workspace: Workspace,
    path: Path,
    platform: str | None = None,
    folder: Path | None = None,
    to: Path | None = None,
    top: int | None = None,
    wanted: str = "",
    overwrite: bool = False,
) -> Prediction:
    """Score the programs of a log with the champion of ``platform`` or the model in ``folder`` -> ``to``, if it is given.

    ``top`` keeps only the best ranked programs of each task, ``wanted`` only lines whose target contains it.
    Raises UsageError for a wrong name, file or model, RegistryError where there is no champion, DataError for a file
    that is no log, has no program or does not fit the model, PlatformError when the disk is full.
    """
    log = open_log(log_file(path), Known(), wanted=wanted)
    _check_place(to, log.path)
    listed = None if to is None or is_special(to) else to.with_name(f"{to.name}.refused.txt")
    _check_place(listed, log.path)
    trained = _given(platform, folder)
    with ExitStack() as files:  # opened before the work, which may take hours
        table = to and files.enter_context(replacing_given(to, overwrite))
        refused = Refused(log, files.enter_context(_refused_lines(listed, overwrite)))
        scored = score_log(log, trained, refused)
        count = _write(scored, table, top) if table else 0
    return Prediction(
        log_name(log.path), log.name, scored, log.lines, dict(log.errors), tuple(refused.first),
        str(listed or "in FILE.refused.txt, with --to FILE"), trained.origin, trained.hardware is not None, top, count, to,
    )  # fmt: skip


def _check_place(place: Path | None, log: Path) -> None:
    """Raise UsageError where writing to ``place`` would replace a folder or the log itself."""
    if place is None:
        return
    with writing(place):
        there = _stat_if_there(place)
    if there and stat.S_ISDIR(there.st_mode):
        raise UsageError(f"{shown(place)} is a folder; give the name of a CSV file to --to")
    for file in files_of(log):
        if there and os.path.samestat(there, os.stat(file)):
            raise UsageError(f"{shown(place)} is the log itself; give the name of another file to --to")


def _stat_if_there(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _given(platform: str | None, folder: Path | None) -> Trained:
    """The champion of a platform, or the model of a folder or file."""
    if (platform is None) == (folder is None):
        raise UsageError("give either --platform P, whose champion is to score, or --model FOLDER, a saved model")
    if folder is not None and not (folder / "model.json").is_file():  # a file that ``Trained.save`` wrote, or no model
        found = load(folder)
        check_reads_tokens(found.model.reads, found.origin)
        return found
    champion = ""
    if folder is None:
        version, folder = registry.champion(platform)
        name, pin = registry.pinned(platform)
        champion = f", version {version} of {name}" if pin else f", the champion of {platform} (version {version})"
    name = read_description(folder)["class"]
    check_reads_tokens(catalogue.reads(name), f"the {name} model in {folder}")
    return load_folder(folder, f"the {name} model in {folder}{champion}")


def check_reads_tokens(reads: str, origin: str) -> None:
    """Raise UsageError for a model that reads features of lowered programs, which no log has."""
    if reads != "tokens":
        raise UsageError(
            f"{origin} reads {reads} of lowered programs, which no log has; give a model that reads tokens, such as a platform's champion"
        )


@contextmanager
def _refused_lines(listed: Path | None, overwrite: bool) -> Iterator[BinaryIO]:
    """A file for refused lines, removed in the end if it is empty; for None the null device."""
    if listed is None:
        with open(os.devnull, "wb") as nowhere:
            yield nowhere
        return
    with replacing_given(listed, overwrite) as file:
        yield file
    if not is_special(listed) and not listed.stat().st_size:
        listed.unlink()


def score_log(log: Log, trained: Trained, refused: Refused) -> Scored:
    """Score all programs of a log, with the tokens of only one block in memory at a time.

    Raises DataError where no line can become a program, and as ``Trained.predict``.
    """
    numbers: dict[str, int] = {}
    parts = list(_with_progress(log, _scored_blocks(log, trained, refused, numbers)))
    if not parts:
        raise DataError(f"no line of {shown(log.path)} can become a program ({refused.first[0].strip()}); give another log")
    names = {row["task_key"]: row["name"] for row in log.known.task_rows()}
    arrays = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Scored(*arrays, keys=tuple(numbers), names=tuple(names[key] for key in numbers))


def _with_progress(log: Log, blocks: Iterator[tuple[np.ndarray, ...]]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield the blocks, with a progress bar.  Counting the lines first also finds a damaged file before any work."""
    count = max(number for number, _ in text_lines(log.path))
    with progress(f"scoring {shown(log_name(log.path))}, thousand lines", -(-count // 1000)) as bar:
        for lines, *rest in blocks:
            for _ in range(bar.done, -(-int(lines[-1]) // 1000)):
                bar.advance()
            yield lines, *rest


def _scored_blocks(log: Log, trained: Trained, refused: Refused, numbers: dict[str, int]) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield lines, tasks, latencies and scores, a block of programs at a time; adds the tasks to ``numbers``, key -> number."""
    encoder, known = None, 0
    for columns in log.columns(refused):
        sketches = log.known.sketch_rows()
        if len(sketches) > known:  # a new task's programs have a new sketch too
            encoder, known = encoder_of(log.known.task_rows(), sketches, columns["task_key"]), len(sketches)
        for block in _blocks(columns):
            samples = encoder.encode_columns(block, trained.hardware_vector)
            keys = block["task_key"]
            tasks = np.array([numbers.setdefault(key, len(numbers)) for key in keys.names], dtype=np.int32)[keys.codes]
            yield block["program_id"], tasks, samples.latencies_s, trained.predict(samples)


def _blocks(columns: Columns) -> Iterator[dict[str, Any]]:
    """Yield the columns that encoding needs, and the line numbers, ``BLOCK`` programs at a time."""
    for start in range(0, len(columns["program_id"]), BLOCK):
        yield {name: _part(columns[name], start, start + BLOCK) for name in (*COLUMNS, "program_id")}


def _part(column: np.ndarray | Ragged | Coded, start: int, end: int) -> np.ndarray | Ragged | Coded:
    if isinstance(column, Ragged):
        return Ragged(column.values, column.offsets[start : end + 1])
    if isinstance(column, Coded):
        return Coded(column.codes[start:end], column.names)
    return column[start:end]


def ranking_text(scored: Scored) -> str:
    """One line: how well the scores rank what the log has measured, beside a random ranking; each task counts once."""
    ran = np.isfinite(scored.latencies_s)
    if not ran.any():
        return "the log has no measured latency that the scores could be compared with"
    at_random = np.zeros_like(scored.scores)  # equal predictions are a random ranking exactly
    tops = [f"top-{k} {_top(scored, scored.scores, k):.3f} (a random ranking: {_top(scored, at_random, k):.3f})" for k in (1, 5)]
    some = at_most(PAIRED, scored.tasks)
    paired = pairwise_accuracy(scored.scores[some], scored.latencies_s[some], scored.tasks[some])
    correlated = spearman(scored.scores, scored.latencies_s, scored.tasks)
    return (
        f"against the log's own latencies, {len(np.unique(scored.tasks[ran]))} tasks: {', '.join(tops)}, "
        f"pairs ranked right {_number(paired)}, Spearman {_number(correlated)}"
    )


def _top(scored: Scored, scores: np.ndarray, k: int) -> float:
    once = {"log": dict.fromkeys(range(len(scored.keys)), 1.0)}
    return top_k(scores, scored.latencies_s, scored.tasks, once, k)


def at_most(count: int, tasks: np.ndarray) -> np.ndarray:
    """Rows of at most ``count`` programs of each task, evenly spaced."""
    return np.concatenate([rows[:: -(-len(rows) // count)] for rows in rows_by_task(tasks)])


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _table(scored: Scored, top: int) -> list[str]:
    """The best ranked programs of the log's first tasks, and how many tasks are not shown."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Best ranked programs; scores compare only within a task")
    table.add_column("task", overflow="fold")
    for heading in ("programs", "rank", "line", "score", "measured"):
        table.add_column(heading, justify="right", no_wrap=True)
    best, programs = scored.best(top), np.bincount(scored.tasks)
    for rows in best[:TASKS]:
        task = scored.tasks[rows[0]]
        heads = [(scored.names[task], f"{programs[task]:,}"), *[("", "")] * (len(rows) - 1)]
        for head, row in zip(heads, rows, strict=True):
            table.add_row(*map(printable, head), *_cells(scored, row), end_section=row == rows[-1])
    console = Console(file=StringIO(), width=120, markup=False, emoji=False, force_terminal=False)
    console.print(table)
    left = [f"{len(best) - TASKS:,} more tasks: --to FILE writes all of them"] if len(best) > TASKS else []
    return [console.file.getvalue().rstrip(), *left]  # type: ignore[attr-defined]


def _cells(scored: Scored, row: int) -> list[str]:
    latency_s = scored.latencies_s[row]
    measured = f"{1e3 * latency_s:.4g} ms" if np.isfinite(latency_s) else "-"
    return [f"{scored.ranks[row]:,}", f"{scored.lines[row]}", f"{scored.scores[row]:.4g}", measured]


def _write(scored: Scored, file: BinaryIO, top: int | None) -> int:
    """Write the scores as CSV, in the log's order, and return their number.  Nine digits restore single precision exactly."""
    rows = np.sort(np.concatenate(scored.best(top)))
    table = csv.writer(codecs.getwriter("utf-8")(file), lineterminator="\n")
    table.writerow(HEADER)
    for row in rows:
        task, latency_s = scored.tasks[row], scored.latencies_s[row]
        measured = f"{latency_s:.9g}" if np.isfinite(latency_s) else ""
        about = (scored.lines[row], _plain_cell(scored.names[task]), scored.keys[task])
        table.writerow([*about, measured, f"{scored.scores[row]:.9g}", scored.ranks[row]])
    return len(rows)


def _plain_cell(text: str) -> str:
    """Foreign text as a cell that a spreadsheet shows and does not run as a formula."""
    plain = printable(text)
    return f"'{plain}" if plain.startswith(("=", "+", "-", "@")) else plain

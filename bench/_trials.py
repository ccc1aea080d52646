"""Trials of whole commands on a tiny project: their lanes, the commands, and what counts as a failure."""

from __future__ import annotations

import queue
import shutil
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import _tiny_project as tiny
from _lanes import KILL_PROCESS, STUCK, Harm, Lane, Outcome, build_shim
from _state import state

from tcl_core.progress import progress

KINDS = ("lost", "doubled", "silent", "stuck", "leftovers", "unforeseen")
SENTENCES = (2, 3, 4, 5, 6)  # exit codes of errors that a user can mend
STAGE_OUTPUTS = ("data/reports/evaluation.json", "data/reports/plots")


@dataclass(frozen=True)
class Finding:
    """One failure: ``kind`` is one of KINDS, ``name`` that of the trial, by which it can be repeated."""

    part: str
    name: str
    kind: str
    said: str

    def line(self) -> str:
        return f"{self.kind}: {self.said}  [python bench/faults.py --part {self.part} --only '{self.name}']"


@dataclass(frozen=True)
class Result:
    """Result of a trial: ``outcome`` in a word or two, and its failures."""

    name: str
    outcome: str
    findings: Sequence[Finding] = ()


@dataclass(frozen=True)
class Command:
    """A command, and ``undo``, which removes its work from a finished project.

    measured   it measures, so that only the set of recorded programs is the same each time
    share      its weight in the number of trials
    begun      share of its changes after which it is killed before a trial, so that what it keeps to resume is there
    """

    name: str
    argv: Sequence[str]
    undo: Callable[[Path], None]
    measured: bool = False
    share: float = 1.0
    limit_s: float = 120.0
    begun: float = 0.0


# --- the commands ---


def without(*names: str) -> Callable[[Path], None]:
    return lambda project: _remove(project, names)


def _remove(project: Path, names: Sequence[str]) -> None:
    for name in names:
        path = project / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def almost_collected(project: Path) -> None:
    """Leave all but the last two programs in the journal, and no records."""
    _remove(project, (f"data/records/platform={tiny.FIRST}", f"data/reports/collect/{tiny.FIRST}.json"))
    journal = project / "data/journal/collect" / tiny.FIRST / "records.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-2]))


def without_last_version(project: Path) -> None:
    """Unregister the second platform's model, and keep the first one's."""
    name = f"tcl-{tiny.LAST}"
    with closing(sqlite3.connect(project / "mlflow.db")) as database, database:
        [(run, source)] = database.execute("SELECT run_id, source FROM model_versions WHERE name = ?", (name,)).fetchall()
        model = source.rpartition("/")[2]
        tables = [table for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            if "run_uuid" in columns:
                database.execute(f"DELETE FROM {table} WHERE run_uuid = ?", (run,))
            elif "model_id" in columns:
                database.execute(f"DELETE FROM {table} WHERE model_id = ?", (model,))
            elif table.startswith(("model_version", "registered_model")) and "name" in columns:
                database.execute(f"DELETE FROM {table} WHERE name = ?", (name,))
    for path in [*project.glob(f"mlruns/**/{model}"), *project.glob(f"mlruns/**/{run}")]:
        shutil.rmtree(path)


def without_champions(project: Path) -> None:
    with closing(sqlite3.connect(project / "mlflow.db")) as database, database:
        database.execute("DELETE FROM registered_model_aliases")
        database.execute("DELETE FROM model_version_tags WHERE key = 'promotion'")


def without_all_after_measuring(project: Path) -> None:
    _remove(project, ("data/models", *STAGE_OUTPUTS, "data/reports/tuned.json", "mlflow.db", "mlruns"))


COMMANDS = (
    Command("collect", ("collect", "-p", tiny.FIRST), almost_collected, measured=True, share=0.5),
    Command("train", ("train",), without(f"data/models/{tiny.FIRST}"), share=1.5),
    Command("distill", ("distill",), without(f"data/models/{tiny.LAST}"), share=1.5),
    Command("first register", ("register",), without("mlflow.db", "mlruns"), share=0.7),
    Command("register", ("register", "-p", tiny.LAST), without_last_version, share=2.0),
    Command("promote", ("promote",), without_champions, share=1.5),
    Command("tune", ("tune",), without("data/reports/tuned.json"), measured=True, share=0.15, limit_s=300),
    Command("import", ("import", tiny.LOG, "-p", tiny.IMPORTED), without("data/imported"), share=2.0),
    Command("evaluate", ("evaluate",), without(*STAGE_OUTPUTS), share=1.5),
    Command("dvc repro", (tiny.DVC, "repro", "-q", "-s", "--no-run-cache", "evaluate"), without(*STAGE_OUTPUTS), share=0.3),
    Command("flow", (sys.executable, "-m", "flows.pipeline"), without_all_after_measuring, measured=True, share=0.06, limit_s=600),
)
QUICK = tuple(command for command in COMMANDS if command.share >= 0.5)  # the others take many seconds each
SMALLEST = tuple(command for command in COMMANDS if command.name in ("collect", "train", "register", "promote"))


# --- where they run ---


@dataclass(frozen=True)
class Ready:
    """A command's project before it runs, and the result of an undisturbed run."""

    command: Command
    snapshot: Path
    before: dict[str, str]
    outcome: Outcome
    state: dict[str, str]


@dataclass
class Workshop:
    """The finished project, the lanes, and each command's snapshot, made on first use."""

    folder: Path
    finished: Path
    lanes: Sequence[Lane]
    commands: Sequence[Command] = COMMANDS
    readers: Sequence[Command] = ()  # further commands, tried on damaged files only

    def __post_init__(self) -> None:
        self._ready: dict[str, Ready] = {}

    def named(self, name: str) -> Ready:
        """``Ready`` of the command of that name.  Raises SystemExit for an unknown one."""
        known = {command.name: command for command in (*self.readers, *self.commands)}
        if name not in known:
            raise SystemExit(f"there is no command '{name}' to try; there are: {', '.join(known)}")
        return self.ready(known[name])

    def ready(self, command: Command) -> Ready:
        if command.name not in self._ready:
            self._ready[command.name] = self._make_ready(command)
        return self._ready[command.name]

    def _make_ready(self, command: Command) -> Ready:
        snapshot, lane = self.folder / "before" / command.name / self.finished.name, self.lanes[0]
        tiny.restore(self.finished, lane.folder)
        command.undo(lane.project)
        if command.begun:
            self._begin(command, lane)
        tiny.move(lane.project, lane.folder.name, self.finished.name)
        snapshot.mkdir(parents=True)
        shutil.move(lane.project, snapshot / "project")
        tiny.restore(snapshot, lane.folder)
        before = state(lane.project, command.measured)
        outcome = tiny.done(lane, *command.argv, limit_s=600)
        return Ready(command, snapshot, before, outcome, state(lane.project, command.measured))

    def _begin(self, command: Command, lane: Lane) -> None:
        calls = self.ready(replace(command, name=f"{command.name}, not begun", begun=0.0)).outcome.calls
        tiny.restore(self.finished, lane.folder)
        command.undo(lane.project)
        lane.run(*command.argv, harm=Harm(KILL_PROCESS, round(command.begun * calls)))

    def each(self, part: str, trials: Sequence, work: Callable[[Lane, object], Result]) -> list[Result]:
        """Run all trials, in parallel on the lanes; failures are printed at once."""
        waiting: queue.SimpleQueue = queue.SimpleQueue()
        results: list[Result] = []
        for trial in trials:
            if hasattr(trial, "command"):
                self.named(trial.command)  # now, for making it ready takes a lane, and all are busy later
            waiting.put(trial)
        with progress(part, len(trials)) as shown:

            def go_on(lane: Lane) -> None:
                with suppress(queue.Empty):
                    while True:
                        result = _tried(part, work, lane, waiting.get_nowait())
                        results.append(result)
                        for finding in result.findings:
                            print(finding.line(), file=sys.stderr, flush=True)
                        shown.advance(result.name[:40])

            threads = [threading.Thread(target=go_on, args=(lane,)) for lane in self.lanes]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return results


def _tried(part: str, work: Callable, lane: Lane, trial: object) -> Result:
    """Run one trial; an exception in the harness counts as a failure too, for then nothing is proven."""
    try:
        return work(lane, trial)
    except Exception as error:
        name = str(getattr(trial, "name", trial))
        return Result(name, "no verdict", [Finding(part, name, "unforeseen", f"{type(error).__name__}: {error}")])


@contextmanager
def workshop(folder: Path, lanes: int, readers: Sequence[Command] = (), commands: Sequence[Command] = COMMANDS) -> Iterator[Workshop]:
    """Make the tiny project and start the lanes."""
    shim = build_shim(folder)
    with ExitStack() as stack:

        def start(number: int) -> Lane:
            place = folder / tiny.LANE.format(number)
            lane = Lane.start(place, shim, tiny.environment(place))
            stack.callback(lane.close)
            return lane

        started = [start(number) for number in range(lanes)]  # they import in parallel
        tiny.make(started[0])
        finished = folder / "finished" / started[0].folder.name
        finished.mkdir(parents=True)
        shutil.move(started[0].project, finished / "project")
        yield Workshop(folder, finished, started, commands, readers)


# --- what counts ---


def judged(outcome: Outcome, part: str, name: str, also: Sequence[int] = ()) -> list[Finding]:
    """Failures in how a command ended: it must exit in time, without a traceback, and with 0 or one of the codes ``also``."""
    if outcome.code is STUCK:
        return [Finding(part, name, "stuck", f"no end after {outcome.seconds:.0f} s")]
    if outcome.code not in (0, *also) or "Traceback (most recent call last)" in outcome.said:
        return [Finding(part, name, "unforeseen", f"exit {outcome.code}: {outcome.sentence}")]
    return []


def totals(results: Sequence[Result]) -> dict[str, int]:
    """Number of trials, then number of findings of each kind."""
    found = Counter(finding.kind for result in results for finding in result.findings)
    return {"trials": len(results), **{kind: found[kind] for kind in KINDS}}

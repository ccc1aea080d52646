"""Faults injected into real collections: is every candidate recorded once, and is nothing left behind?

Each fault has a project folder of its own, whose pool mixes sound candidates of BERT-tiny with bad ones; ``tcl
collect`` measures it while workers or the collector are killed, the disk is full or a second collector starts.
Failures are a candidate that is lost, recorded twice or blamed for another's fault, and a process or temporary file
that is left.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from _bad_programs import (
    ABORTS,
    COUNTS,
    HANGS,
    ILLEGAL,
    OVERFLOWS,
    TAKES_MUCH_MEMORY,
    UNROLLS,
    WRITES_FAR_AWAY,
)
from _tables import ROOT, markdown

from tcl_core import environment  # noqa: F401  (before torch is imported)
from tcl_core import store
from tcl_core.errors import BusyError, PlatformError
from tcl_core.journal import iter_journal
from tcl_core.params import load_params
from tcl_core.platforms import threads
from tcl_core.programs.graph import PREPARED
from tcl_core.programs.pool import Program, build_pool, rank_tasks
from tcl_core.programs.tasks import Task, extract_tasks
from tcl_core.progress import progress
from tcl_core.records import Record
from tcl_core.settings import read_yaml, yaml_format
from tcl_core.stages.machine import measuring_alone
from tcl_core.stages.workspace import Workspace

PLATFORM = load_params(ROOT / "params.yaml").chain.first
# Short timings, so that the faults dominate; several rounds, so that some faults fall between them.
SETTINGS = {
    "collect": {"sampler": "random", "rounds": 6, "initial_share": 0.3, "first_fraction": 1.0},
    "measure": {"min_repeat_ms": 1, "timeout_s": 3, "build_timeout_s": 8, "check_fraction": 0.2},
}
GOOD_TASKS, GOOD_PER_TASK = 5, 8
FULL_DISK_BYTES = 12_000  # the journal of some fifteen records
PATIENCE_S = 900.0
NO_SCHEDULE = "[[],[]]"  # a trace without instructions: the module as it is


@dataclass(frozen=True)
class Pool:
    """What a collection may measure: rows of the sketches table, programs and the tasks of both."""

    tasks: Sequence[Task]
    sketches: Sequence[dict]
    programs: Sequence[Program]


@dataclass(frozen=True)
class Fault:
    """What goes wrong in one collection.

    bad      modules of the bad candidates, taken in turn
    kinds    error kinds that are correct for them; for sound candidates only ok is
    drive    runs the collection in a project's folder and injects up to a number of faults from outside; returns how many
    outside  name of these faults
    blames   each of these faults may be recorded as a crash of the program that was running
    """

    name: str
    bad: Sequence[str] = (ABORTS,)
    kinds: frozenset[str] = frozenset({"crash"})
    drive: Callable[[Path, int], int] | None = None
    outside: str = ""
    blames: bool = False


@dataclass(frozen=True)
class Verdict:
    """Outcome of one collection: numbers of candidates, injected faults, candidates that went wrong, and leftovers."""

    candidates: int
    bad: int
    events: int
    recorded: Counter[str]
    lost: int
    doubled: int
    misjudged: int
    leftovers: int

    @property
    def failures(self) -> int:
        return self.lost + self.doubled + self.misjudged + self.leftovers


# --- projects ---


def good_pool() -> Pool:
    ranked = rank_tasks({"bert-tiny": extract_tasks("bert-tiny", PREPARED)})
    sketches, programs = build_pool(ranked, GOOD_TASKS, GOOD_PER_TASK, 0, threads())
    used = {row["task_key"] for row in sketches}
    return Pool([task for task in ranked if task.key in used], sketches, programs)


def with_bad(pool: Pool, modules: Sequence[str]) -> Pool:
    """The pool with one bad candidate per module, each a task of its own, spread among the sound ones."""
    bad = [Task(_key(number), f"bad{number}", "elementwise", 1.0, module) for number, module in enumerate(modules)]
    sketches = [{"task_key": task.key, "sketch_id": 0, "trace_json": NO_SCHEDULE} for task in bad]
    programs = list(pool.programs)
    for number, task in enumerate(bad):
        programs.insert((number + 1) * len(programs) // (len(bad) + 1), Program(task.key, 0, 0, ()))
    return Pool([*pool.tasks, *bad], [*pool.sketches, *sketches], programs)


def _key(number: int) -> str:
    return format(zlib.crc32(b"bad %d" % number), "016x")


def make_project(folder: Path, pool: Pool) -> None:
    """A folder in which ``tcl collect`` finds parameters, tasks and a pool."""
    (folder / "tmp").mkdir(parents=True)
    document = read_yaml(ROOT / "params.yaml", round_trip=True)
    for section, values in SETTINGS.items():
        document[section].update(values)
    with open(folder / "params.yaml", "w", encoding="utf-8") as file:
        yaml_format(round_trip=True).dump(document, file)
    tasks = [task.as_row() for task in pool.tasks]
    for path, table, rows in (
        (Workspace(folder).task_tables / "tasks.parquet", "tasks", tasks),
        (Workspace(folder).pool / "train" / "sketches.parquet", "sketches", pool.sketches),
        (Workspace(folder).pool / "train" / "programs.parquet", "programs", [_program_row(program) for program in pool.programs]),
    ):
        columns = store.SCHEMAS[table].names
        store.write_table(folder / path, table, [{name: row[name] for name in columns} for row in rows])


def _program_row(program: Program) -> dict:
    return {
        "task_key": program.task_key,
        "split": "train",
        "program_id": program.number,
        "sketch_id": program.sketch,
        "decisions": list(program.decisions),
    }


# --- collecting, and what happens meanwhile ---


def start(folder: Path, temporary: str = "tmp", largest_file: int | None = None) -> subprocess.Popen:
    """``tcl collect`` in the project; no file of its processes may become larger than ``largest_file`` bytes."""
    (folder / temporary).mkdir(exist_ok=True)
    variables = os.environ | {"TMPDIR": str(folder / temporary), "PYTHONPATH": str(ROOT)}
    variables["PYTHONDONTWRITEBYTECODE"] = "1"  # under the limit Python would leave truncated files
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (largest_file,) * 2) if largest_file else None
    with open(folder / "said.txt", "ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "tcl_core.cli", "collect", "--platform", PLATFORM],
            cwd=folder, env=variables, stdout=said, stderr=said, preexec_fn=limit,
        )  # fmt: skip


def end(folder: Path, collector: subprocess.Popen, *codes: int) -> int:
    """Wait for a collector and return its exit code.  Raises RuntimeError where that is none of ``codes``."""
    code = collector.wait(timeout=PATIENCE_S)
    if code not in codes:
        said = (folder / "said.txt").read_text(errors="replace").strip().splitlines()
        raise RuntimeError(f"tcl collect in {folder} exited with {code}; it said: {said[-1] if said else 'nothing'}")
    return code


def wait_until(collector: subprocess.Popen, holds: Callable[[], bool]) -> bool:
    """Wait until ``holds`` returns true; False if the collector ends, or ``PATIENCE_S`` pass, first."""
    deadline = time.monotonic() + PATIENCE_S
    while collector.poll() is None and time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.05)
    return False


def wait_for_records(folder: Path, collector: subprocess.Popen, draw: random.Random) -> bool:
    """Wait for a new record and then up to two seconds, to hit any point of the next round; False if the collector ends first."""
    before = measured(folder)
    return wait_until(collector, lambda: measured(folder) > before) and not time.sleep(draw.uniform(0, 2))


def measured(folder: Path) -> int:
    """Number of records in the journal, which may be growing."""
    return sum(1 for _ in iter_journal(Workspace(folder).journal_folder(PLATFORM, "collect")))


def undisturbed(folder: Path, count: int) -> int:
    end(folder, start(folder), 0)
    return 0


def workers_killed(folder: Path, count: int) -> int:
    """Kill one worker after another; a collection that exits because it cannot start a worker is started again."""
    killed, draw = 0, random.Random(0)
    for _ in range(count):
        collector = start(folder)
        while killed < count and wait_for_records(folder, collector, draw):
            killed += kill_worker(collector, draw)
        if end(folder, collector, 0, PlatformError.exit_code) == 0:
            return killed
    end(folder, start(folder), 0)
    return killed


def kill_worker(collector: subprocess.Popen, draw: random.Random) -> int:
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(collector.pid).children()
        if workers := [child for child in children if "tcl_core.measure.worker" in child.cmdline()]:
            draw.choice(workers).kill()
            return 1
    return 0


def collector_killed(folder: Path, count: int) -> int:
    """Kill -9 the collector, and then each one that resumes its work."""
    killed, draw, code = 0, random.Random(0), -signal.SIGKILL
    while code == -signal.SIGKILL:
        collector = start(folder)
        if killed < count and wait_for_records(folder, collector, draw):
            collector.kill()
        code = end(folder, collector, 0, -signal.SIGKILL)
        killed += code != 0
    return killed


def disk_full(folder: Path, count: int) -> int:
    """Simulate a full disk by RLIMIT_FSIZE, which needs no privileges: the journal cannot grow, and the collection must say so."""
    end(folder, start(folder, largest_file=FULL_DISK_BYTES), PlatformError.exit_code)
    end(folder, start(folder), 0)
    return 1


def two_collectors(folder: Path, count: int) -> int:
    """The second one waits for the machine, then finds everything measured."""
    for collector in [start(folder), start(folder)]:
        end(folder, collector, 0)
    return 1


def two_collectors_apart(folder: Path, count: int) -> int:
    """Two collectors without a shared lock of the machine, as in two containers: the journal's own lock refuses the second one."""
    first = start(folder)
    wait_until(first, (Workspace(folder).journal_folder(PLATFORM, "collect") / "records.jsonl").exists)
    end(folder, start(folder, temporary="elsewhere"), BusyError.exit_code)
    end(folder, first, 0)
    return 1


FAULTS = (
    Fault("segmentation fault", (WRITES_FAR_AWAY,)),
    Fault("abort", (ABORTS,)),
    Fault("illegal instruction", (ILLEGAL,)),
    Fault("stack overflow", (OVERFLOWS,)),
    Fault("run that never ends", (COUNTS, HANGS), frozenset({"timeout"})),
    Fault("more memory than allowed", (TAKES_MUCH_MEMORY,), frozenset({"run", "crash"})),
    Fault("build that takes too long", (UNROLLS,), frozenset({"timeout"})),
    Fault("workers killed", drive=workers_killed, outside="kills", blames=True),
    Fault("collector killed, started again", drive=collector_killed, outside="kills"),
    Fault("disk full, started again", drive=disk_full, outside="full disk"),
    Fault("two collectors", drive=two_collectors, outside="second collector"),
    Fault("two collectors without a common lock", drive=two_collectors_apart, outside="second collector"),
)


# --- verdicts ---


def injected(folder: Path, fault: Fault, good: Pool, count: int) -> Verdict:
    """Make a project, collect in it with the fault, and look at what is there."""
    modules = [fault.bad[number % len(fault.bad)] for number in range(count)]
    pool = with_bad(good, modules)
    make_project(folder, pool)
    events = (fault.drive or undisturbed)(folder, count)
    bad = {_key(number) for number in range(count)}
    rows = store.read_records(Workspace(folder).records_folder(PLATFORM))
    found = Counter(row.key for row in rows)
    journal = iter_journal(Workspace(folder).journal_folder(PLATFORM, "collect"))
    lasting = Counter(row.key for row in journal if not row.disturbed)  # disturbed ones are measured again
    return Verdict(
        candidates=len(pool.programs),
        bad=count,
        events=events,
        recorded=Counter(row.error for row in rows),
        lost=sum((p.task_key, p.sketch, p.decisions) not in found for p in pool.programs),
        doubled=sum(times - 1 for counts in (found, lasting) for times in counts.values()),
        misjudged=misjudged(rows, bad, fault, events),
        leftovers=processes_left(folder) + files_left(folder),
    )


def misjudged(rows: Sequence[Record], bad: set[str], fault: Fault, events: int) -> int:
    """Number of candidates with a wrong error kind, less those that a fault from outside may have crashed."""
    wrong = [row for row in rows if row.error not in (fault.kinds if row.task_key in bad else {"ok"})]
    blamed = sum(row.error == "crash" and row.task_key not in bad for row in wrong)
    return len(wrong) - (min(blamed, events) if fault.blames else 0)


def processes_left(folder: Path) -> int:
    """Number of the project's processes that are still alive after 20 s; they are killed."""
    _, left = psutil.wait_procs([p for p in psutil.process_iter() if _is_of(p, folder)], timeout=20)
    for process in left:
        process.kill()
    return len(left)


def _is_of(process: psutil.Process, folder: Path) -> bool:
    with suppress(psutil.Error):
        return process.environ().get("TMPDIR", "").startswith(str(folder))
    return False


def files_left(folder: Path) -> int:
    """Number of temporary files and folders left, without the lock file by which collections take turns."""
    temporary = [path for name in ("tmp", "elsewhere") for path in (folder / name).glob("*")]
    aside = [path for path in (folder / "data").rglob(".*.tmp")]
    return len([path for path in temporary + aside if path.name != "tcl-measuring.lock"])


def row_of(fault: Fault, verdict: Verdict) -> list[str]:
    outside = f", {verdict.events} {fault.outside}" if verdict.events else ""
    recorded = ", ".join(f"{count} {kind}" for kind, count in sorted(verdict.recorded.items()))
    faults = f"{verdict.bad} programs{outside}"
    figures = (verdict.lost, verdict.doubled, verdict.misjudged, verdict.leftovers)
    return [fault.name, str(verdict.candidates), faults, recorded, *map(str, figures)]


def summed(verdicts: Sequence[Verdict]) -> dict[str, int]:
    names = ("candidates", "lost", "doubled", "misjudged", "leftovers")
    totals = {name: sum(getattr(verdict, name) for verdict in verdicts) for name in names}
    faults = sum(verdict.bad + verdict.events for verdict in verdicts)
    return {"injected": faults, "recorded": sum(v.recorded.total() for v in verdicts), **totals}


HEADER = ("fault", "candidates", "injected", "recorded as", "lost", "doubled", "wrong kind", "left behind")


QUICK = ("abort", "run that never ends", "workers killed", "collector killed, started again", "disk full, started again")


def inject(quick: bool) -> tuple[dict[str, int], dict[str, dict], str]:
    """Inject all faults; return totals, figures by fault, and the table.  ``quick``: some faults, half as many of each."""
    faults, count = (FAULTS, 4) if not quick else ([fault for fault in FAULTS if fault.name in QUICK], 2)
    good, verdicts = good_pool(), []
    with measuring_alone(), tempfile.TemporaryDirectory(prefix="tcl-faults-") as folder:
        with progress("injecting faults", len(faults)) as shown:
            for number, fault in enumerate(faults):
                verdicts.append(injected(Path(folder) / str(number), fault, good, count))
                shown.advance(fault.name)
    done = list(zip(faults, verdicts, strict=True))
    table = markdown(HEADER, [row_of(fault, verdict) for fault, verdict in done])
    return summed(verdicts), {fault.name: vars(verdict) for fault, verdict in done}, table

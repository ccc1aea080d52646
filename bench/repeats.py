"""How well repeated measurements of the programs that a search meets agree, which no model can exceed.

    python bench/repeats.py [--quick] [--tasks N] [--programs N] [--minutes M]

The programs within 1.6 times the fastest (as in bench/near.py) of random tasks of data/searched are measured three times more on this
machine: in two passes over all tasks by the same worker processes, the second in reverse order, and in a third one by new processes.  All
numbers are over a task's programs; the table has their means over tasks, with the 95 % interval over draws of the tasks:

same processes     rank correlation of the first two passes
new processes      of the mean of these two with the third
a pass, the data   of each pass with the data set's record, which may be of another day, or of another machine
all, the data      of the mean of the three with the record: what perfect knowledge of the speeds would reach in bench/near.py
scatter            standard deviation of a single measurement: that of the log ratio of the first two passes, over the root of two
in new processes   likewise, of the ratio of the third to the first
spread             standard deviation of the programs' mean logarithms over the passes: how far apart the programs are

--quick: ten tasks.  With --minutes no task of the first pass begins after a third of them.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from _tables import ROOT, Quick, arguments, into_document, markdown, save

from tcl_core import environment, store  # noqa: F401  (before torch is imported)

import numpy as np
from _paired import against
from near import ENOUGH, NEAR
from scipy.stats import spearmanr

from tcl_core import datasets
from tcl_core.errors import TclError
from tcl_core.measure.job import Job, Setup
from tcl_core.measure.runner import Runner
from tcl_core.platforms import host_fingerprint, why_not
from tcl_core.progress import progress
from tcl_core.records import Record
from tcl_core.reference import Reference
from tcl_core.stages.collecting import setup_of
from tcl_core.stages.machine import measuring_alone
from tcl_core.stages.workspace import Workspace

COMMAND = "python bench/repeats.py"
SAME, NEW, EACH, ORACLE, SCATTER, ANEW, SPREAD = FIGURES = (
    "same processes", "new processes", "a pass, the data", "all, the data", "scatter", "in new processes", "spread",
)  # fmt: skip
TASKS, QUICK_TASKS, PROGRAMS = 40, 10, 16


@dataclass(frozen=True)
class Task:
    """The programs of one task that are measured again, and their records."""

    key: str
    records: Sequence[Record]


def chosen(data: Reference, platform: str, tasks: int, programs: int, enough: int = ENOUGH) -> list[Task]:
    """``tasks`` random tasks, by a fixed seed, with enough programs near the fastest, and at most ``programs`` of these of each."""
    by_task: dict[str, list[Record]] = {}
    for record in store.read_records(data.folder / f"platform={platform}"):
        if math.isfinite(record.latency_s):
            by_task.setdefault(record.task_key, []).append(record)
    rng, found = np.random.default_rng(0), list[Task]()
    for key in rng.permutation(sorted(by_task)).tolist():
        fastest = min(record.latency_s for record in by_task[key])
        near = [record for record in by_task[key] if record.latency_s <= NEAR * fastest]
        if len(near) >= enough and len(found) < tasks:
            found.append(Task(key, [near[row] for row in rng.permutation(len(near))[:programs]]))
    return found


def measured(data: Reference, runner: Runner, task: Task) -> list[float]:
    """Median seconds of each of the task's programs; inf for one that failed."""
    module = data.encoder.tasks[task.key].module_json
    jobs = [
        Job(
            task_key=task.key,
            module_json=module,
            trace_json=data.encoder.trace_json(task.key, record.sketch_id),
            decisions=record.decisions,
            cold="cold" in json.loads(record.protocol),  # as it was timed then
        )
        for record in task.records
    ]
    return [float(np.median(outcome.latencies_s)) if outcome.latencies_s else math.inf for outcome in runner.measure(jobs)]


def figures(record_s: Sequence[float], *passes_s: Sequence[float]) -> dict[str, float] | None:
    """``FIGURES`` of a task, on the logarithms of its records and three passes; None where fewer than three programs ran every time."""
    logs = np.log([record_s, *passes_s])
    data, *passes = logs[:, np.isfinite(logs).all(axis=0)]
    if len(data) < 3:
        return None
    (first, second, third), mean = passes, np.mean(passes, axis=0)
    alike = lambda a, b: float(spearmanr(a, b)[0])  # noqa: E731
    return {
        SAME: alike(first, second),
        NEW: alike((first + second) / 2, third),
        EACH: float(np.mean([alike(each, data) for each in passes])),
        ORACLE: alike(mean, data),
        SCATTER: float((second - first).std(ddof=1) / math.sqrt(2)),
        ANEW: float((third - first).std(ddof=1) / math.sqrt(2)),
        SPREAD: float(mean.std(ddof=1)),
    }


def summary(rows: Mapping[str, Mapping[str, float]]) -> dict[str, list[float | None]]:
    """Figure -> [mean, low, high] over the tasks."""
    values = {name: np.array([row[name] for row in rows.values()]) for name in FIGURES}
    return {name: against(found[np.isfinite(found)], np.zeros(int(np.isfinite(found).sum()))) for name, found in values.items()}


def table(found: Mapping[str, Sequence[float | None]]) -> str:
    shown = {name: f"{mean:.3f}" + ("" if low is None else f" ({low:.3f} to {high:.3f})") for name, (mean, low, high) in found.items()}
    return markdown(["", "mean over tasks"], [[name, shown[name]] for name in FIGURES])


def platform_here(data: Reference, workspace: Workspace) -> str:
    """The last of the data set's platforms that this machine can run."""
    specs = workspace.params.platforms
    runnable = [name for name in data.platforms if name in specs and why_not(specs[name].mcpu) is None]
    if not runnable:
        sys.exit("repeats: this machine can run no platform of data/searched")
    return runnable[-1]


def run(given: Any, until: float) -> None:
    workspace, data = Workspace(), datasets.reference(ROOT / "data" / "searched")
    platform = platform_here(data, workspace)
    setup: Setup = setup_of(workspace, platform)
    tasks = chosen(data, platform, QUICK_TASKS if given.quick else given.tasks, given.programs)
    if given.smallest:
        setup, tasks = replace(setup, protocol=replace(setup.protocol, repeats=1, max_repeats=1, min_repeat_ms=1.0)), tasks[:1]
        tasks = [replace(task, records=task.records[:4]) for task in tasks]
    passes: dict[str, list[list[float]]] = {}
    with measuring_alone(), progress("measuring three times", 3 * len(tasks)) as shown:
        with Runner(setup) as runner:
            for task in tasks:
                if time.monotonic() < until:
                    passes[task.key] = [measured(data, runner, task)]
                    shown.advance("first pass")
            tasks = [task for task in tasks if task.key in passes]
            for task in reversed(tasks):
                passes[task.key].append(measured(data, runner, task))
                shown.advance("second pass")
        with Runner(setup) as runner:
            for task in tasks:
                passes[task.key].append(measured(data, runner, task))
                shown.advance("third pass")
    of_tasks = {task.key: figures([record.latency_s for record in task.records], *passes[task.key]) for task in tasks}
    rows = {key: found for key, found in of_tasks.items() if found}
    if not rows:
        sys.exit("repeats: of no task enough programs ran; give more --minutes")
    hosts = sorted({record.host for task in tasks for record in task.records})
    about = {"platform": platform, "data_hosts": hosts, "same_host": hosts == [host_fingerprint()], "tasks": len(rows)}
    found = summary(rows)
    save("repeats", {**about, "summary": found, "rows": rows}, " ".join([COMMAND, *sys.argv[1:]]))
    into_document("repeats", table(found))
    print(table(found))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help=f"{QUICK_TASKS} tasks")
    parser.add_argument("--tasks", type=int, default=TASKS, metavar="N", help=f"so many ({TASKS})")
    parser.add_argument("--programs", type=int, default=PROGRAMS, metavar="N", help=f"of each at most ({PROGRAMS})")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no task of the first pass after a third of that")
    given = parser.parse_args()
    try:
        run(given, time.monotonic() + 20 * given.minutes)
    except TclError as error:
        sys.exit(f"repeats: {error}")


if __name__ == "__main__":
    main()

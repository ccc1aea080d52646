"""The memory of a worker process over thousands of programs, with and without replacing the worker.

    python bench/worker_memory.py [--quick]

A worker builds and runs distinct programs of the reference data set (data/reference), the quickest of those that ran, one
after another: first sound ones, which must leave nothing behind, then sound ones among which some leak on purpose, once with
a worker that is never replaced and once with replacement as in collections.  The results so far are in bench/results/ while
it runs.  --quick: 300 sound programs instead of 10,000, and 200 of the others instead of 1,000.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
from _bad_programs import leaking
from _datasets import Reference
from _tables import ROOT, Quick, arguments, into_document, markdown, save
from collect import PROTOCOL, best_setup

from tcl_core import store
from tcl_core.measure import worker_handle
from tcl_core.measure.job import Job, Setup
from tcl_core.measure.runner import Runner
from tcl_core.progress import progress
from tcl_core.stages.machine import measuring_alone

COMMAND = "python bench/worker_memory.py"
# Minimal timing on one thread, for only the memory counts.
GLANCE = replace(PROTOCOL, repeats=1, max_repeats=1, min_repeat_ms=0, threads=1)
REFERENCE = ROOT / "data" / "reference"
LEAKY = 20  # one of so many programs leaks


@dataclass(frozen=True)
class Size:
    """Numbers of sound programs, of programs among which some leak, and of programs between two readings of the memory; bytes
    leaked in all if the worker is not replaced.
    """

    sound: int
    leaky: int
    chunk: int = 100
    leaked_bytes: int = 3 << 30


FULL, QUICK, SMALLEST = Size(10_000, 1_000), Size(300, 200), Size(4, LEAKY, LEAKY // 2, 1 << 20)


def quick_programs(platform: str, count: int) -> list[Job]:
    """The ``count`` quickest programs that were measured on the platform, task by task."""
    known, place = Reference(REFERENCE, ROOT / "data" / "features").encoder, REFERENCE / f"platform={platform}"
    ran = [record for record in store.read_records(place) if record.error == "ok"] if place.exists() else []
    if len(ran) < count:
        sys.exit(f"worker_memory: {place} has {len(ran)} programs that ran, {count} are needed; run python bench/reference.py")
    ran = sorted(sorted(ran, key=lambda record: np.median(record.latencies_s))[:count], key=lambda record: record.key)
    task = lambda key: known.tasks[key]  # noqa: E731
    return [Job(key, task(key).module_json, known.texts[key, sketch], decisions) for key, sketch, decisions in (r.key for r in ran)]


def memory(setup: Setup, jobs: Sequence[Job], size: Size, on_more: Callable[[dict[str, Any]], None]) -> dict[str, dict[str, Any]]:
    """Resident MiB and process of the worker after every chunk of programs, and the number of programs that failed."""
    leaks = size.leaky // LEAKY
    leaky = with_leaks(jobs[: size.leaky - leaks], size.leaked_bytes // leaks)
    wanted = {
        "sound programs, never replaced": (jobs[: size.sound], math.inf),
        "some leak, never replaced": (leaky, math.inf),
        f"some leak, replaced above {worker_handle.RECYCLE_BYTES >> 20} MiB": (leaky, worker_handle.RECYCLE_BYTES),
    }
    found: dict[str, dict[str, Any]] = {}
    with progress("watching a worker's memory", sum(math.ceil(len(given) / size.chunk) for given, _ in wanted.values())) as shown:
        for name, (given, limit) in wanted.items():
            run = found[name] = {"programs": 0, "failed": 0, "resident_mib": [], "workers": []}
            with Runner(replace(setup, protocol=GLANCE), workers=1) as runner, patch.object(worker_handle, "RECYCLE_BYTES", limit):
                for start in range(0, len(given), size.chunk):
                    outcomes = list(runner.measure(given[start : start + size.chunk]))
                    process = psutil.Process(runner.workers[0].process.pid)
                    run["programs"] += len(outcomes)
                    run["failed"] += sum(outcome.error != "ok" for outcome in outcomes)
                    run["resident_mib"].append(process.memory_info().rss >> 20)
                    run["workers"].append(process.pid)
                    on_more(found)
                    shown.advance(f"{run['resident_mib'][-1]} MiB")
    return found


def with_leaks(jobs: Sequence[Job], leaked_bytes: int) -> list[Job]:
    """Jobs with one that leaks after every few; it runs twice, once to warm up and once for its time."""
    leak, rest = Job("leaks", leaking(leaked_bytes // 2)), LEAKY - 1
    return [job for start in range(0, len(jobs), rest) for job in (*jobs[start : start + rest], leak)]


def longest_lived(workers: Sequence[int], mib: Sequence[int]) -> list[int]:
    """MiB that the longest-lived process held after each chunk of its programs."""
    pid = max(workers, key=workers.count)
    return [held for worker, held in zip(workers, mib, strict=True) if worker == pid]


def table(found: dict[str, dict[str, Any]], chunk: int = FULL.chunk) -> str:
    """``the one that stayed`` is the process that measured most of them: a program that times out ends its worker."""
    header = ("memory of a worker", "programs", "failed", "workers", "most", "the one that stayed",
              f"after {chunk}", "half-way", "at the end")  # fmt: skip
    rows = []
    for name, run in found.items():
        own = longest_lived(run["workers"], run["resident_mib"])
        read = [f"{value} MiB" for value in (own[0], own[len(own) // 2], own[-1])]
        most, count = f"{max(run['resident_mib'])} MiB", len(set(run["workers"]))
        rows.append([name, f"{run['programs']:,}", run["failed"], count, most, f"{chunk * len(own):,} programs", *read])
    return markdown(header, rows)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="fewer programs")
    given = parser.parse_args()
    size = SMALLEST if given.smallest else QUICK if given.quick else FULL
    platform, setup = best_setup()
    command = f"{COMMAND} --quick" if given.quick else COMMAND
    jobs = quick_programs(platform, max(size.sound, size.leaky))
    with measuring_alone():
        found = memory(setup, jobs, size, lambda known: save("worker_memory", {"platform": platform, "figures": known}, command))
    text = table(found, size.chunk)
    into_document("worker_memory", text)
    print(text)


if __name__ == "__main__":
    main()

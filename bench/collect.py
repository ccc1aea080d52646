"""How fast programs are measured: TCL's workers beside TVM's own LocalBuilder and LocalRunner.

    python bench/collect.py [--quick]

Both measure the same candidates of three networks for the same target, with the same protocol, limits and threads, in
batches like a tuner's rounds, taking turns; TVM's builder once as it is, and once with TCL's way to import TVM, which most of
its time goes into.  Beside the rates the tables show how well the latencies agree, where the
time goes, and what building during the timing would do to latencies.  --quick: fewer batches, fewer programs.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from _tables import Quick, arguments, into_document, markdown, save

from tcl_core import environment  # noqa: F401  (before torch is imported)
from tcl_core.compat import load_tvm, make_target, meta_schedule
from tcl_core.evaluation.metrics import spearman
from tcl_core.measure.job import Job, Limits, Outcome, Protocol, Setup
from tcl_core.measure.runner import Runner
from tcl_core.platforms import kind_of, threads, why_not
from tcl_core.programs.graph import PREPARED
from tcl_core.programs.pool import Program, build_pool, rank_tasks
from tcl_core.programs.sketches import DesignSpace, read_sketch, trace_from_json
from tcl_core.programs.tasks import extract_tasks
from tcl_core.progress import Progress, progress
from tcl_core.stages.collecting import setup_of
from tcl_core.stages.machine import measuring_alone
from tcl_core.stages.workspace import Workspace

COMMAND = "python bench/collect.py"
NETWORKS = ("resnet-18", "mobilenet-v2", "bert-tiny")
# What both systems support: a repeat lasts 10 ms however many runs that takes, and no program is stopped early.
PROTOCOL = Protocol(repeats=3, max_repeats=3, min_repeat_ms=10, max_number=10**6, enough_s=math.inf,
                    early_stop_factor=math.inf, threads=threads())  # fmt: skip
# On a slow machine TVM's own 30 s for a build pass before the building process has imported TVM.
LIMITS = Limits(build_s=120, run_s=30)
LARGE, SMALL = 64, 8
COMPARABLE_S = 20e-6  # below it the overhead of a call is a large part of the latency
OURS, AGAIN, EARLY, OVERLAPPED, STOCK = "TCL", "TCL again", "TCL, early stop", "TCL, building meanwhile", "TVM"
LIGHT = "TVM, initializer=load_tvm"  # its building processes import TVM as TCL's workers do, in a second or two


@dataclass(frozen=True)
class Size:
    """How much is measured.

    tasks, per_task  the pool
    large, small     numbers of batches of the two sizes
    sizes            programs of a large and of a small batch
    networks         the networks whose tasks these are
    initializer      of TVM's building processes; None: TVM's own, 20 s until the first program is built
    """

    tasks: int
    per_task: int
    large: int
    small: int
    sizes: tuple[int, int] = (LARGE, SMALL)
    networks: tuple[str, ...] = NETWORKS
    initializer: Callable[[], Any] | None = None


FULL = Size(24, 16, 3, 6)  # few, for on a slow machine TVM takes ten minutes to build 64 programs
QUICK = Size(12, 10, 2, 2, (48, SMALL))


def smallest() -> Size:
    """One batch of three programs and one of two, of a network of one layer."""
    from _smallest import network

    return Size(1, 3, 1, 1, (3, 2), (network(),), load_tvm)


class Candidates:
    """Programs of the networks' costliest tasks: as jobs for TCL, as scheduled modules for TVM."""

    def __init__(self, target: dict, size: Size) -> None:
        ranked = rank_tasks({name: extract_tasks(name, PREPARED) for name in size.networks})
        with progress("sampling programs", size.tasks) as shown:
            sketches, self.programs = build_pool(
                ranked, size.tasks, size.per_task, 0, threads(), lambda task: shown.advance(task.name[:40])
            )
        self.numbers = {task.key: number for number, task in enumerate(ranked)}
        self._tasks = {task.key: task for task in ranked}
        self._texts = {(row["task_key"], row["sketch_id"]): row["trace_json"] for row in sketches}
        self._target = target
        self._space = lru_cache(maxsize=None)(self._make_space)

    def _make_space(self, task_key: str) -> DesignSpace:
        return DesignSpace(task_key, self._tasks[task_key].module(), self._target)

    def job(self, program: Program) -> Job:
        key, text = program.task_key, self._texts[program.task_key, program.sketch]
        return Job(key, self._tasks[key].module_json, text, program.decisions)

    def module(self, program: Program) -> Any:
        space = self._space(program.task_key)
        trace = trace_from_json(self._texts[program.task_key, program.sketch], space.module)
        return space.materialise(read_sketch(program.task_key, program.sketch, trace), program.decisions).mod

    def batches(self, size: int, count: int, seed: int) -> list[list[Program]]:
        """``count`` disjoint random batches of ``size`` programs, each sorted by task."""
        drawn = np.random.default_rng(seed).permutation(len(self.programs))[: size * count]
        return [[self.programs[number] for number in sorted(batch)] for batch in drawn.reshape(count, size)]


@dataclass(frozen=True)
class Measured:
    """One batch, measured by one system.

    latencies_s  medians of the repeats, inf for what failed
    spent_s      parts of the wall time: building on all workers at once, timing, the sentinel
    retimed      programs that were timed once more, because the machine was not quiet
    disturbed    programs during which it never was quiet
    build_s      build time of each program, where that is known
    """

    seconds: float
    latencies_s: np.ndarray
    spent_s: dict[str, float]
    retimed: int = 0
    disturbed: int = 0
    build_s: tuple[float, ...] = ()


class Stock:
    """TVM's builder and runner as its tuning calls them: one call of each per round, with the builder's own workers.

    Its programs are scheduled before the clock starts; TCL's workers schedule them within the measured time.
    """

    def __init__(self, candidates: Candidates, target: dict, initializer: Callable[[], Any] | None) -> None:
        ms = meta_schedule()
        began = time.perf_counter()
        config = ms.runner.EvaluatorConfig(number=1, repeat=PROTOCOL.repeats, min_repeat_ms=int(PROTOCOL.min_repeat_ms))
        self._builder = ms.builder.LocalBuilder(timeout_sec=LIMITS.build_s, initializer=initializer)
        self._runner = ms.runner.LocalRunner(evaluator_config=config)
        self.start_s = time.perf_counter() - began
        self._candidates, self._target = candidates, make_target(target)

    def measure(self, programs: Sequence[Program]) -> Measured:
        ms = meta_schedule()
        modules = [self._candidates.module(program) for program in programs]
        arguments = [ms.arg_info.ArgInfo.from_entry_func(module, True) for module in modules]
        began = time.perf_counter()
        built = self._builder.build([ms.builder.BuilderInput(module, self._target) for module in modules])
        build_s = time.perf_counter() - began
        sound = [number for number, result in enumerate(built) if result.error_msg is None]
        inputs = [ms.runner.RunnerInput(built[n].artifact_path, "cpu", arguments[n]) for n in sound]
        results = [future.result() for future in self._runner.run(inputs)]
        seconds = time.perf_counter() - began
        latencies_s = np.full(len(programs), np.inf)
        latencies_s[sound] = [_median(result.run_secs) for result in results]
        return Measured(seconds, latencies_s, {"build": build_s, "time": seconds - build_s, "sentinel": 0.0})


def _median(seconds: Sequence[Any] | None) -> float:
    return statistics.median(float(s) for s in seconds) if seconds else math.inf


class Ours:
    """TCL's runner, whose workers stay alive from batch to batch, with a clock on each request to them."""

    def __init__(self, candidates: Candidates, runner: Runner) -> None:
        self._candidates, self._runner = candidates, runner
        self._asked: list[tuple[str, int, float]] = []  # request, program, seconds
        began = time.perf_counter()
        deque(runner.measure([Job("none", "{")] * len(runner.workers)), maxlen=0)  # no valid program: the workers start and build nothing
        self.start_s = time.perf_counter() - began
        for worker in runner.workers:
            worker.ask = partial(self._clocked, worker.ask)

    def _clocked(self, ask: Callable[..., Any], timeout_s: float, request: str, *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return ask(timeout_s, request, *arguments)
        finally:
            self._asked.append((request, arguments[0] if arguments else -1, time.perf_counter() - began))

    def measure(self, programs: Sequence[Program]) -> Measured:
        jobs = [self._candidates.job(program) for program in programs]
        self._asked.clear()
        began = time.perf_counter()
        outcomes = list(self._runner.measure(jobs))
        seconds = time.perf_counter() - began
        spent = {name: math.fsum(s for r, _, s in self._asked if r == name) for name in ("build", "time", "sentinel")}
        spent["build"] /= len(self._runner.workers)
        return Measured(
            seconds=seconds,
            latencies_s=np.array([_median(outcome.latencies_s) for outcome in outcomes]),
            spent_s=spent,
            retimed=self._timings() - sum(_was_run(outcome) for outcome in outcomes),
            disturbed=sum(outcome.disturbed for outcome in outcomes),
            build_s=tuple(outcome.build_s for outcome in outcomes),
        )

    def _timings(self) -> int:
        """Number of timings: a program counts once for each interval between two sentinel readings in which it was timed."""
        between: list[set[int]] = [set()]
        for request, number, _ in self._asked:
            if request == "sentinel":
                between.append(set())
            elif request == "time":
                between[-1].add(number)
        return sum(map(len, between))


def _was_run(outcome: Outcome) -> bool:
    return outcome.build_s > 0


Found = dict[str, list[Measured]]
"""System -> what it measured, batch by batch."""


def in_turns(systems: dict[str, Stock | Ours], batches: Sequence[Sequence[Program]], shown: Progress) -> Found:
    """Measure every batch by every system; each batch begins with another system."""
    found: Found = {name: [] for name in systems}
    names = list(systems)
    for number, batch in enumerate(batches):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(systems[name].measure(batch))
            shown.advance(f"{name}, {len(batch)} programs")
    return found


# --- figures ---


def rates(measured: Sequence[Measured], size: int, start_s: float) -> dict[str, float]:
    """Programs/s: of the median, slowest and fastest batch, with one start for all batches, and if only builds took time."""
    each, programs = [size / m.seconds for m in measured], size * len(measured)
    return {
        "median": statistics.median(each),
        "slowest": min(each),
        "fastest": max(each),
        "start_s": start_s,
        "with_start": programs / (start_s + math.fsum(m.seconds for m in measured)),
        "builds_alone": programs / math.fsum(m.spent_s["build"] for m in measured),
    }


def shares(measured: Sequence[Measured]) -> dict[str, float]:
    """Shares of the wall time; numbers of programs that the sentinel had retimed, that it marked, and that have no latency."""
    total_s = math.fsum(m.seconds for m in measured)
    part = {name: math.fsum(m.spent_s[name] for m in measured) / total_s for name in ("build", "time", "sentinel")}
    rest = {"rest": 1 - math.fsum(part.values())}
    counts = {name: sum(getattr(m, name) for m in measured) for name in ("retimed", "disturbed")}
    return {**part, **rest, **counts, "failed": sum(int(np.isinf(m.latencies_s).sum()) for m in measured)}


def refuse_failures(theirs: Sequence[Measured]) -> None:
    """Exit if TVM measured less than half of the programs: a rate of failures means nothing."""
    latencies_s = np.concatenate([measured.latencies_s for measured in theirs])
    sound = int(np.isfinite(latencies_s).sum())
    if 2 * sound < len(latencies_s):
        sys.exit(f"collect: TVM measured {sound} of {len(latencies_s)} programs, each within {LIMITS.build_s:g} s: nothing is compared")


def agreement(ours: Sequence[Measured], theirs: Sequence[Measured], tasks: np.ndarray) -> dict[str, float]:
    """Agreement of two measurements of the same programs, over those that take more than ``COMPARABLE_S`` in both.

    Without such programs (on a busy machine all of TVM's builds may time out) every figure but their number is nan.
    """
    left, right = (np.concatenate([m.latencies_s for m in found]) for found in (ours, theirs))
    kept = np.isfinite(left) & np.isfinite(right) & (np.minimum(left, right) > COMPARABLE_S)
    ratios, tasks = left[kept] / right[kept], tasks[kept]
    low, median, high = np.quantile(ratios, [0.05, 0.5, 0.95]) if kept.any() else [math.nan] * 3
    correlation = lambda tasks: spearman(-left[kept], right[kept], tasks) if kept.any() else math.nan  # noqa: E731
    return {
        "programs": int(kept.sum()),
        "spearman": correlation(np.zeros_like(tasks)),
        "spearman_within_tasks": correlation(tasks),
        "median_ratio": float(median),
        "ratio_5_percent": float(low),
        "ratio_95_percent": float(high),
    }


# --- tables ---


def rates_table(found: dict[int, dict[str, dict[str, float]]]) -> str:
    header = ("system", "batch", "programs/s", "times TVM's", "start", "with the start", "if only builds took time")
    rows = [
        [
            name, size, f"{r['median']:.2f} ({r['slowest']:.2f} to {r['fastest']:.2f})",
            f"{r['median'] / of_size[STOCK]['median']:.1f}", f"{r['start_s']:.1f} s", f"{r['with_start']:.2f}",
            f"{r['builds_alone']:.2f} ({r['builds_alone'] / of_size[STOCK]['median']:.1f} times)",
        ]
        for size, of_size in found.items()
        for name, r in of_size.items()
    ]  # fmt: skip
    return markdown(header, rows)


def shares_table(found: dict[int, dict[str, dict[str, float]]]) -> str:
    header = ("system", "batch", "building", "timing", "sentinel", "rest", "timed again", "disturbed", "failed")
    rows = [
        [name, size, *(f"{p[key]:.0%}" for key in ("build", "time", "sentinel", "rest")), p["retimed"], p["disturbed"], p["failed"]]
        for size, of_size in found.items()
        for name, p in of_size.items()
    ]
    return markdown(header, rows)


def agreement_table(pairs: dict[str, dict[str, float]]) -> str:
    header = ("latencies", "programs", "Spearman", "within tasks", "median ratio", "5 % to 95 %")
    rows = [
        [
            name, a["programs"], f"{a['spearman']:.4f}", f"{a['spearman_within_tasks']:.3f}",
            f"{a['median_ratio']:.3f}", f"{a['ratio_5_percent']:.2f} to {a['ratio_95_percent']:.2f}",
        ]
        for name, a in pairs.items()
    ]  # fmt: skip
    return markdown(header, rows)


# --- the whole comparison ---


def best_setup() -> tuple[str, Setup]:
    """The last of the chain's platforms that this machine can run, and the setup to measure it here."""
    workspace = Workspace()
    specs = {name: workspace.params.platforms[name] for name in workspace.params.chain_order}
    runnable = [name for name, spec in specs.items() if kind_of(spec).name == "local" and why_not(spec.mcpu) is None]
    if not runnable:
        sys.exit("collect: this machine can run no CPU platform of params.yaml; add one it can")
    return runnable[-1], replace(setup_of(workspace, runnable[-1]), protocol=PROTOCOL, limits=LIMITS)


def compare(setup: Setup, size: Size) -> dict[str, Any]:
    """All figures."""
    candidates = Candidates(setup.target, size)
    of_large, of_small = size.sizes
    large, small = candidates.batches(of_large, size.large, 0), candidates.batches(of_small, size.small, 1)
    tasks = np.array([candidates.numbers[program.task_key] for batch in large for program in batch])
    early = replace(setup, protocol=replace(PROTOCOL, early_stop_factor=Protocol().early_stop_factor))
    with ExitStack() as stack, progress("measuring batches", 6 * len(large) + 4 * len(small)) as shown:
        runners = {OURS: Runner(setup), EARLY: Runner(early), OVERLAPPED: Runner(setup, overlap=True)}
        ours: dict[str, Any] = {name: Ours(candidates, stack.enter_context(runner)) for name, runner in runners.items()}
        stock = {STOCK: Stock(candidates, setup.target, size.initializer), LIGHT: Stock(candidates, setup.target, load_tvm)}
        systems: dict[str, Any] = {**stock, **ours}
        at_large = in_turns({**systems, AGAIN: ours[OURS]}, large, shown)
        refuse_failures(at_large[STOCK])
        at_small = in_turns({name: systems[name] for name in (STOCK, LIGHT, OURS, EARLY)}, small, shown)
        refuse_failures(at_small[STOCK])
    pairs = ((OURS, STOCK), (AGAIN, OURS), (OVERLAPPED, OURS))
    sizes = {of_large: at_large, of_small: at_small}
    exclusive = (STOCK, LIGHT, OURS, EARLY)  # phases that follow each other, so that their parts add up
    return {
        "rates": {n: {name: rates(found[name], n, systems[name].start_s) for name in systems if name in found}
                  for n, found in sizes.items()},
        "shares": {n: {name: shares(found[name]) for name in exclusive} for n, found in sizes.items()},
        "agreement": {f"{a} / {b}": agreement(at_large[a], at_large[b], tasks) for a, b in pairs},
    }  # fmt: skip


def summary_of(found: dict[str, Any]) -> dict[str, float]:
    (of_large, large), (of_small, small) = found["rates"].items()
    agreed = found["agreement"][f"{OURS} / {STOCK}"]
    return {
        f"ratio_batch{of_large}": large[OURS]["median"] / large[STOCK]["median"],
        f"ratio_batch{of_small}": small[OURS]["median"] / small[STOCK]["median"],
        f"light_ratio_batch{of_large}": large[OURS]["median"] / large[LIGHT]["median"],
        f"light_ratio_batch{of_small}": small[OURS]["median"] / small[LIGHT]["median"],
        "spearman": agreed["spearman"],
        "median_latency_ratio": agreed["median_ratio"],
        "programs_per_s": large[OURS]["median"],
        "stock_programs_per_s": large[STOCK]["median"],
    }


def tables(found: dict[str, Any]) -> str:
    return "\n\n".join(
        (
            rates_table(found["rates"]),
            shares_table(found["shares"]),
            agreement_table(found["agreement"]),
        )
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="fewer batches, fewer programs")
    given = parser.parse_args()
    size = smallest() if given.smallest else QUICK if given.quick else FULL
    platform, setup = best_setup()
    # TVM leaves each artifact in a temporary folder, and uses half of an x86 host's CPUs if nobody says otherwise.
    with measuring_alone(), tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TMPDIR": folder, "TVM_NUM_THREADS": str(threads())}
        found = compare(setup, size)
    result = {"platform": platform, "summary": summary_of(found), "figures": found}
    save("collect", result, f"{COMMAND} --quick" if given.quick else COMMAND)
    text = tables(found)
    into_document("collect", text)
    print(text)


if __name__ == "__main__":
    main()

"""Searching: TCL's search over decision vectors beside random programs and TVM's own evolutionary search.

    python bench/search.py [--quick] [--tasks N] [--seeds N] [--programs N] [--model FOLDER] [--minutes M]

Four systems spend equally many measured programs on each task, in equal rounds, measured by the same runner: random programs
of the design space; our search with a model; our search from scratch, without one; MetaSchedule's EvolutionarySearch with its
XGBoost model, which learns from the first round on (by default only after 100 programs, more than are measured here).  Then
the best programs of all four are measured once more, side by side, twice, and these latencies are compared.  A second table has the
best that each had found on the way, as it was read then.

The model is the one that comes with TCL (``tcl.pretrained``: boosted trees), unless --model names another one; the tasks are of
networks that it has not seen.  Each task and seed is a unit, of which none begins after --minutes.  A run that was stopped goes on with
the same command, a finished one with more --seeds, also on another machine: ratios are within a unit.  Results are published once all
units are there.  --quick: four tasks, one seed, 16 programs; its results are a file of their own.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from _identity import code_identity, folder_identity
from _paired import against
from _tables import Quick, Results, arguments, into_document, markdown

from tcl_core import environment, store  # noqa: F401  (before torch is imported)

import numpy as np

from tcl_core import datasets
from tcl_core.compat import make_target, meta_schedule, quiet_compiler
from tcl_core.errors import TclError
from tcl_core.measure.job import Job, Protocol, Setup
from tcl_core.measure.runner import Runner
from tcl_core.models import catalogue
from tcl_core.features.batches import Samples
from tcl_core.models.cost_model import CostModel
from tcl_core.platforms import USABLE_CORES, host_fingerprint, kind_of, read_saved_hardware, why_not
from tcl_core.programs.pool import cost
from tcl_core.programs.tasks import Task
from tcl_core.progress import progress
from tcl_core.reference import Reference, digest, shipped
from tcl_core.shipped_model import NAME
from tcl_core.stages.collecting import setup_of
from tcl_core.stages.machine import measuring_alone
from tcl_core.stages.workspace import Workspace
from tcl_core.tuning.database import Shelf, open_database
from tcl_core.tuning.schedules import ScheduleSearch, SearchSettings
from tcl_core.tuning.search import Candidate

COMMAND = "python bench/search.py"
RANDOM, OURS, SCRATCH, STOCK = SYSTEMS = ("random", "ours", "ours from scratch", "MetaSchedule")
OPERATORS = ("conv2d", "depthwise_conv2d", "matmul", "softmax", "norm")


@dataclass(frozen=True)
class Size:
    """How much is measured.

    operators, per_operator  the tasks: the costliest of each type
    seeds, trials, round     of each task and system; programs measured in all and at a time
    stock, ours              settings of MetaSchedule's search and of ours, where not their defaults
    """

    operators: int = len(OPERATORS)
    per_operator: int = 3
    seeds: int = 5
    trials: int = 64
    round: int = 8
    stock: Mapping[str, Any] = field(default_factory=dict)
    ours: Mapping[str, Any] = field(default_factory=dict)


FULL = Size()
QUICK = Size(operators=4, per_operator=1, seeds=1, trials=16)
SMALLEST = Size(
    operators=2, per_operator=1, seeds=1, trials=8, round=4,
    stock={"population_size": 16, "init_min_unmeasured": 8, "genetic_num_iters": 1, "max_fail_count": 5},
    ours={"population": 16, "generations": 1},
)  # fmt: skip


@dataclass
class Searched:
    """What one system did: latencies of its programs in order (inf: failed), candidates scored, seconds of search."""

    jobs: list[Job]
    latencies_s: list[float]
    candidates: int
    search_s: float

    def best(self) -> Job | None:
        latency_s, row = min(((s, n) for n, s in enumerate(self.latencies_s)), default=(math.inf, 0))
        return self.jobs[row] if math.isfinite(latency_s) else None


class Bench:
    """All that the systems share."""

    def __init__(self, runner: Runner, setup: Setup, model: CostModel, hardware: Sequence[float], size: Size) -> None:
        self.runner, self.target, self.model, self.hardware, self.size = runner, setup.target, model, hardware, size

    def unit(self, task: Task, seed: int) -> dict[str, Any]:
        """One task by all systems, another one first each time, and their best programs side by side."""
        shift = seed % len(SYSTEMS)
        searched = {system: self._search(system, task, seed) for system in SYSTEMS[shift:] + SYSTEMS[:shift]}
        return {
            "task": task.key,
            "operator": task.operator,
            "seed": seed,
            "host": host_fingerprint(),
            "best_s": self._side_by_side({system: found.best() for system, found in searched.items()}),
            "candidates": {system: found.candidates for system, found in searched.items()},
            "search_s": {system: found.search_s for system, found in searched.items()},
            "failed": {system: sum(map(math.isinf, found.latencies_s)) for system, found in searched.items()},
            "read_s": {system: [s if math.isfinite(s) else None for s in found.latencies_s] for system, found in searched.items()},
        }

    def _search(self, system: str, task: Task, seed: int) -> Searched:
        if system == STOCK:
            return self._stock(task, seed)
        settings = SearchSettings(**{**self.size.ours, "seed": seed, **({"explore": 1.0, "lean": 0.0} if system == RANDOM else {})})
        return self._ours(task, self.model if system == OURS else None, settings)

    def _ours(self, task: Task, model: CostModel | None, settings: SearchSettings) -> Searched:
        found, began = Searched([], [], 0, 0.0), time.perf_counter()  # to find the design space is part of either's search
        search = ScheduleSearch(task, model, self.hardware, self.target, settings)
        while len(found.jobs) < self.size.trials:
            search.schedules(min(self.size.round, self.size.trials - len(found.jobs)))
            found.search_s += time.perf_counter() - began
            if not search.waiting:
                break
            seconds = self._measure(search, task, search.waiting, found)
            began = time.perf_counter()
            for candidate, latency_s in zip(search.waiting, seconds, strict=True):
                search.tell(candidate, latency_s)
        found.candidates = search.viewed
        return found

    def _stock(self, task: Task, seed: int) -> Searched:
        """MetaSchedule's search, driven step by step; its candidates are programs of the same sketches as ours."""
        ms, module, target = meta_schedule(), task.module(), make_target(self.target)
        read = ScheduleSearch(task, None, self.hardware, self.target, SearchSettings())
        context = ms.TuneContext(
            mod=module,
            target=target,
            space_generator=ms.space_generator.PostOrderApply(
                sch_rules=ms.ScheduleRule.create("llvm"),
                postprocs=ms.Postproc.create("llvm"),
                mutator_probs=ms.Mutator.create("llvm"),
            ),
            search_strategy=ms.search_strategy.EvolutionarySearch(**self.size.stock),
            task_name=task.name,
            rand_state=seed + 1,
            num_threads=len(USABLE_CORES),
        )
        model, database, found = _counting_xgboost(), open_database(None), Searched([], [], 0, 0.0)
        shelf = Shelf(database, module, target)
        began = time.perf_counter()
        context.pre_tuning(self.size.trials, self.size.round, None, database, model)
        while candidates := context.generate_measure_candidates():
            found.search_s += time.perf_counter() - began
            known = [read.candidate_of(candidate.sch.trace) for candidate in candidates]
            seconds = self._measure(read, task, known, found)
            for candidate, latency_s in zip(candidates, seconds, strict=True):
                shelf.put(candidate.sch.trace, [latency_s] if math.isfinite(latency_s) else [])
            results = [ms.runner.RunnerResult([s], None) if math.isfinite(s) else ms.runner.RunnerResult(None, "failed") for s in seconds]
            began = time.perf_counter()
            context.notify_runner_results(candidates, results)
            model.update(context, candidates, results)
        context.post_tuning()
        found.candidates = model._inst.candidates
        return found

    def _measure(self, search: ScheduleSearch, task: Task, candidates: Sequence[Candidate], found: Searched) -> list[float]:
        cold = self.runner.setup.times_cold(task.module_json)
        jobs = [Job(task.key, task.module_json, search.traces_json[sketch], decisions, cold=cold) for sketch, decisions in candidates]
        outcomes = list(self.runner.measure(jobs))
        for outcome in outcomes:
            if not outcome.latencies_s:
                print(f"{task.name}: {outcome.error}: {outcome.message}", file=sys.stderr)
        seconds = [_median(outcome.latencies_s) for outcome in outcomes]
        found.jobs += jobs
        found.latencies_s += seconds
        return seconds

    def _side_by_side(self, best: Mapping[str, Job | None]) -> dict[str, float | None]:
        """Each system's best program measured twice more, the systems in turns; None where none ran."""
        there = [system for system, job in best.items() if job is not None] * 2
        readings: dict[str, list[float]] = {system: [] for system in best}
        for system, outcome in zip(there, self.runner.measure([best[system] for system in there]), strict=True):
            readings[system] += outcome.latencies_s
        return {system: _median(found) if found else None for system, found in readings.items()}


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) if seconds else math.inf


def _counting_xgboost() -> Any:
    """MetaSchedule's XGBoost model, told to learn at once, with a count of what it scored."""
    ms = meta_schedule()
    from tvm.ir.utils import derived_object

    @derived_object
    class Counting(ms.cost_model.PyCostModel):
        def __init__(self) -> None:
            super().__init__()
            self.model = ms.cost_model.XGBModel(num_warmup_samples=1, num_tuning_cores=len(USABLE_CORES))
            self.candidates = 0

        def predict(self, context: Any, candidates: list[Any]) -> np.ndarray:
            self.candidates += len(candidates)
            return self.model.predict(context, candidates)

        def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
            self.model.update(context, candidates, results)

        def load(self, path: str) -> None:
            """Nothing is kept from one task to the next."""

        def save(self, path: str) -> None:
            """As for ``load``."""

    return Counting()


# --- figures ---


def ratio(units: Sequence[Mapping[str, Any]], ours: str, other: str) -> list[float | None] | None:
    """[geometric mean, low, high] of our best latency / theirs; the 95 % interval is over draws of tasks, each with its mean over the
    seeds, and None where they are too few for that (``_paired.ENOUGH``).
    """
    by_task: dict[str, list[float]] = {}
    for unit in units:
        mine, theirs = unit["best_s"][ours], unit["best_s"][other]
        if mine and theirs:
            by_task.setdefault(unit["task"], []).append(math.log(mine / theirs))
    if not by_task:
        return None
    means = np.array([statistics.fmean(values) for values in by_task.values()])
    return [None if end is None else math.exp(end) for end in against(means, np.zeros(len(means)))]


def rate(units: Sequence[Mapping[str, Any]], system: str) -> float:
    """Candidates scored per second of search."""
    return sum(unit["candidates"][system] for unit in units) / sum(unit["search_s"][system] for unit in units)


def spent_s(units: Sequence[Mapping[str, Any]], system: str) -> float:
    """Mean seconds that choosing a unit's programs took."""
    return statistics.fmean(unit["search_s"][system] for unit in units)


def compared(units: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "best_vs_stock": ratio(units, OURS, STOCK),
        "best_vs_random": ratio(units, OURS, RANDOM),
        "scratch_vs_stock": ratio(units, SCRATCH, STOCK),
        "scratch_vs_random": ratio(units, SCRATCH, RANDOM),
    }


def on_the_way(units: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float | None]]:
    """System -> after so many programs, 8, 16, ... -> its fastest so far / the fastest of all random ones, geometric mean over the
    units; None where some unit had none yet.
    """
    most = max(len(unit["read_s"][RANDOM]) for unit in units)
    counts = [FULL.round << doubled for doubled in range(max(1, (most // FULL.round).bit_length()))]
    return {system: {str(count): _fastest(units, system, count) for count in counts} for system in SYSTEMS}


def _fastest(units: Sequence[Mapping[str, Any]], system: str, count: int) -> float | None:
    ran = [[[s for s in unit["read_s"][name][:end] if s] for name, end in ((system, count), (RANDOM, None))] for unit in units]
    if not all(mine and random for mine, random in ran):
        return None
    return math.exp(statistics.fmean(math.log(min(mine) / min(random)) for mine, random in ran))


def figures(units: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary over all tasks, and rows per operator type, and per machine where there are several."""
    rates = {"candidates_per_s": rate(units, OURS), "stock_candidates_per_s": rate(units, STOCK)}
    rates |= {"search_s": spent_s(units, OURS), "stock_search_s": spent_s(units, STOCK)}
    x = rates["candidates_per_s"] / rates["stock_candidates_per_s"]
    hosts = sorted({unit["host"] for unit in units})
    groups = [(op, [unit for unit in units if unit["operator"] == op]) for op in OPERATORS]
    if len(hosts) > 1:
        groups += [(f"all, {host}", [unit for unit in units if unit["host"] == host]) for host in hosts]
    rows = [{"operator": name, "units": len(some), **compared(some)} for name, some in groups if some]
    return {"summary": {"candidates_x": x, **rates, **compared(units)}, "rows": rows, "after": on_the_way(units)}


def table(found: Mapping[str, Any]) -> str:
    header = ("operator", "tasks x seeds", "ours / MetaSchedule", "ours / random", "from scratch / MetaSchedule", "from scratch / random")
    everything = sum(row["units"] for row in found["rows"] if row["operator"] in OPERATORS)
    rows = [*found["rows"], {"operator": "all", "units": everything, **found["summary"]}]
    names = ("best_vs_stock", "best_vs_random", "scratch_vs_stock", "scratch_vs_random")
    return markdown(header, [[row["operator"], row["units"], *(_interval(row[name]) for name in names)] for row in rows])


def told(summary: Mapping[str, Any]) -> str:
    return (
        f"Candidates scored per second: {summary['candidates_per_s']:,.0f}, {summary['candidates_x']:.1f} times MetaSchedule's. Seconds to choose "
        f"a task's programs: {summary['search_s']:.1f}, MetaSchedule's {summary['stock_search_s']:.1f}."
    )


def table_after(found: Mapping[str, Any]) -> str:
    after = found["after"]
    rows = [[system, *("-" if x is None else f"{x:.2f}" for x in of.values())] for system, of in after.items()]
    return markdown(["fastest after", *(f"{count} programs" for count in after[RANDOM])], rows)


def _interval(found: Sequence[float | None] | None) -> str:
    if found is None:
        return "-"
    mean, low, high = found
    return f"{mean:.3f}" + ("" if low is None else f" ({low:.3f} to {high:.3f})")


# --- the whole comparison ---


def best_platform(workspace: Workspace, reference: Reference) -> str:
    """The last platform of the reference data that this machine can run."""
    specs = workspace.params.platforms
    runnable = [p for p in reference.platforms if p in specs and kind_of(specs[p]).name == "local" and why_not(specs[p].mcpu) is None]
    if not runnable:
        sys.exit("search: this machine can run no platform of the reference data set")
    return runnable[-1]


def tasks_of(reference: Reference, size: Size) -> list[Task]:
    """The costliest tasks of each type that only held-out networks have: of each type the costliest, then the next ones."""
    numbers = set(reference.case(reference.platforms[-1], "tokens").test.tasks.tolist())
    tasks = [task for task in reference.encoder.tasks.values() if reference.encoder.numbers[task.key] in numbers]
    there = [op for op in OPERATORS if any(task.operator == op for task in tasks)][: size.operators]
    by_cost = sorted(tasks, key=lambda task: (-cost(task), task.key))
    of = {op: [task for task in by_cost if task.operator == op] for op in there}
    return [task for place in range(size.per_operator) for tasks in of.values() for task in tasks[place : place + 1]]


def model_of(folder: Path | None, learned: Callable[[], Samples]) -> CostModel:
    """The model of a folder, or trees that learn these programs."""
    return catalogue.load(folder) if folder else catalogue.create("trees").fit(learned())


def run(
    size: Size,
    command: str,
    folder: Path | None,
    reference: Reference,
    learned: Callable[[], Samples],
    setup: Callable[[Setup], Setup],
    minutes: float = math.inf,
    force: bool = False,
) -> None:
    """``reference`` has the tasks; the model is of ``folder``, or of what ``learned`` gives trees to learn."""
    until = time.monotonic() + 60 * minutes
    workspace = Workspace()
    platform = best_platform(workspace, reference)
    setting = setup(setup_of(workspace, platform))
    about = {
        "platform": platform,
        "model": str(folder or NAME),
        "data": " ".join([store.data_digest(reference.folder), digest()]),
        "size": {name: value for name, value in asdict(size).items() if name != "seeds"},
        "search": asdict(SearchSettings()),
        "protocol": setting.protocol_json(),
        "code": folder_identity("tuning") + code_identity(["tcl_core.models.trees"], ["search"]),
    }
    results = Results("search", lambda found: [_name(unit) for unit in found["units"]])
    units = [] if force else results.of(about).get("units", [])
    todo = [(task, seed) for seed in range(size.seeds) for task in tasks_of(reference, size)]
    left = [(task, seed) for task, seed in todo if (task.key, seed) not in {_name(unit) for unit in units}]
    whole = lambda: {(task.key, seed) for task, seed in todo} <= {_name(unit) for unit in units}  # noqa: E731
    published = whole() and results.published().get("identity") == about
    hardware = read_saved_hardware(reference.folder / f"platform={platform}").vector()
    model = model_of(folder, learned)
    with measuring_alone(), Runner(setting) as runner, progress("searching", len(left)) as shown, quiet_compiler():
        bench = Bench(runner, setting, model, hardware, size)
        for task, seed in left:
            if time.monotonic() > until:
                break
            units.append(bench.unit(task, seed))
            published = results.save({"identity": about, **figures(units), "units": units}, command, whole())
            shown.advance(f"{task.operator}, seed {seed}")
    if not units:
        sys.exit(f"search: no task was begun within {minutes:g} minutes; give more --minutes")
    found = figures(units)
    summary = found["summary"]
    text = f"{table(found)}\n\n{told(summary)}\n\n{table_after(found)}"
    print(text)
    if published:
        into_document("search", text)
    elif not whole():
        print(f"of {len(units)} units; rerun the same command for the other {len(todo) - len(units)}")


def _name(unit: Mapping[str, Any]) -> tuple[str, int]:
    return unit["task"], unit["seed"]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="four tasks, one seed, 16 programs")
    parser.add_argument(
        "--tasks",
        type=int,
        choices=range(1, 21),
        metavar="N",
        default=FULL.per_operator,
        help=f"of each operator type ({FULL.per_operator})",
    )
    parser.add_argument("--seeds", type=int, choices=range(1, 51), metavar="N", default=FULL.seeds, help=f"of each task ({FULL.seeds})")
    parser.add_argument(
        "--programs",
        type=int,
        choices=range(FULL.round, 1001),
        metavar="N",
        default=FULL.trials,
        help=f"measured by each system for each task ({FULL.trials})",
    )
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no task after that; rerun for the others")
    parser.add_argument("--force", action="store_true", help="measure all anew")
    parser.add_argument("--model", type=Path, help="the folder of a model that reads tokens; else the one that comes with TCL")
    given = parser.parse_args()
    try:
        if given.smallest:
            run_smallest()
            return
        size = QUICK if given.quick else replace(FULL, per_operator=given.tasks, seeds=given.seeds, trials=given.programs)
        command = " ".join([COMMAND, *sys.argv[1:]])
        run(
            size,
            command,
            given.model,
            datasets.prepared(),
            lambda: shipped(Reference.pooled),
            lambda setup: setup,
            given.minutes,
            given.force,
        )
    except TclError as error:
        sys.exit(f"search: {error}")


def run_smallest() -> None:
    from _smallest import reference

    fast = Protocol(repeats=1, max_repeats=1, min_repeat_ms=0.1, max_number=1, threads=1)
    few = reference()
    run(SMALLEST, f"{COMMAND} --smallest", None, few, few.pooled, lambda setup: replace(setup, protocol=fast))


if __name__ == "__main__":
    main()

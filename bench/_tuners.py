"""The systems that ``bench/tune.py`` compares: each measures a number of programs of a network's tasks and keeps the best.

Our systems share the tuner's loop and budget; their names say what differs.  MetaSchedule's use its own loop and gradient
scheduler, in rounds of eight like ours (its 64 would give a fourth of the tasks all trials), with its own builder and runner
or with our worker.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tcl_core.compat import load_intrinsics, make_target, meta_schedule, quiet_compiler
from tcl_core.measure.job import Setup
from tcl_core.measure.runner import Runner
from tcl_core.models.cost_model import CostModel
from tcl_core.params import Graph
from tcl_core.programs.graph import AS_GIVEN, PREPARED
from tcl_core.tuning.database import Shelf
from tcl_core.tuning.measuring import module_builder, worker_runner
from tcl_core.tuning.network import tunables_of
from tcl_core.tuning.schedules import SearchSettings
from tcl_core.tuning.transfer import Donors
from tcl_core.tuning.tuner import Tuner

ROUND = 8
BUILD_S = 120  # on a slow machine MetaSchedule's own 30 pass before its building process has imported TVM
CHAMPION = "champion"
TENSET, WORLD = "tenset-mlp", "world-model"  # the champion's rivals


@dataclass(frozen=True)
class Given:
    """What a system gets: the fused network, the champion, its rivals by their names in the catalogue, donors' databases, the machine,
    and settings of MetaSchedule's evolutionary search that differ from its own.
    """

    fused: Any
    setup: Setup
    hardware: Sequence[float]
    champion: CostModel
    rivals: Mapping[str, CostModel]
    donors: Donors | None
    trials: int
    seed: int
    evolution: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Spent:
    """What a system measured and found.

    curve    [programs measured, seconds since its start, best known milliseconds of the network]
    failed   programs that did not run
    winners  a database of each task's best program
    """

    curve: list[list[float]] = field(default_factory=list)
    failed: int = 0
    winners: Any = None

    def note(self, trials: int, seconds: float, network_s: float) -> None:
        """Add a point to the curve if the network's time is known and has improved."""
        if math.isfinite(network_s) and (not self.curve or network_s * 1e3 < self.curve[-1][2]):
            self.curve.append([trials, seconds, network_s * 1e3])


@dataclass(frozen=True)
class System:
    """How a system tunes, how the network's graph is prepared for it, and which of the champion's rivals it needs."""

    tune: Callable[[Given], Spent]
    graph: Graph = PREPARED
    rival: str | None = None


# --- ours ---


def ours(
    model: str | None = CHAMPION,
    explore: float | None = None,
    lean: float = SearchSettings.lean,
    searches: bool = True,
    shares: bool = True,
    cold: bool = True,
) -> Callable[[Given], Spent]:
    """TCL's tuner, with the champion, one of its rivals, or no ``model`` (from scratch).

    explore   1 draws all programs at random
    lean      0 draws uniformly over the design space, whatever fits in registers
    searches  without it only donors' programs are measured
    shares    tasks of the network lend programs to one another, but not where ``explore`` is given
    cold      without it all programs are timed with warm weights
    """

    def tune(given: Given) -> Spent:
        settings = SearchSettings(seed=given.seed, lean=lean, **({} if explore is None else {"explore": explore}))
        ranking = given.champion if model == CHAMPION else given.rivals[model] if model else None
        database, began, spent = meta_schedule().database.MemoryDatabase(), time.monotonic(), Spent()
        with quiet_compiler(), Runner(given.setup) as runner:
            tunables = tunables_of(given.fused, given.setup.target)
            tunables = tunables if cold else [replace(tunable, cold=False) for tunable in tunables]
            tuner = Tuner(
                tunables,
                ranking,
                given.hardware,
                given.setup.target,
                given.trials,
                settings,
                database,
                given.donors,
                searches,
                shares and explore is None,
            )

            def note(outcome: Any) -> None:
                """Called for each program once its whole turn is measured, so the network's time includes all of the turn."""
                spent.failed += not outcome.latencies_s
                spent.note(given.trials - tuner.budget.left, time.monotonic() - began, tuner.budget.network_s())

            tuner.run(runner, note)
        spent.winners = tuner.winners()
        return spent

    return tune


def drawn(lean: float = 0.0) -> Callable[[Given], Spent]:
    """Programs drawn at random, with our engine and budget."""
    return ours(model=None, explore=1.0, lean=lean)


# --- MetaSchedule's ---


def stock(tenset: bool = False, our_engine: bool = False) -> Callable[[Given], Spent]:
    """MetaSchedule's evolutionary search and gradient scheduler, with its XGBoost model or a pretrained TenSet MLP."""

    def tune(given: Given) -> Spent:
        load_intrinsics(given.setup.target["kind"])
        with tempfile.TemporaryDirectory(prefix="tcl-stock-") as folder, _quiet(), _engine(given, our_engine, folder) as engine:
            began, callbacks = time.monotonic(), meta_schedule().measure_callback
            extracted = meta_schedule().relax_integration.extract_tasks(given.fused, make_target(given.setup.target), {})
            tasks, weights = meta_schedule().relax_integration.extracted_tasks_to_tune_contexts(
                extracted,
                folder,
                strategy=meta_schedule().search_strategy.EvolutionarySearch(**given.evolution),
                seed=given.seed + 1,
                num_threads="logical",
            )
            curve = _Curve(weights, began)
            database = meta_schedule().tune_tasks(
                tasks=tasks,
                task_weights=weights,
                work_dir=folder,
                max_trials_global=given.trials,
                num_trials_per_iter=ROUND,
                database="memory",
                cost_model=_tenset_ranker(given.rivals[TENSET]) if tenset else "xgb",
                measure_callbacks=[callbacks.AddToDatabase(), callbacks.UpdateCostModel(), curve.callback(), *engine.pop("clean_up")],
                **engine,
            )
            winners = _best_of_each(database, [each.dispatched[0] for each in extracted], given.setup.target)
        return replace(curve.spent(), winners=winners)

    return tune


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the compiler, and the table of all tasks that MetaSchedule prints after each round."""
    logging.disable(logging.WARNING)
    try:
        with quiet_compiler():
            yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set these environment variables for processes that are started within."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _engine(given: Given, ours_: bool, below: str) -> Iterator[dict[str, Any]]:
    """Builder, runner and the callbacks that remove their files; ``below`` is a folder for what they build."""
    if not ours_:
        builder = meta_schedule().builder.LocalBuilder(timeout_sec=BUILD_S)
        with _environment(TVM_NUM_THREADS=str(given.setup.protocol.threads)):  # TVM's runner takes half of the CPUs unless told
            yield {"builder": builder, "runner": "local", "clean_up": [meta_schedule().measure_callback.RemoveBuildArtifact()]}
        return
    with Runner(given.setup) as runner:
        cold = any(tunable.cold for tunable in tunables_of(given.fused, given.setup.target))
        yield {"builder": module_builder(below=below), "runner": worker_runner(runner, cold=cold), "clean_up": []}


class _Curve:
    """Watches MetaSchedule's measurements."""

    def __init__(self, weights: Sequence[float], began: float) -> None:
        self._weights, self._began, self._failed, self._measured = weights, began, 0, 0
        self._told: list[tuple[int, float, int, float]] = []  # programs measured, seconds, task, its fastest of that round

    def callback(self) -> Any:
        from tvm.ir.utils import derived_object

        told = self.told

        @derived_object
        class Watch(meta_schedule().measure_callback.PyMeasureCallback):
            def apply(self, scheduler: Any, task: int, candidates: Any, built: Any, results: Any) -> None:
                told(task, [_seconds(result) for result in results])

        return Watch()

    def told(self, task: int, seconds: Sequence[float]) -> None:
        self._measured += len(seconds)
        self._failed += sum(map(math.isinf, seconds))
        self._told.append((self._measured, time.monotonic() - self._began, task, min(seconds, default=math.inf)))

    def spent(self) -> Spent:
        """A curve whose network time sums the tasks of which any program ever ran; all others keep TVM's own schedules."""
        spent, bests = Spent(failed=self._failed), {task: math.inf for _, _, task, best in self._told if math.isfinite(best)}
        for measured, seconds, task, best in self._told:
            bests |= {task: min(bests[task], best)} if task in bests else {}
            spent.note(measured, seconds, sum(self._weights[each] * found for each, found in bests.items()) if bests else math.inf)
        return spent


def _seconds(result: Any) -> float:
    return statistics.fmean(map(float, result.run_secs)) if result.run_secs and not result.error_msg else math.inf


def _best_of_each(database: Any, modules: Sequence[Any], target: dict[str, Any]) -> Any:
    """A database of each task's fastest record, by the mean, as MetaSchedule itself compares."""
    best = meta_schedule().database.MemoryDatabase()
    for module in modules:
        programs = [(trace, seconds) for trace, seconds in Shelf(database, module, make_target(target)).programs() if seconds]
        if programs:
            trace, seconds = min(programs, key=lambda program: statistics.fmean(program[1]))
            Shelf(best, module, make_target(target)).put(trace, seconds)
    return best


def _tenset_ranker(model: CostModel) -> Any:
    """TenSet's MLP as MetaSchedule's cost model: it reads per-store features of the lowered candidates, and does not learn while tuning."""
    from tvm.ir.utils import derived_object

    from tcl_core.features.batches import Samples

    ms = meta_schedule()
    extractor = ms.feature_extractor.PerStoreFeature(extract_workload=True)

    @derived_object
    class TensetRanker(ms.cost_model.PyCostModel):
        def predict(self, context: Any, candidates: list[Any]) -> np.ndarray:
            rows = [found.numpy().astype(np.float32) for found in extractor.extract_from(context, candidates)]
            padded = np.zeros((len(rows), max([1, *map(len, rows)]), rows[0].shape[1]), dtype=np.float32)
            for place, found in zip(padded, rows, strict=True):
                place[: len(found)] = found
            samples = Samples(
                features=padded,
                lengths=np.array([len(found) for found in rows], dtype=np.int32),
                tasks=np.zeros(len(rows), dtype=np.int32),
                latencies_s=np.full(len(rows), np.inf),
                holds="per-store features",
            )
            return model.predict(samples).astype("float64")

        def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
            """It came trained."""

        def load(self, path: str) -> None:
            """It came trained."""

        def save(self, path: str) -> None:
            """It came trained."""

    return TensetRanker()


SYSTEMS = {
    "MetaSchedule": System(stock()),
    "MetaSchedule, our engine": System(stock(our_engine=True)),
    "TenSet MLP": System(stock(tenset=True), rival=TENSET),
    "TenSet MLP, our engine": System(stock(tenset=True, our_engine=True), rival=TENSET),
    "random": System(drawn()),
    "from scratch": System(ours(model=None)),
    "TCL": System(ours()),
    "TCL, world model": System(ours(WORLD), rival=WORLD),
    "TCL, uniform draws": System(ours(lean=0.0)),
    "random, in registers": System(drawn(SearchSettings.lean)),
    "TCL, warm weights": System(ours(cold=False)),
    "TCL, tasks apart": System(ours(shares=False)),
    "Transfer-Tuning": System(ours(searches=False)),
    "TCL, warm start": System(ours()),
    "random, graph as given": System(drawn(), AS_GIVEN),
    "random, not simplified": System(drawn(), replace(PREPARED, simplify=False)),
    "random, not packed": System(drawn(), replace(PREPARED, pack=False)),
    "TCL, without Winograd": System(ours(), replace(PREPARED, winograd=False)),
    "TCL, not rounded up": System(ours(), replace(PREPARED, round_up=False)),
    "random, C library's exponentials": System(drawn(), replace(PREPARED, vector_math=False)),
}

"""A trained model and TCL's search as MetaSchedule components, for any of its entry points, with its own builder and runner:

    ms.tune_tir(mod, target, ..., cost_model=cost_model("host-avx512"))
    ms.tune_tir(mod, target, ..., strategy=search_strategy("host-avx512"))

Both learn while tuning.  The cost model ranks the candidates of MetaSchedule's own search, in any design space, each of
which that search must replay first.  The search strategy proposes programs of the design space that the model was trained
in, and replays only its proposals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tcl_core.compat import hand_on_errors, load_intrinsics, load_tvm, meta_schedule, structural_key
from tcl_core.features.batches import Samples
from tcl_core.features.tokens import program_tokens
from tcl_core.programs.primitives import trace_primitives
from tcl_core.programs.tasks import describe, has_blocks, operator_type
from tcl_core.programs.workload import Workload, read_workload
from tcl_core.trained import Model, Trained, find_trained
from tcl_core.tuning.database import Shelf
from tcl_core.tuning.ranking import TaskRanking
from tcl_core.tuning.schedules import ScheduleSearch, SearchSettings
from tcl_core.tuning.tuner import readings_of

USUAL = SearchSettings()


def cost_model(source: Model) -> Any:
    """Return a MetaSchedule ``CostModel`` that ranks candidates by a trained model and by the measurements of their task.

    source  a platform or its name in the registry, for the champion; the folder of a saved model; or a model with its hardware

    It reads each candidate's trace literally, whatever search made it.  Raises as ``find_trained``; while tuning, UsageError
    for a target whose features differ from those of the model's hardware.
    """
    trained, ms = _ready(source), meta_schedule()
    from tvm.ir.utils import derived_object

    @derived_object
    class TclCostModel(ms.cost_model.PyCostModel):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tasks: dict[tuple[str, str], tuple[Workload, TaskRanking]] = {}

        def predict(self, context: Any, candidates: list[Any]) -> np.ndarray:
            """(N,) speeds above 0, since MetaSchedule's evolution clips scores at 0; all 1 for a task without loops to schedule."""
            if not has_blocks(context.mod):
                return np.ones(len(candidates))
            workload, ranking = self._task(context)
            return ranking.speeds(self._samples(workload, candidates))

        def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
            if candidates and has_blocks(context.mod):
                workload, ranking = self._task(context)
                ranking.tell(self._samples(workload, candidates), [_latency_s(result) for result in results])

        def _task(self, context: Any) -> tuple[Workload, TaskRanking]:
            key = structural_key(context.mod), str(context.target)
            if key not in self.tasks:
                trained.check_target(context.target)
                self.tasks[key] = workload_of(context.task_name, context.mod), TaskRanking(trained.model)
            return self.tasks[key]

        def _samples(self, workload: Workload, candidates: list[Any]) -> Samples:
            return samples_of_traces([candidate.sch.trace for candidate in candidates], workload, trained.hardware_vector)

        def load(self, path: str) -> None:
            """Nothing to load: the model came trained."""

        def save(self, path: str) -> None:
            """Nothing to save, as for ``load``."""

    return TclCostModel()


def workload_of(name: str, module: Any) -> Workload:
    """The task's ``Workload``, from which its tokens are made; ``module`` is not scheduled yet, ``name`` may tell its operator."""
    flops = float(load_tvm().s_tir.analysis.estimate_tir_flops(module))
    return read_workload(operator_type(name, module), flops, module)


def samples_of_traces(traces: Sequence[Any], workload: Workload, hardware: Sequence[float]) -> Samples:
    """``Samples`` of N traces of one task, each read literally, whatever search made it; latencies are inf (not measured)."""
    none = np.zeros((1, 0), dtype=np.int32)
    rows = [program_tokens(trace_primitives(trace, workload), workload, hardware, none)[0] for trace in traces]
    length = max(len(row) for row in rows)
    tokens = np.stack([np.pad(row, ((0, length - len(row)), (0, 0))) for row in rows])
    return Samples(
        features=tokens,
        lengths=np.array([len(row) for row in rows], dtype=np.int32),
        tasks=np.zeros(len(rows), dtype=np.int32),
        latencies_s=np.full(len(rows), np.inf),
    )


def _latency_s(result: Any) -> float:
    """Median over the repeats, seconds; inf for a program that failed."""
    if result.error_msg or not result.run_secs:
        return math.inf
    return float(np.median([float(s) for s in result.run_secs]))


def search_strategy(source: Model, settings: SearchSettings = USUAL) -> Any:
    """Return a MetaSchedule ``SearchStrategy`` that evolves decision vectors and replays only its proposals.

    source  as for ``cost_model``

    It learns from measurements, and from the records of the task that the database holds when tuning begins.  It searches
    TCL's design space (``DesignSpace``), in which its model was trained, and ignores the context's; its seed is the
    context's.  It never asks MetaSchedule's cost model: pass ``cost_model="none"``, so that none is trained for nothing.
    Raises as ``find_trained``, and UsageError, when tuning begins, for a target whose features differ from those of the
    model's hardware.
    """
    trained, ms = _ready(source), meta_schedule()
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    @derived_object
    class TclSearch(ms.search_strategy.PySearchStrategy):  # type: ignore[name-defined]
        """The search of one task: MetaSchedule calls ``clone`` for each task that it tunes."""

        def __init__(self) -> None:
            super().__init__()
            self.search: ScheduleSearch | None = None  # stays None for a task without loops to schedule
            self.per_round, self.left = 0, 0

        def _initialize_with_tune_context(self, context: Any) -> None:
            trained.check_target(context.target)
            self.name, self.module, self.target = str(context.task_name), context.mod, context.target
            self.seed = int(context.rand_state)

        def pre_tuning(self, max_trials, num_trials_per_iter, design_spaces, database=None, cost_model=None) -> None:
            self.per_round, self.left = num_trials_per_iter, max_trials
            self.arguments = ArgInfo.from_entry_func(self.module, remove_preproc=True)
            own = replace(settings, seed=self.seed)
            if not has_blocks(self.module):
                return
            self.search = ScheduleSearch(
                describe(self.name, self.module), trained.model, trained.hardware.vector(), dict(self.target.export()), own
            )
            if database is not None:
                self._recall(Shelf(database, self.module, self.target))

        def _recall(self, shelf: Shelf) -> None:
            for candidate, latencies_s in readings_of(self.search, shelf.programs())[0].items():
                self.search.tell(candidate, float(np.median(latencies_s)) if latencies_s else math.inf)

        def post_tuning(self) -> None:
            """Nothing to do: the search object keeps its measurements."""

        def generate_measure_candidates(self) -> list[Any] | None:
            """The next proposals; None when the trials are spent or the design space is exhausted."""
            if self.search is None:
                return None
            schedules = self.search.schedules(min(self.per_round, self.left))
            self.left -= len(schedules)
            return [MeasureCandidate(schedule, self.arguments) for schedule in schedules] or None

        def notify_runner_results(self, measure_candidates: list[Any], results: list[Any]) -> None:
            for candidate, result in zip(self.search.waiting, results, strict=True):
                self.search.tell(candidate, _latency_s(result))

        def clone(self) -> Any:
            return search_strategy(trained, settings)

    return TclSearch()


def _ready(source: Model) -> Trained:
    """Find the model, and prepare TVM: load the intrinsics that MetaSchedule's rules need, and let our errors pass through."""
    trained = find_trained(source)
    load_intrinsics(trained.hardware.code)
    hand_on_errors()
    return trained

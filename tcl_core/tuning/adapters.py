"""The cost model and the search as parts of MetaSchedule, so that any of its tuning entry points can use them.

    with a promoted model:  tune_tir(mod, target, cost_model=ranker(model, hardware), ...)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tcl_core.compat import load_tvm, meta_schedule, structural_key
from tcl_core.features.tokens import program_tokens
from tcl_core.features.batches import Samples
from tcl_core.models.cost_model import CostModel
from tcl_core.programs.primitives import trace_primitives
from tcl_core.programs.tasks import Task, operator_type
from tcl_core.programs.workload import read_workload
from tcl_core.tuning.schedules import ScheduleSearch, SearchSettings


def ranker(model: CostModel, hardware: Sequence[float]) -> Any:
    """A MetaSchedule ``CostModel`` that ranks candidates with a TCL model.

    It reads each candidate's trace literally, whatever search made it, and does not learn while tuning.
    """
    load_tvm()
    ms = meta_schedule()
    from tvm.ir.utils import derived_object

    @derived_object
    class TclRanker(ms.cost_model.PyCostModel):
        def __init__(self) -> None:
            super().__init__()
            self.workloads: dict[str, Any] = {}

        def predict(self, context: Any, candidates: list[Any]) -> np.ndarray:
            workload = self._workload(context)
            none = np.zeros((1, 0), dtype=np.int32)
            rows = [
                program_tokens(trace_primitives(c.sch.trace, workload), workload, hardware, none)[0] for c in candidates
            ]
            return model.predict(_as_samples(rows)).astype("float64")

        def _workload(self, context: Any) -> Any:
            key = structural_key(context.mod)
            if key not in self.workloads:
                flops = float(load_tvm().s_tir.analysis.estimate_tir_flops(context.mod))
                self.workloads[key] = read_workload(operator_type(context.task_name, context.mod), flops, context.mod)
            return self.workloads[key]

        def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
            """The model came trained; what tuning measures can join the next collection."""

        def load(self, path: str) -> None:
            """Nothing to load: the model came with the ranker."""

        def save(self, path: str) -> None:
            """Nothing to save, as for ``load``."""

    return TclRanker()


def _as_samples(rows: Sequence[np.ndarray]) -> Samples:
    length = max(len(row) for row in rows)
    tokens = np.stack([np.pad(row, ((0, length - len(row)), (0, 0))) for row in rows])
    return Samples(
        tokens=tokens,
        lengths=np.array([len(row) for row in rows], dtype=np.int32),
        tasks=np.zeros(len(rows), dtype=np.int32),
        latencies_s=np.full(len(rows), np.inf),
    )


def _latency_s(result: Any) -> float:
    """Median over the repeats, seconds; inf for a program that failed."""
    if result.error_msg or not result.run_secs:
        return math.inf
    return float(np.median([float(s) for s in result.run_secs]))


def decision_search(
    task: Task, model: CostModel | None, hardware: Sequence[float], target: dict[str, Any], settings: SearchSettings
) -> Any:
    """A MetaSchedule ``SearchStrategy`` that evolves decision vectors of one task and replays only what it proposes.

    It learns from what is measured, on top of the model's scores; from that alone where ``model`` is None.
    """
    load_tvm()
    ms = meta_schedule()
    from tvm.ir.utils import derived_object
    from tvm.s_tir.meta_schedule.arg_info import ArgInfo
    from tvm.s_tir.meta_schedule.search_strategy import MeasureCandidate

    @derived_object
    class TclSearch(ms.search_strategy.PySearchStrategy):
        def __init__(self) -> None:
            super().__init__()
            self.search = ScheduleSearch(task, model, hardware, target, settings)
            self.per_round, self.left = 0, 0

        def _initialize_with_tune_context(self, context: Any) -> None:
            """All that the search needs came with the task."""

        def pre_tuning(self, max_trials, num_trials_per_iter, design_spaces, database=None, cost_model=None) -> None:
            self.per_round, self.left = num_trials_per_iter, max_trials

        def post_tuning(self) -> None:
            """What was measured stays with the search object."""

        def generate_measure_candidates(self) -> list[Any] | None:
            """The next proposals; None when the trials are spent or the design space is exhausted."""
            schedules = self.search.schedules(min(self.per_round, self.left))
            self.left -= len(schedules)
            arguments = ArgInfo.from_entry_func(self.search.space.module, remove_preproc=True)
            return [MeasureCandidate(schedule, arguments) for schedule in schedules] or None

        def notify_runner_results(self, measure_candidates: list[Any], results: list[Any]) -> None:
            for candidate, result in zip(self.search.waiting, results, strict=True):
                self.search.tell(candidate, _latency_s(result))

        def clone(self) -> Any:
            return decision_search(task, model, hardware, target, settings)

    return TclSearch()

"""Tune a whole network with a cost model, build it, check it against PyTorch, and time all three."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from tcl_core.compat import calling_thread_pinned, load_tvm, make_target, meta_schedule, quiet_compiler, set_threads
from tcl_core.errors import DataError, PlatformError, UsageError
from tcl_core.measure.job import Protocol, Setup
from tcl_core.measure.pool import Runner
from tcl_core.models.cost_model import CostModel
from tcl_core.progress import progress
from tcl_core.programs.graph import Graph, apply_database, fuse
from tcl_core.programs.network_files import median_ms
from tcl_core.programs.networks import import_network
from tcl_core.programs.tasks import describe
from tcl_core.tuning.adapters import SearchSettings, decision_search, ranker
from tcl_core.tuning.measuring import module_builder, worker_runner

# A tuned network whose output differs by more, relative to the output's magnitude, is refused.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Tuned:
    """Latencies of one inference in milliseconds (medians); difference relative to the reference's magnitude.

    pytorch_ms is None for a network that PyTorch did not export; then the untuned network is the reference.
    """

    trials: int
    tasks: int
    untuned_ms: float
    tuned_ms: float
    pytorch_ms: float | None
    difference: float
    search_s: float


def tune_network(
    network: str, graph: Graph, model: CostModel, hardware: Sequence[float], setup: Setup, trials: int, seed: int
) -> Tuned:
    """Spend ``trials`` measured programs on the tasks of the network, its graph so prepared, and time the result.

    Raises PlatformError if the tuned network computes something else than PyTorch.
    """
    target = make_target(setup.target)
    with quiet_compiler():
        imported = import_network(network, setup.protocol.threads)
        module, inputs = fuse(imported.module, target, graph), imported.inputs
    start = time.monotonic()
    database, tasks = search_tasks(module, model, hardware, setup, trials, seed)
    search_s = time.monotonic() - start
    applied = apply_database(module, target, database)
    with _as_measured(setup.protocol):
        untuned, untuned_ms = _build_and_time(module, target, inputs)
        output, tuned_ms = _build_and_time(applied, target, inputs)
    difference = _difference(output, untuned if imported.output is None else imported.output)
    if difference > TOLERANCE:
        raise PlatformError(f"the tuned {network} differs from the reference by {difference:.2g} of its magnitude; not used")
    return Tuned(trials, tasks, untuned_ms, tuned_ms, imported.pytorch_ms, difference, search_s)


@contextmanager
def _as_measured(protocol: Protocol) -> Iterator[None]:
    """TVM's runtime with the threads that programs were measured with, each on a core of its own where they were."""
    set_threads(protocol.threads, protocol.pin_threads)
    with calling_thread_pinned() if protocol.pin_threads else nullcontext():
        yield


def search_tasks(
    module: Any, model: CostModel, hardware: Sequence[float], setup: Setup, trials: int, seed: int
) -> tuple[Any, int]:
    """A MetaSchedule database with the best programs found for the tasks of a fused module, and their number."""
    ms = meta_schedule()
    target = make_target(setup.target)
    extracted = ms.relax_integration.extract_tasks(module, target, {})
    contexts = [_context(e, model, hardware, setup.target, seed + n) for n, e in enumerate(extracted)]
    database = ms.database.MemoryDatabase()
    callbacks = [ms.measure_callback.AddToDatabase(), ms.measure_callback.UpdateCostModel()]
    with (
        Runner(setup) as runner,
        progress("tuning", trials) as shown,
        tempfile.TemporaryDirectory() as work_dir,
        quiet_compiler(),
        _errors_as_raised(),
    ):
        ms.tune.tune_tasks(
            tasks=contexts,
            task_weights=[float(e.weight) for e in extracted],
            work_dir=work_dir,
            max_trials_global=trials,
            num_trials_per_iter=_trials_per_round(trials, len(contexts)),
            builder=module_builder(work_dir),
            runner=worker_runner(runner, lambda outcome: shown.advance(_short(outcome))),
            database=database,
            cost_model=ranker(model, hardware),
            measure_callbacks=callbacks,
            task_scheduler=ms.task_scheduler.GradientBased(seed=max(1, seed)),
        )
    return database, len(contexts)


@contextmanager
def _errors_as_raised() -> Iterator[None]:
    """What a callback raises for the user, and Ctrl-C, pass through TVM as they are; else all would be RuntimeError."""
    from tvm_ffi import register_error

    for kind in (KeyboardInterrupt, SystemExit, UsageError, DataError, PlatformError):
        register_error(kind.__name__, kind)
    try:
        yield
    except SystemExit as end:  # TVM made text of its code
        raise SystemExit(int(str(end))) from None


def _trials_per_round(trials: int, tasks: int) -> int:
    """About two rounds per task, of four programs or more, as each costs a search; one round must reach all tasks."""
    return min(max(4, trials // (2 * tasks)), max(1, trials // tasks))


def _short(outcome: Any) -> str:
    return f"{min(outcome.latencies_s) * 1e3:.3f} ms" if outcome.latencies_s else outcome.error


def _context(extracted: Any, model: CostModel, hardware: Sequence[float], target: dict[str, Any], seed: int) -> Any:
    ms = meta_schedule()
    module = extracted.dispatched[0]
    task = describe(extracted.task_name, module)
    quiet = logging.getLogger("tcl.tuning.metaschedule")
    quiet.setLevel(logging.CRITICAL)
    space = ms.space_generator.PostOrderApply(
        sch_rules=ms.ScheduleRule.create("llvm"),
        postprocs=ms.Postproc.create("llvm"),
        mutator_probs=ms.Mutator.create("llvm"),
    )
    return ms.TuneContext(
        mod=module,
        target=make_target(target),
        space_generator=space,
        search_strategy=decision_search(task, model, hardware, target, SearchSettings(seed=seed)),
        task_name=task.name,
        rand_state=seed + 1,
        num_threads=1,
        logger=quiet,
    )


def _build_and_time(module: Any, target: Any, inputs: list[np.ndarray]) -> tuple[np.ndarray, float]:
    """Compile a Relax module, run it; its first output and median milliseconds."""
    tvm = load_tvm()
    machine = tvm.relax.VirtualMachine(tvm.compile(module, target), tvm.cpu())
    arguments = [tvm.runtime.tensor(array) for array in inputs]
    output = machine["main"](*arguments)
    milliseconds = median_ms(lambda: machine["main"](*arguments))
    first = output if isinstance(output, tvm.runtime.Tensor) else output[0]
    return first.numpy(), milliseconds


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))

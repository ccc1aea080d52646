"""Tune a whole network with a cost model, build it, check it against PyTorch, and time all three."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core.compat import calling_thread_pinned, load_tvm, make_target, quiet_compiler, set_threads
from tcl_core.errors import PlatformError
from tcl_core.measure.job import Protocol, Setup
from tcl_core.measure.pool import Runner
from tcl_core.models.cost_model import CostModel
from tcl_core.progress import progress
from tcl_core.programs.graph import Graph, apply_database, fuse
from tcl_core.programs.network_files import median_ms
from tcl_core.programs.networks import import_network
from tcl_core.programs.tasks import describe, fused_tasks
from tcl_core.tuning.database import open_database
from tcl_core.tuning.schedules import SearchSettings
from tcl_core.tuning.transfer import Donors
from tcl_core.tuning.tuner import Tunable, Tuner

# A tuned network whose output differs by more, relative to the output's magnitude, is refused.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Tuned:
    """Latencies of one inference in milliseconds (medians); difference relative to the reference's magnitude.

    pytorch_ms is None for a network that PyTorch did not export; then the untuned network is the reference.
    donated are the tasks that programs of other networks fit.
    """

    trials: int
    tasks: int
    untuned_ms: float
    tuned_ms: float
    pytorch_ms: float | None
    difference: float
    search_s: float
    donated: int = 0


def tune_network(
    network: str,
    graph: Graph,
    model: CostModel | None,
    hardware: Sequence[float],
    setup: Setup,
    trials: int,
    seed: int,
    folder: Path | None = None,
    donors: Donors | None = None,
) -> Tuned:
    """Spend ``trials`` measured programs on the tasks of the network, its graph so prepared, and time the result.

    With a ``folder`` what is measured is kept there as a MetaSchedule database, round by round, and what it holds of an
    earlier run counts among the trials.  Without a model the search learns from its own measurements alone.  Programs of
    ``donors`` that fit a task are its first trials.
    Raises PlatformError if the tuned network computes something else than PyTorch.
    """
    target = make_target(setup.target)
    with quiet_compiler():
        imported = import_network(network, setup.protocol.threads)
        module, inputs = fuse(imported.module, target, graph), imported.inputs
    start = time.monotonic()
    database, tasks, donated = search_tasks(module, model, hardware, setup, trials, seed, folder, donors)
    search_s = time.monotonic() - start
    applied = apply_database(module, target, database)
    with _as_measured(setup.protocol):
        untuned, untuned_ms = _build_and_time(module, target, inputs)
        output, tuned_ms = _build_and_time(applied, target, inputs)
    difference = _difference(output, untuned if imported.output is None else imported.output)
    if difference > TOLERANCE:
        raise PlatformError(f"the tuned {network} differs from the reference by {difference:.2g} of its magnitude; not used")
    return Tuned(trials, tasks, untuned_ms, tuned_ms, imported.pytorch_ms, difference, search_s, donated)


@contextmanager
def _as_measured(protocol: Protocol) -> Iterator[None]:
    """TVM's runtime with the threads that programs were measured with, each on a core of its own where they were."""
    set_threads(protocol.threads, protocol.pin_threads)
    with calling_thread_pinned() if protocol.pin_threads else nullcontext():
        yield


def search_tasks(
    module: Any,
    model: CostModel | None,
    hardware: Sequence[float],
    setup: Setup,
    trials: int,
    seed: int,
    folder: Path | None = None,
    donors: Donors | None = None,
    searches: bool = True,
) -> tuple[Any, int, int]:
    """A MetaSchedule database with the best program found for each task of a fused module, and the number of tasks: all of
    them, and those that programs of ``donors`` fit.  Without ``searches`` only those programs are measured.
    """
    with quiet_compiler():
        tunables, settings = tunables_of(module, setup.target), SearchSettings(seed=seed)
        tuner = Tuner(tunables, model, hardware, setup.target, trials, settings, open_database(folder), donors, searches)
    with Runner(setup) as runner, progress("tuning", tuner.budget.left) as shown, quiet_compiler():
        tuner.run(runner, lambda outcome: shown.advance(f"{tuner.said()}, {_short(outcome)}"))
    return tuner.winners(), len(tunables), tuner.donated_tasks()


def tunables_of(module: Any, target: dict[str, Any]) -> list[Tunable]:
    """The tasks of a fused module."""
    extracted = fused_tasks(module, make_target(target))
    return [Tunable(describe(each.task_name, each.dispatched[0]), float(each.weight), each.dispatched[0]) for each in extracted]


def _short(outcome: Any) -> str:
    return f"{min(outcome.latencies_s) * 1e3:.3f} ms" if outcome.latencies_s else outcome.error


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

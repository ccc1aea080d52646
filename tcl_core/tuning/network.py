"""Tune a whole network with a cost model, build it, check it against PyTorch, and time it beside PyTorch."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core.checked import read_json, write_json
from tcl_core.compat import make_target, quiet_compiler, structural_key
from tcl_core.errors import PlatformError, TclError, UsageError, last_line
from tcl_core.files import shown
from tcl_core.measure.job import Setup
from tcl_core.measure.runner import Runner
from tcl_core.models.cost_model import CostModel
from tcl_core.outputs import difference
from tcl_core.platforms import host_fields, kind_measured
from tcl_core.progress import progress, say
from tcl_core.programs.graph import Graph, apply_database, fixed_shapes, fuse
from tcl_core.programs.networks import import_network
from tcl_core.programs.tasks import describe, fused_tasks
from tcl_core.programs.weights import is_large
from tcl_core.sandbox import scratch_folder
from tcl_core.tuning import latency
from tcl_core.tuning.coldness import is_cold, own_cache_bytes
from tcl_core.tuning.database import open_database
from tcl_core.tuning.library import CURVE, EXAMPLE, LIBRARY, TOLERANCE, by_task, database_of, export, without_spoilers, write_databases
from tcl_core.tuning.schedules import SearchSettings
from tcl_core.tuning.transfer import Donors
from tcl_core.tuning.tuner import TaskTime, Tunable, Tuner

# Programs of a task to try in the network before the task is left to TVM.
ALTERNATIVES = 3
KEPT_S = 2.0  # how often the search's curve is written down
PYTORCH, ONNX, UNTUNED = "PyTorch", "ONNX's reference evaluator", "the untuned network"
SLOW_MS = 3e3  # an untuned network that takes longer is not run once more to time it


@dataclass(frozen=True)
class Tuned:
    """A tuned network: median milliseconds of one inference (``*_ms``), and its outputs' difference relative to the reference's magnitude.

    pytorch_ms   PyTorch eager's; None where it did not run, as for an ONNX file
    reference    whose outputs they are compared with: PyTorch's, those of ``ONNX`` or, where that cannot run a file, the untuned network's
    compile_ms   torch.compile's; None where it did not run
    task_times   the result of each task
    left_out     tasks left to TVM: with their best programs the network could not be built, or computed something else
    compared     ``latency.Latencies`` as plain data
    donated      tasks that programs of other networks fit
    search_s     of all runs that the search took
    curve        [programs measured, seconds of the search, milliseconds of the network as the sum of its tasks' best programs],
                 each time that sum falls; begins when each task has a program that ran
    """

    trials: int
    tasks: int
    untuned_ms: float
    tuned_ms: float
    pytorch_ms: float | None
    difference: float
    search_s: float
    compile_ms: float | None = None
    task_times: Sequence[TaskTime] = ()
    left_out: int = 0
    compared: Mapping[str, Any] = field(default_factory=dict)
    donated: int = 0
    curve: Sequence[tuple[int, float, float]] = ()
    reference: str = PYTORCH


def tune_network(
    network: str,
    graph: Graph,
    model: CostModel | None,
    hardware: Sequence[float],
    setup: Setup,
    trials: int | None,
    seed: int,
    folder: Path | None = None,
    out: Path | None = None,
    minutes: float | None = None,
    donors: Donors | None = None,
) -> Tuned:
    """Prepare a network by ``graph``, tune its tasks with ``trials`` measured programs, or for ``minutes``, and time the result.

    ``folder`` keeps the measurements as a MetaSchedule database, round by round; those of an earlier run count as trials.
    Without a model the search learns from its own measurements alone.  Programs of ``donors`` that fit a task are its first
    trials.  ``out`` is a folder for the tuned library, for inputs with the reference's outputs and, given a ``folder``, for the
    databases of ``write_databases``.
    Raises PlatformError before any search if TVM cannot build the network or its outputs differ from the reference's, and
    UsageError if the reference's contain NaN, or nothing finite.
    """
    setup.kind.prepare()
    target = make_target(setup.target)
    say(f"reading {shown(network)}, and building it as it is")
    with quiet_compiler():
        imported = import_network(network, setup.protocol.threads)
        with fixed_shapes(imported.module, network):
            module = fuse(imported.module, target, graph)
            tunables = tunables_of(module, setup.target)  # reads all shapes: one that is not fixed raises here
    with scratch_folder("tuned") as scratch:
        workshop = _Workshop(network, module, target, setup, imported.inputs, imported.outputs, Path(scratch))
        workshop.build_untuned()
        curve = _Curve(folder)
        try:
            database, times, donated = search_tasks(
                tunables, model, hardware, setup, trials, seed, folder, minutes, donors, on_trial=curve.add
            )
        finally:
            search_s = curve.keep()
        left_out = workshop.build_tuned(database)
        times = _as_built(times, workshop.kept)
        threads, pin, device = setup.protocol.threads, setup.protocol.pin_threads, setup.kind.device
        compared = latency.compare(network, {"tuned": workshop.tuned}, threads, pin, inputs=imported.inputs, device=device)
        if out is not None:
            if folder is not None:
                write_databases(folder, workshop.kept, out)
            shutil.move(workshop.tuned, out / LIBRARY)
            arrays = {f"input_{number}": array for number, array in enumerate(imported.inputs)}
            np.savez(out / EXAMPLE, **arrays, **{f"output_{number}": array for number, array in enumerate(workshop.expected)})
    return Tuned(
        sum(each.trials for each in times), len(times), workshop.untuned_ms, compared.ms("tuned"), compared.ms("eager"),
        workshop.difference, search_s, compared.ms("compile"), times, left_out, asdict(compared), donated,
        curve.points, _reference(network, imported.outputs),
    )  # fmt: skip


def _reference(network: str, outputs: Sequence[np.ndarray] | None) -> str:
    return UNTUNED if outputs is None else ONNX if network.endswith(".onnx") else PYTORCH


def _as_built(times: Sequence[TaskTime], kept: Sequence[Any]) -> list[TaskTime]:
    """The task times, with latencies of the programs that the network was built with: not always the winners, None where none."""
    built = {structural_key(record.workload.mod): float(record.run_secs[0]) * 1e3 for record in kept}
    return [
        replace(
            time,
            latency_ms=None if time.guessed else built.get(time.key),
            guessed=time.guessed and time.key in built,
            checked=time.checked and built.get(time.key) == time.latency_ms,
        )
        for time in times
    ]


class _Curve:
    """Records how the network became faster during the search, in all runs that it took: ``folder`` keeps it, if there is one."""

    def __init__(self, folder: Path | None) -> None:
        self.points: list[tuple[int, float, float]] = []
        self._file, self._before_s = folder and folder / CURVE, 0.0
        self._began = self._kept = time.monotonic()
        if self._file and self._file.exists():
            with suppress(TclError):  # unreadable: then it is this run's alone
                found = read_json(self._file, "it is begun anew")
                self.points, self._before_s = [tuple(point) for point in found["points"]], found["seconds"]

    def add(self, trials: int, network_s: float) -> None:
        """Add a point if the network is faster than at the last one; ``network_s`` is inf while a task has no program that ran."""
        if math.isfinite(network_s) and (not self.points or network_s * 1e3 < self.points[-1][2]):
            self.points.append((trials, self._seconds(), network_s * 1e3))
        if time.monotonic() > self._kept + KEPT_S:
            self.keep()

    def keep(self) -> float:
        """Write it down, where this is possible; return the seconds of the search so far."""
        self._kept = time.monotonic()
        if self._file and self._file.parent.exists():
            with suppress(TclError):  # a full disk, say: no reason to stop a search
                write_json(self._file, {"seconds": self._seconds(), "points": self.points})
        return self._seconds()

    def _seconds(self) -> float:
        return self._before_s + time.monotonic() - self._began


class _Workshop:
    """Builds a network's libraries and checks their outputs against the reference's, each in a process of its own.

    untuned_ms  latency of the untuned library from one round alone, or its first run if that takes seconds; no comparison uses it
    difference  of the tuned library's outputs from the reference's
    kept        the tuning records that the tuned library is built with, at most one per task
    """

    untuned_ms = difference = math.nan
    kept: Sequence[Any] = ()
    _why = ""  # the latest library is not sound

    def __init__(
        self,
        network: str,
        module: Any,
        target: Any,
        setup: Setup,
        inputs: Sequence[np.ndarray],
        expected: Sequence[np.ndarray] | None,
        folder: Path,
    ) -> None:
        self.network, self.module, self.target, self.setup, self.inputs, self.expected = network, module, target, setup, inputs, expected
        self.untuned, self.tuned = folder / "untuned.so", folder / "tuned.so"

    def build_untuned(self) -> None:
        """Build, check and time the untuned network; call it before the search, so that a network that fails costs no trials."""
        export(self.module, self.target, self.untuned)
        with self._running(self.untuned) as process:
            found, self.untuned_ms = process.outputs, process.first_ms
            if self.untuned_ms < SLOW_MS:
                self.untuned_ms = process.round_ms()
        self.expected = found if self.expected is None else self.expected  # ``UNTUNED``
        # Beside finite values an infinity may be meant, as in a mask, and must be the same in what was tuned.
        if any(np.isnan(array).any() for array in self.expected) or not any(np.isfinite(array).any() for array in self.expected):
            raise UsageError(
                f"{self.network}'s own output on its example input is not finite, so nothing could be compared with it; give it another input"
            )
        if (differs := difference(found, self.expected)) > TOLERANCE:
            raise PlatformError(
                f"what TVM makes of {self.network} differs from the reference by {differs:.2g} of its magnitude, and nothing was searched; "
                "if it was exported while training (with dropout, say), export net.eval(), else report it"
            )

    def build_tuned(self, database: Any) -> int:
        """Build with each task's best program that keeps the network sound; return the number of tasks left without one.

        Raises PlatformError where the network fails without any program too: then none is to blame (a full disk, say).
        """
        tasks = by_task(database.get_all_tuning_records())
        self.kept = [alternatives[0] for alternatives in tasks]
        if not self._is_sound(self.kept):
            self._check_that_none_is_sound()
            self.kept = without_spoilers(tasks, self._is_sound)
            if not self.kept:
                self._check_that_none_is_sound()
        return len(tasks) - len(self.kept)

    def _check_that_none_is_sound(self) -> None:
        if not self._is_sound(()):
            raise PlatformError(
                f"{self.network}, which was built and run before it was tuned, cannot be now ({self._why}); "
                "what was measured is kept: run the same command again"
            )

    def _is_sound(self, records: Sequence[Any]) -> bool:
        try:
            self._apply(records)
            with self._running(self.tuned) as process:
                self.difference = difference(process.outputs, self.expected)
        except PlatformError as error:
            self._why = str(error)
            return False
        self._why = f"its output differs from the reference's by {self.difference:.2g} of its magnitude"
        return self.difference <= TOLERANCE

    def _apply(self, records: Sequence[Any]) -> None:
        try:
            applied = apply_database(self.module, self.target, database_of(records))
        except Exception as error:  # TVM passes on whatever its passes raise
            raise PlatformError(f"TVM cannot apply the chosen programs ({last_line(error)})") from error
        export(applied, self.target, self.tuned)

    def _running(self, library: Path) -> AbstractContextManager[latency.Process]:
        protocol = self.setup.protocol
        return latency.running(library, protocol.threads, protocol.pin_threads, self.inputs, self.setup.kind.device)


def search_tasks(
    tunables: Sequence[Tunable],
    model: CostModel | None,
    hardware: Sequence[float],
    setup: Setup,
    trials: int | None,
    seed: int,
    folder: Path | None = None,
    minutes: float | None = None,
    donors: Donors | None = None,
    searches: bool = True,
    on_trial: Callable[[int, float], Any] = lambda trials, network_s: None,
) -> tuple[Any, list[TaskTime], int]:
    """Tune the tasks of a network (``tunables_of``).

    Returns a MetaSchedule database with each task's best programs, best first; the result of each task; and the number of tasks
    that programs of ``donors`` fit.  Without ``searches`` only those programs are measured.  A task without a program that was
    measured and not found wrong gets a donated one, or the one that the model ranks first; without a model, a random one.

    ``on_trial`` is called with the number of programs measured, and the network's seconds as the sum of its tasks' best
    programs: inf while a task has none.
    """
    with quiet_compiler():
        settings = SearchSettings(seed=seed)
        tuner = Tuner(tunables, model, hardware, setup.target, trials, settings, open_database(folder), donors, searches)
    seconds = None if minutes is None else 60.0 * minutes
    with Runner(setup) as runner, progress("tuning", tuner.budget.left, seconds) as shown, quiet_compiler():

        def told(outcome: Any) -> None:
            shown.advance(f"{tuner.said()}, {_short(outcome)}")
            on_trial(_trials(tuner), tuner.budget.network_s())

        on_trial(_trials(tuner), tuner.budget.network_s())  # what an earlier run measured
        tuner.run(runner, told, math.inf if seconds is None else seconds)
    database, untouched = tuner.winners(ALTERNATIVES), tuner.untouched()
    with progress("choosing programs of tasks that have no measured one", len(untouched)) as shown, quiet_compiler():
        for task in untouched:
            tuner.guess(task, database)
            shown.advance(tuner.tunables[task].task.name)
    return database, tuner.times(), tuner.donated_tasks()


def tunables_of(module: Any, target: dict[str, Any]) -> list[Tunable]:
    """The tasks of a fused module; ``coldness`` decides which are timed with cold weights: none on a device such as a GPU."""
    uses = [(each.task_name, each.dispatched[0], float(each.weight)) for each in fused_tasks(module, make_target(target))]
    near = not kind_measured(target, remote=False).apart
    cold = near and is_cold([(task, times) for _, task, times in uses], own_cache_bytes(host_fields()))
    return [Tunable(describe(name, task), times, task, cold and is_large(task)) for name, task, times in uses]


def _trials(tuner: Tuner) -> int:
    return sum(account.trials for account in tuner.budget.accounts)


def _short(outcome: Any) -> str:
    return f"{min(outcome.latencies_s) * 1e3:.3f} ms" if outcome.latencies_s else outcome.error

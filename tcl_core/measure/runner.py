"""The supervisor: builds programs in several worker processes, times them one by one, never fails because of a program.

Building takes most of the time and one core per program, so workers build a batch in parallel.  Then they time it, one
program after the other, and nothing is built or checked meanwhile, which would use the same cores (``bench/collect.py``
shows what that does to latencies).  Where programs run elsewhere (a GPU, a board), workers build while others time.
A program's repeats are spread over its batch, so that a momentary slowdown hits one repeat of several programs, which
their medians outvote, instead of all repeats of one.

A *sentinel* program runs before and after each batch of timings.  If it is slower than the session's quiet level, the
batch is timed again; if that does not help, its outcomes are marked as disturbed.  A program that times out after such
a reading is tried once more.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from itertools import islice
from types import TracebackType
from typing import Any

from tcl_core.errors import PlatformError
from tcl_core.measure.job import Job, Outcome, Setup
from tcl_core.measure.worker_handle import Died, Failed, WorkerHandle, Late
from tcl_core.measure.remote import answer_s
from tcl_core.measure.sentinel import Watch
from tcl_core.measure.timing import is_worth_repeating
from tcl_core.measure.tracker import count_devices
from tcl_core.measure.worker import PER_WORKER, TOLERANCE
from tcl_core.platforms import threads

RETRIES = 2  # of a disturbed batch
MOST = 128  # programs of a batch, unless there are so many workers that each would build less than two
FUTILE = 3  # attempts in a row without progress, at no program's fault, before giving up
WORKERS_PER_DEVICE = 4  # that build for one remote device and wait for it in turn


class Runner:
    """Measures jobs in child processes.

    Use as a context manager; workers start with the first job.  Raises PlatformError only where workers cannot start
    (a broken installation), keep being killed, or cannot do their work (no remote device, a full disk, nothing builds);
    everything else is an Outcome.

    workers  number of processes; None: one per usable CPU, as far as a GPU's memory holds them, or one to four per remote device
    overlap  build while other programs are timed; None: only where programs run on another device than the builds
    """

    def __init__(self, setup: Setup, workers: int | None = None, overlap: bool | None = None) -> None:
        self.setup = setup
        self._remote = remote = setup.tracker is not None
        self.workers = [WorkerHandle(setup) for _ in range(workers or _workers_for(setup))]
        self._overlap = setup.kind.apart if overlap is None else overlap
        # Each remote worker has a device of its own; all others share this machine's.
        self._device_free = contextlib.nullcontext() if remote else threading.Lock()
        self._watches = {worker: Watch() for worker in self.workers} if remote else dict.fromkeys(self.workers, Watch())
        self._best_s: dict[str, float] = {}
        self._without_reference: set[str] = set()  # tasks whose untuned program fails, or is too slow to wait for
        self._tvm_version = ""
        self._marking = threading.Lock()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for worker in self.workers:
            worker.close()

    @property
    def tvm_version(self) -> str:
        """TVM's version in the workers; empty before the first job."""
        self._tvm_version = self.workers[0].tvm_version or self._tvm_version  # a restarting worker has not reported it yet
        return self._tvm_version

    def measure(self, jobs: Iterable[Job]) -> Iterator[Outcome]:
        """Build, run and time programs; yield an Outcome for each job, in order.  Takes jobs batch by batch."""
        jobs = iter(jobs)
        while todo := list(islice(jobs, _batch_size(len(self.workers)))):
            batch = _Batch(todo)
            try:
                self._complete(batch)
            except PlatformError:
                yield from batch.first_outcomes()  # what was measured is kept
                raise
            self._check_compiler(batch)
            yield from batch.first_outcomes()

    def _check_compiler(self, batch: _Batch) -> None:
        """Raise PlatformError where no program of the batch can be built, nor the sentinel: a compiler is gone, or has nowhere to write.

        Only where programs run on another device: for this CPU a worker compiles in memory.
        """
        outcomes, limits = batch.first_outcomes(), self.setup.limits
        if not self.setup.kind.apart or any(outcome.error != "build" or outcome.disturbed for outcome in outcomes):
            return
        with contextlib.closing(WorkerHandle(self.setup)) as worker, contextlib.suppress(Late, Died):
            worker.launch()  # a new one: the others may have built their sentinel before
            worker.wait_until_ready()
            try:
                worker.ask(self._limit_s(limits.build_s + limits.run_s), "sentinel")
            except Failed as error:
                if self._wants_memory(_failure(error, "build", "")):
                    return
                raise PlatformError(
                    f"none of {len(outcomes)} programs can be built, nor can the sentinel ({error}); look at the compiler, and at "
                    f"the space in {tempfile.gettempdir()}"
                ) from None

    def describe(self) -> dict[str, Any]:
        """A remote device's description of its host, as ``RemoteDevice.describe``.  Raises PlatformError where none answers."""
        worker, why = self.workers[0], ""
        for _ in range(FUTILE):  # after a silent device the tracker offers the next
            worker.launch()
            worker.wait_until_ready()
            try:
                return worker.ask(self._limit_s(0), "describe")
            except (Failed, Late, Died) as error:
                why = str(error) or "too late"
        tracker = self.setup.tracker
        raise PlatformError(f"a device of key '{tracker.key}' at the RPC tracker {tracker.address} does not answer ({why}); start it anew")

    def _complete(self, batch: _Batch) -> None:
        futile = 0
        while missing := batch.missing():
            before = batch.progress
            self._start(len(missing))
            self._work(batch, deque(missing))
            if batch.progress == before:
                batch.end_with_second_best()
            futile = 0 if batch.progress > before else futile + 1
            if futile == FUTILE:
                raise PlatformError(self._futility())

    def _futility(self) -> str:
        if self._remote:
            tracker = self.setup.tracker
            return (
                f"the devices of key '{tracker.key}' at the RPC tracker {tracker.address} fell silent {FUTILE} times before "
                "they could time a program; look at their network, and start their servers anew"
            )
        return (
            f"the measuring processes died {FUTILE} times before they could time a program; "
            "something else on this machine kills them: look at its memory and at the system log"
        )

    def _start(self, most: int) -> None:
        """Start workers for up to ``most`` programs, from this thread: a worker dies with the thread that started it."""
        workers = self.workers[:most]
        for worker in workers:
            worker.launch()
        for worker in workers:
            worker.wait_until_ready()

    def _work(self, batch: _Batch, todo: deque[int]) -> None:
        """Build and time what can be; all that a worker holds when it dies is left to be built and timed again."""
        workers = [worker for worker in self.workers if worker.is_alive]
        if self._overlap:
            self._each(workers, lambda worker: self._build_and_time(worker, batch, todo))
            return
        self._each(workers, lambda worker: self._build(worker, batch, todo))
        timed = {worker: self._time_all(worker, batch) for worker in workers}
        self._each(workers, lambda worker: self._finish_all(worker, batch, timed[worker]))

    def _each(self, workers: list[WorkerHandle], work: Callable[[WorkerHandle], Any]) -> None:
        """Call ``work`` for every worker in parallel; an exception stops the workers, which ends their threads."""
        with ThreadPoolExecutor(max(1, len(workers))) as pool:  # all may have died since they started
            try:
                for done in as_completed([pool.submit(work, worker) for worker in workers]):
                    done.result()
            except BaseException:
                for worker in workers:
                    worker.stop()
                raise

    def _build_and_time(self, worker: WorkerHandle, batch: _Batch, todo: deque[int]) -> None:
        while todo and worker.is_alive:
            self._build(worker, batch, todo, most=max(1, PER_WORKER // 2))
            with self._device_free:
                self._finish_all(worker, batch, self._time_all(worker, batch))

    def _build(self, worker: WorkerHandle, batch: _Batch, todo: deque[int], most: float = math.inf) -> None:
        limit_s = self.setup.limits.build_s
        while worker.is_alive and len(worker.held) < most:
            try:
                number = todo.popleft()
            except IndexError:
                return
            try:
                batch.build_s[number] = worker.ask(limit_s, "build", number, batch.jobs[number])
                worker.held.add(number)
            except (Failed, Late, Died) as error:
                quiet = self._overlap or self._watches[worker].was_quiet  # a sentinel on another device says nothing about builds
                failure = _failure(error, "build", f"not built within {limit_s:g} s")
                batch.fail(number, failure, quiet and not self._wants_memory(failure))

    def _time_all(self, worker: WorkerHandle, batch: _Batch) -> dict[int, Outcome]:
        """Time what the worker has built, again if the machine was not quiet; return the outcomes of the programs that ran."""
        numbers = sorted(worker.held)
        timed: dict[int, Outcome] = {}
        for _ in range(1 + RETRIES):
            latest = self._time_once(worker, batch, numbers)
            if not worker.held:  # it died midway: its timings lack repeats and a final reading
                for number, outcome in latest.items():
                    batch.second_best.setdefault(number, replace(outcome, disturbed=True))
                break
            timed = latest
            if not any(outcome.disturbed for outcome in latest.values()):
                break
        return {number: outcome for number, outcome in timed.items() if number not in batch.outcomes}

    def _finish_all(self, worker: WorkerHandle, batch: _Batch, timed: Mapping[int, Outcome]) -> None:
        """Check and drop what a worker timed, in parallel with others: a check runs the untuned task, on one thread, maybe for seconds."""
        if worker.held and not worker.is_alive:
            worker.stop()  # it died while waiting for the others, at no program's fault: another worker checks what it held
        for number, outcome in timed.items():
            self._finish(worker, batch, number, outcome)
        worker.held.clear()
        with contextlib.suppress(Failed, Late, Died):
            if self._remote and worker.is_alive:
                worker.ask(self._limit_s(0), "release")

    def _limit_s(self, limit_s: float) -> float:
        """Time limit of a request that may run programs for ``limit_s``, including what a remote device needs besides."""
        return limit_s + (answer_s(self.setup) if self._remote else 0)

    def _is_lost(self, worker: WorkerHandle) -> bool:
        """Whether a remote worker ended, which is no program's fault: it runs none itself, or was stopped when its device fell silent."""
        return self._remote and not worker.is_alive

    def _time_once(self, worker: WorkerHandle, batch: _Batch, numbers: list[int]) -> dict[int, Outcome]:
        """Time programs in turns between two sentinel readings; return the outcomes of those that ran.

        Failures are recorded here.  If a program kills the worker, the others miss their remaining repeats.
        """
        latencies_s: dict[int, list[float]] = {}
        before_s, waiting, wanting = self._sentinel(worker), numbers, set[int]()
        while waiting:
            for number in waiting:
                if number in worker.held and number not in batch.outcomes:
                    more = self._repeat(worker, batch, number, latencies_s)
                    (wanting.add if more else wanting.discard)(number)
            waiting = [number for number in waiting if number in wanting and number in worker.held]
        readings_s = [reading_s for reading_s in (before_s, self._sentinel(worker)) if reading_s is not None]
        quiet = not readings_s or self._watches[worker].is_quiet(*readings_s)
        return {number: Outcome("ok", tuple(repeats), disturbed=not quiet) for number, repeats in latencies_s.items()}

    def _sentinel(self, worker: WorkerHandle) -> float | None:
        """A sentinel reading; None if the worker holds nothing any more, or its device cannot run the sentinel."""
        if not worker.held:
            return None
        limits = self.setup.limits
        try:
            reading_s = worker.ask(self._limit_s(limits.build_s + limits.run_s), "sentinel")  # the first request builds it
        except (Failed, Late, Died):
            return None
        self._watches[worker].add(reading_s)
        return reading_s

    def _repeat(self, worker: WorkerHandle, batch: _Batch, number: int, latencies_s: dict[int, list[float]]) -> bool:
        """Time one repeat of a program; return whether it needs another."""
        job, limit_s = batch.jobs[number], self.setup.limits.run_s
        best_s = min(job.best_s, self._best_s.get(job.task_key, math.inf))
        try:
            mean_s = worker.ask(self._limit_s(limit_s), "time", number, best_s)
        except (Failed, Late, Died) as error:
            if self._is_lost(worker):
                return True
            failure = _failure(error, "run", f"not run within {limit_s:g} s")
            batch.fail(number, failure, self._watches[worker].was_quiet and not self._wants_memory(failure))
            return False
        repeats = latencies_s.setdefault(number, [])
        repeats.append(mean_s)
        if not job.check:
            self._mark(job, repeats)
        return is_worth_repeating(repeats, self.setup.protocol, best_s)

    def _wants_memory(self, failure: Outcome) -> bool:
        """Whether a program failed for lack of GPU memory, which other processes may hold: it is to be measured again."""
        return self.setup.kind.apart and not self._remote and "out of memory" in failure.message.lower()

    def _mark(self, job: Job, latencies_s: Sequence[float]) -> None:
        """Update the task's best latency.  Programs far behind it are not repeated, so a wrong program must not set it."""
        with self._marking:
            best_s = self._best_s.get(job.task_key, math.inf)
            self._best_s[job.task_key] = min(statistics.median(latencies_s), best_s)

    def _finish(self, worker: WorkerHandle, batch: _Batch, number: int, outcome: Outcome) -> None:
        if batch.jobs[number].check:
            if number not in worker.held:  # its worker died of another program
                batch.second_best[number] = outcome
                return
            outcome = self._checked(worker, batch, number, outcome)
        if outcome.error == "ok":
            self._mark(batch.jobs[number], outcome.latencies_s)
        batch.end(number, outcome)
        with contextlib.suppress(Failed, Late, Died):
            if number in worker.held:
                worker.ask(self._limit_s(self.setup.limits.run_s), "drop", number)

    def _checked(self, worker: WorkerHandle, batch: _Batch, number: int, outcome: Outcome) -> Outcome:
        limits, task = self.setup.limits, batch.jobs[number].task_key
        if task in self._without_reference:
            return outcome
        try:
            worker.ask(self._limit_s(limits.build_s + limits.run_s), "reference", number)
        except (Failed, Late, Died):  # not the program's fault: the timing stands, unchecked
            if not self._is_lost(worker):
                self._without_reference.add(task)
            return outcome
        try:
            difference = worker.ask(self._limit_s(2 * limits.run_s), "check", number)
        except Late:  # although the program was timed within its limit; each such check costs the worker
            if not self._is_lost(worker):
                self._without_reference.add(task)
            return outcome
        except (Failed, Died) as error:
            failure = _failure(error, "run", "")
            return outcome if self._is_lost(worker) else replace(outcome, disturbed=True) if self._wants_memory(failure) else failure
        if difference > TOLERANCE:
            message = f"output differs from the untuned program's by {difference:.2g} of its magnitude"
            return Outcome("wrong-result", message=message)
        return replace(outcome, checked=True)


def _batch_size(workers: int) -> int:
    """Programs that are built before any is timed, and lost if that is stopped; so many workers do not build ``PER_WORKER`` each."""
    return min(PER_WORKER * workers, max(2 * workers, MOST))


def _workers_for(setup: Setup) -> int:
    """Number of workers to start; more than a few per remote device would only wait for it."""
    if setup.tracker is None:
        return min(threads(), setup.kind.most_workers() or threads())
    devices = max(1, count_devices(setup.tracker))
    return max(devices, min(threads(), WORKERS_PER_DEVICE * devices))


class _Batch:
    """Jobs that are measured together, by number, and what is known about each.

    late         jobs that timed out while the machine was not quiet: measured again, once
    second_best  outcomes that lack repeats or a check, job by job: measured again, and used only where that makes no progress
    """

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = jobs
        self.build_s: dict[int, float] = {}
        self.outcomes: dict[int, Outcome] = {}
        self.late: set[int] = set()
        self.second_best: dict[int, Outcome] = {}

    def first_outcomes(self) -> list[Outcome]:
        """Outcomes of the leading jobs, up to the first that has none yet."""
        return [self.outcomes[number] for number in range(min(self.missing(), default=len(self.jobs)))]

    def missing(self) -> list[int]:
        return [number for number in range(len(self.jobs)) if number not in self.outcomes]

    @property
    def progress(self) -> int:
        """Number of outcomes and of jobs that were late once: grows with every finding."""
        return len(self.outcomes) + len(self.late)

    def end(self, number: int, outcome: Outcome) -> None:
        self.outcomes[number] = replace(outcome, build_s=self.build_s.get(number, 0.0))

    def fail(self, number: int, failure: Outcome, quiet: bool) -> None:
        """Record a failure; a first timeout on a machine that was not quiet is tried once more instead."""
        if failure.error == "timeout" and not quiet and number not in self.late:
            self.late.add(number)
        else:
            self.end(number, replace(failure, disturbed=not quiet))

    def end_with_second_best(self) -> None:
        """Settle for the second-best outcomes: workers keep dying, and no program is to blame."""
        for number, outcome in self.second_best.items():
            if number not in self.outcomes:
                self.end(number, outcome)


def _failure(error: Exception, step: str, late: str) -> Outcome:
    """The Outcome of a program whose build or run made the worker fail, be late or die."""
    if isinstance(error, Late):
        return Outcome("timeout", message=late)
    return Outcome("crash" if isinstance(error, Died) else step, message=str(error))

"""The child process that builds and runs candidates: ``python -m tcl_core.measure.worker FD MEMORY_BYTES CORES``.

A candidate may crash, hang or eat memory; then this process dies and its supervisor (``worker_handle``) goes on with another.
It does one thing at a time and answers before it takes the next, so that the supervisor knows what to blame:

    request             answer
    Setup, once         ("ready", TVM's version)
    ("build", n, job)   ("done", seconds)
    ("time", n, best_s) ("done", seconds): one repeat
    ("reference", n)    ("done", None): the untuned program's output is computed
    ("check", n)        ("done", largest difference from that output)
    ("drop", n)         ("done", None)
    ("sentinel",)       ("done", seconds)
    ("release",)        ("done", None): the device is given up for now
    ("describe",)       ("done", a remote device's description of its host)

Requests are pickled; answers are JSON, since the supervisor must take what comes from here for mere data.  n is the
number that the supervisor gives a program.  Other answers are ("failed", message) where a request raised; ("crashed",
message) and ("late", "") from a remote device, which outlives the program; ("impossible", message) where no program is
to blame; and now and then ("waiting", None) during the wait for a device.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property, lru_cache, wraps
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from tcl_core.compat import calling_thread_pinned, load_module, load_tvm, make_target
from tcl_core.errors import PlatformError
from tcl_core.measure.device import Crashed, Device, HostDevice, TimedOut
from tcl_core.measure.job import Job, Protocol, Setup
from tcl_core.measure.sentinel import sentinel_arguments, sentinel_module
from tcl_core.measure.timing import runs_per_repeat, time_repeat
from tcl_core.outputs import of_array
from tcl_core.process import die_with_parent
from tcl_core.programs.packing import packed
from tcl_core.programs.sketches import DesignSpace, InvalidProgram, Sketch, read_sketch, trace_from_json
from tcl_core.programs.tasks import argument_types
from tcl_core.programs.weights import weight_places

# Outputs are compared relative to the largest magnitude: reordered float32 sums differ by about 1e-6.
TOLERANCE = 1e-3
SENTINEL_MS = 6.0
# Programs per worker that are built before they are timed in turns, one repeat each; a fast worker builds more than its share.
PER_WORKER = 16
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # disk errors, at no program's fault
ACTIONS = ("build", "time", "reference", "check", "drop", "sentinel", "release", "describe")


class Built(NamedTuple):
    """A job with its compiled function and its scheduled module."""

    job: Job
    function: Callable[..., Any]
    module: Any


def _with_all_memory(action: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an action of a worker: where memory runs out, it is done once more without what is kept of other tasks.

    Else what becomes of a program would depend on which tasks came before it.
    """

    @wraps(action)
    def act(worker: Worker, *arguments: Any) -> Any:
        try:
            return action(worker, *arguments)
        except Exception as error:
            said = str(error).lower()  # TVM's allocations raise several types: with "bad_alloc" here, "out of memory" on a GPU
            if not (isinstance(error, MemoryError) or "bad_alloc" in said or "out of memory" in said):
                raise
        worker.inputs.cache_clear()  # outside the handler, whose traceback keeps the first attempt's arrays
        worker.expected.cache_clear()
        return action(worker, *arguments)

    return act


class Worker:
    """Builds and times programs of one target in this process; keeps what jobs of the same task share.

    on_wait  called now and then during the wait for a remote device
    """

    def __init__(self, setup: Setup, on_wait: Callable[[], Any] = lambda: None) -> None:
        self.tvm = load_tvm(without_torch=True)
        self.setup = setup
        setup.kind.prepare()
        self.target = make_target(setup.target)
        self.device = open_device(setup, on_wait)
        self.built: dict[int, Built] = {}
        # Design spaces, sketches and the reference output of the latest tasks, and inputs of all tasks that are timed in turns.
        self.space = lru_cache(maxsize=16)(self._space)
        self.sketch = lru_cache(maxsize=64)(self._sketch)
        self.inputs = lru_cache(maxsize=2 * PER_WORKER)(self._inputs)
        self.expected = lru_cache(maxsize=1)(self._expected)

    def _space(self, task_key: str, module_json: str) -> DesignSpace:
        return DesignSpace(task_key, load_module(module_json), self.setup.target)

    def _sketch(self, task_key: str, module_json: str, trace_json: str) -> Sketch:
        module = self.space(task_key, module_json).module
        return read_sketch(task_key, 0, trace_from_json(trace_json, module))

    def _inputs(self, task_key: str, module_json: str) -> list[Any]:
        """The arguments on the device."""
        return [self.device.tensor(array) for array in self._arrays(task_key, module_json)]

    def _arrays(self, task_key: str, module_json: str) -> list[np.ndarray]:
        """Random arguments, always the same ones; integers are 0 or 1, so that they are valid indices."""
        rng = np.random.default_rng(0)
        arrays = []
        for shape, dtype in argument_types(self.space(task_key, module_json).module):
            if dtype.startswith(("float", "bfloat")):
                array = (2 * rng.random(shape, dtype=np.float32) - 1).astype(dtype, copy=False)
            else:
                array = rng.integers(0, 2, shape).astype(dtype)
            arrays.append(array)
        return arrays

    def _expected(self, task_key: str, module_json: str) -> list[np.ndarray]:
        arguments = self._inputs(task_key, module_json)
        unsearched = self.setup.kind.unsearched(self.space(task_key, module_json).module, self.target)
        return self._results(self._compile(unsearched), arguments)

    def _results(self, function: Any, arguments: list[Any]) -> list[np.ndarray]:
        """All arguments after one call.  Callers pass fresh ones, so that missing writes are noticed."""
        function(*arguments)
        return [tensor.numpy() for tensor in arguments]

    def _compile(self, module: Any) -> Callable[..., Any]:
        """Compile a module as a compiler's user would, but without checks of its arguments: an eighth of the build time."""
        tvm = self.tvm
        module = tvm.s_tir.transform.RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(module)
        with self.target, tvm.transform.PassContext(config={"tirx.disable_assert": True}):
            return self.device.load(tvm.tirx.build(module, target=self.target))

    def build(self, number: int, job: Job) -> float:
        """Compile the job's program, keep it ready to call, and make its inputs; return the seconds that it took."""
        start = time.perf_counter()
        self._make(number, job)
        self._make_inputs(job)
        return time.perf_counter() - start

    @_with_all_memory
    def _make(self, number: int, job: Job) -> None:
        space = self.space(job.task_key, job.module_json)
        if job.trace_json is None:
            module = space.module
        else:
            sketch = self.sketch(job.task_key, job.module_json, job.trace_json)
            module = space.materialise(sketch, job.decisions).mod
        self.built[number] = Built(job, self._compile(module), module)

    @_with_all_memory
    def _make_inputs(self, job: Job) -> None:  # apart: compiling once more might take too long
        self.inputs(job.task_key, job.module_json)

    @_with_all_memory
    def time(self, number: int, best_s: float) -> float:
        """Mean seconds of one repeat's runs.

        A program that expects reordered weights gets them in the original order: they have as many bytes, and their values
        do not affect the latency.
        """
        built = self.built[number]
        job = built.job
        cold = weight_places(self.space(job.task_key, job.module_json).module) if job.cold else ()
        clock = self.device.clock(built.function, self.inputs(job.task_key, job.module_json), cold)
        with self._steady():
            return self.device.run(lambda: time_repeat(clock, self.setup.protocol, best_s))

    @_with_all_memory
    def reference(self, number: int) -> None:
        """Run the program's task untuned, and keep its output for ``check``."""
        job = self.built[number].job
        self.device.run(lambda: self.expected(job.task_key, job.module_json))

    @_with_all_memory
    def check(self, number: int) -> float:
        """Largest difference from the untuned program's outputs (``outputs.of_array``)."""
        built = self.built[number]
        job = built.job
        expected = self.device.run(lambda: self.expected(job.task_key, job.module_json))

        def results() -> tuple[list[np.ndarray], dict[int, np.ndarray]]:
            arrays = self._arrays(job.task_key, job.module_json)
            reordered = packed(built.module, arrays)
            arguments = [self.device.tensor(reordered.get(argument, array)) for argument, array in enumerate(arrays)]
            return self._results(built.function, arguments), reordered

        found, reordered = self.device.run(results)
        expected = [reordered.get(argument, array) for argument, array in enumerate(expected)]
        return max(of_array(f, e, equal_nan=True) for f, e in zip(found, expected, strict=True))

    def drop(self, number: int) -> None:
        """Forget a built program, if that number has one."""
        self.built.pop(number, None)

    def sentinel(self) -> float:
        """Mean seconds of the sentinel program."""
        with self._steady():
            return self.device.run(self._run_sentinel)

    def _run_sentinel(self) -> float:
        clock, number = self._sentinel
        return clock.mean(number)

    def release(self) -> None:
        self.device.release()

    def describe(self) -> dict[str, Any]:
        return self.device.describe()  # type: ignore[attr-defined]  # remote ones can

    def _steady(self) -> AbstractContextManager[None]:
        """Bind the calling thread to a core while timing only, since builds of several workers must not share one core."""
        pinned = self.setup.protocol.pin_threads and not self.setup.kind.apart  # a GPU has its own clock, and others build on that core
        return calling_thread_pinned() if pinned else nullcontext()

    @cached_property
    def _sentinel(self) -> tuple[Any, int]:
        """The sentinel's clock and the runs that one reading takes."""
        function = self._compile(sentinel_module(self.setup.target["kind"]))
        arguments = [self.device.tensor(array) for array in sentinel_arguments()]
        clock = self.device.clock(function, arguments, flush=False)  # it is to fit the second-level cache
        once_s = min(clock.once() for _ in range(5))
        return clock, max(2, runs_per_repeat(once_s, Protocol(min_repeat_ms=SENTINEL_MS)))


def open_device(setup: Setup, on_wait: Callable[[], Any]) -> Device:
    """The device that runs the programs: here, or behind the RPC tracker."""
    if setup.tracker is None:
        return HostDevice(setup)
    from tcl_core.measure.remote import RemoteDevice

    return RemoteDevice(setup, on_wait)


def serve(connection: Connection) -> None:
    """Answer requests until the supervisor closes its end."""
    say = lambda *answer: connection.send_bytes(json.dumps(answer).encode())  # noqa: E731
    worker = Worker(connection.recv(), lambda: say("waiting", None))
    say("ready", worker.tvm.__version__)
    actions = {name: getattr(worker, name) for name in ACTIONS}
    while True:
        try:
            action, *arguments = connection.recv()
        except EOFError:
            return
        say(*_answer(actions[action], arguments))


def _answer(action: Callable[..., Any], arguments: Sequence[Any]) -> tuple[str, Any]:
    try:
        return "done", action(*arguments)
    except MemoryError:
        return "failed", "out of the worker's memory limit"
    except Crashed as error:
        return "crashed", str(error)
    except TimedOut:
        return "late", ""
    except PlatformError as error:
        return "impossible", str(error)
    except OSError as error:
        return ("impossible" if error.errno in FULL else "failed"), _one_line(error)
    except Exception as error:  # whatever TVM raises is the candidate's failure, not ours
        return "failed", _one_line(error)


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    kind = "" if isinstance(error, InvalidProgram) else f"{type(error).__name__}: "
    return f"{kind}{lines[-1]}"[:300]


def main() -> None:
    """Serve on the inherited file descriptor, within the memory limit and on the given cores; die with the supervisor."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor, which closes the pipe
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if wanted := int(sys.argv[2]):
        _limit_memory(wanted)
    with suppress(OSError):  # where threads cannot be bound, timing a program reports it
        os.sched_setaffinity(0, [int(core) for core in sys.argv[3].split(",")])
    serve(Connection(int(sys.argv[1])))


def _limit_memory(wanted: int) -> None:
    """Limit the address space to ``wanted`` bytes, or to this process's hard limit if that is lower."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    main()

"""The child process that builds and runs candidate programs: ``python -m tcl_core.measure.worker FD``.

A candidate may crash, hang or eat memory; then this process dies and its supervisor (``pool``) goes on with another.
It reports each step before the next one begins, so that the supervisor knows which one to blame:

    <- Setup            once
    <- Job
    -> ("built", s)     or ("failed", "build", message)
    -> ("timed", [s])   or ("failed", "run", message)
    -> ("done", d)      d: largest difference to the untuned program's output, None where it was not compared
"""

from __future__ import annotations

import ctypes
import math
import resource
import signal
import sys
import time
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from tcl_core.compat import load_tvm, set_threads
from tcl_core.measure.job import Job, Protocol, Setup
from tcl_core.platforms import largest_cache_bytes
from tcl_core.programs.sketches import DesignSpace, InvalidProgram, Sketch, read_sketch, trace_from_json
from tcl_core.programs.tasks import argument_types

PR_SET_PDEATHSIG = 1
# Outputs are compared relative to the largest magnitude: reordered float32 sums differ by some 1e-6.
TOLERANCE = 1e-3


class Worker:
    """Builds and times programs of one target in this process; keeps what jobs of the same task share."""

    def __init__(self, setup: Setup) -> None:
        self.tvm = load_tvm(without_torch=True)
        self.setup = setup
        self.device = self.tvm.device("cuda" if setup.target["kind"] == "cuda" else "cpu", 0)
        set_threads(setup.protocol.threads)
        flushed = 2 * largest_cache_bytes() if setup.protocol.flush_cache else 0
        self.flush_buffer = np.zeros(flushed, dtype=np.uint8)
        # The last few tasks' design spaces, sketches, inputs and reference outputs.
        self.space = lru_cache(maxsize=16)(self._space)
        self.sketch = lru_cache(maxsize=64)(self._sketch)
        self.inputs = lru_cache(maxsize=1)(self._inputs)
        self.reference = lru_cache(maxsize=1)(self._reference)

    def _space(self, task_key: str, module_json: str) -> DesignSpace:
        return DesignSpace(task_key, self.tvm.ir.load_json(module_json), self.setup.target)

    def _sketch(self, task_key: str, module_json: str, trace_json: str) -> Sketch:
        module = self.space(task_key, module_json).module
        return read_sketch(task_key, 0, trace_from_json(trace_json, module))

    def _inputs(self, task_key: str, module_json: str) -> list[Any]:
        """Random arguments on the device, always the same ones; integers are 0 or 1, so that they are valid indices."""
        rng = np.random.default_rng(0)
        arrays = []
        for shape, dtype in argument_types(self.space(task_key, module_json).module):
            if dtype.startswith(("float", "bfloat")):
                array = rng.uniform(-1, 1, shape).astype(dtype)
            else:
                array = rng.integers(0, 2, shape).astype(dtype)
            arrays.append(self.tvm.runtime.tensor(array, self.device))
        return arrays

    def _reference(self, task_key: str, module_json: str) -> list[np.ndarray]:
        return self._results(self._compile(self.space(task_key, module_json).module), task_key, module_json)

    def _results(self, function: Any, task_key: str, module_json: str) -> list[np.ndarray]:
        """All arguments after one call on fresh ones, so that a program that writes too little is seen."""
        arguments = self._inputs(task_key, module_json)
        function(*arguments)
        return [tensor.numpy() for tensor in arguments]

    def _compile(self, module: Any) -> Any:
        target = self.setup.target
        built = self.tvm.tirx.build(module, target=self.tvm.target.Target(target))
        return built["main"]

    def build(self, job: Job) -> Any:
        """The job's program, compiled in process and ready to call."""
        space = self.space(job.task_key, job.module_json)
        if job.trace_json is None:
            return self._compile(space.module)
        sketch = self.sketch(job.task_key, job.module_json, job.trace_json)
        return self._compile(space.materialise(sketch, job.decisions).mod)

    def time(self, function: Any, job: Job) -> list[float]:
        """Mean seconds of each repeat: fewer for a slow program, one run for one far behind its task's best."""
        protocol, arguments = self.setup.protocol, self.inputs(job.task_key, job.module_json)
        for _ in range(max(1, protocol.warmup)):
            warm_s = self._once(function, arguments)
        once_s = self._once(function, arguments)
        if min(warm_s, once_s) > protocol.early_stop_factor * job.best_s:  # one slow run may be bad luck, two are not
            return [once_s]
        if once_s > protocol.enough_s:
            return [once_s]
        number, repeats = _runs_per_repeat(once_s, protocol), []
        while len(repeats) < protocol.repeats and number * sum(repeats) < protocol.enough_s:
            repeats.append(self._repeat(function, arguments, number))
        return repeats

    def _repeat(self, function: Any, arguments: list[Any], number: int) -> float:
        if self.setup.protocol.flush_cache:
            return math.fsum(self._flushed_run(function, arguments) for _ in range(number)) / number
        start = time.perf_counter()
        for _ in range(number):
            function(*arguments)
        self.device.sync()
        return (time.perf_counter() - start) / number

    def _flushed_run(self, function: Any, arguments: list[Any]) -> float:
        self.flush_buffer[:] += 1  # touches every line of twice the largest cache
        return self._once(function, arguments)

    def _once(self, function: Any, arguments: list[Any]) -> float:
        start = time.perf_counter()
        function(*arguments)
        self.device.sync()
        return time.perf_counter() - start

    def difference(self, function: Any, job: Job) -> float:
        """Largest difference to the untuned program's output, relative to the output's largest magnitude."""
        expected = self.reference(job.task_key, job.module_json)
        found = self._results(function, job.task_key, job.module_json)
        return max(_relative_difference(f, e) for f, e in zip(found, expected, strict=True))


def _runs_per_repeat(first_s: float, protocol: Protocol) -> int:
    wanted = protocol.min_repeat_ms / 1e3 / max(first_s, 1e-7)
    return int(min(max(1, math.ceil(wanted)), protocol.max_number))


def _relative_difference(found: np.ndarray, expected: np.ndarray) -> float:
    if expected.size == 0:
        return 0.0
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        return math.inf
    scale = max(np.abs(np.nan_to_num(expected, posinf=0, neginf=0)).max(), 1e-30)
    return float(np.abs(np.nan_to_num(found - expected)).max() / scale)


def serve(connection: Connection) -> None:
    """Answer jobs until the supervisor closes its end."""
    worker = Worker(connection.recv())
    connection.send(("ready", worker.tvm.__version__))
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        _answer(worker, job, connection)


def _answer(worker: Worker, job: Job, connection: Connection) -> None:
    step = "build"
    try:
        start = time.perf_counter()
        function = worker.build(job)
        worker.inputs(job.task_key, job.module_json)
        connection.send(("built", time.perf_counter() - start))
        step = "run"
        connection.send(("timed", worker.time(function, job)))
        difference = worker.difference(function, job) if job.check else None
    except MemoryError:
        connection.send(("failed", step, "out of the worker's memory limit"))
    except Exception as error:  # whatever TVM raises is the candidate's failure, not ours
        connection.send(("failed", step, _one_line(error)))
    else:
        connection.send(("done", difference))


def _one_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    kind = "" if isinstance(error, InvalidProgram) else f"{type(error).__name__}: "
    return f"{kind}{lines[-1]}"[:300]


def main() -> None:
    """Serve on the inherited file descriptor; die with the supervisor; keep within the memory limit."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor, which closes the pipe
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit = int(sys.argv[2])
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()

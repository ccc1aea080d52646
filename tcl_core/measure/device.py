"""Local devices: programs run here, on the worker's own CPU or GPU (``remote`` has devices behind RPC)."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol as Interface

import numpy as np

from tcl_core.compat import load_tvm, set_threads
from tcl_core.measure.eviction import as_bytes, evictor
from tcl_core.measure.job import Setup
from tcl_core.measure.timing import CALL_S, LAUNCH_S, Clock
from tcl_core.platforms import largest_cache_bytes

EVICT = "tcl.evict"  # the global function by which TVM's own loop evicts what ``ColdClock`` names


class Device(Interface):
    """What the worker needs of the place where programs run."""

    def load(self, built: Any) -> Callable[..., Any]:
        """A compiled program, ready to be called with tensors."""

    def tensor(self, array: np.ndarray) -> Any:
        """The array, placed where programs can read it."""

    def clock(self, program: Any, arguments: Sequence[Any], cold: Sequence[int] = (), flush: bool = True) -> Clock:
        """A clock that times a loaded program on the arguments.

        cold   numbers of the arguments to evict from the caches before each run
        flush  evict the caches where the protocol says so; False: never
        """

    def run(self, work: Callable[[], Any]) -> Any:
        """Call ``work``, which runs programs, and return its result; if a device is lost, ``work`` may start over on another.

        Raises what ``work`` raises, and Crashed or TimedOut where the device reports a crash or a timeout instead of
        ending this process.
        """

    def release(self) -> None:
        """Give up the device for now, so that another process can use it."""


class Crashed(Exception):
    """The program killed the device's process that ran it, not this process."""


class TimedOut(Exception):
    """The device stopped a program that took too long."""


class HostDevice:
    """This process: the CPU it runs on, or an NVIDIA GPU of the machine."""

    def __init__(self, setup: Setup) -> None:
        tvm = load_tvm(without_torch=True)
        protocol = setup.protocol
        set_threads(protocol.threads, protocol.pin_threads)
        self._tvm = tvm
        self._device = tvm.device(setup.kind.device, 0)
        self._flushed = np.zeros(2 * largest_cache_bytes() if protocol.flush_cache else 0, dtype=np.uint8)
        self._call_s = LAUNCH_S if setup.kind.apart else CALL_S

    def load(self, built: Any) -> HostProgram:
        return HostProgram(built)

    def tensor(self, array: np.ndarray) -> Any:
        return self._tvm.runtime.tensor(array, self._device)

    def clock(self, program: HostProgram, arguments: Sequence[Any], cold: Sequence[int] = (), flush: bool = True) -> Clock:
        if cold and not self._flushed.size:
            return ColdClock(program, arguments, cold, self._device)
        flushed = self._flushed if flush else self._flushed[:0]
        return HostClock(program, arguments, self._device, flushed, self._call_s)

    def run(self, work: Callable[[], Any]) -> Any:
        """Call ``work``; exit this process if the program left the device unusable, as a fault on a GPU does."""
        try:
            return work()
        except Exception:
            self._end_if_spoilt()
            raise

    def _end_if_spoilt(self) -> None:
        try:
            self._device.sync()
        except Exception as error:
            sys.exit(f"the device does not recover: {error}")

    def release(self) -> None:
        """Do nothing: a local device is not leased."""


class ColdClock:
    """Times a program with some of its arguments (``cold``: their numbers) evicted from the caches before each run.

    ``mean`` uses TVM's own loop.
    """

    call_s = CALL_S

    def __init__(self, program: HostProgram, arguments: Sequence[Any], cold: Sequence[int], device: Any) -> None:
        self._program, self._arguments, self._device = program, arguments, device
        self._evicted, self._evict, self.between_s = [as_bytes(arguments[number]) for number in cold], evictor(), 0.0

    def once(self) -> float:
        start = time.perf_counter()
        self._evict(self._evicted)
        evicted = time.perf_counter()
        self._program(*self._arguments)
        self.between_s = evicted - start
        return time.perf_counter() - evicted

    def mean(self, number: int) -> float:
        import tvm_ffi

        tvm_ffi.register_global_func(EVICT, lambda *_: self._evict(self._evicted))
        try:
            evaluate = self._program.module.time_evaluator("main", self._device, number=1, repeat=number, f_preproc=EVICT)
            return float(np.mean(evaluate(*self._arguments).results))
        finally:
            tvm_ffi.registry.remove_global_func(EVICT)  # it would keep the weights


class HostProgram:
    """A compiled program, callable in this process: LLVM compiles CPU code in memory, without a file or a linker."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self._function = module["main"]

    def __call__(self, *arguments: Any) -> None:
        self._function(*arguments)


class HostClock:
    """Times a program of this process; TVM's own loop times several short runs, free of Python's overhead."""

    between_s = 0.0

    def __init__(
        self,
        program: HostProgram,
        arguments: Sequence[Any],
        device: Any,
        flushed: np.ndarray,
        call_s: float,
    ) -> None:
        self._program, self._arguments, self._device, self._flushed, self.call_s = program, arguments, device, flushed, call_s
        self._evicted = [as_bytes(argument) for argument in arguments] if flushed.size else []

    def once(self) -> float:
        if self._flushed.size:
            self._flushed += 1  # touches every line of twice the largest cache of this core
            evictor()(self._evicted)  # from the other cores' own caches too
        start = time.perf_counter()
        self._program(*self._arguments)
        self._device.sync()
        return time.perf_counter() - start

    def mean(self, number: int) -> float:
        if number == 1 or self._flushed.size:
            return math.fsum(self.once() for _ in range(number)) / number
        evaluate = self._program.module.time_evaluator("main", self._device, number=number, repeat=1)
        return float(evaluate(*self._arguments).mean)

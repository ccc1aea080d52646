"""Remote devices: programs run behind TVM's RPC tracker.

Programs are compiled here, sent to a device and timed there, by the device's own clock.  While it times a batch, a worker
holds one session, whose programs the server runs in a process of its own.  What can go wrong:

    the server's time limit       the program took too long: TimedOut
    its process or host died      the work starts over in another session, on any free device; a program during which
                                  two sessions died is taken to have killed them: Crashed
    no device within the limit    PlatformError: the set-up is at fault, not the program

A server that does not describe its host (TVM's own; ``serving`` does) is identified by its key alone.
"""

from __future__ import annotations

import json
import platform as host_platform
import shutil
import tempfile
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tcl_core.compat import load_tvm
from tcl_core.errors import PlatformError, last_line
from tcl_core.files import shown
from tcl_core.measure.device import Crashed, TimedOut
from tcl_core.measure.eviction import SLOW
from tcl_core.measure.job import Setup
from tcl_core.measure.serving import DESCRIBE, SET_THREADS
from tcl_core.measure.timing import CALL_S, Clock
from tcl_core.measure.tracker import BUSY_S, POLL_S, NoDevice, count_devices, request_device
from tcl_core.platforms import Hardware

GRACE_S = 10.0  # seconds past a session's limit after which a device counts as silent
LOST = 2  # sessions that die during one program before it is blamed
FLUSHED_BYTES, MOST_FLUSHED_BYTES = 64 << 20, 1 << 30  # the least is more than the caches of most boards; TVM counts in 32 bits
BIG_CORES = 1  # of TVM's ThreadGroup::AffinityMode; one core per thread needs a list, which RPC cannot send


def session_s(setup: Setup) -> float:
    """Seconds after which the server ends a session, whatever runs in it: a candidate that hangs must not keep the device."""
    return setup.tracker.lease_s + setup.tracker.transfer_s + 2 * setup.limits.run_s


def answer_s(setup: Setup) -> float:
    """Seconds that a device may take to answer, besides the wait for a free one; after that its host or network counts as gone."""
    return session_s(setup) + GRACE_S


class RemoteDevice:
    """The devices under one key, used one at a time.

    on_wait  called while no device is free, and before each session
    """

    def __init__(self, setup: Setup, on_wait: Callable[[], Any]) -> None:
        self._setup, self._on_wait = setup, on_wait
        self._exported = _exporter(setup.target)
        self._session: _Session | None = None
        self._loads = False  # whether a device has loaded a program of ours

    def load(self, built: Any) -> RemoteProgram:
        return RemoteProgram(self, *self._exported(built))

    def tensor(self, array: np.ndarray) -> RemoteTensor:
        return RemoteTensor(self, array)

    def clock(self, program: RemoteProgram, arguments: Sequence[RemoteTensor], cold: Sequence[int] = (), flush: bool = True) -> Clock:
        """As ``Device.clock``, but where ``cold`` names any argument, all but the first are evicted: TVM's runtime there can do nothing else."""
        return RemoteClock(self, program, arguments, flush and self._setup.protocol.flush_cache, bool(cold))

    def run(self, work: Callable[[], Any]) -> Any:
        """As ``Device.run``.  Raises PlatformError where there is no device, or the devices differ or cannot load programs."""
        for _ in range(LOST):
            self._begin()
            try:
                return work()
            except PlatformError:
                raise
            except Exception as error:
                if self._session.is_alive():
                    raise  # the program's own failure
                overdue = self._session.is_overdue(error)
            self.release()  # outside the handler, whose traceback keeps the dead session's objects alive
            if overdue:
                raise TimedOut
        raise Crashed(f"the process that ran it on the device died {LOST} times")

    def release(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def describe(self) -> dict[str, Any]:
        """``host``: the key and what identifies the host;  ``hardware``: the fields of ``platforms.Hardware`` that the server reports."""
        return self.run(lambda: self._session.describe())

    @property
    def session(self) -> _Session:
        """The session that ``run`` opened."""
        return self._session

    def module(self, program: RemoteProgram) -> Any:
        """The program, loaded in the current session."""
        try:
            module = self._session.module(program)
        except Exception as error:
            if not self._loads and self._session.is_alive():
                raise PlatformError(
                    f"the device {self._session.address} of key '{self._setup.tracker.key}' cannot load a program for "
                    f"{self._setup.target['mcpu']} ({last_line(error)}); check platforms.*.mcpu, and install g++ there"
                ) from None
            raise
        self._loads = True
        return module

    def _begin(self) -> None:
        """Ensure a session with time left for more work."""
        if self._session is not None and self._session.age_s > self._setup.tracker.lease_s:
            self.release()
        if self._session is None:
            self._session = self._connect()

    def _connect(self) -> _Session:
        tracker, failed = self._setup.tracker, dict[tuple[str, int], float]()
        while True:
            address, port, key = request_device(tracker, self._on_wait)
            self._on_wait()
            try:
                session = _Session(address, port, key, self._setup)
                self._require_same_host(session)
                return session
            except PlatformError:
                raise
            except Exception as error:  # TVM raises several types; whichever it is, this device is unavailable
                now = time.monotonic()
                late_s = now - failed.setdefault((address, port), now)
                # Another device may take a session, so go on, but not forever: somebody may be keeping that one.
                if late_s >= tracker.wait_s and (count_devices(tracker) <= len(failed) or late_s >= BUSY_S):
                    raise NoDevice(
                        f"the device {address}:{port} of key '{tracker.key}', which the RPC tracker at {tracker.address} "
                        f"offers, takes no session ({last_line(error)}); start it anew (what was recorded is kept)"
                    ) from None
            time.sleep(POLL_S)

    def _require_same_host(self, session: _Session) -> None:
        tracker = self._setup.tracker
        told = session.describe()["host"] if tracker.host_told else ""
        if told != tracker.host_told:
            session.close()
            raise PlatformError(
                f"the devices of key '{tracker.key}' are not alike ({tracker.host_told}; {session.address} is {told}), and "
                "their latencies do not compare; give each kind of device a key and a platform of its own"
            )


class RemoteProgram:
    """A compiled program, sent when a session first needs it."""

    def __init__(self, device: RemoteDevice, suffix: str, library: bytes) -> None:
        self.suffix, self.library, self._device = suffix, library, device

    def __call__(self, *arguments: RemoteTensor) -> None:
        function = self._device.module(self)["main"]
        function(*[self._device.session.tensor(argument) for argument in arguments])


class RemoteTensor:
    """An array, sent when a session first needs it."""

    def __init__(self, device: RemoteDevice, array: np.ndarray) -> None:
        self.array, self._device = array, device

    def numpy(self) -> np.ndarray:
        """Its contents on the device."""
        return self._device.session.tensor(self).numpy()


class RemoteClock:
    """Times a program by the device's own clock, so that latencies contain no round trip.

    Each call adds one untimed run, which TVM's evaluator makes before it starts its clock.
    """

    between_s, call_s = 0.0, CALL_S

    def __init__(
        self, device: RemoteDevice, program: RemoteProgram, arguments: Sequence[RemoteTensor], flush: bool, cold: bool = False
    ) -> None:
        self._device, self._program, self._arguments, self._flush = device, program, arguments, flush
        self._cold = cold and not flush

    def once(self) -> float:
        return self.mean(1)

    def mean(self, number: int) -> float:
        session = self._device.session
        number, repeat = (1, number) if self._flush or self._cold else (number, 1)  # evicted before each of TVM's repeats
        evaluate = self._device.module(self._program).time_evaluator(
            "main",
            session.device,
            number=number,
            repeat=repeat,
            cache_flush_bytes=session.flushed_bytes if self._flush else 0,
            f_preproc=SLOW if self._cold else "",
        )
        return float(np.mean(evaluate(*[session.tensor(argument) for argument in self._arguments]).results))


class _Session:
    """A connection to a server, and what was sent over it."""

    def __init__(self, address: str, port: int, key: str, setup: Setup) -> None:
        load_tvm(without_torch=True)
        from tvm import rpc

        self.address = f"{address}:{port}"
        self._limit_s, self._key = session_s(setup), setup.tracker.key
        self._rpc = rpc.connect(address, port, key, session_timeout=self._limit_s)
        self._started = time.monotonic()
        self.device = self._rpc.cpu()
        self._modules: WeakKeyDictionary[RemoteProgram, Any] = WeakKeyDictionary()
        self._tensors: WeakKeyDictionary[RemoteTensor, Any] = WeakKeyDictionary()
        self._sent = 0
        self._set_threads(setup.protocol.threads, setup.protocol.pin_threads)

    def _set_threads(self, count: int, pinned: bool) -> None:
        try:
            set_threads = self._rpc.get_function(SET_THREADS)
        except AttributeError:  # TVM's own server
            self._rpc.get_function("runtime.config_threadpool")(BIG_CORES, count)
        else:
            set_threads(count, int(pinned))

    def describe(self) -> dict[str, Any]:
        try:
            text = self._rpc.get_function(DESCRIBE)()
        except AttributeError:
            told = {"host": "its host unknown", "hardware": {}}
        else:
            told = _read_description(text, self.address)
        return {**told, "host": f"rpc {self._key}: {told['host']}"}

    @cached_property
    def flushed_bytes(self) -> int:
        """Bytes to write before a run, so that nothing else is in the caches: twice the largest one that the server reports."""
        hardware = self.describe()["hardware"]
        largest_kib = max(hardware.get(name, 0) for name in ("l1_kib", "l2_kib", "l3_kib"))
        return int(min(max(2 * 1024 * largest_kib, FLUSHED_BYTES), MOST_FLUSHED_BYTES))

    def module(self, program: RemoteProgram) -> Any:
        if program not in self._modules:
            self._sent += 1
            name = f"program{self._sent}{program.suffix}"
            self._rpc.upload(bytearray(program.library), name)
            self._modules[program] = self._rpc.load_module(name)
        return self._modules[program]

    def tensor(self, tensor: RemoteTensor) -> Any:
        if tensor not in self._tensors:
            self._tensors[tensor] = load_tvm().runtime.tensor(tensor.array, self.device)
        return self._tensors[tensor]

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._started

    def is_alive(self) -> bool:
        """Whether the other side still answers."""
        try:
            self._rpc.get_function("tvm.rpc.server.workpath")
        except Exception:  # TVM raises several types when a connection is gone
            return False
        return True

    def is_overdue(self, error: Exception) -> bool:
        """Whether the server ended the session at its time limit; a server not in Python reports no TimeoutError, so age counts too."""
        return isinstance(error, TimeoutError) or self.age_s >= self._limit_s

    def close(self) -> None:
        """End the session, even if it is already dead."""
        self._modules.clear()
        self._tensors.clear()
        with suppress(Exception):
            self._rpc.get_function("CloseRPCConnection")()


def _read_description(text: Any, address: str) -> dict[str, Any]:
    """Parse the host description that ``serving`` sends.  Raises PlatformError for anything else: the server may be anybody's."""
    try:
        told = json.loads(text)
        host, hardware = told["host"], told["hardware"]
        known = isinstance(host, str) and all(type(number) in (int, float) and math.isfinite(number) for number in hardware.values())
        known = known and hardware.keys() <= {field.name for field in fields(Hardware)}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        known = False
    if not known:
        raise PlatformError(
            f"the device {address} does not say what its host is as this version asks it; start it anew with: tcl device serve"
        )
    return {"host": shown(host), "hardware": hardware}


def _exporter(target: dict[str, Any]) -> Callable[[Any], tuple[str, bytes]]:
    """Return a function that exports a compiled module as a file for the device: its suffix and its bytes.

    It links here if there is a compiler for the device; else the server links the objects, which takes longer.
    """
    machine = target["mtriple"].partition("-")[0]
    linker = None if machine == host_platform.machine() else shutil.which(f"{target['mtriple']}-g++")
    suffix = ".so" if linker or machine == host_platform.machine() else ".tar"
    options = {"cc": linker} if linker else {}

    def export(module: Any) -> tuple[str, bytes]:
        with tempfile.TemporaryDirectory(prefix="tcl-export-") as folder:
            path = Path(folder) / f"program{suffix}"
            module.export_library(str(path), workspace_dir=folder, **options)
            return suffix, path.read_bytes()

    return export

"""The supervisor: hands jobs to a worker process, times it out, restarts it, and never fails because of a program.

One worker at a time, since two programs that run together disturb each other's timing.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from tcl_core.errors import PlatformError
from tcl_core.measure.job import Job, Outcome, Setup

START_S = 120.0
# A worker is replaced after this many programs: LLVM's JIT never gives the code of a dropped module back.
RECYCLE = 500


class Runner:
    """Measures jobs one after the other in a process of their own.

    Use as a context manager; the worker starts with the first job.  ``measure`` always returns an Outcome; only a worker that cannot even start
    (a broken installation) raises PlatformError.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.tvm_version = ""
        self._process: subprocess.Popen | None = None
        self._connection: Connection | None = None
        self._served = 0
        self._log = tempfile.TemporaryFile()

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._stop()
        self._log.close()

    def measure(self, job: Job) -> Outcome:
        """Build, run and time one program; whatever it does to its process is an Outcome."""
        if self._process is None or self._process.poll() is not None or self._served >= RECYCLE:
            self._stop()
            self._start()
        self._served += 1
        try:
            self._connection.send(job)
            return self._follow(job)
        except (EOFError, OSError):
            return self._buried("crash", f"the process {self._death()}")

    def _follow(self, job: Job) -> Outcome:
        limits = self.setup.limits
        built = self._receive(limits.build_s)
        if built is None:
            return self._buried("timeout", f"not built within {limits.build_s:g} s")
        if built[0] == "failed":
            return Outcome("build", message=built[2])
        timed = self._receive(limits.run_s)
        if timed is None:
            return self._buried("timeout", f"not run within {limits.run_s:g} s")
        if timed[0] == "failed":
            return Outcome("run", message=timed[2], build_s=built[1])
        return self._checked(job, built[1], tuple(timed[1]))

    def _checked(self, job: Job, build_s: float, latencies_s: tuple[float, ...]) -> Outcome:
        from tcl_core.measure.worker import TOLERANCE

        done = self._receive(self.setup.limits.build_s + 2 * self.setup.limits.run_s)
        if done is None:  # the untuned program may be too slow to compare with: the timing stands, unchecked
            self._stop()
            return Outcome("ok", latencies_s, build_s=build_s)
        if done[0] == "failed":
            return Outcome("run", message=done[2], build_s=build_s)
        if done[1] is not None and done[1] > TOLERANCE:
            message = f"output differs from the untuned program's by {done[1]:.2g} of its magnitude"
            return Outcome("wrong-result", message=message, build_s=build_s)
        return Outcome("ok", latencies_s, checked=done[1] is not None, build_s=build_s)

    def _receive(self, timeout_s: float) -> tuple[Any, ...] | None:
        return self._connection.recv() if self._connection.poll(timeout_s) else None

    def _buried(self, error: str, message: str) -> Outcome:
        self._stop()
        return Outcome(error, message=message)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "tcl_core.measure.worker", str(theirs.fileno())]
            self._process = subprocess.Popen(
                [*command, str(self.setup.limits.memory_bytes)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                cwd=Path(__file__).parents[2],
            )
        self._connection = Connection(ours.detach())
        self._served = 0
        with contextlib.suppress(OSError, EOFError):
            self._connection.send(self.setup)
            ready = self._receive(START_S)
            if ready is not None:
                self.tvm_version = ready[1]
                return
        death = self._death()
        self._stop()
        raise PlatformError(f"the measuring process {death} at its start; its last words: {self._last_words()}")

    def _death(self) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "hung"
        if code >= 0:
            return f"exited with {code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
        return f"was killed by signal {-code}"

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "none"

    def _stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._connection = self._process = None

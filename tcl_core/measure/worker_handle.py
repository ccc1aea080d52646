"""A worker process as its supervisor sees it: asked one thing at a time, stopped when it is late, started again.

PDEATHSIG ties a worker to the thread that started it, so a single thread starts all workers.

A worker's answers are taken for mere data, JSON of a known form: a program that it runs may write to its socket too.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import struct
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tcl_core import sandbox
from tcl_core.errors import PlatformError
from tcl_core.files import shown
from tcl_core.measure.job import Setup
from tcl_core.platforms import USABLE_CORES

START_S = 120.0
# A worker that holds this much between two batches is replaced: some candidates leak what they allocate.
RECYCLE_BYTES = 2 << 30


class Failed(Exception):
    """The worker reports that the request failed, by the program's fault."""


class Late(Exception):
    """No answer in time; the worker was stopped, unless it reports that a remote device stopped the program."""


class Died(Exception):
    """The process at work on the program ended: the worker, or one on the device."""


class Stopped(Exception):
    """This process stopped the worker, at no program's fault."""


LONGEST_ANSWER = 1 << 20  # bytes
LONGEST_MESSAGE = 300  # characters of what went wrong
DEATH_S = 5.0  # seconds that a worker may take to end once its connection is gone
REST_S = 10  # seconds for the rest of an answer that has begun: a writer that stops midway must not block us

# What a worker answers instead of a result.
RAISED = {"failed": Failed, "crashed": Died, "late": Late, "impossible": PlatformError}


class WorkerHandle:
    """One worker; ``held``: numbers of the programs built in it, which are lost with it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.tvm_version = ""
        self.held: set[int] = set()
        self.process: subprocess.Popen | None = None
        self._connection: Connection | None = None
        self._until_closed = contextlib.ExitStack()
        self._log = self._until_closed.enter_context(tempfile.TemporaryFile())
        # Linkers write here, and leave files when they are killed; programs that run where they were built need no linker.
        links = setup.kind.apart
        self._scratch = self._until_closed.enter_context(sandbox.scratch_folder("worker")) if links else ""

    def ask(self, timeout_s: float, *request: Any) -> Any:
        """Send a request and return its answer.  Raises Failed, Late, Died or Stopped; PlatformError where no program is to blame."""
        try:
            self._connection.send(request)
            answer = self._receive(timeout_s)
            if answer is not None and not _is_answer(*answer, action=request[0]):
                raise ValueError
        except ValueError:
            self.stop()
            raise Died("the process gave an answer that is none") from None
        except (EOFError, OSError, AttributeError):  # no connection: another thread stopped this worker
            process = self.process
            if process is None:
                raise Stopped from None
            death = _death(process)
            self.stop()
            raise Died(f"the process {death}") from None
        if answer is None:
            self.stop()
            raise Late
        kind, said = answer
        if kind in RAISED:
            raise RAISED[kind](shown(said, LONGEST_MESSAGE))
        return said

    def _receive(self, timeout_s: float) -> tuple[str, Any] | None:
        """The answer; None if none comes in time, besides the wait for a remote device.  Raises ValueError for a malformed one."""
        while self._connection.poll(timeout_s):
            try:
                kind, said = json.loads(self._connection.recv_bytes(LONGEST_ANSWER))
            except (TypeError, RecursionError):
                raise ValueError from None
            if not isinstance(kind, str) or kind == "waiting" and self.setup.tracker is None:
                raise ValueError
            if kind != "waiting":
                return kind, said
        return None

    @property
    def is_alive(self) -> bool:
        return (process := self.process) is not None and _returncode(process) is None

    def launch(self) -> None:
        """Start a worker, unless a sound one runs, without waiting for it.  Raises PlatformError where the system cannot start one."""
        if self.is_alive and self._resident_bytes() < RECYCLE_BYTES:
            return
        self.stop()
        try:
            with contextlib.ExitStack() as ends:
                ours, theirs = (ends.enter_context(end) for end in socket.socketpair())
                self._start(theirs)
                for one_way in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # a frozen worker does not read either
                    ours.setsockopt(socket.SOL_SOCKET, one_way, struct.pack("ll", REST_S, 0))
                self._connection = Connection(ours.detach())
        except OSError as error:
            why = os.strerror(error.errno or 0).lower()
            raise PlatformError(f"no measuring process can be started ({why}); end what other processes hold, and run again") from error
        self.tvm_version = ""

    def _start(self, theirs: socket.socket) -> None:
        cores = ",".join(map(str, sorted(USABLE_CORES)))  # this process may be bound to fewer meanwhile
        self.process = subprocess.Popen(
            [*self._command(), str(theirs.fileno()), str(self.setup.limits.memory_bytes), cores],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=Path(__file__).parents[2],
            env=os.environ | ({"TMPDIR": self._scratch} if self._scratch else {}),
            process_group=0,  # its own, which its compilers join
        )

    def _command(self) -> list[str]:
        """The worker's command.  Programs may come from strangers: it may only compute, unless it needs a device or a linker."""
        return sandbox.command("tcl_core.measure.worker", sandbox.Rights(scratch=self._scratch, outside=bool(self._scratch)))

    def wait_until_ready(self) -> None:
        """Wait until the worker can take requests.  Raises PlatformError where it cannot start (a broken installation)."""
        if self.tvm_version:
            return
        with contextlib.suppress(OSError, EOFError, ValueError):
            self._connection.send(self.setup)
            ready = self._receive(START_S)
            if ready is not None and isinstance(ready[1], str):
                self.tvm_version = ready[1]
                return
        death = _death(self.process)
        self.stop()
        raise PlatformError(
            f"the measuring process {death} at its start; its last words: {self._last_words()}; run it again, and if it ends so again, install TCL anew"
        )

    def _resident_bytes(self) -> int:
        try:
            pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "none"

    def stop(self) -> None:
        """Kill the worker, whatever it is doing, and the compilers that it started."""
        connection, process, self._connection, self.process = self._connection, self.process, None, None
        if process is not None:
            if process.returncode is None:  # else it was waited for, and its number may be another's
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if connection is not None:
            connection.close()
        self.held.clear()

    def close(self) -> None:
        self.stop()
        self._until_closed.close()


def _is_answer(kind: str, said: Any, action: str) -> bool:
    """Whether this is a valid answer to the action: seconds for builds, sentinels and repeats, a difference for checks."""
    if kind in RAISED:
        return isinstance(said, str)
    if action == "time":
        there = _is_number(said) and 0 < said < math.inf
    else:
        there = action not in ("build", "sentinel", "check") or _is_number(said)
    return kind == "done" and there


def _is_number(said: Any) -> bool:
    return isinstance(said, int | float) and not isinstance(said, bool) and not math.isnan(said)


def _returncode(process: subprocess.Popen) -> int | None:
    """As ``process.poll()``, but an ended process stays to be waited for: until then its number, which its group has too, is no other's."""
    if process.returncode is not None:
        return process.returncode
    try:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # another thread's ``stop`` has just waited for it
        return process.wait()
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _death(process: subprocess.Popen) -> str:
    end = time.monotonic() + DEATH_S
    while (code := _returncode(process)) is None:
        if time.monotonic() > end:
            return "hung"
        time.sleep(0.01)
    if code >= 0:
        return f"exited with {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"

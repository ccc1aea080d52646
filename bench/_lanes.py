"""Lanes in which trials run: a disposable copy of a project, and a warm process that forks its commands.

Importing torch, TVM and MLflow takes longer than most commands on a tiny project.  So each lane has a server that has
imported them and has no further threads yet; a trial is a fork of it, in a session of its own, with a time limit.  The
server runs with ``_kill_at.c`` loaded before libc, and so does all that its children start.

    python bench/_lanes.py      is such a server: requests and replies are lines of JSON
"""

from __future__ import annotations

import fcntl
import importlib
import json
import mmap
import os
import resource
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("_kill_at.c")
PATH_MAX = 4096
TRAP = struct.Struct(f"llii{PATH_MAX}s{PATH_MAX + 64}s")  # struct trap of _kill_at.c
COUNT, KILL_PROCESS, KILL_GROUP, DISK_FULL = range(4)
SAID = 20_000  # bytes of a command's output that are kept
IMPORTED_LATE = ("torch._dynamo", "xgboost", "matplotlib.pyplot", "alembic.command", "tcl_core.models.trees")
STUCK = None  # the exit code of a command that did not end in time


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    code     exit code, the negative signal that killed it, or STUCK
    said     the end of what it printed
    calls    number of changes below the project that it attempted; ``hit``: the one at which the trap sprang
    """

    code: int | None
    said: str
    seconds: float
    calls: int = 0
    hit: str = ""

    @property
    def sentence(self) -> str:
        lines = [line for line in self.said.splitlines() if line.startswith("tcl: ")] or self.said.split("\n")[-3:]
        return " ".join(lines)[:300].strip()


@dataclass(frozen=True)
class Harm:
    """What is done to a command while it runs; nothing by default.

    at           number of the call below the project at which ``mode`` happens, from 1
    after_s      kill after this time instead: the process, or with ``group`` its whole session
    largest_file bytes that no file may exceed (RLIMIT_FSIZE)
    """

    mode: int = COUNT
    at: int = 0
    after_s: float | None = None
    group: bool = False
    largest_file: int | None = None


def build_shim(folder: Path) -> Path:
    """Compile ``_kill_at.c``; return the shared library."""
    library = folder / "kill_at.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl"], check=True)
    return library


@dataclass
class Lane:
    """One place for trials, with its server; ``run`` takes one command at a time."""

    folder: Path
    server: subprocess.Popen
    trap: mmap.mmap = field(repr=False)
    holds: str = ""  # the part whose project it holds, where one project serves many trials

    @classmethod
    def start(cls, folder: Path, shim: Path, environment: dict[str, str], warm: bool = True) -> Lane:
        """Start a lane and its server.  ``warm``: the server imports what `tcl` needs; else it is for programs given by path."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "project").mkdir(exist_ok=True)
        path = folder / "trap"
        path.write_bytes(bytes(TRAP.size))
        with open(path, "r+b") as file:
            trap = mmap.mmap(file.fileno(), TRAP.size)
        given = environment | {"LD_PRELOAD": str(shim), "TCL_TRAP": str(path), "PYTHONPATH": str(SOURCE.parents[1])}
        command = [sys.executable, __file__, *(["--warm"] if warm else [])]
        pipe = subprocess.PIPE
        server = subprocess.Popen(command, cwd=folder, env=given, stdin=pipe, stdout=pipe, text=True)
        return cls(folder, server, trap)

    @property
    def project(self) -> Path:
        return self.folder / "project"

    def run(self, *argv: str, limit_s: float = 60.0, harm: Harm = Harm()) -> Outcome:
        """Run a command in the project: a `tcl` command, unless its name is a program's path."""
        return self.run_all([argv], [0.0], limit_s, harm)[0]

    def run_all(
        self, argvs: Sequence[Sequence[str]], delays_s: Sequence[float], limit_s: float = 60.0, harm: Harm = Harm()
    ) -> list[Outcome]:
        """Run several commands at once, each started after its delay."""
        self.trap[:] = TRAP.pack(harm.at, 0, harm.mode, 0, f"{self.project}/".encode(), b"")
        request = {"argvs": argvs, "delays_s": delays_s, "limit_s": limit_s, "after_s": harm.after_s}
        request |= {"group": harm.group, "largest_file": harm.largest_file}
        print(json.dumps(request), file=self.server.stdin, flush=True)
        replies = json.loads(self.server.stdout.readline())
        _, calls, _, fired, _, hit = TRAP.unpack(self.trap[:])
        where = hit.partition(b"\0")[0].decode(errors="replace") if fired else ""
        return [Outcome(**reply, calls=calls, hit=where) for reply in replies]

    def close(self) -> None:
        self.server.stdin.close()
        try:
            self.server.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.server.kill()


# --- the server ---


def serve() -> None:
    """Answer requests until stdin ends; each command runs, and ends, in a forked child (``_become``)."""
    if "--warm" in sys.argv:
        _import_all()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for all else that prints
    for line in sys.stdin:
        request = json.loads(line)
        started = []
        for number in range(len(request["argvs"])):
            said, saying = _pipe()
            child = os.fork()
            if child == 0:
                replies.close()
                _become(request, number, saying)
            os.close(saying)
            started.append((child, said))
        answer = [_watch(child, request, said) for child, said in started]
        print(json.dumps(answer), file=replies, flush=True)


def _pipe() -> tuple[int, int]:
    """A pipe for a command's output (files may be limited); nothing reads it while the command runs, so it must hold much."""
    said, saying = os.pipe()
    fcntl.fcntl(said, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.set_blocking(said, False)
    return said, saying


def _import_all() -> None:
    from tcl_core import environment  # noqa: F401  (before torch is imported)

    import torch  # noqa: F401  (before TVM)

    from tcl_core.compat import load_tvm

    load_tvm()
    import mlflow.pyfunc
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import tcl_core.cli  # noqa: F401
    from tcl_core.evaluation import plots, report  # noqa: F401

    for stage in (
        "baselines",
        "candidates",
        "collecting",
        "exchange",
        "judging",
        "listing",
        "overview",
        "predict",
        "promotion",
        "training",
        "tuning",
    ):
        importlib.import_module(f"tcl_core.stages.{stage}")
    from tcl_core.tuning import network  # noqa: F401

    for module in IMPORTED_LATE:
        importlib.import_module(module)

    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    threads = [name for name in names if not name.startswith("jemalloc")]  # jemalloc restarts its own after a fork
    if len(threads) > 1:
        raise SystemExit(f"the server has the threads {threads}, and a fork would lose them")


def _become(request: dict[str, Any], number: int, saying: int) -> None:
    """Run the command in a forked child and end it."""
    os.setsid()
    os.chdir("project")
    null = os.open(os.devnull, os.O_RDONLY)
    for there, here in ((null, 0), (saying, 1), (saying, 2)):
        os.dup2(there, here)
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode) for number, mode in ((0, "r"), (1, "w"), (2, "w")))
    if request["largest_file"] is not None:
        sys.dont_write_bytecode = True  # Python would leave truncated files
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest_file"],) * 2)
    os.environ["PWD"] = os.getcwd()
    time.sleep(request["delays_s"][number])
    argv = request["argvs"][number]
    if "/" in argv[0]:
        os.execvp(argv[0], argv)
    import tcl_core.cli

    sys.argv = ["tcl", *argv]
    code = 1
    try:
        tcl_core.cli.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        _finish(code)


def _finish(code: int) -> None:
    """Exit as the interpreter does, but without spending seconds on freeing what was imported."""
    import atexit
    import threading

    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _watch(child: int, request: dict[str, Any], said: int) -> dict[str, Any]:
    """Wait for a child, kill it at the requested time, and end its whole session at the time limit."""
    start, limit, kill_at = time.monotonic(), request["limit_s"], request["after_s"]
    pidfd = os.pidfd_open(child)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    first = limit if kill_at is None else min(kill_at, limit)
    ended = poll.poll(first * 1000)
    if not ended and kill_at is not None and kill_at < limit:
        _kill(child, group=request["group"])
        ended = poll.poll(20_000)
    if not ended:
        _kill(child, group=True)
    _, status = os.waitpid(child, 0)
    os.close(pidfd)
    seconds = time.monotonic() - start
    return {"code": os.waitstatus_to_exitcode(status) if ended else STUCK, "said": _all_of(said), "seconds": seconds}


def _all_of(pipe: int) -> str:
    """The end of what is in the pipe by now, as text; a process that is left may still hold its other end."""
    found = b""
    with suppress(BlockingIOError):
        while some := os.read(pipe, 1 << 16):
            found += some
    os.close(pipe)
    return found[-SAID:].decode(errors="replace")


def _kill(child: int, group: bool) -> None:
    try:
        (os.killpg if group else os.kill)(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    serve()

"""The processes behind `tcl device serve`: TVM's RPC tracker, and a server on a device.

    python -m tcl_core.measure.serving tracker HOST PORT
    python -m tcl_core.measure.serving server HOST PORT KEY TRACKER_HOST TRACKER_PORT     PORT 0: the first free one

TVM's own server stops listening for good once a program crashes the process that serves a session; this one goes on,
and its sessions die with it.  It also describes its host, and sets the runtime's threads as the local workers do.
RPC has no authentication: whoever can connect can run any program.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tcl_core.compat import calling_thread_pinned, load_tvm, set_threads
from tcl_core.errors import PlatformError, last_line
from tcl_core.platforms import copy_bandwidth_gbs, host_fields, host_fingerprint, threads
from tcl_core.process import die_with_parent
from tcl_core.sandbox import scratch_folder

END_S = 5.0  # for a process to end by itself after its last word
SERVER_PORTS = (9091, 9190)  # the first free one of these, all below the tracker's
DESCRIBE, SET_THREADS = "tcl.device.describe", "tcl.device.set_threads"
_until_the_end = ExitStack()


class Served:
    """A tracker or a server that this process started; ``port`` is where it listens."""

    def __init__(self, role: str, *arguments: Any) -> None:
        command = [sys.executable, "-m", "tcl_core.measure.serving", role, *map(str, arguments)]
        self._until_stopped = ExitStack()
        scratch = self._until_stopped.enter_context(scratch_folder("serving"))  # holds uploads while a session needs them
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env=os.environ | {"TMPDIR": scratch},
            text=True,
        )
        said = self.process.stdout.readline().strip()
        if not said.isdecimal():
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
            self.stop()
            raise PlatformError(
                f"the {role} exited with {self.process.returncode} at its start ({said or 'no word'}); if its port is taken, give another"
            )
        self.port = int(said)

    def stop(self) -> None:
        """Kill the process, and with it the sessions that it serves."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self._until_stopped.close()


def start_tracker(host: str, port: int) -> Served:
    """Start a tracker.  Raises PlatformError where it exits at its start, as with a taken port."""
    return Served("tracker", host, port)


def start_server(host: str, port: int, key: str, tracker: tuple[str, int]) -> Served:
    """Start a server that registers with the tracker under ``key``; port 0: the first free one.  Raises as ``start_tracker``."""
    return Served("server", host, port, key, *tracker)


def _run_tracker(host: str, port: str) -> Any:
    from tvm.rpc.tracker import PopenTrackerServerState, logger

    logger.addFilter(lambda record: not any(isinstance(about, ConnectionError) for about in record.args or ()))  # peers that left
    return PopenTrackerServerState(host, int(port), int(port) + 1, silent=True)


def _run_server(host: str, port: str, key: str, tracker_host: str, tracker_port: str) -> Any:
    from tvm.rpc import server

    _register_functions()
    server._serve_loop = _dying_with_the_server(server._serve_loop)
    server._serving = _surviving_crashes(server._serving)
    # TVM's own server gives up after a minute without a tracker, which would lose every board.
    server.base.connect_with_retry = partial(server.base.connect_with_retry, timeout=math.inf)
    first, end = (int(port), int(port) + 1) if int(port) else SERVER_PORTS
    reached_at = None if host in ("0.0.0.0", "::") else host  # None: where the tracker sees the server
    tracker = (tracker_host, int(tracker_port))
    return server.PopenRPCServerState(host, first, end, tracker_addr=tracker, key=key, custom_addr=reached_at, silent=True)


def _register_functions() -> None:
    """Register what a session can call beyond TVM's own functions."""
    import tvm_ffi

    hardware = {**host_fields(), "bandwidth_gbs": copy_bandwidth_gbs()}
    described = json.dumps({"host": host_fingerprint(), "hardware": hardware})
    tvm_ffi.register_global_func(DESCRIBE, lambda: described)
    tvm_ffi.register_global_func(SET_THREADS, _set_threads)


def _set_threads(count: int, pinned: int) -> None:
    """Set the runtime's threads for the rest of the session, whose process serves nothing else."""
    set_threads(count, bool(pinned))
    if pinned:
        _until_the_end.enter_context(calling_thread_pinned())


def _dying_with_the_server(serve_loop: Callable[..., None]) -> Callable[..., None]:
    """Wrap a session's loop so that its process dies with a killed server instead of working on for nobody."""

    def serve(*arguments: Any) -> None:
        die_with_parent()
        serve_loop(*arguments)

    return serve


def _surviving_crashes(serving: Callable[..., None]) -> Callable[..., None]:
    """Wrap the serving of a session so that the server goes on to the next one, however the session's process ends."""

    def serve(sock: Any, address: Any, options: dict[str, Any], libraries: str | None) -> None:
        folder = os.getcwd()
        try:
            serving(sock, address, options, libraries)
        except Exception as crash:  # TVM's own; OSError: no memory or space to start it; psutil's: its process just ended
            print(f"a session ended badly ({crash}); the next one is served", file=sys.stderr, flush=True)
            os.chdir(folder)
            sock.close()

    return serve


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.setdefault("TVM_NUM_THREADS", str(threads()))
    load_tvm(without_torch=True)
    role, *arguments = sys.argv[1:]
    try:
        state = {"tracker": _run_tracker, "server": _run_server}[role](*arguments)
    except (OSError, ValueError) as error:  # ValueError: TVM's for a port that is taken
        print(last_line(error), flush=True)
        sys.exit(1)
    print(state.port, flush=True)
    state.thread.join()


if __name__ == "__main__":
    main()

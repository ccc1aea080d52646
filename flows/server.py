"""Prefect's API for one run where PREFECT_API_URL names none: a child process of ours instead of Prefect's own.

Prefect's temporary server ends on the terminal's Ctrl-C before the run's end is saved, and stays behind when the flow
is killed.  This one does not get the terminal's signals and never outlives the flow.

Run by ``prefect_api`` only:  python -m flows.server PORT
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import UUID

from tcl_core.errors import PlatformError
from tcl_core.files import shown
from tcl_core.process import PARENT_PID, end_with_parents
from tcl_core.progress import say

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State, TaskRun

HOOK_SAYS = ("Running hook 'begun'", "Hook 'begun'")  # beginnings of two useless log lines per task

POOL = "sqlalchemy.pool.impl.AsyncAdaptedQueuePool"  # the logger of the server's connections
START_S = 180.0  # a new database on a busy machine takes its time
_begun: dict[UUID, set[UUID]] = defaultdict(set)  # flow run -> its task runs that began in this process


def _says_something(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(HOOK_SAYS)


@contextmanager
def prefect_api() -> Iterator[None]:
    """Context in which flows have an API: the one that is set, else a temporary one with the database of ``.prefect``.

    Raises PlatformError where the server does not answer, refuses, or does not start.
    """
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    logging.getLogger("prefect.task_runs").addFilter(_says_something)
    if url := PREFECT_API_URL.value():
        with get_client(sync_client=True) as client:
            if client.api_healthcheck() is not None:
                raise PlatformError(f"no Prefect server answers at {url}; start it, or unset PREFECT_API_URL")
            with refusals_told(url):
                client.read_flows(limit=1)  # whoever may ask this may run a flow; the health check answers everybody
        yield
        return
    logging.getLogger("prefect.flow_runs").addFilter(lambda record: not record.getMessage().startswith("View at"))
    port = _free_port()
    server = subprocess.Popen([sys.executable, "-m", "flows.server", str(port)], env=_environment(), start_new_session=True)
    atexit.register(server.terminate)  # registered first, so it runs last: Prefect's threads send until the end
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api"}):
        _wait_until_up(server)
        yield


@contextmanager
def refusals_told(url: str) -> Iterator[None]:
    """Raise PlatformError for what the server at ``url`` refuses."""
    from httpx import HTTPError

    try:
        yield
    except (HTTPError, RuntimeError) as error:
        if getattr(getattr(error, "response", None), "status_code", None) == 401:
            raise PlatformError(f"the Prefect server at {url} asks for a password; export PREFECT_API_AUTH_STRING=user:password") from None
        raise PlatformError(f"the Prefect server at {url} refused ({shown(error)}); see that it is of this version of Prefect") from error


def begun(_task: Task, run: TaskRun, _state: State) -> None:
    """Hook of every task: note its run, so that ``wait_until_recorded`` waits for it even if the server does not know it yet."""
    if run.flow_run_id is not None:
        _begun[run.flow_run_id].add(run.id)


def wait_until_recorded(flow_run_id: UUID, patience_s: float = 15.0) -> None:
    """Wait, up to ``patience_s``, until the end of every task run is saved: Prefect sends it in the background."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    of_this_run = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    deadline = time.monotonic() + patience_s
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            runs = client.read_task_runs(flow_run_filter=of_this_run)
            ended = {run.id for run in runs if run.state and run.state.is_final()}
            if len(ended) == len(runs) and ended >= _begun[flow_run_id]:
                return
            time.sleep(0.2)


def _wait_until_up(server: subprocess.Popen) -> None:
    from prefect.client.orchestration import get_client

    deadline = time.monotonic() + START_S
    with get_client(sync_client=True) as client:
        while client.api_healthcheck() is not None:
            if server.poll() is not None or time.monotonic() > deadline:
                raise PlatformError("Prefect's server did not start; to see why, run: prefect server start")
            time.sleep(0.2)


def _environment() -> dict[str, str]:
    only_api = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
    return {**os.environ, **only_api, PARENT_PID: str(os.getpid())}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(port: int) -> None:
    import uvicorn

    end_with_parents(say)
    server = uvicorn.Server(
        uvicorn.Config("prefect.server.api.server:create_app", factory=True, host="127.0.0.1", port=port, log_level="error")
    )
    # Database queries under way when the server ends are cancelled; its pool logs that as an error, even after a run that ended well.
    logging.getLogger(POOL).addFilter(lambda record: not server.should_exit)
    server.run()


if __name__ == "__main__":
    serve(int(sys.argv[1]))

"""Lowers programs in advance, here or on Dask workers, so that training and evaluation find their caches filled.

Lowering is the costliest work besides measuring and training, about 10 ms per program.  The section ``run`` of params.yaml
says where it is done.  On Dask each Prefect task lowers programs of one tuning task; a worker is sent its inputs and returns
its results: it needs this package and TVM, none of the data.

Run it:  python -m flows.features
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture, as_completed
from prefect.task_runners import TaskRunner

from flows.dvc_stage import only_run
from flows.server import begun, prefect_api, wait_until_recorded
from tcl_core.errors import PlatformError, TclError, naming_extras
from tcl_core.features import per_store
from tcl_core.features.per_store import LoweringJob
from tcl_core.files import shown
from tcl_core.params import Run, load_params
from tcl_core.platforms import threads
from tcl_core.process import INTERRUPTED
from tcl_core.progress import say

PROGRAMS = 256  # per Prefect task, whose overhead is about 50 ms


def dask_workers(run: Run) -> TaskRunner:
    """Prefect's task runner on Dask, here or where ``run`` says.  Raises UsageError where it is not installed."""
    with naming_extras():
        from prefect_dask import DaskTaskRunner
    if run.scheduler:
        return DaskTaskRunner(address=run.scheduler)
    return DaskTaskRunner(cluster_kwargs={"n_workers": run.workers or threads(), "threads_per_worker": 1, "dashboard_address": None})


def lower_programs(run: Run, **options: bool) -> Any:
    """Fill the caches that the stages will read; return the number of programs.  ``options`` are those of a flow's call."""
    chosen = lowering.with_options(task_runner=dask_workers(run)) if run.engine == "dask" else lowering
    return chosen(run.engine, **options)


@flow(name="tcl-features")
def lowering(engine: str) -> int:
    """``engine`` is dask, or local: processes of this machine, as in the stages themselves."""
    from tcl_core.stages.features import programs_to_lower
    from tcl_core.stages.workspace import Workspace

    workspace = Workspace()
    keys = programs_to_lower(workspace)
    elsewhere = {"engine": mapped, "chunk": PROGRAMS} if engine == "dask" else {}
    per_store.read_per_store(keys, workspace.encoder, workspace.per_store, **elsewhere)
    return len(keys)


def mapped(jobs: Iterable[LoweringJob]) -> Iterator[tuple[LoweringJob, list[np.ndarray]]]:
    """Each job with the per-store features of its programs, in the order in which workers finish.

    Raises the TclError that a worker raised, PlatformError for other failures and for a worker with another TVM.
    """
    futures = {lower.submit(pickle.dumps(job)): job for job in jobs}  # bytes: Prefect would search anything else for futures
    for future in as_completed(list(futures)):
        found = _answer(future)
        if isinstance(found, TclError):
            raise found
        if isinstance(found, BaseException):
            raise PlatformError(f"a worker could not lower its programs ({_first_line(found)}); {_mend(found)}")
        made_by, rows = found
        if made_by != per_store.FORMAT:
            raise PlatformError(
                f"a worker has TVM {made_by.split()[-1]}, and this machine {per_store.TVM_VERSION}; install the same on both"
            )
        yield futures[future], rows


def _answer(future: PrefectFuture) -> Any:
    """A worker's result, or the error that it met, even before the task began."""
    try:
        return future.result(raise_on_failure=False)
    except Exception as error:  # Dask's, or Prefect's on a worker
        return error


def _first_line(error: BaseException) -> str:
    return shown((str(error).strip().splitlines() or [type(error).__name__])[0])


def _mend(error: BaseException) -> str:
    """What to do about an error; recognises the usual problems of workers on other machines."""
    causes = [error, error.__cause__, error.__context__]
    if any(isinstance(cause, ModuleNotFoundError) for cause in causes):
        return "start scheduler and workers in a folder with this project's code, as: python -m dask worker ADDRESS"
    if "Failed to reach API" in str(error):
        return "workers of other machines need a Prefect server that they reach: start one, and set PREFECT_API_URL to its address there"
    if "connection" in str(error):
        return "see whether Dask's scheduler is still there; what was done is kept: run again"
    return "what was done is kept: run again, on one worker to see it"


@task(cache_policy=NO_CACHE, on_running=[begun], name="lower", persist_result=False)
def lower(job: bytes) -> tuple[str, list[np.ndarray]]:
    """What makes the per-store features, in which version, and those of the pickled job's programs."""
    return per_store.FORMAT, per_store.extract(pickle.loads(job))


def main() -> int:
    try:
        run = load_params().run  # outside a project nothing is begun
        with only_run(), prefect_api():
            state = lower_programs(run, return_state=True)
            wait_until_recorded(state.state_details.flow_run_id)
        found = state.result(raise_on_failure=False)
    except KeyboardInterrupt:
        say(f"\ntcl: {INTERRUPTED}")
        return 130
    except TclError as failed_start:
        found = failed_start
    if isinstance(found, BaseException):
        say(f"tcl: {found}")
        return getattr(found, "exit_code", 1)
    say(f"{found} programs are lowered, as training and evaluating will read them", sys.stdout)
    return 0


if __name__ == "__main__":
    from flows import features  # by the name that workers can import: functions of __main__ would be sent to them by value

    sys.exit(features.main())

"""The whole pipeline as a Prefect flow.  ``stages.diagram`` is the picture; DVC decides what of it is out of date.

Run it:  python -m flows.pipeline [--force-collect PLATFORM] [--force-holdout PLATFORM]
On a schedule: ``flows.serve``.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from flows import report
from flows.dvc_stage import StageFailed, only_run, reproduce, run_command
from flows.features import lower_programs
from flows.server import begun, prefect_api, wait_until_recorded
from tcl_core import store
from tcl_core.errors import BusyError, PlatformError, TclError, unknown_name
from tcl_core.params import load_params
from tcl_core.process import INTERRUPTED
from tcl_core.progress import say
from tcl_core.registry import FLOW_RUN_ID
from tcl_core.stages.collecting import reason_to_skip
from tcl_core.stages.diagram import OUTPUTS, diagram
from tcl_core.stages.overview import summarise, summary_text
from tcl_core.stages.starting import outdated

RETRY_DELAY_S = 10
BUSY = "Busy"  # final state of a run that another process, at work in the same folder, kept from its work


@dataclass(frozen=True)
class Done:
    """A finished step, passed to the steps that build on it; ``skipped``: why this machine could not do it."""

    name: str
    skipped: str | None = None


@flow(name="tcl")
def pipeline(force_collect: tuple[str, ...] = (), force_holdout: tuple[str, ...] = (), wait_minutes: float = 0) -> State | None:
    """Measure, train along the chain, evaluate, register, promote and tune: whatever of it is not up to date.

    Args:
        force_collect: Platforms whose training programs are all measured again, although nothing changed.
        force_holdout: Platforms whose held-out programs are all measured again, although nothing changed.
        wait_minutes: How long to wait for another run in this folder, before this one ends as Busy.
    """
    return alone(lambda: whole_pipeline(force_collect, force_holdout), wait_minutes)


def whole_pipeline(force_collect: tuple[str, ...], force_holdout: tuple[str, ...]) -> None:
    if names := outdated(report.HERE.root):
        get_run_logger().warning(
            f"dvc.yaml has not this TCL's {', '.join(names)}: it was changed, or written by another version; copy dvc.yaml and flows/ "
            "from a fresh project (tcl init NAME), and run: dvc repro --force"
        )
    params = load_params()
    for platform in (*force_collect, *force_holdout):
        if platform not in params.platforms:
            raise unknown_name("platform", platform, params.platforms, "params.yaml")
    forced = {*(f"collect@{platform}" for platform in force_collect), *(f"holdout@{platform}" for platform in force_holdout)}

    def stage(name: str, *inputs: Done) -> Done:
        if name == "train" and params.run.engine == "dask":  # everything is measured by then
            lower_programs(params.run)
        return run_stage(name, *inputs, force=name in forced)

    evaluated = diagram(params, stage)
    registered = command("register", evaluated)
    promoted = command("promote", registered)
    tuned = command("tune", promoted)
    written = command("report", tuned)
    summary(written)


def alone(work: Callable[[], State | None], wait_minutes: float) -> State | None:
    """Do a flow's work while no other run is at work in this folder.  A TclError becomes a state with its sentence as message.

    A run that waited in vain for another process ends as ``BUSY``, a kind of Cancelled: the next scheduled one does the work.  The
    name is an alert's: the other process may have been stopped, and would then hold up every later run.
    """
    try:
        with only_run(wait_minutes * 60, get_run_logger().info):
            return work()
    except TclError as error:
        if is_busy(error):
            return Cancelled(name=BUSY, message=str(error), data=error)
        return Failed(message=str(error), data=error)


def is_busy(error: TclError) -> bool:
    """Whether another process is busy with the same measurement, and will be for long."""
    return error.exit_code == BusyError.exit_code


def run_stage(name: str, *inputs: Done, force: bool = False) -> Done:
    """Run one DVC stage as a task; only measuring is retried, since its failures may be transient."""
    title, measures = name.replace("@", " "), name.startswith(("collect@", "holdout@"))
    options = dict(retries=2, retry_delay_seconds=RETRY_DELAY_S, retry_condition_fn=world_failed) if measures else {}
    return stage_task.with_options(name=title, task_run_name=title, **options)(name, inputs, force)


@task(cache_policy=NO_CACHE, on_running=[begun])
def stage_task(name: str, inputs: tuple[Done, ...], force: bool) -> Done | State:
    """Reproduce one DVC stage; ``inputs`` are here for the arrows between tasks."""
    log, (kind, _, platform) = get_run_logger(), name.partition("@")
    rounds = report.Rounds(platform) if kind == "collect" else None

    def watch() -> None:
        for step in rounds.new() if rounds else ():
            log.info(report.one_line(step))

    log.info("started")
    # A retry is forced too, since DVC finds the old records up to date; what this try measured is not measured again (``FORCED``).
    said = reproduce(name, {FLOW_RUN_ID: str(flow_run.id)}, watch, force, anew=can_now(kind, platform))
    skipped = reason_skipped(kind, platform)
    if skipped:
        log.warning(f"skipped: {skipped}")
        return Completed(name="Skipped", message=skipped, data=Done(name, skipped))
    log.info(said or "up to date")
    if kind == "collect":
        report.show_rounds(platform)
        report.show_errors()
    if kind == "evaluate":
        report.show_evaluation()
    return Done(name)


def command(name: str, *inputs: Done) -> Done:
    """Run one `tcl` command, which leaves history rather than reproducible bytes, as a task."""
    return command_task.with_options(name=name, task_run_name=name)(name, inputs)


@task(cache_policy=NO_CACHE, on_running=[begun])
def command_task(name: str, inputs: tuple[Done, ...], arguments: Sequence[str] = ()) -> Done | State:
    log = get_run_logger()
    log.info(run_command(name, {FLOW_RUN_ID: str(flow_run.id)}, arguments) or "done")
    if name == "report":
        report.show_page()
    return Done(name)


@task(cache_policy=NO_CACHE, on_running=[begun], name="summary", task_run_name="summary")
def summary(written: Done) -> None:
    """Close with what this run measured, learned, promoted and tuned."""
    text = summary_text(summarise(report.HERE), report.HERE.reports)
    report.show_summary(text)
    say(text, sys.stdout)


def reason_skipped(kind: str, platform: str) -> str | None:
    """Why a stage skipped its platform; None if it did not."""
    return store.skipped_reason(OUTPUTS[kind](report.HERE, platform)) if kind in OUTPUTS else None


def can_now(kind: str, platform: str) -> bool:
    """Whether a measuring stage was skipped but this machine can run it: another machine skipped it, and DVC cannot tell."""
    if kind not in ("collect", "holdout") or reason_skipped(kind, platform) is None or platform not in report.HERE.params.platforms:
        return False
    with suppress(PlatformError):  # no platform can be measured here: the stage says so itself
        return reason_to_skip(report.HERE, platform) is None
    return False


def world_failed(_task, _run, state) -> bool:
    """Whether a retry can help: hardware, compiler or worker failed (4).

    A bug (1), a wrong parameter (2), damaged data (3) and the registry (5) would fail again, and another process at the
    same journal (6) goes on for long.
    """
    error = state.result(raise_on_failure=False)
    return isinstance(error, StageFailed) and error.exit_code == PlatformError.exit_code


class OneSentence(logging.Filter):
    """Drops the traceback of a TclError, whose sentence says everything."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], TclError):
            record.exc_info = None
        return True


for logger in ("prefect.flow_runs", "prefect.task_runs"):
    logging.getLogger(logger).addFilter(OneSentence())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.pipeline", description=pipeline.__doc__)
    parser.add_argument(
        "--force-collect",
        action="append",
        default=[],
        metavar="PLATFORM",
        help="measure this platform again, although nothing changed; may be given several times",
    )
    parser.add_argument("--force-holdout", action="append", default=[], metavar="PLATFORM", help="the same of its held-out programs")
    arguments = parser.parse_args()
    try:
        load_params()  # outside a project nothing is begun
        with prefect_api():
            state = pipeline(tuple(arguments.force_collect), tuple(arguments.force_holdout), return_state=True)
            wait_until_recorded(state.state_details.flow_run_id)
        if state.is_completed():
            return 0
        error = state.result(raise_on_failure=False)
    except KeyboardInterrupt:
        say(f"\ntcl: {INTERRUPTED}")
        return 130
    except TclError as failed_start:
        error = failed_start
    say(f"tcl: {error}")
    return getattr(error, "exit_code", 1)


if __name__ == "__main__":
    sys.exit(main())

"""Parts of the pipeline as flows of their own, scheduled or started by hand in Prefect's UI."""

from __future__ import annotations

from typing import Literal

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.deployments import run_deployment
from prefect.runtime import flow_run
from prefect.states import Completed

from flows import report
from flows.dvc_stage import StageFailed, run_command
from flows.pipeline import Done, alone, command_task, reason_skipped, run_stage
from tcl_core.errors import DRIFT
from tcl_core.params import load_params
from tcl_core.registry import FLOW_RUN_ID

WAIT_MINUTES = 60.0
PIPELINE = "tcl/pipeline"  # the deployment that brings everything up to date
UNDECIDED, TIMES = "Undecided", 7  # final state of a drift check once TIMES of them in a row were undecided


@flow(name="stage", flow_run_name="{name}")
def stage(name: str, force: bool = False, wait_minutes: float = WAIT_MINUTES) -> State | None:
    """Bring one stage of dvc.yaml up to date, without the stages before it.

    Args:
        name: The stage as DVC calls it, such as collect@host-avx2.
        force: Run it although nothing changed; a stage that measures then measures everything anew.
        wait_minutes: How long to wait for another run in this folder, before this one ends as Busy.
    """
    return alone(lambda: _last(run_stage(name, force=force)), wait_minutes)


@flow(name="registry", flow_run_name="{action} {platform}")
def registry(action: Literal["register", "promote"], platform: str = "", wait_minutes: float = WAIT_MINUTES) -> State | None:
    """Put models into the registry, or make the better ones champions.

    Args:
        action: register or promote.
        platform: A platform of params.yaml; empty: each of the chain.
        wait_minutes: How long to wait for another run in this folder, before this one ends as Busy.
    """
    return alone(lambda: _command(action, ["--platform", platform] if platform else []), wait_minutes)


@flow(name="tune", flow_run_name="tune {network} {platform}")
def tune(network: str = "", platform: str = "", trials: int = 0, force: bool = False, wait_minutes: float = WAIT_MINUTES) -> State | None:
    """Search fast programs for a network with a platform's champion.

    Args:
        network: The network, a name or a file; empty: that of params.yaml.
        platform: A platform of params.yaml; empty: the chain's last.
        trials: Programs to measure; 0: as many as params.yaml says.
        force: Tune anew what was tuned with this champion.
        wait_minutes: How long to wait for another run in this folder, before this one ends as Busy.
    """
    given = {"--platform": platform, "--trials": str(trials) if trials else ""}
    words = [network] * bool(network) + [word for option, value in given.items() if value for word in (option, value)]
    return alone(lambda: _command("tune", [*words, *["--force"] * force]), wait_minutes)


@flow(name="drift", flow_run_name="drift {platform}")
def drift(
    platform: str, then: Literal["params.yaml", "report", "collect"] = "params.yaml", wait_minutes: float = WAIT_MINUTES
) -> State | None:
    """Measure a few held-out programs again: does the machine order them as it did?  Ends as Drift if not.

    Args:
        platform: A platform of params.yaml.
        then: What to do about drift: report it, or also collect (measure all of the platform again, here, and retrain).
        wait_minutes: How long to wait for another run in this folder, before this one ends as Busy.
    """
    return alone(lambda: _check(platform, then), wait_minutes)


def _check(platform: str, then: str) -> State:
    if reason := reason_skipped("holdout", platform):
        return Completed(name="Skipped", message=reason)
    settings = {FLOW_RUN_ID: str(flow_run.id)}
    try:
        said, drifted = run_command("drift", settings, ["--platform", platform]), False
    except StageFailed as found:
        if found.exit_code != DRIFT:
            raise
        said, drifted = str(found).removeprefix("drift: "), True
    report.show_drift(platform)
    if not drifted:
        return Completed(name=UNDECIDED, message=said) if report.undecided(platform) >= TIMES else Completed(message=said)
    get_run_logger().warning(said)
    if then == "collect" or (then == "params.yaml" and load_params().drift.then == "collect"):
        try:
            for kind in ("collect", "holdout"):  # by this run: the pipeline may run on another machine
                run_stage(f"{kind}@{platform}", force=True)
        except StageFailed as failed:  # the drift is reported all the same
            return Completed(name="Drift", message=f"{said}; {failed}")
        begun = run_deployment(PIPELINE, timeout=0, as_subflow=False)
        said = f"{said}; {platform} was measured again, and {PIPELINE} is to learn it ({begun.name})"
    return Completed(name="Drift", message=said)


def _command(name: str, arguments: list[str]) -> State | None:
    return _last(command_task.with_options(name=name, task_run_name=name)(name, (), arguments))


def _last(done: Done | State) -> State | None:
    """The final state of a flow of one task: its task's if that was skipped, else None, which Prefect shows as Completed."""
    return Completed(name=done.name, message=done.message) if isinstance(done, State) else None

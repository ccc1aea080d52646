"""Tells a Prefect server what can be run, where and when: deployments, work pools and automations, all from params.yaml.

Run it after each change of params.yaml:  python -m flows.serve   (or: make serve)
Deployments that are no longer in params.yaml are removed from the server.  Runs are executed by Prefect's workers, which
are started in the project's folder:  prefect worker start --pool POOL
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from flows import pipeline, report, stages
from flows.server import refusals_told
from tcl_core.checked import read_json, write_json
from tcl_core.crontab import next_time
from tcl_core.errors import PlatformError, TclError, UsageError
from tcl_core.files import shown
from tcl_core.params import OF_A_PLATFORM, Params, Schedule, load_params
from tcl_core.progress import say
from tcl_core.stages.diagram import stage_names

if TYPE_CHECKING:
    from uuid import UUID

    from prefect import Flow
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse
    from prefect.events.schemas.automations import AutomationCore, EventTrigger

POOL = "tcl"  # work pool of runs that measure nothing; those that measure a platform have tcl-PLATFORM
TAG = "tcl"  # on everything that is made here, and on its runs
PROJECT = "tcl-project:"  # how the tag begins that tells whose a deployment is
MEASURING = ("collect", "holdout", "drift")
HEARTBEAT_S = 30  # flows.heartbeat_frequency in pyproject.toml
SILENT_S = 5 * HEARTBEAT_S  # seconds without a heartbeat after which a run counts as crashed
MOST_STARTS = 5  # of one run: after these somebody must see what kills it each time
ALERTS = "tcl-alerts"  # name of the notification block that, if saved, is told of runs that need a look
NEEDS_A_LOOK = ("Failed", "Crashed", "Drift", stages.UNDECIDED, pipeline.BUSY, "Late")  # Late: no worker took the run when it was due
ENDS = ("Completed", "Failed", "Cancelled", "Crashed", "Skipped", "Drift", stages.UNDECIDED, pipeline.BUSY)  # names of a run's final state
LONG_H = 24  # hours after which an unfinished run needs a look: it may be waiting for a process that somebody stopped
# A worker is started in the project's folder, wherever that lies on its machine; a run works there.
HERE = [{"prefect.deployments.steps.set_working_directory": {"directory": "."}}]


@dataclass(frozen=True)
class Deployment:
    """A flow that can be run, with its arguments, work pool and schedules."""

    flow: Flow
    entrypoint: str
    name: str
    pool: str
    parameters: Mapping[str, Any]
    description: str
    schedules: Mapping[str, Schedule] = field(default_factory=dict)

    @property
    def full_name(self) -> str:
        return f"{self.flow.name}/{self.name}"


def plan(params: Params) -> list[Deployment]:
    """Deployments of the whole pipeline, of each stage, and of what follows them; each schedule of params.yaml is on at least one."""
    whole = Deployment(
        pipeline.pipeline, "flows.pipeline.pipeline", "pipeline", POOL, {"wait_minutes": stages.WAIT_MINUTES},
        "Bring measurements, models, evaluation and champions up to date.", _schedules(params, "pipeline"),
    )  # fmt: skip
    return [whole, *_stages(params), *_after(params)]


def _stages(params: Params) -> Iterator[Deployment]:
    """One deployment for each stage of the diagram, under DVC's name for it."""
    for name in stage_names(params):
        kind, _, platform = name.partition("@")
        yield Deployment(
            stages.stage, "flows.stages.stage", name, _pool(kind, platform), {"name": name},
            f"Bring the stage {name} up to date.", _schedules(params, kind, platform),
        )  # fmt: skip


def _after(params: Params) -> Iterator[Deployment]:
    for action, what in (("register", "Put the present models into the registry."), ("promote", "Make better models champions.")):
        yield Deployment(stages.registry, "flows.stages.registry", action, POOL, {"action": action}, what, _schedules(params, action))
    yield Deployment(
        stages.tune,
        "flows.stages.tune",
        "tune",
        POOL,
        {},
        "Search fast programs for a network with a champion.",
        _schedules(params, "tune"),
    )
    for platform in params.platforms:
        yield Deployment(
            stages.drift, "flows.stages.drift", platform, _pool("drift", platform), {"platform": platform},
            f"Does the machine of {platform} still order programs as when it was measured?", _schedules(params, "drift", platform),
        )  # fmt: skip


def _pool(kind: str, platform: str) -> str:
    return f"{POOL}-{platform}" if kind in MEASURING else POOL


def _schedules(params: Params, run: str, platform: str = "") -> dict[str, Schedule]:
    """The schedules that start ``run``; one without a platform applies to every platform."""
    found = {name: schedule for name, schedule in params.schedules.items() if schedule.run == run}
    return {name: one for name, one in found.items() if run not in OF_A_PLATFORM or one.platform in ("", platform)}


NO_ALERTS = f"nobody is told of failures: to change that, save a notification block named {ALERTS} (docs/operations.md)"
OURS = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}


def automations() -> list[AutomationCore]:
    """Automations that mark silent runs as crashed, and start a crashed run again, a few times.

    A run that a power cut or a kill ended cannot report it: without these it would stay Running forever.
    """
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    silent = _nothing_after("heartbeat", timedelta(seconds=SILENT_S), "heartbeat")
    crashed = EventTrigger(
        expect={"prefect.flow-run.Crashed"},
        # A run that never began (count 0) would fail to begin again at once, forever.
        match={"prefect.resource.id": "prefect.flow-run.*", "prefect.run-count": [str(n) for n in range(1, MOST_STARTS)]},
        match_related=OURS,
        posture=Posture.Reactive,
        threshold=1,
    )
    dead = f"nothing was heard of this run for {SILENT_S} s: its machine or its process was stopped; what was measured is kept"
    again = "taken up again after a crash; what was measured is not measured again"
    return [
        AutomationCore(
            name="tcl: a run that fell silent has crashed", description=f"No heartbeat for {SILENT_S} s.", tags=[TAG],
            trigger=silent, actions=[ChangeFlowRunState(state=StateType.CRASHED, message=dead)],  # type: ignore[call-arg]
        ),
        AutomationCore(
            name="tcl: a crashed run is taken up again", description=f"At most {MOST_STARTS} starts of one run.", tags=[TAG],
            trigger=crashed, actions=[ChangeFlowRunState(state=StateType.SCHEDULED, name="AwaitingRetry", message=again)],  # type: ignore[call-arg]
        ),
    ]  # fmt: skip


def _nothing_after(event: str, within: timedelta, *others: str) -> EventTrigger:
    """Fires where one of our runs, after ``event``, neither ends nor emits one of ``others`` in time."""
    from prefect.events.schemas.automations import EventTrigger, Posture

    return EventTrigger(
        after={f"prefect.flow-run.{event}"},
        expect={f"prefect.flow-run.{name}" for name in (*ENDS, *others)},
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related=OURS,
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=within,
    )


def alerts(block: UUID) -> list[AutomationCore]:
    """Automations that tell a notification block of every run that needs a look, with its state's message, or does not end."""
    from prefect.events.actions import SendNotification
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    ended = EventTrigger(
        expect={f"prefect.flow-run.{name}" for name in NEEDS_A_LOOK},
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related=OURS,
        posture=Posture.Reactive,
        threshold=1,
    )
    told = SendNotification(
        block_document_id=block,
        subject="tcl: {{ flow.name }}/{{ deployment.name }} {{ flow_run.state.name }}",
        body="{{ flow_run.name }}: {{ flow_run.state.message }}",
    )
    endless = _nothing_after("Running", timedelta(hours=LONG_H))
    late = SendNotification(
        block_document_id=block,
        subject="tcl: {{ flow.name }}/{{ deployment.name }} has not ended",
        body=f"{{{{ flow_run.name }}}} began {LONG_H} hours ago; its log says what it waits for",
    )
    to = f"To the block {ALERTS}."
    return [
        AutomationCore(name="tcl: alerts", description=to, tags=[TAG], trigger=ended, actions=[told]),
        AutomationCore(name="tcl: alerts of runs that do not end", description=to, tags=[TAG], trigger=endless, actions=[late]),
    ]


def serve(params: Params, replace: bool = False) -> str:
    """Make the server's deployments, pools and automations those of ``params``; what there is to say about it.

    replace  another project's deployments too

    Raises UsageError where no server is named or it has another project's deployments, PlatformError where it does not answer
    or refuses.
    """
    deployments = plan(params)
    pools = list(dict.fromkeys(deployment.pool for deployment in deployments))
    with _server() as client:
        mine = _project()
        if not replace:
            _check_project(client, mine)
        made = _make_pools(client, pools)
        for deployment in deployments:
            _deploy(client, deployment, mine)
        removed = _remove_others(client, {deployment.full_name for deployment in deployments})
        blocks = [block.id for block in client.read_block_documents(include_secrets=False) if block.name == ALERTS]
        for automation in (*automations(), *(alerts(blocks[0]) if blocks else ())):
            _automate(client, automation)
    return "\n".join([*_told(deployments, pools, made, removed), *([] if blocks else [NO_ALERTS])])


@contextmanager
def _server() -> Iterator[SyncPrefectClient]:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    if not url:
        raise UsageError("no Prefect server is named; start one (make ui) and export PREFECT_API_URL=http://127.0.0.1:4200/api")
    with get_client(sync_client=True) as client:
        if client.api_healthcheck() is not None:
            raise PlatformError(f"no Prefect server answers at {url}; start it (make ui), or correct PREFECT_API_URL")
        with refusals_told(url):
            yield client


def _project() -> str:
    """The tag of this project: a name kept beside its measurements, so that it moves and is copied with the folder."""
    file = report.HERE.journal / "project.json"
    try:
        return PROJECT + read_json(file, "delete it, and run: python -m flows.serve --replace")["name"]
    except FileNotFoundError:
        name = f"{Path.cwd().name}-{uuid4().hex[:8]}"
        write_json(file, {"name": name})
        return PROJECT + name


def _check_project(client: SyncPrefectClient, mine: str) -> None:
    """Raise UsageError where the server has another project's deployments, whose names are the same as this one's."""
    others = {tag.removeprefix(PROJECT) for one in _deployed(client) for tag in one.tags if tag.startswith(PROJECT) and tag != mine}
    if others:
        raise UsageError(
            f"the Prefect server at {client.api_url} has the deployments of another project ({shown(', '.join(sorted(others)))}); "
            "let PREFECT_API_URL name a server of this project's own, or replace them by its deployments: python -m flows.serve --replace"
        )


def _deployed(client: SyncPrefectClient) -> list[DeploymentResponse]:
    """The server's deployments that were made here, in whichever project."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    return client.read_deployments(deployment_filter=DeploymentFilter(tags=DeploymentFilterTags(all_=[TAG])))


def _make_pools(client: SyncPrefectClient, pools: Iterable[str]) -> list[str]:
    """Create the missing pools and return their names; existing ones stay as they are, since somebody may have changed them."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    made = []
    for name in pools:
        what = "programs are measured" if name != POOL else "models are trained, judged and promoted"
        pool = WorkPoolCreate(
            name=name, type="process", description=f"Where {what}.", base_job_template=ProcessWorker.get_default_base_job_template()
        )
        try:
            client.create_work_pool(pool)
            made.append(name)
        except ObjectAlreadyExists:
            pass
    return made


def _deploy(client: SyncPrefectClient, deployment: Deployment, project: str) -> None:
    """Create a deployment or replace the one of its name; its runs stay, and a schedule that somebody paused stays paused."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
    from prefect.client.schemas.schedules import CronSchedule
    from prefect.exceptions import ObjectNotFound
    from prefect.utilities.callables import parameter_schema

    try:
        before = {one.slug: one.active for one in client.read_deployment_by_name(deployment.full_name).schedules}
    except ObjectNotFound:
        before = {}
    client.create_deployment(
        flow_id=client.create_flow_from_name(deployment.flow.name),
        name=deployment.name,
        description=deployment.description,
        tags=[TAG, project],
        parameters=dict(deployment.parameters),
        parameter_openapi_schema=parameter_schema(deployment.flow).model_dump(exclude_unset=True),
        enforce_parameter_schema=True,
        work_pool_name=deployment.pool,
        job_variables={"working_dir": "."},
        entrypoint=deployment.entrypoint,
        pull_steps=HERE,
        # A run that starts while the previous one is still at work has nothing to do: that one does what is missing.
        concurrency_limit=1,
        concurrency_options=ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
        schedules=[
            DeploymentScheduleCreate(schedule=CronSchedule(cron=one.cron, timezone=one.timezone), slug=name, active=before.get(name, True))
            for name, one in deployment.schedules.items()
        ],
    )


def _remove_others(client: SyncPrefectClient, kept: set[str]) -> list[str]:
    """Delete our deployments of an earlier params.yaml that are not ``kept``; return their names."""
    removed = []
    for deployment in _deployed(client):
        name = f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"
        if name not in kept:
            client.delete_deployment(deployment.id)
            removed.append(name)
    return removed


def _automate(client: SyncPrefectClient, automation: AutomationCore) -> None:
    """Create an automation, or update the one of its name; one that somebody paused stays paused."""
    known = client.read_automations_by_name(automation.name)
    if not known:
        client.create_automation(automation)
        return
    # Only fields that were set are sent, so set all but the owner, which an update may not name.
    whole = type(automation)(**{**automation.model_dump(exclude={"owner_resource"}), "enabled": known[0].enabled})
    client.update_automation(known[0].id, whole)


def _told(deployments: list[Deployment], pools: list[str], made: list[str], removed: list[str]) -> Iterator[str]:
    for deployment in deployments:
        for name, one in deployment.schedules.items():
            comes = next_time(one.cron, one.timezone, name)
            yield f"{name:16s} {deployment.full_name:28s} pool {deployment.pool:20s} {one.cron:16s} next {comes:%Y-%m-%d %H:%M} {one.timezone}"
    yield f"{len(deployments)} deployments; each can be started by hand: prefect deployment run {deployments[0].full_name}"
    if removed:
        yield f"removed, for params.yaml has them no longer: {', '.join(removed)}"
    if made:
        yield f"new work pools: {', '.join(made)}"
    yield "workers, each started in the project's folder on its machine:"
    yield from (f"  prefect worker start --pool {pool}" for pool in pools)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.serve", description=serve.__doc__.splitlines()[0])
    parser.add_argument("--replace", action="store_true", help="replace another project's deployments, such as those of a former clone")
    arguments = parser.parse_args()
    try:
        say(serve(load_params(), arguments.replace), sys.stdout)
    except TclError as error:
        say(f"tcl: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

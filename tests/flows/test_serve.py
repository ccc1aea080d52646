"""What a Prefect server is told: one truth with params.yaml, and nothing left of a former one."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from flows import serve as module
from flows.serve import ENDS, HEARTBEAT_S, MOST_STARTS, POOL, SILENT_S, plan
from tcl_core.errors import PlatformError, UsageError
from tcl_core.params import Params, Schedule, load_params
from tests.shipped import SHIPPED

ROOT = Path(__file__).resolve().parents[2]
DRIFT = Schedule(run="drift", cron="30 */6 * * *", timezone="UTC")
tag_of_project = module._project
MINE, YOURS = f"{module.PROJECT}mine-01234567", f"{module.PROJECT}yours-89abcdef"


@pytest.fixture
def params() -> Params:
    return load_params(SHIPPED)


@pytest.fixture(autouse=True)
def one_project(monkeypatch):
    """All tests share a server, and are one project to it; nothing of it is kept in the checkout."""
    monkeypatch.setattr(module, "_project", lambda: MINE)


def with_schedules(params: Params, **schedules: Schedule) -> Params:
    return dataclasses.replace(params, schedules=schedules)


def scheduled(params: Params) -> dict[str, list[str]]:
    """Full name of a deployment -> its schedules' names."""
    return {one.full_name: list(one.schedules) for one in plan(params) if one.schedules}


def test_there_is_a_deployment_for_all_and_for_each_part(params):
    names = [one.full_name for one in plan(params)]
    assert len(names) == len(set(names))
    assert {"tcl/pipeline", "stage/tasks", "stage/train", "stage/evaluate", "registry/register", "registry/promote", "tune/tune"} <= set(
        names
    )
    for platform in params.platforms:
        assert {f"stage/collect@{platform}", f"stage/holdout@{platform}", f"drift/{platform}"} <= set(names)
    assert "stage/distill@host-avx512" in names and "stage/distill@host-sse42" not in names


def test_what_measures_a_platform_has_its_pool(params):
    for one in plan(params):
        measures = one.full_name.startswith(("stage/collect@", "stage/holdout@", "drift/"))
        platform = re.split("[@/]", one.full_name)[-1]
        assert one.pool == (f"{POOL}-{platform}" if measures else POOL)


def test_every_deployment_gives_its_flow_what_it_takes(params):
    for one in plan(params):
        assert one.flow.validate_parameters(dict(one.parameters)) is not None
        folder, _, function = one.entrypoint.rpartition(".")
        assert (ROOT / f"{folder.replace('.', '/')}.py").is_file() and one.flow.fn.__name__ == function


def test_parameters_have_types_and_descriptions(params):
    from prefect.utilities.callables import parameter_schema

    for flow in {one.flow for one in plan(params)}:
        for name, told in parameter_schema(flow).properties.items():
            assert told["description"] and {"type", "enum", "allOf", "$ref"} & told.keys(), (flow.name, name)


def test_schedules_are_on_what_they_run(params):
    assert scheduled(with_schedules(params, weekly=Schedule(run="pipeline", cron="0 2 * * 0", timezone="UTC"))) == {
        "tcl/pipeline": ["weekly"]
    }
    everywhere = {f"drift/{platform}": ["a"] for platform in params.platforms}
    assert scheduled(with_schedules(params, a=DRIFT)) == everywhere
    one = dataclasses.replace(DRIFT, platform="host-avx2")
    assert scheduled(with_schedules(params, a=DRIFT, b=one)) == {**everywhere, "drift/host-avx2": ["a", "b"]}


def test_each_schedule_of_the_committed_file_is_on_something(params):
    assert params.schedules.keys() == {name for names in scheduled(params).values() for name in names}


def test_a_run_is_dead_after_several_heartbeats_and_not_taken_up_for_ever():
    silent, crashed = module.automations()
    assert silent.trigger.within.total_seconds() == SILENT_S >= 3 * HEARTBEAT_S
    assert {f"prefect.flow-run.{name}" for name in ENDS} < silent.trigger.expect
    assert crashed.trigger.match.root["prefect.run-count"] == [str(n) for n in range(1, MOST_STARTS)]


def test_the_heartbeat_is_that_of_the_settings():
    text = (ROOT / "pyproject.toml").read_text()
    assert f"\nflows.heartbeat_frequency = {HEARTBEAT_S} " in text


def test_without_a_server_one_is_asked_for(params, monkeypatch):
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        with pytest.raises(UsageError, match="no Prefect server is named; start one"):
            module.serve(params)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        with pytest.raises(PlatformError, match="no Prefect server answers at http://127.0.0.1:9/api; start it"):
            module.serve(params)


def told(params: Params) -> dict[str, object]:
    """Full name -> deployment, at the server."""
    from prefect import get_client

    module.serve(params)
    with get_client(sync_client=True) as client:
        flows = {flow.id: flow.name for flow in client.read_flows()}
        return {f"{flows[one.flow_id]}/{one.name}": one for one in client.read_deployments() if module.TAG in one.tags}


def test_the_server_has_what_params_yaml_says_and_no_more(params, prefect_server):
    first = told(with_schedules(params, often=DRIFT))
    assert set(first) == {one.full_name for one in plan(params)}
    one = first["drift/host-avx2"]
    assert (one.work_pool_name, one.entrypoint, one.parameters) == ("tcl-host-avx2", "flows.stages.drift", {"platform": "host-avx2"})
    assert [(s.slug, s.schedule.cron, s.schedule.timezone, s.active) for s in one.schedules] == [("often", "30 */6 * * *", "UTC", True)]
    assert one.global_concurrency_limit.limit == 1 and one.concurrency_options.collision_strategy == "CANCEL_NEW"
    assert one.parameter_openapi_schema["properties"]["then"]["enum"] == ["params.yaml", "report", "collect"]
    fewer = dataclasses.replace(params, platforms={name: spec for name, spec in params.platforms.items() if name != "host-avx512"})
    fewer = dataclasses.replace(fewer, chain=dataclasses.replace(params.chain, then={"host-avx2": params.chain.then["host-avx2"]}))
    second = told(with_schedules(fewer))
    gone = {f"{what}host-avx512" for what in ("stage/collect@", "stage/holdout@", "stage/distill@", "drift/")}
    assert gone <= first.keys() - second.keys() == {name for name in first if name.endswith("host-avx512")}
    assert second["drift/host-avx2"].id == one.id and second["drift/host-avx2"].schedules == []


def test_a_project_keeps_its_tag_where_its_folder_moves(tmp_path, monkeypatch):
    (tmp_path / "kernels").mkdir()
    monkeypatch.chdir(tmp_path / "kernels")
    tag = tag_of_project()
    assert re.fullmatch(f"{module.PROJECT}kernels-[0-9a-f]{{8}}", tag) and tag_of_project() == tag
    (tmp_path / "kernels").rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert tag_of_project() == tag
    monkeypatch.chdir(tmp_path)
    assert tag_of_project() != tag


def test_another_projects_deployments_are_replaced_only_on_demand(params, prefect_server, monkeypatch):
    before = told(with_schedules(params, often=DRIFT))
    assert all(MINE in one.tags for one in before.values())
    monkeypatch.setattr(module, "_project", lambda: YOURS)
    try:
        with pytest.raises(UsageError, match=r"^the Prefect server at http\S+ has the deployments of another project \(mine-01234567\); "):
            module.serve(with_schedules(params))
        monkeypatch.setattr("sys.argv", ["flows.serve", "--replace"])
        monkeypatch.setattr(module, "load_params", lambda: with_schedules(params))
        assert module.main() == 0
        after = told(with_schedules(params))
        assert {name: (one.id, set(one.tags)) for name, one in after.items()} == {
            name: (one.id, {module.TAG, YOURS}) for name, one in before.items()
        }
    finally:
        monkeypatch.setattr(module, "_project", lambda: MINE)
        module.serve(with_schedules(params), replace=True)


def test_an_automation_that_was_paused_stays_paused(params, prefect_server):
    from prefect import get_client

    module.serve(with_schedules(params))
    with get_client(sync_client=True) as client:
        known = {one.name: one for one in client.read_automations()}
        client.pause_automation(known["tcl: a crashed run is taken up again"].id)
        module.serve(with_schedules(params))
        again = {one.name: (one.id, one.enabled) for one in client.read_automations()}
    assert again == {name: (one.id, "taken up" not in name) for name, one in known.items()}


def test_a_schedule_that_was_paused_stays_paused(params, prefect_server):
    from prefect import get_client

    one = told(with_schedules(params, often=DRIFT))["drift/host-avx2"]
    with get_client(sync_client=True) as client:
        client.update_deployment_schedule(one.id, one.schedules[0].id, active=False)
    again = told(with_schedules(params, often=DRIFT))
    assert [(s.slug, s.active) for s in again["drift/host-avx2"].schedules] == [("often", False)]
    assert [(s.slug, s.active) for s in again["drift/host-sse42"].schedules] == [("often", True)]


def test_what_is_said_names_times_pools_and_workers(params, prefect_server):
    said = module.serve(with_schedules(params, often=DRIFT)).splitlines()
    assert re.match(r"often +drift/host-sse42 +pool tcl-host-sse42 +30 \*/6 \* \* \* +next \d{4}-\d\d-\d\d \d\d:30 UTC", said[0])
    assert said[-5:-1] == [f"  prefect worker start --pool {pool}" for pool in ("tcl", *(f"tcl-{name}" for name in params.platforms))]
    assert "save a notification block named tcl-alerts" in said[-1]


def test_failures_are_told_to_the_block_that_somebody_saved(params, prefect_server):
    from prefect import get_client
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    block = CustomWebhookNotificationBlock(name="alerts", url="http://127.0.0.1:9/", json_data={"text": "{{subject}}"}).save(module.ALERTS)
    try:
        assert "prefect worker start" in module.serve(with_schedules(params)).splitlines()[-1]
        with get_client(sync_client=True) as client:
            (found,) = client.read_automations_by_name("tcl: alerts")
            (endless,) = client.read_automations_by_name("tcl: alerts of runs that do not end")
            named = ("Failed", "Crashed", "Drift", "Undecided", "Busy", "Late")
            assert found.trigger.expect == {f"prefect.flow-run.{name}" for name in named}
            assert endless.trigger.expect == {f"prefect.flow-run.{name}" for name in ENDS} and endless.trigger.within.days == 1
            for automation in (found, endless):
                assert str(automation.actions[0].block_document_id) == str(block)
                client.delete_automation(automation.id)
    finally:
        CustomWebhookNotificationBlock.delete(module.ALERTS)


@pytest.fixture
def compose() -> dict:
    return YAML(typ="safe").load(ROOT / "compose.yaml")


def test_the_containers_have_a_worker_for_each_pool(params, compose):
    commands = [service.get("command", "") for service in compose["services"].values()]
    pools = [match[1] for match in (re.search(r"worker start --pool (\S+)", command) for command in commands) if match]
    assert sorted(pools) == sorted({one.pool for one in plan(params)})


def test_containers_are_published_on_this_machine_and_have_no_default_password(compose):
    text = (ROOT / "compose.yaml").read_text()
    ports = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    assert ports == {  # each by a variable of its own: who opens the one that can have a password opens no other
        "prefect": ["${TCL_BIND:-127.0.0.1}:4200:4200"],
        "mlflow": ["${TCL_BIND_MLFLOW:-127.0.0.1}:5000:5000"],
        "tracker": ["${TCL_BIND_TRACKER:-127.0.0.1}:9190:9190"],
    }
    assert "${TCL_BIND_MLFLOW:-127.0.0.1}:5000" in compose["services"]["mlflow"]["command"]
    secrets = re.findall(r"(?:PASSWORD|PGPASSWORD|AUTH_STRING): ?(.*)", text)
    assert secrets and all(not secret.split("#")[0].strip() or secret.startswith("${POSTGRES_PASSWORD:?") for secret in secrets)
    lasting = {name for name, service in compose["services"].items() if name != "deploy"}
    assert {name for name in lasting if "healthcheck" not in compose["services"][name]} == set()


def test_all_containers_of_a_machine_share_one_lock_of_measuring(compose):
    volume = compose["volumes"]["measuring"]["name"]
    workers = [service for name, service in compose["services"].items() if name.startswith("worker")]
    assert workers and all("measuring:/tmp" in service["volumes"] for service in workers)
    assert f" -v {volume}:/tmp tcl\n" in (ROOT / "Dockerfile").read_text()


def test_a_new_database_server_gets_the_databases_of_both_services(compose):
    """Mounted, not written into compose.yaml: Compose 1.29 refuses the contents of configs."""
    assert "configs" not in compose
    (mounted,) = (place for place in compose["services"]["postgres"]["volumes"] if place.startswith("./"))
    folder, target, mode = mounted.split(":")
    assert (target, mode) == ("/docker-entrypoint-initdb.d", "ro")
    made = {match[1] for file in (ROOT / folder).glob("*.sql") for match in re.finditer(r"CREATE DATABASE (\w+);", file.read_text())}
    asked = {compose["services"]["prefect"]["environment"]["PREFECT_SERVER_DATABASE_NAME"]}
    asked |= set(re.findall(r"@postgres/(\w+)", compose["services"]["mlflow"]["command"]))
    assert asked == made | {compose["services"]["postgres"]["environment"]["POSTGRES_DB"]}

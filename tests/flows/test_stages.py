"""Stages as flows of their own: what they run, and how their last state tells what happened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows import pipeline, stages as module
from flows.dvc_stage import StageFailed, only_run
from tcl_core.checked import write_json
from tcl_core.errors import DRIFT
from tests.shipped import SHIPPED

CHECK = {
    "platform": "p", "checked_at": "2027-01-01T00:00:00+00:00", "verdict": "drift", "then": 0.9, "now": 0.71239, "pairs": 36, "failed": 0,
    "seconds": 11.2, "reason": "another order", "ratio": {"value": 1.2}, "agreement": {"value": 0.6},
}  # fmt: skip


@pytest.fixture
def calls(tmp_path, monkeypatch, prefect_server) -> list:
    """Commands and stages that were run; nothing else happens."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text(SHIPPED.read_text())
    found: list = []
    monkeypatch.setattr(pipeline, "reproduce", lambda name, settings, watch, force, anew: found.append((name, force)) or "did it")
    monkeypatch.setattr(pipeline, "run_command", lambda name, settings, arguments: found.append((name, *arguments)) or "did it")
    return found


@pytest.fixture
def check(calls, monkeypatch):
    """What `tcl drift` is to find: (text, exit code)."""
    found = {"said": "p: no drift: ranking unchanged", "exit_code": 0, "history": [{**CHECK, "platform": "q"}, CHECK]}

    def run(name, settings, arguments):
        calls.append((name, *arguments))
        write_json("data/reports/drift.json", {"checks": found["history"]})
        if found["exit_code"]:
            raise StageFailed(name, found["said"], found["exit_code"])
        return found["said"]

    monkeypatch.setattr(module, "run_command", run)
    monkeypatch.setattr(
        module,
        "run_deployment",
        lambda name, **options: calls.append((name, options.get("parameters"))) or type("Run", (), {"name": "red-fox"}),
    )
    return found


def test_a_stage_is_brought_up_to_date(calls):
    assert module.stage("train", return_state=True).is_completed()
    assert module.stage("collect@host-avx2", force=True, return_state=True).is_completed()
    assert calls == [("train", False), ("collect@host-avx2", True)]


def test_a_platform_that_was_left_out_is_said(calls):
    write_json("data/holdout/platform=p/skipped.json", {"platform": "p", "reason": "no AVX-512 here"})
    state = module.stage("holdout@p", return_state=True)
    assert (state.name, state.message) == ("Skipped", "no AVX-512 here")


def test_a_stage_that_fails_says_its_sentence(calls, monkeypatch):
    def fail(name, settings, watch, force, anew):
        raise StageFailed(name, "no records; run tcl collect", 3)

    monkeypatch.setattr(pipeline, "reproduce", fail)
    state = module.stage("train", return_state=True)
    assert state.is_failed() and state.message == "train: no records; run tcl collect"


def test_a_stage_waits_for_the_run_before_it(calls):
    with only_run():
        state = module.stage("train", wait_minutes=0.005, return_state=True)
    assert state.is_cancelled() and "another run was at work in this folder for 0.005 minutes" in state.message and calls == []


def test_commands_get_what_the_flow_was_given(calls):
    module.registry("promote", "host-avx2")
    module.registry("register")
    module.tune("resnet-18", trials=50, force=True)
    module.tune()
    assert calls == [("promote", "--platform", "host-avx2"), ("register",), ("tune", "resnet-18", "--trials", "50", "--force"), ("tune",)]


def test_no_drift_ends_as_completed(calls, check):
    state = module.drift("p", return_state=True)
    assert (state.name, state.message) == ("Completed", "p: no drift: ranking unchanged")
    assert calls == [("drift", "--platform", "p")]
    from prefect import get_client

    with get_client(sync_client=True) as client:
        (shown,) = [artifact for artifact in client.read_latest_artifacts() if artifact.key == "drift-p"]
    (row,) = json.loads(shown.data)
    assert (row["verdict"], row["now"], row["ratio"], row["agreement"]) == ("drift", 0.7124, 1.2, 0.6)


def test_drift_has_a_state_of_its_own_and_starts_nothing_unasked(calls, check):
    check |= {"said": "p: drift: another order", "exit_code": DRIFT}
    state = module.drift("p", return_state=True)
    assert state.is_completed() and (state.name, state.message) == ("Drift", "p: drift: another order")
    assert calls == [("drift", "--platform", "p")]


@pytest.mark.parametrize(
    ("then", "of_params", "again"), [("collect", "report", True), ("params.yaml", "collect", True), ("report", "collect", False)]
)
def test_drift_measures_again_where_that_is_wanted(calls, check, then, of_params, again):
    """The run's own ``then`` counts before that of params.yaml."""
    text = Path("params.yaml").read_text()
    assert text.count("then: report ") == 1
    Path("params.yaml").write_text(text.replace("then: report ", f"then: {of_params} "))
    check |= {"said": "p: drift: another order", "exit_code": DRIFT}
    state = module.drift("p", then, return_state=True)
    # Measured here, where the check ran: the pipeline's worker may be another machine's.
    assert calls[1:] == [("collect@p", True), ("holdout@p", True), ("tcl/pipeline", None)] * again
    told = "; p was measured again, and tcl/pipeline is to learn it (red-fox)" if again else ""
    assert (state.name, state.message) == ("Drift", f"p: drift: another order{told}")


def test_checks_that_never_can_tell_need_a_look(calls, check):
    """Each of them ends well, and a busy machine could so go unwatched for ever."""
    check["said"] = "p: undecided: other processes take 97% of this machine's CPUs"
    undecided = {**CHECK, "verdict": "undecided"}
    for before, name in ((module.TIMES - 2, "Completed"), (module.TIMES - 1, "Undecided")):
        check["history"] = [CHECK, *[undecided, {**CHECK, "platform": "q"}] * before, undecided]
        state = module.drift("p", return_state=True)
        assert state.is_completed() and (state.name, state.message) == (name, check["said"])


def test_a_check_that_fails_is_no_drift(calls, check):
    check |= {"said": "p cannot be checked; run tcl holdout", "exit_code": 3}
    state = module.drift("p", return_state=True)
    assert state.is_failed() and state.message == "drift: p cannot be checked; run tcl holdout"


def test_a_platform_that_this_machine_skips_is_not_checked(calls, check, monkeypatch):
    """Every few hours, as the schedule has it: that would be an alert each time."""
    monkeypatch.setattr(module, "reason_skipped", lambda kind, platform: f"{kind} of {platform} was skipped: this CPU lacks avx512f")
    state = module.drift("p", return_state=True)
    assert state.is_completed() and (state.name, state.message) == ("Skipped", "holdout of p was skipped: this CPU lacks avx512f")
    assert calls == []

"""The flow on a real Prefect server, with stages that answer at once: what runs, what is retried, what is shown."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
from ruamel.yaml import YAML

from flows import pipeline as module
from flows import report, server
from flows.dvc_stage import StageFailed
from tcl_core.checked import write_json
from tcl_core.errors import BusyError
from tcl_core.journal import Journal, line_of
from tcl_core.params import Params, parse_params
from tcl_core.stages.diagram import stage_names
from tcl_core.stages.workspace import Workspace
from tests.shipped import SHIPPED

PARAMS = YAML(typ="safe").load(SHIPPED)
STEP = {"round": 1, "step": "measure", "seconds": 12.34, "programs": 40}


class Stages:
    """Stands in for the child processes: writes what the real ones would, and fails as told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.forced: list[str] = []
        self.anew: list[str] = []
        self.failures: dict[str, list[int]] = {}  # stage -> exit codes of its first runs
        self.errors = {"ok": 40}

    def reproduce(self, name, settings, watch, force=False, anew=False) -> str:
        self.calls.append(name)
        self.forced += [name] if force else []
        self.anew += [name] if anew else []
        if self.failures.get(name):
            raise StageFailed(name, "no answer from the board; plug it in", self.failures[name].pop(0))
        self.write(name)
        watch()
        return f"did {name}"

    def write(self, name: str) -> None:
        kind, _, platform = name.partition("@")
        if name == "collect@host-avx512":
            write_json("data/records/platform=host-avx512/skipped.json", {"platform": platform, "reason": "no AVX-512 here"})
        elif kind == "collect":
            file = Path(f"data/journal/collect/{platform}/rounds.jsonl")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(line_of(STEP))
            write_json(f"data/reports/collect/{platform}.json", {"platform": platform, "programs": 40, "errors": self.errors})
        elif kind == "evaluate":
            write_json("data/reports/evaluation.json", {"platforms": {"host-avx2": {"top_1": {"value": 0.91234567}}}})
            Path("data/reports/plots").mkdir()
            Path("data/reports/plots/top_k.png").write_bytes(b"picture")

    def command(self, name, settings, arguments=()) -> str:
        self.calls.append(name)
        if name == "report":
            Path("data/reports/report.html").write_text("<!doctype html>")
        if self.failures.get(name):
            raise StageFailed(name, "it said no", self.failures[name].pop(0))
        return f"did {name}"


@pytest.fixture
def stages(tmp_path, monkeypatch, prefect_server) -> Stages:
    monkeypatch.chdir(tmp_path)
    YAML().dump(PARAMS, Path("params.yaml"))
    fake = Stages()
    monkeypatch.setattr(module, "reproduce", fake.reproduce)
    monkeypatch.setattr(module, "run_command", fake.command)
    monkeypatch.setattr(module, "RETRY_DELAY_S", 0)
    monkeypatch.setattr(module, "summarise", lambda workspace: {})
    monkeypatch.setattr(module, "summary_text", lambda found, reports: "all is well")
    return fake


def run(**arguments):
    """The flow's final state and its task runs, name -> task run."""
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    state = module.pipeline(**arguments, return_state=True)
    run_id = state.state_details.flow_run_id
    module.wait_until_recorded(run_id, patience_s=60)
    with get_client(sync_client=True) as client:
        runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run_id])))
    return state, {task_run.name: task_run for task_run in runs}


def artifacts() -> dict[str, object]:
    """The latest of each key."""
    from prefect import get_client

    with get_client(sync_client=True) as client:
        return {artifact.key: artifact.data for artifact in client.read_latest_artifacts()}


def test_the_whole_flow_runs_in_order_and_shows_what_it_did(stages):
    state, runs = run()
    assert state.is_completed()
    params: Params = parse_params(PARAMS)
    assert stages.calls[:2] == ["tasks", "candidates"]
    assert stages.calls[-5:] == ["evaluate", "register", "promote", "tune", "report"]
    assert sorted(stages.calls[:-4]) == sorted(stage_names(params))
    assert runs["collect host-avx512"].state_name == "Skipped"
    assert runs["collect host-avx512"].state.message == "no AVX-512 here"
    assert {run.state_name for name, run in runs.items() if name != "collect host-avx512"} == {"Completed"}
    shown = artifacts()
    assert json.loads(shown["rounds-host-avx2"]) == [STEP]
    assert json.loads(shown["evaluation"]) == [{"of": "platforms / host-avx2 / top_1", "value": 0.9123}]
    assert Path("data/reports/report.html").absolute().as_uri() in str(shown["page"])
    assert shown["plot-top-k"].startswith("data:image/png;base64,") and shown["summary"] == "all is well"
    assert "rounds-host-avx512" not in shown


def test_stages_of_another_version_are_said_before_they_run(stages, monkeypatch):
    said = []
    monkeypatch.setattr(module, "get_run_logger", lambda: SimpleNamespace(info=lambda text: None, warning=said.append))
    run()
    assert said == ["skipped: no AVX-512 here"]  # without a dvc.yaml there is nothing to compare
    monkeypatch.setattr(module, "outdated", lambda root: ["collect", "train"])
    run(force_collect=("host-avx",))
    assert len(said) == 2 and said[1].startswith("dvc.yaml has not this TCL's collect, train: ")


def test_what_another_machine_skipped_here_is_measured(stages, monkeypatch):
    """DVC finds it up to date, for nothing that it knows has changed."""
    reasons = {"host-avx512": "no AVX-512 here"}
    monkeypatch.setattr(module, "reason_to_skip", lambda workspace, platform: reasons.get(platform))
    run()
    assert stages.anew == []  # nothing was skipped before
    run()
    assert stages.anew == []  # and this machine cannot do it either
    reasons.clear()
    run()
    assert stages.anew == ["collect@host-avx512"] and stages.forced == []


def test_dask_lowers_programs_when_all_is_measured_and_nothing_is_trained(stages, monkeypatch):
    asked = []
    monkeypatch.setattr(module, "lower_programs", lambda run: asked.append((run.engine, list(stages.calls))))
    run()
    assert asked == []  # processes of this machine lower as a stage itself does
    YAML().dump(PARAMS | {"run": {"engine": "dask", "workers": 2}}, Path("params.yaml"))
    stages.calls.clear()
    stages.failures = {"train": [4]}
    run()
    assert asked == [("dask", [name for name in stages.calls if name != "train"])] and "holdout@host-avx512" in asked[0][1]


def test_the_arrows_between_tasks_are_the_diagram(stages):
    _, runs = run()
    names = {task_run.id: name for name, task_run in runs.items()}
    drawn = {name: {names[entry.id] for entries in task_run.task_inputs.values() for entry in entries} for name, task_run in runs.items()}
    assert drawn["distill host-avx2"] == {"tasks", "candidates", "collect host-sse42", "collect host-avx2", "train"}
    assert drawn["promote"] == {"register"}


def test_measuring_is_tried_again_and_training_is_not(stages):
    stages.failures = {"collect@host-sse42": [4, 4], "train": [4]}
    state, runs = run()
    assert runs["collect host-sse42"].run_count == 3 and runs["collect host-sse42"].state.is_completed()
    assert runs["train"].run_count == 1 and runs["train"].state.is_failed()
    assert stages.calls[-1] == "train"
    error = state.result(raise_on_failure=False)
    assert (str(error), error.exit_code) == ("train: no answer from the board; plug it in", 4)


def test_a_wrong_parameter_is_not_tried_again(stages):
    stages.failures = {"collect@host-sse42": [2, 2]}
    state, runs = run()
    assert state.is_failed() and runs["collect host-sse42"].run_count == 1


@pytest.mark.parametrize("exit_code", [4, 5])
def test_tuning_that_fails_fails_the_run(stages, exit_code):
    """A registry that cannot be asked too: nobody else would tell."""
    stages.failures = {"tune": [exit_code]}
    state, runs = run()
    assert state.is_failed() and runs["tune"].state.is_failed() and "summary" not in runs


class Ended:
    """A task run's state that ended with an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def result(self, raise_on_failure: bool) -> Exception:
        return self.error


@pytest.mark.parametrize(("exit_code", "again"), [(1, False), (2, False), (3, False), (4, True), (5, False), (6, False), (130, False)])
def test_only_what_the_world_did_is_tried_again(exit_code, again):
    error = StageFailed("collect@p", "the measuring process hung at its start", exit_code)
    assert module.world_failed(None, None, Ended(error)) is again


def test_a_journal_that_another_process_holds_is_not_waited_for(tmp_path):
    with Journal(tmp_path), pytest.raises(BusyError) as busy:
        Journal(tmp_path)
    error = StageFailed("collect@p", "whatever it says", busy.value.exit_code)
    assert not module.world_failed(None, None, Ended(error))


def test_other_errors_are_not_tried_again():
    assert not module.world_failed(None, None, Ended(RuntimeError("bug")))


def test_a_platform_can_be_measured_again(stages):
    stages.failures = {"collect@host-avx2": [4]}
    run(force_collect=("host-avx2",))
    assert stages.calls.count("collect@host-avx2") == 2
    assert stages.forced == ["collect@host-avx2"] * 2  # without it DVC would find the second try up to date


def test_both_kinds_of_programs_can_be_measured_again(stages):
    run(force_collect=("host-avx2",), force_holdout=("host-avx2",))
    assert stages.forced == ["collect@host-avx2", "holdout@host-avx2"]


def test_an_unknown_platform_is_refused_before_anything_runs(stages):
    state, _ = run(force_collect=("host-avx",))
    assert "did you mean 'host-avx2'?" in str(state.result(raise_on_failure=False))
    assert stages.calls == []


def test_a_failed_flow_says_the_one_sentence(stages):
    stages.failures = {"train": [3]}
    state, _ = run()
    assert state.is_failed() and state.message == "train: no answer from the board; plug it in"


def test_a_run_that_finds_its_place_taken_is_cancelled_with_the_reason(stages):
    with module.only_run():
        state, runs = run()
    assert state.is_cancelled() and state.message == "another run is at work in this folder; wait for its end or stop it"
    assert (state.name, stages.calls, runs) == ("Busy", [], {})
    assert state.result(raise_on_failure=False).exit_code == 6  # make run refuses


def test_a_collection_by_hand_is_a_reason_to_cancel_and_no_failure(stages):
    def busy(name, settings, watch, force=False, anew=False):
        raise StageFailed(
            name, "process 7 is already collecting into data/journal/collect/p; wait for it to end or stop it", BusyError.exit_code
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "reproduce", busy)
        state, _ = run()
    assert state.is_cancelled() and state.name == "Busy" and "process 7 is already collecting" in state.message


def test_what_became_of_the_candidates_is_a_table(stages):
    stages.errors = {"ok": 38, "timeout": 2}
    run()
    assert json.loads(artifacts()["errors"])[0] == {"platform": "host-avx2", "programs": 40, "ok": 38, "timeout": 2}


def test_a_platform_that_is_no_longer_named_is_in_no_table(stages):
    stages.errors = {"ok": 40}
    old = Path("data/reports/collect/left-long-ago.json")
    old.parent.mkdir(parents=True, exist_ok=True)
    old.write_text("damaged")
    run()
    assert {row["platform"] for row in json.loads(artifacts()["errors"])} == {"host-avx2", "host-sse42"}


def test_error_kinds_are_columns_in_their_order():
    collected = [
        {"platform": "a", "programs": 3, "errors": {"timeout": 1, "ok": 2}},
        {"platform": "b", "programs": 2, "errors": {"ok": 1, "build": 1}},
    ]
    assert report.error_rows(collected) == [
        {"platform": "a", "programs": 3, "ok": 2, "build": 0, "timeout": 1},
        {"platform": "b", "programs": 2, "ok": 1, "build": 1, "timeout": 0},
    ]


def test_a_known_error_is_logged_without_its_traceback():
    sentence = StageFailed("train", "no records", 3)
    for error, kept in ((sentence, False), (ValueError("bug"), True)):
        record = logging.LogRecord("flow", logging.ERROR, "", 0, "failed", (), (type(error), error, None))
        assert module.OneSentence().filter(record)
        assert bool(record.exc_info) == kept


@pytest.fixture
def rounds(tmp_path) -> Path:
    file = Workspace(tmp_path).journal_folder("p", "collect") / "rounds.jsonl"
    file.parent.mkdir(parents=True)
    file.write_bytes(line_of(STEP))
    return file


def append(file: Path, raw: bytes) -> None:
    with open(file, "ab") as growing:
        growing.write(raw)


def test_rounds_are_followed_line_by_line(rounds, tmp_path):
    followed, third = report.Rounds("p", Workspace(tmp_path)), line_of({**STEP, "round": 3})
    assert followed.new() == []  # what earlier runs wrote is not news
    append(rounds, line_of({**STEP, "round": 2}) + third[:20])
    assert [step["round"] for step in followed.new()] == [2]
    append(rounds, third[20:])
    assert [step["round"] for step in followed.new()] == [3] and followed.new() == []
    assert [step["round"] for step in followed.all()] == [1, 2, 3]
    assert report.one_line(STEP) == "round 1 measure: 12.3 s, programs 40"


def test_rounds_that_another_collection_writes_are_read_from_their_start(rounds, tmp_path):
    followed = report.Rounds("p", Workspace(tmp_path))
    rounds.write_bytes(b"")
    assert followed.new() == []
    append(rounds, line_of({**STEP, "round": 0}))  # cut, and then as long as before
    assert [step["round"] for step in followed.new()] == [0]
    (tmp_path / "fresh").write_bytes(line_of(STEP) * 3)
    (tmp_path / "fresh").rename(rounds)  # replaced by a longer one
    assert len(followed.new()) == 3
    rounds.unlink()
    assert followed.new() == []


@pytest.mark.parametrize("rubbish", [b"\0" * 100 + b"\n", b"\xff\xfe no line\n", b'{"round": 1}\n', b"\n\n", line_of({"round": 1})])
def test_damaged_rounds_are_passed_over_with_a_word(rounds, tmp_path, caplog, rubbish):
    followed = report.Rounds("p", Workspace(tmp_path))
    append(rounds, rubbish + line_of({**STEP, "round": 2}))
    assert [step["round"] for step in followed.new()] == [2]
    assert f"passed over {rubbish.count(10)} lines that are damaged" in caplog.messages[0]


def test_nested_figures_become_rows():
    tree = {"seed": 0, "platforms": {"a": {"top_1": {"value": 0.5, "low": 0.40001}, "matrix": [[1, 2]]}}}
    assert report.table_rows(tree) == [{"of": "all", "seed": 0}, {"of": "platforms / a / top_1", "value": 0.5, "low": 0.4}]


def test_a_task_run_that_the_server_has_not_heard_of_is_waited_for(monkeypatch):
    """Its first state is written behind the flow's back too: the server that knows of no run is not done."""
    from contextlib import nullcontext
    from uuid import uuid4

    flow_run, first, second = uuid4(), uuid4(), uuid4()
    for task_run in (first, second):
        server.begun(None, SimpleNamespace(id=task_run, flow_run_id=flow_run), None)

    def seen(task_run, final):
        return SimpleNamespace(id=task_run, state=SimpleNamespace(is_final=lambda: final))

    answers = [[], [seen(first, True)], [seen(first, True), seen(second, False)], [seen(first, True), seen(second, True)]]
    client = SimpleNamespace(read_task_runs=lambda flow_run_filter: answers.pop(0))
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda sync_client: nullcontext(client))
    server.wait_until_recorded(flow_run, patience_s=60)
    assert answers == []

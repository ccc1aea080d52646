"""`tcl`: what each command calls, and how each kind of ending looks to the shell."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tcl_core import cli, process
from tcl_core.cli.saying import say
from tcl_core.errors import PlatformError, TclError
from tcl_core.evaluation.drift import DRIFTED
from tcl_core.measure.tracker import Listed
from tcl_core.stages import drifting, exchange, training
from tcl_core.stages.tuning import TuneRequest
from tcl_core.stages.workspace import Workspace
from tests import command_line
from tests.command_line import ROOT, says

tcl, candidates_do = command_line.tcl, command_line.candidates_do


class Called(TclError):
    """In the place of a stage's work."""

    exit_code = 55


A, B = "host-avx2", "host-avx512"


@pytest.mark.parametrize(
    "words, function, arguments",
    [
        (["platforms"], "listing.list_platforms", None),
        (["platforms", "--json"], "listing.list_platforms", None),
        (["platforms", "--similar", "b", "--probes", "16"], "probing.find_similar", ("b", 16)),
        (["tasks"], "candidates.cut_tasks", ()),
        (["tasks", "resnet-18"], "candidates.tasks_of", None),
        (["candidates"], "candidates.sample_candidates", ()),
        (["collect", "-p", A, "--force"], "collecting.collect", (A, True)),
        (["holdout"], "collecting.holdout", ("host-sse42", False)),
        (["holdout", "--force", "-p", A], "collecting.holdout", (A, True)),
        (["drift", "-p", "b", "--json"], "drifting.check_drift", ("b",)),
        (["import", "/logs/a.log", "/logs/b.gz", "-p", "ryzen"], "exchange.import_logs", ([Path("/logs/a.log"), Path("/logs/b.gz")], "ryzen", "")),
        (["import", "a.log", "-p", "a100", "--target", "sm_75"], "exchange.import_logs", ([Path("a.log")], "a100", "sm_75")),
        (["export", "--platform", "b"], "exchange.export_database", ("b", None, False)),
        (["export", "-p", "b", "--to", "/database"], "exchange.export_database", ("b", Path("/database"), False)),
        (["train"], "training.train", ()),
        (["train", "--model", "tlp"], "baselines.train_baseline", ("tlp", None)),
        (["train", "--model", "tlp", "-p", B], "baselines.train_baseline", ("tlp", B)),
        (["distill", "--platform", B], "training.distill", (B, False)),
        (["distill", "--add", B], "training.distill", (B, True)),
        (["evaluate"], "judging.evaluate", ()),
        (["register"], "promotion.chosen_platforms", (None,)),
        (["promote", "-p", "b"], "promotion.chosen_platforms", ("b",)),
        (["promote", "--json"], "promotion.chosen_platforms", (None,)),
        (["rollback", "-p", "b"], "promotion.roll_back", ("b", "no reason given", None)),
        (["rollback", "-p", "b", "--reason", "slow", "--to", "3", "--json"], "promotion.roll_back", ("b", "slow", 3)),
        (["models"], "lineage.list_models", (None,)),
        (["models", "-p", "b", "--json"], "lineage.list_models", ("b",)),
        (["lineage", "HEAD~1", "--json"], "lineage.lineage", ("HEAD~1",)),
        (["tune", "resnet-18", "-p", "b", "--trials", "64"], "tuning.tune", (TuneRequest("resnet-18", "b", 64),)),
        (["tune", "--force"], "tuning.tune", (TuneRequest(force=True),)),
        (["tune", "--minutes", "2.5", "--out", "/fast", "--overwrite"], "tuning.tune", (TuneRequest(minutes=2.5, out=Path("/fast"), overwrite=True),)),
        (["tune", "-p", "b", "--model", "tlp"], "tuning.tune", (TuneRequest(platform="b", model=Path("tlp")),)),
        (["tune", "--warm-start", "/one", "--warm-start", "/two"], "tuning.tune", (TuneRequest(warm_start=[Path("/one"), Path("/two")]),)),
        (["run", "/fast", "--rounds", "3"], "tuned_folder.run_tuned", (Path("/fast"), 3)),
        (["predict", "/a.log", "-p", "b"], "predict.predict_log", (Path("/a.log"), "b", None, None, None, "", False)),
        (
            ["predict", "/a.log", "--model", "/tlp", "--to", "/a.csv", "--top", "5", "--target", "sm_75"],
            "predict.predict_log",
            (Path("/a.log"), None, Path("/tlp"), Path("/a.csv"), 5, "sm_75", False),
        ),
        (["report"], "reporting.write_report", (None, False)),
        (["report", "/before", "/after", "--to", "/changes.html", "--overwrite"], "reporting.write_comparison", ([Path("/before"), Path("/after")], Path("/changes.html"), True)),
        (["summary"], "overview.summarise", ()),
        (["init", "mine"], "starting.start_project", (Path("mine"),)),
        (["device", "list", "--tracker", "10.0.0.2:9190"], "device.devices_at", ("10.0.0.2:9190",)),
        (["device", "serve", "--key", "pi4", "--port", "9"], "device.serve", ("pi4", "127.0.0.1:9190", "127.0.0.1", 9, say)),
    ],
)  # fmt: skip
def test_each_command_is_one_call(tcl, monkeypatch, words, function, arguments):
    """Of a stage, with a workspace first where it takes one; ``arguments`` None: with what is read from its parameters."""
    module, _, name = function.partition(".")
    module = importlib.import_module(f"tcl_core.stages.{module}")
    signature, calls = inspect.signature(getattr(module, name)), []

    def called(*given, **named):
        signature.bind(*given, **named)  # the stage takes what the command gives
        calls.append((*given, *named.values()))
        raise Called("it was called")

    monkeypatch.setattr(module, name, called)
    assert tcl(*words) == (Called.exit_code, "", "tcl: it was called\n")
    (call,) = calls
    if arguments is not None:
        assert tuple(each for each in call if not isinstance(each, Workspace) and getattr(each, "__name__", "") != "<lambda>") == arguments


@pytest.mark.parametrize(
    "words, sentence",
    [
        (["platforms", "--similar", A, "--json"], "--similar has no --json; leave one of them out"),
        (["distill", "--platform", A, "--add", B], "give either --platform, which goes on from the model here, or --add, which does from a champion"),
        (["train", "-p", "host-avx1"], "unknown platform 'host-avx1' in params.yaml; did you mean 'host-avx512'?"),
        (["platforms", "--probes", "9"], "--probes is of --similar; give both, or leave it out"),
        (["tune", "--overwrite"], "--overwrite is of --out; give both, or leave it out"),
        (["device", "serve", "--port", "9"], "--host and --port are of a server, which needs --key; a tracker listens where --tracker says"),
        (["train", "-p", B], f"the chain's model is trained on host-sse42; it learns {B} by: tcl distill --platform {B}"),
    ],
)  # fmt: skip
def test_options_that_exclude_each_other(tcl, words, sentence):
    assert tcl(*words) == (2, "", f"tcl: {sentence}\n")


@pytest.mark.parametrize(
    "words, stage, done, lost",
    [
        (["collect"], "collecting.collect", 2, "host-sse42: done\nhost-avx2: done\n"),
        (["holdout"], "collecting.holdout", 1, "host-sse42: done\n"),
        (["import", "a", "b", "c", "-p", "p"], "exchange.import_logs", 2, "done\ndone\n"),
        (["promote"], "promotion.promote", 1, "done\n"),
        (["register"], "promotion.register", 2, "done\ndone\n"),
        (["collect"], "collecting.collect", 0, ""),
    ],
)  # fmt: skip
def test_what_was_done_before_a_failure_is_said(tcl, monkeypatch, words, stage, done, lost):
    @dataclasses.dataclass
    class Done:
        def __str__(self):
            return "done"

    times = iter(range(99))

    def work(workspace, *given, told=None):
        while next(times) < done:
            if told is None:
                return Done()
            told(Done())
        raise PlatformError("the disk is full; free some")

    module, _, name = stage.partition(".")
    monkeypatch.setattr(importlib.import_module(f"tcl_core.stages.{module}"), name, work)
    monkeypatch.setattr("tcl_core.stages.promotion.chosen_platforms", lambda *_: ["host-sse42", A, B])
    assert tcl(*words) == (4, lost, "tcl: the disk is full; free some\n")


def test_an_output_that_takes_nothing_hides_no_failure(tcl, monkeypatch):
    def full(*_, **__):
        raise PlatformError("cannot write to the standard output")

    app = sys.modules["tcl_core.cli.app"]  # the package's attribute of that name is the application in it
    monkeypatch.setattr(app, "say", full)
    with pytest.raises(PlatformError, match="the board is gone"), app.told_first(["host-sse42: done"]):
        raise PlatformError("the board is gone")


@pytest.mark.parametrize("words", [["rollback", "-p", A, "--reason", "-h"], ["lineage", "--json", "--", "-h"]])
def test_what_asks_for_help_may_be_an_options_value(tcl, monkeypatch, words):
    for name in ("roll_back", "lineage"):
        module = importlib.import_module(f"tcl_core.stages.{'promotion' if name == 'roll_back' else name}")
        monkeypatch.setattr(module, name, lambda workspace, *given: {"root": str(workspace.root), "given": given})
    monkeypatch.setattr("tcl_core.stages.promotion.roll_back_text", lambda found: found["given"][1])
    code, out, err = tcl(*words)
    assert (code, err) == (0, "") and "-h" in out


@pytest.mark.parametrize("words, stage", [(["models"], "lineage.list_models"), (["lineage", "HEAD"], "lineage.lineage")])
def test_what_is_asked_as_json_is_said_as_json(tcl, monkeypatch, words, stage):
    module, _, name = stage.partition(".")
    monkeypatch.setattr(importlib.import_module(f"tcl_core.stages.{module}"), name, lambda *given: {"versions": [1, float("nan")]})
    code, out, err = tcl(*words, "--json")
    assert (code, json.loads(out), err) == (0, {"versions": [1, None]}, "")


def test_devices_as_json(tcl, monkeypatch):
    monkeypatch.setattr("tcl_core.stages.device.list_devices", lambda *address: {"pi4": Listed(2, 1, 0)})
    code, out, err = tcl("device", "list", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"tracker": "127.0.0.1:9190", "devices": [{"key": "pi4", "servers": 2, "free": 1, "waiting": 0}]}


def test_the_version_is_that_of_the_package(tcl):
    code, out, err = tcl("--version")
    assert (code, out.split()[-1], err) == (0, importlib.metadata.version("tcl"), "")


def test_paths_are_relative_to_where_a_command_is_given(tcl, monkeypatch, tmp_path):
    """And what the project has is where the project is."""
    calls = []
    monkeypatch.setattr(exchange, "import_logs", lambda *given, told: calls.append(given) or [])
    monkeypatch.chdir(tmp_path / "deeper")
    assert tcl("import", "a.log", "/b.log", "-p", "p")[0] == 0 and Path.cwd() == tmp_path / "deeper"
    ((workspace, *given),) = calls
    assert given == [[Path("a.log"), Path("/b.log")], "p", ""] and workspace.reports == Path("../data/reports")


def test_a_known_error_is_one_sentence_and_its_own_code(tcl, candidates_do):
    def fail(*_):
        raise PlatformError("this CPU lacks AVX-512; choose host-avx2")

    candidates_do(fail)
    code, out, err = tcl("candidates")
    assert (code, out) == (4, "") and err == "tcl: this CPU lacks AVX-512; choose host-avx2\n"


def test_a_bug_is_one_sentence_and_a_log(tcl, candidates_do):
    def fail(*_):
        raise ZeroDivisionError("no programs")

    candidates_do(fail)
    code, _, err = tcl("candidates")
    assert code == 1 and err.count("\n") == 1 and "unexpected ZeroDivisionError: no programs" in err
    assert "in fail" in Path(err.split("the traceback is in ")[1].strip()).read_text()


def test_a_bug_on_a_disk_that_takes_no_log_is_still_told(tcl, candidates_do, tmp_path):
    def fail(*_):
        raise ZeroDivisionError("no programs")

    (tmp_path / "logs").write_text("in the way")
    candidates_do(fail)
    code, _, err = tcl("candidates")
    assert code == 1 and err.startswith("tcl: unexpected ZeroDivisionError: no programs; logs/")
    assert "could not be written (File exists), so here is the traceback:" in err and "in fail" in err


def test_an_answer_that_cannot_be_handed_over_is_printed(tcl, candidates_do, monkeypatch, tmp_path):
    monkeypatch.setenv(process.ANSWER_FILE, str(tmp_path / "gone/answer.json"))
    candidates_do(says("3 platforms"))
    assert tcl("candidates") == (0, "3 platforms\n", "")


def test_drift_has_an_exit_code_of_its_own(tcl, monkeypatch, tmp_path):
    check = {"platform": "b", "reason": "as told", "changed": []}
    monkeypatch.setattr(drifting, "check_drift", lambda _, name: [check | {"verdict": DRIFTED if name else "no drift"}])
    assert tcl("drift", "-p", "slow") == (7, "b: drift: as told\n", "")
    assert tcl("drift") == (0, "b: no drift: as told\n", "")
    monkeypatch.setenv(process.ANSWER_FILE, str(tmp_path / "answer.json"))
    assert tcl("drift", "-p", "slow")[0] == 7
    assert json.loads((tmp_path / "answer.json").read_text()) == {"text": "b: drift: as told", "exit_code": 7}


def test_ctrl_c_says_that_nothing_is_lost(tcl, candidates_do):
    def stop(*_):
        raise KeyboardInterrupt

    candidates_do(stop)
    code, _, err = tcl("candidates")
    assert code == 130 and err == f"tcl: {process.INTERRUPTED}\n"


def test_wrong_usage_exits_with_2_and_a_hint(tcl):
    code, _, err = tcl("trian")
    assert code == 2 and "Did you mean 'train'" in err
    for words in (("tune", "--trials", "0"), ("tune", "--minutes", "0"), ("tune", "--minutes", "-1"), ("run", "x", "--rounds", "0")):
        code, _, err = tcl(*words)
        assert code == 2 and f"Invalid value for '{words[-2]}'" in err


def test_it_works_below_the_project_and_nowhere_else(tcl, candidates_do, monkeypatch, tmp_path):
    candidates_do(lambda workspace: [workspace.root.resolve()])
    monkeypatch.chdir(tmp_path / "deeper")
    assert tcl("candidates") == (0, f"{tmp_path}\n", "")
    monkeypatch.chdir("/")
    code, _, err = tcl("candidates")
    assert code == 2 and "there is no params.yaml in / or above" in err


@pytest.mark.parametrize("words", [["--help"], ["tune", "--help"], ["collect", "-h"]])
def test_help_is_there_everywhere(tcl, monkeypatch, words):
    monkeypatch.chdir("/")
    code, out, err = tcl(*words)
    assert (code, err) == (0, "") and "Usage" in out


def test_the_model_of_the_example_exists():
    from tcl_core.models import catalogue

    assert cli.models.train.__doc__.split("--model ")[1] in catalogue.CLASSES


def test_a_flow_gets_the_answer_instead_of_the_terminal(tcl, candidates_do, monkeypatch, tmp_path):
    monkeypatch.setenv(process.ANSWER_FILE, str(tmp_path / "answer.json"))
    candidates_do(says("3 platforms"))
    assert tcl("candidates") == (0, "", "")
    assert json.loads((tmp_path / "answer.json").read_text()) == {"text": "3 platforms", "exit_code": 0}


@pytest.mark.parametrize("command, code", [("collect", 2), ("evaluate", 2), ("tune", 2), ("train", 0)])
def test_only_training_runs_in_several_processes(tcl, monkeypatch, command, code):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(training, "train", lambda workspace: "done")
    monkeypatch.setattr("tcl_core.learning.distributed.with_helpers", lambda work: work())  # there are none
    sentence = (
        f"tcl: tcl {command} is the work of one process, and torchrun started 2; run it without torchrun, which is for: train, distill\n"
    )
    assert tcl(command) == ((0, "done\n", "") if code == 0 else (code, "", sentence))


def test_help_imports_nothing_heavy():
    code = "import sys, tcl_core.cli; sys.exit(bool({'torch', 'tvm', 'mlflow', 'prefect', 'pyarrow', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_reader_that_leaves_is_no_error():
    code = "from tcl_core import cli; from tcl_core.stages import candidates; import sys; candidates.sample_candidates = lambda _: ['x' * 10**6]; sys.argv = ['tcl', 'candidates']; cli.main()"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.close()
        assert child.stderr.read() == b""


@pytest.mark.parametrize("given", ["x", "0", "-1", "1.5", "9" * 30, "\x1b[31m"])
def test_a_parent_that_is_no_process_is_left_out_with_a_word(tcl, candidates_do, monkeypatch, given):
    monkeypatch.setenv(process.PARENT_PID, given)
    candidates_do(says("3 platforms"))
    code, out, err = tcl("candidates")
    assert (code, out) == (0, "3 platforms\n")
    assert "TCL_PARENT_PID is '" in err and "which is no process id; it is left out" in err and "\x1b[31m'" not in err


def test_a_stage_does_not_outlive_its_flow():
    flow = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    watch = (
        "import sys, threading, time; from tcl_core.process import end_with; "
        "threading.Thread(target=end_with, args=(int(sys.argv[1]),), daemon=True).start(); "
        "time.sleep(1.5); print('watching', flush=True); time.sleep(600)"
    )
    stage = subprocess.Popen([sys.executable, "-c", watch, str(flow.pid)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert stage.stdout.readline() == "watching\n" and stage.poll() is None  # as long as its flow lives
    flow.kill()
    flow.wait(timeout=30)
    assert stage.wait(timeout=30) == -signal.SIGTERM


@pytest.mark.parametrize("edited, code", [(False, 0), (True, 4)])
def test_parameters_edited_while_a_stage_of_dvc_is_at_work_end_it(edited, code, tcl, candidates_do, monkeypatch):
    """Or DVC would take them for those that the stage read."""
    params = Path("params.yaml")

    def edit(*_):
        if edited:
            params.write_text(params.read_text().replace("programs_per_task: 40", "programs_per_task: 41", 1))
        return ["sampled"]

    Path("dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    monkeypatch.setenv("DVC_STAGE", "candidates")
    candidates_do(edit)
    found, out, err = tcl("candidates")
    assert (found, out.strip()) == (code, "sampled")
    assert ("candidates of params.yaml changed while this stage was at work" in err) == edited
    monkeypatch.delenv("DVC_STAGE")
    assert tcl("candidates")[0] == 0  # by hand nothing is written down

"""`tcl`: what each command calls, and how each kind of ending looks to the shell."""

from __future__ import annotations

import importlib
import inspect
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from _wrong_command_lines import CODES, wrong_command_lines

from tcl_core import cli, process
from tcl_core.cli import saying
from tcl_core.cli.saying import say
from tcl_core.errors import PlatformError, TclError
from tcl_core.evaluation.drift import DRIFTED
from tcl_core.stages import candidates, collecting, drifting, exchange, training
from tcl_core.stages.tuning import TuneRequest
from tcl_core.stages.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def tcl(tmp_path, monkeypatch, capsys):
    """Run `tcl ...` in an empty project; gives exit code, stdout, stderr."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(process.ANSWER_FILE, raising=False)
    monkeypatch.delenv(process.PARENT_PID, raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tcl", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


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
        (["collect", "-p", A, "--again"], "collecting.collect", (A, True)),
        (["holdout"], "collecting.holdout", ("host-sse42", False)),
        (["holdout", "--again", "-p", A], "collecting.holdout", (A, True)),
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
        (["tune", "--again"], "tuning.tune", (TuneRequest(again=True),)),
        (["tune", "--minutes", "2.5", "--out", "/fast", "--force"], "tuning.tune", (TuneRequest(minutes=2.5, out=Path("/fast"), force=True),)),
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
        (["report", "/before", "/after", "--to", "/changes.html", "--force"], "reporting.write_comparison", ([Path("/before"), Path("/after")], Path("/changes.html"), True)),
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
        assert tuple(each for each in call if not isinstance(each, Workspace)) == arguments


def test_paths_are_relative_to_where_a_command_is_given(tcl, monkeypatch, tmp_path):
    """And what the project has is where the project is."""
    calls = []
    monkeypatch.setattr(exchange, "import_logs", lambda *given: calls.append(given) or [])
    monkeypatch.chdir(tmp_path / "deeper")
    assert tcl("import", "a.log", "/b.log", "-p", "p")[0] == 0 and Path.cwd() == tmp_path / "deeper"
    ((workspace, *given),) = calls
    assert given == [[Path("a.log"), Path("/b.log")], "p", ""] and workspace.reports == Path("../data/reports")


def says(text: str):
    """In the place of the stage candidates."""
    return lambda workspace: [text]


def test_a_known_error_is_one_sentence_and_its_own_code(tcl, monkeypatch):
    def fail(*_):
        raise PlatformError("this CPU lacks AVX-512; choose host-avx2")

    monkeypatch.setattr(candidates, "sample_candidates", fail)
    code, out, err = tcl("candidates")
    assert (code, out) == (4, "") and err == "tcl: this CPU lacks AVX-512; choose host-avx2\n"


def test_a_bug_is_one_sentence_and_a_log(tcl, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError("no programs")

    monkeypatch.setattr(candidates, "sample_candidates", fail)
    code, _, err = tcl("candidates")
    assert code == 1 and err.count("\n") == 1 and "unexpected ZeroDivisionError: no programs" in err
    assert "in fail" in Path(err.split("the traceback is in ")[1].strip()).read_text()


def test_a_bug_on_a_disk_that_takes_no_log_is_still_told(tcl, monkeypatch, tmp_path):
    def fail(*_):
        raise ZeroDivisionError("no programs")

    (tmp_path / "logs").write_text("in the way")
    monkeypatch.setattr(candidates, "sample_candidates", fail)
    code, _, err = tcl("candidates")
    assert code == 1 and err.startswith("tcl: unexpected ZeroDivisionError: no programs; logs/")
    assert "could not be written (File exists), so here is the traceback:" in err and "in fail" in err


def test_an_answer_that_cannot_be_handed_over_is_printed(tcl, monkeypatch, tmp_path):
    monkeypatch.setenv(process.ANSWER_FILE, str(tmp_path / "gone/answer.json"))
    monkeypatch.setattr(candidates, "sample_candidates", says("3 platforms"))
    assert tcl("candidates") == (0, "3 platforms\n", "")


def test_drift_has_an_exit_code_of_its_own(tcl, monkeypatch, tmp_path):
    check = {"platform": "b", "reason": "as told", "changed": []}
    monkeypatch.setattr(drifting, "check_drift", lambda _, name: [check | {"verdict": DRIFTED if name else "no drift"}])
    assert tcl("drift", "-p", "slow") == (7, "b: drift: as told\n", "")
    assert tcl("drift") == (0, "b: no drift: as told\n", "")
    monkeypatch.setenv(process.ANSWER_FILE, str(tmp_path / "answer.json"))
    assert tcl("drift", "-p", "slow")[0] == 7
    assert json.loads((tmp_path / "answer.json").read_text()) == {"text": "b: drift: as told", "exit_code": 7}


def test_ctrl_c_says_that_nothing_is_lost(tcl, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(candidates, "sample_candidates", stop)
    code, _, err = tcl("candidates")
    assert code == 130 and err == f"tcl: {process.INTERRUPTED}\n"


def test_wrong_usage_exits_with_2_and_a_hint(tcl):
    code, _, err = tcl("trian")
    assert code == 2 and "Did you mean 'train'" in err
    for words in (("tune", "--trials", "0"), ("tune", "--minutes", "0"), ("tune", "--minutes", "-1"), ("run", "x", "--rounds", "0")):
        code, _, err = tcl(*words)
        assert code == 2 and f"Invalid value for '{words[-2]}'" in err


def test_it_works_below_the_project_and_nowhere_else(tcl, monkeypatch, tmp_path):
    monkeypatch.setattr(candidates, "sample_candidates", lambda workspace: [workspace.root.resolve()])
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


def test_a_flow_gets_the_answer_instead_of_the_terminal(tcl, monkeypatch, tmp_path):
    monkeypatch.setenv(process.ANSWER_FILE, str(tmp_path / "answer.json"))
    monkeypatch.setattr(candidates, "sample_candidates", says("3 platforms"))
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
def test_a_parent_that_is_no_process_is_left_out_with_a_word(tcl, monkeypatch, given):
    monkeypatch.setenv(process.PARENT_PID, given)
    monkeypatch.setattr(candidates, "sample_candidates", says("3 platforms"))
    code, out, err = tcl("candidates")
    assert (code, out) == (0, "3 platforms\n")
    assert "TCL_PARENT_PID is '" in err and "which is no process id; it is left out" in err and "\x1b[31m'" not in err


def test_a_stage_does_not_outlive_its_flow():
    flow = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    watch = "import sys; from tcl_core.process import end_with; end_with(int(sys.argv[1]))"
    stage = subprocess.Popen([sys.executable, "-c", watch, str(flow.pid)], cwd=ROOT)
    flow.kill()
    flow.wait()
    assert stage.wait(timeout=30) == -signal.SIGTERM


# --- what a user, a shell or a disk does to it ---

SAYS = "from tcl_core import cli; from tcl_core.stages import candidates; import sys; candidates.sample_candidates = lambda _: ['3 platforms']; sys.argv = ['tcl', *sys.argv[1:]]; cli.main()"


@pytest.mark.parametrize(
    "command, code, told",
    [
        ("candidates >&-", 4, "tcl: cannot write to the standard output (bad file descriptor); what the command did is kept\n"),
        ("candidates >/dev/full", 4, "tcl: cannot write to the standard output (no space left on device); what the command did is kept\n"),
        ("--help >/dev/full", 4, "tcl: cannot read or write a file (no space left on device); what was there before is kept; free some space and run again\n"),
        ("candidates >&- 2>&-", 4, ""),
        ("nosuch 2>/dev/full", 4, ""),
        ("candidates 2>&- >/dev/null", 0, ""),
        ("candidates | true", 0, ""),
        ("--help | true", 0, ""),
    ],
)  # fmt: skip
def test_outputs_that_take_nothing(command, code, told):
    shell = f'"$0" -c "$1" {command}'
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell, sys.executable, SAYS], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stderr, ended.stdout) == (code, told, "")


def test_what_is_opened_later_does_not_take_the_place_of_a_closed_output():
    """Else what is printed would end in that file."""
    code = "from tcl_core import cli; from tcl_core.stages import candidates; import os, sys; candidates.sample_candidates = lambda _: sys.exit(os.open('/dev/null', 0))"
    code += "; sys.argv = ['tcl', 'candidates']; cli.main()"
    ended = subprocess.run(["bash", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, code], cwd=ROOT, timeout=60)
    assert ended.returncode > 2


@pytest.mark.parametrize(
    "error, code, told",
    [
        (PermissionError(13, "Permission denied", "data/journal"), 4, "cannot read or write data/journal (permission denied); "),
        (OSError(40, "Too many levels of symbolic links", "a\n.log"), 2, r"cannot read or write a\n.log (too many levels of "),
        (MemoryError(), 4, "this machine has too little memory for that; "),
        (RecursionError("maximum recursion depth exceeded"), 3, "a file that was read is nested too deeply "),
    ],
)
def test_what_no_stage_has_foreseen_is_a_sentence_all_the_same(tcl, monkeypatch, tmp_path, error, code, told):
    def fail(*_):
        raise error

    monkeypatch.setattr(candidates, "sample_candidates", fail)
    ended, out, err = tcl("candidates")
    assert (ended, out, err.count("\n")) == (code, "", 1) and err.startswith(f"tcl: {told}")
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("words", [["collect", "-p", ""], ["collect", "--platform="], ["tasks", " "], ["collect", "--platform", ""]])
def test_an_empty_name_does_not_mean_everything(tcl, monkeypatch, words):
    for module, stage in ((collecting, "collect"), (candidates, "tasks_of")):
        monkeypatch.setattr(module, stage, lambda *arguments, **options: pytest.fail("it was run"))
    code, _, err = tcl(*words)
    assert code == 2 and err.startswith("tcl: an argument is empty, such as a shell variable that is not set; ")


def test_a_terminal_obeys_nothing_that_a_user_or_a_file_says(tcl, monkeypatch):
    code, _, err = tcl("tasks", "resnet\x1b[31m\n18")
    assert code == 2 and err == "tcl: the argument 'resnet\\x1b[31m\\n18' has control characters in it; give it without them\n"
    monkeypatch.setattr(candidates, "sample_candidates", says("task \x1b[31mred\x07\udcff\nnext é"))
    assert tcl("candidates") == (0, "task \\x1b[31mred\\x07\\udcff\nnext é\n", "")

    def fail(*_):
        raise PlatformError(f"a device said \x1b[2J\n{'a' * 5_000}")

    monkeypatch.setattr(candidates, "sample_candidates", fail)
    _, _, err = tcl("candidates")
    assert err.startswith("tcl: a device said \\x1b[2J\\naaa") and err.endswith("a… (5,019 characters)\n") and len(err) < 2_100


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to(path.name), lambda path: path.symlink_to("gone")])
def test_what_is_no_params_file_does_not_lead_to_the_project_around_it(tcl, monkeypatch, tmp_path, make):
    monkeypatch.chdir(tmp_path / "deeper")
    make(tmp_path / "deeper/params.yaml")
    code, _, err = tcl("candidates")
    assert (
        code == 2 and err == f"tcl: {tmp_path}/deeper/params.yaml is no file; restore it from the repository (git checkout params.yaml)\n"
    )


def test_a_folder_that_is_gone(tcl, monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert tcl("candidates") == (2, "", "tcl: the present folder has been removed; cd to the project's\n")
    monkeypatch.chdir(tmp_path)


def test_a_log_of_a_bug_overwrites_nothing(tcl, monkeypatch, tmp_path):
    def fail(*_):
        raise ZeroDivisionError("no\x1b programs")

    monkeypatch.setattr(candidates, "sample_candidates", fail)
    monkeypatch.setattr(saying.time, "strftime", lambda form: "now")
    monkeypatch.setattr(saying.os, "getpid", lambda: 7)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/now-7.log").symlink_to(tmp_path / "params.yaml")
    code, _, err = tcl("candidates")
    assert code == 1 and err.startswith(
        r"tcl: unexpected ZeroDivisionError: no\x1b programs; logs/now-7.log could not be written (File exists)"
    )
    assert (tmp_path / "params.yaml").read_bytes() == (ROOT / "params.yaml").read_bytes()


AT_ONCE = (
    "words",
    "import",
    "list",
    "serve",
    "collect",
    "holdout",
    "export",
    "profile",
    "predict n",
    "predict e",
    "predict z",
    "top",
    "run ",
    "rounds",
    "report",
)


def test_wrong_command_lines_end_as_they_should(tcl, tmp_path):
    """A sample of what bench/faults.py runs on a whole project: those that need neither the registry nor the compiler."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    lines = list(wrong_command_lines(tmp_path, tmp_path / "scratch"))
    assert len(lines) > 400
    chosen = [argv for name, argv in lines if name.startswith(AT_ONCE)][::4]
    assert len(chosen) > 50
    before = {path for path in tmp_path.rglob("*")}
    for argv in chosen:
        code, out, err = tcl(*argv)
        assert code in CODES[1:] and "tcl: unexpected" not in err and err.count("\n") < 9, (argv, code, err)
    assert {path for path in tmp_path.rglob("*") if "imported" not in str(path) and path.name != "data"} == before

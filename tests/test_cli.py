"""`tcl`: what each command calls, and how each kind of ending looks to the shell."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tcl_core import cli, stages
from tcl_core.errors import PlatformError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def tcl(tmp_path, monkeypatch, capsys):
    """Run `tcl ...` in an empty project; gives exit code, stdout, stderr."""
    (tmp_path / "params.yaml").write_text("seed: 0\n")
    (tmp_path / "deeper").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(cli.ANSWER_FILE, raising=False)
    monkeypatch.delenv(cli.PARENT_PID, raising=False)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tcl", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, *capsys.readouterr()

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    "words, function, arguments",
    [
        (["platforms"], "platforms", ()),
        (["tasks", "resnet-18"], "tasks", ("resnet-18",)),
        (["candidates"], "candidates", ()),
        (["collect", "-p", "a", "--again"], "collect", ("a", True)),
        (["holdout"], "holdout", (None, False)),
        (["holdout", "--again", "-p", "a"], "holdout", ("a", True)),
        (["import", "/logs/a.log", "/logs/b.gz", "-p", "ryzen"], "import_logs", ([Path("/logs/a.log"), Path("/logs/b.gz")], "ryzen", "")),
        (["import", "/a.log", "-p", "a100", "--target", "sm_75"], "import_logs", ([Path("/a.log")], "a100", "sm_75")),
        (["export", "--platform", "b"], "export", ("b", None)),
        (["export", "-p", "b", "--to", "/database"], "export", ("b", Path("/database"))),
        (["train", "--model", "tlp"], "train", ("tlp", None)),
        (["train", "--model", "tlp", "-p", "b"], "train", ("tlp", "b")),
        (["distill", "--platform", "b"], "distill", ("b",)),
        (["evaluate"], "evaluate", ()),
        (["register"], "register", (None,)),
        (["promote", "-p", "b"], "promote", ("b",)),
        (["tune", "resnet-18", "-p", "b", "--trials", "64"], "tune", ("resnet-18", "b", 64, False)),
        (["tune", "--again"], "tune", (None, None, None, True)),
        (["predict", "/a.log", "-p", "b"], "predict_log", (Path("/a.log"), "b", None, None, None, "")),
        (
            ["predict", "/a.log", "--model", "/tlp", "--to", "/a.csv", "--top", "5", "--target", "sm_75"],
            "predict_log",
            (Path("/a.log"), None, Path("/tlp"), Path("/a.csv"), 5, "sm_75"),
        ),
        (["profile", "full"], "profile", ("full",)),
        (["summary"], "summary", ()),
        (["device", "list", "--tracker", "10.0.0.2:9190"], "devices", ("10.0.0.2:9190",)),
    ],
)
def test_each_command_is_one_call(tcl, monkeypatch, words, function, arguments):
    import inspect

    assert callable(getattr(stages, function))
    inspect.signature(getattr(stages, function)).bind(*arguments)  # the stage takes what the command gives
    calls = []
    monkeypatch.setattr(stages, function, lambda *a, **k: calls.append((*a, *k.values())) or "12 tasks")
    assert tcl(*words) == (0, "12 tasks\n", "")
    assert calls == [arguments]


def test_paths_are_relative_to_where_a_command_is_given(tcl, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr(stages, "import_logs", lambda *arguments: calls.append(arguments))
    monkeypatch.chdir(tmp_path / "deeper")
    assert tcl("import", "a.log", "/b.log", "-p", "p")[0] == 0 and Path.cwd() == tmp_path
    assert calls == [([tmp_path / "deeper" / "a.log", Path("/b.log")], "p", "")]
    monkeypatch.setattr(stages, "predict_log", lambda *arguments: calls.append(arguments))
    monkeypatch.chdir(tmp_path / "deeper")
    assert tcl("predict", "a.log", "--model", "tlp", "--to", "../a.csv")[0] == 0
    assert calls[1][:4] == (tmp_path / "deeper/a.log", None, tmp_path / "deeper/tlp", tmp_path / "deeper/../a.csv")


def test_a_known_error_is_one_sentence_and_its_own_code(tcl, monkeypatch):
    def fail():
        raise PlatformError("this CPU lacks AVX-512; choose host-avx2")

    monkeypatch.setattr(stages, "platforms", fail)
    code, out, err = tcl("platforms")
    assert (code, out) == (4, "") and err == "tcl: this CPU lacks AVX-512; choose host-avx2\n"


def test_a_bug_is_one_sentence_and_a_log(tcl, monkeypatch):
    def fail():
        raise ZeroDivisionError("no programs")

    monkeypatch.setattr(stages, "platforms", fail)
    code, _, err = tcl("platforms")
    assert code == 1 and err.count("\n") == 1 and "unexpected ZeroDivisionError: no programs" in err
    assert "in fail" in Path(err.split("the traceback is in ")[1].strip()).read_text()


def test_a_bug_on_a_disk_that_takes_no_log_is_still_told(tcl, monkeypatch, tmp_path):
    def fail():
        raise ZeroDivisionError("no programs")

    (tmp_path / "logs").write_text("in the way")
    monkeypatch.setattr(stages, "platforms", fail)
    code, _, err = tcl("platforms")
    assert code == 1 and err.startswith("tcl: unexpected ZeroDivisionError: no programs; logs/")
    assert "could not be written (File exists), so here is the traceback:" in err and "in fail" in err


def test_an_answer_that_cannot_be_handed_over_is_printed(tcl, monkeypatch, tmp_path):
    monkeypatch.setenv(cli.ANSWER_FILE, str(tmp_path / "gone/answer.json"))
    monkeypatch.setattr(stages, "platforms", lambda: "3 platforms")
    assert tcl("platforms") == (0, "3 platforms\n", "")


def test_ctrl_c_says_that_nothing_is_lost(tcl, monkeypatch):
    def stop():
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "platforms", stop)
    code, _, err = tcl("platforms")
    assert code == 130 and err == f"tcl: {cli.INTERRUPTED}\n"


def test_wrong_usage_exits_with_2_and_a_hint(tcl):
    code, _, err = tcl("trian")
    assert code == 2 and "Did you mean 'train'" in err
    assert tcl("tune", "--trials", "0")[0] == 2


def test_it_works_below_the_project_and_nowhere_else(tcl, monkeypatch, tmp_path):
    monkeypatch.setattr(stages, "platforms", lambda: str(Path.cwd()))
    monkeypatch.chdir(tmp_path / "deeper")
    assert tcl("platforms") == (0, f"{tmp_path}\n", "")
    monkeypatch.chdir("/")
    code, _, err = tcl("platforms")
    assert code == 2 and "there is no params.yaml in / or above" in err


@pytest.mark.parametrize("words", [["--help"], ["tune", "--help"], ["collect", "-h"]])
def test_help_is_there_everywhere(tcl, monkeypatch, words):
    monkeypatch.chdir("/")
    code, out, err = tcl(*words)
    assert (code, err) == (0, "") and "Usage" in out


def test_the_model_of_the_example_exists():
    from tcl_core.models import catalogue

    assert cli.train.__doc__.split("--model ")[1] in catalogue.CLASSES


def test_a_flow_gets_the_answer_instead_of_the_terminal(tcl, monkeypatch, tmp_path):
    monkeypatch.setenv(cli.ANSWER_FILE, str(tmp_path / "answer.json"))
    monkeypatch.setattr(stages, "platforms", lambda: "3 platforms")
    assert tcl("platforms") == (0, "", "")
    assert json.loads((tmp_path / "answer.json").read_text()) == {"text": "3 platforms", "exit_code": 0}


def test_help_imports_nothing_heavy():
    code = "import sys, tcl_core.cli; sys.exit(bool({'torch', 'tvm', 'mlflow', 'prefect', 'pyarrow'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_a_reader_that_leaves_is_no_error():
    code = "from tcl_core import cli, stages; import sys; stages.platforms = lambda: 'x' * 10**6; sys.argv = ['tcl', 'platforms']; cli.main()"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        child.stdout.close()
        assert child.stderr.read() == b""


@pytest.mark.parametrize("given", ["x", "0", "-1", "1.5", "9" * 30, "\x1b[31m"])
def test_a_parent_that_is_no_process_is_left_out_with_a_word(tcl, monkeypatch, given):
    monkeypatch.setenv(cli.PARENT_PID, given)
    monkeypatch.setattr(stages, "platforms", lambda: "3 platforms")
    code, out, err = tcl("platforms")
    assert (code, out) == (0, "3 platforms\n")
    assert "TCL_PARENT_PID is '" in err and "which is no process id; it is left out" in err and "\x1b[31m'" not in err


def test_a_stage_does_not_outlive_its_flow():
    flow = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    watch = "import sys; from tcl_core.cli import end_with; end_with(int(sys.argv[1]))"
    stage = subprocess.Popen([sys.executable, "-c", watch, str(flow.pid)], cwd=ROOT)
    flow.kill()
    flow.wait()
    assert stage.wait(timeout=30) == -signal.SIGTERM

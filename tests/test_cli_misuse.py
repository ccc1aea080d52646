"""`tcl` under what a user, a shell or a disk does to it: one sentence, and nothing is lost."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from _wrong_command_lines import CODES, wrong_command_lines

from tcl_core.cli import saying
from tcl_core.errors import PlatformError
from tcl_core.stages import candidates, collecting
from tests import command_line
from tests.command_line import ROOT, says
from tests.shipped import SHIPPED

tcl, candidates_do = command_line.tcl, command_line.candidates_do
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
def test_what_no_stage_has_foreseen_is_a_sentence_all_the_same(tcl, candidates_do, tmp_path, error, code, told):
    def fail(*_):
        raise error

    candidates_do(fail)
    ended, out, err = tcl("candidates")
    assert (ended, out, err.count("\n")) == (code, "", 1) and err.startswith(f"tcl: {told}")
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("words", [["collect", "-p", ""], ["collect", "--platform="], ["tasks", " "], ["collect", "--platform", ""]])
def test_an_empty_name_does_not_mean_everything(tcl, monkeypatch, words):
    for module, stage in ((collecting, "collect"), (candidates, "tasks_of")):
        monkeypatch.setattr(module, stage, lambda *arguments, **options: pytest.fail("it was run"))
    code, _, err = tcl(*words)
    assert code == 2 and err.startswith("tcl: an argument is empty, such as a shell variable that is not set; ")


def test_a_terminal_obeys_nothing_that_a_user_or_a_file_says(tcl, candidates_do):
    code, _, err = tcl("tasks", "resnet\x1b[31m\n18")
    assert code == 2 and err == "tcl: the argument 'resnet\\x1b[31m\\n18' has control characters in it; give it without them\n"
    candidates_do(says("task \x1b[31mred\x07\udcff\nnext é"))
    assert tcl("candidates") == (0, "task \\x1b[31mred\\x07\\udcff\nnext é\n", "")

    def fail(*_):
        raise PlatformError(f"a device said \x1b[2J\n{'a' * 5_000}")

    candidates_do(fail)
    _, _, err = tcl("candidates")
    assert err.startswith("tcl: a device said \\x1b[2J\\naaa") and err.endswith("a… (5,019 characters)\n") and len(err) < 2_100


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to(path.name), lambda path: path.symlink_to("gone")])
def test_what_is_no_params_file_does_not_lead_to_the_project_around_it(tcl, monkeypatch, tmp_path, make):
    monkeypatch.chdir(tmp_path / "deeper")
    make(tmp_path / "deeper/params.yaml")
    code, _, err = tcl("candidates")
    assert code == 2 and err == f"tcl: {tmp_path}/deeper/params.yaml is no file; restore it (tcl init NAME writes a fresh one)\n"


def test_a_folder_that_is_gone(tcl, monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert tcl("candidates") == (2, "", "tcl: the present folder has been removed; cd to one that is there\n")
    assert tcl("init", "new") == (2, "", "tcl: the present folder has been removed; cd to one that is there\n")
    monkeypatch.chdir(tmp_path)


def test_a_log_of_a_bug_overwrites_nothing(tcl, candidates_do, monkeypatch, tmp_path):
    def fail(*_):
        raise ZeroDivisionError("no\x1b programs")

    candidates_do(fail)
    monkeypatch.setattr(saying.time, "strftime", lambda form: "now")
    monkeypatch.setattr(saying.os, "getpid", lambda: 7)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/now-7.log").symlink_to(tmp_path / "params.yaml")
    code, _, err = tcl("candidates")
    assert code == 1 and err.startswith(
        r"tcl: unexpected ZeroDivisionError: no\x1b programs; logs/now-7.log could not be written (File exists)"
    )
    assert (tmp_path / "params.yaml").read_bytes() == SHIPPED.read_bytes()


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
    shutil.copy(SHIPPED, tmp_path)
    lines = list(wrong_command_lines(tmp_path, tmp_path / "scratch"))
    assert len(lines) > 400
    chosen = [argv for name, argv in lines if name.startswith(AT_ONCE)][::4]
    assert len(chosen) > 50
    before = {path for path in tmp_path.rglob("*")}
    for argv in chosen:
        code, out, err = tcl(*argv)
        assert code in CODES[1:] and "tcl: unexpected" not in err and err.count("\n") < 9, (argv, code, err)
    assert {path for path in tmp_path.rglob("*") if "imported" not in str(path) and path.name != "data"} == before

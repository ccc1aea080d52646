"""`tcl ...` as a shell runs it, in a project of its own; what stages do is put in their place."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest

from tcl_core import cli, process
from tcl_core.stages import candidates
from tests.shipped import SHIPPED

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def tcl(tmp_path, monkeypatch, capsys):
    """Run `tcl ...` in an empty project; gives exit code, stdout, stderr."""
    shutil.copy(SHIPPED, tmp_path)
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


@pytest.fixture
def candidates_do(monkeypatch):
    """Put a function in the place of the stage candidates."""
    return lambda work: monkeypatch.setattr(candidates, "sample_candidates", work)


def says(text: str):
    """A stage that says so."""
    return lambda workspace: [text]

"""Words to the user, also when nobody reads them any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LEFT = """
import sys
from tcl_core import progress
progress.QUIET_S = -1.0
sys.stdin.readline()
with progress.progress("measuring", 100) as shown:
    for number in range(100):
        shown.advance("x" * 1000)
        progress.say("y" * 1000, sys.{stream})
print("more", file=sys.{stream})
sys.exit(7)
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_leaves_stops_nothing(stream):
    """As in `make run | head`, and with 2>&1 before it."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", LEFT.format(stream=stream)]
    with subprocess.Popen(command, cwd=ROOT, **pipes) as child:
        child.stdout.close()
        if stream == "stderr":
            child.stderr.close()
        child.stdin.write(b"\n")
        child.stdin.close()
        said = b"" if stream == "stderr" else child.stderr.read()
        assert child.wait(60) == 7 and b"Error" not in said


def test_progress_is_a_line_every_few_seconds(capfd, monkeypatch):
    from tcl_core import progress

    now = [50.0]
    monkeypatch.setattr(progress, "QUIET_S", -1.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.progress("measuring", 4) as shown:
        for seconds in (60.0, 5.0):  # the first waits for workers to start, and tells nothing of the others
            now[0] += seconds
            shown.advance("1.5 ms")
    assert capfd.readouterr().err == "measuring: 1 of 4, 1.5 ms\nmeasuring: 2 of 4, about 10 s left, 1.5 ms\n"


def test_progress_on_the_clock_says_what_is_left_of_it(capfd, monkeypatch):
    from tcl_core import progress

    now = [50.0]
    monkeypatch.setattr(progress, "QUIET_S", -1.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    with progress.progress("tuning", 1 << 60, seconds=90.0) as shown:
        for _ in range(2):
            now[0] += 60.0
            shown.advance("network 1.50 ms")
    assert capfd.readouterr().err == "tuning: 1, about 30 s left, network 1.50 ms\ntuning: 2, about 0 s left, network 1.50 ms\n"


def test_progress_goes_where_standard_error_was_sent_to():
    """As in a notebook, or where somebody wants none: such a stream has no descriptor."""
    import io
    from contextlib import redirect_stderr

    from tcl_core import progress

    with redirect_stderr(io.StringIO()) as said, progress.progress("measuring", 2) as shown:
        shown.advance()
        shown.show()
    assert said.getvalue() == "measuring: 1 of 2\n"
    with redirect_stderr(None), progress.progress("measuring", 2) as shown:
        shown.show()


def test_without_rich_a_terminal_gets_lines(monkeypatch, capfd):
    """It comes with the pipeline; the library alone has none."""
    from tcl_core import progress

    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.progress("ranking", 2) as shown:
        shown.advance()
        shown.show()
    assert capfd.readouterr().err == "ranking: 1 of 2\n"

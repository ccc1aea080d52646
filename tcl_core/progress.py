"""Progress of long work on standard error: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

QUIET_S = 15.0


def _standard_error() -> TextIO:
    """Standard error on a duplicate descriptor, so that progress shows while the compiler is silenced.

    Without a usable descriptor, as in a notebook or for a buffer, ``sys.stderr`` as it is.
    """
    if sys.stderr is not sys.__stderr__ and type(sys.stderr).__module__.partition(".")[0] == "ipykernel":
        return sys.stderr  # a notebook's descriptor is that of the terminal in which Jupyter runs
    try:
        return os.fdopen(os.dup(sys.stderr.fileno()), "w", buffering=1)
    except (OSError, ValueError, AttributeError):
        return sys.stderr or open(os.devnull, "w")


def say(text: str, to: TextIO | None = None) -> None:
    """Print a message for the user, by default on standard error; a stream that cannot be written to does not stop the work."""
    stream = to or sys.stderr
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # later output goes there, also what Python flushes at exit
        os.close(nowhere)
    except OSError:  # such as a full disk: the next message may find room
        pass


class Progress:
    """Counts finished units, of ``total`` or as many as ``seconds`` allow; ``note`` is shown beside the count."""

    def __init__(self, title: str, total: int, seconds: float | None = None) -> None:
        self.title, self.total, self.seconds, self.done, self.note = title, total, seconds, 0, ""
        self.start = self._said = self._first = time.monotonic()
        self.out = _standard_error()

    def advance(self, note: str = "") -> None:
        self.done, self.note = self.done + 1, note
        if self.done == 1:
            self._first = time.monotonic()
        if time.monotonic() - self._said > QUIET_S:
            self._said = time.monotonic()
            self.show()

    def show(self) -> None:
        now = time.monotonic()
        if self.seconds is not None:
            count, left = f"{self.done}", f", about {max(0.0, self.seconds - (now - self.start)):.0f} s left"
        else:  # the first unit waits for workers and caches, so it tells nothing of the others
            rate = (now - self._first) / (self.done - 1) if self.done > 1 else 0.0
            count, left = f"{self.done} of {self.total}", f", about {rate * (self.total - self.done):.0f} s left" if rate else ""
        ending = f", {self.note}" if self.note else ""
        say(f"{self.title}: {count}{left}{ending}", self.out)


class _Bar(Progress):
    """A bar on a terminal; with ``seconds`` it fills as time passes."""

    def __init__(self, title: str, total: int, seconds: float | None = None) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        super().__init__(title, total, seconds)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        note = TextColumn("{task.fields[note]}", style="dim")
        self.bar = RichProgress(*columns, TimeRemainingColumn(), note, console=Console(file=self.out))
        self.task = self.bar.add_task(title, total=total if seconds is None else int(seconds), note="")

    def advance(self, note: str = "") -> None:
        self.done += 1
        completed = self.done if self.seconds is None else int(time.monotonic() - self.start)
        self.bar.update(self.task, completed=completed, note=note)


@contextmanager
def progress(title: str, total: int, seconds: float | None = None) -> Iterator[Progress]:
    """``with progress("measuring", 100) as p: p.advance()``; with ``seconds`` the clock says how much is left."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield Progress(title, total, seconds)
        return
    try:
        shown = _Bar(title, total, seconds)
    except ModuleNotFoundError:  # rich comes with the extra ``pipeline`` only
        yield Progress(title, total, seconds)
        return
    with shown.bar:
        yield shown

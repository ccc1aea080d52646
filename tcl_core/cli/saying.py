"""What `tcl` prints and how it ends: streams that are there, answers that are handed over to a flow, sentences, logs."""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
import traceback
import unicodedata
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import typer

from tcl_core.errors import PlatformError, UsageError
from tcl_core.files import is_standard_output, printable, shown
from tcl_core.process import ANSWER_FILE

SENTENCE = 2_000  # characters of an error that are printed


def open_standard_streams() -> int:
    """Give each stream that was closed a descriptor: else the next file that is opened would take what is printed.

    Returns another descriptor of the standard output, for libraries redirect the first when its reader leaves.
    """
    for number, way in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):  # writing to a closed output must fail
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, way), True)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", closefd=False)
    sys.stdout.reconfigure(errors="backslashreplace")  # a character that a locale lacks
    return os.dup(1)


def let_go_of_streams() -> None:
    """What cannot be printed was told; the interpreter's own last try to print it would change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def check_words(words: list[str]) -> None:
    """Raise UsageError for words that no command can mean.  An empty name must not come to mean "all platforms"."""
    for word in words:
        if not word.strip() or re.fullmatch(r"--[\w-]+=", word):
            raise UsageError("an argument is empty, such as a shell variable that is not set; fill it in, or leave the option out")
        if any(unicodedata.category(character) == "Cc" for character in word):
            raise UsageError(f"the argument '{shown(word)}' has control characters in it; give it without them")


def say(report: object, code: int = 0, beside: Path | None = None) -> None:
    """Print what a stage reports, or hand it to the flow that started this command; nothing where it reports None.

    On standard error where the file that it wrote, ``beside`` this, is the standard output.
    """
    text = "" if report is None else str(report)
    if not text or _handed_over(text, code):
        return
    try:
        on_error = beside is not None and is_standard_output(beside)
        typer.echo("\n".join(map(printable, text.split("\n"))), err=on_error)
        sys.stdout.flush()  # a reader that left is noticed here
    except BrokenPipeError:  # what the command has yet to do, and how it ends, is not the reader's to say
        let_go_of_streams()
    except OSError as error:
        reason = error.strerror.lower()
        raise PlatformError(f"cannot write to the standard output ({reason}); what the command did is kept") from None


def fail(message: str, code: int) -> NoReturn:
    if not _handed_over(message, code):
        with suppress(OSError):  # nobody is there to be told
            typer.secho(f"tcl: {message}", err=True, fg="red")
    sys.exit(code)


def end_of_a_pipe(output: int) -> NoReturn:
    """The end of a command that wrote to a pipe which nobody reads: quiet if that is the standard output."""
    poll = select.poll()
    poll.register(output, 0)
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        sys.exit(0)
    fail("a process that this command had started is gone; run it again", PlatformError.exit_code)


def _handed_over(text: str, code: int) -> bool:
    """Whether the flow that started this command took the answer; it says it in its own log."""
    if ANSWER_FILE not in os.environ:
        return False
    try:
        Path(os.environ[ANSWER_FILE]).write_text(json.dumps({"text": text, "exit_code": code}), encoding="utf-8")
    except OSError:  # a full disk: then it is printed
        return False
    return True


def first_line(error: Exception) -> str:
    return shown((str(error).strip().splitlines() or ["no message"])[0], SENTENCE)


def write_log(folder: Path) -> str:
    """Where the traceback of the present exception is; itself on a disk that takes no file."""
    file = folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        file.parent.mkdir(exist_ok=True)
        with open(file, "x", encoding="utf-8", errors="backslashreplace") as log:
            log.write(f"{' '.join(sys.argv)}\n{traceback.format_exc()}")
    except OSError as full:
        return f"{file} could not be written ({full.strerror}), so here is the traceback:\n{traceback.format_exc()}"
    return f"the traceback is in {file}"

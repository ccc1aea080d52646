"""A command of `tcl` in this process: what it prints, or the error that it raises."""

from __future__ import annotations

import contextlib
import io
import signal

from tcl_core.cli import app


def tcl(*words: object) -> str:
    """As ``tcl WORDS`` in the working folder.  SystemExit where a command ends with a code of its own, its words then printed."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            code = app([str(word) for word in words], standalone_mode=False)
    except SystemExit:
        print(said.getvalue())
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if code == 130:  # what typer makes of Ctrl-C
        raise KeyboardInterrupt
    return said.getvalue().removesuffix("\n")

"""`tcl`: the stages and the registry from the shell.  Thin: a command parses, calls one stage and prints what it reports.

Knows exit codes, signals and help texts; no stage logic.  A TclError ends as its one sentence and its exit code.

    app     the application, the options that commands share, the workspace        saying  output, exit codes, logs
    data, models, use, devices                                                   the commands, as `tcl --help` groups them
"""

from __future__ import annotations

import os
import sys

from tcl_core import environment  # noqa: F401  (before torch is imported)
from tcl_core.cli import data, devices, models, use  # noqa: F401  (each adds its commands)
from tcl_core.cli.app import app, logs_folder
from tcl_core.cli.saying import SENTENCE, check_words, end_of_a_pipe, fail, first_line, let_go_of_streams, open_standard_streams, write_log
from tcl_core.errors import DataError, PlatformError, TclError, UsageError, missing_extra
from tcl_core.files import refusal, shown
from tcl_core.process import INTERRUPTED

__all__ = ["app", "main"]


def main() -> None:
    """Entry point of `tcl`: exits 0, a TclError's own code, 2 for wrong usage, 7 for drift, 130 for Ctrl-C, 1 for the unforeseen."""
    output = open_standard_streams()
    try:
        check_words(sys.argv[1:])
        app()
    except TclError as error:
        fail(shown(error, SENTENCE), error.exit_code)
    except SystemExit as end:
        if end.code == 130:  # what typer makes of KeyboardInterrupt
            fail(INTERRUPTED, 130)
        if end.code == 1:  # and of a broken pipe
            end_of_a_pipe(output)
        raise
    except KeyboardInterrupt:
        fail(INTERRUPTED, 130)
    except OSError as error:
        fail(shown(refusal(error), SENTENCE), refusal(error).exit_code)
    except MemoryError:
        fail("this machine has too little memory for that; give it a smaller file or number", PlatformError.exit_code)
    except ModuleNotFoundError as error:
        if (sentence := missing_extra(error)) is None:
            fail(f"unexpected {type(error).__name__}: {first_line(error)}; {write_log(logs_folder())}", 1)
        fail(sentence, UsageError.exit_code)
    except RecursionError:
        fail("a file that was read is nested too deeply to be one of TCL's; give another one", DataError.exit_code)
    except Exception as error:
        fail(f"unexpected {type(error).__name__}: {first_line(error)}; {write_log(logs_folder())}", 1)
    finally:
        os.close(output)
        let_go_of_streams()

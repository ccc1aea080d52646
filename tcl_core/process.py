"""How a process ends with the one that it works for, and what a flow and the command that it starts tell each other.

The kernel ends a child in the moment in which its parent dies (``die_with_parent``): for processes that hold nothing.  A
command watches (``end_with_parents``): it may have a shell between itself and its flow, and has things to put in order.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tcl_core.files import shown

if TYPE_CHECKING:
    import psutil

# In the environment of a command that a flow starts: whom not to outlive, and the file that takes what would be printed.
PARENT_PID = "TCL_PARENT_PID"
ANSWER_FILE = "TCL_ANSWER_FILE"
INTERRUPTED = "stopped; what was measured and finished is kept; rerun the same command to resume"
PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Let the kernel kill this process when its parent dies; at once where ``parent``, who started it, is gone already.

    A change of user takes that back: it is for afterwards.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def end_with_parents(warn: Callable[[str], Any]) -> None:
    """Watch, beside what this process does, the flow and the DVC that started it; ``warn`` takes a word to the user."""
    if parents := [*_parent_given(warn), *_dvc_above()]:
        threading.Thread(target=end_with, args=parents, daemon=True).start()


def end_with(*parents: int) -> None:
    """End this process soon after one of ``parents`` is gone, however it went: a kill -9 must leave nothing measuring."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        watched = [psutil.Process(pid) for pid in parents]  # each with its start, by which it differs from a later one
        while all(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in watched):
            time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)
    os._exit(128 + signal.SIGTERM)  # stuck in compiled code, where no Python handler runs


def _parent_given(warn: Callable[[str], Any]) -> list[int]:
    """The process that the environment names as the one not to outlive, if it names one."""
    given = os.environ.get(PARENT_PID, "")
    if given.isdecimal() and len(given) <= 10 and 0 < int(given) < 1 << 31:
        return [int(given)]
    if given:
        warn(f"tcl: {PARENT_PID} is '{shown(given)}', which is no process id; it is left out")
    return []


def _dvc_above() -> list[int]:
    """The DVC that runs this command as a stage: killed, it would leave the stage at work beside the next one."""
    if "DVC_STAGE" not in os.environ:
        return []
    import psutil

    with suppress(psutil.Error):
        for process in psutil.Process().parents():  # a shell may stand between
            if runs_dvc(process):
                return [process.pid]
    return []


def runs_dvc(process: psutil.Process) -> bool:
    """Raises psutil.Error for a process that is gone."""
    return any(Path(word).name == "dvc" for word in process.cmdline())

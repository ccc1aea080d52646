"""How a process ends with the one that it works for, and how a flow and the command that it starts communicate.

``die_with_parent``: the kernel kills a child the moment its parent dies; for processes with nothing to clean up.
``end_with_parents``: a command polls instead, since a shell may stand between it and its flow, and it has to clean up.
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

# Environment variables of a command that a flow starts: the process not to outlive, and the file that takes its answer.
PARENT_PID = "TCL_PARENT_PID"
ANSWER_FILE = "TCL_ANSWER_FILE"
INTERRUPTED = "stopped; what was measured and finished is kept; rerun the same command to resume"
PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Let the kernel kill this process when its parent dies; exit at once if ``parent``, which started it, is gone already.

    A change of user clears this setting, so call it afterwards.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def end_with_parents(warn: Callable[[str], Any]) -> None:
    """Watch, in a thread, the flow and the DVC that started this process, and end with them; ``warn`` warns the user."""
    if parents := [*_parent_given(warn), *_dvc_above()]:
        threading.Thread(target=end_with, args=parents, daemon=True).start()


def end_with(*parents: int) -> None:
    """End this process soon after any of ``parents`` ends, however it ends: a kill -9 must leave nothing measuring."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        watched = [psutil.Process(pid) for pid in parents]  # with start times, which tell a reused id apart
        while all(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in watched):
            time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)
    os._exit(128 + signal.SIGTERM)  # stuck in compiled code, where no Python handler runs


def _parent_given(warn: Callable[[str], Any]) -> list[int]:
    """Id of the process that the environment says not to outlive, if any; warns of one that is no id."""
    given = os.environ.get(PARENT_PID, "")
    if given.isdecimal() and len(given) <= 10 and 0 < int(given) < 1 << 31:
        return [int(given)]
    if given:
        warn(f"tcl: {PARENT_PID} is '{shown(given)}', which is no process id; it is left out")
    return []


def _dvc_above() -> list[int]:
    """Id of the DVC that runs this command as a stage, if any: if killed, it would leave the stage running beside the next one."""
    if "DVC_STAGE" not in os.environ:
        return []
    import psutil

    with suppress(psutil.Error):
        for process in psutil.Process().parents():  # a shell may stand between
            if runs_dvc(process):
                return [process.pid]
    return []


def runs_dvc(process: psutil.Process) -> bool:
    """Whether a process runs DVC.  Raises psutil.Error if it is gone."""
    return any(Path(word).name == "dvc" for word in process.cmdline())

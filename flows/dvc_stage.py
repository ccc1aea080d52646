"""A DVC stage or a `tcl` command as a child process, which a flow starts, watches and, if it must end, takes along.

Knows processes and DVC's locks; nothing of Prefect and nothing of what a stage does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

from flows import dvc_lock
from tcl_core.errors import BusyError, DataError, TclError
from tcl_core.files import shown, writing
from tcl_core.locks import try_lock
from tcl_core.process import ANSWER_FILE, PARENT_PID, runs_dvc

LOCKS = Path(".dvc/tmp")
STATUS_S = 60.0  # for DVC to say why a stage did not begin
INTERRUPT_S = 5.0  # for a child to end by itself after Ctrl-C, which the terminal sends to it as well


class Busy(BusyError):
    """Another run is at work in this folder."""


class StageFailed(TclError):
    """A child process failed; carries its own sentence and its exit code.

    of_lock  DVC cannot read its dvc.lock, or fails with an unexpected error, as it does with some damaged ones
    """

    def __init__(self, name: str, sentence: str, exit_code: int, of_lock: bool = False) -> None:
        super().__init__(f"{name}: {sentence}")
        self.exit_code, self.of_lock = exit_code, of_lock


def reproduce(stage: str, settings: Mapping[str, str], watch: Callable[[], None], force: bool = False, anew: bool = False) -> str:
    """Bring one DVC stage up to date, without the stages before it; return its message, '' if it was up to date.

    settings  environment variables for the stage; ``watch`` is called a few times a second while it runs
    force     run it even if nothing changed, and measure again what was measured before
    anew      run it even if nothing changed that DVC sees

    Raises StageFailed.  If that is due to a dvc.lock that a kill cut short, puts the last whole one back and tries again.
    """
    dvc_lock.keep()
    try:
        return _reproduce(stage, settings, watch, force, anew)
    except StageFailed as failed:
        if not (failed.of_lock and dvc_lock.put_back()):
            raise
    said = f"dvc.lock was damaged ({dvc_lock.DAMAGED}); as it was before the last stage it takes its place again"
    return "\n".join(filter(None, (said, _reproduce(stage, settings, watch, force, anew))))


def _reproduce(stage: str, settings: Mapping[str, str], watch: Callable[[], None], force: bool, anew: bool) -> str:
    # Another DVC command, such as a push, may hold DVC's lock for long, and a stage needs it again at its end.
    command = [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "--quiet", "--single-item", stage]
    if force:
        return _run(stage, [*command, "--force"], {**settings, "TCL_FORCE": "1"}, watch, _check_begins)
    return _run(stage, [*command, *["--force"] * anew], settings, watch, _check_begins)


def run_command(name: str, settings: Mapping[str, str], arguments: Sequence[str] = ()) -> str:
    """Run `tcl NAME ARGUMENTS`; return its message.  Raises StageFailed."""
    return _run(name, [sys.executable, "-m", "tcl_core.cli", name, *arguments], settings, lambda: None)


@contextmanager
def only_run(patience_s: float = 0.0, waiting: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Context that lets one flow at a time into this folder, since two would disturb each other's timings.

    Raises Busy if another one has not ended after ``patience_s``; calls ``waiting`` once with a message if there is one.
    """
    path = LOCKS / "flow.lock"
    with writing(path):
        LOCKS.mkdir(parents=True, exist_ok=True)
        file = open(path, "ab")
    with file:
        _lock(file, patience_s, waiting)
        forget_dead_locks()
        yield


def _lock(file: IO, patience_s: float, waiting: Callable[[str], None]) -> None:
    deadline, told = time.monotonic() + patience_s, False
    while not try_lock(file):
        if time.monotonic() >= deadline:
            if patience_s:
                raise Busy(
                    f"another run was at work in this folder for {patience_s / 60:g} minutes, so this one did nothing; start it again later"
                )
            raise Busy("another run is at work in this folder; wait for its end or stop it")
        if not told:
            waiting(f"another run is at work in this folder; waiting for its end, up to {patience_s / 60:g} minutes")
        told = True
        time.sleep(0.2)


def forget_dead_locks(patience_s: float = 15.0) -> None:
    """Remove the stage locks that killed DVC processes left behind.

    DVC takes any live process with a lock's process id for its holder, and refuses a lock file that the kill cut short.
    Waits for what a killed flow left running, which ends by itself within seconds (``PARENT_PID``).
    """
    deadline = time.monotonic() + patience_s
    while any(_is_dvc(pid) for pid in _lock_holders()) and time.monotonic() < deadline:
        time.sleep(0.2)
    if not any(_is_dvc(pid) for pid in _lock_holders()):
        (LOCKS / "rwlock").unlink(missing_ok=True)


def _lock_holders() -> set[int]:
    try:
        locks = json.loads((LOCKS / "rwlock").read_bytes())
        readers = [info for infos in locks.get("read", {}).values() for info in infos]
        return {int(info["pid"]) for info in (*readers, *locks.get("write", {}).values())}
    except (FileNotFoundError, ValueError, RecursionError, AttributeError, TypeError, KeyError):  # cut short, or rubbish
        return set()


def _is_dvc(pid: int) -> bool:
    try:
        return runs_dvc(psutil.Process(pid))
    except (psutil.Error, ValueError, OverflowError):  # a number that no process can have
        return False


def _run(
    name: str,
    command: list[str],
    settings: Mapping[str, str],
    watch: Callable[[], None],
    explain: Callable[[str], None] = lambda name: None,
) -> str:
    """Run a command and return its message, which comes back through a file: the child shares the terminal for its progress bars.

    If a child fails without a message, ``explain`` may raise with the reason.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        child = subprocess.Popen(command, env=_environment(answer, settings))
        try:
            while child.poll() is None:
                time.sleep(0.2)
                watch()
        except KeyboardInterrupt:
            _end(child, INTERRUPT_S)
            raise
        except BaseException:
            _end(child, 0.0)
            raise
        watch()
        text, exit_code = _answer(answer)
    if child.returncode == 0:
        return text
    if not exit_code:  # the stage ended well but DVC failed: the answer is the stage's
        text = ""
    if not text:
        explain(name)
    by_hand = " ".join(word for word in ("python", *command[1:]) if word not in ("--quiet", "--wait-for-lock"))
    raise StageFailed(name, text or f"failed without a word; to see why, run: {by_hand}", exit_code or 1)


def _check_begins(stage: str) -> None:
    """Raise StageFailed with the reason why DVC does not even start the stage, which `dvc repro --quiet` hides too."""
    command = [sys.executable, "-m", "dvc", "status", "--json", stage]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=STATUS_S)
        found = json.loads(asked.stdout) if asked.returncode == 0 else {}
    except (subprocess.TimeoutExpired, OSError, ValueError):
        return
    changes = [change for change in found.get(stage, ()) if isinstance(change, dict)]  # others: the stage's command changed
    missing = [file for change in changes for file, what in change.get("changed deps", {}).items() if what == "deleted"]
    if files := shown(", ".join(missing)):
        raise StageFailed(stage, f"what it needs is not there ({files}); run the stages before it: dvc repro {stage}", DataError.exit_code)
    if error := re.search(r"^ERROR: (.+)|^(.+ is invalid|.+ validation failed)", asked.stderr, re.MULTILINE):
        of_lock = "dvc.lock'" in (error[2] or "") or error[1] == "unexpected error"
        raise StageFailed(stage, f"DVC cannot begin it ({shown(error[1] or error[2])}); mend that, and see: dvc status", 1, of_lock)


def _answer(file: Path) -> tuple[str, int]:
    """A command's message and its exit code; ("", 0) if it was killed before it had written them."""
    try:
        said = json.loads(file.read_bytes())
        return str(said["text"]), int(said["exit_code"])
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return "", 0


def _environment(answer: Path, settings: Mapping[str, str]) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **settings, "PATH": path, PARENT_PID: str(os.getpid()), ANSWER_FILE: str(answer)}


def _end(child: subprocess.Popen, patience_s: float) -> None:
    """End a child and its descendants: terminate the `tcl` command, which ends its own workers, then kill what is left."""
    family = _family(child.pid)
    try:
        _, alive = psutil.wait_procs(family, timeout=patience_s)
        for process in [p for p in alive if _runs_tcl(p)] or alive:
            with suppress(psutil.Error):
                process.terminate()
        psutil.wait_procs(alive, timeout=10.0)
    finally:
        for process in family:
            with suppress(psutil.Error):
                process.kill()
        child.wait()


def _family(pid: int) -> list[psutil.Process]:
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


def _runs_tcl(process: psutil.Process) -> bool:
    try:
        return "tcl_core.cli" in process.cmdline()
    except psutil.Error:
        return False

"""This machine as the stages share it: its memory's bandwidth, and the locks that let one process at a time measure or train a model."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tcl_core.checked import write_json
from tcl_core.errors import UsageError
from tcl_core.files import writing
from tcl_core.locks import holder, lock_if_there
from tcl_core.platforms import Hardware, copy_bandwidth_gbs, host_fingerprint, read_hardware
from tcl_core.progress import say
from tcl_core.stages.workspace import Workspace, kept


HARDWARE = "hardware.json"
READINGS, APART_S = 5, 0.25  # of the memory's bandwidth: the best one counts, since other work on the machine only lowers it


def measured_bandwidth(workspace: Workspace) -> float | None:
    """GB/s of this host's memory if it was measured in this project, else None."""
    saved = kept(workspace.journal / HARDWARE, "it is measured again")
    return saved["bandwidth_gbs"] if saved.get("host") == host_fingerprint() else None


def bandwidth_here(workspace: Workspace) -> float:
    """GB/s of this host's memory, measured once per host and kept."""
    if (found := measured_bandwidth(workspace)) is None:
        found = copy_bandwidth_gbs()
        for _ in range(READINGS - 1):
            time.sleep(APART_S)
            found = max(found, copy_bandwidth_gbs())
        write_json(workspace.journal / HARDWARE, {"host": host_fingerprint(), "bandwidth_gbs": found})
    return found


def hardware_here(workspace: Workspace, mcpu: str, given: Mapping[str, float]) -> Hardware:
    """The hardware vector of this host under ``mcpu``; its bandwidth is ``bandwidth_here``'s unless it is ``given``."""
    return read_hardware(mcpu, {"bandwidth_gbs": bandwidth_here(workspace), **given})


@contextmanager
def measuring_alone() -> Iterator[None]:
    """Hold the machine: two measurements at once would time each other.  Waits, with a message, while another process holds it.

    Raises UsageError where the lock's file in the temporary folder cannot be locked, such as something else in its place.
    """
    with _alone(Path(tempfile.gettempdir()) / "tcl-measuring.lock", "measures on this machine", "set TMPDIR to a folder of your own"):
        yield


@contextmanager
def training_alone(checkpoints: Path) -> Iterator[None]:
    """Hold a stage's checkpoints: two trainings at once would overwrite each other's.  Waits as ``measuring_alone``."""
    with writing(checkpoints):
        checkpoints.parent.mkdir(parents=True, exist_ok=True)
    with _alone(checkpoints.with_name(f"{checkpoints.name}.lock"), "trains the same model", "see to its rights"):
        yield


@contextmanager
def _alone(path: Path, does: str, otherwise: str) -> Iterator[None]:
    """Hold the lock at ``path``; while another process holds it, tell the user at once and then every minute."""
    start, minutes = time.monotonic(), -1
    while not _locks(path, descriptor := _open_lock(path, otherwise), otherwise):
        os.close(descriptor)
        if (passed := int((time.monotonic() - start) // 60)) > minutes:
            minutes, for_long = passed, f" ({passed} min)" if passed else ""
            say(f"{holder(path)} {does}; waiting for its end{for_long}")
        time.sleep(0.2)
    try:
        yield
    finally:
        os.close(descriptor)


def _locks(path: Path, descriptor: int, otherwise: str) -> bool:
    try:
        return lock_if_there(path, descriptor)
    except OSError as error:
        os.close(descriptor)
        raise UsageError(f"{path} cannot be locked ({os.strerror(error.errno).lower()}); {otherwise}") from error


def _open_lock(path: Path, otherwise: str) -> int:
    """Open the lock's file, making it if missing: for writing, as NFS demands of a lock, or else for reading, which on a local disk is
    enough to lock another user's file.  An existing one without O_CREAT, which the kernel refuses for another user's file in a shared
    folder (fs.protected_regular), and never through a link.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        try:
            descriptor = os.open(path, flags)
        except PermissionError:
            flags ^= os.O_RDWR
            descriptor = os.open(path, flags)
    except FileNotFoundError:
        return _made_lock(path, flags)
    except OSError as error:
        raise UsageError(f"{path} cannot be locked ({os.strerror(error.errno).lower()}); remove it, or {otherwise}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"{path} cannot be locked (it is no file); remove it, or {otherwise}")
    return descriptor


def _made_lock(path: Path, flags: int) -> int:
    with writing(path):
        descriptor = os.open(path, flags | os.O_CREAT, 0o644)
        if os.fstat(descriptor).st_uid == os.geteuid():
            os.fchmod(descriptor, 0o644)  # whatever the umask: other users must be able to wait for it
    return descriptor

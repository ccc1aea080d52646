"""Locks between processes, on open files and folders: who holds one loses it when it ends, however it ends.

Where a lock lies and what is said to those who find it taken is its user's matter.  Works on one machine, between
containers too where they share the file.  And one between the threads of a process.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import IO


class ThreadLock:
    """Held by one thread at a time, which may take it again; free in a child process, which has none of the threads."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def try_lock(file: int | IO) -> bool:
    """Whether the lock was free; it is this process's then.  Raises OSError where the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(file: int | IO) -> None:
    """Return with the lock, however long that takes."""
    fcntl.flock(file, fcntl.LOCK_EX)


def lock_if_there(path: Path, descriptor: int) -> bool:
    """Lock an open file or folder; whether it is free and still what ``path`` names.  Raises as ``try_lock``."""
    return try_lock(descriptor) and is_still(path, descriptor)


def is_still(path: Path, descriptor: int) -> bool:
    """Whether ``path`` names what was opened: it may have been removed, or made anew, meanwhile."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def holder(path: Path) -> str:
    """Who has locked a file, as far as the system tells: a process of another container stays unknown."""
    try:
        place = os.stat(path)
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return "another process"
    where = f"{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}:{place.st_ino}"
    for _, kind, *_, process, locked, _, _ in (words for words in map(str.split, locks) if len(words) == 8):
        if (kind, locked) == ("FLOCK", where) and int(process) > 0:
            return f"process {process}"
    return "another process"

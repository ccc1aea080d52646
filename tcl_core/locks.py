"""Locks between processes, on open files and folders: the system frees one when its holder ends, however it ends.

The caller decides where a lock lies and what to say to a process that finds it taken.  They work on one machine, also
between containers that share the file.  ``ThreadLock`` is for the threads of one process.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import IO


class ThreadLock:
    """A reentrant lock between threads; free in a forked child process, which has none of the threads."""

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
    """Take the lock if it is free; return whether it was.  Raises OSError where the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for_lock(file: int | IO) -> None:
    """Take the lock, however long that takes."""
    fcntl.flock(file, fcntl.LOCK_EX)


def lock_if_there(path: Path, descriptor: int) -> bool:
    """Try to lock an open file or folder; return whether it was free and ``path`` still names it.  Raises as ``try_lock``."""
    return try_lock(descriptor) and is_still(path, descriptor)


def is_still(path: Path, descriptor: int) -> bool:
    """Whether ``path`` still names what was opened; it may have been removed or replaced meanwhile."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def holder(path: Path) -> str:
    """The process that has locked a file, in words: "another process" if the system does not tell, as for another container's."""
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

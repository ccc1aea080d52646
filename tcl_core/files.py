"""Whole files or none: every file that TCL replaces goes through ``replacing``.

The new content is written to a hidden file in the same folder, synced and renamed over the old one, and the
folder is synced: after a kill or a power cut at any byte a reader finds the old file or the new one.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tcl_core.errors import PlatformError

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A binary file that becomes ``path`` when the block ends well, and vanishes when it does not.

    Raises PlatformError when the disk is full; whatever ``path`` held before is then still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.parent / f".{path.name}.{os.getpid()}.tmp"
    try:
        with disk_full_named(path):
            with open(aside, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
            sync_folder(path.parent)
    finally:
        with suppress(FileNotFoundError):
            aside.unlink()


@contextmanager
def disk_full_named(path: Path) -> Iterator[None]:
    """Turn "no space left", "quota exceeded" and "file too large" into a PlatformError naming ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        reason = os.strerror(error.errno).lower()
        raise PlatformError(
            f"cannot write {path} ({reason}); what was there before is kept; free some space and run again"
        ) from error


def sync_folder(folder: Path) -> None:
    """Make a rename or a new file in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

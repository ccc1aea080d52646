"""Whole files or none: every file that TCL replaces goes through ``replacing``, every folder through ``whole_folder``.

The new content is written aside in the same folder, synced and renamed over the old one, and the folder is synced: after
a kill or a power cut at any byte a reader finds the old one or the new one.  What lies aside is locked while its
writer lives, whatever its process id and in whichever container: what can be locked is left over, and is removed by
the next writer.  Nothing else is ever removed.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from tcl_core.errors import PlatformError, TclError, UsageError, naming_extras
from tcl_core.locks import lock_if_there, wait_for_lock

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WRONG_PATH = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST, errno.ENXIO, errno.EINVAL)
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100
TOKEN = "[0-9a-f]" * 12  # of names aside, as a pattern


def place(path: str | Path) -> Path:
    """A path of this machine; of a URL such as s3://bucket/folder one that is read alike, by fsspec.

    Raises UsageError where a package that reads such URLs is not installed, or there is none.
    """
    if not isinstance(path, str) or "://" not in path:
        return path if is_remote(path) else Path(path)  # type: ignore[return-value]
    with naming_extras():
        from upath import UPath
    try:
        found = UPath(path)
        found.fs  # noqa: B018  asks for the package of its kind
    except (ImportError, ValueError) as error:
        raise UsageError(f"cannot read {shown(path)} ({shown(error)}); install what reads it, or give a folder of this machine") from None
    return cast(Path, found)


def user_cache(kind: str) -> Path:
    """The user's folder for one kind of what can be had again: who deletes it waits longer.  Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tcl" / kind


def is_remote(path: object) -> bool:
    """Whether ``place`` made it of a URL."""
    return hasattr(path, "fs")


@contextmanager
def replacing(path: Path, new: bool = False) -> Iterator[BinaryIO]:
    """A binary file that becomes ``path`` when the block ends well, and vanishes when it does not.

    A link is replaced, not what it points to; a device, a pipe and the standard output are written to.  With ``new`` a file that
    came to ``path`` meanwhile is left alone.
    Raises PlatformError when the disk is full or the folder takes no file, UsageError for a path that cannot be a file, or that
    is no longer new; whatever ``path`` held before is then still there.
    """
    path = Path(path)
    if is_standard_output(path):
        with writing(path), open(os.dup(1), "wb") as file:
            yield file
        return
    if is_special(path):
        with writing(path), open(path, "wb") as file:
            yield file
        return
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        _sweep(path.parent, f".tcl-{TOKEN}.tmp")
        aside, descriptor = _locked_file(path.parent)
    try:
        with disk_full_named(path), open(descriptor, "wb") as file:
            yield file
            with writing(path):
                file.flush()
                os.fsync(file.fileno())
                _rename_to_new(aside, path) if new else os.replace(aside, path)
                sync_folder(path.parent)
    finally:
        with suppress(OSError):
            aside.unlink()


def _rename_to_new(aside: Path, path: Path) -> None:
    """As far as the file system can: one without hard links leaves a moment between the look and the renaming."""
    try:
        os.link(aside, path)
    except FileExistsError:
        raise
    except OSError:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.replace(aside, path)


@contextmanager
def replacing_given(path: Path, overwrite: bool) -> Iterator[BinaryIO]:
    """As ``replacing`` for a path that a user gave: a link is followed, and an existing file needs ``overwrite``.

    Raises UsageError for an existing file without it.
    """
    with writing(path):
        target = Path(os.path.realpath(path)) if Path(path).is_symlink() and not is_special(path) else Path(path)
    check_not_there(target, overwrite)
    with replacing(target, new=not overwrite) as file:
        yield file


def check_not_there(path: Path, overwrite: bool) -> None:
    """Raise UsageError for a file that is there and must not be overwritten; devices and pipes are written to."""
    with writing(path):
        there = os.path.lexists(path) and not is_special(path)
    if there and not overwrite:
        raise UsageError(f"{path} exists; give another name, or --overwrite to replace it")


def is_special(path: Path) -> bool:
    """Whether it is there and neither a file nor a folder: a device, a pipe, a socket; or a link to one, or this process's output."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or is_standard_output(path)


def is_standard_output(path: Path) -> bool:
    """Whether it is a name of this process's standard output, such as /dev/stdout, wherever that leads."""
    names = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
    return os.path.abspath(path) in names


def _locked_file(folder: Path) -> tuple[Path, int]:
    """A fresh hidden file, open and locked."""
    while True:
        path = folder / f".tcl-{secrets.token_hex(6)}.tmp"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            if lock_if_there(path, descriptor):
                return path, descriptor
        except OSError:  # the file system has no locks
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        os.close(descriptor)  # another writer took it for left over, in the moment before it was locked


def _sweep(folder: Path, pattern: str) -> None:
    """Remove what dead writers left aside: what matches and nobody has locked."""
    for path in folder.glob(pattern):
        with _if_left_over(path) as left_over:
            if left_over:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    with suppress(OSError):  # another user's, in a folder where each may remove his own alone
                        path.unlink(missing_ok=True)


@contextmanager
def _if_left_over(path: Path) -> Iterator[bool]:
    """Whether no living writer holds it; while the block lasts, nobody else takes it for left over."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    left_over = False
    try:
        with suppress(OSError):  # a file system without locks
            left_over = lock_if_there(path, descriptor)
        yield left_over
    finally:
        os.close(descriptor)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A fresh folder to write into, which takes the place of ``folder`` when the block ends without an error.

    After a kill or a power cut at any moment ``folder`` is the former or the new one.  Where the file system cannot
    exchange two folders in one step, who dies between two renames leaves the former aside, where ``tidy`` finds it.
    Of a link, the folder that it points to.  Raises as ``replacing``, and UsageError at once for a mount point; whatever
    ``folder`` held before is then still there.
    """
    folder = Path(os.path.realpath(folder))
    if os.path.ismount(folder):
        raise UsageError(f"{shown(folder)} is a mount point, which no other folder can replace; name a folder within it")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        tidy(folder)
        aside, descriptor = _locked_folder(folder)
    try:
        with disk_full_named(folder):
            yield aside
            with writing(folder):
                for path in (*aside.rglob("*"), aside):
                    sync_folder(path)  # of a file likewise: its bytes must be there before its folder's new name
                _put_in_place(aside, folder)
    finally:
        os.close(descriptor)
        _sweep(folder.parent, f".{glob.escape(folder.name)}.{TOKEN}.new")


def tidy(folder: Path) -> None:
    """Remove what dead writers left beside ``folder``; if it is gone, put the former one back."""
    folder = Path(folder)
    for former in sorted(folder.parent.glob(f".{glob.escape(folder.name)}.{TOKEN}.old")):
        with _if_left_over(former) as left_over:
            if left_over and not os.path.lexists(folder):
                with writing(folder):
                    os.replace(former, folder)
                    sync_folder(folder.parent)
    for kind in ("old", "new"):
        _sweep(folder.parent, f".{glob.escape(folder.name)}.{TOKEN}.{kind}")


def _locked_folder(folder: Path) -> tuple[Path, int]:
    while True:
        aside = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.new")
        aside.mkdir()
        descriptor = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if lock_if_there(aside, descriptor):
                return aside, descriptor
        except OSError:  # the file system has no locks
            os.close(descriptor)
            aside.rmdir()
            raise
        os.close(descriptor)


def _put_in_place(aside: Path, folder: Path) -> None:
    if not folder.exists():
        os.replace(aside, folder)
    elif not _exchange(aside, folder):
        former = aside.with_suffix(".old")
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            wait_for_lock(descriptor)
            os.replace(folder, former)
            try:
                os.replace(aside, folder)
            except BaseException:
                os.replace(former, folder)
                raise
            sync_folder(folder.parent)
            shutil.rmtree(former, ignore_errors=True)
        finally:
            os.close(descriptor)
    sync_folder(folder.parent)
    if aside.exists():  # holds the former one since the exchange
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths change their names in one step; False where the file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # an older C library
        return False
    return rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0


@contextmanager
def disk_full_named(path: Path) -> Iterator[None]:
    """Turn "no space left", "quota exceeded" and "file too large" into a PlatformError naming ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FULL:
            raise
        raise _cannot("write", path, error) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn whatever the system refuses while ``path`` is written into one sentence that names it."""
    try:
        yield
    except OSError as error:
        raise _cannot("write", path, error) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever the system refuses while ``path`` is read into one sentence; a missing file stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _cannot("read", path, error) from error


def refusal(error: OSError) -> TclError:
    """The sentence for what the system refused, where no better one was found on the way."""
    words = error.strerror or ""
    if error.filename is None and "temporary directory" in words:  # tempfile's own, which name them all
        where = shown(words[0].lower() + words[1:], 1000)
        return PlatformError(f"cannot write a temporary file ({where}); free some space or let TMPDIR name another folder, then run again")
    return _cannot("read or write", error.filename or "a file", error)


def _cannot(do: str, path: object, error: OSError) -> TclError:
    reason = (os.strerror(error.errno) if error.errno else str(error)).lower()
    if error.errno in _DISK_FULL:
        return PlatformError(f"cannot {do} {shown(path)} ({reason}); what was there before is kept; free some space and run again")
    if error.errno in _WRONG_PATH:
        return UsageError(f"cannot {do} {shown(path)} ({reason}); give another path")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PlatformError(f"cannot {do} {shown(path)} ({reason}); nothing of it was changed: see to its rights, or be its owner")
    return PlatformError(f"cannot {do} {shown(path)} ({reason}); look at the disk, then run again")


SHOWN = 200  # characters of a foreign text that a sentence may hold


def shown(text: object, most: int = SHOWN) -> str:
    """A foreign text as a sentence may hold it: control characters escaped, not longer than ``most`` characters."""
    text = str(text)
    return printable(text) if len(text) <= most else f"{printable(text[:most])}… ({len(text):,} characters)"


def printable(text: str) -> str:
    """The text with control characters, line ends too, and what is no UTF-8 escaped: a terminal obeys nothing in it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def sync_folder(folder: Path) -> None:
    """Make a rename or a new file in ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

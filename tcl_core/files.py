"""Atomic replacement: every file that TCL replaces goes through ``replacing``, every folder through ``whole_folder``.

The new content is written to a temporary file in the same folder, synced and renamed over the old one, and the folder is
synced: after a kill or a power cut at any byte a reader finds the old content or the new.  A writer locks its temporary
file while it lives, whatever its process id or container.  So one that can be locked is left over, and the next writer
removes it.  Nothing else is ever removed.
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
TOKEN = "[0-9a-f]" * 12  # glob pattern of the random part of a temporary name


def present_folder() -> Path:
    """The working folder.  Raises UsageError where it has been removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the present folder has been removed; cd to one that is there") from None


def place(path: str | Path) -> Path:
    """A path of this machine; for a URL such as s3://bucket/folder, a path that fsspec reads in the same way.

    Raises UsageError if the package that reads such URLs is not installed or does not exist.
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
    """The user's cache folder for one kind of data; all but ``tuning`` can be recomputed.  Raises RuntimeError for a user without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tcl" / kind


def is_remote(path: object) -> bool:
    """Whether ``place`` made the path from a URL."""
    return hasattr(path, "fs")


@contextmanager
def replacing(path: Path, new: bool = False) -> Iterator[BinaryIO]:
    """Yield a binary file that replaces ``path`` when the block ends well, and is removed when it does not.

    A link itself is replaced, not its target; a device, a pipe and the standard output are written to directly.  With ``new``
    a file that appeared at ``path`` meanwhile is kept.
    Raises PlatformError when the disk is full or the folder takes no file, UsageError for a path that cannot be a file or,
    with ``new``, exists by now; whatever ``path`` held before is then still there.
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
    """Rename unless ``path`` exists; without hard links, not atomically: a moment passes between the check and the renaming."""
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
    """Raise UsageError for an existing file that must not be overwritten; devices and pipes pass."""
    with writing(path):
        there = os.path.lexists(path) and not is_special(path)
    if there and not overwrite:
        raise UsageError(f"{path} exists; give another name, or --overwrite to replace it")


def is_special(path: Path) -> bool:
    """Whether the path is an existing device, pipe or socket, a link to one, or this process's standard output."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or is_standard_output(path)


def is_standard_output(path: Path) -> bool:
    """Whether the path names this process's standard output, such as /dev/stdout, wherever that leads."""
    names = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
    return os.path.abspath(path) in names


def _locked_file(folder: Path) -> tuple[Path, int]:
    """Create a hidden temporary file; return its path and its open, locked descriptor."""
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
        os.close(descriptor)  # before it was locked, another writer took it for left over


def _sweep(folder: Path, pattern: str) -> None:
    """Remove what dead writers left behind: matching files and folders that no process has locked."""
    for path in folder.glob(pattern):
        with _if_left_over(path) as left_over:
            if left_over:
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    with suppress(OSError):  # another user's file in a folder where users may remove only their own
                        path.unlink(missing_ok=True)


@contextmanager
def _if_left_over(path: Path) -> Iterator[bool]:
    """Yield whether no living writer holds the path; during the block no other process takes it for left over."""
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
    """Yield a fresh folder to write into, which replaces ``folder`` when the block ends without an error.

    After a kill or a power cut at any moment ``folder`` is the old or the new one.  If the file system cannot exchange two
    folders in one step, a writer that dies between two renames leaves the old one beside it, where ``tidy`` finds it.
    For a link, the folder that it points to is replaced.  Raises as ``replacing``, and UsageError at once for a mount point;
    whatever ``folder`` held before is then still there.
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
                    sync_folder(path)  # files too: their bytes must be on the disk before their folder's new name
                _put_in_place(aside, folder)
    finally:
        os.close(descriptor)
        _sweep(folder.parent, f".{glob.escape(folder.name)}.{TOKEN}.new")


def tidy(folder: Path) -> None:
    """Remove what dead writers left beside ``folder``; if ``folder`` is gone, restore the old one."""
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
        try:
            descriptor = os.open(aside, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # swept by another process, which took it for a dead writer's
            continue
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
    if aside.exists():  # it holds the old content since the exchange
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths in one step; return False where the system cannot."""
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
    """Turn any OSError while ``path`` is written into a TclError that names it."""
    try:
        yield
    except OSError as error:
        raise _cannot("write", path, error) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any OSError while ``path`` is read into a TclError that names it; a missing file stays FileNotFoundError."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _cannot("read", path, error) from error


def refusal(error: OSError) -> TclError:
    """The TclError for an OSError that no caller has turned into a better one."""
    words = error.strerror or ""
    if error.filename is None and "temporary directory" in words:  # tempfile's message, which names all folders that it tried
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


SHOWN = 200  # most characters of a foreign text in a message


def shown(text: object, most: int = SHOWN) -> str:
    """A foreign text made safe for a message: control characters escaped, cut after ``most`` characters."""
    text = str(text)
    return printable(text) if len(text) <= most else f"{printable(text[:most])}… ({len(text):,} characters)"


def printable(text: str) -> str:
    """Escape control characters, line ends too, and invalid UTF-8, so that a terminal obeys nothing in the text."""
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

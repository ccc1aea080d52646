"""The measurements of one platform as they happen: an append-only, crash-safe file of records.

Why lines of text and not Parquet or Arrow: one measurement costs about a second of machine time and must
survive ``kill -9`` and a power cut the moment it is taken.  A line costs one write and one fsync (well under
a millisecond on a local disk), is complete when its checksum fits, and needs no footer; a Parquet file per
measurement would be thousands of files.  ``store.write_records`` makes the Parquet that every other
stage reads.

    records.jsonl             a header, then a line per record: CRC-32 of the JSON (8 hex digits), a space, the JSON
    records.jsonl.cut-STAMP   a copy of the end that a killed writer left half-written
    lock                      held by the one process that appends; contains its process id
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from tcl_core.errors import BusyError, DataError
from tcl_core.files import reading, replacing, shown, sync_folder, writing
from tcl_core.locks import is_still, try_lock
from tcl_core.records import SCHEMA_VERSION, Record

log = logging.getLogger(__name__)


class Journal:
    """The writing end: ``with Journal(folder) as journal: journal.append([record])``.

    Opening takes the lock, copies what a killed writer left half-written to a file beside the journal, and cuts it off.
    A child made by a bare ``fork`` shares the lock and would keep it after the parent's death; ``subprocess`` and spawned
    workers do not.

    Raises BusyError when another process holds the journal, PlatformError when the system refuses to write, DataError for a
    journal that is damaged otherwise, UsageError for a path that cannot hold one; the journal is then unchanged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / "records.jsonl"
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        try:
            self._file = self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> int:
        sound_bytes = _sound_bytes(self.path)
        with writing(self.path):
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            with writing(self.path):
                _cut(file, sound_bytes, self.path)
            if not sound_bytes:
                _write_synced(file, line_of({"journal": self.folder.name, "schema_version": SCHEMA_VERSION}), self.path)
                sync_folder(self.folder)
        except BaseException:
            os.close(file)
            raise
        return file

    def append(self, records: Iterable[Record]) -> None:
        """Add records; when this returns they are on the disk.

        Raises PlatformError when the disk is full: the journal then ends as before the call, still usable.
        """
        _write_synced(self._file, b"".join(line_of(vars(record)) for record in records), self.path)

    def close(self) -> None:
        os.close(self._file)
        _unlock(self._lock)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def iter_journal(folder: str | Path) -> Iterator[Record]:
    """Yield every record in order of measurement, even while a collector appends; nothing if there is no journal.

    A torn last line, left by a killed writer, is skipped with a logged warning.
    Raises DataError for a journal that is damaged otherwise or of another schema version, PlatformError or UsageError for
    one that cannot be read.
    """
    path = Path(folder) / "records.jsonl"
    for number, (_, entry) in enumerate(_sound_lines(path), start=1):
        if number == 1:
            continue  # the header, which was checked
        try:
            record = _record(entry)
        except ValueError as error:
            raise _damaged(path, number, f"it is no record: {error}") from None
        yield record


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold an existing journal's lock without opening the journal.  Raises BusyError when another process has it."""
    lock = _lock(Path(folder))
    try:
        yield
    finally:
        _unlock(lock)


def _lock(folder: Path) -> int:
    path = folder / "lock"
    while True:
        with writing(path):
            lock = _open_lock(path)
            if not try_lock(lock):
                holder = os.read(lock, 32)
                os.close(lock)
                who = f"process {holder.decode()}" if holder.isdigit() else "another process"
                raise BusyError(f"{who} is already collecting into {folder}; wait for it to end or stop it")
        if is_still(path, lock):
            break
        os.close(lock)  # its journal was set aside at this moment
    with suppress(OSError):  # the id is a courtesy: the lock holds without it, on a full disk or if only readable
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def _open_lock(path: Path) -> int:
    """Open the lock file, if need be only to read, which is enough to lock; refuse a link, whose target would get the id."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o644)
    except PermissionError:
        return os.open(path, os.O_RDONLY | flags)


def _unlock(lock: int) -> None:
    with suppress(OSError):
        os.ftruncate(lock, 0)
    os.close(lock)


def _cut(file: int, sound_bytes: int, path: Path) -> None:
    """Cut off what follows the first ``sound_bytes``, after a copy of it has reached the disk."""
    if torn := os.pread(file, os.fstat(file).st_size - sound_bytes, sound_bytes):
        kept = path.with_name(f"{path.name}.cut-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
        with replacing(kept) as copy:
            copy.write(torn)
        os.ftruncate(file, sound_bytes)
        os.fsync(file)
        log.warning("%s: cut them off; a copy is in %s", path, kept.name)


def _write_synced(file: int, data: bytes, path: Path) -> None:
    """Append all of ``data`` and sync, or none of it: a write that stops half-way is cut off again."""
    with writing(path):
        end = os.fstat(file).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
        except BaseException:
            os.ftruncate(file, end)
            raise


def line_of(entry: dict[str, Any]) -> bytes:
    """An object as a line with its checksum, in ASCII and without control characters."""
    body = json.dumps(entry, separators=(",", ":"), default=_json_value, allow_nan=False).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object that ``line_of`` was given; None for a line without a newline, with a wrong checksum, or without an object."""
    checksum, _, body = line[:-1].partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(body):
        return None
    try:
        entry = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _json_value(value: Any) -> Any:
    """Convert a time to text, a NumPy number to Python's."""
    return value.isoformat() if isinstance(value, datetime) else value.item()


_TYPES: dict[str, type] = {
    "task_key": str, "sketch_id": int, "program_id": int, "decisions": list, "latencies_s": list, "error": str,
    "message": str, "round": int, "measured_at": str, "protocol": str, "host": str, "tvm_version": str, "checked": bool,
    "disturbed": bool,
}  # fmt: skip


def _record(entry: dict[str, Any]) -> Record:
    """The record that a line's object describes.  Raises ValueError for one that is no record, though its checksum fits."""
    if different := sorted(entry.keys() ^ _TYPES.keys()):
        raise ValueError(f"{'unknown' if different[0] in entry else 'missing'} field '{shown(different[0])}'")
    for name, kind in _TYPES.items():
        if type(entry[name]) is not kind:
            raise ValueError(f"{name} is no {kind.__name__}")
    if any(type(number) is not int for number in entry["decisions"]):
        raise ValueError("decisions are not all integers")
    if any(type(seconds) not in (int, float) for seconds in entry["latencies_s"]):
        raise ValueError("latencies_s are not all numbers")
    lists = {name: tuple(entry[name]) for name in ("decisions", "latencies_s")}
    return Record(**{**entry, **lists, "measured_at": datetime.fromisoformat(entry["measured_at"])})


def _sound_bytes(path: Path) -> int:
    """Bytes of a journal up to the end of its last whole line."""
    return max((end for end, _ in _sound_lines(path)), default=0)


def _sound_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (offset after the line, its object) for each line up to a torn end, the checked header first."""
    with reading(path):
        try:
            file = _open_to_read(path)
        except FileNotFoundError:
            return
        with file:
            end = 0
            for number, line in enumerate(file, start=1):
                entry = parse_line(line)
                if entry is None:
                    _refuse_unless_torn(path, number, line)
                    return
                if number == 1:
                    _check_version(path, entry)
                end += len(line)
                yield end, entry


def _open_to_read(path: Path) -> BinaryIO:
    """Open a journal to read.  Raises FileNotFoundError if there is none, DataError for a dangling link or no regular file."""
    try:
        file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))
    except FileNotFoundError:
        if path.is_symlink():
            raise DataError(f"{path} is a link to {shown(os.readlink(path))}, which is not there; mount or restore it") from None
        raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise DataError(f"{path} is no file; move it away")
    return file


_TORN = re.compile(rb"[ -~]*\0*")  # the start of a line, then the zeros that a power cut leaves


def _refuse_unless_torn(path: Path, number: int, line: bytes) -> None:
    """Raise DataError unless the line is a torn end, without a newline; a kill does no other damage, so the file was changed."""
    if not _TORN.fullmatch(line):
        why = "its line ends became CR LF" if line.endswith(b"\r\n") else "its checksum does not fit"
        raise _damaged(path, number, why)
    log.warning("%s: passed over its last %d bytes, a record that a killed writer left half-written", path, len(line))


def _damaged(path: Path, number: int, why: str) -> DataError:
    other = "move the journal away and measure again" if number == 1 else "delete that line and measure its program again"
    return DataError(f"{path}: line {number} is damaged ({why}), and nothing was changed; restore the file from a copy, or {other}")


def _check_version(path: Path, header: dict[str, Any]) -> None:
    version = header.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path} has schema version {shown(version)}, this program reads version {SCHEMA_VERSION}; "
            "use the program that wrote it, or move the journal away and measure again"
        )

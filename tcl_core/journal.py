"""The measurements of one platform as they happen: an append-only, crash-safe file of records.

Why lines of text and not Parquet or Arrow: one measurement costs about a second of machine time and must
survive ``kill -9`` and a power cut the moment it is taken.  A line costs one write and one fsync (well under
a millisecond on a local disk), is complete when its checksum fits, and needs no footer; a Parquet file per
measurement would be thousands of files.  ``store.write_records`` makes the Parquet that every other
stage reads.

    records.jsonl   a header, then a line per record: CRC-32 of the JSON (8 hex digits), a space, the JSON
    lock            held (flock) by the one process that appends; it holds that process's id
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import statistics
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from tcl_core.errors import DataError, PlatformError
from tcl_core.files import disk_full_named, sync_folder

SCHEMA_VERSION = 2
ERRORS = ("ok", "build", "run", "timeout", "crash", "wrong-result")

ProgramKey = tuple[str, int, tuple[int, ...]]
"""(task key, sketch index, decisions)."""

log = logging.getLogger(__name__)


def spread(repeats: Sequence[float]) -> float:
    """Interquartile range / median: one repeat that was disturbed does not count for ever.  0 of a single repeat."""
    if len(repeats) < 2:
        return 0.0
    low, median, high = statistics.quantiles(repeats, n=4, method="inclusive")
    return (high - low) / median


@dataclass(frozen=True)
class Record:
    """One measured program.

    decisions    the program's decision vector within its sketch
    latencies_s  one per repeat, seconds; empty unless ``error`` is "ok"
    error        one of ERRORS; ``message`` says more, and is empty for "ok"
    round        collection round, 0 for the random start
    protocol     JSON of how it was timed; host: fingerprint of the machine; latencies compare within both
    checked      its output was compared with the untuned program's and found equal
    disturbed    the machine was not quiet while it was timed: whoever can measures it again
    """

    task_key: str
    sketch_id: int
    program_id: int
    decisions: tuple[int, ...]
    latencies_s: tuple[float, ...]
    error: str
    message: str
    round: int
    measured_at: datetime
    protocol: str
    host: str
    tvm_version: str
    checked: bool = False
    disturbed: bool = False

    def __post_init__(self) -> None:
        if self.error not in ERRORS:
            raise ValueError(
                f"error kind '{self.error}' of task {self.task_key} is none of {', '.join(ERRORS)}"
            )
        if (self.error == "ok") != bool(self.latencies_s) or not all(
            0 < x < math.inf for x in self.latencies_s
        ):
            raise ValueError(f"'{self.error}' of task {self.task_key} with the latencies {self.latencies_s}")
        if self.measured_at.tzinfo is None:
            raise ValueError(
                f"measured_at of task {self.task_key} has no time zone; use datetime.now(timezone.utc)"
            )

    @property
    def key(self) -> ProgramKey:
        """What makes two programs the same program, on whichever platform."""
        return (self.task_key, self.sketch_id, self.decisions)

    @property
    def latency_s(self) -> float:
        """Median over the repeats, seconds; inf for a failed program."""
        return statistics.median(self.latencies_s) if self.latencies_s else math.inf

    @property
    def spread(self) -> float:
        """How far the repeats lie apart (``spread``); 0 for a failed program."""
        return spread(self.latencies_s) if self.latencies_s else 0.0


class Journal:
    """The writing end: ``with Journal(folder) as journal: journal.append([record])``.

    Opening takes the lock and cuts off what a killed writer left half-written.  A child made by a bare
    ``fork`` shares the lock and would keep it after the parent's death; ``subprocess`` and spawned workers do
    not.

    Raises PlatformError when another process holds the journal, DataError when a line before the end is bad.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        try:
            self._file = self._open(self.folder / "records.jsonl")
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self, path: Path) -> int:
        sound_bytes = 0
        for end, entry in _sound_lines(path):
            if not sound_bytes:
                _check_version(path, entry)
            sound_bytes = end
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(file, sound_bytes)
        if not sound_bytes:
            _write_synced(file, _line({"journal": self.folder.name, "schema_version": SCHEMA_VERSION}), path)
            sync_folder(self.folder)
        return file

    def append(self, records: Iterable[Record]) -> None:
        """Add records; when this returns they are on the disk.

        Raises PlatformError when the disk is full: the journal then ends as before the call, still usable.
        """
        lines = b"".join(_line(vars(record)) for record in records)
        _write_synced(self._file, lines, self.folder / "records.jsonl")

    def close(self) -> None:
        os.close(self._file)
        os.ftruncate(self._lock, 0)
        os.close(self._lock)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def iter_journal(folder: str | Path) -> Iterator[Record]:
    """Every record in the order of measurement, also while a collector appends; none without a journal.

    A torn last line (a writer was killed) is dropped with a logged warning.
    Raises DataError when a line before the end is damaged, or when the file is of another schema version.
    """
    path = Path(folder) / "records.jsonl"
    for number, (_, entry) in enumerate(_sound_lines(path)):
        if number == 0:
            _check_version(path, entry)
        else:
            yield _record(entry)


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold an existing journal's lock without opening the journal.  Raises PlatformError when another process has it."""
    lock = _lock(Path(folder))
    try:
        yield
    finally:
        os.ftruncate(lock, 0)
        os.close(lock)


def _lock(folder: Path) -> int:
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 32).decode() or "unknown"
        os.close(lock)
        raise PlatformError(
            f"process {holder} is already collecting into {folder}; wait for it to end or stop it"
        ) from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def _write_synced(file: int, data: bytes, path: Path) -> None:
    """All of ``data`` or none of it: a write that stops half-way is cut off again."""
    end = os.fstat(file).st_size
    try:
        with disk_full_named(path):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file, rest) :]
            os.fsync(file)
    except BaseException:
        os.ftruncate(file, end)
        raise


def _line(entry: dict[str, Any]) -> bytes:
    body = json.dumps(entry, separators=(",", ":"), default=_json_value, allow_nan=False).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _json_value(value: Any) -> Any:
    """A time as text, a NumPy number as Python's."""
    return value.isoformat() if isinstance(value, datetime) else value.item()


def _record(entry: dict[str, Any]) -> Record:
    values = {field.name: entry[field.name] for field in fields(Record)}
    for name in ("decisions", "latencies_s"):
        values[name] = tuple(values[name])
    values["measured_at"] = datetime.fromisoformat(values["measured_at"])
    return Record(**values)


def _sound_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(offset behind the line, its JSON) of each line up to a torn end."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        end = 0
        for number, line in enumerate(file, start=1):
            entry = _parse_line(line)
            if entry is None:
                _refuse_unless_last(path, number, end, file)
                return
            end += len(line)
            yield end, entry


def _parse_line(line: bytes) -> dict[str, Any] | None:
    """None where the line is not whole: no newline, or a checksum that does not fit."""
    checksum, _, body = line[:-1].partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % zlib.crc32(body):
        return None
    return json.loads(body)


def _refuse_unless_last(path: Path, number: int, end: int, rest: Iterable[bytes]) -> None:
    """A kill can only tear the end; a sound line behind a bad one means that somebody changed the file."""
    if any(_parse_line(line) is not None for line in rest):
        raise DataError(
            f"{path}: line {number} is damaged but not the last; delete that line or restore the file"
        )
    log.warning("%s: dropped its last %d bytes, a record that a killed writer left half-written",
                path, path.stat().st_size - end)  # fmt: skip


def _check_version(path: Path, header: dict[str, Any]) -> None:
    version = header.get("schema_version")
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path} has schema version {version}, this program reads version {SCHEMA_VERSION}; "
            "use the program that wrote it, or move the journal away and measure again"
        )

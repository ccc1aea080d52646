"""Checks that a file of the data set must pass to be read, and the errors for one that does not.

The seal is the mark SEAL followed by the SHA-256 of the file without the seal.  It lies between the data and Parquet's
footer, where no reader looks.  Pages have checksums of their own, but their headers and the footer have none.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tcl_core.checked import AGAIN, damaged
from tcl_core.errors import DataError
from tcl_core.files import is_remote, reading, shown
from tcl_core.records import SCHEMA_VERSION
from tcl_core.store.schemas import MOST_BYTES_PER_GROUP, MOST_ROWS, ROWS_PER_GROUP, SCHEMAS, repeated_texts

SEAL = b"TCL-seal"
SEALED_BYTES = len(SEAL) + 32
REFUSED = (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError)  # what Arrow raises for a damaged file


class Remedy(NamedTuple):
    """What a user can do about missing data and about damaged data; only the caller knows."""

    missing: str
    damaged: str = AGAIN


BY_STAGE = Remedy("run the stage that writes it (dvc repro)")


class Hashing:
    """A file that keeps the SHA-256 of what is written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.closed = file, hashlib.sha256(), False

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self.file.write(data)

    def tell(self) -> int:
        return self.file.tell()

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        """Do nothing: whoever opened the file closes it."""

    def seal(self) -> None:
        """Put the seal between the data and the footer."""
        self.file.flush()
        descriptor, size = self.file.fileno(), self.file.tell()
        end = _footer_start(os.pread(descriptor, 8, size - 8), size)
        footer = os.pread(descriptor, size - end, end)
        self.file.seek(end)
        self.file.write(SEAL + self.digest.digest() + footer)


def _footer_start(tail: bytes, size: int) -> int:
    """Offset of the footer in a file of ``size`` bytes that ends with ``tail``: the footer's length and Parquet's mark, 8 bytes."""
    return size - 8 - int.from_bytes(tail[:4], "little")


def _is_sealed(path: Path, remedy: Remedy) -> bool:
    """Whether a file has a seal; files of earlier versions have none.  Raises DataError where it does not fit."""
    fits = _seal_fits(path, _state(path))
    if fits is False:
        raise damaged(path, "its checksum does not fit", remedy.damaged)
    return bool(fits)


def _state(path: Path) -> object:
    """A value that changes when the file does."""
    if is_remote(path):
        return path.fs.ukey(path.path)  # type: ignore[attr-defined]
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


@lru_cache(maxsize=4096)  # hashes each file once
def _seal_fits(path: Path, state: object) -> bool | None:
    """Whether the seal fits the file; None if there is none.  ``state`` only keys the cache."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < 8:
            return None
        file.seek(size - 8)
        start = _footer_start(file.read(8), size) - SEALED_BYTES
        file.seek(max(start, 0))
        seal = file.read(SEALED_BYTES)
        if start < 0 or not seal.startswith(SEAL):
            return None
        file.seek(0)
        digest, left = hashlib.sha256(), start
        while left and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
        file.seek(SEALED_BYTES, os.SEEK_CUR)
        digest.update(file.read())
        return digest.digest() == seal[len(SEAL) :]


def platform_of(path: Path) -> dict[bytes, bytes]:
    """Metadata in which a file of records names its platform, so that a file of another platform is noticed."""
    folder = path.absolute().parent.name
    return {b"tcl.platform": folder.removeprefix("platform=").encode()} if folder.startswith("platform=") else {}


def open_table(path: Path, table: str, remedy: Remedy) -> pq.ParquetFile:
    try:
        with reading(path):
            sealed = _is_sealed(path, remedy)
        file = _parquet(path)
    except FileNotFoundError:
        raise DataError(f"there is no {path}; {remedy.missing}") from None
    except REFUSED as error:
        raise damaged_by(path, error, remedy) from error
    _check_schema(path, table, file.schema_arrow, remedy)
    _check_size(path, table, file.metadata, remedy)
    if not sealed and b"tcl.sealed" in file.schema_arrow.metadata:
        raise damaged(path, "its checksum is gone", remedy.damaged)
    return _parquet(path, metadata=file.metadata, read_dictionary=repeated_texts(table))


def _parquet(path: Path, **options: Any) -> pq.ParquetFile:
    """Open a file of this machine, or one at a URL through pyarrow's bridge to fsspec."""
    where = {"source": path.path, "filesystem": path.fs} if is_remote(path) else {"source": path}  # type: ignore[attr-defined]
    return pq.ParquetFile(**where, page_checksum_verification=True, **options)


def damaged_by(path: Path, error: Exception, remedy: Remedy) -> DataError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return damaged(path, shown(reason), remedy.damaged)


def _check_size(path: Path, table: str, metadata: pq.FileMetaData, remedy: Remedy) -> None:
    """Raise DataError for a file that could take more memory than any that TCL writes."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    rows, most = metadata.num_rows, MOST_ROWS[table]
    if rows > most or any(g.num_rows > ROWS_PER_GROUP or g.total_byte_size > MOST_BYTES_PER_GROUP for g in groups):
        raise DataError(
            f"{path} claims {rows:,} rows in {len(groups)} groups, and no table '{table}' of TCL is so: at most {most:,} rows in "
            f"groups of {ROWS_PER_GROUP:,}; {remedy.damaged}"
        )


def _check_schema(path: Path, table: str, schema: pa.Schema, remedy: Remedy) -> None:
    metadata = schema.metadata or {}
    version = metadata.get(b"tcl.schema_version", b"none").decode(errors="replace")
    found = metadata.get(b"tcl.table", b"none").decode(errors="replace")
    if version != str(SCHEMA_VERSION):
        raise DataError(f"{path} has schema version {shown(version)}, this program reads version {SCHEMA_VERSION}; {remedy.damaged}")
    if found != table or schema.names != SCHEMAS[table].names or schema.types != SCHEMAS[table].types:
        raise DataError(f"{path} holds the table '{shown(found)}' where '{table}' is expected; {remedy.damaged}")
    own, place = metadata.get(b"tcl.platform"), platform_of(path).get(b"tcl.platform")
    if own is not None and place is not None and own != place:
        raise DataError(
            f"{path} holds records of the platform {shown(own.decode(errors='replace'))}; move it to that one's folder, or {remedy.damaged}"
        )


def check_hosts(where: Path, hosts: Iterable[str]) -> None:
    distinct = sorted(set(hosts))
    if len(distinct) > 1:
        raise DataError(
            f"{where} mixes measurements of {len(distinct)} hosts ({'; '.join(distinct)}), whose latencies "
            "cannot be compared; keep one host's records here and give the others their own platform"
        )


def data_digest(folder: str | Path, remedy: Remedy = BY_STAGE) -> str:
    """SHA-256 over the names and contents of all files below ``folder``, except hidden files, hidden folders and README.md.

    Raises DataError where there are none.
    """
    folder, digest = Path(folder), hashlib.sha256()
    hidden = lambda path: any(part.startswith(".") for part in path.relative_to(folder).parts)  # noqa: E731
    files = sorted(p for p in folder.rglob("*") if p.is_file() and not hidden(p) and p.name != "README.md")
    if not files:
        raise DataError(f"{folder} holds no data to identify; {remedy.missing}")
    for path in files:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + content)
    return digest.hexdigest()

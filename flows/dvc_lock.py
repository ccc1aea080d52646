"""Backup of `dvc.lock`: DVC writes it in place, so a kill at that moment leaves half of it, and DVC then starts no stage at all.

The last whole copy is kept in DVC's folder of temporary files and can replace a damaged file.  The last stage, if the copy does
not know its result, is then brought up to date once more.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tcl_core.errors import PlatformError
from tcl_core.files import replacing
from tcl_core.settings import yaml_format

LOCK = Path("dvc.lock")
KEPT = Path(".dvc/tmp/dvc.lock.whole")
DAMAGED = Path(".dvc/tmp/dvc.lock.damaged")


def keep() -> None:
    """Keep a copy of `dvc.lock`, if it is whole and differs from the kept one."""
    now = _read(LOCK)
    if now and now != _read(KEPT) and _is_whole(now):
        with suppress(PlatformError):  # a full disk: the stage will say so
            _write(KEPT, now)


def put_back() -> bool:
    """Set a damaged `dvc.lock` aside and put the kept copy in its place; return whether that was done.

    A merge conflict of Git is no damage: only the user knows which side counts.
    """
    now, kept = _read(LOCK), _read(KEPT)
    if not kept or kept == now or b"<<<<<<<" in now or _is_whole(now):
        return False
    _write(DAMAGED, now)
    _write(LOCK, kept)
    return True


def _is_whole(text: bytes) -> bool:
    """Whether `dvc.lock` looks whole; one cut between two entries does, to DVC too, which then just knows less."""
    try:
        stages = yaml_format(round_trip=False).load(text)["stages"].values()
        entries = [entry for stage in stages for part in ("deps", "outs") if part in stage for entry in stage[part]]
        return text.endswith(b"\n") and all(stage["cmd"] for stage in stages) and all({"path", "size"} <= entry.keys() for entry in entries)
    except Exception:  # however it is cut
        return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)

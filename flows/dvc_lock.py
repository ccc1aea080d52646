"""`dvc.lock`, which DVC writes in place: whoever kills DVC in that moment leaves half of it, and DVC then begins no stage at all.

So the last whole one is kept in DVC's folder of temporary files, and can take the place of half a one: what it does not know of
the last stage is brought up to date once more.
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
    """Copy it, if it is whole and another one than was kept."""
    now = _read(LOCK)
    if now and now != _read(KEPT) and _is_whole(now):
        with suppress(PlatformError):  # a full disk: the stage will say so
            _write(KEPT, now)


def put_back() -> bool:
    """Put the kept one in the place of a damaged one, which goes aside; whether there was one, and another one.

    What Git could not merge is no damage: only its user knows which side counts.
    """
    now, kept = _read(LOCK), _read(KEPT)
    if not kept or kept == now or b"<<<<<<<" in now or _is_whole(now):
        return False
    _write(DAMAGED, now)
    _write(LOCK, kept)
    return True


def _is_whole(text: bytes) -> bool:
    """As far as one can tell: one that is cut between two entries is a whole one that knows less, to DVC as well."""
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

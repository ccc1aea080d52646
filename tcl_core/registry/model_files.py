"""A version's files, verified: beside a local store, or fetched from a server into the user's cache folder.

    $XDG_CACHE_HOME/tcl/models/STORE/tcl-PLATFORM/      ~/.cache where that is not set; STORE: digest of the server's address
        VERSION-RUN/                                    what was fetched, complete or not there
        champion.json, VERSION.json                     which of them the server last gave as the champion, or as that version

So a compiler that has once loaded a champion keeps using it while the server is away.  All of it may be deleted at any
time: what is missing or damaged is fetched again.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tcl_core.checked import read_json, write_json
from tcl_core.errors import DataError, RegistryError, TclError
from tcl_core.files import user_cache, writing
from tcl_core.registry import local_store
from tcl_core.registry.names import CHAMPION, RUN_KEY, model_name, platform_of, run_key

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

REMEDY = "it is fetched again when the registry answers"
MADE = ("provenance.json", "curve.json", "contents.json")  # a model's files on how it was made, and the list of files
_ASIDE = ".fetching-"
IDENTITY = ("dvc.stage", "data.hash", RUN_KEY)  # tags that identify a version's bytes

log = logging.getLogger(__name__)


def folder_of(client: MlflowClient, platform: str, version: ModelVersion) -> Path:
    """The model folder of a version: in place for a local store, else fetched once and cached.

    Raises DataError unless it holds exactly the registered bytes, PlatformError where the cache folder cannot be written.
    """
    location = client.get_model_version_download_uri(version.name, str(version.version))
    in_place = local_store.path_of(location) if local_store.local_store() else None
    # MLflow's own download would write into the folder that it reads.
    return _checked(platform, version, in_place) if in_place else _fetched(platform, version)


def check_tokens(folder: Path, origin: str) -> None:
    """Raise DataError for a model that reads other tokens than this version of TCL makes."""
    from tcl_core.models import catalogue
    from tcl_core.models.cost_model import read_description

    catalogue.check_tokens(read_description(folder), origin)


def weights_digest(folder: Path) -> str:
    """SHA-256 of the files that a model ranks with, not of those on how, when and by which code it was made."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name not in MADE)
    return hashlib.sha256(b"".join(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest() for path in files)).hexdigest()


def _checked(platform: str, version: ModelVersion, root: Path) -> Path:
    """The model folder below ``root``.  Raises DataError unless its ``run_key`` is the registered one."""
    found = list(root.glob("artifacts/*/model.json"))
    if not found:
        raise _lost(version, f"there is no model in {root}")
    folder = found[0].parent
    if run_key(platform, folder, version.tags) != version.tags.get(RUN_KEY):
        raise _lost(version, f"{folder} holds other bytes than were registered")
    return folder


def _lost(version: ModelVersion, why: str) -> DataError:
    return DataError(
        f"version {version.version} of {version.name} cannot be used ({why}); "
        "register and promote a model that is whole: tcl register, tcl promote"
    )


# --- the cache ---


def cache_folder() -> Path:
    """Cache folder for versions of the present server.  Raises RegistryError for a user without a home."""
    try:
        base = user_cache("models")
    except RuntimeError as error:
        raise RegistryError(f"there is no folder to keep fetched models in ({error}); set XDG_CACHE_HOME to one") from None
    return base / _store_digits()


def _store_digits() -> str:
    with local_store.TURN:
        return hashlib.sha256(local_store.without_password(local_store.uri()).encode()).hexdigest()[:16]


def _fetched(platform: str, version: ModelVersion) -> Path:
    """Model folder of a version, fetched into the cache unless it is there; the run's id tells registries at one address apart."""
    from mlflow.artifacts import download_artifacts

    kept = cache_folder() / version.name / f"{version.version}-{version.run_id}"
    with suppress(DataError):
        return _checked(platform, version, kept)  # without a lock, since the cache may be read-only
    with ExitStack() as stack:
        with writing(kept):
            stack.enter_context(local_store.alone(kept.parent / "lock"))
            for left_over in kept.parent.glob(f"{_ASIDE}*"):
                shutil.rmtree(left_over)
            aside = stack.enter_context(tempfile.TemporaryDirectory(prefix=_ASIDE, dir=kept.parent))
        with suppress(DataError):
            return _checked(platform, version, kept)  # another process fetched it meanwhile
        fetched = download_artifacts(f"models:/{version.name}/{version.version}", dst_path=aside)
        with writing(kept):
            shutil.rmtree(kept, ignore_errors=True)  # damaged since
            os.replace(fetched, kept)
    return _checked(platform, version, kept)


def note(version: ModelVersion, pin: int | None) -> None:
    """Remember that the server has just given this version as its champion, or as the one with the number ``pin``."""
    file = _note_file(version.name, pin)
    tags = {name: version.tags.get(name, "") for name in IDENTITY}
    with suppress(TclError):  # a read-only cache
        write_json(file, {"version": int(version.version), "run_id": version.run_id, "tags": tags, "seen": int(time.time())})


def kept(platform: str, pin: int | None, away: RegistryError) -> tuple[int, Path]:
    """Number and verified folder of the version that ``note`` remembered, to use while the server is ``away``; logs a warning.

    Raises ``away`` where nothing is remembered, DataError where it is damaged.
    """
    file = _note_file(model_name(platform), pin)
    try:
        noted = read_json(file, REMEDY)
        number, run, tags, seen = (noted[name] for name in ("version", "run_id", "tags", "seen"))
    except FileNotFoundError:
        raise away from None
    except KeyError as missing:
        raise DataError(f"{file} lacks {missing}; remove it: {REMEDY}") from away
    found = list((file.parent / f"{number}-{run}").glob("artifacts/*/model.json"))
    if not found or run_key(platform, found[0].parent, tags) != tags[RUN_KEY]:
        why = "holds other bytes than were registered" if found else "is not there"
        raise DataError(f"{away}; version {number} of {model_name(platform)} as it was kept in {file.parent} {why}") from away
    what = "the pinned version" if pin else "the champion"
    log.warning("%s; version %d of %s is used as it was kept, %s %s ago", away, number, model_name(platform), what, _ago(seen))
    return number, found[0].parent


def platforms_kept() -> list[str]:
    """The platforms whose champion is cached."""
    return sorted(platform_of(file.parent.name) for file in cache_folder().glob(f"*/{CHAMPION}.json"))


def _note_file(name: str, pin: int | None) -> Path:
    return cache_folder() / name / f"{pin or CHAMPION}.json"


def _ago(seen: float) -> str:
    """How long ago a moment was, such as ``3 days``, in the largest unit of which it is at least two."""
    seconds = max(0.0, time.time() - seen)
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} seconds"

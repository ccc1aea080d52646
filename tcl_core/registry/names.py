"""Names of models, versions and aliases, and the key that identifies a model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from tcl_core.errors import UsageError
from tcl_core.files import shown

CANDIDATE, CHAMPION, PREVIOUS = ALIASES = "candidate", "champion", "previous"
RUN_KEY = "run_key"  # the tag of a version and its run that identifies the model
_PREFIX = "tcl-"


def model_name(platform: str) -> str:
    return f"{_PREFIX}{platform}"


def platform_of(name: str) -> str:
    """The platform that a registered model's name contains; empty for a model that is not ours."""
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""


def pinned(name: str) -> tuple[str, int | None]:
    """Platform and version of a name such as ``host-avx2:3``; the version is None, for the champion, without a number.

    Raises UsageError for anything else behind a colon.
    """
    platform, colon, number = name.partition(":")
    if not colon:
        return platform, None
    if not re.fullmatch("[1-9][0-9]{0,8}", number):
        raise UsageError(
            f"'{shown(name)}' names no version; write PLATFORM:NUMBER, such as host-avx2:3, or the platform alone for its champion"
        )
    return platform, int(number)


def run_key(platform: str, model_folder: Path, tags: Mapping[str, str]) -> str:
    """Sixteen hexadecimal digits, equal for the same model bytes of the same platform, stage and data."""
    from tcl_core.store import data_digest

    facts = [platform, tags.get("dvc.stage", ""), tags.get("data.hash", ""), data_digest(model_folder)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]

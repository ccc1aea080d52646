"""How models, versions and aliases are called, and by which digits the same model is known again."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from tcl_core.errors import UsageError
from tcl_core.files import shown

CANDIDATE, CHAMPION, PREVIOUS = ALIASES = "candidate", "champion", "previous"
RUN_KEY = "run_key"  # the tag of a version and its run that says which model it is
_PREFIX = "tcl-"


def model_name(platform: str) -> str:
    return f"{_PREFIX}{platform}"


def platform_of(name: str) -> str:
    """The platform of a registered model's name; empty for a model that is not ours."""
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""


def pinned(name: str) -> tuple[str, int | None]:
    """``host-avx2:3`` -> the platform and the version that is meant; without a number the champion is, and None comes back.

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
    """Sixteen hexadecimal digits that are equal for the same model bytes of the same stage and data."""
    from tcl_core.store import data_digest

    facts = [platform, tags.get("dvc.stage", ""), tags.get("data.hash", ""), data_digest(model_folder)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]

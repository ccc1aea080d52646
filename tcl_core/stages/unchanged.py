"""What a stage of DVC reads must still lie there when it ends: DVC writes into dvc.lock what lies there then, whatever the stage read.

Without that, parameters that somebody edits while a stage is at work would be taken for those of what it made, for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tcl_core import store
from tcl_core.errors import DataError, PlatformError
from tcl_core.params import PARAMS
from tcl_core.settings import read_yaml

TUNED = "data/tuned"  # the one dependency that another command may write meanwhile


def read_by(root: Path, stage: str) -> dict[str, Any]:
    """What dvc.yaml lists for a stage: sections of params.yaml by name, and a digest of what was tuned; nothing of a stage that is not
    the project's.  Raises UsageError for files that are wrong.
    """
    if not (root / "dvc.yaml").is_file():
        return {}
    stages, params = (read if isinstance(read, dict) else {} for read in (read_yaml(root / name) for name in ("dvc.yaml", PARAMS)))
    listed = stages.get("stages", {}).get(stage.rpartition(":")[2].partition("@")[0], {})
    listed = listed.get("do", listed)
    sections = dict.fromkeys(str(entry).partition(".")[0] for entry in listed.get("params", ()))
    found = {name: params.get(name) for name in sections}
    return found | ({TUNED: _digest(root / TUNED)} if TUNED in listed.get("deps", ()) else {})


def check_unchanged(root: Path, stage: str, began: Mapping[str, Any]) -> None:
    """Raise PlatformError where what the stage reads is not what it was when it ``began``."""
    now = read_by(root, stage)
    if changed := [name if name == TUNED else f"{name} of {PARAMS}" for name, value in began.items() if now.get(name) != value]:
        raise PlatformError(
            f"{', '.join(changed)} changed while this stage was at work, so what it made is of what was there before; "
            "what was measured is kept: run the same command again"
        )


def _digest(folder: Path) -> str:
    try:
        return store.data_digest(folder)
    except DataError:  # nothing was tuned yet
        return ""

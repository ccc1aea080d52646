"""Check that what a DVC stage read is unchanged when it ends: DVC writes into dvc.lock what it finds then, whatever the stage read.

Otherwise parameters edited, records measured anew or a network exported again while a stage runs would be recorded for good as what
its outputs were made from.  The project's own code is not watched: whoever edits it knows what ran.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tcl_core import store
from tcl_core.errors import DataError, PlatformError, UsageError
from tcl_core.params import PARAMS
from tcl_core.settings import read_yaml

DATA = "data", "networks"  # where dependencies are data, not code


def read_by(root: Path, stage: str) -> dict[str, Any]:
    """What dvc.yaml lists for a stage, by name: entries of params.yaml, and digests of data; empty for a stage that is not the
    project's.  Raises UsageError for invalid files.
    """
    if not (root / "dvc.yaml").is_file():
        return {}
    stages, params = (read if isinstance(read, dict) else {} for read in (read_yaml(root / name) for name in ("dvc.yaml", PARAMS)))
    name, _, key = stage.rpartition(":")[2].partition("@")
    listed = stages.get("stages", {}).get(name, {})
    over = _at(params, str(listed.get("foreach", ""))[2:-1])
    known = {**params, "key": key, "item": over.get(key) if isinstance(over, dict) else key}
    listed = listed.get("do", listed)

    def filled(kind: str) -> list[str]:
        return [re.sub(r"\$\{([^}]*)\}", lambda found: str(_at(known, found[1])), str(entry)) for entry in listed.get(kind, ())]

    entries, deps = filled("params"), filled("deps")
    data = [dep for dep in deps if dep.partition("/")[0] in DATA]
    return {f"{entry} of {PARAMS}": _at(params, entry) for entry in entries} | {dep: _digest(root / dep) for dep in data}


def check_unchanged(root: Path, stage: str, began: Mapping[str, Any]) -> None:
    """Raise PlatformError where what the stage reads differs from ``began``, what ``read_by`` gave at its start."""
    try:
        now = read_by(root, stage)
        changed = [name for name, value in began.items() if now.get(name) != value]
    except UsageError:  # half edited
        changed = [PARAMS]
    if changed:
        raise PlatformError(
            f"{', '.join(changed)} changed while this stage was at work, so what it made is of what was there before; "
            "what was measured is kept: run the same command again"
        )


def _at(values: Any, path: str) -> Any:
    """Value at a path such as ``a.b`` of nested mappings; None if there is none."""
    for name in path.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _digest(place: Path) -> str:
    """Digest of a file or of a folder's data; "" where there is none yet."""
    try:
        return hashlib.sha256(place.read_bytes()).hexdigest() if place.is_file() else store.data_digest(place)
    except (DataError, OSError):
        return ""

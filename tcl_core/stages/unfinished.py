"""What a tuning is asked for: how long, and what identifies it, so that only the same command finds what it measured."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tcl_core.compat import TVM_VERSION
from tcl_core.errors import UsageError
from tcl_core.measure.job import Setup
from tcl_core.platforms import host_fingerprint
from tcl_core.programs.graph import Graph
from tcl_core.tuning.coldness import TIMED
from tcl_core.tuning.database import database_files


def check_length(trials: int | None, minutes: float | None) -> None:
    """Raise UsageError where both are given, or one is no possible length; neither is needed."""
    if trials is not None and minutes is not None:
        raise UsageError("trials and minutes both say how long to tune; give one of them")
    if minutes is not None and not 0 < minutes < math.inf:
        raise UsageError(f"the minutes to tune are {minutes}; give a number above 0")
    if trials is not None and trials < 1:
        raise UsageError(f"the programs to measure are {trials}; give at least 1")


def asked_for(network: str, graph: Graph, setup: Setup, seed: int, donors: Sequence[Path]) -> dict[str, Any]:
    """What a tuning depends on beside the model: with changed files or on another machine it is another tuning.

    Raises UsageError for a folder of ``donors`` without a database, DataError for one that is no log.
    """
    file = Path(network)
    return {
        "seed": seed,
        "host": host_fingerprint(),
        "tvm": TVM_VERSION,
        "measured": f"{setup.protocol_json()}, {TIMED}",
        **({"network_sha256": _sha256(file)} if file.is_file() else {}),
        "graph": asdict(graph),
        "donors": [_sha256(file) for folder in donors for file in database_files(folder)],
    }


def folder_of(asked: Mapping[str, Any]) -> str:
    """Name of the folder that holds what was measured until the tuning succeeds."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()

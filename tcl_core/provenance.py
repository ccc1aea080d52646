"""What a model was made of and where: `provenance.json` in its folder, collected when its training starts.

Whoever registers a model later reads it there, for by then params.yaml, the records and the code may be others.  It holds
no time and no number of a run, so that the same stage made again gives the same bytes.  Knows no stage: the caller says
what its stage read.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform as python
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tcl_core import store
from tcl_core.checked import read_json, write_json
from tcl_core.errors import DataError
from tcl_core.platforms import host_fingerprint

FILE = "provenance.json"
CODE = Path(__file__).resolve().parent
PACKAGES = {"numpy": "numpy", "torch": "torch", "tvm": "apache-tvm"}  # whose versions decide a model's bytes
REMEDY = "make the model again: dvc repro, or tcl train and tcl distill"


def collect(
    stage: str, parameters: Mapping[str, Any], data: Mapping[str, Path], model_before: Path | None = None
) -> dict[str, Any]:
    """What a model is about to be made of.

    stage         its name in dvc.yaml;  parameters: what of params.yaml, or of its own settings, it depends on
    data          platform -> folder of the records that it learns from
    model_before  folder of the model that it goes on from
    """
    return {
        "stage": stage,
        "parameters": dict(parameters),
        "data": {platform: store.data_digest(folder) for platform, folder in data.items()},
        "model_before": store.data_digest(model_before) if model_before else None,
        "code": _code(),
        "versions": {
            "python": python.python_version(),
            **{name: importlib.metadata.version(package) for name, package in PACKAGES.items()},
        },
        "host": host_fingerprint(),
    }


def write(folder: Path, collected: Mapping[str, Any]) -> None:
    write_json(folder / FILE, collected)


def read(folder: Path) -> dict[str, Any]:
    """What ``collect`` returned when the model in ``folder`` was made.  Raises DataError where that is not known."""
    try:
        return read_json(folder / FILE, REMEDY)
    except FileNotFoundError:
        raise DataError(f"there is no {folder / FILE}, so nobody knows what this model was made of; {REMEDY}") from None


def _code() -> dict[str, Any]:
    """tcl_core's own sources: their digest, the last commit that changed them (later ones made no other model), and whether
    they differ from it (None where there is no commit).
    """
    tracked = _git("ls-files", "provenance.py")  # or some repository that merely has the environment in it
    commit = _git("log", "-1", "--format=%H", "--", ".") if tracked else ""
    changed = bool(_git("status", "--porcelain", "--untracked-files=all", "--", "*.py")) if commit else None
    return {"commit": commit or None, "changed": changed, "sources": _sources_digest()}


def _sources_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(CODE.rglob("*.py")):
        digest.update(path.relative_to(CODE).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _git(*arguments: str) -> str:
    """What git says of tcl_core; empty where there is no git, no repository or no answer."""
    try:
        answer = subprocess.run(["git", *arguments], cwd=CODE, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""

"""What a model was made of and where: `provenance.json` in its folder, collected when its training starts.

Registration reads it there, since params.yaml, the records and the code may have changed by then.  It holds no time and no
number of a run, so that repeating a stage gives the same bytes.  This module knows no stage: the caller says what its
stage read.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform as python
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tcl_core import store
from tcl_core.checked import read_json, write_json
from tcl_core.errors import DataError
from tcl_core.files import shown
from tcl_core.platforms import host_fingerprint

FILE, LEARNED = "provenance.json", "learned.json"  # the second is what a chain's model knows (``chain.state``)
CODE = Path(__file__).resolve().parent
# Packages whose versions decide a model's bytes; XGBoost's trees label what the networks learn.
PACKAGES = {"numpy": "numpy", "torch": "torch", "tvm": "apache-tvm", "xgboost": "xgboost-cpu"}
_md5 = partial(hashlib.md5, usedforsecurity=False)
REMEDY = "make the model again: dvc repro, or tcl train and tcl distill"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def collect(stage: str, parameters: Mapping[str, Any], data: Mapping[str, Path], model_before: Path | None = None) -> dict[str, Any]:
    """Collect the provenance of a model that is about to be trained.

    stage         name in dvc.yaml of the stage that trains it
    parameters    the part of params.yaml, or of its own settings, that it depends on
    data          platform -> folder of the records that it learns from
    model_before  folder of the model from which its training continues
    """
    return {
        "stage": stage,
        "parameters": dict(parameters),
        "data": {platform: store.data_digest(folder) for platform, folder in data.items()},
        "dvc": {platform: dvc_digest(folder) for platform, folder in data.items()},
        "model_before": store.data_digest(model_before) if model_before else None,
        "code": _code(),
        "versions": {
            "python": python.python_version(),
            **{name: _version(package) for name, package in PACKAGES.items()},
        },
        "host": host_fingerprint(),
    }


def write(folder: Path, collected: Mapping[str, Any]) -> None:
    write_json(folder / FILE, collected)


def read(folder: Path) -> dict[str, Any]:
    """What ``collect`` returned when the model in ``folder`` was made.  Raises DataError if that is missing or damaged."""
    try:
        return read_json(folder / FILE, REMEDY)
    except FileNotFoundError:
        raise DataError(f"there is no {folder / FILE}, so nobody knows what this model was made of; {REMEDY}") from None


def dvc_digest(folder: Path) -> str:
    """DVC's hash of a folder, as in dvc.lock: MD5 of the list of its files and their MD5s, without hidden ones, plus ``.dir``."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    names = sorted((path.relative_to(folder).as_posix(), path) for path in files)
    listed = [{"md5": _md5_of(path), "relpath": name} for name, path in names]
    return f"{_md5(json.dumps(listed, sort_keys=True).encode()).hexdigest()}.dir"


def _md5_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, _md5).hexdigest()


def changed_text(changed: Sequence[str] | bool | None, most: int = 5) -> str:
    """Names of tcl_core's files that differ from the commit, for a tag: ``false`` for none, ``unknown`` without a commit."""
    if changed is None:
        return "unknown"
    if isinstance(changed, bool):  # from a model made before their names were kept
        return "true" if changed else "false"
    if not changed:
        return "false"
    more = f" and {len(changed) - most} more" if len(changed) > most else ""
    return ", ".join(shown(name, 80) for name in changed[:most]) + more


def git(*arguments: str, folder: Path = CODE) -> str:
    """Output of a git command in a folder; empty where there is no git, no repository or no answer."""
    try:
        answer = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, errors="replace", timeout=10)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _code() -> dict[str, Any]:
    """tcl_core's own sources: their digest, the last commit that changed them (later ones changed no model), and which of them
    differ from it (None without a commit).  What a run writes, such as dvc.lock, is not among them.
    """
    tracked = git("ls-files", "provenance.py", folder=CODE)  # empty in a repository that merely contains the environment
    commit = git("log", "-1", "--format=%H", "--", ".", folder=CODE) if tracked else ""
    return {"commit": commit or None, "changed": _changed() if commit else None, "sources": _sources_digest()}


def _changed() -> list[str]:
    """Sources that differ from the last commit, or are not in it, relative to tcl_core."""
    differ = git("diff", "--name-only", "--relative", "-z", "HEAD", "--", "*.py", folder=CODE)
    new = git("ls-files", "--others", "--exclude-standard", "-z", "--", "*.py", folder=CODE)
    return sorted({name for name in f"{differ}\0{new}".split("\0") if name})


def _sources_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(CODE.rglob("*.py")):
        digest.update(path.relative_to(CODE).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def learned_tasks(folder: Path) -> frozenset[str]:
    """Keys of the tasks that a chain's saved model has learned; empty if it does not say.  Raises DataError for damage."""
    try:
        return frozenset(read_json(folder / LEARNED, REMEDY).get("tasks", ()))
    except FileNotFoundError:
        return frozenset()

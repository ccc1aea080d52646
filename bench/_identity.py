"""Which stored runs of a comparison are still valid: each is identified by the code and data that its figures depend on."""

from __future__ import annotations

import ast
import hashlib
import inspect
import subprocess
import tomllib
from collections.abc import Callable, Container, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from _tables import ROOT

from tcl_core import store
from tcl_core.checked import running_code as code
from tcl_core.models import catalogue
from tcl_core.programs.tuning_logs.dialects import DIALECTS

# Parts of tcl_core that figures depend on.
CODE = (
    "models", "learning", "learning_names.py", "features", "programs", "evaluation", "teaching.py", "chain", "store",
    "reference.py", "datasets.py", "records.py", "platforms", "stages/exchange.py",
)  # fmt: skip
NEUTRAL = ("_tables", "_identity", "_smallest")  # how figures are kept and shown, which does not change them
ESTIMATE = ROOT / "tcl_core" / "models" / "estimate.py"
UNESTIMATED = ("mamba-paper", "xgboost", "world-model")  # which import it and have none
SAME = ROOT / "bench" / "same_figures.toml"  # files whose latest changes cannot have changed a figure
TAUGHT = {"mamba": ["_lessons"], "tcl": ["_chain_case"]}  # model -> scripts of what teaches it
TEACHING = ("tcl_core.teaching", "tcl_core.models.trees", "tcl_core.programs.unlabelled")  # the teachers of ``TAUGHT``


def identity(model: str, data: str, settings: object = None) -> str:
    """Digest of what a model's figures depend on: code, ``data`` (its digest), and the comparison's own ``settings``."""
    digest = hashlib.sha256(repr((data, settings)).encode())
    for path in code_of(model):
        digest.update(_code_in(path).encode())
    return digest.hexdigest()[:16]


@cache
def _code_in(path: Path) -> str:
    """A file's code; that of an earlier commit where ``SAME`` says that figures of then are figures of now."""
    now = code(path.read_text())
    said = _said().get(path.relative_to(ROOT).as_posix())
    if said and said["code"] == code_digest(now) and (then := code_as_of(said["as_of"], path)) is not None:
        return then
    return now


@cache
def _said() -> dict[str, dict[str, str]]:
    return tomllib.loads(SAME.read_text()) if SAME.exists() else {}


def code_digest(text: str) -> str:
    """Digest of a file's code, as ``SAME`` names it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_as_of(commit: str, path: Path) -> str | None:
    """A file's code in a commit, "" if that has no such file; None where the history is not there, so that stored runs count as outdated."""
    name = path.relative_to(ROOT).as_posix()
    try:
        return code(_git("show", f"{commit}:{name}")) if _git("ls-tree", "--name-only", commit, "--", name) else ""
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True, timeout=60).stdout


def digest_of(function: Callable[..., Any]) -> str:
    """Digest of a function's source without docstrings and comments."""
    return hashlib.sha256(code(inspect.getsource(function)).encode()).hexdigest()[:12]


def data_identity(reference: Path, logs: Path) -> dict[str, str]:
    """Part of a comparison -> identity of its data: the reference data's digest, the logs' names and sizes."""
    files = sorted(logs.rglob("*.log.gz"))
    return {"reference": store.data_digest(reference), "logs": str([(path.name, path.stat().st_size) for path in files])}


def code_of(model: str) -> list[Path]:
    """Files that a model's figures depend on: its module, the metrics, the code that reads the data, and all that these import.

    The catalogue, which changes with every new model, and the comparison itself do not count: after changing how they train
    models, use --force.
    """
    module = catalogue.CLASSES[model].partition(":")[0] if model in catalogue.CLASSES else "tcl_core.chain.bridge"
    modules = [module, "tcl_core.evaluation.metrics", *(TEACHING if model in TAUGHT else ())]
    found = reached(modules, ["_datasets", *TAUGHT.get(model, ())])
    return [path for path in found if path != ESTIMATE or model not in UNESTIMATED]


def code_identity(modules: Sequence[str], scripts: Sequence[str], without: Container[Path] = ()) -> str:
    """Digest of the code of modules of tcl_core, of scripts of this folder, and of what they import, but for the files ``without``."""
    files = [path for path in reached(modules, scripts) if path not in without]
    return hashlib.sha256("".join(map(_code_in, files)).encode()).hexdigest()[:16]


def folder_identity(name: str) -> str:
    """Digest of the code in a folder of tcl_core that is not in ``CODE``."""
    files = sorted((ROOT / "tcl_core" / name).glob("*.py"))
    return hashlib.sha256("".join(map(_code_in, files)).encode()).hexdigest()[:16]


def reached(modules: Sequence[str], scripts: Sequence[str]) -> list[Path]:
    """Files of modules of tcl_core, of scripts of this folder, and of what they import of ``CODE``; always the logs' dialects."""
    found: set[Path] = set()
    waiting = [*map(_file, (*modules, *DIALECTS.values())), *(ROOT / "bench" / f"{name}.py" for name in scripts)]
    while waiting:
        if (path := waiting.pop()) and path not in found:
            found.add(path)
            waiting += [_file(name) for name in imported_names(path)]
    return sorted(path for path in found if path.is_relative_to(ROOT / "bench") or _counts(path))


@cache
def imported_names(path: Path) -> list[str]:
    """Modules that a Python file imports; for ``from a import b`` both a and a.b, which may be a module."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def _file(module: str) -> Path | None:
    """File of a module of tcl_core, of a package in ``CODE``, or of a script here that figures depend on; None for all else."""
    if not module.startswith("tcl_core."):
        script = ROOT / "bench" / f"{module}.py"
        return script if module.startswith("_") and module not in NEUTRAL and script.exists() else None
    path = ROOT / Path(*module.split("."))
    file, package = path.with_suffix(".py"), path / "__init__.py"
    return file if file.exists() else package if package.exists() and _counts(package) else None


def _counts(path: Path) -> bool:
    return path.name != "catalogue.py" and path.relative_to(ROOT / "tcl_core").parts[0] in CODE

"""Which runs of a comparison are still true: each is known by the code and the data that its figures depend on."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from _tables import ROOT

from tcl_core import store
from tcl_core.checked import running_code as code
from tcl_core.models import catalogue
from tcl_core.programs.tuning_logs.dialects import DIALECTS

# Of tcl_core: what figures depend on.
CODE = (
    "models", "learning", "learning_names.py", "features", "programs", "evaluation", "teaching.py", "chain", "store",
    "reference.py", "datasets.py", "records.py", "platforms", "stages/exchange.py",
)  # fmt: skip
NEUTRAL = ("_tables", "_identity", "_smallest")  # what is kept and shown, whatever the figures are
TAUGHT = ("mamba", "tcl")
TEACHING = ("tcl_core.teaching", "tcl_core.models.trees", "tcl_core.programs.unlabelled")  # what teaches those


def identity(model: str, data: str, settings: object = None) -> str:
    """Changes with the code, the data (its digest) and the comparison's own ``settings`` that a model's figures depend on."""
    digest = hashlib.sha256(repr((data, settings)).encode())
    for path in code_of(model):
        digest.update(_code_in(path).encode())
    return digest.hexdigest()[:16]


@cache
def _code_in(path: Path) -> str:
    return code(path.read_text())


def digest_of(function: Callable[..., Any]) -> str:
    """Of what of a function's source runs."""
    return hashlib.sha256(code(inspect.getsource(function)).encode()).hexdigest()[:12]


def data_identity(reference: Path, logs: Path) -> dict[str, str]:
    """Part -> digest of what it is computed from."""
    files = sorted(logs.rglob("*.log.gz"))
    return {"reference": store.data_digest(reference), "logs": str([(path.name, path.stat().st_size) for path in files])}


def code_of(model: str) -> list[Path]:
    """Files that a model's figures depend on: what its module, the metrics and the data's reading import, directly or not.

    The catalogue, which changes with every new model, and the comparison itself are not among them: after a change of how
    models are trained there, say --force.
    """
    module = catalogue.CLASSES[model].partition(":")[0] if model in catalogue.CLASSES else "tcl_core.chain.bridge"
    modules = [module, "tcl_core.evaluation.metrics", *(TEACHING if model in TAUGHT else ())]
    return reached(modules, ["_datasets", *(["_lessons"] if model in TAUGHT else [])])


def code_identity(modules: Sequence[str], scripts: Sequence[str]) -> str:
    """Changes with the code of modules of ours, of scripts of this folder, and of what they import."""
    return hashlib.sha256("".join(map(_code_in, reached(modules, scripts))).encode()).hexdigest()[:16]


def folder_identity(name: str) -> str:
    """Changes with the code of a folder of tcl_core of which the other comparisons know nothing."""
    files = sorted((ROOT / "tcl_core" / name).glob("*.py"))
    return hashlib.sha256("".join(map(_code_in, files)).encode()).hexdigest()[:16]


def reached(modules: Sequence[str], scripts: Sequence[str]) -> list[Path]:
    """Files of modules of ours, of scripts of this folder, and of what of ``CODE`` they import; and the dialects of logs."""
    found: set[Path] = set()
    waiting = [*map(_file, (*modules, *DIALECTS.values())), *(ROOT / "bench" / f"{name}.py" for name in scripts)]
    while waiting:
        if (path := waiting.pop()) and path not in found:
            found.add(path)
            waiting += [_file(name) for name in imported_names(path)]
    return sorted(path for path in found if path.is_relative_to(ROOT / "bench") or _counts(path))


@cache
def imported_names(path: Path) -> list[str]:
    """Modules that a Python file imports; of ``from a import b`` both a and a.b, which may be one."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def _file(module: str) -> Path | None:
    """The file of a module of ours, of one of ``CODE``'s packages, or of a script of this folder that figures depend on."""
    if not module.startswith("tcl_core."):
        script = ROOT / "bench" / f"{module}.py"
        return script if module.startswith("_") and module not in NEUTRAL and script.exists() else None
    path = ROOT / Path(*module.split("."))
    file, package = path.with_suffix(".py"), path / "__init__.py"
    return file if file.exists() else package if package.exists() and _counts(package) else None


def _counts(path: Path) -> bool:
    return path.name != "catalogue.py" and path.relative_to(ROOT / "tcl_core").parts[0] in CODE

"""The rules of the house: imports go one way, and each foreign tool has its one place."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ORDER = (
    "errors locks files process side_by_side checked sandbox environment settings progress outputs network_names sampler_names learning_names gpu compat platforms crontab params profiles "
    "records journal store provenance programs measure features "
    "learning models teaching chain sampling collect evaluation report registry trained samplers reference shipped_model tuning stages datasets library "
    "cli __main__ flows"
).split()
ALLOWED = {  # foreign package -> where it may be imported
    "prefect": ("flows/",),
    "mlflow": ("tcl_core/registry/",),
    "pyarrow": ("tcl_core/store/",),
    "tvm": ("tcl_core/compat.py", "tcl_core/programs/", "tcl_core/measure/", "tcl_core/features/per_store.py",
            "tcl_core/tuning/", "tcl_core/models/scan_tir.py"),
}  # fmt: skip


def imported(source: str) -> Iterator[str]:
    """Dotted names that a file imports, lazily or not; what only type checkers see does not count."""
    todo: list[ast.AST] = [ast.parse(source)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            todo += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{name.name}" for name in node.names)
        todo += ast.iter_child_nodes(node)


def part(path: str) -> str:
    """``tcl_core/models/mamba.py`` -> models, ``flows/pipeline.py`` -> flows"""
    folders = path.removesuffix(".py").split("/")
    return folders[1] if folders[0] == "tcl_core" else folders[0]


def violations(path: str, source: str) -> list[str]:
    """One sentence for each import that breaks a rule; ``path`` is relative to the project's folder."""
    found = []
    for name in sorted(set(imported(source))):
        top = name.split(".")[0]
        if top in ALLOWED and not path.startswith(ALLOWED[top]):
            found.append(f"{path} imports {name}, which belongs in {', '.join(ALLOWED[top])}")
        if top in ("tcl_core", "flows") and name != "tcl_core.__version__":
            target = part(name.replace(".", "/"))
            if ORDER.index(target) > ORDER.index(part(path)):
                found.append(f"{path} imports {name}, which comes after {part(path)}")
    return found


def sources() -> list[Path]:
    files = [*(ROOT / "tcl_core").rglob("*.py"), *(ROOT / "flows").rglob("*.py")]
    return [file for file in files if part(file.relative_to(ROOT).as_posix()) != "__init__"]


def test_imports_go_one_way():
    found = [line for file in sources() for line in violations(file.relative_to(ROOT).as_posix(), file.read_text())]
    assert found == []


def test_no_other_part_asks_which_kind_a_platform_is():
    """``cuda`` may also be the kind of TVM's target, which is another question."""
    kinds = {"local", "rpc"}
    found = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in sources() if part(file.relative_to(ROOT).as_posix()) != "platforms"
        for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators) if isinstance(side, ast.Constant) and side.value in kinds
    ]  # fmt: skip
    assert found == [], "ask the kind itself (tcl_core/platforms/kind.py)"


def test_every_part_has_its_place_in_the_order():
    parts = {part(file.relative_to(ROOT).as_posix()) for file in sources()}
    assert parts <= set(ORDER), "add the new part to ORDER, where its imports allow"


@pytest.mark.parametrize(
    "path, source",
    [
        ("tcl_core/models/mamba.py", "from tcl_core.stages import train"),
        ("tcl_core/models/mamba.py", "def f():\n    from tcl_core import registry"),
        ("tcl_core/errors.py", "import tcl_core.params"),
        ("tcl_core/collect.py", "import prefect"),
        ("tcl_core/stages/tuning.py", "def f():\n    import mlflow.pyfunc"),
        ("flows/pipeline.py", "from pyarrow import parquet"),
        ("tcl_core/learning/fit.py", "if True:\n    from tvm import tir"),
    ],
)
def test_a_planted_violation_is_found(path, source):
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    "path, source",
    [
        ("tcl_core/stages/tuning.py", "from tcl_core import registry\nfrom tcl_core.models import catalogue"),
        ("tcl_core/registry/runs.py", "import mlflow"),
        ("tcl_core/store/reading.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tcl_core.models import mamba"),
    ],
)
def test_what_is_allowed_is_not_found(path, source):
    assert violations(path, source) == []


@cache
def names_of(file: Path) -> set[str]:
    """What a module has at its top, branches and try blocks included; imported names are among it."""
    found: set[str] = set()
    todo: list[ast.AST] = list(ast.parse(file.read_text()).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {name.asname or name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        else:
            todo += ast.iter_child_nodes(node)
    return found


def missing_names(source: str) -> list[str]:
    """``module.name`` of ours that are imported, and are not there."""
    missing = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or (node.module or "").split(".")[0] not in ("tcl_core", "flows"):
            continue
        place = ROOT / node.module.replace(".", "/")
        file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        known = names_of(file) if file.exists() else set()
        for name in (name.name for name in node.names):
            if name not in known and not (place / f"{name}.py").exists() and not (place / name).is_dir():
                missing.append(f"{node.module}.{name}")
    return missing


def test_what_scripts_and_tests_import_of_ours_is_there():
    """A type checker looks at tcl_core and flows alone, and a comparison that takes hours is rarely run."""
    files = [file for folder in ("bench", "tests", "examples") for file in (ROOT / folder).rglob("*.py")]
    assert {str(file.relative_to(ROOT)): found for file in files if (found := missing_names(file.read_text()))} == {}


def test_stages_that_do_not_learn_load_nothing_that_does():
    """Each is a process of its own, in which torch takes seconds to load, and the trees' library as long again."""
    stages = "baselines candidates collecting drifting overview probing promotion reporting tuned_folder tuning".split()
    modules = ", ".join(f"tcl_core.stages.{stage}" for stage in stages)
    code = f"import sys, {modules}; print({{'torch', 'xgboost', 'tvm', 'mlflow', 'prefect', 'scipy'}} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (said.stdout.strip(), said.stderr) == ("set()", "")


def test_a_name_that_moved_is_found():
    assert missing_names("from tcl_core.errors import TclError, Gone\nfrom tcl_core import store, gone") == [
        "tcl_core.errors.Gone",
        "tcl_core.gone",
    ]

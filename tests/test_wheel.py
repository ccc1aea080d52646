"""What `pip install` gets: the package alone, which works in an empty folder outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tcl_core.sandbox import Rights, command

ROOT = Path(__file__).resolve().parents[1]
BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "params.yaml", "dvc.yaml", ".dvcignore", "constraints.txt")
LIMIT_S = 300


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that nothing is left in the checkout."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in BUILT_FROM:
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, copy / name)
    for name in ("tcl_core", "flows", "profiles", "data/reference", "data/prepared", "data/registers", "data/searched", "data/variants"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    code = f"from setuptools.build_meta import build_wheel; print(build_wheel({str(out)!r}))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> dict[str, str]:
    """The environment of a machine that has the wheel, and no checkout."""
    place = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    hidden = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MLFLOW_TRACKING_URI")}
    return hidden | {"PYTHONPATH": str(place), "PYTHONSAFEPATH": ""}


def test_it_holds_the_package_and_nothing_beside_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"tcl_core"}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tcl_core").rglob("*.py") if "__pycache__" not in path.parts}
    assert sources <= set(names)
    data = {name.removeprefix("tcl_core/package_data/") for name in names if name.startswith("tcl_core/package_data/")}
    assert {
        "project/params.yaml",
        "project/dvc.yaml",
        "project/flows/pipeline.py",
        "project/profiles/full.yaml",
        "project/Makefile",
    } <= data
    for name in ("reference", "prepared"):
        assert {path.relative_to(ROOT / "data").as_posix() for path in (ROOT / "data" / name).rglob("*.parquet")} <= data
    assert "tcl_core/py.typed" in names and not any("__pycache__" in name for name in names)


def test_its_layers_of_dependencies(wheel):
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
    required = [line.removeprefix("Requires-Dist: ") for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    core = {line.split(">")[0].split("<")[0].split("=")[0].strip() for line in required if "extra ==" not in line}
    assert core == {"numpy", "orjson", "pyarrow", "safetensors", "torch"}
    assert {extra for extra in ("trees", "tvm", "pipeline", "cuda", "dev") if f"Provides-Extra: {extra}" in metadata} == {
        "trees",
        "tvm",
        "pipeline",
        "cuda",
        "dev",
    }


def run(command: list[str], folder: Path, settings: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *command], cwd=folder, env=settings, capture_output=True, text=True, timeout=LIMIT_S)


def test_a_project_begins_and_works_outside_the_checkout(installed, tmp_path):
    where = run(["-c", "import tcl_core; print(tcl_core.__file__)"], tmp_path, installed)
    assert where.stdout.startswith(installed["PYTHONPATH"])
    assert run(["-m", "tcl_core.cli", "init", "mine"], tmp_path, installed).returncode == 0
    mine = tmp_path / "mine"
    said = run(["-m", "tcl_core.cli", "platforms"], mine, installed)
    assert said.returncode == 0 and "host-sse42" in said.stdout
    said = run(["-m", "flows.pipeline", "--help"], mine, installed)
    assert said.returncode == 0 and "--force-collect" in said.stdout
    said = run(["-m", "dvc", "stage", "list", "--name-only"], mine, installed)
    assert said.returncode == 0 and "distill@host-avx512" in said.stdout.split()


def test_a_confined_process_reads_the_packages_beside_it(installed):
    """Where pip puts them with --user and --target, and where such a process begins."""
    place = Path(installed["PYTHONPATH"])
    (place / "beside.py").write_text("print('read')")
    said = run(command("beside", Rights())[1:], place, installed)
    assert (said.returncode, said.stdout) == (0, "read\n"), said.stderr


def test_the_reference_data_comes_along(installed, tmp_path):
    for name in ("reference", "prepared"):
        code = f"import tcl_core as tcl; data = tcl.datasets.{name}(); print(data.platforms, len(data.uses) > 100)"
        assert run(["-c", code], tmp_path, installed).stdout == "['host-sse42', 'host-avx2', 'host-avx512'] True\n"

"""`tcl init`: a project of one's own, outside the repository: parameters, flows, the graph of stages and a Makefile."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from tcl_core.errors import UsageError
from tcl_core.files import present_folder, shown, writing
from tcl_core.settings import read_yaml

TEMPLATE = Path(__file__).resolve().parents[1] / "package_data" / "project"
PARAMS = "params.yaml"
AS_THEY_ARE = ("prefect.toml", "Makefile")
FOLDERS = ("profiles", "flows")
DOTTED = {"dvcignore": ".dvcignore", "gitignore": ".gitignore"}
DVC = """[core]
    analytics = false
    check_update = false
    autostage = {autostage}{no_scm}
[cache]
    type = "reflink,copy"
"""
NETWORKS = "Put .pt2 and .onnx files with fixed shapes here, and name them in params.yaml as networks/FILE: DVC sees when they change.\n"
TUNED = "What tcl tune measured here, for tcl train to learn (train.tuned of params.yaml).  To forget a platform's, delete its folder.\n"
DATA_IGNORED = "# Stages write it, and DVC keeps what they end with.\n*\n!.gitignore\n!tuned/\n!tuned/README.md\n"
OURS = {".dvc", "networks", "dvc.yaml", *FOLDERS, *DOTTED.values(), *AS_THEY_ARE}
BEGUN = ".params.yaml.begun"  # tells a killed `tcl init` from somebody's own files; becomes params.yaml
IGNORED = {".git", ".gitignore", ".gitattributes"}  # what a new repository has


def start_project(folder: Path) -> Path:
    """Write a project into ``folder``: a new one, or an empty one or new Git repository; returns its absolute path.

    params.yaml comes last and makes it a project: if the command was stopped, running it again finishes the project.  Raises
    UsageError for a folder with anything else in it, and for a file; PlatformError where nothing can be written.
    """
    folder = Path(os.path.normpath(present_folder() / folder))
    _check_place(folder)
    with writing(folder):
        _fill(folder, in_git=any((place / ".git").exists() for place in (folder, *folder.parents)))
    return folder


def _check_place(folder: Path) -> None:
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise UsageError(f"{shown(folder)} is no folder; name one that is empty, or a new one")
    with writing(folder):
        there = {path.name for path in folder.iterdir()} - IGNORED
        if BEGUN in there:
            there -= {BEGUN, *OURS}
            if (folder / "data").is_dir() and {path.name for path in (folder / "data").iterdir()} <= {"tuned", ".gitignore"}:
                there -= {"data"}
    if others := sorted(there):
        raise UsageError(f"{shown(folder)} is not empty ({shown(others[0])} is there); name an empty folder, or a new one")


WITH_SOURCES = r"^# Stages depend on the code that decides their bytes.*?(?=^# `persist`)"
WITHOUT_SOURCES = """# TCL's own code is no dependency here, for it is installed elsewhere: after an upgrade of TCL say `dvc repro --force`, which makes all anew and
# measures nothing again (`tcl collect --force` does).
#
"""


def _fill(folder: Path, in_git: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(TEMPLATE / PARAMS, folder / BEGUN)
    for name in (".dvc", "networks", "data/tuned"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "networks" / "README.md").write_text(NETWORKS)
    (folder / "data" / "tuned" / "README.md").write_text(TUNED)
    no_scm = "" if in_git else "\n    no_scm = true"
    (folder / ".dvc" / "config").write_text(DVC.format(autostage=str(in_git).lower(), no_scm=no_scm))
    (folder / ".dvc" / ".gitignore").write_text("/config.local\n/tmp\n/cache\n")
    for name in FOLDERS:
        shutil.copytree(TEMPLATE / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    (folder / "data" / ".gitignore").write_text(DATA_IGNORED)
    for name, dotted in DOTTED.items():
        _add_lines(folder / dotted, (TEMPLATE / name).read_text())
    (folder / "dvc.yaml").write_text(without_sources((TEMPLATE / "dvc.yaml").read_text(encoding="utf-8")), encoding="utf-8")
    for name in AS_THEY_ARE:
        shutil.copy(TEMPLATE / name, folder / name)
    os.replace(folder / BEGUN, folder / PARAMS)


def _add_lines(file: Path, text: str) -> None:
    """Write ``text``; to a file that exists, such as a new repository's, add only the lines, without comments, that it lacks."""
    there = file.read_text() if file.exists() else ""
    lines = set(there.splitlines())
    if missing := [line for line in text.splitlines() if line.strip() and not line.startswith("#") and line not in lines]:
        file.write_text("\n".join([there.rstrip("\n"), *missing, ""]) if there else text)


def without_sources(dvc: str) -> str:
    """dvc.yaml's text without dependencies on TCL's own code and data, which are installed elsewhere; a comment in it says so."""
    dvc = re.sub(WITH_SOURCES, WITHOUT_SOURCES, dvc, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^ *- (tcl_core/\S+|data/(?:prepared|registers|searched|variants)\b).*\n", "", dvc, flags=re.MULTILINE)


def outdated(project: Path) -> list[str]:
    """Stages of this TCL's dvc.yaml that the project's lacks, or runs by another command or for other parameters.

    A project keeps the files that `tcl init` wrote, whichever TCL is installed later.  Empty where dvc.yaml is damaged: DVC says that.
    """
    try:
        here, mine = (_stages(folder / "dvc.yaml") for folder in (project, TEMPLATE))
    except (UsageError, AttributeError, KeyError, TypeError):
        return []
    return [name for name, stage in mine.items() if here.get(name) != stage]


def _stages(file: Path) -> dict[str, tuple[Any, Any]]:
    """Stage -> its command and its parameters."""
    stages = {name: stage.get("do", stage) for name, stage in read_yaml(file)["stages"].items()}
    return {name: (stage["cmd"], stage.get("params")) for name, stage in stages.items()}

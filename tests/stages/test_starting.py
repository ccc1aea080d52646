"""`tcl init`: a project outside the repository, whole or not one at all."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tcl_core.errors import PlatformError, UsageError
from tcl_core.params import load_params
from tcl_core.profiles import profile_names
from tcl_core.stages import starting
from tcl_core.stages.starting import BEGUN, TEMPLATE, outdated, start_project, without_sources

ROOT = Path(__file__).resolve().parents[2]


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_project_has_what_the_repository_has(tmp_path):
    mine = start_project(tmp_path / "mine")
    assert mine == tmp_path / "mine"
    assert load_params(mine / "params.yaml") == load_params(ROOT / "params.yaml")
    assert profile_names(mine / "params.yaml") == profile_names(ROOT / "params.yaml")
    assert {f"flows/{path.name}" for path in (ROOT / "flows").glob("*.py")} <= files(mine)
    assert {"Makefile", "prefect.toml", ".gitignore", ".dvcignore", ".dvc/config", "networks/README.md"} <= files(mine)
    assert not any("__pycache__" in name for name in files(mine))


def test_stages_depend_on_data_alone(tmp_path):
    start_project(tmp_path)
    ours, theirs = (YAML(typ="safe").load(folder / "dvc.yaml")["stages"] for folder in (tmp_path, ROOT))
    assert ours.keys() == theirs.keys()
    text = (tmp_path / "dvc.yaml").read_text()
    assert "- tcl_core" not in text and not re.search("- data/(prepared|registers|searched|variants)", text)
    assert text.count("- data/") == (ROOT / "dvc.yaml").read_text().count("- data/") - 4
    assert "after an upgrade of TCL say `dvc repro --force`" in text and "Stages depend on the code" not in text
    deps = "  deps:\n    - tcl_core/x.py  # why\n    - data/prepared  # so\n    - data/registers\n    - data/searched\n    - data/variants\n    - data/y\n"
    assert without_sources(deps) == "  deps:\n    - data/y\n"


@pytest.mark.parametrize("in_git", [True, False])
def test_dvc_knows_whether_git_is_there(in_git, tmp_path):
    if in_git:
        subprocess.run(["git", "init", "-q", tmp_path], check=True, timeout=30)
    start_project(tmp_path)
    config = (tmp_path / ".dvc" / "config").read_text()
    assert ("no_scm" in config) is not in_git and f"autostage = {str(in_git).lower()}" in config


@pytest.mark.parametrize(
    ("name", "begun"),
    [
        *(
            (name, False)
            for name in ("data/precious.csv", "data/tuned/mine.parquet", "Makefile", "dvc.yaml", ".dvc/config", "flows/mine.py")
        ),
        ("data/precious.csv", True),  # the other places a start that was killed has itself
        ("thesis.tex", True),
    ],
)
def test_files_of_somebodys_are_no_start_that_was_killed(tmp_path, name, begun):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("years of work")
    if begun:
        (tmp_path / BEGUN).touch()
    with pytest.raises(UsageError, match=f"is not empty .{name.partition('/')[0]} is there."):
        start_project(tmp_path)
    assert file.read_text() == "years of work" and files(tmp_path) - {BEGUN} == {name}


def test_a_folder_with_something_in_it_stays_as_it_is(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"is not empty \(thesis.tex is there\); name an empty folder, or a new one"):
        start_project(tmp_path)
    assert files(tmp_path) == {"thesis.tex"}
    with pytest.raises(UsageError, match="thesis.tex is no folder"):
        start_project(tmp_path / "thesis.tex")
    start_project(tmp_path / "project")
    (tmp_path / "project" / "params.yaml").write_text("mine: 1")
    with pytest.raises(UsageError, match="is not empty"):
        start_project(tmp_path / "project")
    assert (tmp_path / "project" / "params.yaml").read_text() == "mine: 1"


def test_one_that_was_killed_on_the_way_is_finished(tmp_path):
    start_project(tmp_path)
    whole = files(tmp_path)
    (tmp_path / "params.yaml").rename(tmp_path / BEGUN)
    (tmp_path / "Makefile").unlink()
    start_project(tmp_path)
    assert files(tmp_path) == whole


def test_one_that_met_a_full_disk_at_its_last_step_is_finished(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(PlatformError, match="free some space"):
        patch.setattr(starting.os, "replace", full)
        start_project(tmp_path)
    assert not (tmp_path / "params.yaml").exists()
    start_project(tmp_path)
    assert load_params(tmp_path / "params.yaml") == load_params(ROOT / "params.yaml") and BEGUN not in files(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PlatformError, match="mine"):
        start_project(tmp_path / "mine")
    tmp_path.chmod(0o700)


def test_a_project_of_another_version_is_known_by_its_stages(tmp_path):
    file = start_project(tmp_path) / "dvc.yaml"
    assert outdated(tmp_path) == [] == outdated(ROOT)
    text = file.read_text()
    for now, then in (("\n  tasks:\n", "\n  cut:\n"), ("        - collect\n", ""), ("tcl_core.cli evaluate", "tcl_core.cli judge")):
        assert text.count(now) == 1
        text = text.replace(now, then)
    file.write_text(text)
    assert outdated(tmp_path) == ["tasks", "collect", "evaluate"]
    for damaged in ("", "stages: 3", "- a", "stages: {tasks: x}", "stages: {tasks: {}}", "x: ["):  # DVC says so
        file.write_text(damaged)
        assert outdated(tmp_path) == []
    file.unlink()
    assert outdated(tmp_path) == []


def test_the_template_is_the_repositorys_own():
    for name in ("params.yaml", "dvc.yaml", "flows/pipeline.py", "profiles/full.yaml"):
        assert (TEMPLATE / name).read_bytes() == (ROOT / name).read_bytes()


def test_prefect_is_set_up_as_in_the_repository(tmp_path):
    import tomllib

    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["prefect"]
    assert tomllib.loads((TEMPLATE / "prefect.toml").read_text()) == ours

"""Profiles: they change values of params.yaml and nothing else of it, and go back byte for byte."""

from __future__ import annotations

import pytest
from ruamel.yaml import YAML

from tcl_core.errors import PlatformError, UsageError
from tcl_core.files import replacing
from tcl_core.params import load_params
from tcl_core.profiles import apply_profile, profile_names
from tests import params_copy
from tests.commands import tcl
from tests.params_copy import ROOT
from tests.shipped import SHIPPED

project = params_copy.project


def flat(tree, prefix=""):
    for key, value in tree.items():
        yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)]


def test_default_profile_holds_exactly_the_committed_values():
    profiles = ROOT / "profiles"
    here, committed, default, full = (
        dict(flat(YAML(typ="safe").load(file)))
        for file in (ROOT / "params.yaml", SHIPPED, profiles / "default.yaml", profiles / "full.yaml")
    )
    assert default.keys() == full.keys()
    assert all(default[key] != full[key] for key in full), "a profile holds only keys that differ"
    if all(here[key] == full[key] for key in full):
        pytest.skip("params.yaml holds the full profile at the moment")
    assert {key: committed[key] for key in default} == default


def test_profiles_change_values_only_and_go_back_byte_for_byte(project):
    before, comments = project.read_bytes(), project.read_text().count("#")
    changed = apply_profile("full", project)
    assert changed["tune.trials"] == (200, 2000)
    assert load_params(project).tune.trials == 2000
    assert project.read_text().count("#") == comments
    assert apply_profile("full", project) == {}
    assert apply_profile("default", project).keys() == changed.keys()
    assert project.read_bytes() == before


def test_a_shared_file_stays_the_groups(project):
    """Of a link what it leads to is changed, with its rights; and numbers may have underscores."""
    shared = project.rename(project.parent / "shared.yaml")
    shared.write_text(shared.read_text().replace("ewc_lambda: 10000.0", "ewc_lambda: 10_000"))
    assert "10_000" in shared.read_text()
    shared.chmod(0o664)
    project.symlink_to("shared.yaml")
    apply_profile("full", project)
    assert project.is_symlink() and load_params(shared).tune.trials == 2000
    assert shared.stat().st_mode & 0o777 == 0o664 and load_params(project).distill.ewc_lambda == 10_000.0


def test_the_command_changes_the_project_from_a_folder_of_it(project, monkeypatch):
    (project.parent / "deeper").mkdir()
    monkeypatch.chdir(project.parent / "deeper")
    assert "tune.trials: 200 -> 2000" in tcl("profile", "full").splitlines()
    assert load_params(project).tune.trials == 2000
    assert tcl("profile", "full") == "params.yaml is full already"


def test_a_profile_may_replace_lists_and_keeps_their_style(project):
    (project.parent / "profiles/small.yaml").write_text("networks: {train: [gpt2-small, networks/own.onnx]}\nevaluate: {top_k: [1]}\n")
    apply_profile("small", project)
    assert load_params(project).networks.train == ("gpt2-small", "networks/own.onnx")
    assert "    - gpt2-small\n    - networks/own.onnx\n" in project.read_text() and "top_k: [1]  " in project.read_text()


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        (
            "measure: {repeat: 5}",
            "unknown key 'measure.repeat' in {folder}/bad.yaml; did you mean 'measure.repeats'?",
        ),
        ("measure: {repeats: 0}", "params.yaml with {folder}/bad.yaml: measure.repeats is 0"),
        ("measure: 5", "'measure' is 5; it must be a section"),
    ],
)
def test_a_bad_profile_changes_nothing(project, patch, expected):
    before = project.read_bytes()
    (project.parent / "profiles/bad.yaml").write_text(patch)
    with pytest.raises(UsageError) as raised:
        apply_profile("bad", project)
    assert expected.format(folder=project.parent / "profiles") in str(raised.value)
    assert project.read_bytes() == before


def test_an_unknown_profile_names_the_nearest(project):
    assert profile_names(project) == ("cpu", "cuda", "default", "full")
    with pytest.raises(UsageError, match="unknown profile 'ful' .*did you mean 'full'"):
        apply_profile("ful", project)


def test_a_replacement_that_fails_leaves_the_old_file_and_no_rest(project):
    before = project.read_bytes()
    with pytest.raises(ZeroDivisionError), replacing(project) as file:
        file.write(b"half")
        raise ZeroDivisionError
    with pytest.raises(PlatformError, match="free some space"), replacing(project):
        raise OSError(28, "No space left on device")
    assert project.read_bytes() == before
    assert [path.name for path in project.parent.iterdir() if path.name.startswith(".")] == []


def test_the_profile_of_a_gpu_goes_with_every_size(project):
    before = load_params(project)
    changed = apply_profile("cuda", project)
    assert changed.keys() == {"platforms", "chain", "candidates.design_space"}
    assert changed["chain"][1] == {"first": "gpu", "then": {}}
    params = load_params(project)
    assert params.chain_order == ("gpu",) == tuple(params.platforms) and params.platforms["gpu"].kind == "cuda"
    assert "# what the driver does not tell of it" in project.read_text() and "\n\nchain: " in project.read_text()
    apply_profile("full", project)
    apply_profile("default", project)
    assert load_params(project) == params
    assert apply_profile("cuda", project) == {}
    assert apply_profile("cpu", project).keys() == changed.keys()
    assert load_params(project) == before and apply_profile("cpu", project) == {}


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("params.yaml", "", "params.yaml holds no sections"),
        ("profiles/mine.yaml", "- a\n- b\n", "mine.yaml holds no sections of parameters"),
    ],
)
def test_what_holds_no_sections_is_said(project, file, text, said):
    (project.parent / "profiles" / "mine.yaml").write_text("seed: 1\n")
    (project.parent / file).write_text(text)
    with pytest.raises(UsageError, match=said):
        apply_profile("mine", project)

"""Parameters that are edited while a stage of DVC is at work are not taken for those that it read."""

from __future__ import annotations

import re

import pytest

from tcl_core.errors import PlatformError
from tcl_core.stages.unchanged import check_unchanged, read_by

DVC = """
stages:
  collect:
    foreach: ${platforms}
    do:
      cmd: measure ${key}
      params: [seed, collect, 'platforms.${key}']
      deps: [data/pool, code]
  train:
    cmd: learn
    deps: [data/tuned, 'data/records/platform=${chain.first}', code]
    params: [train, candidates.space]
  distill:
    foreach: ${chain.then}
    do:
      cmd: learn ${key}
      deps: ['data/models/${item.prev}', 'data/records/platform=${key}']
  baseline:
    foreach: ${baselines.models}
    do:
      cmd: learn ${item}
      deps: ['data/of/${item}']
  tasks:
    cmd: cut
    deps: [networks]
"""

PARAMS = """
seed: 1
collect: {fraction: 0.1}
train: {epochs: 3}
candidates: {space: cpu, programs: 40}
platforms: {a: {mcpu: nehalem}, b: {mcpu: haswell}}
chain: {first: a, then: {b: {prev: a}}}
baselines: {models: [tlp]}
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "dvc.yaml").write_text(DVC)
    (tmp_path / "params.yaml").write_text(PARAMS)
    return tmp_path


def test_what_a_stage_reads(project):
    assert read_by(project, "collect@a") == {
        "seed of params.yaml": 1, "collect of params.yaml": {"fraction": 0.1}, "platforms.a of params.yaml": {"mcpu": "nehalem"},
        "data/pool": "",
    }  # fmt: skip
    assert read_by(project, "dvc.yaml:train") == {
        "train of params.yaml": {"epochs": 3}, "candidates.space of params.yaml": "cpu", "data/tuned": "", "data/records/platform=a": "",
    }  # fmt: skip
    assert read_by(project, "distill@b").keys() == {"data/models/a", "data/records/platform=b"}
    assert read_by(project, "baseline@tlp").keys() == {"data/of/tlp"}
    assert read_by(project, "nothing") == {}


def test_what_others_read_may_change(project):
    began = read_by(project, "collect@a")
    file = project / "params.yaml"
    file.write_text(file.read_text().replace("epochs: 3", "epochs: 4"))
    check_unchanged(project, "collect@a", began)
    file.write_text(file.read_text().replace("0.1", "0.2"))
    with pytest.raises(PlatformError, match=r"^collect of params\.yaml changed while this stage was at work.* run the same command again$"):
        check_unchanged(project, "collect@a", began)


@pytest.mark.parametrize(
    ("stage", "other", "own", "named"),
    [
        ("train", ("programs: 40", "programs: 41"), ("space: cpu", "space: cuda"), "candidates.space"),
        ("collect@a", ("haswell", "skylake"), ("nehalem", "haswell"), "platforms.a"),
    ],
)
def test_the_rest_of_a_section_of_which_a_stage_reads_one_entry_may_change(project, stage, other, own, named):
    began, file = read_by(project, stage), project / "params.yaml"
    file.write_text(file.read_text().replace(*other))
    check_unchanged(project, stage, began)
    file.write_text(file.read_text().replace(*own))
    with pytest.raises(PlatformError, match=f"^{re.escape(named)} of params.yaml changed while this stage was at work"):
        check_unchanged(project, stage, began)


def test_parameters_that_are_half_edited_have_changed(project):
    began = read_by(project, "collect@a")
    (project / "params.yaml").write_text("collect: {fraction:")
    with pytest.raises(PlatformError, match=r"^params\.yaml changed while this stage was at work.* run the same command again$"):
        check_unchanged(project, "collect@a", began)


def test_a_network_tuned_meanwhile_was_not_learned(project):
    began = read_by(project, "train")
    (project / "data" / "tuned" / "platform=a").mkdir(parents=True)
    (project / "data" / "tuned" / "README.md").write_text("words change nothing")
    check_unchanged(project, "train", began)
    (project / "data" / "tuned" / "platform=a" / "records.parquet").write_bytes(b"measured")
    with pytest.raises(PlatformError, match="^data/tuned changed while this stage was at work"):
        check_unchanged(project, "train", began)


@pytest.mark.parametrize(
    "stage, file",
    [("train", "data/records/platform=a/records.parquet"), ("distill@b", "data/models/a/model.json"), ("tasks", "networks/own.pt2")],
)
def test_data_written_meanwhile_was_not_read(project, stage, file):
    """As by `tcl collect --force` beside a training: the next run would find records and model as dvc.lock has them."""
    path = project / file
    path.parent.mkdir(parents=True)
    path.write_bytes(b"before")
    began = read_by(project, stage)
    check_unchanged(project, stage, began)
    path.write_bytes(b"after")
    with pytest.raises(PlatformError, match=f"^{path.parent.relative_to(project)} changed while this stage was at work"):
        check_unchanged(project, stage, began)

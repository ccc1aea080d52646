"""Parameters that are edited while a stage of DVC is at work are not taken for those that it read."""

from __future__ import annotations

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
  train:
    cmd: learn
    deps: [data/tuned, data/records]
    params: [train]
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "dvc.yaml").write_text(DVC)
    (tmp_path / "params.yaml").write_text("seed: 1\ncollect: {fraction: 0.1}\ntrain: {epochs: 3}\nplatforms: {a: {}}\n")
    return tmp_path


def test_what_a_stage_reads(project):
    assert read_by(project, "collect@a") == {"seed": 1, "collect": {"fraction": 0.1}, "platforms": {"a": {}}}
    assert read_by(project, "dvc.yaml:train") == {"train": {"epochs": 3}, "data/tuned": ""}
    assert read_by(project, "nothing") == {}


def test_what_others_read_may_change(project):
    began = read_by(project, "collect@a")
    file = project / "params.yaml"
    file.write_text(file.read_text().replace("epochs: 3", "epochs: 4"))
    check_unchanged(project, "collect@a", began)
    file.write_text(file.read_text().replace("0.1", "0.2"))
    with pytest.raises(PlatformError, match=r"^collect of params\.yaml changed while this stage was at work.* run the same command again$"):
        check_unchanged(project, "collect@a", began)


def test_a_network_tuned_meanwhile_was_not_learned(project):
    began = read_by(project, "train")
    (project / "data" / "tuned" / "platform=a").mkdir(parents=True)
    (project / "data" / "tuned" / "README.md").write_text("words change nothing")
    check_unchanged(project, "train", began)
    (project / "data" / "tuned" / "platform=a" / "records.parquet").write_bytes(b"measured")
    with pytest.raises(PlatformError, match="^data/tuned changed while this stage was at work"):
        check_unchanged(project, "train", began)

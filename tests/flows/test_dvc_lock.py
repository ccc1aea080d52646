"""A dvc.lock that a kill cut short: the last whole one takes its place, and what it does not know is made once more."""

from __future__ import annotations

import pytest
from tests.flows.test_dvc_stage import project, reproduce  # noqa: F401  (a fixture)

from flows import dvc_lock, dvc_stage
from tcl_core.settings import yaml_format

WHOLE = "schema: '2.0'\nstages:\n  a:\n    cmd: c\n    outs:\n    - path: o\n      md5: m\n      size: 1\n"


@pytest.fixture
def lock(project):  # noqa: F811
    """As two stages left it, the last of which is not kept yet."""
    reproduce("good")
    (project / "stage.py").write_text((project / "stage.py").read_text() + "\n")
    (project / "dvc.yaml").write_text((project / "dvc.yaml").read_text().replace("deps: [data/models]", "deps: [stage.py]"))
    reproduce("early")
    return project / "dvc.lock"


def made(lock: str) -> dict[str, list[str]]:
    """Stage -> hashes of its outputs."""
    stages = yaml_format(round_trip=False).load(lock)["stages"]
    return {name: [out["md5"] for out in stage.get("outs", ())] for name, stage in stages.items()}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9], ids=str)
def test_a_stage_is_brought_up_to_date_whatever_is_left_of_the_lock(lock, share):
    whole = lock.read_text()
    cut = whole[: int(share * len(whole))]
    lock.write_text(cut)
    said = reproduce("early")
    assert "wrote out.txt" in said
    if "dvc.lock was damaged" in said:
        assert dvc_lock.DAMAGED.read_text() == cut
        assert reproduce("good") == "", "what the kept one knows is not made again"
    reproduce("good")
    assert made(lock.read_text()) == made(whole)


def test_some_of_them_were_damage(lock):
    """Half a lock may be a whole one of fewer stages, which needs no help."""
    lock.write_text(lock.read_text()[:30])
    assert "dvc.lock was damaged" in reproduce("early")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "schema: '2.0",
        "schema: '2.0'\nstages:\n  a:\n ",
        "stages: {a: {cmd: c, outs: [pa]}}\n",
        WHOLE[:-12],
        WHOLE[:-1],
        "stages: 7",
        "[]",
        "a: &a [*a]",
    ],
)
def test_half_a_lock_is_never_kept(project, text):  # noqa: F811
    dvc_stage.LOCKS.mkdir(parents=True)
    lock = project / "dvc.lock"
    lock.write_text(WHOLE)
    dvc_lock.keep()
    lock.write_text(text)
    dvc_lock.keep()
    assert dvc_lock.KEPT.read_text() == WHOLE
    assert dvc_lock.put_back() and lock.read_text() == WHOLE
    assert not dvc_lock.put_back()


def test_what_git_could_not_merge_is_left_to_the_user(lock):
    conflict = f"<<<<<<< ours\n{WHOLE}=======\n{WHOLE}>>>>>>> theirs\n"
    lock.write_text(conflict)
    with pytest.raises(dvc_stage.StageFailed, match="DVC cannot begin it .*dvc.lock' is invalid"):
        reproduce("early")
    assert lock.read_text() == conflict


def test_without_a_kept_one_the_sentence_names_the_lock(project):  # noqa: F811
    (project / "dvc.lock").write_text("schema: '2.0'\nstages:\n  a:\n ")
    with pytest.raises(dvc_stage.StageFailed, match="DVC cannot begin it .*dvc.lock' validation failed"):
        reproduce("good")

"""The stages tasks and candidates on tiny tasks: which tasks networks have, and a pool for each split."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tcl_core import store
from tcl_core.errors import DataError, UsageError
from tcl_core.stages.workspace import Workspace
from tests.commands import tcl
from tests.stages import tiny_project
from tests.stages.tiny_project import write_params

here, networks, pool = tiny_project.here, tiny_project.networks, tiny_project.pool


# --- tasks ---


def test_tasks_of_all_networks(here, networks, matmul, conv, softmax):
    assert tcl("tasks") == "3 distinct tasks of 3 networks"
    project = Workspace()
    assert project.tasks == [matmul.task, softmax.task, conv.task]
    keys = {matmul.task.key: "matmul", conv.task.key: "conv", softmax.task.key: "softmax"}
    assert [(r["network"], r["split"], keys[r["task_key"]], r["weight"]) for r in project.networks] == [
        ("a.pt2", "train", "matmul", 2),
        ("a.pt2", "train", "softmax", 1),
        ("b.pt2", "train", "conv", 1),
        ("b.pt2", "train", "matmul", 4),
        ("c.pt2", "held_out", "softmax", 3),
    ]
    assert project.task_weights("train") == {"a.pt2": {0: 2.0, 1: 1.0}, "b.pt2": {2: 1.0, 0: 4.0}}
    assert project.task_weights("held_out") == {"c.pt2": {1: 3.0}}


def test_one_networks_tasks_are_shown_heaviest_first_and_nothing_is_written(here, networks, matmul, conv):
    header, first, second = tcl("tasks", "b.pt2").splitlines()
    assert header.split() == ["task", "operator", "MFLOP", "weight", "name"]
    assert first.split() == [matmul.task.key, "matmul", "0.07", "4", matmul.task.name]
    assert second.split() == [conv.task.key, "conv2d", f"{conv.task.flops / 1e6:.2f}", "1", conv.task.name]
    assert not Path("data").exists()


# --- candidates ---


def test_a_pool_for_each_split(pool, matmul, conv, softmax):
    """What a held-out network also has is not trained on; both pools are encoded by one encoder."""
    project = Workspace()
    train, held_out = project.programs("train"), project.programs("held_out")
    assert Counter(p.task_key for p in train) == {matmul.task.key: 20, conv.task.key: 20}
    assert Counter(p.task_key for p in held_out) == {softmax.task.key: 6}
    assert {r["split"] for r in store.read_table(Workspace().pool / "train" / "programs.parquet", "programs")} == {"train"}
    assert {r["split"] for r in store.read_table(Workspace().pool / "held_out" / "programs.parquet", "programs")} == {"held_out"}
    samples = project.encoder.encode([(p.task_key, p.sketch, p.decisions) for p in (*train, *held_out)], (1.0,) * 11)
    assert len(samples) == 46 and set(samples.tasks.tolist()) == {0, 1, 2}


def test_the_same_parameters_give_the_same_pool(pool):
    before = store.data_digest(Workspace().pool)
    said = tcl("candidates")
    assert store.data_digest(Workspace().pool) == before
    assert said.startswith("train: 40 programs of 2 tasks, ") and "; held_out: 6 programs of 1 tasks, " in said
    write_params({"seed": 1})
    tcl("candidates")
    assert store.data_digest(Workspace().pool) != before


def test_a_network_in_both_roles_leaves_nothing_to_train_on_and_that_is_said(here, networks):
    write_params({"networks": {"train": ["c.pt2"], "held_out": ["a.pt2"]}})
    tcl("tasks")
    with pytest.raises(
        UsageError,
        match=r"^no task of networks\.train in params\.yaml is left to sample programs of: each is a held-out network's too, or has but",
    ):
        tcl("candidates")
    assert not Workspace().pool.exists()


def test_a_limit_takes_the_heaviest_tasks(pool, matmul, conv):
    """Each network's heaviest in turn: the first network's is the matmul, whose other task is held out."""
    write_params({"candidates.max_train_tasks": 1})
    tcl("candidates")
    assert {p.task_key for p in Workspace().programs("train")} == {matmul.task.key}


@pytest.mark.parametrize(
    ("stage", "missing"),
    [("candidates", "tasks"), ("collect", "candidates"), ("holdout", "candidates")],
)
def test_a_stage_names_the_one_before_it(here, stage, missing):
    with pytest.raises(DataError, match=f"the stage {missing} writes it: dvc repro {missing}"):
        tcl(stage)

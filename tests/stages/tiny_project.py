"""A project of three tiny tasks, whose platforms all run here and whose measuring process is in memory."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest

from tcl_core.checked import read_json
from tcl_core.journal import parse_line
from tcl_core.settings import read_yaml, yaml_format
from tcl_core.stages import candidates
from tcl_core.stages.workspace import Workspace
from tests.commands import tcl
from tests.shipped import SHIPPED

RECORDS, HOLDOUT = Workspace().records_folder("first"), Workspace().records_folder("first", "holdout")
JOURNAL, ROUNDS = Path("data/journal/collect/first"), Path("data/journal/collect/first/rounds.jsonl")
PARAMS = {
    "networks": {"train": ["a.pt2", "b.pt2"], "held_out": ["c.pt2"]},
    "platforms": {"first": {"mcpu": "nehalem"}, "second": {"mcpu": "haswell"}},
    "chain": {"first": "first", "then": {"second": {"prev": "first"}}},
    "candidates.max_train_tasks": 0,
    "candidates.programs_per_task": 20,
    "candidates.held_out_programs_per_task": 6,
    "measure.check_fraction": 0.5,
    "collect.rounds": 2,
    "collect.first_fraction": 0.5,
    "collect.fraction": 0.25,
    "collect.initial_share": 0.5,
    "collect.epochs": 1,
}


def write_params(changes):
    """The repository's params.yaml with other values at dotted keys."""
    document = read_yaml(SHIPPED, round_trip=True)
    for dotted, value in copy.deepcopy(PARAMS | changes).items():  # a change may be within what another key sets
        *sections, key = dotted.split(".")
        tree = document
        for section in sections:
            tree = tree[section]
        tree[key] = value
    with open("params.yaml", "wb") as file:
        yaml_format(round_trip=True).dump(document, file)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A folder of one's own to work in, where every platform can run and bandwidth is 12.5 GB/s."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # the lock is not that of real measurements
    monkeypatch.setattr("tcl_core.platforms.local.why_not", lambda mcpu: None)
    monkeypatch.setattr("tcl_core.stages.machine.copy_bandwidth_gbs", lambda: 12.5)
    monkeypatch.setattr("tcl_core.stages.machine.APART_S", 0.0)
    write_params({})
    return work


@pytest.fixture
def networks(monkeypatch, matmul, conv, softmax):
    """Two networks to train on, which share a task, and a held-out one, which shares one with the first."""
    found = {
        "a.pt2": [(matmul.task, 2), (softmax.task, 1)],
        "b.pt2": [(conv.task, 1), (matmul.task, 4)],
        "c.pt2": [(softmax.task, 3)],
    }
    monkeypatch.setattr(candidates, "extract_tasks", lambda network, graph: found[network])


MADE: list[Path] = []


@pytest.fixture
def pool(here, networks, tmp_path_factory):
    """Tasks and candidates, made once for all files of tests and copied."""
    if not MADE:
        tcl("tasks")
        tcl("candidates")
        MADE.append(Path(shutil.copytree("data", tmp_path_factory.mktemp("made") / "data")))
    else:
        shutil.copytree(MADE[0], "data")
    return here


def lines_of(path):
    return [parse_line(line) for line in path.read_bytes().splitlines(keepends=True)]


def report(platform="first"):
    return read_json(Path(f"data/reports/collect/{platform}.json"), "")


@pytest.fixture
def cannot_run(monkeypatch):
    """Say which CPU names this machine seems unable to run."""

    def say(*mcpus):
        monkeypatch.setattr("tcl_core.platforms.local.why_not", lambda mcpu: f"this CPU lacks {mcpu}" if mcpu in mcpus else None)

    return say

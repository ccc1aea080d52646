"""Two processes train as one does: the same curve and the same network, one writer, and no waiting for the dead."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trained_together
from trained_together import CASES, SETTINGS, MambaNetwork, Small, problem

from tcl_core import environment
from tcl_core.learning import distributed
from tcl_core.learning.fit import fit_network

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300


def start(way: str, folder: Path, rank: int, ports: list[int]) -> subprocess.Popen:
    launched = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0]}
    launched |= {"SECOND_PORT": ports[1], "TORCHELASTIC_RUN_ID": "test", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1}
    path = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "learning")))
    command = [sys.executable, trained_together.__file__, way, str(folder)]
    environment = os.environ | {name: str(value) for name, value in launched.items()} | {"PYTHONPATH": path}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def seen(way: str, folder: Path) -> list[dict]:
    """What each process saw.  The second one dies or falls silent in the end, so only the first is waited for."""
    with socket.socket() as one, socket.socket() as other:
        for probe in (one, other):
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in (one, other)]
    children = [start(way, folder, rank, ports) for rank in (0, 1)]
    try:
        _, said = children[0].communicate(timeout=LIMIT_S)
    finally:
        for child in children:
            child.kill()
            child.wait()
    files = [folder / f"{rank}.json" for rank in (0, 1)]
    assert children[0].returncode == 0 and all(file.exists() for file in files), said + children[1].stderr.read()
    return [json.loads(file.read_text()) for file in files]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory) -> list[dict]:
    return seen("scripts", tmp_path_factory.mktemp("scripts"))


@pytest.fixture(scope="module")
def helpers(tmp_path_factory) -> list[dict]:
    return seen("helpers", tmp_path_factory.mktemp("helpers"))


def assert_near(found: dict, expected: dict) -> None:
    assert found["kept"] == expected["kept"]
    for figures in ("losses", "scores"):
        np.testing.assert_allclose(found[figures], expected[figures], atol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_learn_what_one_does(scripts, case):
    alone = trained_together.fitted(**CASES[case])
    assert alone["losses"][-1] != pytest.approx(alone["losses"][0], abs=1e-3)  # or the next line would say nothing
    assert_near(scripts[0][case], alone)
    assert scripts[0][case] == scripts[1][case]  # to the last bit, or they would drift apart


def test_all_go_on_from_the_checkpoint_of_the_first_which_alone_writes_and_tells(scripts):
    assert_near(scripts[0]["resumed"], trained_together.fitted())
    assert scripts[0]["resumed"] == scripts[1]["resumed"]
    assert scripts[0]["heard"] == [1, 2, 3, 4, 5] and scripts[1]["heard"] == []
    assert scripts[0]["checkpoints"] == ["checkpoint.safetensors"]


def test_processes_with_different_data_are_told_so(scripts):
    for found in scripts:
        assert found["other data"].startswith("3 process 1 of 2 has another network, data, settings or code than process 0; ")


def test_who_does_not_answer_is_not_waited_for(scripts):
    assert scripts[0]["silence"].startswith("4 process 0 of 2 is without the others: one has ended or does not answer (")
    assert "silence" not in scripts[1]


def test_helpers_train_whatever_the_first_process_trains(helpers):
    assert_near(helpers[0]["taught"], trained_together.taught())
    assert_near(helpers[0]["mamba"], trained_together.fitted(MambaNetwork))
    assert_near(helpers[0]["after"], trained_together.fitted(**CASES["term of the parameters"]))
    assert helpers[0]["returned"] == "done" and helpers[1] == {"returned": None}


def test_a_loss_that_cannot_be_handed_over_is_refused_and_costs_nothing_else(helpers):
    assert helpers[0]["lambda"] == "2 this model's loss cannot be handed to other processes; train it without torchrun"


def test_the_death_of_a_helper_is_one_sentence(helpers):
    assert helpers[0]["death"].startswith("4 process 0 of 2 is without the others: one has ended or does not answer (")
    assert helpers[0]["death"].endswith("run the same command again, which goes on from the last checkpoint")


def test_without_a_group_nothing_is_shared(monkeypatch):
    monkeypatch.setattr(distributed.dist, "all_reduce", None)
    monkeypatch.setattr(distributed.dist, "all_gather", None)
    net = Small()
    assert len(fit_network(net, problem(), settings=SETTINGS).losses) == SETTINGS.epochs
    assert not net._forward_hooks and not net._forward_pre_hooks
    assert distributed.with_helpers(lambda: "done") == "done"


def test_only_torchrun_says_how_many_processes_there_are(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "8")  # of another launcher, such as a batch system's
    assert environment.processes() == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert environment.processes() == 8

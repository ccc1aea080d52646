from __future__ import annotations

from types import SimpleNamespace

import _kinds
import networks
import pytest
import torch
from networks import QUICK, Tuning, summary, table

from tcl_core.errors import PlatformError
from tcl_core.network_names import NETWORKS
from tcl_core.programs.graph import PREPARED
from tcl_core.programs.networks import import_network

FAST = {"network": "lstm", "tasks": 20, "untuned_ms": 5.0, "tuned_ms": 1.0, "pytorch_ms": 1.5, "ratio": 1.5}
SLOW = {**FAST, "network": "llama", "tuned_ms": 3.0, "ratio": 0.5}
UNTUNED = {"network": "levit", "tasks": 85, "why": "the tuned levit.pt2 differs"}
REFUSED = {"network": "mamba", "why": "TVM cannot import mamba.pt2"}


def test_the_kinds_are_21_and_none_is_a_named_network():
    assert len(_kinds.KINDS) == 21 and not _kinds.KINDS.keys() & NETWORKS.keys() and set(QUICK) <= _kinds.KINDS.keys()


@pytest.mark.parametrize("kind", list(_kinds.KINDS))
def test_each_kind_is_a_small_network_of_finite_output(kind):
    torch.manual_seed(0)
    network, inputs = _kinds.KINDS[kind]()
    with torch.inference_mode():
        output = network.eval()(*inputs)
    assert torch.isfinite(output).all() and output.std() > 0
    assert sum(p.numel() for p in network.parameters()) < 10e6


def test_what_is_exported_is_read_again(tmp_path):
    file = _kinds.export("dense", tmp_path)
    assert file == str(tmp_path / "dense.pt2")
    read = import_network(file, 1)
    assert [found.shape for found in read.outputs] == [(4, 8)]


def test_a_summary_by_hand():
    mean = pytest.approx(0.75**0.5)
    assert summary([FAST, SLOW, UNTUNED, REFUSED]) == {"times_pytorch": mean, "networks": 4, "cut": 3, "tuned": 2, "faster_than_pytorch": 1}
    assert summary([REFUSED])["times_pytorch"] is None


def test_the_table_says_why_not():
    lines = table([FAST, UNTUNED, REFUSED]).splitlines()
    assert lines[2:] == [
        "| lstm | 20 | 5.00 | 1.00 | 1.50 | 1.50 |  |",
        "| levit | 85 | - | - | - | - | the tuned levit.pt2 differs |",
        "| mamba | - | - | - | - | - | TVM cannot import mamba.pt2 |",
    ]


def tuning():
    return Tuning(PREPARED, None, (1.0,) * 11, None, 2, 0)


def test_a_network_that_cannot_be_tuned_is_a_row_with_one_sentence(monkeypatch):
    def refuse(file, *_):
        raise PlatformError(f"the tuned {file} differs from the reference by 0.3 of its magnitude; not used")

    monkeypatch.setattr(networks, "tune_network", refuse)
    said = "the tuned dense.pt2 differs from the reference by 0.3 of its magnitude; not used"
    assert tuning().row("dense") == {"network": "dense", "tasks": 1, "runs": 1, "why": said}


def test_what_tvm_cannot_compile_is_a_row_too(monkeypatch):
    def fail(*_):
        raise RuntimeError("Traceback\n  in codegen\nInternalError: no such instruction")

    monkeypatch.setattr(networks, "cut", lambda file, graph: {"tasks": 1, "runs": 1})
    monkeypatch.setattr(networks, "tune_network", fail)
    assert tuning().row("dense")["why"] == "TVM: InternalError: no such instruction"


def test_a_row_of_a_tuned_network(monkeypatch):
    tuned = SimpleNamespace(untuned_ms=4.0, tuned_ms=1.0, pytorch_ms=2.0, difference=1e-7, search_s=3.0)
    monkeypatch.setattr(networks, "cut", lambda file, graph: {"tasks": 1, "runs": 1})
    monkeypatch.setattr(networks, "tune_network", lambda *_: tuned)
    assert tuning().row("dense") == {"network": "dense", "tasks": 1, "runs": 1, **vars(tuned), "ratio": 2.0}

"""Which programs of a network are timed with cold weights."""

from __future__ import annotations

import pytest
import torch

from tcl_core.compat import make_target, quiet_compiler
from tcl_core.programs.graph import AS_GIVEN, PREPARED, fuse
from tcl_core.programs.networks import import_network
from tcl_core.programs.tasks import EXTRACTION_TARGET
from tcl_core.programs.weights import LARGE, is_large, weight_bytes
from tcl_core.tuning import network
from tcl_core.tuning.coldness import is_cold, own_cache_bytes

WIDE, NARROW = 4 * 256 * 128, 4 * 128 * 64  # bytes of the layers' weights


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    """A fused network: a layer of large weights, a softmax, a layer of small ones."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 128), torch.nn.Softmax(-1), torch.nn.Linear(128, 64)).eval()
    path = tmp_path_factory.mktemp("networks") / "layers.pt2"
    torch.export.save(torch.export.export(model, (torch.randn(8, 256),)), path)
    with quiet_compiler():
        return {graph: fuse(import_network(str(path)).module, make_target(EXTRACTION_TARGET), graph) for graph in (PREPARED, AS_GIVEN)}


def tunables(layers, graph=PREPARED):
    return network.tunables_of(layers[graph], EXTRACTION_TARGET)


def host(monkeypatch, l2_kib):
    monkeypatch.setattr(network, "host_fields", lambda: {"cores": 2, "threads": 2, "l2_kib": l2_kib})


def test_weights_are_what_may_be_packed(layers):
    """Rows of biases are not, and a softmax has none."""
    assert sorted(weight_bytes(each.module) for each in tunables(layers)) == [0, NARROW, WIDE]
    assert {weight_bytes(each.module) for each in tunables(layers, AS_GIVEN)} == {0}


def test_large_weights_are_cold_where_all_of_them_fit_no_cores_own_caches(layers, monkeypatch):
    host(monkeypatch, 70)  # twice that is less than both layers have
    assert NARROW < LARGE <= WIDE
    assert {weight_bytes(each.module) for each in tunables(layers) if each.cold} == {WIDE}
    host(monkeypatch, 100)
    assert not any(each.cold for each in tunables(layers))


def test_a_task_that_comes_often_has_weights_of_its_own_each_time(layers):
    wide = max((each.module for each in tunables(layers)), key=weight_bytes)
    assert is_large(wide) and is_cold([(wide, 3.0)], 2.5 * WIDE) and not is_cold([(wide, 2.0)], 2.5 * WIDE)


@pytest.mark.parametrize(
    ("cores", "threads", "caches"),
    [(4, 4, 4), (4, 8, 4), (8, 4, 4), (0, 4, 4)],
    ids=["alike", "two threads a core", "a few of them", "unknown"],
)
def test_threads_of_one_core_share_its_cache(cores, threads, caches):
    assert own_cache_bytes({"cores": cores, "threads": threads, "l2_kib": 512.0}) == caches * 512 * 1024


def test_a_machine_that_tells_no_cache_has_none():
    assert own_cache_bytes({"cores": 4, "threads": 4, "l2_kib": 0.0}) == 0

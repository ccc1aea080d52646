"""Products of awkward extents: the same values, on extents that a tiling can cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import output

from tcl_core.compat import make_target, quiet_compiler
from tcl_core.programs.graph import PREPARED, fuse
from tcl_core.programs.network_files import relax_from_exported
from tcl_core.programs.rounding import rounded
from tcl_core.programs.sketches import DesignSpace
from tcl_core.programs.tasks import describe, extract_tasks, fused_tasks

TARGET = {"kind": "llvm", "num-cores": 1}


@pytest.mark.parametrize(
    ("extents", "to"),
    [
        ((197, 384), (200, 384)),  # a prime
        ((197, 197), (200, 208)),
        ((577, 64), (584, 64)),
        ((128, 30522), (128, 30528)),  # 2 * 3 * 5087: pairs of columns
        ((1, 30522), (1, 30528)),
        ((128, 512), (128, 512)),
        ((49, 1000), (49, 1000)),  # sevens are tiles, eights are vectors
        ((1, 1000), (1, 1000)),
        ((13, 13), (13, 13)),  # few
        ((197, 33), (200, 33)),  # 200 x 48 would be 1.48 times the work
        ((34, 34), (34, 34)),  # 40 x 48 would be 1.66 times the work
    ],
)
def test_only_awkward_extents_are_rounded_up(extents, to):
    assert rounded(*extents) == to


class Products(torch.nn.Module):
    """Every kind of product: by a weight with what follows it, of two batches, of a batch with one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(24, 131)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(x @ y.transpose(-1, -2), dim=-1)
        return torch.nn.functional.gelu(self.linear(scores @ y)) + x @ y[0, 0].transpose(0, 1)


@pytest.fixture(scope="module")
def products() -> tuple[object, list[np.ndarray], np.ndarray]:
    torch.manual_seed(0)
    model, given = Products().eval(), [torch.randn(2, 3, 131, 24) for _ in range(2)]
    with torch.no_grad(), quiet_compiler():
        module = relax_from_exported(torch.export.export(model, tuple(given)), "network")
        return module, [each.numpy() for each in given], model(*given).numpy()


def test_the_values_stay(products):
    module, given, expected = products
    fused = fuse(module, make_target(TARGET), PREPARED)
    assert any("matmul" in str(name) for name in fused.functions)
    assert np.abs(output(fused, *given) - expected).max() < 1e-5


def _main_products(module, graph) -> list:
    with quiet_compiler():
        fused = fuse(module, make_target(TARGET), graph)
        return [each.dispatched[0] for each in fused_tasks(fused, make_target(TARGET)) if "matmul" in each.task_name]


def test_what_follows_a_product_stays_in_its_task(products):
    """As many tasks as without rounding, and the weight of 131 columns is rounded when the network is built, not when it runs."""
    module, _, _ = products
    plain, wider = (_main_products(module, replace(PREPARED, round_up=round_up)) for round_up in (False, True))
    assert len(plain) == len(wider)
    shapes = [[tuple(int(extent) for extent in parameter.shape) for parameter in task["main"].params] for task in wider]
    assert any((24, 144) in each for each in shapes)


def test_a_rounded_product_has_tilings_to_choose_from(products):
    """131 is a prime; 136 is 8 times 17."""
    module, _, _ = products

    def tiles(round_up: bool) -> set[int]:
        found: set[int] = set()
        for task in _main_products(module, replace(PREPARED, round_up=round_up)):
            for sketch in DesignSpace(describe("matmul", task).key, task, TARGET).sketches():
                for slot in sketch.slots:
                    found |= set(slot.choices[:, -1].tolist()) if slot.kind == "tile" else set()
        return found

    assert 17 in tiles(True) and 17 not in tiles(False)


def test_a_vision_transformers_products_are_rounded():
    products = [task.module().script() for task, _ in extract_tasks("vit-tiny", PREPARED) if task.operator == "matmul"]
    assert sum("matmul_cut" in product for product in products) >= 5

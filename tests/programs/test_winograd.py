"""Winograd's convolutions: the values of the plain ones, where they pay, and schedules that TVM accepts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import output

from tcl_core.compat import make_target, quiet_compiler
from tcl_core.programs.graph import PREPARED, fuse
from tcl_core.programs.network_files import relax_from_exported
from tcl_core.programs.sketches import DesignSpace
from tcl_core.programs.tasks import describe, fused_tasks
from tcl_core.programs.winograd import matrices, tile_of

TARGET = {"kind": "llvm", "num-cores": 1}


@pytest.mark.parametrize("m", [2, 4])
def test_one_tile_is_the_sum_over_the_filter(m):
    """By hand: y[i] is the sum over j of d[i + j] g[j]."""
    a, b, g = matrices(m)
    rng = np.random.default_rng(0)
    d, f = rng.normal(size=m + 2), rng.normal(size=3)
    assert a.T @ ((g @ f) * (b.T @ d)) == pytest.approx([d[i : i + 3] @ f for i in range(m)], abs=1e-12)


def test_the_matrices_of_the_smallest_algorithm_are_those_of_the_paper():
    """F(2, 3) of Lavin and Gray, equation 7, but for signs that cancel: rows of G and columns of B are of one point."""
    a, b, g = matrices(2)
    assert g.tolist() == [[-1, 0, 0], [0.5, -0.5, 0.5], [0.5, 0.5, 0.5], [0, 0, 1]]
    assert a.T.tolist() == [[1, 1, 1, 0], [0, -1, 1, 1]]
    assert b.T.tolist() == [[-1, 0, 1, 0], [0, -1, 1, 0], [0, 1, 1, 0], [0, -1, 0, 1]]


@pytest.mark.parametrize(
    ("convolution", "m"),
    [
        ((56, 56, 64, 64), 4),
        ((28, 28, 128, 128), 4),
        ((14, 14, 256, 256), 2),
        ((14, 14, 128, 128), None),
        ((7, 7, 512, 512), None),  # four tiles: filters of 9 MB would become 38
        ((224, 224, 3, 64), None),
        ((56, 56, 32, 32), None),
    ],
)
def test_where_it_pays(convolution, m):
    assert tile_of(*convolution) == m


class Convolutions(torch.nn.Module):
    """Both algorithms, an output that no tile divides, uneven padding, what follows; and convolutions that stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.four = torch.nn.Conv2d(64, 64, 3, padding=1)
        self.two = torch.nn.Conv2d(64, 256, 1)
        self.small = torch.nn.Conv2d(256, 256, 3, padding=1, bias=False)
        self.strided = torch.nn.Conv2d(64, 64, 3, stride=2)
        self.grouped = torch.nn.Conv2d(64, 64, 3, groups=2)
        self.dilated = torch.nn.Conv2d(64, 64, 3, dilation=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = torch.relu(self.four(torch.nn.functional.pad(x, (0, 1, 2, 0)))) + 1
        y = self.small(self.two(torch.nn.functional.avg_pool2d(x, 2)))
        return y.mean((1, 2, 3)) + self.strided(x).mean() + self.grouped(x).mean() + self.dilated(x).mean() + x.mean((1, 2, 3)), y


@pytest.fixture(scope="module")
def convolutions() -> tuple[object, np.ndarray, np.ndarray]:
    torch.manual_seed(0)
    model, x = Convolutions().eval(), torch.randn(1, 64, 22, 22)
    with torch.no_grad(), quiet_compiler():
        return relax_from_exported(torch.export.export(model, (x,)), "network"), x.numpy(), model(x)[0].numpy()


def tasks_of(module, graph) -> list:
    with quiet_compiler():
        fused = fuse(module, make_target(TARGET), graph)
        return [each.dispatched[0] for each in fused_tasks(fused, make_target(TARGET)) if "winograd" in each.task_name]


def test_the_values_stay(convolutions):
    module, x, expected = convolutions
    fused = fuse(module, make_target(TARGET), PREPARED)
    assert output(fused, x) == pytest.approx(expected, rel=1e-4)


def test_only_what_gains_is_replaced(convolutions):
    """Of five 3x3 convolutions the first and, since 11 x 11 outputs have 36 tiles of two, the one of 256 channels."""
    module, _, _ = convolutions
    assert len(tasks_of(module, PREPARED)) == 2
    assert not tasks_of(module, replace(PREPARED, winograd=False)) and not tasks_of(module, replace(PREPARED, layout="NCHW"))


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "llvm", "num-cores": 2},
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 4},
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 4, "keys": ["arm_cpu", "cpu"]},
    ],
    ids=str,
)
def test_programs_are_drawn_and_replayed(convolutions, target):
    module, _, _ = convolutions
    for task in tasks_of(module, PREPARED):
        space = DesignSpace(describe("conv2d_winograd", task).key, task, target)
        sketches = space.sketches()
        assert sketches and describe("conv2d_winograd", task).operator == "conv2d"
        for sketch in sketches:
            (decisions,) = sketch.sample(1, np.random.default_rng(0))
            assert space.materialise(sketch, decisions.tolist())

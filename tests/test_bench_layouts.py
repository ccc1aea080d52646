"""The comparison of data layouts: what it measures, and what it makes of that."""

from __future__ import annotations

import math

import pytest
from layouts import KINDS, LAYERS, NCHW, NHWC, QUICK, Layer, graphs, ratios, table

from tcl_core.programs.graph import PREPARED
from tcl_core.programs.pool import argument_types


def unit(kind, layer, seed, nchw, nhwc):
    return {"kind": kind, "layer": layer, "seed": seed, "best_s": {NCHW: nchw, NHWC: nhwc}}


UNITS = [
    unit("3x3", "a", 0, 4e-3, 1e-3), unit("3x3", "b", 0, 1e-3, 1e-3), unit("3x3", "a", 1, 2e-3, 1e-3), unit("3x3", "b", 1, 2e-3, 1e-3),
    unit("grouped", "c", 0, 1e-3, 4e-3), unit("grouped", "c", 1, None, 4e-3),
]  # fmt: skip


def test_a_kinds_ratio_is_a_geometric_mean_over_its_layers():
    found = ratios(UNITS)
    assert found["3x3"] == pytest.approx([2.0, 2.0, 2.0])  # both seeds' means are 2
    assert found["grouped"] == [pytest.approx(0.25), None, None]  # one seed found programs of both layouts
    mean, low, high = ratios([*UNITS, unit("3x3", "a", 2, 8e-3, 1e-3)])["3x3"]
    assert mean == pytest.approx(math.exp(math.log(2 * 2 * 8) / 3)) and low < 2 < mean < high


def test_the_table_has_each_layer_and_kind():
    _, _, *rows = table(UNITS).splitlines()
    assert rows == [
        "| a | 3.000 | 1.000 | 2.83 |",
        "| b | 1.500 | 1.000 | 1.41 |",
        "| **3x3** |  |  | **2.00** (2.00 to 2.00) |",
        "| c | 1.000 | 4.000 | 0.25 |",
        "| **grouped** |  |  | **0.25** |",
    ]


@pytest.mark.parametrize("groups", [1, 16])
def test_a_layer_in_two_layouts_is_two_tasks_of_equal_work(groups):
    """The convolution alone: what moves data between layouts is a task of its own."""
    layer = Layer("3x3", "none", 16, 16, 8, groups=groups)
    tasks = layer.tasks(graphs(PREPARED))
    shapes = {layout: [shape for shape, _ in argument_types(task.module())][:2] for layout, task in tasks.items()}
    of_each = 16 // groups
    assert shapes == {NCHW: [(1, 16, 8, 8), (16, of_each, 3, 3)], NHWC: [(1, 8, 8, 16), (3, 3, of_each, 16)]}
    assert tasks[NCHW].flops == tasks[NHWC].flops > 2 * 8 * 8 * 16 * of_each * 9


def test_layers_are_named_apart_and_quick_has_each_kind():
    assert len({layer.name for layer in LAYERS}) == len(LAYERS)
    assert tuple(layer.kind for layer in QUICK.layers) == KINDS

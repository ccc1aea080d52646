"""Which programs add up in registers."""

from __future__ import annotations

import numpy as np
import pytest

from tcl_core.programs.registers import blocks_of, in_registers, split_well
from tcl_core.programs.sketches import DesignSpace
from tcl_core.programs.tasks import EXTRACTION_TARGET, describe
from tcl_core.tuning.schedules import ScheduleSearch, SearchSettings
from tests.conftest import TinyTask, matmul_module

AVX512, AVX2, SSE = 64, 32, 16


@pytest.fixture(scope="module")
def sketches(tiny_tasks):
    return {
        name: DesignSpace(tiny.task.key, tiny.module, EXTRACTION_TARGET).sketches()
        for name, tiny in tiny_tasks.items() if name in ("matmul", "conv", "softmax")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "columns", "fit"),
    [
        (6, 64, {AVX512}),  # 24 vectors of 16; of 8 they are 48
        (14, 32, {AVX512}),  # 28
        (15, 32, set()),  # 30: nothing left for operands
        (1, 64, {AVX2}),  # 4 of 16: too few to keep two units busy; 8 of 8; 16 of 4
        (6, 16, {AVX2}),  # BLIS's block on such CPUs: 12
        (1, 16, {SSE}),  # 4 of 4
        (6, 24, set()),  # no whole vectors of 16; 18 of 8
        (2, 24, set()),  # 6 of 8, but three of them side by side are no power of two
        (9, 8, {AVX2}),  # 9
        (4, 3, set()),
    ],
)
def test_blocks_of_whole_vectors_that_leave_room(rows, columns, fit):
    decisions = np.array([[1, 1, 1, rows, 2, 2, 2, columns, 8, 4]], dtype=np.int32)
    assert {width for width in (AVX512, AVX2, SSE) if in_registers([(3, 7)], decisions, width)[0]} == fit


@pytest.mark.parametrize(
    ("columns", "split"),
    [
        (64, {AVX512, AVX2, SSE}),
        (24, set()),  # a vector of 16 and a half; three of 8; six of 4
        (12, {AVX512}),  # a part of one
        (16, {AVX512, AVX2, SSE}),
        (36, set()),
        (4, {AVX512, AVX2, SSE}),
        (6, {AVX512, AVX2}),
        (48, set()),
    ],
)
def test_columns_are_a_part_of_a_vector_or_a_power_of_two_of_whole_ones(columns, split):
    decisions = np.array([[1, 1, 1, 3, 2, 2, 2, columns, 8, 4]], dtype=np.int32)
    assert {width for width in (AVX512, AVX2, SSE) if split_well([(3, 7)], decisions, width)[0]} == split


def test_where_no_block_fills_registers_a_search_leans_to_columns_that_split_well():
    """24 channels: no whole vectors of 16."""
    task = TinyTask(describe("fused_matmul", matmul_module(24, 24, 24)))
    target = {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2}
    search = ScheduleSearch(task.task, None, (1.0,) * 11, target, SearchSettings(lean=1.0))
    sketch = search.sketches[0]
    drawn = np.array([decisions for index, decisions in search._random(600) if index == 0])
    (block,) = blocks_of(sketch)
    assert not in_registers([block], drawn, AVX512).any()
    assert len(drawn) > 50 and set(drawn[:, block[-1]]) == {1, 2, 3, 4, 6, 8, 12}
    assert search.leans(sketch, drawn).all() and 24 in sketch.sample(2000, np.random.default_rng(0))[:, block[-1]]


def test_of_several_nests_all_blocks_are_asked():
    decisions = np.array([[6, 64, 6, 64], [6, 64, 1, 1]], dtype=np.int32)
    assert in_registers([(0, 1), (2, 3)], decisions, AVX512).tolist() == [True, False]
    assert in_registers([], decisions, AVX512).tolist() == [True, True]


def test_the_blocks_are_the_innermost_factors_of_the_spatial_axes(sketches):
    """Of a product rows and columns; of a convolution images, rows, columns and channels, and vectors along the last."""
    for name, axes in (("matmul", 2), ("conv", 4)):
        for sketch in sketches[name]:
            (block,) = blocks_of(sketch)
            tiled = [slot for slot in sketch.slots if slot.kind == "tile" and slot.width == 4]
            assert len(block) == axes and block == tuple(slot.offset + 3 for slot in tiled)
    assert not any(blocks_of(sketch) for sketch in sketches["softmax"])  # tiled on no axis


def test_most_draws_of_a_search_add_up_in_registers(matmul):
    """32 x 32 x 32, under AVX2's 16 registers; a search told not to lean draws some in a hundred."""
    target = {"kind": "llvm", "mcpu": "haswell", "num-cores": 2}
    shares = {}
    for lean in (0.0, 0.9):
        search = ScheduleSearch(matmul.task, None, (1.0,) * 11, target, SearchSettings(lean=lean))
        drawn = search._random(300)
        fit = [in_registers(blocks_of(search.sketches[index]), np.array([decisions]), AVX2)[0] for index, decisions in drawn]
        shares[lean] = np.mean(fit)
    assert shares[0.0] < 0.3 < 0.8 < shares[0.9]

from __future__ import annotations

import numpy as np
import pytest

from tcl_core.compat import load_tvm
from tcl_core.programs.primitives import Hole, sketch_primitives, trace_primitives
from tcl_core.programs.workload import read_workload

# --- workload ---


def test_the_blocks_of_a_matmul(matmul):
    workload = matmul.workload
    assert [block.name for block in workload.blocks] == ["matmul", "relu"]
    assert workload.anchor.name == "matmul" and workload.anchor.iterations == 32**3
    assert workload.anchor.reduces.tolist() == [False, False, True]
    assert workload.flops == 2 * 32**3 + 32**2
    assert workload.argument_bytes == 3 * 32 * 32 * 4
    assert workload.block("relu").extents.tolist() == [32, 32]
    assert workload.block("nothing") is None


def test_the_strides_of_a_matmul_by_hand(matmul):
    """C[i, j] += A[i, k] * B[k, j], row-major: how far one step of i, j, k moves in each."""
    written, a, b = matmul.workload.anchor.accesses
    assert written.strides.tolist() == [32, 1, 0]
    assert a.strides.tolist() == [32, 0, 1]
    assert b.strides.tolist() == [0, 1, 32]


def test_the_footprint_of_a_matmul_tile_by_hand(matmul):
    """A tile of i=4, j=8, k=2 touches 4 x 8 of C, 4 x 2 of A and 2 x 8 of B, floats of four bytes."""
    tiles = np.array([[4, 8, 2], [1, 1, 1], [32, 32, 32], [64, 1, 1]])
    written, a, b = (access.footprint_bytes(tiles).tolist() for access in matmul.workload.anchor.accesses)
    assert written == [4 * 8 * 4, 4, 4096, 32 * 4]  # never more than the buffer has
    assert a == [4 * 2 * 4, 4, 4096, 32 * 4]
    assert b == [2 * 8 * 4, 4, 4096, 4]


def test_cache_lines_begin_where_a_run_of_elements_does(matmul):
    """Of 32 x 32 floats, two lines a row: a tile of whole rows is one run, of half rows one per row, of a column likewise."""
    written = matmul.workload.anchor.accesses[0]
    tiles = np.array([[4, 32, 1], [4, 16, 1], [4, 8, 1], [4, 20, 1], [32, 1, 1], [1, 1, 1]])
    assert written.lines(tiles, 64).tolist() == [8, 4, 4, 8, 32, 1]


def test_the_footprint_of_a_convolution_overlaps(conv):
    """A 4 x 4 output tile with a whole 3 x 3 kernel reads 6 x 6 of the padded input, times the channels."""
    anchor = conv.workload.anchor
    assert anchor.name == "conv2d_nchw" and anchor.extents.tolist() == [1, 16, 8, 8, 8, 3, 3]
    assert anchor.reduces.tolist() == [False] * 4 + [True] * 3
    written, data, weight = anchor.accesses
    tile = np.array([1, 2, 4, 4, 8, 3, 3])
    assert written.footprint_bytes(tile) == 2 * 4 * 4 * 4
    assert data.footprint_bytes(tile) == 8 * 6 * 6 * 4
    assert weight.footprint_bytes(tile) == 2 * 8 * 3 * 3 * 4
    assert data.strides.tolist() == [800, 0, 10, 1, 100, 10, 1]  # the padded input is 8 x 10 x 10
    assert weight.strides.tolist() == [0, 72, 0, 0, 9, 3, 1]


def test_the_anchor_is_a_reduction_where_there_is_one(softmax):
    assert softmax.workload.anchor.reduces.any()
    assert [b.name for b in softmax.workload.blocks if b.reduces.any()] == ["T_softmax_maxelem", "T_softmax_expsum"]


def test_a_strided_access():
    """y[i] = x[2 * i + 1]: one step of the axis moves two elements; a tile of 4 spans 7."""
    tvm = load_tvm()
    from tvm import te

    x = te.placeholder((64,), name="x", dtype="int8")
    y = te.compute((16,), lambda i: x[2 * i + 1], name="y")
    workload = read_workload("elementwise", 0.0, tvm.IRModule({"main": te.create_prim_func([x, y])}))
    written, read = workload.anchor.accesses
    assert (written.strides.tolist(), read.strides.tolist()) == ([1], [2])
    assert read.element_bytes == 1
    assert read.footprint_bytes(np.array([4])) == 7
    assert workload.argument_bytes == 64 + 16


def test_an_index_that_is_not_linear():
    """A reshape divides and takes remainders: the coefficient is what the first step does, never an exception."""
    tvm = load_tvm()
    from tvm import te

    x = te.placeholder((4, 16), name="x")
    y = te.compute((64,), lambda i: x[i // 16, i % 16], name="y")
    workload = read_workload("elementwise", 0.0, tvm.IRModule({"main": te.create_prim_func([x, y])}))
    assert workload.anchor.accesses[1].coefficients.tolist() == [[0], [1]]


# --- primitives ---


@pytest.mark.parametrize("name", ["matmul", "conv", "softmax"])
def test_a_sketch_filled_in_is_the_trace_read_literally(tiny_tasks, name):
    """Every hole, looked up in the decisions, is the number that the filled trace states."""
    tiny = tiny_tasks[name]
    for sketch in tiny.sketches:
        template = sketch_primitives(sketch, tiny.workload)
        for decisions in tiny.sample(sketch, 3):
            canonical = tiny.space.canonical(sketch, decisions)
            literal = trace_primitives(tiny.space.materialise(sketch, canonical).trace, tiny.workload)
            assert [(p.kind, p.block, p.key) for p in template] == [(p.kind, p.block, p.key) for p in literal]
            for hole, number in zip(template, literal, strict=True):
                assert tuple(filled(n, canonical) for n in hole.numbers) == number.numbers
                for left, right in zip(hole.loops, number.loops, strict=True):
                    assert (left.block, left.axis) == (right.block, right.axis)
                    assert filled(left.extent, canonical) == right.extent
                    assert left.location is None or filled(left.location, canonical) == right.location


def filled(number, decisions):
    if not isinstance(number, Hole):
        return number
    value = int(decisions[number.column])
    return value if number.table is None else number.table[value]


def test_the_primitives_of_a_matmul(matmul):
    """The sketch without caching: three splits of named axes, one reorder of ten loops, the annotations."""
    sketch = matmul.sketches[-1]
    found = sketch_primitives(sketch, matmul.workload)
    splits = [p for p in found if p.kind == "Split"]
    assert [(p.loops[0].block, p.loops[0].axis, p.loops[0].extent) for p in splits] == [
        ("matmul", 0, 32),
        ("matmul", 1, 32),
        ("matmul", 2, 32),
    ]
    assert [[n.column for n in p.numbers] for p in splits] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    (reorder,) = [p for p in found if p.kind == "Reorder"]
    assert [loop.axis for loop in reorder.loops] == [0, 1, 0, 1, 2, 0, 1, 2, 0, 1]
    annotated = {p.key: p.numbers for p in found if p.kind == "Annotate"}
    assert annotated["meta_schedule.parallel"] == (Hole(10),)
    assert annotated["meta_schedule.unroll_explicit"] == (Hole(11, (0, 16, 64, 512)),)
    assert annotated["meta_schedule.vectorize"] == (64,)


def test_a_split_that_leaves_one_factor_open(matmul):
    """As cross-thread reductions have it: what is left stands in its place as 0, and the known one is the inner loop's."""
    schedule = load_tvm().s_tir.Schedule(matmul.module)
    outer, inner = schedule.split(schedule.get_loops(schedule.get_sblock("matmul"))[2], [None, 8])
    schedule.reorder(outer, inner)
    split, reorder = [p for p in trace_primitives(schedule.trace, matmul.workload) if p.kind in ("Split", "Reorder")]
    assert split.numbers == (0, 8) and [(loop.extent, loop.part) for loop in reorder.loops] == [(1, 1), (8, 2)]

"""What annotations make of loops: by hand, and as TVM's own passes rewrite the same programs."""

from __future__ import annotations

import numpy as np
import pytest

from tcl_core.compat import load_tvm
from tcl_core.features.nest import Nest, values_of
from tcl_core.programs.primitives import sketch_primitives

BY_HAND = [2, 4, 2, 2, 1, 2, 4, 4, 8, 4, 16, 0]  # i: 2 4 2 2, j: 1 2 4 4, k: 8 4 of i0 j0 i1 j1 k0 i2 j2 k1 i3 j3


def nest_of(tiny, sketch, decisions):
    return Nest.of(sketch_primitives(sketch, tiny.workload), tiny.workload, np.array(decisions))


def annotated(tiny, sketch, decisions, name):
    """(N,) iterations that the annotation ``name`` takes hold of, by our count."""
    primitives = sketch_primitives(sketch, tiny.workload)
    (found,) = [p for p in primitives if p.kind == "Annotate" and p.key.endswith(name)]
    return nest_of(tiny, sketch, decisions).reach(found.key, values_of(found.numbers[0], decisions))


def loops_of(schedule, name):
    """The loops around the block that updates: (extent, kind)."""
    try:
        block = schedule.get_sblock(f"{name}_update")
    except Exception:  # nothing was decomposed
        block = schedule.get_sblock(name)
    return [(int(loop.extent), int(loop.kind)) for loop in map(schedule.get, schedule.get_loops(block))]


def drawn(tiny, sketch, count=6):
    return np.array([tiny.space.canonical(sketch, d) for d in tiny.sample(sketch, count, seed=7)])


def test_by_hand(matmul):
    """Loops run in parallel up to the one that passes the limit, or under which the epilogue is computed too; the vector is what walks
    through memory without a jump; what is unrolled lies around it."""
    plain, inner, outer = matmul.sketches
    (limits,) = np.array([[15, 1, 64]])
    nest = nest_of(matmul, plain, [BY_HAND] * 3)
    assert nest.extents[0].tolist() == [2, 1, 4, 2, 8, 2, 4, 4, 2, 4]
    assert nest.reach("meta_schedule.parallel", limits).tolist() == [16, 2, 16]  # k0 is a reduction
    assert nest.reach("meta_schedule.vectorize", limits).tolist() == [4, 4, 4]
    assert nest.reach("meta_schedule.unroll_explicit", limits).tolist() == [8, 1, 64]  # k1 i3, none, j2 of j2 k1 i3 too with i2
    assert nest_of(matmul, inner, [BY_HAND] * 3).shared.max(axis=1).tolist() == [3, 3, 3]  # under j1
    shared = nest_of(matmul, outer, [BY_HAND] * 3)
    assert shared.shared.max(axis=1).tolist() == [1, 1, 1]  # under j0
    assert shared.reach("meta_schedule.parallel", limits).tolist() == [2, 2, 2]


def test_tiles_that_meet_become_one_vector(matmul):
    """i3 is 1, or j3 covers a whole row, so that rows follow each other; but the column of A that i walks through does not."""
    nest = nest_of(matmul, matmul.sketches[0], [[2, 4, 4, 1, 1, 1, 4, 8, 8, 4, 16, 0], [2, 4, 2, 2, 1, 1, 1, 32, 8, 4, 16, 0]])
    assert nest.reach("meta_schedule.vectorize", np.zeros(2)).tolist() == [8, 32]


@pytest.mark.parametrize("name", ["matmul", "conv"])
def test_what_runs_in_parallel_and_what_becomes_a_vector_is_what_tvm_makes_of_it(tiny_tasks, name):
    tiny = tiny_tasks[name]
    for sketch in tiny.sketches:
        decisions = drawn(tiny, sketch)
        loops = [loops_of(tiny.space.materialise(sketch, vector), tiny.workload.anchor.name) for vector in decisions]
        for kind, what in ((1, "parallel"), (2, "vectorize")):
            made = [int(np.prod([extent for extent, found in around if found == kind])) for around in loops]
            assert annotated(tiny, sketch, decisions, what).tolist() == made, (sketch.index, what)


def test_a_row_that_is_only_read_through(tiny_elementwise):
    """Where every loop could be the vector, TVM fuses them all and cuts the vectors off: the rest runs in parallel."""
    (sketch,) = tiny_elementwise.sketches[:1]
    decisions = drawn(tiny_elementwise, sketch, 1)
    around = loops_of(tiny_elementwise.space.materialise(sketch, decisions[0]), tiny_elementwise.workload.anchor.name)
    assert [kind for _, kind in around] == [1, 2]
    assert annotated(tiny_elementwise, sketch, decisions, "parallel").tolist() == [around[0][0]]


def test_what_is_unrolled_is_what_tvm_leaves_without_loops(matmul):
    """After its passes the store of the product is there as often as the loops that are gone had iterations."""
    tvm = load_tvm()
    lowering, lowered = tvm.s_tir.transform, tvm.tirx.transform
    names = ("LowerInitBlock", "PlanAndUpdateBufferAllocationLocation", "ConvertBlocksToOpaque", "CompactBufferAllocation",
             "LowerMatchBuffer", "LowerOpaqueBlock", "FlattenBuffer", "StmtSimplify", "VectorizeLoop", "UnrollLoop")  # fmt: skip
    sketch = matmul.sketches[0]
    decisions = drawn(matmul, sketch, 12)
    around = [loops_of(matmul.space.materialise(sketch, vector), matmul.workload.anchor.name) for vector in decisions]
    for vector, mine, loops in zip(decisions, annotated(matmul, sketch, decisions, "unroll_explicit"), around, strict=True):
        module = matmul.space.materialise(sketch, vector).mod
        for name in names:
            module = getattr(lowering if hasattr(lowering, name) else lowered, name)()(module)
        products = sum("A_1[" in line and "B_1[" in line for line in module.script().splitlines())
        assert products == mine, (vector, loops)

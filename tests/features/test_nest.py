"""What annotations make of loops: by hand, and as TVM's own passes rewrite the same programs."""

from __future__ import annotations

import numpy as np
import pytest

from tcl_core.compat import load_tvm
from tcl_core.features.layout import LOCATED
from tcl_core.features.nest import Nest, values_of
from tcl_core.platforms import pool_target
from tcl_core.programs.primitives import sketch_primitives
from tcl_core.programs.sketches import DesignSpace
from tcl_core.programs.tasks import describe
from tests.conftest import TinyTask, matmul_module

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
    assert nest.reach("meta_schedule.unroll_explicit", np.full(3, 2048)).tolist() == [512] * 3  # k0 too, but none that runs in parallel
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


def stores_of_products(module):
    """How often the product of A and B is stored after TVM's passes: as often as the loops that are gone had iterations."""
    tvm = load_tvm()
    lowering, lowered = tvm.s_tir.transform, tvm.tirx.transform
    names = ("LowerInitBlock", "PlanAndUpdateBufferAllocationLocation", "ConvertBlocksToOpaque", "CompactBufferAllocation",
             "LowerMatchBuffer", "LowerOpaqueBlock", "FlattenBuffer", "StmtSimplify", "VectorizeLoop", "UnrollLoop")  # fmt: skip
    for name in names:
        module = getattr(lowering if hasattr(lowering, name) else lowered, name)()(module)
    return sum("A_1[" in line and "B_1[" in line for line in module.script().splitlines())


def test_what_is_unrolled_is_what_tvm_leaves_without_loops(matmul):
    sketch = matmul.sketches[0]
    decisions = drawn(matmul, sketch, 12)
    around = [loops_of(matmul.space.materialise(sketch, vector), matmul.workload.anchor.name) for vector in decisions]
    for vector, mine, loops in zip(decisions, annotated(matmul, sketch, decisions, "unroll_explicit"), around, strict=True):
        assert stores_of_products(matmul.space.materialise(sketch, vector).mod) == mine, (vector, loops)


def depthwise_module():
    """A depthwise 3 x 3 convolution, whose result is 14 x 14 x 384."""
    tvm = load_tvm()
    from tvm import te

    a, b = te.placeholder((1, 16, 16, 384), name="A"), te.placeholder((3, 3, 384), name="B")
    y, x = te.reduce_axis((0, 3), name="y"), te.reduce_axis((0, 3), name="x")
    out = te.compute((1, 14, 14, 384), lambda n, i, j, c: te.sum(a[n, i + y, j + x, c] * b[y, x, c], axis=[y, x]), name="depthwise")
    return tvm.IRModule({"main": te.create_prim_func([a, b, out])})


def test_what_runs_in_parallel_is_not_unrolled():
    """With the limit of 16 cores all loops down to c1 run in parallel; the other 3 * 3 * 7 iterations are unrolled, not 6 times as many."""
    tiny = TinyTask(describe("depthwise", depthwise_module()))
    sketch = next(s for s in tiny.sketches if not any(p.kind in LOCATED for p in sketch_primitives(s, tiny.workload)))
    n, oh, ow, c, kernel, limits = [1, 1, 1, 1], [2, 7, 1, 1], [2, 1, 7, 1], [4, 6, 1, 16], [3, 1, 3, 1], [256, 3]
    decisions = np.array([[*n, *oh, *ow, *c, *kernel, *limits]])
    assert annotated(tiny, sketch, decisions, "parallel").tolist() == [672]
    assert annotated(tiny, sketch, decisions, "unroll_explicit").tolist() == [63]
    assert stores_of_products(tiny.space.materialise(sketch, decisions[0]).mod) == 63


def test_threads_of_a_gpu_are_not_unrolled():
    """Its 8 x 4 threads are no iterations of the loops inside, which are a reduction of 8."""
    tiny = TinyTask(describe("fused_matmul_relu", matmul_module(64, 64, 8)))
    sketch = DesignSpace(tiny.task.key, tiny.module, pool_target("cuda", 1)).sketches()[0]
    decisions, tiles = tiny.sample(sketch, 1), [slot for slot in sketch.slots if slot.kind == "tile"]
    for slot, factors in zip(tiles, ([8, 1, 8, 1, 1], [16, 1, 4, 1, 1], [2, 2, 2]), strict=True):
        decisions[:, slot.columns] = factors
    nest = nest_of(tiny, sketch, decisions)
    assert nest.extents.tolist() == [[8, 16, 1, 1, 8, 4, 2, 2, 1, 1, 2, 1, 1]]
    assert nest.reach("meta_schedule.unroll_explicit", np.array([512])).tolist() == [8]

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from tcl_core.compat import load_tvm
from tcl_core.features.layout import (
    ALL_OPERATORS,
    ANNOTATE,
    ANNOTATIONS,
    HARDWARE as HARDWARE_COLUMNS,
    KINDS,
    LEVEL,
    LOCATION,
    LOOPS,
    NUMBERS,
    PRIMITIVE,
    SPLIT,
    WIDTH,
    WORKLOAD,
    kinds_of,
    log2p,
    numbers_of,
)
from tcl_core.features.tokens import IGNORED, program_tokens
from tcl_core.platforms import Hardware
from tcl_core.programs.primitives import Loop, Primitive, sketch_primitives, trace_primitives

HARDWARE = (4.0, 8.0, 3.5, 0.0, 32.0, 1024.0, 8192.0, 0.0, 15.5, 20.0, 64.0)
NO_DECISIONS = np.zeros((1, 0), dtype=np.int32)


def rows_of(tokens, kind):
    """The numbers of the rows of one kind, in order."""
    return numbers_of(tokens[tokens[:, KINDS.index(kind)] == 1])


def tokens_of(tiny, sketch, decisions):
    return program_tokens(sketch_primitives(sketch, tiny.workload), tiny.workload, HARDWARE, np.array(decisions))


@pytest.mark.parametrize("name", ["matmul", "conv", "softmax"])
def test_the_template_equals_the_literal_reading(tiny_tasks, name):
    """Scattering decisions into a sketch's template gives what reading each replayed trace gives."""
    tiny = tiny_tasks[name]
    for sketch in tiny.sketches:
        decisions = np.stack([tiny.space.canonical(sketch, d) for d in tiny.sample(sketch, 4)])
        fast = tokens_of(tiny, sketch, decisions)
        assert fast.dtype == np.float32 and fast.shape[0] == 4 and fast.shape[2] == WIDTH
        for row, vector in zip(fast, decisions, strict=True):
            trace = tiny.space.materialise(sketch, vector).trace
            slow = program_tokens(trace_primitives(trace, tiny.workload), tiny.workload, HARDWARE, NO_DECISIONS)
            np.testing.assert_array_equal(row, slow[0])


@pytest.mark.parametrize("name", ["matmul", "conv"])
def test_split_rows_against_the_printed_trace(tiny_tasks, name):
    """What TVM prints as sample_perfect_tile decisions stands, as log2(1 + factor), in the Split rows in order."""
    tiny = tiny_tasks[name]
    for sketch in tiny.sketches:
        decisions = tiny.space.canonical(sketch, tiny.sample(sketch, 1, seed=5)[0])
        printed = str(tiny.space.materialise(sketch, decisions).trace.simplified(remove_postproc=True))
        tiles = [[int(f) for f in match.split(",")] for match in re.findall(r"sample_perfect_tile\(.*decision=\[([\d, ]+)\]\)", printed)]
        rows = rows_of(tokens_of(tiny, sketch, decisions[None])[0], "Split")
        assert len(tiles) == {"matmul": 3, "conv": 7}[name] == len(rows)
        for factors, row in zip(tiles, rows, strict=True):
            wanted = [np.log2(1 + f) for f in factors] + [0.0] * (5 - len(factors))
            np.testing.assert_allclose(row[SPLIT.factors], wanted, rtol=1e-6)


def test_a_split_row_says_which_axis_and_how_it_strides(matmul):
    """The third split of a matmul is k: extent 32, a reduction of the anchor, strides 0, 1 and 32 in C, A and B."""
    row = rows_of(tokens_of(matmul, matmul.sketches[-1], matmul.sample(matmul.sketches[-1], 1))[0], "Split")[2]
    assert [row[columns].item() for columns in (SPLIT.reduces, SPLIT.anchor, SPLIT.axis)] == [1.0, 1.0, 2 / 8]
    np.testing.assert_allclose(row[SPLIT.extent], np.log2(33), rtol=1e-6)
    np.testing.assert_allclose(row[SPLIT.strides], [0.0, 1.0, np.log2(33), 0.0], rtol=1e-6)


def test_the_level_rows_of_a_matmul_by_hand(matmul):
    """SSRSRS tiles [i: 2 4 2 2][j: 1 2 4 4][k: 8 4]: levels (i0 j0)(i1 j1)(k0)(i2 j2)(k1)(i3 j3)."""
    decisions = np.array([[2, 4, 2, 2, 1, 2, 4, 4, 8, 4, 16, 0]])
    rows = rows_of(tokens_of(matmul, matmul.sketches[-1], decisions)[0], "level")
    trips = [2 * 1, 4 * 2, 8, 2 * 4, 4, 2 * 4]
    np.testing.assert_allclose(rows[:, LEVEL.trips][:, 0], np.log2(1 + np.array(trips)), rtol=1e-6)
    assert rows[:, LEVEL.reduces].ravel().tolist() == [0, 0, 1, 0, 1, 0]  # walks a reduction
    work = [32**3, 32**3 // 2, 32**3 // 16, 32**3 // 128, 32**3 // 1024, 8]
    np.testing.assert_allclose(rows[:, LEVEL.work][:, 0], np.log2(1 + np.array(work)), rtol=1e-6)
    # From level 3 on the tile is i = 4, j = 16, k = 4: C 4 x 16, A 4 x 4, B 4 x 16 floats, no fourth access.
    footprints = [4 * 16 * 4, 4 * 4 * 4, 4 * 16 * 4]
    np.testing.assert_allclose(rows[3, LEVEL.footprints], [*np.log2(1 + np.array(footprints)), 0.0], rtol=1e-6)
    # The innermost loop is j3: extent 4, contiguous in C and B, still in A.
    np.testing.assert_allclose(rows[5, LEVEL.innermost], [np.log2(5)], rtol=1e-6)
    assert rows[5, LEVEL.strides].tolist() == rows[5, LEVEL.contiguous].tolist() == [1, 0, 1, 0]


def test_the_loop_that_turns_last_in_each_level_by_hand(matmul):
    """[i: 2 4 2 2][j: 1 2 4 1][k: 8 4]: j turns once in levels 0 and 5, so i is what moves there."""
    decisions = np.array([[2, 4, 2, 2, 1, 2, 16, 1, 8, 4, 16, 0]])
    rows = rows_of(tokens_of(matmul, matmul.sketches[-1], decisions)[0], "level")
    np.testing.assert_allclose(rows[:, LEVEL.turning][:, 0], np.log2(1 + np.array([2, 2, 8, 16, 4, 2])), rtol=1e-6)
    # In C (32 x 32): a turn of i0 moves 16 rows, one of j1 16 elements, k none, j2 one element, i3 one row.
    np.testing.assert_allclose(rows[:, LEVEL.moves][:, 0], np.log2(1 + np.array([16 * 32, 16, 0, 1, 0, 32])), rtol=1e-6)
    # Its lines from level 3 on, where the tile is i = 4, j = 16: one for each row; in level 5 i = 2, j = 1.
    np.testing.assert_allclose(rows[[3, 5], LEVEL.lines.start], np.log2(1 + np.array([4, 2])), rtol=1e-6)


def test_the_row_of_an_annotation_tells_how_far_it_reaches(matmul):
    """[i: 2 4 2 2][j: 1 2 4 4][k: 8 4]: the vector is j3 alone, for j is 4 there while a row of the product has 32."""
    rows = rows_of(tokens_of(matmul, matmul.sketches[-1], np.array([[2, 4, 2, 2, 1, 2, 4, 4, 8, 4, 16, 2]]))[0], "Annotate")
    vectors = rows[rows[:, ANNOTATE.key][:, ANNOTATIONS.index("vectorize")] == 1]
    assert vectors[:, ANNOTATE.reach].ravel().tolist() == [pytest.approx(np.log2(5))]


def test_a_row_is_one_kind_and_its_numbers(conv):
    tokens = tokens_of(conv, conv.sketches[0], conv.sample(conv.sketches[0], 5))
    assert WIDTH == len(KINDS) + NUMBERS == tokens.shape[2]
    assert (kinds_of(tokens).sum(axis=2) == 1).all()
    assert np.isfinite(tokens).all()
    assert not rows_of(tokens[0], "other").size  # every primitive of these sketches has a name


def test_hardware_is_the_first_row(matmul):
    """A model that reads from left to right knows the platform when it meets the schedule."""
    tokens = tokens_of(matmul, matmul.sketches[0], matmul.sample(matmul.sketches[0], 2))
    assert (tokens[:, 0, KINDS.index("hardware")] == 1).all()
    numbers = numbers_of(tokens[0, 0])[HARDWARE_COLUMNS.fields]
    np.testing.assert_allclose(numbers[:11], np.log2(1 + np.array(HARDWARE)), rtol=1e-6)
    assert not numbers[11:].any() and len(Hardware().vector()) == 11
    assert rows_of(tokens[0], "hardware").shape == (1, NUMBERS)


def test_the_order_of_the_rows(matmul):
    """Hardware, workload, the primitives in the trace's order, then the tiling levels."""
    tokens = tokens_of(matmul, matmul.sketches[-1], matmul.sample(matmul.sketches[-1], 1))[0]
    kinds = [KINDS[k] for k in kinds_of(tokens).argmax(axis=1)]
    assert kinds[:2] == ["hardware", "workload"] and kinds[-6:] == ["level"] * 6
    wanted = [p.kind for p in sketch_primitives(matmul.sketches[-1], matmul.workload)]
    assert kinds[2:-6] == [k if k in KINDS else "other" for k in wanted if k not in IGNORED]


def test_the_workload_is_the_second_row(matmul):
    tokens = tokens_of(matmul, matmul.sketches[0], matmul.sample(matmul.sketches[0], 1))[0]
    assert tokens[1, KINDS.index("workload")] == 1
    numbers = numbers_of(tokens[1])
    flops, size = 2 * 32**3 + 32**2, 3 * 4096
    np.testing.assert_allclose(numbers[WORKLOAD.sizes], np.log2(1 + np.array([flops, size, flops / size, 1024, 32])), rtol=1e-6)
    operators = numbers[WORKLOAD.operator]
    assert operators.tolist() == [float(name == "matmul") for name in ALL_OPERATORS]
    np.testing.assert_allclose(numbers[WORKLOAD.extents][:3], np.log2(33), rtol=1e-6)


def test_decisions_are_the_only_difference_within_a_sketch(matmul):
    """Two vectors that differ in the unroll limit differ in that one annotation row: the limit, and what it unrolls."""
    sketch = matmul.sketches[-1]
    left = matmul.sample(sketch, 1)
    right = left.copy()
    left[:, 11], right[:, 11] = 0, 3
    left, right = (tokens_of(matmul, sketch, d)[0] for d in (left, right))
    (differing,) = np.flatnonzero((left != right).any(axis=1))
    annotations = np.flatnonzero(left[:, KINDS.index("Annotate")])
    assert differing in annotations
    changed = numbers_of(left[differing]) != numbers_of(right[differing])
    assert np.flatnonzero(changed).tolist() == [ANNOTATE.values.start, ANNOTATE.reach.start]
    assert numbers_of((right - left)[differing])[ANNOTATE.values].tolist() == [pytest.approx(np.log2(513)), 0]


def test_where_a_block_is_computed(softmax):
    """Locations -1 (root) and -2 (inline) have columns of their own; a loop number tells the work inside."""
    sketch = next(s for s in softmax.sketches if any(x.kind == "location" for x in s.slots))
    slot = next(x for x in sketch.slots if x.kind == "location")
    decisions = np.repeat(softmax.sample(sketch, 1), 3, axis=0)
    decisions[:, slot.offset] = (-1, -2, 0)
    tokens = tokens_of(softmax, sketch, decisions)
    (row,) = [r for r in range(tokens.shape[1]) if len({tuple(t) for t in tokens[:, r]}) == 3][:1]
    numbers = numbers_of(tokens[:, row])
    assert numbers[:, LOCATION.at_root].ravel().tolist() == [1, 0, 0]
    assert numbers[:, LOCATION.inlined].ravel().tolist() == [0, 1, 0]
    assert numbers[0, LOCATION.inside] > numbers[2, LOCATION.inside]  # the root serves the whole anchor, a loop less


def test_a_fixed_location_tells_the_loop_by_its_place(matmul):
    """Two sketches that write a tile back under loops of equal extent, j0 or j1 of [i: 2 4 2 2][j: 2 2 4 2], differ in what one visit serves."""
    rows = [
        rows_of(tokens_of(matmul, matmul.sketches[n], [[2, 4, 2, 2, 2, 2, 4, 2, 8, 4, 16, 0]])[0], "ReverseComputeAt")[0] for n in (1, 2)
    ]
    assert rows[0][LOCATION.fixed] == rows[1][LOCATION.fixed] == 1 and rows[0][LOCATION.extent] == rows[1][LOCATION.extent]
    assert [round(row[LOCATION.loop].item() * LOOPS) for row in rows] == [3, 1]
    assert [row[LOCATION.inside].item() for row in rows] == [pytest.approx(np.log2(1 + work)) for work in (32**3 // 32, 32**3 // 4)]


@pytest.mark.parametrize("kind", ["ComputeAt", "RFactor", "Split"])
def test_a_loop_that_nobody_knows(matmul, kind):
    """Made by an instruction of another rule than ours, as databases of others may have it."""
    unknown = Primitive(kind, matmul.workload.anchor.name, (Loop(matmul.workload.anchor.name),) * (kind == "Split"))
    (row,) = rows_of(program_tokens([unknown], matmul.workload, HARDWARE, NO_DECISIONS)[0], kind)
    assert np.isfinite(row).all()


def test_a_task_without_a_byte(matmul):
    """Of an argument of extent 0 there is nothing to read."""
    tokens = program_tokens([], replace(matmul.workload, argument_bytes=0, flops=0.0), HARDWARE, NO_DECISIONS)
    assert np.isfinite(tokens).all()


def test_which_loop_of_a_reduction_is_factored(softmax):
    """RFactor over the outer loop of the split reduction or over the inner one: its extent, and which of the two."""
    found = set()
    for sketch in softmax.sketches:
        primitives = sketch_primitives(sketch, softmax.workload)
        decisions = softmax.sample(sketch, 1)
        factored = [p.loops[0] for p in primitives if p.kind == "RFactor"]
        rows = rows_of(tokens_of(softmax, sketch, decisions)[0], "RFactor")[:, PRIMITIVE.numbers]
        for row, loop in zip(rows, factored, strict=True):
            assert row.tolist() == [pytest.approx(np.log2(1 + decisions[0][loop.extent.column])), loop.part, 0, 0]
            found.add(loop.part)
    assert found == {1, 2}


@pytest.mark.parametrize("name", ["matmul", "conv", "softmax"])
def test_no_two_programs_have_the_same_tokens(tiny_tasks, name):
    """Also where tiles of two loops are equal, as two of the sketches differ in nothing else."""
    tiny, told = tiny_tasks[name], {}
    for sketch in tiny.sketches:
        decisions = np.unique([tiny.space.canonical(sketch, d) for d in tiny.sample(sketch, 40)], axis=0)
        for tokens, vector in zip(tokens_of(tiny, sketch, decisions), decisions, strict=True):
            assert told.setdefault(tokens.tobytes(), (sketch.index, *vector)) == (sketch.index, *vector)


def test_a_task_that_nobody_reorders():
    """Element-wise: its own loops are its levels, and a contiguous one is seen as such."""
    tvm = load_tvm()
    from tvm import te

    from tcl_core.programs.workload import read_workload

    x = te.placeholder((4, 6), name="x")
    y = te.compute((4, 6), lambda i, j: x[i, j] + 1, name="y")
    workload = read_workload("elementwise", 24.0, tvm.IRModule({"main": te.create_prim_func([x, y])}))
    tokens = program_tokens([], workload, HARDWARE, NO_DECISIONS)
    assert tokens.shape == (1, 3, WIDTH)
    (level,) = rows_of(tokens[0], "level")
    np.testing.assert_allclose(level[LEVEL.trips.start : LEVEL.innermost.stop], log2p(np.array([24, 24, 6])), rtol=1e-6)

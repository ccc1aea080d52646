from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest

from tcl_core.compat import load_tvm
from tcl_core.errors import DataError
from tcl_core.programs import sketches
from tcl_core.programs.sketches import (
    DesignSpace,
    InvalidProgram,
    perfect_tilings,
    read_sketch,
    trace_from_json,
    trace_to_json,
)

NAMES = ("matmul", "conv", "softmax")


def per_sketch(tiny, count, seed=0):
    for sketch in tiny.sketches:
        for decisions in tiny.sample(sketch, count, seed):
            yield sketch, decisions


# --- decisions <-> schedules ---


@pytest.mark.parametrize("name", NAMES)
def test_decisions_survive_a_schedule(tiny_tasks, name):
    """decisions -> schedule -> decisions; TVM may move a compute location once, then never again."""
    tiny = tiny_tasks[name]
    for sketch, decisions in per_sketch(tiny, 4):
        canonical = tiny.space.canonical(sketch, decisions)
        movable = np.concatenate([[s.kind == "location"] * s.width for s in sketch.slots] or [np.zeros(0)]).astype(bool)
        assert canonical[~movable].tolist() == decisions[~movable].tolist()
        assert tiny.space.canonical(sketch, canonical).tolist() == canonical.tolist()
        assert tiny.space.replayed(sketch, decisions).tolist() == canonical.tolist()


def test_only_what_may_move_a_block_is_replayed(tiny_tasks, monkeypatch):
    asked = []
    for name in NAMES:
        space = tiny_tasks[name].space
        monkeypatch.setattr(space, "_replay", lambda trace, replay=space._replay: asked.append(trace) or replay(trace))
        for sketch, decisions in per_sketch(tiny_tasks[name], 2):
            before = len(asked)
            space.replayed(sketch, decisions)
            assert len(asked) - before == any(slot.kind == "location" for slot in sketch.slots)
    assert asked


@pytest.mark.parametrize("name", NAMES)
def test_a_random_schedule_is_rebuilt_from_sketch_and_decisions(tiny_tasks, name):
    """TVM's own random replays, read as decisions, give structurally equal modules again."""
    tvm = load_tvm()
    tiny, kinds = tiny_tasks[name], set()
    for sketch in tiny.sketches:
        kinds |= {slot.kind for slot in sketch.slots}
        for seed in (11, 12, 13):
            random = tiny.space._replay_at_random(sketch.trace, seed)
            expected = tiny.space.apply(random)
            read = sketch.decisions_of(random.simplified(remove_postproc=True))
            rebuilt = tiny.space.materialise(sketch, read)
            tvm.ir.assert_structural_equal(rebuilt.mod, expected.mod)
    assert (
        kinds
        == {
            "matmul": {"tile", "categorical", "constant"},
            "conv": {"tile", "categorical", "constant", "location"},
            "softmax": {"tile", "categorical", "constant", "location"},
        }[name]
    )


def test_a_sketch_is_no_other(matmul):
    """Different decisions make different modules, so equality above says something."""
    tvm = load_tvm()
    rest = [2, 8, 2, 1, 8, 4, 16, 1]
    left, right = (matmul.space.materialise(matmul.sketches[0], [*tile, *rest]).mod for tile in ([1, 1, 32, 1], [1, 1, 1, 32]))
    with pytest.raises(ValueError, match="StructuralEqual check failed"):
        tvm.ir.assert_structural_equal(left, right)


def test_the_parallel_annotation_is_a_slot(matmul):
    """Evolutionary search mutates it, so its traces must be readable and rebuildable too."""
    sketch = matmul.sketches[0]
    slot = next(s for s in sketch.slots if s.kind == "constant")
    decisions = matmul.sample(sketch, 1)[0]
    assert decisions[slot.offset] == 16  # num-cores 1 times MetaSchedule's 16 jobs per core
    decisions[slot.offset] = 3
    schedule = matmul.space.materialise(sketch, decisions)
    assert sketch.decisions_of(schedule.trace.simplified(remove_postproc=True)).tolist() == decisions.tolist()


def test_sketches_are_the_same_each_time(matmul):
    again = DesignSpace(matmul.task.key, matmul.module, {"kind": "llvm", "num-cores": 1}).sketches()
    assert [str(s.trace) for s in again] == [str(s.trace) for s in matmul.sketches]
    assert all(
        np.array_equal(a.choices, b.choices)
        for x, y in zip(again, matmul.sketches, strict=True)
        for a, b in zip(x.slots, y.slots, strict=True)
    )


@pytest.mark.parametrize("length", [0, 11, 13])
def test_decisions_of_a_wrong_length(matmul, length):
    with pytest.raises(InvalidProgram, match=f"^{length} decisions given, the sketch has 12$"):
        matmul.space.materialise(matmul.sketches[0], [1] * length)


def test_tvm_mends_impossible_tiles(matmul):
    """Factors that do not divide the extent become ones that do, from the innermost on; canonical() tells which."""
    rest = [2, 8, 2, 1, 8, 4, 16, 1]
    assert matmul.space.canonical(matmul.sketches[0], [3, 5, 7, 11, *rest]).tolist() == [1, 1, 1, 32, *rest]
    assert matmul.space.canonical(matmul.sketches[0], [1, 1, 1, 4, *rest]).tolist() == [8, 1, 1, 4, *rest]


def test_an_index_beyond_the_categories(matmul):
    with pytest.raises(InvalidProgram):
        matmul.space.materialise(matmul.sketches[0], [1, 1, 32, 1, 2, 8, 2, 1, 8, 4, 16, 99])


class Rejects:
    def apply(self, schedule):
        return False


class FailsSilently:
    def apply(self, schedule):
        raise MemoryError


@pytest.mark.parametrize("postproc, said", [(Rejects(), "^rejected by Rejects$"), (FailsSilently(), "^FailsSilently: MemoryError$")])
def test_a_postprocessor_is_named_with_what_it_says(matmul, monkeypatch, postproc, said):
    """Of one that says nothing it is the kind of its error."""
    space = SimpleNamespace(postprocs=[postproc])
    monkeypatch.setattr(matmul.space, "context", SimpleNamespace(space_generator=space))
    with pytest.raises(InvalidProgram, match=said):
        matmul.space.materialise(matmul.sketches[0], matmul.sample(matmul.sketches[0], 1)[0])


def test_a_trace_of_another_sketch(matmul, conv):
    with pytest.raises(InvalidProgram, match="other primitives"):
        matmul.sketches[0].decisions_of(conv.sketches[0].trace)


# --- text ---


@pytest.mark.parametrize("name", NAMES)
def test_traces_survive_their_text(tiny_tasks, name):
    tvm = load_tvm()
    tiny = tiny_tasks[name]
    for sketch in tiny.sketches:
        text = trace_to_json(sketch.trace)
        trace = trace_from_json(text, tiny.module)
        assert str(trace) == str(sketch.trace)
        assert trace_to_json(trace) == text
        again = read_sketch(sketch.task_key, sketch.index, trace)
        assert [replace(s, choices=None) for s in sketch.slots] == list(again.slots)
        decisions = tiny.sample(sketch, 1)[0]
        tvm.ir.assert_structural_equal(tiny.space.materialise(again, decisions).mod, tiny.space.materialise(sketch, decisions).mod)


@pytest.mark.parametrize("damage", [lambda t: t[:-9], lambda t: "{}", lambda t: "", lambda t: t.replace("Split", "Splat")])
def test_damaged_text(matmul, damage):
    text = trace_to_json(matmul.sketches[0].trace)
    with pytest.raises(DataError, match="sketch does not fit its task.*run the stage candidates again"):
        trace_from_json(damage(text), matmul.module)


def test_the_text_of_another_task(matmul, conv):
    with pytest.raises(DataError, match="does not fit its task"):
        trace_from_json(trace_to_json(conv.sketches[0].trace), matmul.module)


# --- choices ---


@pytest.mark.parametrize(
    ("extent", "parts", "inner"), [(1, 4, 64), (12, 4, 64), (32, 3, 8), (12, 3, 4), (7, 2, 3), (36, 2, 16), (30, 1, 64)]
)
def test_tilings_against_brute_force(extent, parts, inner):
    wanted = {row for row in product(range(1, extent + 1), repeat=parts) if prod(row) == extent and row[-1] <= inner}
    found = perfect_tilings(extent, parts, inner)
    rows = [tuple(row) for row in found.tolist()]
    assert len(rows) == len(set(rows))
    assert set(rows) == wanted


def test_a_prime_beyond_the_innermost_limit_still_tiles():
    assert perfect_tilings(67, 2, 64).tolist() == [[67, 1]]


@pytest.mark.parametrize("name", NAMES)
def test_tvm_draws_only_from_the_choices(tiny_tasks, name):
    """Tiles and categories of random replays that the probes did not see are among the slot's choices."""
    tiny = tiny_tasks[name]
    for sketch in tiny.sketches:
        for seed in range(100, 104):
            trace = tiny.space._replay_at_random(sketch.trace, seed)
            decisions = sketch.decisions_of(trace)
            for slot in sketch.slots:
                if slot.kind in ("tile", "categorical"):
                    assert decisions[slot.columns].tolist() in slot.choices.tolist()


def locations(tiny):
    return [(sketch, slot) for sketch in tiny.sketches for slot in sketch.slots if slot.kind == "location"]


def test_compute_locations_are_complete(conv):
    """Where TVM's random replays put a block is among the choices: else those programs could never be measured."""
    for sketch, slot in locations(conv):
        traces = [conv.space._replay_at_random(sketch.trace, n) for n in range(1000, 1030)]
        assert {int(sketch.decisions_of(trace)[slot.offset]) for trace in traces} <= set(slot.choices[:, 0].tolist())


@pytest.mark.parametrize("name", ["conv", "softmax"])
def test_root_and_inlining_are_always_choices(tiny_tasks, name):
    """The root is possible everywhere; where inlining is not, TVM takes the root instead."""
    tiny = tiny_tasks[name]
    assert locations(tiny)
    for sketch, slot in locations(tiny):
        assert {-2, -1} <= set(slot.choices[:, 0].tolist())
        decisions, ends = tiny.sample(sketch, 1)[0], {}
        for where in (-2, -1):
            decisions[slot.offset] = where
            ends[where] = int(tiny.space.canonical(sketch, decisions)[slot.offset])
        assert ends[-1] == -1 and ends[-2] in (-2, -1)


def reorder(loops):
    return SimpleNamespace(kind=SimpleNamespace(name="Reorder"), inputs=[None] * loops)


@pytest.mark.parametrize(
    ("nests", "seen", "deepest"), [([4, 3], {-1, 2}, 3), ([4], {-2, -1}, 3), ([2], {5}, 5), ([], {0}, 0), ([], {-1}, -1)]
)
def test_a_location_may_be_any_loop_of_the_largest_nest(nests, seen, deepest):
    found = sketches._locations([reorder(n) for n in nests], seen)
    assert found[:, 0].tolist() == list(range(-2, deepest + 1)) and found.dtype == np.int32 and found.shape[1] == 1


def within_choices(sketch, decisions):
    return all(row[slot.columns].tolist() in slot.choices.tolist() for row in decisions for slot in sketch.slots)


@pytest.mark.parametrize("name", NAMES)
def test_mutation_changes_at_most_one_slot_and_stays_within_choices(tiny_tasks, name):
    rng, changes = np.random.default_rng(1), 0
    for sketch in tiny_tasks[name].sketches:
        before = sketch.sample(50, rng)
        kept = before.copy()
        after = sketch.mutate(before, rng)
        assert np.array_equal(before, kept)  # a copy
        assert after.shape == before.shape and within_choices(sketch, after)
        changed = [[(a[s.columns] != b[s.columns]).any() for s in sketch.slots] for a, b in zip(after, before, strict=True)]
        assert max((sum(row) for row in changed), default=0) <= 1
        changes += sum(map(sum, changed))
    assert changes > 20


def test_most_mutations_of_a_tiling_move_one_prime_factor_to_another_level():
    """Of 60 = 2 * 2 * 3 * 5 in four levels; a tiling drawn anew would nearly never be a neighbour."""
    tilings = sketches.perfect_tilings(60, 4, 16)
    sketch = sketches.Sketch("key", 0, None, (sketches.Slot("tile", 0, 0, 4, tilings),))
    rng = np.random.default_rng(0)
    before = sketch.sample(1000, rng)
    after = sketch.mutate(before, rng)
    assert (after.prod(axis=1) == 60).all() and within_choices(sketch, after)
    changed = [sorted({*(a / b).tolist()} - {1.0}) for a, b in zip(after, before, strict=True)]
    near = [ratio in ([1 / p, float(p)] for p in (2, 3, 5)) for ratio in changed]
    assert 0.72 < np.mean(near) < 0.95  # three quarters, and what is drawn anew and happens to be near


def test_a_tiling_without_neighbours_is_drawn_anew():
    """What replays showed of a loop whose extent varies."""
    slot = sketches.Slot("tile", 0, 0, 2, np.array([[1, 8], [4, 16], [3, 3]], np.int32))
    drawn = {tuple(slot.neighbour(np.array([1, 8]), np.random.default_rng(seed)).tolist()) for seed in range(30)}
    assert drawn == {(1, 8), (4, 16), (3, 3)}


@pytest.mark.parametrize("name", NAMES)
def test_a_child_has_each_slot_of_one_parent(tiny_tasks, name):
    rng = np.random.default_rng(2)
    for sketch in tiny_tasks[name].sketches:
        left, right = sketch.sample(40, rng), sketch.sample(40, rng)
        child = sketch.crossover(left, right, rng)
        from_left = np.zeros(len(child), dtype=int)
        for slot in sketch.slots:
            same_left, same_right = ((child[:, slot.columns] == p[:, slot.columns]).all(axis=1) for p in (left, right))
            assert (same_left | same_right).all()
            from_left += same_left & ~same_right
        if len(sketch.slots) > 1:
            assert from_left.any()


def test_sampling_covers_the_choices_evenly(matmul):
    sketch = matmul.sketches[0]
    drawn = sketch.sample(4000, np.random.default_rng(3))
    slot = sketch.slots[-1]
    counts = np.bincount(drawn[:, slot.offset], minlength=4)
    assert slot.kind == "categorical" and (np.abs(counts - 1000) < 150).all()
    assert (drawn[:, 0:4].prod(axis=1) == 32).all()


def test_a_sketch_without_holes():
    sketch = sketches.Sketch("key", 0, None, ())
    rng = np.random.default_rng(0)
    assert sketch.width == 0
    assert sketch.sample(3, rng).shape == (3, 0)
    assert sketch.mutate(np.zeros((3, 0), np.int32), rng).shape == (3, 0)
    assert sketch.crossover(np.zeros((2, 0), np.int32), np.zeros((2, 0), np.int32), rng).shape == (2, 0)

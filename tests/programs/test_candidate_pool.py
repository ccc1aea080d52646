from __future__ import annotations

import hashlib
import threading
import zlib
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from conftest import matmul_module

from tcl_core.compat import load_tvm
from tcl_core.platforms import pool_target
from tcl_core.programs import pool
from tcl_core.programs.pool import WIDTHS, Program, build_pool, cost, in_turn, rank_tasks, sample_programs
from tcl_core.programs.registers import leaning
from tcl_core.programs.sketches import InvalidProgram, read_sketch, trace_from_json, trace_to_json
from tcl_core.programs.tasks import Task, describe
from tcl_core.programs.unlabelled import draw_unlabelled
from tcl_core.programs.unrolling import COSTLY, unrolled


def named(key, flops):
    return Task(key, f"task {key}", "matmul", flops, "{}")


def test_a_cpus_programs_are_drawn_as_ever(matmul):
    """A sketch, then its vector, from a stream that the seed and the task begin: the pool of a seed must not change."""
    rng, expected = np.random.default_rng([0, zlib.crc32(matmul.task.key.encode())]), set()
    while len(expected) < 8:
        sketch = matmul.sketches[rng.integers(len(matmul.sketches))]
        expected.add((sketch.index, tuple(matmul.space.canonical(sketch, sketch.sample(1, rng)[0]).tolist())))
    drawn = sample_programs(matmul.task, matmul.sketches, matmul.space, 8, seed=0)
    assert {(program.sketch, program.decisions) for program in drawn} == expected


def test_a_program_comes_from_its_row():
    row = {"task_key": "a", "split": "train", "program_id": 3, "sketch_id": 1, "decisions": [4, 0, 2]}
    assert Program.from_row(row) == Program("a", number=3, sketch=1, decisions=(4, 0, 2))


def test_networks_take_turns_heaviest_first(monkeypatch):
    """By weight x cost: a: a1 (30), a2 (20), a3 (1); b: a2 (50), b1 (5)."""
    monkeypatch.setattr(pool, "cost", lambda task: task.flops)
    a1, a2, a3, b1 = named("a1", 30.0), named("a2", 10.0), named("a3", 1.0), named("b1", 5.0)
    networks = {"a": [(a3, 1), (a2, 2), (a1, 1)], "b": [(b1, 1), (a2, 5)]}
    assert [t.key for t in rank_tasks(networks)] == ["a1", "a2", "b1", "a3"]
    assert [t.key for t in rank_tasks(networks, without=["a2"])] == ["a1", "b1", "a3"]
    assert rank_tasks({}) == [] and rank_tasks({"a": []}) == []


def depthwise_module():
    """64 channels of 32 x 32 with 3 x 3 kernels, padded."""
    tvm = load_tvm()
    from tvm import te, topi

    x, w = te.placeholder((1, 64, 32, 32), name="x"), te.placeholder((64, 1, 3, 3), name="w")
    return tvm.IRModule({"main": te.create_prim_func([x, w, topi.nn.depthwise_conv2d_nchw(x, w, 1, 1, 1)])})


def test_costs_by_hand(matmul):
    """Operations, and ten for each byte of the arguments (inputs and outputs, float32)."""
    assert cost(matmul.task) == 2 * 32**3 + 32**2 + 10 * 3 * 32 * 32 * 4
    depthwise = describe("depthwise", depthwise_module())
    assert depthwise.flops == 2 * 64 * 32 * 32 * 9
    assert cost(depthwise) == depthwise.flops + 10 * 4 * (64 * 32 * 32 + 64 * 9 + 64 * 32 * 32)


def test_a_depthwise_convolution_outranks_a_matmul_of_more_operations():
    """1.2 MFLOP that move 0.5 MB cost 6.4 M; 4.2 MFLOP on 0.2 MB cost 6.2 M."""
    depthwise = describe("depthwise", depthwise_module())
    matmul = describe("matmul", matmul_module(128, 128, 128))
    assert matmul.flops > 3 * depthwise.flops
    assert rank_tasks({"a": [(matmul, 1), (depthwise, 1)]}) == [depthwise, matmul]
    assert rank_tasks({"a": [(matmul, 2), (depthwise, 1)]}) == [matmul, depthwise]  # by weight as well


@pytest.mark.parametrize(("dtype", "size"), [("int8", 1), ("float16", 2), ("bfloat16", 2), ("int64", 8), ("bool", 1)])
def test_bytes_depend_on_the_type(dtype, size):
    tvm = load_tvm()
    from tvm import te

    x = te.placeholder((100,), name="x", dtype=dtype)
    module = tvm.IRModule({"main": te.create_prim_func([x, te.compute((100,), lambda i: x[i], name="y")])})
    assert cost(describe("copy", module)) == 10 * 2 * 100 * size


def test_programs_are_distinct_valid_and_canonical(matmul):
    programs = sample_programs(matmul.task, matmul.sketches, matmul.space, 40, seed=0)
    assert [p.number for p in programs] == list(range(40))
    assert len({(p.sketch, p.decisions) for p in programs}) == 40
    assert {p.sketch for p in programs} == {0, 1, 2}
    for program in programs[:10]:
        canonical = matmul.space.canonical(matmul.sketches[program.sketch], program.decisions)
        assert tuple(canonical.tolist()) == program.decisions
        assert all(type(d) is int for d in program.decisions)


def test_the_draw_depends_on_seed_and_task_alone(matmul, conv):
    first = sample_programs(matmul.task, matmul.sketches, matmul.space, 8, seed=0)
    assert sample_programs(matmul.task, matmul.sketches, matmul.space, 8, seed=0) == first
    assert sample_programs(matmul.task, matmul.sketches, matmul.space, 8, seed=1) != first
    alone, together = build_pool([matmul.task], 0, 8, 0, 1)[1], build_pool([conv.task, matmul.task], 0, 8, 0, 1)[1]
    assert alone == first == [p for p in together if p.task_key == matmul.task.key]


def share_in_registers(tiny, programs):
    """Of (sketch, decisions): those that add up in the registers of some width of vectors."""
    kinds = [leaning(tiny.sketches, width) for width in WIDTHS]
    fits = [any(kind(tiny.sketches[sketch], np.array([decisions]))[0] for kind in kinds) for sketch, decisions in programs]
    return np.mean(fits)


def test_a_leaning_pool_is_of_programs_that_add_up_in_registers(matmul):
    uniform, half, most = (
        share_in_registers(matmul, [(p.sketch, p.decisions) for p in sample_programs(*of_matmul(matmul), 60, seed=0, lean=lean)])
        for lean in (0.0, 0.5, 1.0)
    )
    assert uniform < 0.35 < half < 0.8 < most


@pytest.mark.parametrize("lean", [0.0, 1.0])
def test_few_programs_unroll_so_much_that_they_take_long_to_build(matmul, lean):
    """Of such as are all kept a quarter do."""
    steps = unrolled(matmul.sketches, matmul.workload)
    drawn = [steps((sketch.index, decisions)) for sketch in matmul.sketches for decisions in matmul.sample(sketch, 100)]
    pool = [steps((p.sketch, p.decisions)) for p in sample_programs(*of_matmul(matmul), 150, seed=0, lean=lean, costly=0.33)]
    assert set(pool) == set(drawn) == {0, 16, 64, COSTLY}
    assert 0.18 < np.mean(np.array(drawn) == COSTLY) < 0.32
    assert 0.03 < np.mean(np.array(pool) == COSTLY) < 0.17


def test_it_leans_to_each_width_of_vectors(matmul):
    programs = [(p.sketch, p.decisions) for p in sample_programs(*of_matmul(matmul), 60, seed=0, lean=1.0)]
    for width in WIDTHS:
        kind = leaning(matmul.sketches, width)
        assert sum(kind(matmul.sketches[sketch], np.array([decisions]))[0] for sketch, decisions in programs) >= 12


def test_a_space_without_blocks_in_registers_is_drawn_uniformly(tiny_tasks):
    softmax = tiny_tasks["softmax"]
    programs = sample_programs(softmax.task, softmax.sketches, softmax.space, 6, seed=0, lean=1.0)
    assert len(programs) == 6


def test_further_programs_lean_as_the_pool_does(matmul):
    drawn = draw_unlabelled([matmul.task], texts_of(matmul), (), 40, 0, pool_target("cpu", 2), 1.0)
    assert share_in_registers(matmul, [program for _, *program in drawn]) > 0.8


def of_matmul(matmul):
    return matmul.task, matmul.sketches, matmul.space


def test_a_small_space_gives_fewer_programs():
    """A matmul of one element: only the unroll limit, one of four, is left to choose."""
    task = describe("matmul", matmul_module(1, 1, 1))
    rows, programs = build_pool([task], 0, 50, 0, 1)
    assert len(rows) == 1
    assert [p.decisions for p in programs] == [(16, unroll, -1) for unroll in range(4)]


def test_invalid_draws_are_passed_over(matmul):
    class Picky:
        """Accepts each second draw."""

        target, calls = matmul.space.target, 0

        def canonical(self, sketch, decisions):
            self.calls += 1
            if self.calls % 2:
                raise InvalidProgram("no")
            return decisions

    space = Picky()
    assert len(sample_programs(matmul.task, matmul.sketches, space, 5, seed=0)) == 5
    assert space.calls == 10


def test_a_space_without_a_valid_program_ends(matmul):
    class Never:
        target = matmul.space.target

        def canonical(self, sketch, decisions):
            raise InvalidProgram("no")

    assert sample_programs(matmul.task, matmul.sketches, Never(), 5, seed=0) == []


def test_a_pool_and_its_rows(matmul, conv):
    seen = []
    rows, programs = build_pool([matmul.task, conv.task], 0, 6, 0, 1, seen.append)
    assert seen == [matmul.task, conv.task]
    assert [p.task_key for p in programs] == [matmul.task.key] * 6 + [conv.task.key] * 6
    assert {(r["task_key"], r["sketch_id"]) for r in rows} == {(tiny.task.key, s.index) for tiny in (matmul, conv) for s in tiny.sketches}
    row = next(r for r in rows if r["task_key"] == matmul.task.key)
    sketch = read_sketch(matmul.task.key, row["sketch_id"], trace_from_json(row["trace_json"], matmul.module))
    assert sketch.signature == matmul.sketches[row["sketch_id"]].signature


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (2, 2), (0, 2), (9, 2)])
def test_a_limit_counts_tasks_that_are_used(matmul, conv, limit, count):
    programs = build_pool([matmul.task, conv.task], limit, 2, 0, 1)[1]
    assert len({p.task_key for p in programs}) == count


@pytest.mark.parametrize("cores", [1, 4])
def test_cores_bound_the_parallel_loops(matmul, cores):
    """MetaSchedule asks for 16 jobs per core; the decision is a column of its own in every program."""
    rows, programs = build_pool([matmul.task], 0, 4, 0, cores)
    for program in programs:
        row = next(r for r in rows if r["sketch_id"] == program.sketch)
        sketch = read_sketch(matmul.task.key, program.sketch, trace_from_json(row["trace_json"], matmul.module))
        (slot,) = [s for s in sketch.slots if s.kind == "constant"]
        assert program.decisions[slot.offset] == 16 * cores


def test_a_task_without_a_choice_is_passed_over(matmul, monkeypatch):
    """One program only: nothing to rank; it does not use up the limit either."""
    fixed = [replace(matmul.sketches[0], slots=tuple(replace(s, choices=s.choices[:1]) for s in matmul.sketches[0].slots))]
    real, calls = pool.DesignSpace.sketches, []

    def first_task_is_fixed(space):
        calls.append(space)
        return fixed if len(calls) == 1 else real(space)

    monkeypatch.setattr(pool.DesignSpace, "sketches", first_task_is_fixed)
    seen = []
    build_pool([matmul.task, replace(matmul.task, name="second")], 1, 3, 0, 1, seen.append)
    assert [task.name for task in seen] == ["second"]


def test_jobs_are_done_side_by_side_and_given_in_their_order(monkeypatch):
    """The first waits for the second, which two threads alone can have done by then."""
    monkeypatch.setattr(pool, "threads", lambda: 2)
    second = threading.Event()
    work = {"a": lambda: second.wait(20), "b": second.set, "c": lambda: None}
    assert list(in_turn(lambda job: work[job](), "abc")) == [("a", True), ("b", None), ("c", None)]


def test_of_jobs_that_nobody_takes_few_are_begun(monkeypatch):
    monkeypatch.setattr(pool, "threads", lambda: 2)
    begun: list[int] = []
    assert next(in_turn(lambda job: begun.append(job), range(100))) == (0, None)
    assert set(begun) <= {0, 1, 2}


def test_what_a_job_raises_ends_them():
    with pytest.raises(ZeroDivisionError):
        list(in_turn(lambda job: 1 // job, [1, 0, 1]))


def texts_of(*tiny):
    return {(task.task.key, s.index): trace_to_json(s.trace) for task in tiny for s in task.sketches}


def test_the_pools_draw_is_that_of_all_measured_data(matmul):
    """Other programs for the same seed would be of no use to a journal or a data set that is there."""
    drawn = [(p.number, p.sketch, p.decisions) for p in sample_programs(matmul.task, matmul.sketches, matmul.space, 24, 0)]
    assert hashlib.sha256(repr(drawn).encode()).hexdigest()[:16] == "159f834dd23fb84d"


def test_unlabelled_programs_are_valid_ones_of_the_pools_sketches(matmul, conv):
    draw = partial(draw_unlabelled, sketches=texts_of(matmul, conv), measured=(), count=12, target=pool_target("cpu", 2))
    drawn = draw([matmul.task, conv.task], seed=0)
    assert [key for key, *_ in drawn] == [matmul.task.key] * 12 + [conv.task.key] * 12 and len(set(drawn)) == 24
    assert drawn == draw([matmul.task, conv.task], seed=0)
    for key, sketch, decisions in drawn:
        tiny = matmul if key == matmul.task.key else conv
        tiny.space.materialise(tiny.sketches[sketch], decisions)
    assert set(draw([matmul.task], seed=1)) != set(drawn[:12])


def test_unlabelled_programs_are_another_draw_than_the_pool(matmul):
    pool = {(p.task_key, p.sketch, p.decisions) for p in sample_programs(matmul.task, matmul.sketches, matmul.space, 12, 0)}
    drawn = draw_unlabelled([matmul.task], texts_of(matmul), (), 12, 0, pool_target("cpu", 2))
    assert len(pool & set(drawn)) <= 1  # by chance


def test_no_measured_program_is_drawn_as_an_unlabelled_one(matmul, conv):
    draw = partial(draw_unlabelled, [matmul.task, conv.task], texts_of(matmul, conv), seed=0, target=pool_target("cpu", 2))
    measured = draw(measured=(), count=20)
    drawn = draw(measured=measured[10:], count=20)
    assert len(drawn) == 40 and not set(measured[10:]) & set(drawn)
    assert set(measured[:10]) < set(drawn)  # the draw goes on where measured ones fell out


def test_a_small_space_gives_what_was_not_measured_of_it():
    task = describe("matmul", matmul_module(1, 1, 1))
    rows, programs = build_pool([task], 0, 50, 0, 1)
    keys = [(p.task_key, p.sketch, p.decisions) for p in programs]
    texts = {(row["task_key"], row["sketch_id"]): row["trace_json"] for row in rows}
    assert draw_unlabelled([task], texts, keys[:3], 50, 0, pool_target("cpu", 1)) == keys[3:]
    assert draw_unlabelled([task], texts, keys, 50, 0, pool_target("cpu", 1)) == []

"""Tokens of AutoTVM's and Ansor's programs: values by hand, one program at a time or many."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tcl_core.errors import DataError
from tcl_core.evaluation.metrics import spearman
from tcl_core.features.batches import Samples
from tcl_core.features.groups import by_sketch
from tcl_core.features.log_tokens import LogEncoder, is_of_log
from tcl_core.features.layout import ALL_OPERATORS, KINDS, SPLIT, WIDTH, WORKLOAD, numbers_of
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.store import Coded, Ragged

CONV = {
    "log": "AutoTVM", "target": "llvm", "task": "conv2d_NCHWc.x86", "kwargs": {},
    "args": [["TENSOR", [1, 32, 56, 56], "float32"], ["TENSOR", [64, 32, 3, 3], "float32"],
             [2, 2], [1, 1, 1, 1], [1, 1], "NCHW"],
}  # fmt: skip
KNOBS = [["tile_ic", "sp", [0, 0]], ["tile_oc", "sp", [0, 0]], ["unroll_kw", "ot", False], ["tile_oh", "ot", 0],
         ["reorder_0", "re", [0, 0]], ["ann_spatial", "an", ["none", "none"]], ["tile_p", "sp", [0, 0]]]  # fmt: skip
DECISIONS = [-1, 8, -1, 16, 1, 2, 1, 0, 2, 1, -1, 4]
MATMUL = {"log": "Ansor", "target": "cuda", "workload_key": ["matmul", 512, 64, 128]}
STEPS = [["CHW", 2, "local"], ["SP", 2, 0, 0, [0, 0, 0], 1], ["SP", 2, 4, 0, [0], 1], ["SP", 3, 0, 0, [0], 1],
         ["FSP", 3, 0, 1, 3], ["CA", 2, 3, 0], ["FU", 3, [0, 1]], ["AN", 3, 0, 0], ["CI", 1], ["SA", 1, 0, 24, 8],
         ["PR", 4, 0, "auto_unroll_max_step$0"]]  # fmt: skip
STEP_DECISIONS = [512, 4, 2, 8, 128, 16, 60, 7, 5, 2, 512]


def task(key: str, about: dict) -> dict:
    return {"task_key": key, "name": f"task {key}", "op_type": "", "flops": 0.0, "module_json": json.dumps(about)}


def sketch(key: str, number: int, dialect: str, steps: list) -> dict:
    return {"task_key": key, "sketch_id": number, "trace_json": json.dumps({"log": dialect, "steps": steps})}


TASKS = [task("a", CONV), task("b", MATMUL)]
SKETCHES = [sketch("a", 1, "AutoTVM", KNOBS), sketch("a", 2, "AutoTVM", KNOBS[:2]), sketch("b", 1, "Ansor", STEPS)]


def columns(*programs: tuple[str, int, list[int], list[float]]):
    """(task, sketch, decisions, latencies) of each program, as the store gives them."""
    keys = sorted({program[0] for program in programs})

    def ragged(rows: list[list], dtype) -> Ragged:
        return Ragged(
            np.concatenate([np.array(row, dtype=dtype) for row in rows]),
            np.concatenate([[0], np.cumsum([len(row) for row in rows])]),
        )

    return {
        "task_key": Coded(np.array([keys.index(program[0]) for program in programs], dtype=np.int32), keys),
        "sketch_id": np.array([program[1] for program in programs], dtype=np.int32),
        "decisions": ragged([program[2] for program in programs], np.int32),
        "latencies_s": ragged([program[3] for program in programs], np.float32),
    }


def encode(*programs, hardware=()) -> Samples:
    return LogEncoder(TASKS, SKETCHES).encode_columns(columns(*programs), hardware)


def kinds(tokens: np.ndarray) -> list[str]:
    assert ((tokens[:, : len(KINDS)] == 1).sum(axis=1) == 1).all()
    return [KINDS[kind] for kind in tokens[:, : len(KINDS)].argmax(axis=1)]


def numbers(row: np.ndarray, count: int) -> list[float]:
    return numbers_of(row)[:count].tolist()


def log2p(*values: float) -> list[float]:
    return pytest.approx([float(np.log2(1 + v)) for v in values])


def test_rows_of_an_autotvm_program():
    samples = encode(("a", 1, DECISIONS, [0.5, 0.25, 1.0]))
    (tokens,) = samples.features
    assert tokens.shape == (8, WIDTH) and samples.lengths.tolist() == [8] and samples.latencies_s.tolist() == [0.5]
    assert kinds(tokens) == ["workload", "Split", "Split", "Annotate", "Split", "Reorder", "Annotate", "Split"]
    inner, outer, unroll, rows, order, annotations, unknown = tokens[1:]
    assert numbers(inner, 5) == log2p(4, 8, 0, 0, 0) and numbers(inner[5:], 1) == log2p(32)
    assert numbers(inner[6:], 3) == pytest.approx([1, 1, 4 / 8])  # reduced, of the anchor, axis 4
    assert numbers(outer, 6) == log2p(4, 16, 0, 0, 0, 64) and numbers(outer[6:], 3) == pytest.approx([0, 1, 1 / 8])
    assert numbers(unroll, 6) == pytest.approx([0, 0, 1, 0, 0, 1])
    assert numbers(rows, 6) == log2p(14, 2, 0, 0, 0, 28) and numbers_of(rows)[SPLIT.knob] == pytest.approx([3 / 8])
    assert numbers(order, 3) == pytest.approx([1, 1, 0])
    assert numbers(annotations, 7) == pytest.approx([0, 1, 1, 0, 0, np.log2(3), 1])
    assert numbers(unknown, 6) == log2p(0, 4, 0, 0, 0, 0)


def test_a_knob_of_an_axis_that_the_task_has_not():
    """No template of TOPI tiles the input channels of a depthwise convolution; a log may say so all the same."""
    depthwise = CONV | {
        "task": "depthwise_conv2d_nchw.cuda",
        "args": [*CONV["args"][:1], ["TENSOR", [32, 1, 3, 3], "float32"], *CONV["args"][2:]],
    }
    encoder = LogEncoder([task("d", depthwise)], [sketch("d", 1, "AutoTVM", [["tile_rc", "sp", [0, 0]]])])
    (tokens,) = encoder.encode_columns(columns(("d", 1, [-1, 8], [0.5]))).features
    assert numbers(tokens[1], 6) == log2p(0, 8, 0, 0, 0, 0) and numbers_of(tokens[1])[SPLIT.axis] == [0]


def test_the_workload_row_of_a_convolution():
    row = encode(("a", 2, DECISIONS[:4], [1.0])).features[0, 0]
    spatial, reduced, argument_bytes = 64 * 28 * 28, 32 * 9, 4 * (32 * 56 * 56 + 64 * 32 * 9)
    flops = 2 * spatial * reduced
    assert numbers(row, 5) == log2p(flops, argument_bytes, flops / argument_bytes, spatial, reduced)
    one_hot = numbers_of(row)[WORKLOAD.operator].tolist()
    assert [name for name, hot in zip(ALL_OPERATORS, one_hot, strict=True) if hot] == ["conv2d"] and sum(one_hot) == 1
    assert numbers_of(row)[WORKLOAD.extents][:10].tolist() == log2p(1, 64, 28, 28, 32, 3, 3, 2, 2, 0)


def test_rows_of_an_ansor_program():
    (tokens,) = encode(("b", 1, STEP_DECISIONS, [0.5])).features
    assert kinds(tokens) == [
        "workload", "CacheWrite", "Split", "Split", "Split", "Split", "ComputeAt", "Fuse", "Annotate", "ComputeInline",
        "other", "Annotate",
    ]  # fmt: skip
    workload, cache, spatial, reduced, other, follow, at, fuse, annotate, _, align, pragma = tokens
    assert numbers(workload, 5) == log2p(2 * 512 * 128, 0, 0, 512, 128)
    assert numbers(spatial, 6) == log2p(8, 4, 2, 8, 0, 512) and numbers(spatial[6:], 2) == [0, 1]
    assert numbers(reduced, 6) == log2p(8, 16, 0, 0, 0, 128) and numbers(reduced[6:], 3) == [1, 1, 4 / 8]
    assert numbers(other, 6) == log2p(9, 7, 0, 0, 0, 60) and numbers(other[6:], 2) == [0, 0]
    assert numbers(follow, 6) == log2p(8, 4, 2, 8, 0, 512) and numbers(follow[6:], 3) == [0, 0, 0]
    assert numbers(cache, 2)[0] == 1 and numbers(fuse, 4) == pytest.approx([0, 2, 0, 1])
    assert numbers(at, 1) == pytest.approx([5 / 32]) and numbers(pragma, 6) == pytest.approx([0, 0, 1, 0, 0, np.log2(513)])
    assert numbers(annotate, 6) == pytest.approx([0, 1, 0, 0, 0, np.log2(3)])
    assert numbers(align, 5) == pytest.approx([0, 1, 0, *np.log2([25, 9])])


def test_splits_that_follow_others_have_their_factors_and_a_stage_may_be_at_the_root():
    """As of 512 = 8 * 4 * 2 * 8 in two inner loops; of fused loops, at one level: the inner loop, or the outer one."""
    steps = [["SP", 2, 0, 0, [0, 0, 0], 1], ["SP", 2, 4, 0, [0, 0, 0], 1], ["FSP", 3, 0, 0, 2], ["FFSP", 4, 0, [0, 1], 1, 1],
             ["FFSP", 4, 1, [0], 2, 0], ["CR", 5]]  # fmt: skip
    encoder = LogEncoder([task("f", MATMUL)], [sketch("f", 1, "Ansor", steps)])
    (tokens,) = encoder.encode_columns(columns(("f", 1, [512, 4, 2, 8, 128, 16, 4, 2], [0.5]))).features
    assert kinds(tokens) == ["workload", *["Split"] * 5, "ComputeAt"]
    follow, inner, outer, root = tokens[3:]
    assert numbers(follow, 6) == log2p(8, 4, 16, 0, 0, 512)
    assert numbers(inner, 6) == log2p(0, 2 * 4, 0, 0, 0, 0) and numbers(outer, 6) == log2p(8, 0, 0, 0, 0, 0)
    assert numbers(outer[6:], 3) == [0, 0, 1 / 8] and numbers(root, 7) == [-1 / 32, 1, 0, 0, 0, 0, 0]


def test_a_loop_bound_to_a_thread_is_a_bind():
    bound, vectorized = [*STEP_DECISIONS], [*STEP_DECISIONS]
    bound[9], vectorized[9] = 6, 2
    tokens = encode(("b", 1, bound, [0.5]), ("b", 1, vectorized, [0.5])).features
    assert [kinds(program)[8] for program in tokens] == ["Bind", "Annotate"]


def test_the_hardware_comes_first_where_it_is_known():
    without, given = encode(("a", 1, DECISIONS, [0.5])), encode(("a", 1, DECISIONS, [0.5]), hardware=[4.0, 8.0])
    assert kinds(given.features[0])[0] == "hardware" and numbers(given.features[0, 0], 3) == log2p(4, 8, 0)
    assert np.array_equal(given.features[0, 1:], without.features[0]) and given.lengths[0] == without.lengths[0] + 1


def test_a_program_is_encoded_alike_alone_and_among_others():
    rng = np.random.default_rng(0)
    programs = []
    for number in range(60):
        key, which, width = [("a", 1, 12), ("a", 2, 4), ("b", 1, 11)][number % 3]
        decisions = rng.integers(1, 3, width).tolist()
        programs.append((key, which, decisions, [0.1 + number] if number % 5 else []))
    together = encode(*programs)
    assert together.features.shape == (60, 12, WIDTH) and together.tasks.tolist() == [0, 0, 1] * 20
    assert together.task_names == ("task a", "task b")
    assert np.isinf(together.latencies_s).tolist() == [number % 5 == 0 for number in range(60)]
    for number, program in enumerate(programs):
        alone = encode(program)
        length = alone.lengths[0]
        assert together.lengths[number] == length
        assert np.array_equal(together.features[number, :length], alone.features[0]) and not together.features[number, length:].any()


def test_no_programs_are_no_samples():
    nothing = columns(("a", 1, DECISIONS, [0.5]))
    empty = {
        "task_key": Coded(np.zeros(0, np.int32), ["a"]), "sketch_id": np.zeros(0, np.int32),
        "decisions": Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64)),
        "latencies_s": Ragged(np.zeros(0, np.float32), np.zeros(1, np.int64)),
    }  # fmt: skip
    assert empty.keys() == nothing.keys() and len(LogEncoder(TASKS, SKETCHES).encode_columns(empty)) == 0


def test_programs_of_one_sketch_must_have_equally_many_decisions():
    with pytest.raises(DataError, match="programs of sketch 2 of task a differ in their number of decisions"):
        encode(("a", 2, [1, 2, 3, 4], [0.5]), ("a", 2, [1, 2, 3], [0.5]))


def test_a_program_of_another_platforms_tables():
    with pytest.raises(DataError, match="sketch 7 of task a is in no table of its platform; import its log again"):
        encode(("a", 7, [1], [0.5]))


def test_groups_cover_every_program_once():
    groups = list(by_sketch(columns(*[("ab"[n % 2], n % 3, [n, n], [0.5]) for n in range(30)])))
    assert len(groups) == 6
    assert np.array_equal(np.sort(np.concatenate([group.rows for group in groups])), np.arange(30))
    assert all((group.decisions == group.rows[:, None]).all() for group in groups)


def test_tasks_of_logs_are_told_from_modules():
    assert is_of_log(TASKS[0]["module_json"]) and not is_of_log('{"root_index": 1}')


def test_a_model_learns_from_a_log():
    """Larger channel tiles are faster here; a model that saw this on some programs ranks the others."""
    rng = np.random.default_rng(0)
    choices = [2, 4, 8, 16, 32, 64]
    programs = [("a", 2, [-1, int(rng.choice(choices[:5])), -1, int(tile)], [1.0 / tile]) for tile in rng.choice(choices, 240)]
    samples = encode(*programs)
    model = catalogue.create("mamba", FitSettings(epochs=60, seed=0))
    model.fit(samples.take(np.arange(200)))
    rest = samples.take(np.arange(200, 240))
    assert spearman(model.predict(rest), rest.latencies_s, rest.tasks) > 0.8

"""AutoTVM's and Ansor's logs: what a line becomes, what is refused and why."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import pytest

from tcl_core.programs.tuning_logs.workload import operator_in
from tcl_core.features.log_tokens import LogEncoder
from tcl_core.programs.tuning_logs import ansor, autotvm
from tcl_core.programs.tuning_logs.known import Known
from tests.programs.hostile_logs import hostile
from tests.programs.log_lines import CONV, CPU, EVERY_KIND, KNOBS, STEPS, ansor_line, autotvm_line, read, rows, texts, write


# --- programs as sketch and decisions ---


@pytest.mark.parametrize("dialect, steps, count", [(autotvm, KNOBS, 7), (autotvm, EVERY_KIND, 11), (ansor, STEPS, 8)])
def test_a_program_is_its_sketch_with_the_decisions_put_back(dialect, steps, count):
    shape, decisions = dialect.take_apart(steps)
    assert len(decisions) == count and {shape: 1}[dialect.take_apart(steps)[0]] == 1  # shapes are keys
    blank = dialect.fill(steps, iter([0] * count))
    assert blank != steps and dialect.take_apart(blank) == (shape, [0] * count)
    again = dialect.fill(blank, iter(decisions))
    assert json.dumps(again) == json.dumps(steps)  # true is not 1 here


def test_which_numbers_are_decisions():
    assert autotvm.take_apart(KNOBS)[1] == [-1, 8, -1, 16, -1, 7, 1]
    assert autotvm.take_apart(EVERY_KIND)[1] == [-1, 4, 2, 2, 0, 1, 0, 2, 1, 512, 0]
    assert ansor.take_apart(STEPS)[1] == [1024, 2, 32, 2, 8, 5, 4, 512]


@pytest.mark.parametrize(
    "dialect, steps, other",
    [
        (autotvm, [["a", "sp", [1, 2]]], [["a", "sp", [1, 2, 3]]]),
        (autotvm, [["a", "ot", 1]], [["a", "ot", True]]),
        (autotvm, [["a", "ot", 1]], [["b", "ot", 1]]),
        (autotvm, [["a", "ot", "x"]], [["a", "ot", "y"]]),
        (autotvm, [["a", "ot", [1]]], [["a", "ot", 1]]),
        (ansor, [["SP", 1, 0, 8, [2], 1]], [["SP", 1, 1, 8, [2], 1]]),
        (ansor, [["RE", 1, [0, 1]]], [["RE", 1, [1, 0]]]),
        (ansor, [["PR", 1, 0, "a$1"]], [["PR", 1, 0, "b$1"]]),
    ],
)
def test_other_sketches_have_other_shapes(dialect, steps, other):
    assert dialect.take_apart(steps)[0] != dialect.take_apart(other)[0]


# --- a log as columns ---


def test_a_log_becomes_records(tmp_path):
    other = [*CONV[:1], [["TENSOR", [1, 8, 8, 8], "float32"], *CONV[1][1:]], {}]
    path = write(
        tmp_path / "random.log.gz",
        autotvm_line(), autotvm_line(KNOBS[:-1], version="0.13"), autotvm_line(task=other), "",
        autotvm_line([["tile_ic", "sp", [-1, 4]], *KNOBS[1:]], ([1e9], 6, 9.0, 2000.25)),
    )  # fmt: skip
    log, (block,), refused = read(path)
    assert refused == [] and (log.name, log.lines, log.target) == ("AutoTVM", 4, "llvm -keys=cpu")
    assert log.errors == {"ok": 3, "timeout": 1}
    keys = texts(block["task_key"])
    assert keys[0] == keys[1] == keys[3] != keys[2] and all(len(key) == 16 for key in keys)
    sketches = block["sketch_id"].tolist()
    assert sketches[0] == sketches[2] == sketches[3] != sketches[1]
    assert block["program_id"].tolist() == [1, 2, 3, 5]
    assert rows(block["decisions"])[1] == [-1, 8, -1, 16, -1, 7] and rows(block["decisions"])[3][1] == 4
    assert rows(block["latencies_s"]) == [[0.5, 0.25], [0.5, 0.25], [0.5, 0.25], []]
    assert texts(block["error"]) == ["ok", "ok", "ok", "timeout"] and texts(block["message"])[3] == "build timeout"
    assert block["measured_at"][3] == np.datetime64(datetime(1970, 1, 1, 0, 33, 20, 250000), "us")
    assert texts(block["tvm_version"]) == ["0.10.0", "0.13", "0.10.0", "0.10.0"]
    assert set(texts(block["host"])) == {"llvm -keys=cpu"}
    assert json.loads(texts(block["protocol"])[0]) == {"log": "AutoTVM", "version": 0.2}
    assert not block["checked"].any() and not block["disturbed"].any()
    tasks, found = log.known.task_rows(), log.known.sketch_rows()
    assert {row["task_key"] for row in tasks} == set(keys) and {row["op_type"] for row in tasks} == {"conv2d"}
    assert json.loads(tasks[0]["module_json"])["task"] == "conv2d_NCHWc.x86"
    assert {(row["task_key"], row["sketch_id"]) for row in found} == set(zip(keys, sketches, strict=True))


def test_an_ansor_log_becomes_records(tmp_path):
    log, (block,), refused = read(write(tmp_path / "a100.json", ansor_line(), ansor_line(result=([1e10], 2, 0.1, 1))))
    assert refused == [] and (log.name, log.target) == ("Ansor", "cuda -arch=sm_80")
    assert rows(block["decisions"]) == [[1024, 2, 32, 2, 8, 5, 4, 512]] * 2 and rows(block["latencies_s"]) == [
        [0.5],
        [],
    ]
    assert texts(block["error"]) == ["ok", "build"] and texts(block["message"])[1] == "compile error on the host"
    (task,), (sketch,) = log.known.task_rows(), log.known.sketch_rows()
    assert (task["name"], task["op_type"]) == ("matmul 512 64", "matmul")
    assert json.loads(task["module_json"])["workload_key"] == ["matmul", 512, 64]
    steps = json.loads(sketch["trace_json"])["steps"]
    assert ansor.fill(steps, iter(rows(block["decisions"])[0])) == STEPS


def test_tensets_hashed_workload_keys_are_tasks_too(tmp_path):
    keys = ['["6b7583cf23c7c37d3212cad9d06e58c1", 1, 14, 14, 512]', "no JSON at all"]
    log, _, refused = read(write(tmp_path / "t.json", *(ansor_line(key=key, target="llvm -mcpu=x") for key in keys)))
    assert refused == [] and {row["op_type"] for row in log.known.task_rows()} == {"unknown"}


def test_sizes_without_names_are_not_multiplied(tmp_path):
    """A 1x1 convolution of ResNet-50 with its residual has four tensors; only a size that none could have is refused."""
    shapes = "[1, 56, 56, 64], [1, 1, 64, 256], [1, 56, 56, 256], [1, 56, 56, 256]"
    keys = [f'["6b7583cf23c7c37d3212cad9d06e58c1", {shapes}]', f'["6b7583cf23c7c37d3212cad9d06e58c1", {shapes}, [{2**62}]]']
    log, _, refused = read(write(tmp_path / "t.json", *(ansor_line(key=key, target="llvm -mcpu=x") for key in keys)))
    assert len(log.known.task_rows()) == 1 and [number for number, _ in refused] == [2]


@pytest.mark.parametrize(
    ("name", "operator"),
    [("conv2d_bn_relu", "conv2d"), ("max_pool2d_relu", "pool"), ("dense_relu", "matmul"), ("relu", "elementwise"), ("mystery", "unknown")],
)
def test_the_operator_is_not_what_it_ends_in(name, operator):
    assert operator_in(name) == operator


def test_the_same_program_has_the_same_key_in_every_log(tmp_path):
    """So that records of two platforms can be joined; the target is no part of the key."""
    first = write(tmp_path / "a.log", autotvm_line(KNOBS[:1]), autotvm_line())
    second = write(tmp_path / "b.log", autotvm_line(target="llvm -keys=arm_cpu"))
    (_, (one,), _), (_, (two,), _) = read(first), read(second)
    assert texts(one["task_key"])[1] == texts(two["task_key"])[0]
    assert one["sketch_id"][1] == two["sketch_id"][0] != one["sketch_id"][0]


def test_two_sketches_never_share_a_number(monkeypatch):
    monkeypatch.setattr("tcl_core.programs.tuning_logs.known.zlib.crc32", lambda data: 0xFFFFFFFF)
    known = Known()
    texts = ['{"log": 1}', '{"log": 2}', '{"log": 1}']
    assert [known.sketch_id("task", text) for text in texts] == [0x7FFFFFFF, 0, 0x7FFFFFFF]
    again = Known(known.task_rows(), known.sketch_rows())
    assert [again.sketch_id("task", text) for text in reversed(texts)] == [0x7FFFFFFF, 0, 0x7FFFFFFF]


# --- lines that cannot become records ---


def without(line: dict, key: str) -> dict:
    return {name: value for name, value in line.items() if name != key}


@pytest.mark.parametrize(
    "bad, reason",
    [
        ("garbage", "no JSON"),
        (json.dumps(autotvm_line())[:-30], "no JSON"),
        ("\x00\xff" * 9, "no JSON"),
        ("[1, 2]", "not shaped as a line of AutoTVM"),
        ("3", "not shaped as a line of AutoTVM"),
        (ansor_line(), "lacks 'input'"),
        (without(autotvm_line(), "result"), "lacks 'result'"),
        (autotvm_line() | {"input": [CPU]}, "not shaped"),
        (autotvm_line() | {"config": {"index": 1}}, "lacks 'entity'"),
        (autotvm_line(result=([0.5], 99, 1, 1)), "error number 99 is none of TVM's"),
        (autotvm_line(result=([0.5], "0", 1, 1)), "error number '0'"),
        (autotvm_line(result=([], 0, 1, 1)), r"latencies [] of a program measured without error"),
        (autotvm_line(result=([0.5, 0.0], 0, 1, 1)), "latencies [0.5, 0.0]"),
        (autotvm_line(result=([-1], 0, 1, 1)), "latencies [-1]"),
        (autotvm_line(result=(["fast"], 0, 1, 1)), "not shaped"),
        (autotvm_line(result=(1e9, 4, 9, 0)), "latencies 1000000000.0 are no list"),
        (autotvm_line(result=([0.5], 0, 1, -4)), "time stamp -4"),
        (autotvm_line(result=([0.5], 0, 1, None)), "not shaped"),
        (autotvm_line(knobs=[["tile", "sp", [2**31]]]), "does not fit 32 bits"),
        (autotvm_line(knobs=[["tile", "sp"]]), "its program is none of AutoTVM"),
        (autotvm_line(knobs=[["tile", "sp", [[1]]]]), "its program is none of AutoTVM"),
        (autotvm_line(knobs=[["tile", "sp", [1] * 20_000]]), "it has more than 16,384 decisions or latencies"),
        (autotvm_line(result=([0.5] * 20_000, 0, 1, 1)), "it has more than 16,384 decisions or latencies"),
        (autotvm_line(knobs=None), "its program is none of AutoTVM"),
        (autotvm_line(target={"kind": "llvm"}), "its target is no text"),
        (autotvm_line(version=0.12), "its tvm_version is no text"),
        (autotvm_line(version=["0.12"]), "its tvm_version is no text"),
        (autotvm_line(target="cuda"), "its target 'cuda' is not 'llvm -keys=cpu'"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_reason_and_the_others_are_read(tmp_path, bad, reason):
    path = tmp_path / "a.log"
    line = bad.encode("latin-1") if isinstance(bad, str) else json.dumps(bad).encode()
    good = json.dumps(autotvm_line()).encode()
    path.write_bytes(b"\n".join([good, line, good]))
    log, (block,), refused = read(path)
    assert block["program_id"].tolist() == [1, 3] and log.lines == 3
    assert [number for number, _ in refused] == [2] and reason in refused[0][1]


@pytest.mark.parametrize(
    "bad, reason",
    [
        (autotvm_line(), "lacks 'i'"),
        (ansor_line(steps=[["SP", 1, 0, 8]]), "its program is none of Ansor"),
        (ansor_line(steps=[["SP", 1, 0, None, [2], 1]]), "its program is none of Ansor"),
        (ansor_line(steps=[[]]), "its program is none of Ansor"),
        (ansor_line(steps=[["SP", [], 0, 8, [2], 1]]), "its program is none of Ansor"),
        (ansor_line(steps=[["PR", 1, 0, "a$b"]]), "its program is none of Ansor"),
        (ansor_line(steps=[["FSP", 3, 0, 1]]), "its program is none of Ansor"),
        (ansor_line(steps=[["FSP", 3, 0, 1, "2"], *STEPS]), "is no transformation step"),
        (ansor_line(steps=[["FSP", 3, 0, 2, 2], *STEPS]), "['FSP', 3, 0, 2, 2] follows no splits before it"),
        (ansor_line(steps=[*STEPS, ["FSP", 3, 0, 1, 0]]), "follows no splits before it"),
        (ansor_line(steps=[*STEPS, ["FSP", 3, 0, 1, 6]]), "follows no splits before it"),
        (ansor_line(steps=[*STEPS, ["FFSP", 3, 0, [1, 0], 1, 1]]), "follows no splits before it"),
        (ansor_line(steps=[*STEPS, ["FFSP", 3, 0, [1], 4, 1]]), "follows no splits before it"),
        (ansor_line(steps=[*STEPS, ["FFSP", 3, 0, [], 0, 1]]), "follows no splits before it"),
        (ansor_line(key=7), "workload key or target is no text"),
        (ansor_line(result=(1e10, 2, 0.1, 1)), "latencies 10000000000.0 are no list"),
        ({"i": [], "r": [[1], 0, 1, 1]}, "not shaped as a line of Ansor"),
    ],
)
def test_bad_lines_of_ansor(tmp_path, bad, reason):
    _, (block,), refused = read(write(tmp_path / "a.json", ansor_line(), bad, ansor_line()))
    assert block["program_id"].tolist() == [1, 3]
    assert [number for number, _ in refused] == [2] and reason in refused[0][1]


def test_one_target_can_be_chosen(tmp_path):
    lines = [ansor_line(target=f"cuda -arch=sm_{arch}") for arch in (80, 75, 80, 75)]
    path = write(tmp_path / "a.json", *lines)
    _, (block,), refused = read(path)
    assert block["program_id"].tolist() == [1, 3] and "'cuda -arch=sm_75' is not 'cuda -arch=sm_80'" in refused[0][1]
    _, (block,), refused = read(path, wanted="sm_75")
    assert block["program_id"].tolist() == [2, 4] and "is not the wanted one" in refused[0][1]
    _, blocks, refused = read(path, target="cuda -arch=sm_86")
    assert blocks == [] and len(refused) == 4


def test_a_line_that_is_no_program_chooses_no_target(tmp_path):
    log, (block,), refused = read(
        write(tmp_path / "a.log", autotvm_line(knobs=None, target="cuda"), autotvm_line(), autotvm_line(target="cuda"))
    )
    assert log.target == "llvm -keys=cpu" and block["program_id"].tolist() == [2] and [number for number, _ in refused] == [1, 3]


def test_channels_in_blocks_have_no_axes_of_these_templates(tmp_path):
    """Five and six dimensions: taken for four, they would be a sixteenth of the operations."""
    shapes = [["TENSOR", [1, 16, 28, 28, 4], "int8"], ["TENSOR", [32, 16, 3, 3, 4, 4], "int8"]]
    task = ["conv2d_NCHWc_int8.cuda", [*shapes, [1, 1], [1, 1, 1, 1], [1, 1], "NCHWc", "int8"], {}]
    log, (block,), _ = read(write(tmp_path / "a.log", autotvm_line([["tile_f", "sp", [-1, 4]]], task=task)))
    (row,) = log.known.task_rows()
    assert row["op_type"] == "conv2d" and row["flops"] == 0


def test_timestamps_are_utc(tmp_path):
    stamp = datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp()
    _, (block,), _ = read(write(tmp_path / "a.log", autotvm_line(result=([0.5], 0, 1, stamp))))
    assert block["measured_at"].tolist() == [datetime(2024, 5, 1, 12)]


# --- what no tuner has written ---


@pytest.mark.parametrize("sound", [autotvm_line(), autotvm_line(EVERY_KIND), ansor_line()], ids=["AutoTVM", "every-knob", "Ansor"])
def test_whatever_a_line_says_it_is_a_record_or_refused(tmp_path, sound):
    """And what became a record can be encoded."""
    lines = [json.dumps(sound).encode(), *(hostile(json.dumps(sound), seed) for seed in range(400))]
    path = tmp_path / "a.log"
    path.write_bytes(b"\n".join(line or b"{}" for line in lines))
    log, blocks, refused = read(path)
    taken = sum(len(block["program_id"]) for block in blocks)
    assert taken + len(refused) == log.lines == len(lines) and 20 < taken < 300
    encoder = LogEncoder(log.known.task_rows(), log.known.sketch_rows())
    with np.errstate(all="raise"):
        assert all(np.isfinite(encoder.encode_columns(block).features).all() for block in blocks)


@pytest.mark.parametrize(
    "line, reason",
    [
        (ansor_line([{"SP": 1}]), "its program is none of Ansor"),
        (ansor_line([["SP", 2, None, 8, [2], 1]]), "is no transformation step"),
        (ansor_line([[["SP"], 2]]), "is no transformation step"),
        (autotvm_line([[1, "sp", [1, 2]]]), "a knob has the name 1 and the kind 'sp'"),
        (autotvm_line([["a", "sp", [2**31]]]), "a number of its program does not fit 32 bits"),
        (autotvm_line(task=["dense", [["TENSOR", [2**62, 2**62], "float32"]], {}]), "the sizes of its task are none that a program could have"),
        (autotvm_line(task=["dense", [["TENSOR", [-4, 4], "float32"]], {}]), "the sizes of its task are none that a program could have"),
        (ansor_line(key="[" * 700 + "]" * 700), "its program is n"),
        ("[" * 700 + "]" * 700, "not shaped as a line of"),
        ("[" * 5000 + "]" * 5000, "no JSON ("),
        ('{"i": 1, "r": NaN}', "no JSON ("),
        ("\0" * 1000, "no JSON ("),
    ],
)  # fmt: skip
def test_why_a_line_is_refused(tmp_path, line, reason):
    first = ansor_line() if isinstance(line, dict) and "i" in line else autotvm_line()
    _, (block,), refused = read(write(tmp_path / "a.log", first, line, first))
    assert [number for number, _ in refused] == [2] and reason in refused[0][1]
    assert block["program_id"].tolist() == [1, 3]


def test_an_argument_below_0_is_no_size(tmp_path):
    """Keys of functions that users register hold whatever these take, as an axis."""
    log, (block,), refused = read(write(tmp_path / "t.json", ansor_line(key='["softmax", 16, 128, -1]')))
    assert refused == [] and len(rows(block["decisions"])) == 1
    (task,) = log.known.task_rows()
    assert task["op_type"] == "softmax"

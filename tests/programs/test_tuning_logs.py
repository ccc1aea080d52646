"""AutoTVM's and Ansor's logs: what a line becomes, what is refused and why, what is no log."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tcl_core.errors import DataError, UsageError
from tcl_core.features.log_tokens import LogEncoder
from tcl_core.programs.tuning_logs import ansor, autotvm, reading
from tcl_core.programs.tuning_logs.known import Known
from tcl_core.programs.tuning_logs.opening import log_file, log_name, open_log
from tcl_core.programs.tuning_logs.autotvm import read_workload
from tests.programs.hostile_logs import hostile

CPU = "llvm -keys=cpu "
CONV = ["conv2d_NCHWc.x86", [["TENSOR", [1, 32, 56, 56], "float32"], ["TENSOR", [64, 32, 3, 3], "float32"],
        [2, 2], [1, 1, 1, 1], [1, 1], "NCHW", "NCHW", "float32"], {}]  # fmt: skip
KNOBS = [["tile_ic", "sp", [-1, 8]], ["tile_oc", "sp", [-1, 16]], ["tile_ow", "sp", [-1, 7]], ["unroll_kw", "ot", True]]
EVERY_KIND = [["tile", "sp", [-1, 4, 2]], ["order", "re", [2, 0, 1]], ["ann", "an", ["none", "vec", "unroll", "odd"]],
              ["step", "ot", 512], ["flag", "ot", False], ["share", "ot", 0.5], ["none", "ot", None]]  # fmt: skip
STEPS = [["CHW", 2, "local"], ["SP", 2, 0, 1024, [2, 32, 2, 8], 1], ["RE", 2, [0, 5, 1]], ["FSP", 3, 0, 1, 3],
         ["CA", 2, 3, 5], ["FU", 5, [0, 1]], ["AN", 5, 0, 4], ["CI", 1], ["PR", 4, 0, "auto_unroll_max_step$512"],
         ["PR", 4, 0, "parallel_launch"]]  # fmt: skip


def autotvm_line(knobs=KNOBS, result=([0.5, 0.25], 0, 1.5, 1000.5), task=CONV, target=CPU, version="0.10.0"):
    config = {"index": 3, "code_hash": None, "entity": knobs}
    return {"input": [target, *task], "config": config, "result": result, "version": 0.2, "tvm_version": version}


def ansor_line(steps=STEPS, result=([0.5], 0, 1.5, 1000), key='["matmul", 512, 64]', target="cuda -arch=sm_80"):
    return {"i": [[key, target, [-1, 16], "", 0, []], [[], steps]], "r": result, "v": "v0.6"}


def write(path: Path, *lines) -> Path:
    """Lines given as text stay what they are."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    data = ("\n".join(texts) + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path: Path, **about_target):
    """The log, its columns joined, and the refused lines."""
    log, refused = open_log(path, Known(), **about_target), []
    blocks = list(log.columns(lambda number, reason: refused.append((number, reason))))
    return log, blocks, refused


def rows(ragged) -> list[list]:
    return [ragged.values[a:b].tolist() for a, b in pairwise(ragged.offsets)]


def texts(coded) -> list[str]:
    return [coded.names[code] for code in coded.codes]


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


def test_the_same_program_has_the_same_key_in_every_log(tmp_path):
    """So that records of two platforms can be joined; the target is no part of the key."""
    first = write(tmp_path / "a.log", autotvm_line(KNOBS[:1]), autotvm_line())
    second = write(tmp_path / "b.log", autotvm_line(target="llvm -keys=arm_cpu"))
    (_, (one,), _), (_, (two,), _) = read(first), read(second)
    assert texts(one["task_key"])[1] == texts(two["task_key"])[0]
    assert one["sketch_id"][1] == two["sketch_id"][0] != one["sketch_id"][0]


def test_blocks_do_not_change_what_is_read(tmp_path, monkeypatch):
    lines = [autotvm_line([["tile_ic", "sp", [-1, n]]], ([0.1 + n], 0, 1, n)) for n in range(10)]
    whole = read(write(tmp_path / "a.log", *lines))[1]
    monkeypatch.setattr(reading, "BLOCK", 3)
    parts = read(tmp_path / "a.log")[1]
    assert [len(part["round"]) for part in parts] == [3, 3, 3, 1]
    for name in ("decisions", "latencies_s"):
        assert [row for part in parts for row in rows(part[name])] == rows(whole[0][name])
    assert np.concatenate([part["program_id"] for part in parts]).tolist() == list(range(1, 11))


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
        (autotvm_line(result=([0.5], 0, 1, -4)), "time stamp -4"),
        (autotvm_line(result=([0.5], 0, 1, None)), "not shaped"),
        (autotvm_line(knobs=[["tile", "sp", [2**31]]]), "does not fit 32 bits"),
        (autotvm_line(knobs=[["tile", "sp"]]), "its program is none of AutoTVM"),
        (autotvm_line(knobs=[["tile", "sp", [[1]]]]), "its program is none of AutoTVM"),
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
        (ansor_line(key=7), "workload key or target is no text"),
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


# --- files ---


def test_dialects_are_told_from_the_content(tmp_path):
    name = "same.name"
    for line, dialect in ((autotvm_line(), "AutoTVM"), (ansor_line(), "Ansor")):
        assert open_log(write(tmp_path / name, "torn {", "", line), Known()).name == dialect


def test_a_gzip_file_needs_no_suffix(tmp_path):
    write(tmp_path / "a.gz", autotvm_line()).rename(tmp_path / "a.log")
    assert read(tmp_path / "a.log")[0].lines == 1


@pytest.mark.parametrize("cut", [12, 200, -1, -9])
def test_a_cut_off_gzip_file_is_refused_as_a_whole(tmp_path, cut):
    lines = [autotvm_line(result=([0.1 + n / 7], 0, 1, n)) for n in range(300)]
    path = write(tmp_path / "a.log.gz", *lines)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"a\.log\.gz is damaged or cut off after line \d+ .*fetch it again"):
        read(path)


def test_a_damaged_gzip_file_is_refused(tmp_path):
    path = write(tmp_path / "a.log.gz", *[autotvm_line(result=([0.1 + n / 7], 0, 1, n)) for n in range(300)])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DataError, match="is damaged or cut off"):
        read(path)


@pytest.mark.parametrize("content", ["", "\n\n", "# README\n\ntext\n", "{}\n[]\n3\n", '{"a": 1}\n' * 200])
def test_what_is_no_log_is_said(tmp_path, content):
    (tmp_path / "a.log").write_text(content)
    with pytest.raises(DataError, match=r"a\.log is (empty|no tuning log)") as raised:
        open_log(tmp_path / "a.log", Known())
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the log .*gone\.log \(no such file or directory\)"):
        open_log(tmp_path / "gone.log", Known())
    with pytest.raises(UsageError, match=r"the folder .* has no database_tuning_record\.json"):
        log_file(tmp_path)


def test_a_database_is_found_from_its_folder_or_either_file(tmp_path):
    records, workloads = tmp_path / "database_tuning_record.json", tmp_path / "database_workload.json"
    records.write_text("[0, []]\n")
    assert log_file(tmp_path) == log_file(records) == log_file(workloads) == records
    with pytest.raises(UsageError, match=r"its workloads, database_workload\.json, are not beside it"):
        open_log(records, Known())


@pytest.mark.parametrize(
    "path, name",
    [
        ("x/random.log.gz", "random"),
        ("all.json", "all"),
        ("x/tuned/database_tuning_record.json.gz", "tuned"),
        ("a.b.txt", "a.b"),
    ],
)
def test_log_names(path, name):
    assert log_name(Path(path)) == name


# --- workloads ---


def conv(
    task="conv2d_NCHWc.x86",
    data=(1, 32, 57, 56),
    weight=(64, 32, 3, 5),
    strides=(2, 1),
    pads=(1, 2, 1, 2),
    dilation=(1, 1),
):
    tensors = [["TENSOR", list(data), "float32"], ["TENSOR", list(weight), "float32"]]
    return read_workload({"task": task, "args": [*tensors, list(strides), list(pads), list(dilation), "float32"]})


def test_axes_of_a_convolution():
    found = conv()
    assert found.axes == {"n": 1, "co": 64, "oh": 29, "ow": 56, "ci": 32, "kh": 3, "kw": 5}
    assert found.flops == 2 * 64 * 29 * 56 * 32 * 3 * 5 and found.operator == "conv2d" and found.strides == (2, 1)
    assert (found.spatial, found.reduced) == (64 * 29 * 56, 32 * 3 * 5)
    assert found.argument_bytes == 4 * (32 * 57 * 56 + 64 * 32 * 3 * 5)
    assert found.knobs["tile_ic"] == "ci" and found.knobs["tile_oc"] == "co"
    assert conv(pads=(1, 2)).axes == found.axes


def test_axes_of_a_dilated_convolution():
    assert conv(dilation=(2, 2), strides=(1, 1), pads=(0, 0, 0, 0)).axes["oh"] == 57 - 4


def test_axes_of_a_depthwise_convolution():
    found = conv("depthwise_conv2d_nchw.cuda", (1, 8, 10, 10), (8, 2, 3, 3), (1, 1), (0, 0, 0, 0))
    assert found.axes == {"n": 1, "co": 16, "oh": 8, "ow": 8, "kh": 3, "kw": 3} and found.operator == "depthwise_conv2d"
    assert found.knobs["tile_ic"] == "co"


@pytest.mark.parametrize(
    "task, shapes, axes",
    [
        ("dense_pack.x86", ([4, 32], [10, 32]), {"b": 1, "m": 4, "n": 10, "k": 32}),
        ("batch_matmul.x86", ([3, 4, 32], [3, 10, 32]), {"b": 3, "m": 4, "n": 10, "k": 32}),
        ("batch_matmul.cuda", ([3, 4, 32], [3, 32, 10]), {"b": 3, "m": 4, "n": 10, "k": 32}),
    ],
)
def test_axes_of_matrix_products(task, shapes, axes):
    found = read_workload({"task": task, "args": [["TENSOR", shape, "float16"] for shape in shapes]})
    assert found.axes == axes and found.operator == "matmul" and found.flops == 2 * np.prod(list(axes.values()))
    assert found.argument_bytes == 2 * sum(np.prod(shape) for shape in shapes)


@pytest.mark.parametrize("args", [[], [3], [["TENSOR", [4], "float32"]], [["TENSOR", [4, 4], "float32"]] * 2])
@pytest.mark.parametrize("task", ["conv2d_nchw.cuda", "dense.x86", "softmax.x86", "conv2d_nhwc.x86"])
def test_templates_with_other_arguments_are_tasks_of_which_less_is_known(task, args):
    found = read_workload({"task": task, "args": args})
    assert found.name.startswith(task) and (found.flops > 0) == bool(found.knobs)


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


@pytest.mark.parametrize("name", ["a.log", "a.log.gz"])
def test_a_line_that_is_too_long_is_refused_and_never_held(tmp_path, monkeypatch, name):
    monkeypatch.setattr(reading, "LONGEST", 1 << 20)
    path = write(tmp_path / name, autotvm_line(), "x" * (40 << 20), autotvm_line(), "y" * ((1 << 20) - 1), "z" * ((1 << 20) + 1))
    read(path)  # what is imported when first needed
    tracemalloc.start()
    _, (block,), refused = read(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert block["program_id"].tolist() == [1, 3] and most < 20 << 20
    assert [number for number, _ in refused] == [2, 4, 5] and refused[0][1] == refused[2][1] == "longer than 1 MiB"
    assert refused[1][1].startswith("no JSON")


def test_a_block_ends_when_its_numbers_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_NUMBERS", 20)  # of a line: seven decisions, two latencies
    _, blocks, _ = read(write(tmp_path / "a.log", *[autotvm_line()] * 7))
    assert [len(block["program_id"]) for block in blocks] == [3, 3, 1]


@pytest.mark.parametrize("name, filed", [(".hidden.log", "hidden"), ("..a.b.json.gz", "a.b"), (".log", "log"), ("random.log", "random")])
def test_no_log_is_filed_as_a_hidden_file(tmp_path, name, filed):
    """Readers of the data set take those for left over."""
    assert log_name(tmp_path / name) == filed

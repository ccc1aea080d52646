from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import matmul_module, onnx_model

from tcl_core import store
from tcl_core.compat import load_tvm, structural_key
from tcl_core.errors import UsageError
from tcl_core.programs.graph import PREPARED
from tcl_core.programs.tasks import Task, argument_types, describe, extract_tasks, operator_type

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found(tiny_network):
    return extract_tasks(tiny_network, PREPARED)


def test_the_tasks_of_a_tiny_network(found):
    """Two equal convolutions are one task of weight 2; each operator has its type."""
    by_operator = {}
    for task, weight in found:
        by_operator.setdefault(task.operator, []).append(weight)
    assert by_operator["conv2d"] == [2]
    assert by_operator["depthwise_conv2d"] == [1]
    assert by_operator["mean"] == [1]
    assert by_operator["matmul"] == [1]
    assert by_operator["softmax"] == [1]
    assert sum(weight for _, weight in found) == sum(map(sum, by_operator.values()))
    assert len({task.key for task, _ in found}) == len(found)


def test_flops_are_those_of_the_convolution(found):
    (conv,) = [task for task, _ in found if task.operator == "conv2d"]
    multiply_adds = 8 * 8 * 8 * 8 * 3 * 3  # positions x output channels x input channels x kernel
    assert 2 * multiply_adds <= conv.flops <= 2 * multiply_adds + 10 * 8 * 8 * 8  # bias and relu besides


def test_a_module_survives_its_json(found):
    tvm = load_tvm()
    for task, _ in found:
        assert structural_key(task.module()) == task.key
        tvm.ir.assert_structural_equal(task.module(), tvm.ir.load_json(tvm.ir.save_json(task.module())))


def test_keys_are_the_same_in_a_fresh_process(tmp_path):
    """An ONNX file, because a process without torch starts in half the time."""
    weights = {"w": np.random.default_rng(0).normal(size=(8, 8, 3, 3)).astype(np.float32)}
    nodes = [("Conv", ["x", "w"], ["c"]), ("Relu", ["c"], ["r"]), ("Softmax", ["r"], ["y"])]
    path = onnx_model(tmp_path / "net.onnx", nodes, {"x": (1, 8, 8, 8)}, {"y": (1, 8, 6, 6)}, weights)
    code = (
        "import sys, json; from tcl_core.compat import load_tvm; load_tvm(without_torch=True); "
        "from tcl_core.programs.graph import PREPARED; "
        "from tcl_core.programs.tasks import extract_tasks; "
        "print(json.dumps([[t.key, t.operator, w] for t, w in extract_tasks(sys.argv[1], PREPARED)]))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "123"}
    done = subprocess.run([sys.executable, "-c", code, path], env=environment, capture_output=True, text=True, check=True, cwd="/")
    here = [[t.key, t.operator, w] for t, w in extract_tasks(path, PREPARED)]
    assert {"conv2d", "softmax"} <= {operator for _, operator, _ in here}
    assert json.loads(done.stdout.splitlines()[-1]) == here


def test_keys_tell_programs_apart(matmul, conv, softmax):
    assert len({matmul.task.key, conv.task.key, softmax.task.key}) == 3
    assert structural_key(matmul_module()) == matmul.task.key
    assert structural_key(matmul_module(rows=16)) != matmul.task.key
    assert re.fullmatch("[0-9a-f]{16}", matmul.task.key)


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("fused_matmul_relu", "matmul"),
        ("fused_conv1d12_add", "conv1d"),
        ("fused_conv2d3_add_relu2", "conv2d"),
        ("fused_layer_norm_add", "norm"),
        ("fused_conv3d_mean", "conv3d"),  # the costlier operator decides
        ("max_pool2d1", "pool"),
        ("fused_softmax", "softmax"),
        ("take4", "take"),
    ],
)
def test_operator_types_by_name(conv, name, operator):
    assert operator_type(name, conv.module) == operator


@pytest.mark.parametrize("name", ["main", "fused_add_multiply", ""])
def test_a_name_that_tells_nothing_leaves_it_to_the_blocks(matmul, conv, softmax, name):
    """tune_tir calls every task main; the blocks of a task keep their operators' names."""
    found = [operator_type(name, tiny.module) for tiny in (matmul, conv, softmax)]
    assert found == ["matmul", "conv2d", "softmax"]


def test_blocks_that_tell_nothing_are_told_by_what_they_do():
    """As databases of MetaSchedule have them, which keep no names of functions; a norm adds up on its way."""
    tvm = load_tvm()
    from tvm import te, topi

    x, image, kernel = (te.placeholder(shape, name=name) for shape, name in (((4, 8), "x"), ((1, 4, 6, 6), "d"), ((4, 4, 3, 3), "w")))
    k = te.reduce_axis((0, 8), name="k")
    added = topi.sum(x, axis=1)
    scaled = te.placeholder((8,), name="g")
    found = {
        "sum": [x, added],
        "mean": [x, topi.divide(added, tvm.tirx.const(8.0, "float32"))],
        "conv2d": [image, kernel, topi.nn.conv2d_transpose_nchw(image, kernel, (2, 2), (1, 1, 1, 1), "float32", (1, 1))],
        "norm": [x, scaled, topi.nn.layer_norm(x, scaled, scaled, [1])],
    }
    for operator, arguments in found.items():
        assert operator_type("main", tvm.IRModule({"main": te.create_prim_func(arguments)})) == operator
    y = te.placeholder((4, 8), name="y")
    product = te.compute((4, 4), lambda i, j: te.sum(x[i, k] * y[j, k], axis=k), name="T")
    assert operator_type("main", tvm.IRModule({"main": te.create_prim_func([x, y, product])})) == "matmul"


def test_a_transposed_convolution_with_one_output_is_a_full_one():
    """Its weight is (inputs, outputs, height, width): that of a depthwise one by its shape."""
    tvm = load_tvm()
    from tvm import te, topi

    image, kernel = te.placeholder((1, 4, 6, 6), name="d"), te.placeholder((4, 1, 3, 3), name="w")
    transposed = topi.nn.conv2d_transpose_nchw(image, kernel, (2, 2), (1, 1, 1, 1), "float32", (1, 1))
    depthwise = topi.nn.depthwise_conv2d_nchw(image, kernel, 1, 1, 1)
    for operator, made in (("conv2d", transposed), ("depthwise_conv2d", depthwise)):
        assert operator_type("fused_conv2d_add", tvm.IRModule({"main": te.create_prim_func([image, kernel, made])})) == operator


def test_nothing_telling_is_elementwise():
    tvm = load_tvm()
    from tvm import te

    x = te.placeholder((4, 4), name="x")
    module = tvm.IRModule({"main": te.create_prim_func([x, te.compute((4, 4), lambda i, j: x[i, j] + 1, name="add")])})
    assert operator_type("fused_add_multiply", module) == "elementwise"


def test_depthwise_is_told_by_the_weight():
    load_tvm()
    import tvm
    from tvm import te, topi

    x, w = te.placeholder((1, 8, 8, 8), name="x"), te.placeholder((8, 1, 3, 3), name="w")
    module = tvm.IRModule({"main": te.create_prim_func([x, w, topi.nn.depthwise_conv2d_nchw(x, w, 1, 1, 1)])})
    assert operator_type("fused_conv2d1", module) == "depthwise_conv2d"
    assert operator_type("main", module) == "depthwise_conv2d"
    assert describe("fused_conv2d1", module).operator == "depthwise_conv2d"


def test_a_pointwise_convolution_is_not_depthwise():
    load_tvm()
    import tvm
    from tvm import te, topi

    x, w = te.placeholder((1, 1, 8, 8), name="x"), te.placeholder((8, 1, 3, 3), name="w")
    module = tvm.IRModule({"main": te.create_prim_func([x, w, topi.nn.conv2d(x, w, 1, 1, 1)])})
    assert operator_type("conv2d", module) == "conv2d"  # one grey channel in, eight out


def test_a_task_goes_through_its_row(tmp_path):
    task = Task("0123456789abcdef", "fused_conv2d", "conv2d", 2e9, "{}")
    wanted = {
        "task_key": "0123456789abcdef", "name": "fused_conv2d", "op_type": "conv2d", "flops": 2e9, "module_json": "{}",
    }  # fmt: skip
    assert task.as_row() == wanted and set(wanted) == set(store.SCHEMAS["tasks"].names)
    store.write_table(tmp_path / "tasks.parquet", "tasks", [task.as_row()])
    assert [Task.from_row(row) for row in store.read_table(tmp_path / "tasks.parquet", "tasks")] == [task]


def test_argument_types(conv):
    assert argument_types(conv.module) == [
        ((1, 8, 8, 8), "float32"),
        ((16, 8, 3, 3), "float32"),
        ((1, 16, 1, 1), "float32"),
        ((1, 16, 8, 8), "float32"),
    ]


def test_an_unknown_network():
    with pytest.raises(UsageError, match="^unknown network 'resnet-81'; did you mean 'resnet-18'"):
        extract_tasks("resnet-81", PREPARED)

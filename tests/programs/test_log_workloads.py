"""What AutoTVM's templates compute: axes, operations and bytes, by the arguments of a task."""

from __future__ import annotations

import numpy as np
import pytest

from tcl_core.programs.tuning_logs.autotvm import read_programs, read_workload


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


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 4), ("float16", 2), ("bfloat16", 2), ("float8_e4m3fn", 1), ("bool", 1), ("int64", 8)]
)
def test_bytes_of_a_dtype(dtype, size):
    found = read_workload({"task": "dense.x86", "args": [["TENSOR", [4, 32], dtype], ["TENSOR", [10, 32], dtype]]})
    assert found.argument_bytes == size * (4 * 32 + 10 * 32)


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


@pytest.mark.parametrize(
    ("task", "rows", "columns"),
    [("dense_pack.x86", "tile_y", "tile_x"), ("dense_large_batch.gpu", "tile_x", "tile_y"), ("dense_dsp.arm_cpu", "tile_x", "tile_y")],
)
def test_which_knob_tiles_the_rows_of_a_product(task, rows, columns):
    found = read_workload({"task": task, "args": [["TENSOR", shape, "float32"] for shape in ([128, 32], [10, 32])]})
    assert found.axes == {"b": 1, "m": 128, "n": 10, "k": 32} and found.knobs == {rows: "m", columns: "n", "tile_k": "k"}
    steps = [([knob, "sp", [0, 0]], np.array([[-1, 2]])) for knob in (rows, columns)]
    splits = read_programs(steps, found).actions
    assert [(split.extent, split.axis, split.factors.tolist()) for split in splits] == [(128, 1, [[64, 2]]), (10, 2, [[5, 2]])]


def test_of_a_weight_that_is_transformed_already_the_sizes_alone_are_known():
    """Its first extents are those of Winograd's tiles, then come both channels: no window of 64 x 64, which would not fit into 56 x 56."""
    found = conv("conv2d_nchw_winograd_without_weight_transform.cuda", (1, 64, 56, 56), (6, 6, 64, 64), (1, 1), (1, 1, 1, 1))
    assert list(found.axes.values()) == [1, 64, 56, 56, 6, 6, 64, 64] and (found.knobs, found.flops, found.largest) == ({}, 0.0, 4 * 348160)
    assert found.operator == "conv2d"


@pytest.mark.parametrize("args", [[], [3], [["TENSOR", [4], "float32"]], [["TENSOR", [4, 4], "float32"]] * 2])
@pytest.mark.parametrize("task", ["conv2d_nchw.cuda", "dense.x86", "softmax.x86", "conv2d_nhwc.x86"])
def test_templates_with_other_arguments_are_tasks_of_which_less_is_known(task, args):
    found = read_workload({"task": task, "args": args})
    assert found.name.startswith(task) and (found.flops > 0) == bool(found.knobs)

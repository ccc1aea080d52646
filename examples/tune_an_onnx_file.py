"""Tune a network from an ONNX file, and get a library that runs with TVM's runtime alone.

With a promoted model it is `tcl.tune("net.onnx", "host-avx512", minutes=10, out="fast")`, with the one that comes with TCL
`tcl.tune("net.onnx", tcl.pretrained(), ...)`.  Without any model, as here, the search learns from its own measurements; 24 programs
show the way, real tuning takes some 16 for each task.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tcl_core as tcl

draw = np.random.default_rng(0)
weights = {"w1": draw.normal(size=(128, 256)), "b1": draw.normal(size=256), "w2": draw.normal(size=(256, 64))}
nodes = [
    helper.make_node("Gemm", ["x", "w1", "b1"], ["hidden"]),
    helper.make_node("Relu", ["hidden"], ["positive"]),
    helper.make_node("MatMul", ["positive", "w2"], ["y"]),
]
graph = helper.make_graph(
    nodes, "two_layers",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [32, 128])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [32, 64])],
    [numpy_helper.from_array(values.astype(np.float32), name) for name, values in weights.items()],
)  # fmt: skip

folder = Path(tempfile.mkdtemp())
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder / "net.onnx")

tuned = tcl.tune(folder / "net.onnx", None, trials=24, out=folder / "fast")
print(f"untuned {tuned.untuned_ms:.3f} ms, tuned {tuned.tuned_ms:.3f} ms, {tuned.trials} programs measured")
print("written:", ", ".join(sorted(path.name for path in (folder / "fast").iterdir())))

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from conftest import onnx_model

from tcl_core.compat import load_tvm, make_target
from tcl_core.errors import UsageError
from tcl_core.network_names import NETWORKS, TEXT, Network
from tcl_core.outputs import difference
from tcl_core.programs import network_files, networks
from tcl_core.programs.network_files import load_onnx, onnx_inputs
from tcl_core.programs.networks import check_there, import_network, load_exported, load_relax
from tcl_core.programs.graph import PREPARED
from tcl_core.programs.tasks import EXTRACTION_TARGET, extract_tasks

# --- names ---


@pytest.mark.parametrize(("name", "near"), [("bert-tini", "bert-tiny"), ("mobilenet_v2", "mobilenet-v2"), ("vit", "vit-tiny")])
def test_an_unknown_name_gets_the_nearest(name, near):
    with pytest.raises(UsageError, match=f"^unknown network '{name}'; did you mean '{near}'"):
        load_relax(name)


def test_a_name_like_no_other_gets_the_list():
    with pytest.raises(UsageError, match="^unknown network '???'; known: .*resnet-18".replace("?", r"\?")):
        load_relax("???")


def test_every_named_network_has_its_classes():
    """A wrong class name or size would show only when somebody asks for that network."""
    import transformers

    known = set(dir(transformers))  # importing the models themselves would take a quarter of a minute
    for entry in NETWORKS.values():
        config = getattr(transformers, entry.config)(**entry.sizes)
        assert entry.model in known
        assert all(getattr(config, size) == value for size, value in entry.sizes.items())


def test_a_named_network_through_a_tiny_configuration(monkeypatch):
    """The whole way of a named network, with sizes small enough for a test; seeded, so equal each time."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    tiny = Network("BertModel", "BertConfig", sizes | {"vocab_size": 128}, TEXT)
    monkeypatch.setitem(NETWORKS, "bert-nano", tiny)
    before = torch.random.get_rng_state()
    model, inputs = networks.build_torch("bert-nano")
    assert torch.equal(torch.random.get_rng_state(), before), "what a caller draws is his own affair"
    with torch.inference_mode():
        first, second = model(*inputs), networks.build_torch("bert-nano")[0](*inputs)
    assert first.shape == (1, 128, 16) and torch.equal(first, second)
    program, example = load_exported("bert-nano")
    torch.testing.assert_close(program.module()(*example), first)
    operators = {task.operator for task, _ in extract_tasks("bert-nano", PREPARED)}
    assert {"matmul", "softmax", "take"} <= operators


# --- .pt2 ---


class Ends(torch.nn.Module):
    """The last rows of its input, counted from the end and from the front."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("chosen", torch.tensor([0, -1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        several = x[:, [0, -1]].sum(dim=1) + x[:, :, self.chosen].sum(dim=(1, 2))
        return x[:, -1] + 10 * x[:, :, -2].sum(dim=1) + 100 * x[:, 0] + 1000 * several


def test_what_counts_from_the_end_is_found_there(tmp_path):
    """TVM alone would read outside of the tensor."""
    tvm, given = load_tvm(), torch.arange(1.0, 17.0).reshape(1, 4, 4)
    torch.export.save(torch.export.export(Ends(), (given,)), tmp_path / "ends.pt2")
    read = import_network(str(tmp_path / "ends.pt2"), 1)
    np.testing.assert_array_equal(read.outputs[0], Ends()(given).numpy())
    machine = tvm.relax.VirtualMachine(tvm.compile(read.module, make_target(EXTRACTION_TARGET)), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(read.inputs[0]))
    np.testing.assert_array_equal(found.numpy(), read.outputs[0])


class Overwrites(torch.nn.Module):
    """Works in its input and in a buffer, as networks that normalise or count in place do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1.0)
        x.mul_(2.0).sub_(1.0)
        return x * 3 + self.seen


def test_a_network_that_writes_to_its_input_is_compared_on_what_it_was_given(tmp_path):
    tvm, given = load_tvm(), torch.arange(8.0).reshape(2, 4)
    torch.export.save(torch.export.export(Overwrites(), (given.clone(),)), tmp_path / "overwrites.pt2")
    read = import_network(str(tmp_path / "overwrites.pt2"), 1)
    np.testing.assert_array_equal(read.inputs[0], given.numpy())
    np.testing.assert_array_equal(read.outputs[0], ((2 * given - 1) * 3 + 1).numpy())
    machine = tvm.relax.VirtualMachine(tvm.compile(read.module, make_target(EXTRACTION_TARGET)), tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(read.inputs[0]))  # one array, as PyTorch returns: neither the input nor the buffer
    assert difference([found.numpy()], read.outputs) < 1e-6


def test_a_shape_that_depends_on_data_is_a_sentence(tmp_path):
    """TVM's passes end with a TypeError."""
    nodes = [("Compress", ["x", "c"], ["y"])]
    path = onnx_model(tmp_path / "c.onnx", nodes, {"x": (4, 4)}, {"y": ("n",)}, {"c": np.array([True, False] * 8)})
    model = onnx.load(path)
    del model.graph.initializer[:]
    model.graph.input.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, (16,)))
    onnx.save(model, path)
    with pytest.raises(UsageError, match=r"c\.onnx has a tensor whose shape depends on data \(.*\), and TCL tunes fixed shapes only"):
        extract_tasks(path, PREPARED)


def test_inputs_of_an_onnx_file_by_their_kinds(tmp_path):
    path = onnx_model(tmp_path / "a.onnx", [("Relu", ["x"], ["y"])], {"x": (64,)}, {"y": (64,)})
    model = onnx.load(path)
    kinds = {"ids": onnx.TensorProto.INT64, "attention_mask": onnx.TensorProto.INT64, "flags": onnx.TensorProto.BOOL}
    model.graph.input.extend(onnx.helper.make_tensor_value_info(name, kind, (64,)) for name, kind in kinds.items())
    x, ids, mask, flags = network_files.random_inputs(model)
    assert x.dtype == np.float32 and 0 <= x.min() < 0.2 and 0.8 < x.max() <= 1
    assert ids.dtype == np.int64 and set(ids.tolist()) == {0, 1} and set(flags.tolist()) == {False, True}
    assert mask.dtype == np.int64 and mask.min() == 1 == mask.max()


def test_an_onnx_model_too_large_for_the_checkers_message_is_read(tmp_path, monkeypatch):
    path = onnx_model(tmp_path / "a.onnx", [("Add", ["x", "w"], ["y"])], {"x": (64,)}, {"y": (64,)}, {"w": np.ones(64, np.float32)})
    monkeypatch.setattr(onnx.checker, "MAXIMUM_PROTOBUF", 100)
    assert len(network_files.load_onnx(Path(path), "a.onnx").graph.initializer) == 1


class Add(torch.nn.Module):
    def forward(self, x):
        return x + 1


def save(path, model, inputs, **options):
    torch.export.save(torch.export.export(model, inputs, **options), path)
    return str(path)


def test_a_pt2_file(tiny_network):
    read = import_network(tiny_network)
    assert len(read.module["main"].params) == 1  # the weights are constants
    assert [i.shape for i in read.inputs] == [(1, 8, 8, 8)] and read.outputs is None


def test_what_is_no_network_file_is_named(tmp_path):
    """Not an unknown name, with a guess at which known one was meant."""
    (tmp_path / "net.pt").touch()
    for given in (str(tmp_path / "net.pt"), "nets/mine.bin", "mine.pth"):
        with pytest.raises(
            UsageError, match=r"is no .pt2 or .onnx file, the ones that are read; of a PyTorch network write one with torch"
        ):
            check_there(given)
    (tmp_path / "dir.onnx").mkdir()
    (tmp_path / "link.pt2").symlink_to("gone")
    for name, what in (("dir.onnx", "is a folder"), ("link.pt2", "is a link to a file that does not exist")):
        with pytest.raises(UsageError, match=f"^network file .*{name} {what}; give a .pt2 or .onnx file"):
            check_there(str(tmp_path / name))
    check_there("resnet-18")


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_another_precision_is_named(tmp_path, kind):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    dtype = getattr(torch, kind)
    torch.export.save(torch.export.export(torch.nn.Linear(4, 4).to(dtype).eval(), (torch.ones(1, 4, dtype=dtype),)), tmp_path / "net.pt2")
    element = {"float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE}[kind]
    x, y = (helper.make_tensor_value_info(name, element, [4, 4]) for name in "xy")
    weights = [numpy_helper.from_array(np.ones((4, 4), kind), "w")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "net.onnx")
    for name in ("net.pt2", "net.onnx"):
        with pytest.raises(
            UsageError, match=f"{name} has weights or inputs of {kind}, and float32 is what is tuned; export it from net.float"
        ):
            load_relax(str(tmp_path / name))


def test_a_missing_pt2_file(tmp_path):
    with pytest.raises(UsageError, match=r"^network file .*/none.pt2 does not exist; give a .pt2 or .onnx file"):
        load_relax(str(tmp_path / "none.pt2"))


def test_a_folder_instead_of_a_file(tmp_path):
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(UsageError, match=r"folder.pt2 is a folder; give a .pt2 or .onnx file or one of the known names"):
        load_relax(str(tmp_path / "folder.pt2"))


@pytest.mark.parametrize("keep", [0.5, 0.0])
def test_a_truncated_pt2_file(tmp_path, tiny_network, keep):
    whole = open(tiny_network, "rb").read()
    path = tmp_path / "cut.pt2"
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(UsageError, match=r"^.*/cut.pt2 is not a readable torch.export archive \(.*\); export it again$"):
        load_relax(str(path))


def test_a_pt2_file_with_dynamic_shapes(tmp_path):
    dynamic = {"x": {0: torch.export.Dim("batch", min=2, max=64)}}
    path = save(tmp_path / "dynamic.pt2", Add(), (torch.randn(4, 3),), dynamic_shapes=dynamic)
    with pytest.raises(UsageError, match=r"dynamic.pt2 has dynamic shapes \(.+\); export it with fixed input shapes$"):
        load_relax(path)


def test_a_torch_operator_that_tvm_lacks_is_named(tmp_path):
    class Bessel(torch.nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(x)

    path = save(tmp_path / "bessel.pt2", Bessel(), (torch.randn(4),))
    with pytest.raises(UsageError, match=r"^TVM cannot import .*/bessel.pt2: .*special_bessel_j0"):
        load_relax(path)


# --- .onnx ---


def relu_model(tmp_path, shape=(4, 3)):
    return onnx_model(tmp_path / "model.onnx", [("Relu", ["x"], ["y"])], {"x": shape}, {"y": shape})


def test_an_onnx_file(tmp_path):
    module = load_relax(relu_model(tmp_path))
    (x,) = module["main"].params
    assert [int(d) for d in x.ty.shape] == [4, 3]
    ((task, weight),) = extract_tasks(str(tmp_path / "model.onnx"), PREPARED)
    assert (task.operator, weight) == ("elementwise", 1)


def test_onnx_weights_are_constants(tmp_path):
    """An initializer that is also listed as an input is no input of the network, here and in the importer."""
    weight = {"w": np.eye(3, dtype=np.float32)}
    inputs = {"x": (4, 3), "w": (3, 3)}
    path = onnx_model(tmp_path / "weights.onnx", [("MatMul", ["x", "w"], ["y"])], inputs, {"y": (4, 3)}, weight)
    assert len(load_relax(path)["main"].params) == 1
    assert [given.name for given in onnx_inputs(load_onnx(Path(path), path))] == ["x"]


def test_a_missing_onnx_file(tmp_path):
    with pytest.raises(UsageError, match="none.onnx does not exist"):
        load_relax(str(tmp_path / "none.onnx"))


@pytest.mark.parametrize("keep", [0.5, 0.0])
def test_a_truncated_onnx_file(tmp_path, keep):
    path = tmp_path / "cut.onnx"
    whole = open(relu_model(tmp_path), "rb").read()
    path.write_bytes(whole[: int(len(whole) * keep)])
    with pytest.raises(UsageError, match=r"^cut.onnx is not a readable ONNX model \(.*\); export it again$"):
        load_onnx(path, "cut.onnx")


@pytest.mark.parametrize("shape", [("batch", 3), (4, None), None])
def test_an_onnx_file_with_dynamic_shapes(tmp_path, shape):
    """A named, an unnamed, and no dimensions at all."""
    with pytest.raises(UsageError, match=r"model.onnx.*(dynamic shape; export it with fixed shapes|not a readable)"):
        load_onnx(Path(relu_model(tmp_path, shape)), "model.onnx")


def test_an_onnx_operator_that_tvm_lacks_is_named(tmp_path):
    """``Det`` is in the standard, but not in the importer."""
    path = onnx_model(tmp_path / "det.onnx", [("Det", ["x"], ["y"])], {"x": (3, 3)}, {"y": ()})
    with pytest.raises(UsageError, match=r"^TVM cannot import .*/det.onnx: .*Det"):
        load_relax(path)

"""Network files made by somebody who means harm: none runs anything, each gets a sentence."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from conftest import onnx_model

from tcl_core import cli
from tcl_core.errors import UsageError
from tcl_core.programs import network_files, pt2_archive
from tcl_core.programs.network_files import load_onnx, read_network_file
from tcl_core.programs.pt2_archive import load_pt2
from tcl_core.sandbox import command


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.constant = torch.arange(4.0)

    def forward(self, x):
        return self.layer(x) + self.constant


class Touches:
    """Unpickled, it writes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture(scope="module")
def members():
    """name -> content of a sound archive, below its root folder."""
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(Layer().eval(), (torch.randn(2, 4),)), buffer)
    with zipfile.ZipFile(buffer) as archive:
        return {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def marker(tmp_path):
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o777)
    return tmp_path / "marker"


def write(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"net/{name}", content)
    return path


def edited(content, edit):
    tree = json.loads(content)
    edit(tree)
    return json.dumps(tree).encode()


def pickled(marker):
    buffer = io.BytesIO()
    torch.save((Touches(marker),), buffer)
    return buffer.getvalue()


def pickled_payload(config, folder, kind):
    def make(members, marker):
        def edit(tree):
            payload = next(iter(tree["config"].values()))
            payload |= {"use_pickle": True, "path_name": kind}

        return {config: edited(members[config], edit), f"data/{folder}/{kind}": pickled(marker)}

    return make


def in_program(edit):
    return lambda members, marker: {"models/model.json": edited(members["models/model.json"], lambda tree: edit(tree, marker))}


def text_as_a_size(tree, marker):
    value = next(iter(tree["graph_module"]["graph"]["tensor_values"].values()))
    value["sizes"][0] = {"as_expr": {"expr_str": f"__import__('os').mkdir('{marker}')", "hint": None}}


def text_as_a_number(tree, marker):
    tree["graph_module"]["graph"]["sym_int_values"]["s0"] = {"as_expr": {"expr_str": f"__import__('os').mkdir('{marker}')"}}


def calls_the_system(tree, marker):
    node = tree["graph_module"]["graph"]["nodes"][0]
    node["target"] = "torch.os.mkdir"
    node["inputs"] = [{"name": "", "arg": {"as_string": str(marker)}, "kind": 1}]


def calls_a_library(tree, marker):
    tree["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.load_library"


def reads_a_file(tree, marker):
    tree["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.aten.from_file.default"


def names_a_factory(tree, marker):
    signature = tree["graph_module"]["module_call_graph"][0]["signature"]
    context = {"default_factory_module": "os", "default_factory_name": "getpid", "dict_context": []}
    signature["in_spec"] = json.dumps([1, {"type": "collections.defaultdict", "context": context, "children_spec": []}])


def has_a_script_object(tree, marker):
    tree["graph_module"]["graph"]["custom_obj_values"] = {"obj": {"name": "obj", "class_fqn": "a.b"}}


HOSTILE = {
    "a pickle in the sample inputs": (
        lambda members, marker: {"data/sample_inputs/model.pt": pickled(marker)},
        r"it holds a pickle of more than tensors \(data/sample_inputs/model.pt\), which may run any code",
    ),
    "a bare pickle in the sample inputs": (
        lambda members, marker: {"data/sample_inputs/model.pt": pickle.dumps(Touches(marker), 2)},
        "it holds a pickle of more than tensors",
    ),
    "a pickle in the weights": (
        pickled_payload("data/weights/model_weights_config.json", "weights", "weight_9"),
        r"it holds a pickle of more than tensors \(data/weights/weight_9\)",
    ),
    "a pickle in the constants": (
        pickled_payload("data/constants/model_constants_config.json", "constants", "tensor_9"),
        r"it holds a pickle of more than tensors \(data/constants/tensor_9\)",
    ),
    "the weights of an older format": (
        lambda members, marker: {"data/weights/model.pt": pickled(marker)},
        "it holds a pickle of more than tensors",
    ),
    "an opaque object": (
        pickled_payload("data/constants/model_constants_config.json", "constants", "opaque_obj_0"),
        r"it holds an object that is no tensor \(data/constants/opaque_obj_0\)",
    ),
    "a script object": (
        pickled_payload("data/constants/model_constants_config.json", "constants", "custom_obj_0"),
        "it holds an object that is no tensor",
    ),
    "a script object in the graph": (in_program(has_a_script_object), "it holds a script object"),
    "a compiled library": (
        lambda members, marker: {"data/aotinductor/model/model.so": b"\x7fELF"},
        r"it holds compiled code or sources \(data/aotinductor/model/model.so\)",
    ),
    "a source": (lambda members, marker: {"data/extra/wrapper.cpp": b"int main;"}, "it holds compiled code or sources"),
    "a call of the system": (in_program(calls_the_system), "it calls torch.os.mkdir, which is no operator of a network"),
    "a call that loads a library": (in_program(calls_a_library), "it calls torch.ops.load_library"),
    "an operator that opens files": (in_program(reads_a_file), "it calls torch.ops.aten.from_file.default"),
    "Python objects as inputs": (in_program(names_a_factory), "its inputs or outputs are Python objects"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_an_archive_that_holds_code_is_refused(tmp_path, members, marker, kind):
    make, why = HOSTILE[kind]
    path = write(tmp_path / "evil.pt2", members | make(members, marker))
    sentence = rf"^evil.pt2 is refused: {why}.*; export it again, with tensors only$"
    with open(path, "rb") as file, pytest.raises(UsageError, match=sentence):
        load_pt2(file, "evil.pt2")
    assert not marker.exists()


@pytest.mark.parametrize("edit", [text_as_a_size, text_as_a_number])
def test_text_that_sympy_would_run_is_refused(tmp_path, members, marker, edit):
    path = write(tmp_path / "evil.pt2", members | in_program(edit)(members, marker))
    with open(path, "rb") as file, pytest.raises(UsageError, match=r"^evil.pt2 has dynamic shapes \(__import__"):
        load_pt2(file, "evil.pt2")
    assert not marker.exists()


def tasks_of(network, monkeypatch, capsys):
    """(exit code, standard error) of `tcl tasks`"""
    monkeypatch.setattr(sys, "argv", ["tcl", "tasks", network])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return end.value.code, capsys.readouterr().err


def test_the_command_line_refuses_it(tmp_path, members, marker, monkeypatch, capsys):
    path = write(tmp_path / "evil.pt2", members | HOSTILE["a pickle in the sample inputs"][0](members, marker))
    code, said = tasks_of(str(path), monkeypatch, capsys)
    assert code == 2 and said.count("\n") == 1 and f"{path} is refused: it " in said
    assert not marker.exists()


def test_what_the_check_overlooked_is_stopped_by_the_reader_itself(tmp_path, members, marker, monkeypatch):
    """With a check that sees nothing, the process still may not unpickle; see `_disarm`."""
    for check in ("_check_members", "_check_sizes"):
        monkeypatch.setattr(pt2_archive, check, lambda file: None)
    wheres = ("the sample inputs", "the weights", "the constants")
    for kind in (*(f"a pickle in {where}" for where in wheres), "an opaque object"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
            disarm_until_the_end_of(patch)
            path = write(tmp_path / "evil.pt2", members | HOSTILE[kind][0](members, marker))
            with open(path, "rb") as file, pytest.raises(UsageError, match="^evil.pt2 is"):
                load_pt2(file, "evil.pt2")
        assert not marker.exists(), kind


def disarm_until_the_end_of(patch):
    from sympy.parsing import sympy_parser
    from torch.export.pt2_archive import _package

    for place, name in ((_package, "pickle"), (torch._C, "_pickle_load_obj"), (sympy_parser, "eval_expr")):
        patch.setattr(place, name, getattr(place, name))  # put back when the patch ends


def test_a_reader_has_so_much_time_and_memory_and_no_more(tmp_path, monkeypatch):
    """docs/security.md says how much."""
    for name in ("a.pt2", "a.onnx"):
        (tmp_path / name).write_bytes(b"x" * 1000)
    memory, rights = network_files.memory_and_rights(tmp_path / "a.pt2", "/scratch")
    assert (memory, rights.file_bytes) == ((16 << 30) + 16_000, (16 << 30) + 4_000)
    assert rights.readable == (os.path.realpath(tmp_path / "a.pt2"),) and rights.scratch == "/scratch"
    assert network_files.memory_and_rights(tmp_path / "a.onnx", "/scratch")[1].readable == (
        os.path.realpath(tmp_path / "a.onnx"),
        str(tmp_path),
    )
    assert network_files.READ_S == 900
    monkeypatch.setattr(network_files, "READ_S", 0.01)
    with pytest.raises(UsageError, match="a.pt2 was not read within 0 s; give a smaller network"):
        read_network_file(str(tmp_path / "a.pt2"))


def test_its_reader_is_confined(tmp_path, monkeypatch):
    (tmp_path / "a.pt2").write_bytes(b"x" * 1000)
    asked = []

    def late(command, **_):
        asked.append(command)
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(network_files.subprocess, "run", late)
    with pytest.raises(UsageError, match="was not read within"):
        read_network_file(str(tmp_path / "a.pt2"))
    scratch = json.loads(asked[0][3])["scratch"]
    confined = command("tcl_core.programs.network_files", network_files.memory_and_rights(tmp_path / "a.pt2", scratch)[1])
    assert asked[0][: len(confined)] == confined


def test_a_sound_archive_is_read(tmp_path, members):
    read = read_network_file(str(write(tmp_path / "sound.pt2", members)), threads=1)
    assert [given.shape for given in read.inputs] == [(2, 4)] and [found.shape for found in read.outputs] == [(2, 4)]
    assert len(read.module["main"].params) == 1


@pytest.mark.parametrize("kind", ["bomb", "twins", "many"])
def test_an_archive_of_absurd_size(tmp_path, members, monkeypatch, kind):
    path = tmp_path / "evil.pt2"
    if kind == "bomb":
        write(path, members | {"data/weights/weight_0": bytes(50_000_000)}, zipfile.ZIP_DEFLATED)
    if kind == "twins":
        with pytest.warns(UserWarning), zipfile.ZipFile(write(path, members), "a") as archive:
            archive.writestr("net/models/model.json", "{}")
    if kind == "many":
        monkeypatch.setattr(pt2_archive, "MOST_MEMBERS", 5)
        write(path, members)
    why = {"bomb": "it would unpack to 50,", "twins": "two of its members have one name", "many": "it has .* members"}[kind]
    with open(path, "rb") as file, pytest.raises(UsageError, match=f"^evil.pt2 is refused: {why}"):
        load_pt2(file, "evil.pt2")


def test_a_tensor_larger_than_its_file(tmp_path, members):
    """Declared, with no bytes behind it: PyTorch would fill it with zeros."""

    def edit(tree):
        for payload in tree["config"].values():
            payload["tensor_meta"]["sizes"] = [{"as_int": 1 << 20}, {"as_int": 1 << 20}]

    config = "data/weights/model_weights_config.json"
    hollow = members | {config: edited(members[config], edit), "data/weights/weight_0": b"", "data/weights/weight_1": b""}
    with pytest.raises(UsageError, match=r"evil.pt2 is refused: its tensor .* would have 4,096.0 GiB"):
        with open(write(tmp_path / "evil.pt2", hollow), "rb") as file:
            load_pt2(file, "evil.pt2")


@pytest.mark.parametrize("answer", [b"", b"no archive", pickle.dumps("text")])
def test_a_reader_that_answers_anything_else_is_not_believed(answer):
    with pytest.raises(UsageError, match="^net.pt2 cannot be read; export it again$"):
        network_files._answered(io.BytesIO(answer), "net.pt2 cannot be read")


def test_an_answer_is_never_unpickled(marker):
    buffer = io.BytesIO()
    np.savez(buffer, facts=np.array([Touches(marker)], dtype=object))
    buffer.seek(0)
    with pytest.raises(UsageError, match="cannot be read"):
        network_files._answered(buffer, "net.pt2 cannot be read")
    assert not marker.exists()


def test_what_a_reader_says_is_shown_with_care():
    buffer = io.BytesIO()
    np.savez(buffer, **network_files._facts(kind="SystemExit", refused="\x1b[31mred\n" + "x" * 5000))
    buffer.seek(0)
    with pytest.raises(UsageError) as raised:
        network_files._answered(buffer, "")
    assert "\x1b" not in str(raised.value) and "\n" not in str(raised.value) and len(str(raised.value)) < 1100


@pytest.mark.parametrize("ending", [".pt2", ".onnx"])
def test_a_name_that_is_too_long(ending, monkeypatch, capsys):
    code, said = tasks_of("x" * 300 + ending, monkeypatch, capsys)
    assert code == 2 and said.count("\n") == 1
    assert "characters) (file name too long); give another path" in said


def test_a_name_that_is_too_long_is_a_sentence_to_callers_too():
    with pytest.raises(UsageError, match=r"^cannot read x+.*characters\) \(file name too long\); give another path$"):
        network_files.existing("x" * 300 + ".onnx")


# --- .onnx ---


def test_a_giant_constant_is_refused_by_what_it_declares(tmp_path):
    """A constant of that shape costs the file nothing."""
    nodes = [("ConstantOfShape", ["shape"], ["large"]), ("ReduceSum", ["large"], ["sum"]), ("Add", ["x", "sum"], ["y"])]
    weights = {"shape": np.array([1 << 16, 1 << 16], np.int64)}
    path = Path(onnx_model(tmp_path / "giant.onnx", nodes, {"x": (1, 1)}, {"y": (1, 1)}, weights))
    with pytest.raises(UsageError, match=r"^giant.onnx declares a tensor of 16.0 GiB \(large\); tensors may have 8 GiB"):
        load_onnx(path, "giant.onnx")


def test_a_giant_weight_is_refused_by_what_it_declares(tmp_path):
    weights = {"w": np.eye(3, dtype=np.float32)}
    path = Path(onnx_model(tmp_path / "m.onnx", [("MatMul", ["x", "w"], ["y"])], {"x": (4, 3)}, {"y": (4, 3)}, weights))
    model = onnx.load(path)
    model.graph.initializer[0].dims[:] = [3, 1 << 40]
    onnx.save(model, path)
    with pytest.raises(UsageError, match=r"^m.onnx (declares a tensor of .* GiB \(w\)|is not a readable ONNX model)"):
        load_onnx(path, "m.onnx")


def test_a_giant_that_grows_on_the_way_is_refused_before_it_is_computed(tmp_path):
    """Nothing in the file is large: one constant is expanded by another."""
    weights = {"one": np.ones((1, 1), np.float32), "shape": np.array([1 << 16, 1 << 16], np.int64)}
    nodes = [("Expand", ["one", "shape"], ["large"]), ("ReduceSum", ["large"], ["sum"]), ("Add", ["x", "sum"], ["y"])]
    path = onnx_model(tmp_path / "grows.onnx", nodes, {"x": (1, 1)}, {"y": (1, 1)}, weights)
    with pytest.raises(UsageError, match=r"grows.onnx (declares a tensor of 16.0 GiB|needs more memory|.*large)"):
        read_network_file(path, threads=1)


def test_what_grows_on_the_way_is_refused_before_onnx_evaluates_it(tmp_path, monkeypatch):
    """Its evaluator would allocate what the limit keeps out."""
    weights = {"shape": np.array([1 << 10, 1 << 10], np.int64), "w": np.ones((1 << 10, 1), np.float32)}
    nodes = [("Expand", ["x", "shape"], ["large"]), ("MatMul", ["large", "w"], ["y"])]
    path = onnx_model(tmp_path / "grows.onnx", nodes, {"x": (1, 1)}, {"y": (1 << 10, 1)}, weights)
    monkeypatch.setattr(network_files, "LARGEST_BYTES", 1 << 20)
    monkeypatch.setattr(network_files, "evaluated", lambda *_: pytest.fail("it was computed"))
    with pytest.raises(UsageError, match=r"^grows.onnx declares a tensor of 0.0 GiB"):
        network_files._read(path, "grows.onnx", 1)

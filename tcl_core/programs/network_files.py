"""Read network files from elsewhere: a process of few rights reads them and answers with plain data.

The command is ``python -m tcl_core.sandbox RIGHTS tcl_core.programs.network_files FD MEMORY_BYTES FILE NAME THREADS``; the
answer, in the file FD, is an ``.npz`` of plain arrays:

    facts     JSON as bytes: {"kind", "refused"} if the file is refused, else {"inputs": n, "outputs": n}
    module    the Relax module with its weights as constants, TVM's JSON as bytes
    input_N   example inputs: a .pt2 file's own, or random ones for an .onnx file (``random_inputs``)
    output_0, ...  the network's outputs for these inputs, if THREADS is not 0 and PyTorch or ONNX's evaluator could run it
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core import errors
from tcl_core.compat import load_module, load_tvm
from tcl_core.errors import TclError, UsageError
from tcl_core.files import reading, shown
from tcl_core.programs.pt2_archive import LARGEST_BYTES, last_line, load_pt2
from tcl_core.sandbox import Rights, command, scratch_folder

READ_S = 900.0
EVALUATED_S = 120  # of them for ONNX's evaluator
READER_BYTES = 16 << 30  # of memory, beside what its file needs


@dataclass(frozen=True)
class Imported:
    """A Relax module, the inputs to compare it on, and the network's ``outputs`` by PyTorch or ONNX's evaluator if that has run it."""

    module: Any
    inputs: list[np.ndarray]
    outputs: list[np.ndarray] | None = None


# --- in the caller's process ---


def read_network_file(name: str, threads: int = 0) -> Imported:
    """Read the network in a ``.pt2`` or ``.onnx`` file; if ``threads`` is not 0, run it: a ``.pt2`` by PyTorch on that many threads.

    Raises UsageError for a missing or damaged file, one that holds code, dynamic shapes, operators that TVM lacks, numbers
    other than float32, and where reading takes too long or too much memory.
    """
    path = existing(name)
    with (
        scratch_folder("reader") as scratch,  # PyTorch does not load without one
        tempfile.TemporaryFile() as answer,
        tempfile.TemporaryFile() as log,
    ):
        memory_bytes, rights = memory_and_rights(path, scratch)
        asked = [str(answer.fileno()), str(memory_bytes), str(path), name, str(threads)]
        try:
            done = subprocess.run(
                [*command("tcl_core.programs.network_files", rights), *asked],
                pass_fds=[answer.fileno()], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=Path(__file__).parents[2], env=os.environ | dict.fromkeys(("TMPDIR", "HOME", "TORCHINDUCTOR_CACHE_DIR"), scratch), timeout=READ_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise UsageError(f"{shown(name)} was not read within {READ_S:.0f} s; give a smaller network") from None
        answer.seek(0)
        why = f"its reader ended with {done.returncode}: {_last_words(log)}"
        return _answered(answer, f"{shown(name)} cannot be read ({why})")


def memory_and_rights(path: Path, scratch: str) -> tuple[int, Rights]:
    """Bytes of memory and rights of a process that reads a network file: it may read that file and write to ``scratch``."""
    folder = [str(path.parent)] if path.suffix == ".onnx" else []  # its weights may be in files beside it
    size = path.stat().st_size
    return READER_BYTES + 16 * size, Rights(scratch, (os.path.realpath(path), *folder), file_bytes=READER_BYTES + 4 * size)


def existing(name: str) -> Path:
    """The absolute path of a network file, since the reader works in another folder.  Raises UsageError if it is no file."""
    path = Path(name)
    with reading(path):
        if there := path.is_file():
            with open(path, "rb"):
                pass
    if not there:
        what = "is a folder" if path.is_dir() else "is a link to a file that does not exist" if path.is_symlink() else "does not exist"
        raise UsageError(f"network file {shown(path)} {what}; give a .pt2 or .onnx file or one of the known names")
    return path.absolute()


def _answered(answer: Any, otherwise: str) -> Imported:
    """The reader's answer.  The file's author may control it: it is read as plain data, and its text is escaped."""
    try:
        with np.load(answer, allow_pickle=False) as said:
            facts = json.loads(said["facts"].tobytes())
            if "refused" in facts:
                kind = errors.PlatformError if facts.get("kind") == "PlatformError" else UsageError
                raise kind(shown(facts["refused"], 1000))
            inputs = [said[f"input_{n}"] for n in range(int(facts["inputs"]))]
            outputs = [said[f"output_{n}"] for n in range(int(facts["outputs"]))] or None
            module = load_module(said["module"].tobytes().decode())
            return Imported(module, inputs, outputs)
    except TclError:
        raise
    except Exception:  # no answer, or half of one
        raise UsageError(f"{otherwise}; export it again") from None


def _last_words(log: Any) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - 4096))
    lines = log.read().decode(errors="replace").strip().splitlines()
    return shown(lines[-1]) if lines else "no word"


# --- in the reader's process ---


def main() -> None:
    answer, memory, path, name, threads = sys.argv[1:]
    limit = limit_memory(int(memory))
    try:
        said = _read(path, name, int(threads))
    except TclError as error:
        said = _facts(kind=type(error).__name__, refused=str(error))
    except MemoryError:
        said = _facts(kind="UsageError", refused=f"{name} needs more memory than {limit >> 30} GiB; give a smaller network")
    with open(int(answer), "wb") as file:
        np.savez(file, **said)


def limit_memory(wanted: int) -> int:
    """Limit this process's address space to ``wanted`` bytes, or to its hard limit if that is lower; return the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return limit


def _facts(**facts: Any) -> dict[str, np.ndarray]:
    return {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)}


def _read(path: str, name: str, threads: int) -> dict[str, np.ndarray]:
    run: Callable[[], list[np.ndarray]]
    if path.endswith(".onnx"):
        load_tvm(without_torch=True)
        model = load_onnx(Path(path), name)
        _check_float32(name, onnx_floats(model))
        inputs, module = random_inputs(model), relax_from_onnx(model, name)
        run = partial(evaluated, model, inputs)
    else:
        with open(path, "rb") as file:
            program, tensors = load_pt2(file, name)
        _check_float32(
            name, {str(t.dtype).removeprefix("torch.") for t in (*program.state_dict.values(), *tensors) if t.is_floating_point()}
        )
        eager: Any = program.module() if threads else None  # before its graph is rewritten for TVM
        run = partial(run_pytorch, eager, tensors, threads)
        inputs, module = [tensor.detach().numpy().copy() for tensor in tensors], relax_from_exported(program, name)
    check_declared(module, name)
    text = load_tvm().ir.save_json(module).encode()
    outputs = run() if threads else []  # last: it may allocate what is declared, and write to inputs and buffers
    said = {"module": np.frombuffer(text, np.uint8)} | {f"input_{n}": array for n, array in enumerate(inputs)}
    said |= {f"output_{n}": array for n, array in enumerate(outputs)}
    return said | _facts(inputs=len(inputs), outputs=len(outputs))


def _check_float32(name: str, kinds: set[str]) -> None:
    """Raise UsageError for weights or inputs of another precision, on which TVM's importers fail with messages of their own."""
    if others := sorted(kinds - {"float32"}):
        raise UsageError(f"{shown(name)} has weights or inputs of {others[0]}, and float32 is what is tuned; export it from net.float()")


def run_pytorch(run: Callable[..., Any], inputs: tuple[Any, ...], threads: int) -> list[np.ndarray]:
    """Run a PyTorch network on ``threads`` threads; return all its outputs, as ``tensors_of`` does."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            return tensors_of(run(*inputs))
    finally:
        torch.set_num_threads(before)


def tensors_of(outputs: Any) -> list[np.ndarray]:
    """The tensors that a PyTorch network returns, lists, tuples and dictionaries flattened: TVM's module returns them in this order."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf.cpu().numpy() for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]


# --- to Relax ---


def relax_from_exported(program: Any, name: str) -> Any:
    """A Relax ``IRModule`` with the weights as constants.  Raises UsageError for an operator that TVM lacks."""
    load_tvm()
    from tvm.relax.frontend.torch import from_exported_program

    count_from_the_front(program)
    return _convert(name, from_exported_program, program, keep_params_as_input=False, unwrap_unit_return_tuple=True)


def count_from_the_front(program: Any) -> None:
    """Rewrite a program's indices that count from the end, as in ``x[:, -1]`` and ``x[:, [0, -1]]``, to count from the front: TVM
    takes negative ones for addresses.
    """
    import torch

    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten.select.int and node.args[2] < 0:
            data, axis, index = node.args
            node.args = (data, axis, index + data.meta["val"].shape[axis])
        if node.target is torch.ops.aten.index.Tensor:
            data, indices = node.args
            with program.graph.inserting_before(node):
                node.args = (
                    data,
                    [_from_the_front(program.graph, each, data.meta["val"].shape[axis]) for axis, each in enumerate(indices)],
                )


def _from_the_front(graph: Any, index: Any, extent: int) -> Any:
    """A tensor of indices modulo ``extent``, so that all count from the front; None (all) and masks are returned as they are."""
    import torch

    if index is None or index.meta["val"].dtype in (torch.bool, torch.uint8):
        return index
    found = graph.call_function(torch.ops.aten.remainder.Scalar, (index, extent))
    found.meta["val"] = index.meta["val"]
    return found


def relax_from_onnx(model: Any, name: str) -> Any:
    """As ``relax_from_exported``, for an ONNX model."""
    load_tvm()
    from tvm.relax.frontend.onnx import from_onnx

    return _convert(name, from_onnx, model, keep_params_in_input=False)


def _convert(name: str, convert: Callable[..., Any], model: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return convert(model, **options)
        except Exception as error:  # the importers signal a missing operator by several types
            raise UsageError(f"TVM cannot import {name}: {last_line(error)}") from error


def check_declared(module: Any, name: str) -> None:
    """Raise UsageError for a tensor above LARGEST_BYTES, which TVM's passes might allocate: some compute what is constant."""
    relax = load_tvm().relax
    for function in module.functions.values():
        if not isinstance(function, relax.Function):
            continue
        variables = [binding.var for block in function.body.blocks for binding in block.bindings]
        for variable in (*function.params, *variables):
            for type_ in getattr(variable.ty, "fields", (variable.ty,)):
                _check_bytes(name, variable.name, *_shape_and_bits(type_))


def _shape_and_bits(type_: Any) -> tuple[list[int], int]:
    """Shape and bits per element of a tensor type; ([], 0) for anything but a tensor of fixed shape."""
    shape = getattr(getattr(type_, "shape", None), "values", None)
    if shape is None or not all(hasattr(dim, "value") or isinstance(dim, int) for dim in shape):
        return [], 0
    return [int(dim) for dim in shape], load_tvm().DataType(str(type_.dtype)).bits


def _check_bytes(network: str, tensor: str, shape: list[int], bits: int) -> None:
    size = math.prod(shape) * bits // 8
    if size > LARGEST_BYTES:
        raise UsageError(
            f"{network} declares a tensor of {size / 2**30:,.1f} GiB ({shown(tensor)}); tensors may have "
            f"{LARGEST_BYTES >> 30} GiB: give a smaller network"
        )


# --- ONNX ---


def load_onnx(path: Path, name: str) -> Any:
    """The checked ``onnx.ModelProto`` of a file.  Raises UsageError if it is damaged, or has dynamic shapes or too large tensors."""
    import onnx

    try:
        onnx.checker.check_model(str(path))  # by its path: a model with its weights may be too large for the checker
        model = onnx.load(path)
    except MemoryError:
        raise
    except Exception as error:  # protobuf and the checker raise unrelated types
        raise UsageError(f"{name} is not a readable ONNX model ({last_line(error)}); export it again") from error
    for given in onnx_inputs(model):
        if any(d.dim_param or d.dim_value <= 0 for d in given.type.tensor_type.shape.dim):
            raise UsageError(f"{name}: input '{shown(given.name)}' has a dynamic shape; export it with fixed shapes")
    for tensor, shape, kind in _declared(model):
        _check_bytes(name, tensor, shape, 8 * onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)
    return model


def _declared(model: Any) -> Iterator[tuple[str, list[int], int]]:
    """(name, shape, ONNX's number of the type) of every tensor whose size the file itself states."""
    from onnx import TensorProto, numpy_helper

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            constants |= {name: a.t for name in node.output for a in node.attribute if a.name == "value"}
    for name, tensor in constants.items():
        yield name, list(tensor.dims), tensor.data_type
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in constants:
            shape = numpy_helper.to_array(constants[node.input[0]]).ravel().tolist()
            value = next((a.t.data_type for a in node.attribute if a.name == "value"), TensorProto.FLOAT)
            yield node.output[0], shape, value
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type.tensor_type
        if kind.elem_type:
            yield value.name, [d.dim_value for d in kind.shape.dim], kind.elem_type


def onnx_inputs(model: Any) -> list[Any]:
    """The inputs that a caller gives (``ValueInfoProto``): older exporters list the weights as inputs too."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [given for given in model.graph.input if given.name not in weights]


def onnx_floats(model: Any) -> set[str]:
    """Floating-point dtypes of an ONNX model's inputs and weights; a single constant does not count as a weight."""
    from onnx import helper

    kinds = [given.type.tensor_type.elem_type for given in onnx_inputs(model)]
    kinds += [tensor.data_type for tensor in model.graph.initializer if math.prod(tensor.dims) > 1]
    names = {str(helper.tensor_dtype_to_np_dtype(kind)) for kind in kinds}
    return {name for name in names if "float" in name}


def evaluated(model: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """An ONNX model's outputs by ONNX's own evaluator, which is slow and knows nothing of TVM's importer.

    Empty if it lacks an operator, takes longer than ``EVALUATED_S``, or an output is no tensor.
    """
    from onnx.reference import ReferenceEvaluator

    def late(*_: object) -> None:
        raise TimeoutError

    before, left = signal.signal(signal.SIGALRM, late), signal.alarm(EVALUATED_S)
    try:
        given = {value.name: array for value, array in zip(onnx_inputs(model), inputs, strict=True)}
        found = ReferenceEvaluator(model).run(None, given)
    except Exception:  # its operators raise types of their own
        return []
    finally:
        signal.alarm(left)
        signal.signal(signal.SIGALRM, before)
    return found if all(isinstance(array, np.ndarray) for array in found) else []


def random_inputs(model: Any) -> list[np.ndarray]:
    """Seeded inputs for an ONNX model: floats from 0 to 1, integers 0 or 1, which most networks accept, and integer masks all 1."""
    import onnx

    rng, found = np.random.default_rng(0), []
    for given in onnx_inputs(model):
        kind = given.type.tensor_type
        dtype, shape = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type), [d.dim_value for d in kind.shape.dim]
        if dtype.kind == "f":
            found.append(rng.uniform(0, 1, shape).astype(dtype))
        else:
            found.append(np.ones(shape, dtype) if "mask" in given.name.lower() else rng.integers(0, 2, shape).astype(dtype))
    return found


if __name__ == "__main__":
    main()

"""Networks: a name or a file -> a torch.export program or an ONNX model -> a Relax module.

Named networks are built from ``transformers`` configurations with random weights, so nothing is downloaded;
latency does not depend on the values.  Batch 1 everywhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tcl_core.compat import load_tvm
from tcl_core.errors import UsageError, unknown_name
from tcl_core.network_names import NETWORKS, TEXT


def load_exported(network: str) -> tuple[Any, tuple[Any, ...]]:
    """A ``torch.export`` program and example inputs of a named network or of a ``.pt2`` file.

    Raises UsageError for an unknown name and for a file that is missing, damaged or has dynamic shapes.
    """
    if network.endswith(".pt2"):
        return _load_pt2(Path(network))
    if network not in NETWORKS:
        raise unknown_name("network", network, NETWORKS)
    model, inputs = build_torch(network)
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export warns about its own deprecated calls
        return torch.export.export(model, inputs), inputs


def build_torch(network: str) -> tuple[Any, tuple[Any, ...]]:
    """The network as an eager ``torch.nn.Module`` in evaluation mode, and example inputs, seeded."""
    import torch
    import transformers

    entry = NETWORKS[network]
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = getattr(transformers, entry.config)(**entry.sizes)
    config.use_cache = False
    model = getattr(transformers, entry.model)(config).eval()
    first_output = _first_output(model).eval()
    if entry.shape == TEXT:
        return first_output, (torch.arange(TEXT[1]).reshape(TEXT),)
    return first_output, (torch.randn(entry.shape),)


def _first_output(model: Any) -> Any:
    """Wrap a transformers model so that it returns one tensor: the logits or the last hidden state."""
    import torch

    class FirstOutput(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(x, return_dict=True)[0]

    return FirstOutput()


def _load_pt2(path: Path) -> tuple[Any, tuple[Any, ...]]:
    import torch

    _require_file(path)
    try:
        program = torch.export.load(path)
    except Exception as error:  # a damaged archive fails in zipfile, json or torch, each in its own way
        raise UsageError(f"{path} is not a readable torch.export archive ({_last_line(error)}); export it again") from error
    if program.range_constraints:
        names = ", ".join(str(symbol) for symbol in program.range_constraints)
        raise UsageError(f"{path} has dynamic shapes ({names}); export it with fixed input shapes")
    inputs, by_name = program.example_inputs or ((), {})
    if by_name or not inputs:
        raise UsageError(f"{path} has no positional example inputs; export it as torch.export.export(model, (input, ...))")
    return program, inputs


def load_relax(network: str) -> Any:
    """The network as a Relax ``IRModule`` with its weights as constants.

    Raises UsageError for a bad name or file, and when TVM has no conversion for one of its operators.
    """
    load_tvm()
    if network.endswith(".onnx"):
        from tvm.relax.frontend.onnx import from_onnx

        return _convert(network, from_onnx, load_onnx(Path(network)), keep_params_in_input=False)
    program, _ = load_exported(network)
    from tvm.relax.frontend.torch import from_exported_program

    return _convert(
        network, from_exported_program, program, keep_params_as_input=False, unwrap_unit_return_tuple=True
    )


def load_onnx(path: Path) -> Any:
    """The checked ``onnx.ModelProto`` of a file.  Raises UsageError: missing, damaged, dynamic shapes."""
    import onnx

    _require_file(path)
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf and the checker raise unrelated types
        raise UsageError(f"{path} is not a readable ONNX model ({_last_line(error)}); export it again") from error
    for given in onnx_inputs(model):
        if any(d.dim_param or d.dim_value <= 0 for d in given.type.tensor_type.shape.dim):
            raise UsageError(f"{path}: input '{given.name}' has a dynamic shape; export it with fixed shapes")
    return model


def onnx_inputs(model: Any) -> list[Any]:
    """The inputs that a caller gives (``ValueInfoProto``): older exporters list the weights as inputs too."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [given for given in model.graph.input if given.name not in weights]


def _convert(network: str, convert: Callable[..., Any], model: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return convert(model, **options)
        except Exception as error:  # the importers signal a missing operator by several types
            raise UsageError(f"TVM cannot import {network}: {_last_line(error)}") from error


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise UsageError(f"network file {path} does not exist; give a .pt2 or .onnx file or one of the known names")


def _last_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].rstrip(".")

"""Networks: a name or a file -> a torch.export program or an ONNX model -> a Relax module.

Named networks are built from ``transformers`` configurations with random weights, so nothing is downloaded;
latency does not depend on the values.  Batch 1 everywhere.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcl_core.compat import load_tvm
from tcl_core.errors import UsageError, unknown_name

IMAGE = (1, 3, 224, 224)
TEXT = (1, 128)


@dataclass(frozen=True)
class Network:
    """How to build one named network: a model class, its configuration class and the sizes that differ."""

    model: str
    config: str
    sizes: dict[str, Any]
    shape: tuple[int, ...] = IMAGE


def _resnet(depths: list[int], layer: str, widths: list[int], model: str = "ResNet") -> Network:
    sizes = {"depths": depths, "hidden_sizes": widths, "layer_type": layer}
    return Network(f"{model}ForImageClassification", f"{model}Config", sizes)


def _bert(layers: int, width: int, prefix: str = "Bert") -> Network:
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": max(2, width // 64),
        "intermediate_size": 4 * width,
    }
    return Network(f"{prefix}Model", f"{prefix}Config", sizes, TEXT)


def _vit(layers: int, width: int, heads: int, prefix: str = "ViT") -> Network:
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
    }
    return Network(f"{prefix}ForImageClassification", f"{prefix}Config", sizes)


NETWORKS: dict[str, Network] = {
    "resnet-18": _resnet([2, 2, 2, 2], "basic", [64, 128, 256, 512]),
    "resnet-50": _resnet([3, 4, 6, 3], "bottleneck", [256, 512, 1024, 2048]),
    "wide-resnet-50": Network(
        "ResNetForImageClassification",
        "ResNetConfig",
        {"depths": [3, 4, 6, 3], "hidden_sizes": [384, 768, 1536, 3072], "embedding_size": 96},
    ),
    "regnet-y-4": Network(
        "RegNetForImageClassification",
        "RegNetConfig",
        {"depths": [2, 6, 12, 2], "hidden_sizes": [128, 192, 512, 1088], "groups_width": 64},
    ),
    "mobilenet-v1": Network("MobileNetV1ForImageClassification", "MobileNetV1Config", {}),
    "mobilenet-v2": Network("MobileNetV2ForImageClassification", "MobileNetV2Config", {}),
    "efficientnet-b0": Network(
        "EfficientNetForImageClassification",
        "EfficientNetConfig",
        {"width_coefficient": 1.0, "depth_coefficient": 1.0, "image_size": 224, "hidden_dim": 1280},
    ),
    "convnext-tiny": Network("ConvNextForImageClassification", "ConvNextConfig", {}),
    "poolformer-s12": Network("PoolFormerForImageClassification", "PoolFormerConfig", {}),
    "vit-tiny": _vit(12, 192, 3),
    "deit-small": _vit(12, 384, 6, "DeiT"),
    "swin-tiny": Network("SwinForImageClassification", "SwinConfig", {}),
    "bert-tiny": _bert(2, 128),
    "bert-small": _bert(4, 512),
    "bert-base": _bert(12, 768),
    "electra-small": _bert(12, 256, "Electra"),
    "albert-base": _bert(12, 768, "Albert"),
    "gpt2-small": Network("GPT2Model", "GPT2Config", {}, TEXT),
    "distilbert": Network(
        "DistilBertModel", "DistilBertConfig", {"dim": 512, "n_layers": 4, "n_heads": 8, "hidden_dim": 2048}, TEXT
    ),
}


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
    inputs = program.example_inputs[0] if program.example_inputs else ()
    return program, inputs


def load_relax(network: str) -> Any:
    """The network as a Relax ``IRModule`` with its weights as constants.

    Raises UsageError for a bad name or file, and when TVM has no conversion for one of its operators.
    """
    load_tvm()
    if network.endswith(".onnx"):
        return _relax_from_onnx(Path(network))
    program, _ = load_exported(network)
    from tvm.relax.frontend.torch import from_exported_program

    return _convert(
        network, from_exported_program, program, keep_params_as_input=False, unwrap_unit_return_tuple=True
    )


def _relax_from_onnx(path: Path) -> Any:
    import onnx
    from tvm.relax.frontend.onnx import from_onnx

    _require_file(path)
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf and the checker raise unrelated types
        raise UsageError(f"{path} is not a readable ONNX model ({_last_line(error)}); export it again") from error
    constants = {tensor.name for tensor in model.graph.initializer}
    for graph_input in model.graph.input:
        dims = graph_input.type.tensor_type.shape.dim
        if graph_input.name not in constants and any(d.dim_param or d.dim_value <= 0 for d in dims):
            raise UsageError(f"{path}: input '{graph_input.name}' has a dynamic shape; export it with fixed shapes")
    return _convert(str(path), from_onnx, model, keep_params_in_input=False)


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

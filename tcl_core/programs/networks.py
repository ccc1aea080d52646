"""Networks: a name or a file -> a torch.export program or an ONNX model -> a Relax module.

Named networks are built here from ``transformers`` configurations with random weights, so nothing is downloaded;
latency does not depend on the values.  Files may come from anybody: ``network_files`` reads them.  Batch 1 everywhere.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core.errors import UsageError, missing_package, unknown_name
from tcl_core.files import shown
from tcl_core.network_names import NETWORKS, TEXT
from tcl_core.programs.network_files import Imported, existing, read_network_file, relax_from_exported, run_pytorch

FILES = (".pt2", ".onnx")


def load_relax(network: str) -> Any:
    """The network as a Relax ``IRModule`` with its weights as constants.

    Raises UsageError for a bad name or file, and when TVM has no conversion for one of its operators.
    """
    return import_network(network).module


def import_network(network: str, threads: int = 0) -> Imported:
    """The network; if ``threads`` is not 0, with what PyTorch computes on that many threads, or ONNX's evaluator for an ONNX file.

    Raises as ``load_relax``.
    """
    if network.endswith(FILES):
        return read_network_file(network, threads)
    program, inputs = load_exported(network)
    outputs = run_pytorch(build_torch(network)[0], inputs, threads) if threads else None
    return Imported(relax_from_exported(program, network), [i.numpy() for i in inputs], outputs)


def example_inputs(network: str) -> list[np.ndarray]:
    """The inputs that the network is compared on.  Raises as ``load_relax``."""
    if network.endswith(FILES):
        return read_network_file(network).inputs
    check_name(network)
    return [tensor.numpy() for tensor in build_torch(network)[1]]


def check_name(network: str) -> None:
    """Raise UsageError for an unknown name."""
    if network in NETWORKS:
        if importlib.util.find_spec("transformers") is None:
            raise missing_package("transformers")
        return
    if os.path.lexists(network) or os.sep in network or Path(network).suffix:
        raise UsageError(
            f"{shown(network)} is no .pt2 or .onnx file, the ones that are read; of a PyTorch network write one with "
            "torch.export.save(torch.export.export(net.eval(), (x,)), 'net.pt2')"
        )
    raise unknown_name("network", shown(network), NETWORKS)


def check_there(network: str) -> None:
    """Raise UsageError for an unknown name or a missing file, before anything long begins."""
    existing(network) if network.endswith(FILES) else check_name(network)


def load_exported(network: str) -> tuple[Any, tuple[Any, ...]]:
    """A ``torch.export`` program and example inputs of a named network.  Raises UsageError for an unknown name."""
    check_name(network)
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
    config = getattr(transformers, entry.config)(**entry.sizes)
    config.use_cache = False
    with torch.random.fork_rng(devices=[]):  # keep the caller's random state
        torch.default_generator.manual_seed(0)  # unlike torch.manual_seed, leaves GPUs' generators alone
        model = getattr(transformers, entry.model)(config).eval()
        first_output = _first_output(model).eval()
        if len(entry.shape) == len(TEXT):
            return first_output, (torch.arange(entry.shape[1]).reshape(entry.shape),)
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

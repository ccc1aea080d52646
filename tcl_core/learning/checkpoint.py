"""Training checkpoints: one safetensors file, replaced atomically.

Progress is stored in the file's metadata, so weights and progress cannot come from two different moments.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from tcl_core.checked import read_tensors, running_code, write_tensors
from tcl_core.errors import DataError
from tcl_core.features.batches import Samples

log = logging.getLogger(__name__)
FILE = "checkpoint.safetensors"
PACKAGE = Path(__file__).parents[1]
TRAINS = ("features", "learning", "models", "chain")  # folders of the code that decides the weights


@dataclass
class Progress:
    """Epochs done, mean training loss and validation metrics of each, and the best epoch by validation so far."""

    epoch: int = 0
    losses: list[float] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0
    best_loss: float = float("inf")
    best_weights: dict[str, Tensor] = field(default_factory=dict)


def run_identity(settings: object, network: nn.Module, train: Samples, valid: Samples | None) -> str:
    """A string that differs between runs that would not end in the same weights: of other settings, data, code or torch."""
    sums = [_code(), checksum(network.state_dict())]
    for samples in (train, valid) if valid is not None else (train,):
        arrays = samples.features, samples.lengths, samples.latencies_s, samples.tasks
        sums += [zlib.crc32(np.ascontiguousarray(array)) for array in arrays]
    return f"{settings!r} {zlib.crc32(repr(sums).encode()):08x}"


@cache
def _code() -> int:
    """CRC-32 of the code that trains and of torch's version; words about the code do not count."""
    files = sorted(path for folder in TRAINS for path in (PACKAGE / folder).glob("*.py"))
    code = [running_code(path.read_text(encoding="utf-8")) for path in files]
    return zlib.crc32(repr((torch.__version__, code)).encode())


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 over the tensors' values, in the mapping's order."""
    sums = [zlib.crc32(tensor.detach().cpu().contiguous().numpy().tobytes()) for tensor in tensors.values()]
    return zlib.crc32(repr(sums).encode())


def save_checkpoint(folder: Path, identity: str, network: nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Atomically replace the folder's checkpoint."""
    tensors = {f"network/{name}": tensor for name, tensor in network.state_dict().items()}
    tensors |= {f"best/{name}": tensor for name, tensor in progress.best_weights.items()}
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"adam/{number}/{name}": tensor for name, tensor in state.items()}
    facts = {name: value for name, value in asdict(progress).items() if name != "best_weights"}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_tensors(folder / FILE, save, tensors, {"identity": identity, "progress": json.dumps(facts)})


def load_checkpoint(folder: Path, identity: str, network: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Restore network and optimizer from the folder's checkpoint and return its Progress; a fresh one if there is none.

    A damaged checkpoint, or one of other data, settings or code, is ignored with a warning and later overwritten.
    """
    path = folder / FILE
    if not path.exists():
        return Progress()
    try:
        tensors, facts = read_tensors(path, load, "training starts anew")
    except DataError as error:
        log.warning("%s", error)
        return Progress()
    if facts["identity"] != identity:
        log.warning("'%s' belongs to other data, settings or code; training starts anew", path)
        return Progress()
    network.load_state_dict(_below("network/", tensors))
    optimizer.load_state_dict({**optimizer.state_dict(), "state": _adam_state(tensors)})
    return Progress(**json.loads(facts["progress"]), best_weights=_below("best/", tensors))


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _adam_state(tensors: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _below("adam/", tensors).items():
        number, key = name.split("/")
        state.setdefault(int(number), {})[key] = tensor
    return state

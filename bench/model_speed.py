"""How fast cost models train and rank: our Mamba, straightforward Mambas, and TLP.

    python bench/model_speed.py [--quick]

The programs are of convolutions whose sketches have 26 tokens (under a CPU target) and 48 (under a CUDA target), with
random decisions.

    training    from tokens in memory through the loop of learning/fit.py, LambdaRank, backward and Adam: batches of
                1024, 64 programs of each of 16 tasks
    inference   from decision vectors to scores, encoder -> tokens -> predict: 1024 programs of one task, as in search
    naive       every token passes every layer; the decays and inputs of all steps come first, then a Python loop over the
                steps, differentiated by autograd: the usual PyTorch Mamba
    reference   the same with the readable scan of models/selective_scan.py, which computes each step's decay in the loop

Models of the same network share their weights; all use two threads and take turns; a figure is the median of its
repeats.  On a machine with a CUDA device the same runs there, in batches up to 65,536.  The cold start is the time of a
fresh process from a saved model to its first predictions, without the import of torch: with kernels that an earlier
process compiled, and once without them.  --quick: fewer repeats, no cold start.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from _tables import ROOT, Quick, arguments, into_document, markdown, save

from tcl_core import environment  # noqa: F401  (before torch is imported)

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tcl_core.compat import load_tvm
from tcl_core.features.batches import Samples
from tcl_core.features.encode import Encoder
from tcl_core.features.layout import KINDS
from tcl_core.learning.fit import FitSettings, fit_network
from tcl_core.models.mamba import MambaModel, MambaNetwork
from tcl_core.models.selective_scan import selective_scan_reference
from tcl_core.models.tlp import TlpModel
from tcl_core.models.torch_model import CHUNK, TorchCostModel
from tcl_core.programs.sketches import DesignSpace
from tcl_core.programs.tasks import describe
from tcl_core.records import ProgramKey

COMMAND = "python bench/model_speed.py"
THREADS, TASKS, BATCH = 2, 16, 1024
PLAIN, LARGEST_NAIVE = ("naive", "reference"), 4096  # in larger batches their states of all steps fill a GPU's memory
TRAINING = FitSettings(epochs=1, batch_size=BATCH)
HARDWARE = [4.0] * 12
CPU = {"kind": "llvm", "num-cores": 2}
CUDA = {
    "kind": "cuda", "arch": "sm_75", "max_threads_per_block": 1024, "max_num_threads": 1024,
    "max_shared_memory_per_block": 49152, "thread_warp_size": 32,
}  # fmt: skip
SPACES = {26: (CPU, 5), 48: (CUDA, 8)}  # tokens: (target, elementwise operations fused into the convolution)


def naive_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """y (B, L, D): compute the decays and inputs of all steps, (B, L, D, N), then loop over the steps."""
    decays = torch.exp(torch.einsum("bld,dn->bldn", delta, A))
    inputs = torch.einsum("bld,bln,bld->bldn", delta, B, u)
    h, outputs = u.new_zeros(len(u), *A.shape), []
    for t in range(u.shape[1]):
        h = decays[:, t] * h + inputs[:, t]
        outputs.append(torch.einsum("bdn,bn->bd", h, C[:, t]))
    return torch.stack(outputs, dim=1) + u * D


class PlainMamba(MambaNetwork):
    """The network of models/mamba.py without its shortcuts."""

    def __init__(self, scan: Callable, features: int) -> None:
        super().__init__(features, len(KINDS), last=True)
        self.scan = scan

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        h = self.standardise(tokens.flatten(0, 1)).view_as(tokens)
        for layer in self.encoder:
            h = F.relu(layer(h))
        h = h + self.mix(self.block_norm(h))
        h = self.decoder_norm(h[torch.arange(len(h), device=h.device), lengths - 1])
        for layer in self.decoder[:-1]:
            h = F.relu(layer(h))
        return self.decoder[-1](h)[:, 0]

    def mix(self, x: Tensor) -> Tensor:
        block = self.block
        x, gate = block.in_proj(x).chunk(2, dim=-1)
        x = F.silu(block.conv(x.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, B, C = block.x_proj(x).split([block.rank, block.state, block.state], dim=-1)
        delta = F.softplus(block.dt_proj(step))
        return block.out_proj(self.scan(x, delta, -torch.exp(block.A_log), B, C, block.D) * F.silu(gate))


class NaiveModel(TorchCostModel):
    name = "naive"
    build = partial(PlainMamba, naive_scan)

    def predict(self, samples: Samples) -> np.ndarray:
        """Run the chunks one after another with all threads: with its large arrays, chunks in parallel are slower."""
        tokens, lengths = torch.from_numpy(samples.features), torch.from_numpy(samples.lengths.astype(np.int64))
        parts = zip(tokens.split(CHUNK), lengths.split(CHUNK), strict=True)
        with torch.inference_mode():
            return torch.cat([self.network(t.to(self.device), n.to(self.device)).cpu() for t, n in parts]).numpy()


class ReferenceModel(TorchCostModel):
    name = "reference"
    build = partial(PlainMamba, selective_scan_reference)


MODELS = {"mamba": MambaModel, "naive": NaiveModel, "reference": ReferenceModel, "tlp": TlpModel}


def convolution(channels: int, size: int, elementwise: int) -> Any:
    """TVM's module of a 3 x 3 convolution followed by ``elementwise`` additions and multiplications, and relu."""
    tvm = load_tvm()
    from tvm import te, topi

    x, w = te.placeholder((1, channels, size, size), name="x"), te.placeholder((channels, channels, 3, 3), name="w")
    y, arguments = topi.nn.conv2d(x, w, 1, 1, 1), [x, w]
    for number in range(elementwise):
        arguments.append(te.placeholder((1, channels, 1, 1), name=f"b{number}"))
        y = (topi.multiply if number % 2 else topi.add)(y, arguments[-1])
    return tvm.IRModule({"main": te.create_prim_func([*arguments, topi.nn.relu(y)])})


def programs(length: int, tasks: int, count: int) -> tuple[Encoder, list[ProgramKey]]:
    """Encoder of ``count`` programs of ``length`` tokens, and their keys, task by task."""
    target, elementwise = SPACES[length]
    shapes = [(channels, size) for channels in (32, 48, 64, 96) for size in (14, 20, 28, 56)][:tasks]
    made = [describe("fused_conv2d", convolution(*shape, elementwise)) for shape in shapes]
    encoder, keys = Encoder(made, []), []
    for seed, task in enumerate(made):
        sketch = DesignSpace(task.key, task.module(), target).sketches()[0]
        encoder.add(sketch)
        drawn = sketch.sample(count // tasks, np.random.default_rng(seed)).tolist()
        keys += [(task.key, sketch.index, tuple(decisions)) for decisions in drawn]
    return encoder, keys


def labelled(length: int, count: int) -> Samples:
    """Programs of 16 tasks, or of fewer where there are not four programs of each, with random latencies."""
    encoder, keys = programs(length, min(TASKS, count // 4), count)
    samples = encoder.encode(keys, HARDWARE, np.random.default_rng(0).uniform(1e-4, 1e-3, len(keys)))
    assert (samples.lengths == length).all()
    return samples


def same_weights(samples: Samples, device: str) -> dict[str, TorchCostModel]:
    """The models, ready to train and predict; ``PLAIN`` ones have our Mamba's weights and must predict the same."""
    models = {name: kind(TRAINING, device) for name, kind in MODELS.items()}
    for name, model in models.items():
        model.network = model._seeded(samples.features.shape[2]).to(device)
        if name in PLAIN:
            model.network.load_state_dict(models["mamba"].network.state_dict())
            few = samples.take(np.arange(0, len(samples), max(1, len(samples) // 64)))
            np.testing.assert_allclose(model.predict(few), models["mamba"].predict(few), rtol=1e-3, atol=1e-4)
    return models


def seconds(work: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def rates(length: int, count: int, repeats: int, device: str) -> dict[str, dict[str, float]]:
    """Model -> programs per second of training and inference, medians over ``repeats`` turns."""
    samples, (encoder, keys) = labelled(length, count), programs(length, 1, count)
    models = same_weights(samples, device)
    if count > LARGEST_NAIVE:
        models = {name: model for name, model in models.items() if name not in PLAIN}
    batch = FitSettings(epochs=1, batch_size=count)
    train = {name: partial(fit_network, model.network, samples, settings=batch) for name, model in models.items()}
    infer = {name: lambda m=model: m.predict(encoder.encode(keys, HARDWARE)) for name, model in models.items()}
    found: dict[str, dict[str, list[float]]] = {name: {"train": [], "infer": []} for name in models}
    for turn in range(repeats + 1):
        for kind, works in (("train", train), ("infer", infer)):
            for name, work in works.items():
                took = seconds(work, device)
                if turn:  # the first turn compiles kernels and fills caches
                    found[name][kind].append(count / took)
    return {name: {kind: statistics.median(values) for kind, values in kinds.items()} for name, kinds in found.items()}


def ratios(found: dict[str, dict[str, float]]) -> dict[str, float]:
    """How many times faster our Mamba is than each other model."""
    return {
        f"{kind}_vs_{name}": found["mamba"][kind] / found[name][kind] for kind in ("train", "infer") for name in found if name != "mamba"
    }


COLD = """
import json, sys, torch, time
start = time.perf_counter()
import numpy as np
from tcl_core.features.batches import Samples
from tcl_core.models import catalogue
model = catalogue.load(sys.argv[1])
tokens = np.load(sys.argv[2])
count = len(tokens)
samples = Samples(tokens, np.full(count, tokens.shape[1], np.int32), np.zeros(count, np.int32), np.full(count, np.inf))
model.predict(samples)
print(json.dumps(time.perf_counter() - start))
"""


COLD_COUNTS = {"mamba": (16, BATCH), "tlp": (16, BATCH)}  # programs that each model scores first


def cold_starts(samples: Samples, repeats: int, counts: Mapping[str, Sequence[int]]) -> dict[str, dict[str, dict[str, float]]]:
    """Model -> programs -> seconds from the end of torch's import to the first predictions of a fresh process.

    ``first``: of the first process on a machine, which compiles kernels; ``later``: the median of those after it.
    """
    models = same_weights(samples, "cpu")
    found: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        fresh = {**os.environ, "XDG_CACHE_HOME": folder}  # where kernels are kept
        for name in counts:
            models[name].save(Path(folder) / name)
            for count in counts[name]:
                np.save(f"{folder}/tokens.npy", samples.features[:count])
                command = [sys.executable, "-c", COLD, f"{folder}/{name}", f"{folder}/tokens.npy"]
                first, *later = (json.loads(subprocess.check_output(command, cwd=ROOT, env=fresh)) for _ in range(1 + repeats))
                found.setdefault(name, {})[str(count)] = {"first": first, "later": statistics.median(later)}
    return found


def table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    rows = [
        [f"{name}, L = {length}", f"{kinds['train']:,.0f}", f"{kinds['infer']:,.0f}"]
        for length, models in found.items()
        for name, kinds in models.items()
    ]
    return markdown(["model", "training, programs/s", "inference, programs/s"], rows)


def cold_table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    rows = [
        [name, f"{int(count):,}", f"{seconds['later']:.2f}", f"{seconds['first']:.2f}"]
        for name, counts in found.items()
        for count, seconds in counts.items()
    ]
    return markdown(["model", "first programs scored", "s after torch's import", "s, the first time on a machine"], rows)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="fewer repeats, no cold start")
    given = parser.parse_args()
    torch.set_num_threads(THREADS)
    repeats, count = (1, 16) if given.smallest else (3 if given.quick else 9, BATCH)
    found = {str(length): rates(length, count, repeats, "cpu") for length in SPACES}
    result = {"threads": THREADS, "repeats": repeats, "programs_per_s": found}
    result["summary"] = {length: ratios(models) for length, models in found.items()}
    text = table(found)
    if torch.cuda.is_available() and not given.smallest:
        counts = (1024, 16384) if given.quick else (1024, 4096, 16384, 65536)
        result["cuda"] = {f"{n}": {str(length): rates(length, n, repeats, "cuda") for length in SPACES} for n in counts}
    if not given.quick:
        result["cold_start_s"] = cold_starts(labelled(26, count), *((1, {"mamba": (16,)}) if given.smallest else (3, COLD_COUNTS)))
        into_document("cold_start", cold_table(result["cold_start_s"]))
        print(cold_table(result["cold_start_s"]), end="\n\n")
    save("model_speed", result, COMMAND)
    into_document("model_speed", text)
    print(text)


if __name__ == "__main__":
    main()

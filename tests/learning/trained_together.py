"""What test_distributed.py runs in several processes: each leaves in FOLDER/RANK.json what it saw.

python trained_together.py (scripts|helpers) FOLDER        with torchrun's variables in the environment
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from synthetic import FEATURES, ranking_problem
from torch import nn

from tcl_core.errors import TclError
from tcl_core.features.batches import Samples, concatenate
from tcl_core.learning import distributed
from tcl_core.learning.distillation_loss import DistillationLoss
from tcl_core.learning.fit import FitReport, FitSettings, fit_network, ranking_loss
from tcl_core.models.mamba import MambaNetwork

SETTINGS = FitSettings(epochs=5, batch_size=50, learning_rate=2e-3, checkpoint_every=2)


def problem(seed: int = 0) -> Samples:
    """Tasks of 15 and of 7 programs, so that batches are odd and of different sizes."""
    return concatenate([ranking_problem(seed, tasks=5, programs=15), _later(ranking_problem(seed + 1, tasks=2, programs=7))])


def _later(samples: Samples) -> Samples:
    return replace(samples, tasks=samples.tasks + 5)


def pulled(network: nn.Module, batch) -> torch.Tensor:
    """A loss with a term that is no task's, as the knowledge base's is."""
    return ranking_loss(network, batch) + 0.01 * sum((p**2).sum() for p in network.parameters())


def by_parts(network: nn.Module, batch) -> torch.Tensor:
    """A loss that goes round the network's own call."""
    return (batch.by_task(network.forward(batch.features, batch.lengths)) ** 2 * batch.mask).mean()


CASES = {
    "rank": {},
    "scores": {"settings": replace(SETTINGS, loss="scores")},
    "term of the parameters": {"loss": pulled, "regroup": False},
    "parts of the network": {"loss": by_parts},
    "validated": {"valid": ranking_problem(9, tasks=2), "settings": replace(SETTINGS, learning_rate=2e-2)},
}


class Small(nn.Module):
    """Two layers on the mean token; without a last bias, whose gradient in a ranking loss is rounding alone."""

    def __init__(self, features: int = FEATURES) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features, 32), nn.Tanh(), nn.Linear(32, 1, bias=False))

    def forward(self, tokens, lengths):
        return self.layers(tokens.sum(1) / lengths[:, None])[:, 0]


def fitted(kind: type[nn.Module] = Small, **given) -> dict[str, list[float]]:
    """Losses of the epochs, the epoch that was kept, and what the network says of other programs."""
    torch.manual_seed(0)
    net = kind(FEATURES)
    report = fit_network(net, problem(), **{"settings": SETTINGS, **given})
    return outcome(net, report)


def fitted_on(samples: Samples) -> None:
    torch.manual_seed(0)
    fit_network(Small(), samples, settings=SETTINGS)


def outcome(net: nn.Module, report: FitReport) -> dict[str, list[float]]:
    fresh = ranking_problem(7, tasks=3)
    with torch.no_grad():
        scores = net(torch.from_numpy(fresh.features), torch.from_numpy(fresh.lengths).long())
    return {"losses": list(report.losses), "kept": [report.kept_epoch], "scores": scores.tolist()}


def taught() -> dict[str, list[float]]:
    """What the knowledge base learns by: a teacher's order, trust in it batch by batch, and a pull to what it was."""
    torch.manual_seed(1)
    teacher, before = Small(), Small()
    fisher = {name: torch.ones_like(value) for name, value in before.named_parameters()}
    return fitted(loss=DistillationLoss(teacher, np.array([0.2, 1.0, 0.6]), before, fisher, 0.5, 0.1), regroup=False)


class Trouble:
    """A loss that in one process, at its third call, does something else first."""

    def __init__(self, rank: int, what) -> None:
        self.rank, self.what, self.calls = rank, what, 0

    def __call__(self, net: nn.Module, batch) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3 and dist.get_rank() == self.rank:
            self.what()
        return ranking_loss(net, batch)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sentence(work) -> str:
    try:
        work()
    except TclError as error:
        return f"{error.exit_code} {error}"
    return "no error"


def scripts(folder: Path) -> None:
    """Each process calls ``fit`` itself; at last one says nothing any more."""
    rank = int(os.environ["RANK"])
    join = {"rank": rank, "world_size": 2}
    dist.init_process_group("gloo", init_method=f"file://{folder}/first", timeout=timedelta(seconds=240), **join)
    heard: list[int] = []
    found: dict[str, object] = {name: fitted(**given) for name, given in CASES.items()}
    found["resumed"] = resumed(folder / f"checkpoint-{rank}", heard)
    found["heard"] = heard
    found["checkpoints"] = [path.name for path in sorted(folder.glob("checkpoint-*/*"))]
    found["other data"] = sentence(lambda: fitted_on(ranking_problem(seed=rank)))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    dist.init_process_group("gloo", init_method=f"file://{folder}/second", timeout=timedelta(seconds=3), **join)
    silent = Trouble(1, lambda: time.sleep(120))
    found["silence"] = sentence(lambda: fit_network(Small(), problem(), settings=SETTINGS, loss=silent))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)  # the group is broken: nothing to take leave of


def resumed(folder: Path, heard: list[int]) -> dict[str, list[float]]:
    """Stopped behind the first checkpoint, and then trained to the end; ``heard`` gets the epochs that were told of."""
    calls = 0

    def stopped(net: nn.Module, batch) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise KeyboardInterrupt
        return ranking_loss(net, batch)

    try:
        fitted(loss=stopped, checkpoint=folder)
    except KeyboardInterrupt:
        pass
    return fitted(loss=ranking_loss, checkpoint=folder, on_epoch=lambda epoch, *_: heard.append(epoch))


def helpers(folder: Path) -> None:
    """The first process does all the work, and the other trains what it trains; at last that one dies."""
    rank, found = int(os.environ["RANK"]), {}

    def work() -> str:
        found["taught"] = taught()
        found["mamba"] = fitted(MambaNetwork)
        found["lambda"] = sentence(
            lambda: fit_network(Small(), problem(), settings=SETTINGS, loss=lambda net, batch: net(batch.features, batch.lengths).sum())
        )
        found["after"] = fitted(loss=pulled, regroup=False)
        return "done"

    found["returned"] = distributed.with_helpers(work)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    os.environ["MASTER_PORT"] = os.environ["SECOND_PORT"]  # else who is faster may join what remains of the first group
    dying = Trouble(1, die)
    found["death"] = sentence(lambda: distributed.with_helpers(lambda: fit_network(Small(), problem(), settings=SETTINGS, loss=dying)))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"scripts": scripts, "helpers": helpers}[sys.argv[1]](Path(sys.argv[2]))

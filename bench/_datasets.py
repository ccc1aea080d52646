"""What models are compared on: the reference data set, split by network, and imported logs, split by task."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tcl_core import datasets
from tcl_core.datasets import Case, drawn
from tcl_core.features.batches import concatenate
from tcl_core.models import catalogue
from tcl_core.programs.tuning_logs.opening import log_name
from tcl_core.stages import exchange
from tcl_core.stages.workspace import Workspace

# Training networks whose tasks stand in for the held-out ones while settings are chosen.
VALIDATION = ("resnet-18", "mobilenet-v1", "electra-small")
# Networks on which nothing is chosen: what is ranked of theirs is computed once per release, and each time is written down (sealed.md).
SEALED = (
    "regnet-x-8",
    "convnextv2-atto",
    "textnet-tiny",
    "segformer-b0",
    "pvt-v2-b1",
    "mobilevit-xs",
    "levit-128",
    "squeezebert-small",
    "mpnet-small",
    "llama-tiny",
)
LOG_TASKS_HELD_OUT = 0.25  # of a device's tasks
LOG_PROGRAMS_PER_TASK = 256  # that are trained on, at most


class Reference(datasets.Reference):
    """The data set that comes with TCL, or another of its form."""

    def __init__(self, folder: Path, features: Path, unlabelled: int = 192) -> None:
        """``unlabelled`` is how many programs of each task the teacher ensemble labels (192 in params.yaml)."""
        super().__init__(folder, features)
        self.unlabelled = unlabelled


class Logs:
    """Devices whose tuning logs are imported: a folder of logs below ``autotvm``, or a log below ``ansor``."""

    def __init__(self, logs: Path, scratch: Path) -> None:
        """Import what is not yet below ``scratch``."""
        self.scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        files = {file: file.parent.name for file in sorted(logs.resolve().glob("autotvm/*/*.log.gz"))}
        files |= {file: log_name(file) for file in sorted(logs.resolve().glob("ansor/*.log.gz"))}
        self.devices = list(dict.fromkeys(files.values()))
        self.workspace = Workspace(scratch)  # in which they are imported
        for file, device in files.items():
            if not (self.workspace.imported_folder(device) / "records" / f"{log_name(file)}.parquet").exists():
                exchange.import_logs(self.workspace, [file], device)

    def drawn(self, device: str) -> list[str] | None:
        """The log whose programs were drawn uniformly, which alone is tested; without one, all that a tuner chose is."""
        there = self.workspace.imported_folder(device) / "records" / "random.parquet"
        return ["random"] if there.exists() else None

    def case(self, device: str, seed: int) -> Case:
        """A quarter of the tasks, drawn with the seed, is ranked; of the others a bounded number of programs is trained on."""
        samples = concatenate(list(exchange.imported_batches(self.workspace, device)))
        tested = concatenate(list(exchange.imported_batches(self.workspace, device, self.drawn(device))))
        tasks = np.random.default_rng(seed).permutation(np.unique(tested.tasks)).tolist()
        apart = tasks[: max(1, round(LOG_TASKS_HELD_OUT * len(tasks)))]
        train = samples.take(~np.isin(samples.tasks, apart))
        train = train.take(drawn(train, None, LOG_PROGRAMS_PER_TASK, seed))
        return Case(train, tested.take(np.isin(tested.tasks, apart)), {device: dict.fromkeys(apart, 1.0)})


def reads_of(model: str) -> str:
    """tokens, per-store features or states: what a model of the catalogue is trained on."""
    asked = catalogue.model_class(model)
    return "states" if asked.needs_states else asked.reads

"""Data on which models are compared: the reference data set, split by network, and imported logs, split by task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np

from tcl_core import datasets
from tcl_core.datasets import Case, drawn
from tcl_core.features.batches import Samples, concatenate
from tcl_core.models import catalogue
from tcl_core.platforms import Hardware
from tcl_core.programs.tuning_logs.opening import log_name
from tcl_core.reference import apart
from tcl_core.stages import exchange
from tcl_core.stages.workspace import Workspace

# Training networks whose tasks serve as the validation set while settings are chosen.
VALIDATION = ("resnet-18", "mobilenet-v1", "electra-small")
# Networks on which nothing is chosen: they are ranked once per release, and each time is logged in sealed.md.
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
LOG_PROGRAMS_PER_TASK = 256  # to train on, at most


class Reference(datasets.Reference):
    """The data set that comes with TCL, or another of its form."""

    def __init__(self, folder: Path, features: Path, unlabelled: int = 192, lean: float = 0.0) -> None:
        """``unlabelled``: unmeasured programs of each task that the teacher ensemble labels (192 in params.yaml);  ``lean``: share of
        them that is drawn as in ``tcl_core.programs.pool``.
        """
        super().__init__(folder, features)
        self.unlabelled, self.lean = unlabelled, lean

    @property
    def sets(self) -> tuple[Reference, ...]:
        """The data sets that are learned."""
        return (self,)

    def heap(self, of: Callable[[Reference], Samples]) -> Samples:
        """``of`` each of ``sets`` in one heap, with one task numbering."""
        return of(self)


class Learned:
    """Several data sets of the same platforms that are learned together, one of which is ranked; has ``Reference``'s interface."""

    def __init__(self, sets: Sequence[Reference], ranked: Reference) -> None:
        self.sets, self.ranked, self.platforms = tuple(sets), ranked, ranked.platforms

    @cached_property
    def _counts(self) -> list[int]:
        return [len(each.encoder.numbers) for each in self.sets]

    def heap(self, of: Callable[[Reference], Samples]) -> Samples:
        """``of`` each of ``sets`` in one heap, with distinct task numbers."""
        return apart(list(map(of, self.sets)), self._counts)

    def hardware(self, platform: str) -> Hardware:
        return self.ranked.hardware(platform)

    def case(self, platform: str, reads: str = "tokens", tested: Sequence[str] = (), split: str = "held_out") -> Case:
        """As ``Reference.case``, with the training tasks of all sets; the tested ones are the ranked set's, in its own numbering."""
        cases = {each: each.case(platform, reads, tested, split) for each in self.sets}
        before = range(self.platforms.index(platform))
        return replace(
            cases[self.ranked],
            train=self.heap(lambda each: cases[each].train),
            before=tuple(self.heap(lambda each, place=place: cases[each].before[place]) for place in before),
        )


class Logs:
    """Devices with imported tuning logs: each is a folder of logs below ``autotvm``, or a log below ``ansor``."""

    def __init__(self, logs: Path, scratch: Path) -> None:
        """Import the logs that are not yet below ``scratch``."""
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
        """The log of uniformly drawn programs, which alone is tested; None without one: all that a tuner chose is tested."""
        there = self.workspace.imported_folder(device) / "records" / "random.parquet"
        return ["random"] if there.exists() else None

    def case(self, device: str, seed: int) -> Case:
        """Rank a quarter of the tasks, drawn by the seed; train on at most ``LOG_PROGRAMS_PER_TASK`` programs of each other one."""
        samples = concatenate(list(exchange.imported_batches(self.workspace, device)))
        tested = concatenate(list(exchange.imported_batches(self.workspace, device, self.drawn(device))))
        tasks = np.random.default_rng(seed).permutation(np.unique(tested.tasks)).tolist()
        apart = tasks[: max(1, round(LOG_TASKS_HELD_OUT * len(tasks)))]
        train = samples.take(~np.isin(samples.tasks, apart))
        train = train.take(drawn(train, None, LOG_PROGRAMS_PER_TASK, seed))
        return Case(train, tested.take(np.isin(tested.tasks, apart)), {device: dict.fromkeys(apart, 1.0)})


def reads_of(model: str) -> str:
    """What a model of the catalogue reads: "tokens", "per-store features" or "states"."""
    asked = catalogue.model_class(model)
    return "states" if asked.needs_states else asked.reads

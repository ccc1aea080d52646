"""What models are compared on: the reference data set, split by network, and imported logs, split by task."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from tcl_core import store
from tcl_core.errors import DataError
from tcl_core.evaluation.metrics import Networks
from tcl_core.features.batches import Samples, concatenate, rows_by_task
from tcl_core.features.encode import Encoder
from tcl_core.features.groups import COLUMNS
from tcl_core.features.statements import with_statements
from tcl_core.features.states import with_states
from tcl_core.models import catalogue
from tcl_core.programs.tasks import Task
from tcl_core.programs.tuning_logs.opening import log_name
from tcl_core.stages import exchange
from tcl_core.stages.project import read_saved_hardware

# Training networks whose tasks stand in for the held-out ones while settings are chosen.
VALIDATION = ("resnet-18", "mobilenet-v1", "electra-small")
LOG_TASKS_HELD_OUT = 0.25  # of a device's tasks
LOG_PROGRAMS_PER_TASK = 256  # that are trained on, at most


@dataclass(frozen=True)
class Case:
    """One platform's programs to learn from and to rank.

    networks  the tested tasks and their weights, as metrics take them
    before    training programs of the platforms before this one, in chain order and the same task numbering
    """

    train: Samples
    test: Samples
    networks: Networks
    before: tuple[Samples, ...] = ()

    def thinned(self, tasks: int | None, programs: int | None, seed: int) -> Case:
        """With so many training tasks, and programs of each, drawn with the seed; the same on every platform."""
        keep = lambda samples: samples.take(_drawn(samples, tasks, programs, seed))  # noqa: E731
        return replace(self, train=keep(self.train), before=tuple(map(keep, self.before)))


def _drawn(samples: Samples, tasks: int | None, programs: int | None, seed: int) -> np.ndarray:
    """Rows of the drawn programs; a task's draw depends on its number alone."""
    kept = set(np.random.default_rng(seed).permutation(np.unique(samples.tasks))[:tasks].tolist())
    groups = [rows for rows in rows_by_task(samples.tasks) if int(samples.tasks[rows[0]]) in kept]
    draws = [np.random.default_rng([seed, samples.tasks[rows[0]]]).permutation(rows)[:programs] for rows in groups]
    return np.sort(np.concatenate(draws))


class Reference:
    """The data set of ``bench/reference.py``: tasks of many networks, the same programs on every platform."""

    def __init__(self, folder: Path, features: Path, unmeasured: int = 192) -> None:
        """``features`` is the folder of caches of what programs are lowered for, ``unmeasured`` how many programs of each task
        the committee labels (192 in params.yaml).
        """
        self.folder, self.features, self.unmeasured = folder, features, unmeasured
        rows = store.read_table(folder / "tasks.parquet", "tasks")
        tasks = [Task(r["task_key"], r["name"], r["op_type"], r["flops"], r["module_json"]) for r in rows]
        self.encoder = Encoder(tasks, store.read_table(folder / "sketches.parquet", "sketches"))
        self.uses = store.read_table(folder / "networks.parquet", "networks")
        self.samples = lru_cache(maxsize=4)(self._samples)

    @cached_property
    def platforms(self) -> list[str]:
        """Those that were measured, weakest first, which is the order of their vectors' widths."""
        names = [place.name.removeprefix("platform=") for place in self.folder.glob("platform=*")]
        if not names:
            raise DataError(f"{self.folder} holds no platform; run python bench/reference.py first")
        return sorted(names, key=lambda name: read_saved_hardware(self._place(name)).simd_bytes)

    def _place(self, platform: str) -> Path:
        return self.folder / f"platform={platform}"

    def _samples(self, platform: str, reads: str) -> Samples:
        """All measured programs, in the rows that models read: tokens, statements, or tokens with states."""
        place = self._place(platform)
        blocks, hardware = store.iter_columns(place, COLUMNS), read_saved_hardware(place).vector()
        samples = concatenate([self.encoder.encode_columns(block, hardware) for block in blocks])
        if reads == "tokens":
            return samples
        keys = [record.key for record in store.read_records(place)]
        lowered = with_statements if reads == "statements" else with_states
        return lowered(samples, keys, self.encoder, self.features / reads)

    def case(self, platform: str, reads: str, tested: Sequence[str] = ()) -> Case:
        """Train on the training networks' tasks, rank the held-out networks'.

        With ``tested``, some of the training networks, those are ranked, and what they share is not trained on.
        """
        train, networks = self._split(tested)
        ranked = {task for weights in networks.values() for task in weights}
        place = self.platforms.index(platform)
        pick = lambda samples, tasks: samples.take(np.isin(samples.tasks, list(tasks)))  # noqa: E731
        samples = self.samples(platform, reads)
        return Case(
            train=pick(samples, train),
            test=replace(pick(samples, ranked), states=None),
            networks=networks,
            before=tuple(pick(self.samples(p, "tokens"), train) for p in self.platforms[:place]),
        )

    def _split(self, tested: Sequence[str]) -> tuple[set[int], dict[str, dict[int, float]]]:
        """Numbers of the tasks to train on; tested network -> task -> weight.

        What held-out networks have is never trained on, and never ranked beside other networks' tasks.
        """
        uses = [(use, self.encoder.numbers[use["task_key"]]) for use in self.uses]
        held_out = {task for use, task in uses if use["split"] == "held_out"}
        networks: dict[str, dict[int, float]] = {}
        for use, task in uses:
            if (use["network"] in tested and task not in held_out) or (not tested and use["split"] == "held_out"):
                networks.setdefault(use["network"], {})[task] = float(use["weight"])
        apart = held_out.union(*networks.values())
        return {task for _, task in uses} - apart, networks


class Logs:
    """Devices whose tuning logs are imported: a folder of logs below ``autotvm``, or a log below ``ansor``."""

    def __init__(self, logs: Path, scratch: Path) -> None:
        """Import what is not yet below ``scratch``."""
        self.scratch = scratch
        scratch.mkdir(parents=True, exist_ok=True)
        files = {file: file.parent.name for file in sorted(logs.resolve().glob("autotvm/*/*.log.gz"))}
        files |= {file: log_name(file) for file in sorted(logs.resolve().glob("ansor/*.log.gz"))}
        self.devices = list(dict.fromkeys(files.values()))
        with _inside(scratch):
            for file, device in files.items():
                if not (exchange.imported_folder(device) / "records" / f"{log_name(file)}.parquet").exists():
                    exchange.import_logs([file], device)

    def drawn(self, device: str) -> list[str] | None:
        """The log whose programs were drawn uniformly, which alone is tested; without one, all that a tuner chose is."""
        there = self.scratch / exchange.imported_folder(device) / "records" / "random.parquet"
        return ["random"] if there.exists() else None

    def case(self, device: str, seed: int) -> Case:
        """A quarter of the tasks, drawn with the seed, is ranked; of the others a bounded number of programs is trained on."""
        with _inside(self.scratch):
            samples = concatenate(list(exchange.imported_batches(device)))
            tested = concatenate(list(exchange.imported_batches(device, self.drawn(device))))
        tasks = np.random.default_rng(seed).permutation(np.unique(tested.tasks)).tolist()
        apart = tasks[: max(1, round(LOG_TASKS_HELD_OUT * len(tasks)))]
        train = samples.take(~np.isin(samples.tasks, apart))
        train = train.take(_drawn(train, None, LOG_PROGRAMS_PER_TASK, seed))
        return Case(train, tested.take(np.isin(tested.tasks, apart)), {device: dict.fromkeys(apart, 1.0)})


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Imports are relative to the present folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def reads_of(model: str) -> str:
    """tokens, statements or states: what a model of the catalogue is trained on."""
    return "states" if getattr(catalogue.model_class(model), "needs_states", False) else catalogue.reads(model)

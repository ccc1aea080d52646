"""Targets of several machines that measured the same programs: transfer between CPUs of different makers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
from _datasets import Reference
from _lessons import _drawn_keys
from _tables import ROOT
from _transfer_data import FOLDS, Key, Side, joined

from tcl_core import store
from tcl_core.features.batches import Samples

FOLDERS = {"xeon": Path("registers"), "epyc": Path("epyc", "registers")}  # in data/, of one pool (``reference.py --like``)
LEAN = 0.9  # of that pool, and so of the unmeasured programs


class Machines:
    """Platforms "MACHINE-NAME" of data sets of one pool; each fold tests three of the training networks.

    In a chain only the programs that all of its machines measured count.
    """

    def __init__(self, features: Path, unlabelled: int) -> None:
        self.references = {name: Reference(ROOT / "data" / folder, features, unlabelled, LEAN) for name, folder in FOLDERS.items()}
        self.reference = next(iter(self.references.values()))  # all have the same tasks and programs
        digests = " ".join(store.data_digest(reference.folder) for reference in self.references.values())
        self.digest = hashlib.sha256(digests.encode()).hexdigest()
        self._measured = lru_cache(maxsize=8)(self._read)

    @property
    def platforms(self) -> list[str]:
        return [f"{name}-{platform.removeprefix('host-')}" for name, of in self.references.items() for platform in of.platforms]

    def known_from(self, chain: Sequence[str]) -> tuple[str, ...]:
        """What, beside the fold, the first platform's network depends on: the machines decide which of its programs count."""
        return chain[0], *sorted({machine_of(platform) for platform in chain})

    def sides(self, chain: Sequence[str], fold: int) -> list[Side]:
        train, tested = self.reference._split(FOLDS[fold])
        found = joined([self._measured(platform) for platform in chain])
        numbers = np.array([self.reference.encoder.numbers[key] for key in found[0].task_names])[found[0].tasks]
        rows = [np.flatnonzero(np.isin(numbers, list(tasks))) for tasks in (train, set().union(*tested.values()))]
        return [self._side(platform, samples, *rows) for platform, samples in zip(chain, found, strict=True)]

    def _side(self, platform: str, samples: Samples, train: np.ndarray, test: np.ndarray) -> Side:
        reference, name = self._of(platform)
        hardware = reference.hardware(name).vector()
        number = {samples.task_names[task]: task for task in np.unique(samples.tasks[train]).tolist()}
        keys = [key for key in _drawn_keys(self.reference) if key[0] in number]
        tasks = np.array([number[key[0]] for key in keys], np.int32)
        drawn = replace(self.reference.encoder.encode(keys, hardware), tasks=tasks, task_names=samples.task_names)
        return Side(samples.take(train), samples.take(test), drawn, hardware)

    def _read(self, platform: str) -> tuple[Samples, list[Key]]:
        reference, name = self._of(platform)
        records = store.read_records(reference.folder / f"platform={name}")
        return reference.samples(name), [(r.task_key, r.sketch_id, np.array(r.decisions).tobytes()) for r in records]

    def _of(self, platform: str) -> tuple[Reference, str]:
        """The machine's data set, and the platform's name in it."""
        machine = machine_of(platform)
        return self.references[machine], f"host-{platform.removeprefix(f'{machine}-')}"


def machine_of(platform: str) -> str:
    return platform.partition("-")[0]

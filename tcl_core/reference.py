"""The data sets that come with TCL: measured programs of many networks' tasks, on several platforms.

All platforms measured the same programs, except in SEARCHED and VARIANTS.

PACKAGED   networks as their authors wrote them
PREPARED   as params.yaml prepares them, without Winograd and rounding up, which came later: most of the tasks that projects have
REGISTERS  as params.yaml prepares them; nine in ten programs are of the kind that a search chooses among (``programs.registers``)
SEARCHED   programs that searches proposed for the tasks of REGISTERS, and random draws: AVX2 on another machine, and AVX-512
VARIANTS   few programs each of many more tasks to train on: of the training networks in other sizes
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path

import numpy as np

from tcl_core import store
from tcl_core.errors import DataError, UsageError, unknown_name
from tcl_core.evaluation.metrics import Networks
from tcl_core.features.batches import Samples, concatenate, rows_by_task
from tcl_core.features.encode import Encoder
from tcl_core.features.per_store import with_per_store
from tcl_core.features.states import with_states
from tcl_core.features.tokens import with_hardware
from tcl_core.files import shown, user_cache
from tcl_core.platforms import Hardware, read_saved_hardware
from tcl_core.programs.tasks import Task
from tcl_core.records import ProgramKey, Record

PACKAGED = Path(__file__).parent / "package_data" / "reference"
PREPARED = PACKAGED.with_name("prepared")
REGISTERS = PACKAGED.with_name("registers")
SEARCHED = PACKAGED.with_name("searched")
VARIANTS = PACKAGED.with_name("variants")
LEARNED = PREPARED, REGISTERS, SEARCHED, VARIANTS
"""Data sets that projects learn beside their own measurements, and that the model that comes with TCL learns (``shipped``)."""


AS_IT_CAME = store.Remedy(
    "the data set is not whole: install TCL again, or copy the folder anew (in a checkout: git checkout data)",
    "install TCL again, or copy the folder anew (in a checkout: git checkout data)",
)


def cache_of_features() -> Path:
    """The user's cache folder for features of lowered programs.  Raises UsageError for a user without a home."""
    try:
        return user_cache("features")
    except RuntimeError as error:
        raise UsageError(f"there is no folder to keep what programs are lowered for in ({error}); set XDG_CACHE_HOME to one") from None


@dataclass(frozen=True)
class Case:
    """One platform's programs to learn from and to rank.

    networks  tested network -> task -> weight, as metrics take them
    before    training programs of the platforms before this one, in chain order, with the same task numbers
    """

    train: Samples
    test: Samples
    networks: Networks
    before: tuple[Samples, ...] = ()

    def thinned(self, tasks: int | None, programs: int | None, seed: int) -> Case:
        """The case with only ``tasks`` training tasks and ``programs`` of each (None: all), drawn with the seed.

        The draw is the same on every platform if all programs were measured on each.
        """
        keep = lambda samples: samples.take(drawn(samples, tasks, programs, seed))  # noqa: E731
        return replace(self, train=keep(self.train), before=tuple(map(keep, self.before)))


def drawn(samples: Samples, tasks: int | None, programs: int | None, seed: int) -> np.ndarray:
    """Rows of ``tasks`` tasks and ``programs`` of each (None: all), drawn with the seed; no other task changes a task's draw."""
    kept = set(np.random.default_rng(seed).permutation(np.unique(samples.tasks))[:tasks].tolist())
    groups = [rows for rows in rows_by_task(samples.tasks) if int(samples.tasks[rows[0]]) in kept]
    draws = [np.random.default_rng([seed, samples.tasks[rows[0]]]).permutation(rows)[:programs] for rows in groups]
    return np.sort(np.concatenate([np.zeros(0, np.int64), *draws]))


def learned_sets() -> list[Reference]:
    """The data sets of ``LEARNED``, opened."""
    return [Reference(folder) for folder in LEARNED]


def shipped(heap: Callable[[Reference], Samples], sets: Sequence[Reference] | None = None) -> Samples:
    """Concatenate what ``heap`` takes from each data set of ``LEARNED``, each with task numbers of its own.

    A task of a data set has the same number in every heap.  Give ``sets``, from ``learned_sets``, to take several heaps:
    reading their sketches takes seconds.
    """
    sets = learned_sets() if sets is None else sets
    return apart(list(map(heap, sets)), [len(data.platforms) * len(data.encoder.numbers) for data in sets])


def apart(heaps: Sequence[Samples], counts: Sequence[int]) -> Samples:
    """Concatenate heaps, each with task numbers above those of the heaps before; ``counts``: how many numbers each heap reserves."""
    firsts = np.cumsum([0, *counts[:-1]], dtype=np.int32)
    return concatenate([replace(heap, tasks=heap.tasks + first, task_names=()) for heap, first in zip(heaps, firsts, strict=True)])


def digest() -> str:
    """SHA-256 of the data sets of ``LEARNED``."""
    return hashlib.sha256(" ".join(store.data_digest(folder, AS_IT_CAME) for folder in LEARNED).encode()).hexdigest()


def _of(samples: Samples, tasks: Collection[int]) -> Samples:
    """The samples of the given tasks."""
    return samples.take(np.isin(samples.tasks, list(tasks)))


class Reference:
    """A data set of ``bench/reference.py`` or ``bench/searched.py``: measured programs of many networks' tasks."""

    def __init__(self, folder: Path, features: Path | None = None) -> None:
        """``features`` is the folder that caches features of lowered programs; None: the user's.

        Raises UsageError for a folder that is no data set.
        """
        self.folder, self.features = folder, features
        if not (folder / "tasks.parquet").exists():
            raise UsageError(f"{folder} is no data set (it has no tasks.parquet); give the folder of one, such as data/reference")
        tasks = [Task.from_row(row) for row in self._table("tasks")]
        self.encoder = Encoder(tasks, self._table("sketches"))
        self.uses = self._table("networks")
        self._cached = lru_cache(maxsize=4)(self._samples)
        self._records = cache(self._read_records)

    def _table(self, name: str) -> list[dict]:
        return store.read_table(self.folder / f"{name}.parquet", name, remedy=AS_IT_CAME)

    @cached_property
    def platforms(self) -> list[str]:
        """Names of the measured platforms, weakest first: in order of their vectors' widths."""
        return sorted(self._measured, key=lambda name: (self.hardware(name).simd_bytes, name))

    @cached_property
    def _measured(self) -> list[str]:
        names = [place.name.removeprefix("platform=") for place in self.folder.glob("platform=*")]
        if not names:
            raise DataError(f"{self.folder} holds no platform; {AS_IT_CAME.missing}")
        return names

    def hardware(self, platform: str) -> Hardware:
        """A platform's hardware as models see it.  Raises UsageError for a platform that was not measured."""
        return read_saved_hardware(self._place(platform))  # type: ignore[return-value]  # CPUs alone were measured for it

    def _place(self, platform: str) -> Path:
        if platform not in self._measured:
            raise unknown_name("platform", platform, self._measured, str(self.folder))
        return self.folder / f"platform={platform}"

    def _read_records(self, platform: str) -> list[Record]:
        return store.read_records(self._place(platform), AS_IT_CAME)

    def samples(self, platform: str, reads: str = "tokens") -> Samples:
        """All programs measured on a platform; ``reads``: "tokens", "per-store features", or "states" for tokens with states.

        The result is kept for later calls, so changing its arrays changes theirs too.
        """
        return self._cached(platform, reads)

    def _samples(self, platform: str, reads: str) -> Samples:
        if reads == "tokens":
            return self._tokens(platform)
        samples = self.samples(platform)
        keys = [record.key for record in self._records(platform)]
        lowered = with_per_store if reads == "per-store features" else with_states
        return lowered(samples, keys, self.encoder, (self.features or cache_of_features()) / reads.split()[0])

    def _tokens(self, platform: str) -> Samples:
        """Tokens of the programs that a platform measured, with its hardware row and latencies."""
        records, (place, encoded) = self._records(platform), self._encoded
        tokens = encoded.take(np.array([place[record.key] for record in records], dtype=np.int64))
        kept = replace(tokens, features=tokens.features[:, : tokens.lengths.max(initial=0)])
        latencies_s = np.array([record.latency_s for record in records])
        return replace(with_hardware(kept, self.hardware(platform).vector()), latencies_s=latencies_s)

    @cached_property
    def _encoded(self) -> tuple[dict[ProgramKey, int], Samples]:
        """Row of every program that any platform measured, and tokens of all rows with the first platform's hardware.

        Encoded once for all platforms, since most programs were measured on each.
        """
        records = (record for platform in self.platforms for record in self._records(platform))
        keys = list(dict.fromkeys(record.key for record in records))
        return {key: row for row, key in enumerate(keys)}, self.encoder.encode(keys, self.hardware(self.platforms[0]).vector())

    def case(self, platform: str, reads: str = "tokens", tested: Sequence[str] = (), split: str = "held_out") -> Case:
        """The case that trains on the training networks' tasks and ranks those of the networks of ``split``.

        split   "held_out", or "sealed": networks on which nothing is chosen
        tested  training networks to rank instead; their tasks are not trained on

        Raises UsageError for a name in ``tested`` that is no training network, and if ``split`` has no networks.
        """
        known = sorted({use["network"] for use in self.uses if use["split"] == "train"})
        if unknown := [name for name in tested if name not in known]:
            raise unknown_name("training network", unknown[0], known)
        train, networks = self._split(tested, split)
        if not networks:
            raise UsageError(f"the data set in {shown(self.folder)} has no {split} networks; test some of its training networks")
        ranked = {task for weights in networks.values() for task in weights}
        samples = self.samples(platform, reads)
        place = self.platforms.index(platform)
        return Case(
            train=_of(samples, train),
            test=replace(_of(samples, ranked), states=None),
            networks=networks,
            before=tuple(_of(self.samples(p, "tokens"), train) for p in self.platforms[:place]),
        )

    def pooled(self, without: Collection[str] = ()) -> Samples:
        """The training networks' programs on all platforms, as tokens; each platform's tasks have numbers of their own.

        ``without``: keys of tasks to leave out, such as those of networks on which the model is judged.
        """
        kept = self._trained(without)
        return self._heap(lambda platform: _of(self.samples(platform), kept))

    def unmeasured(self, without: Collection[str] = ()) -> Samples:
        """Further programs of the tasks of ``pooled``, on each platform those that it did not measure, numbered alike; latencies are inf."""
        kept, numbers = self._trained(without), self.encoder.numbers
        known = {platform: {record.key for record in self._records(platform)} for platform in self.platforms}
        rows = self._table("programs")
        programs = [(row["task_key"], row["sketch_id"], tuple(row["decisions"])) for row in rows if numbers[row["task_key"]] in kept]
        programs = [key for key in programs if any(key not in measured for measured in known.values())]
        tokens = self.encoder.encode(programs, self.hardware(self.platforms[0]).vector())

        def of(platform: str) -> Samples:
            further = np.array([key not in known[platform] for key in programs], dtype=bool)
            return with_hardware(tokens.take(further), self.hardware(platform).vector())

        return self._heap(of)

    def trained_keys(self, without: Collection[str] = ()) -> set[str]:
        """Keys of the tasks that ``pooled`` has."""
        kept = self._trained(without)
        return {key for key, number in self.encoder.numbers.items() if number in kept}

    def _trained(self, without: Collection[str]) -> set[int]:
        return self._split(())[0] - {self.encoder.numbers[key] for key in without if key in self.encoder.numbers}

    def _heap(self, of: Callable[[str], Samples]) -> Samples:
        """Concatenate the samples of all platforms; each platform's tasks have numbers of their own."""
        return apart([of(platform) for platform in self.platforms], [len(self.encoder.numbers)] * len(self.platforms))

    def _split(self, tested: Sequence[str], split: str = "held_out") -> tuple[set[int], dict[str, dict[int, float]]]:
        """Numbers of the tasks to train on; tested network -> task -> weight.

        Tasks of held-out or sealed networks are never trained on, nor ranked among another split's tasks; held-out ones count first.
        """
        uses = [(use, self.encoder.numbers[use["task_key"]]) for use in self.uses]
        of = {name: {task for use, task in uses if use["split"] == name} for name in ("held_out", "sealed", "train")}
        of["sealed"] -= of["held_out"]
        of["train"] -= of["held_out"] | of["sealed"]
        split = "train" if tested else split
        networks: dict[str, dict[int, float]] = {}
        for use, task in uses:
            if use["split"] == split and task in of[split] and (not tested or use["network"] in tested):
                networks.setdefault(use["network"], {})[task] = float(use["weight"])
        return of["train"].difference(*networks.values()), networks

"""Platforms between which knowledge is transferred: those of the reference data, and devices whose logs share programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from _datasets import VALIDATION, Logs, Reference
from _lessons import _drawn_keys

from tcl_core import store
from tcl_core.features.batches import Samples, concatenate, rows_by_task
from tcl_core.platforms import Hardware
from tcl_core.stages import exchange
from tcl_core.stages.workspace import Workspace

FOLDS = (
    VALIDATION,
    ("regnet-y-4", "vit-tiny", "gpt2-small"),
    ("efficientnet-b0", "swin-tiny", "distilbert"),
    ("convnext-tiny", "wide-resnet-50", "bert-small"),
)
# From the makers' data sheets; 0 (unknown) for what depends on the board.
DEVICES = {
    "ryzen-3700x": Hardware(8, 16, 3.6, 4.4, 32, 512, 32_768, 2, 0, 51.2, 32),
    "i5-1035g1": Hardware(4, 8, 1.0, 3.6, 48, 512, 6_144, 2, 0, 51.2, 64),
    "cortex-a72": Hardware(l1_kib=32, simd_bytes=16),
}
EACH, TESTED = 64, 256  # programs of a log's task: measured ones, and as many unmeasured; ranked ones

Key = tuple[str, int, bytes]


@dataclass(frozen=True)
class Side:
    """A platform in a fold.  All platforms of a chain have the same programs, in the same order.

    train  measured programs of the training tasks; ``test`` those of the tested tasks
    drawn  further programs of the training tasks, whose latencies are not read
    """

    train: Samples
    test: Samples
    drawn: Samples
    hardware: tuple[float, ...]


class Targets:
    """The reference data's platforms; each fold tests three of the training networks."""

    def __init__(self, reference: Reference) -> None:
        self.reference = reference

    @property
    def platforms(self) -> list[str]:
        return self.reference.platforms

    def known_from(self, chain: Sequence[str]) -> tuple[str, ...]:
        """What, beside the fold, the first platform's network depends on."""
        return tuple(chain[:1])

    def sides(self, chain: Sequence[str], fold: int) -> list[Side]:
        found = [self._side(platform, fold) for platform in chain]
        assert all(np.array_equal(side.train.tasks, found[0].train.tasks) for side in found)
        return found

    def _side(self, platform: str, fold: int) -> Side:
        case, hardware = self.reference.case(platform, "tokens", FOLDS[fold]), self.reference.hardware(platform).vector()
        numbers, tasks = self.reference.encoder.numbers, set(case.train.tasks.tolist())
        keys = [key for key in _drawn_keys(self.reference) if numbers[key[0]] in tasks]
        return Side(case.train, case.test, self.reference.encoder.encode(keys, hardware), hardware)


class Devices:
    """Real devices: the programs that all devices of a chain measured, matched by task, sketch and decisions.

    Only uniformly drawn programs count; a tuner's choice is biased towards fast ones.  Each fold tests a quarter of the tasks; of
    each other task ``EACH`` programs count as measured, and as many more as unmeasured.
    """

    def __init__(self, logs: Logs) -> None:
        self.logs = logs

    @property
    def platforms(self) -> list[str]:
        return list(DEVICES)

    def known_from(self, chain: Sequence[str]) -> tuple[str, ...]:
        return tuple(chain)  # which of its programs are taken depends on the others

    def sides(self, chain: Sequence[str], fold: int) -> list[Side]:
        parts = [_of_device(self.logs.workspace, platform) for platform in chain]
        samples = joined(parts)
        train, drawn, test = shared_out(samples[0].tasks, fold)
        return [Side(s.take(train), s.take(test), s.take(drawn), DEVICES[p].vector()) for s, p in zip(samples, chain, strict=True)]


def _of_device(workspace: Workspace, platform: str) -> tuple[Samples, list[Key]]:
    """A device's uniformly drawn programs with its hardware row, and the key of each."""
    samples = concatenate(list(exchange.imported_batches(workspace, platform, ["random"], DEVICES[platform].vector())))
    blocks = store.iter_columns(workspace.imported_folder(platform) / "records", ("task_key", "sketch_id", "decisions"), ["random"])
    return samples, [key for block in blocks for key in _keys(block)]


def _keys(block: store.Columns) -> list[Key]:
    tasks, sketches, (values, offsets) = block["task_key"], block["sketch_id"].tolist(), block["decisions"]
    names = [tasks.names[code] for code in tasks.codes.tolist()]
    return [(names[i], sketches[i], values[offsets[i] : offsets[i + 1]].tobytes()) for i in range(len(sketches))]


def joined(parts: Sequence[tuple[Samples, Sequence[Key]]]) -> list[Samples]:
    """Each platform's samples of the programs that all platforms have, in the same order and task numbering.

    Of a program that a platform measured twice, the first measurement counts.
    """
    rows = [{key: row for row, key in reversed(list(enumerate(keys)))} for _, keys in parts]
    both = sorted(set.intersection(*map(set, rows)))
    numbers = {task: number for number, task in enumerate(dict.fromkeys(task for task, *_ in both))}
    tasks = np.array([numbers[task] for task, *_ in both], np.int32)
    taken = [samples.take(np.array([row[key] for key in both])) for (samples, _), row in zip(parts, rows, strict=True)]
    return [replace(samples, tasks=tasks, task_names=tuple(numbers)) for samples in taken]


def shared_out(tasks: np.ndarray, fold: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Split programs, given by their (N,) tasks, into rows of measured, unlabelled and ranked ones."""
    tested = set(np.random.default_rng(0).permutation(np.unique(tasks))[fold :: len(FOLDS)].tolist())
    train, drawn, test = [], [], []
    for rows in rows_by_task(tasks):
        task = int(tasks[rows[0]])
        order = np.random.default_rng([fold, task]).permutation(rows)
        if task in tested:
            test.append(order[:TESTED])
        else:
            train.append(order[:EACH])
            drawn.append(order[EACH : 2 * EACH])
    return tuple(np.sort(np.concatenate(part)) for part in (train, drawn, test))

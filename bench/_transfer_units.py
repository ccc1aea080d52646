"""One unit of ``transfer.py``: a way to learn, on a pair or chain, with a number of labels, in a fold; and how well it ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np
from _paired import task_figures
from _transfer_data import DEVICES, Devices, Side, Targets
from _transfer_machines import Machines
from _transfer_rows import ROWS, TREES, WHOLE, Earlier, Learned, Lesson

from tcl_core.chain.bridge import BridgeSettings
from tcl_core.chain.state import ChainState, learn_first
from tcl_core.features.batches import Samples, concatenate
from tcl_core.learning.fit import FitSettings
from tcl_core.models.cost_model import CostModel
from tcl_core.teaching import STUDENT, pseudo_labelled

ALL = "all"
DIGITS = 5


@dataclass(frozen=True)
class Unit:
    """``labels`` is 0 for zero-shot.  ``variant`` None stands for the best one on the first fold."""

    pair: str
    labels: int | str
    method: str
    fold: int
    variant: str | None = WHOLE


class Learning:
    """Computes units, on targets of one data set or on devices whose logs are at hand."""

    def __init__(self, targets: Targets | Machines, devices: Callable[[], Devices], epochs: int | None = None) -> None:
        """``epochs``: of all networks; None: their own."""
        self.targets, self._devices, self.epochs = targets, cache(devices), epochs
        self.sides = lru_cache(maxsize=1)(self._sides)
        self._firsts: dict[tuple[tuple[str, ...], int], ChainState] = {}

    def figures(self, unit: Unit) -> dict[str, object]:
        start, chain = time.monotonic(), tuple(unit.pair.split(">"))
        sides = self.sides(chain, unit.fold)
        state = self._first(chain, unit.fold)
        learned, when_learned = self._along(unit, sides, state)
        judged = [judge(model, side.test) for model, side in zip(learned.models, sides, strict=True)]
        tasks = sorted(set.intersection(*(set(found["pairs"]) for found in judged)))
        lost = [
            [before["pairs"][task] - after["pairs"][task] for task in tasks] for before, after in zip(when_learned, judged, strict=False)
        ]
        return {
            "tasks": tasks,
            **{name: [round(judged[-1][name][task], DIGITS) for task in tasks] for name in ("pairs", "u16", "top1")},
            "forgetting": [round(float(x), DIGITS) for x in np.mean(lost, axis=0)],
            "on": {p: round(float(np.mean([f["pairs"][t] for t in tasks])), DIGITS) for p, f in zip(chain, judged, strict=True)},
            "steps": learned.steps,
            "seconds": round(time.monotonic() - start, 1),
        }

    def _along(self, unit: Unit, sides: list[Side], state: ChainState) -> tuple[Learned, list[dict[str, dict[int, float]]]]:
        """What is learned at the end of the chain, and the figures of each earlier platform when it was the chain's end."""
        row, learned = ROWS.get(unit.method), Learned((state.model,) * len(sides), state, 0)
        when_learned = [judge(state.model, side.test) for side in sides[:-1]]
        for place in range(1, len(sides)):
            if row and (row.sequential or place == len(sides) - 1):
                epochs = self.epochs or BridgeSettings().fit.epochs
                fit = replace(BridgeSettings().fit, seed=unit.fold, epochs=epochs, period=epochs)
                lesson = lesson_of(unit.labels, sides[: place + 1], learned.state, fit)
                learned = row.variants[unit.variant](lesson)
                if place < len(sides) - 1:
                    when_learned[place] = judge(learned.models[-1], sides[place].test)
        return learned, when_learned

    def _first(self, chain: tuple[str, ...], fold: int) -> ChainState:
        """State of the chain's first platform, whose network is taught from all its programs; chains with equal ``known_from`` share it."""
        known = self._data(chain).known_from(chain), fold
        if known not in self._firsts:
            side = self.sides(chain, fold)[0]
            epochs = self.epochs or STUDENT.epochs
            settings = replace(STUDENT, seed=fold, epochs=epochs, period=epochs)
            labelled = pseudo_labelled({"tokens": side.train}, {"tokens": side.drawn}, fold, TREES)
            self._firsts[known] = learn_first(labelled, None, settings, measured=side.train)
        return self._firsts[known]

    def _data(self, chain: Sequence[str]) -> Targets | Machines | Devices:
        return self._devices() if of_devices(">".join(chain)) else self.targets

    def _sides(self, chain: tuple[str, ...], fold: int) -> list[Side]:
        return self._data(chain).sides(chain, fold)


def of_devices(pair: str) -> bool:
    return set(pair.split(">")) <= set(DEVICES)


def lesson_of(labels: int | str, sides: Sequence[Side], state: ChainState, fit: FitSettings) -> Lesson:
    """Lesson of the last of ``sides``: the first platform measured all programs, those between the same few as the last.

    The lesson leaves out what the last platform measured of other programs, so that no row can learn from it.
    """
    *before, target = sides
    count = len(target.train) if labels == ALL else int(labels)
    order = np.random.default_rng([fit.seed, count]).permutation(len(target.train))
    few, rest = order[:count], np.sort(order[count:])
    others = concatenate([target.train.take(rest), target.drawn])
    nowhere = np.full(len(rest), np.nan), np.full(len(target.drawn), np.nan)
    there = [
        (side.train.latencies_s[few], side.train.latencies_s[rest] if side is before[0] else nowhere[0], nowhere[1]) for side in before
    ]
    return Lesson(
        state,
        target.train.take(few),
        replace(others, latencies_s=np.full(len(others), np.nan)),
        tuple(np.concatenate(parts) for parts in reversed(there)),
        (Earlier(before[0].train, before[0].hardware), *(Earlier(side.train.take(few), side.hardware) for side in before[1:])),
        fit,
    )


def judge(model: CostModel, test: Samples) -> dict[str, dict[int, float]]:
    """Figure -> task -> value, of the tasks in which programs differ."""
    return task_figures(model.predict(test), test.latencies_s, test.tasks)

"""Which programs a cost model should learn from: those of a uniform draw, or those among which a search chooses.

    python bench/pools.py [--quick] [--folds N] [--seeds N] [--threads N] [--minutes M]

uniform   data/prepared: programs drawn uniformly over their sketches
leaning   data/registers: nine in ten add up in registers, as the draws of a search do (``programs.registers``)
half each, both   half of the records of either, and all of both; the first three rows learn equally many

Boosted trees on tokens, those that label what others learn, learn the records of all targets in one heap, without the tasks of three
training networks at a time; of these networks they rank the programs of either pool, platform by platform.

pairs  share of pairs ranked right; u16  top-1 of sixteen.  Mean over tasks, and the 95 % interval of the difference from `uniform` over
draws of the tasks.  --quick: one fold, one seed.  What was computed with the same code and data is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from _by_fold import begin, compute, identity
from _tables import markdown

from tcl_core import environment, store  # noqa: F401  (before torch is imported)

import numpy as np
from _paired import against
from _transfer_data import FOLDS

from tcl_core import datasets
from tcl_core.evaluation.metrics import subset_top_1, task_pairs
from tcl_core.features.batches import Samples
from tcl_core.models import catalogue
from tcl_core.reference import Reference, apart

UNIFORM, LEANING, HALVES, BOTH = ROWS = "uniform", "leaning", "half each", "both"
FIGURES = {"pairs": task_pairs, "u16": subset_top_1}
DIGITS = 5

Figures = dict[str, dict[str, dict[str, float]]]
"""Pool -> figure -> "platform, task" -> value."""


class Bench:
    """Two pools whose networks are split alike."""

    def __init__(self, pools: Mapping[str, Reference], folds: Sequence[Sequence[str]]) -> None:
        self.pools, self.folds = pools, folds

    def unit(self, fold: int, seed: int) -> dict[str, Figures]:
        """Row -> its figures."""
        tested = self.folds[fold]
        ranked = {use["task_key"] for data in self.pools.values() for use in data.uses if use["network"] in tested}
        heaps = {name: data.pooled(ranked) for name, data in self.pools.items()}
        count = min(map(len, heaps.values()))
        rng = np.random.default_rng([seed, fold])
        few = {name: heap.take(np.sort(rng.permutation(len(heap))[:count])) for name, heap in heaps.items()}
        halves = [heap.take(np.sort(rng.permutation(count)[: count // 2])) for heap in few.values()]
        counts = [len(data.platforms) * len(data.encoder.numbers) for data in self.pools.values()]
        both = [apart(samples, counts) for samples in (halves, list(heaps.values()))]
        learned = {UNIFORM: few[UNIFORM], LEANING: few[LEANING], HALVES: both[0], BOTH: both[1]}
        return {row: self._judged(samples, tested, seed) for row, samples in learned.items()}

    def _judged(self, learned: Samples, tested: Sequence[str], seed: int) -> Figures:
        model = catalogue.create("trees", replace(catalogue.own_settings("trees"), seed=seed))
        model.fit(learned)
        found: Figures = {}
        for pool, data in self.pools.items():
            of_pool = found.setdefault(pool, {name: {} for name in FIGURES})
            for platform in data.platforms:
                test = data.case(platform, tested=tested).test
                scores = model.predict(test)
                for name, figure in FIGURES.items():
                    by_task = figure(scores, test.latencies_s, test.tasks)
                    of_pool[name] |= {f"{platform}, {task}": round(float(value), DIGITS) for task, value in by_task.items()}
        return found


def summary(units: Mapping[str, Mapping[str, Figures]]) -> dict[str, Any]:
    """Pool -> row -> figure -> [mean, low, high], and the figure less that of `uniform`; a task counts once, with its mean."""
    pools = next(iter(units.values()))[UNIFORM]
    found: dict[str, Any] = {}
    for pool in pools:
        for row in ROWS:
            of_row = found.setdefault(pool, {}).setdefault(row, {})
            for name in FIGURES:
                mine, base = (_by_task(units, which, pool, name) for which in (row, UNIFORM))
                of_row[name] = against(mine, np.zeros(len(mine)))
                of_row[f"{name}_less_uniform"] = against(mine, base)
    return found


def _by_task(units: Mapping[str, Mapping[str, Figures]], row: str, pool: str, name: str) -> np.ndarray:
    """(T,) each task's mean over platforms and seeds, in order of the tasks."""
    values: dict[int, list[float]] = {}
    for unit in units.values():
        for place, value in unit[row][pool][name].items():
            values.setdefault(int(place.split(", ")[1]), []).append(value)
    return np.array([np.mean(values[task]) for task in sorted(values)])


def table(found: Mapping[str, Any]) -> str:
    def cell(row: str, of: Mapping[str, Any], name: str) -> str:
        _, low, high = of[f"{name}_less_uniform"]
        return f"{of[name][0]:.3f}" + ("" if row == UNIFORM or low is None else f" ({low:+.3f} to {high:+.3f})")

    header = ["learned", *(f"{pool} programs, {name}" for pool in found for name in ("pairs right", "U16"))]
    return markdown(header, [[row, *(cell(row, of[row], name) for of in found.values() for name in FIGURES)] for row in ROWS])


def run(given: Any) -> None:
    if given.smallest:
        from _smallest import reference

        bench = Bench({UNIFORM: reference(), LEANING: reference()}, FOLDS)
    else:
        bench = Bench({UNIFORM: datasets.prepared(), LEANING: datasets.registers()}, FOLDS)
    units = {f"{fold}, {seed}": partial(bench.unit, fold, seed) for seed in range(given.seeds) for fold in range(given.folds)}
    compute("pools", given, identity(["tcl_core.models.trees", "tcl_core.reference"], bench.pools.values()), units, summary, table)


if __name__ == "__main__":
    begin(__doc__, run, seeds=3)

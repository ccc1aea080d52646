"""What a model should have learned to tell the programs apart that a search meets.

    python bench/near.py [--quick] [--folds N] [--seeds N] [--threads N] [--minutes M]

drawn             data/prepared and data/registers: uniform draws and such as a search begins with, which a Xeon measured
+ draws here      and what data/searched has of draws, measured on the machine of the tested programs
+ searched alone  and what it has of searched programs
+ both            and all of it, in the same tasks: what comes with TCL

Boosted trees on tokens learn that in one heap, as what comes with TCL is learned, under this machine's hardware row; without the tasks of three
training networks at a time, of which they rank the programs that searches met, and those that were drawn on the Xeon.

all   rank correlation of scores with speed;  near   of the programs within 1.6 times the fastest;  pairs   share of pairs ranked right.
Mean over tasks, and the 95 % interval of the difference from `drawn` over draws of the tasks.  --quick: one fold, one seed.  What was
computed with the same code and data is kept.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from _by_fold import begin, compute, identity
from _tables import ROOT, markdown

from tcl_core import environment, store  # noqa: F401  (before torch is imported)

import numpy as np
from _paired import against
from _transfer_data import FOLDS
from scipy.stats import spearmanr

from tcl_core import datasets
from tcl_core.evaluation.metrics import task_pairs
from tcl_core.features.batches import Samples, rows_by_task
from tcl_core.models import catalogue
from tcl_core.records import ProgramKey
from tcl_core.reference import Reference, apart
from tcl_core.stages.training import as_here

DRAWN, HERE, ALONE, BOTH = ROWS = "drawn", "+ draws here", "+ searched alone", "+ both"
SETS = "prepared", "registers", "searched"
DRAWS = ROOT / "data" / "epyc" / "registers"
NEAR, ENOUGH = 1.6, 8  # times the fastest; programs of which a rank correlation says something
FIGURES = {"all": "searched, all", "near": "searched, near the fastest", "pairs": "drawn, pairs right"}
DIGITS = 5

Figures = dict[str, dict[str, float]]
"""Figure -> "platform, task" -> value."""


class Bench:
    """The data sets of ``SETS``; the last one's programs are what is to be told apart, but for the ``draws``."""

    def __init__(
        self, sets: Mapping[str, Reference], draws: Collection[ProgramKey], folds: Sequence[Sequence[str]], enough: int = ENOUGH
    ) -> None:
        self.sets, self.folds, self.enough = sets, folds, enough
        self.searched = sets["searched"]
        self.platform = self.searched.platforms[-1]
        self.here = self.searched.hardware(self.platform)
        self.counts = [len(data.platforms) * len(data.encoder.numbers) for data in sets.values()]
        records = store.read_records(self.searched.folder / f"platform={self.platform}")
        self.drawn = np.array([record.key in draws for record in records])

    def unit(self, fold: int, seed: int) -> dict[str, Figures]:
        """Row -> its figures."""
        tested = self.folds[fold]
        ranked = {use["task_key"] for data in self.sets.values() for use in data.uses if use["network"] in tested}
        heaps = [as_here(self.sets[name].pooled(ranked), self.here) for name in SETS[:-1]]
        all_here = self.searched.samples(self.platform)
        numbers = self.searched.encoder.numbers
        trained = np.isin(all_here.tasks, [numbers[key] for key in self._trained() - ranked])
        parts = {HERE: self.drawn, ALONE: ~self.drawn, BOTH: np.ones(len(all_here), dtype=bool)}
        learned = {DRAWN: heaps} | {row: [*heaps, all_here.take(trained & part)] for row, part in parts.items()}
        asked = {task for weights in self.searched.case(self.platform, tested=tested).networks.values() for task in weights}
        test = all_here.take(np.isin(all_here.tasks, list(asked)) & ~self.drawn)
        return {row: self._judged(of_row, test, tested, seed) for row, of_row in learned.items()}

    def _trained(self) -> set[str]:
        """Keys of the tasks that no held-out network has."""
        of = {split: {use["task_key"] for use in self.searched.uses if use["split"] == split} for split in ("train", "held_out", "sealed")}
        return of["train"] - of["held_out"] - of["sealed"]

    def _judged(self, heaps: Sequence[Samples], searched: Samples, tested: Sequence[str], seed: int) -> Figures:
        model = catalogue.create("trees", replace(catalogue.own_settings("trees"), seed=seed))
        model.fit(apart(heaps, self.counts[: len(heaps)]))
        found: Figures = {name: {} for name in FIGURES}
        for name, values in correlations(model.predict(searched), searched, self.enough).items():
            found[name] |= {f"{self.platform}, {task}": round(value, DIGITS) for task, value in values.items()}
        drawn = self.sets["registers"]
        for platform in drawn.platforms:
            test = as_here(drawn.case(platform, tested=tested).test, self.here)
            by_task = task_pairs(model.predict(test), test.latencies_s, test.tasks)
            found["pairs"] |= {f"{platform}, {task}": round(float(value), DIGITS) for task, value in by_task.items()}
        return found


def correlations(scores: np.ndarray, samples: Samples, enough: int = ENOUGH) -> dict[str, dict[int, float]]:
    """Of all, and near the fastest: task -> Spearman's rank correlation of scores and speed, where there are enough programs that differ."""
    found: dict[str, dict[int, float]] = {"all": {}, "near": {}}
    for rows in rows_by_task(samples.tasks):
        ran = rows[np.isfinite(samples.latencies_s[rows])]
        seconds, said = samples.latencies_s[ran], scores[ran]
        near = seconds <= NEAR * seconds.min(initial=math.inf)
        for name, kept in (("all", np.ones(len(ran), dtype=bool)), ("near", near)):
            if kept.sum() >= enough and np.ptp(said[kept]) and np.ptp(seconds[kept]):
                found[name][int(samples.tasks[rows[0]])] = float(spearmanr(said[kept], -seconds[kept])[0])
    return found


def summary(units: Mapping[str, Mapping[str, Figures]]) -> dict[str, Any]:
    """Row -> figure -> [mean, low, high], and the figure less that of `drawn`; a task counts once, with its mean."""
    found: dict[str, Any] = {}
    for row in ROWS:
        found[row] = {}
        for name in FIGURES:
            mine, base = (_by_task(units, which, name) for which in (row, DRAWN))
            both = sorted(mine.keys() & base.keys())  # scores that are all alike have no correlation
            of = [np.array([values[task] for task in both]) for values in (mine, base)]
            found[row][name] = against(of[0], np.zeros(len(both)))
            found[row][f"{name}_less_drawn"] = against(*of)
    return found


def _by_task(units: Mapping[str, Mapping[str, Figures]], row: str, name: str) -> dict[int, float]:
    """Task -> its mean over platforms and seeds."""
    values: dict[int, list[float]] = {}
    for unit in units.values():
        for place, value in unit[row][name].items():
            values.setdefault(int(place.split(", ")[1]), []).append(value)
    return {task: float(np.mean(of_task)) for task, of_task in values.items()}


def table(found: Mapping[str, Any]) -> str:
    def cell(row: str, name: str) -> str:
        _, low, high = found[row][f"{name}_less_drawn"]
        return f"{found[row][name][0]:.3f}" + ("" if row == DRAWN or low is None else f" ({low:+.3f} to {high:+.3f})")

    return markdown(["learned", *FIGURES.values()], [[row, *(cell(row, name) for name in FIGURES)] for row in ROWS])


def run(given: Any) -> None:
    if given.smallest:
        from _smallest import reference

        sets = {name: reference() for name in SETS}
        draws = {r.key for r in store.read_records(sets["searched"].folder / "platform=host-avx512") if r.program_id % 2}
        bench = Bench(sets, draws, FOLDS, enough=2)
    else:
        draws = {record.key for record in store.read_records(DRAWS / "platform=host-avx2")}
        bench = Bench({name: datasets.reference(ROOT / "data" / name) for name in SETS}, draws, FOLDS)
    units = {f"{fold}, {seed}": partial(bench.unit, fold, seed) for seed in range(given.seeds) for fold in range(given.folds)}
    compute("near", given, identity(["tcl_core.models.trees", "tcl_core.reference"], bench.sets.values()), units, summary, table)


if __name__ == "__main__":
    begin(__doc__, run, seeds=1)

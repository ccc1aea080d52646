"""Which programs a model should learn to rank the programs that a search meets.

    python bench/near.py [--quick] [--folds N] [--seeds N] [--threads N] [--minutes M]

drawn             data/prepared and data/registers: uniform draws, and draws such as a search begins with, measured on a Xeon
+ draws here      and the draws in data/searched that were measured on the machine of the tested programs
+ searched alone  and the searched programs in data/searched of that machine
+ both            and both, in the same tasks
+ elsewhere       drawn, and both of the other platforms, each of another machine
+ all             all of these
+ all, LambdaRank the same by LambdaRank, where the other rows' trees count every pair alike

Boosted trees on tokens learn each row in one heap, as the data that comes with TCL is learned, under this machine's hardware row, and
without the tasks of three training networks at a time.  Of these tasks they rank the programs that searches met, and those that were
drawn on the Xeon.

all   rank correlation of scores with speed;  near   of the programs within 1.6 times the fastest;  pairs   share of pairs ranked right.
Mean over tasks, and the 95 % interval of the difference from `drawn`, LambdaRank's from `+ all`, over draws of the folds and of their tasks.
--quick: one fold, one seed.  Units with the same code and data are kept.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from _by_fold import begin, compute, identity
from _identity import digest_of
from _tables import ROOT, markdown

from tcl_core import environment, store  # noqa: F401  (before torch is imported)

import numpy as np
from _paired import by_fold
from _transfer_data import FOLDS
from scipy.stats import spearmanr

from tcl_core import datasets
from tcl_core.evaluation.metrics import task_pairs
from tcl_core.features.batches import Samples, rows_by_task
from tcl_core.models import catalogue
from tcl_core.records import ProgramKey
from tcl_core.reference import Reference, apart
from tcl_core.stages.training import as_here

DRAWN, HERE, ALONE, BOTH, ELSEWHERE, ALL = "drawn", "+ draws here", "+ searched alone", "+ both", "+ elsewhere", "+ all"
LAMBDA = f"{ALL}, LambdaRank"
ROWS = DRAWN, HERE, ALONE, BOTH, ELSEWHERE, ALL, LAMBDA
BASES = dict.fromkeys(ROWS, DRAWN) | {LAMBDA: ALL}  # row -> what it is compared with
SETS = "prepared", "registers", "searched"
DRAWS = {"host-avx2": "epyc/registers", "host-avx512": "registers"}  # of the machines that searched
NEAR, ENOUGH = 1.6, 8  # times the fastest; fewest programs for a rank correlation
FIGURES = {"all": "searched, all", "near": "searched, near the fastest", "pairs": "drawn, pairs right"}
DIGITS = 5

Figures = dict[str, dict[str, float]]
"""Figure -> "platform, task" -> value."""


class Bench:
    """The data sets of ``SETS``; the last one's programs, without each platform's ``draws``, are ranked."""

    def __init__(
        self,
        sets: Mapping[str, Reference],
        draws: Mapping[str, Collection[ProgramKey]],
        folds: Sequence[Sequence[str]],
        enough: int = ENOUGH,
    ) -> None:
        self.sets, self.draws, self.folds, self.enough = sets, draws, folds, enough
        self.searched = sets["searched"]
        self.counts = [len(data.platforms) * len(data.encoder.numbers) for data in sets.values()]

    def unit(self, platform: str, fold: int, seed: int) -> dict[str, Figures]:
        """Row -> its figures."""
        tested, here = self.folds[fold], self.searched.hardware(platform)
        ranked = {use["task_key"] for data in self.sets.values() for use in data.uses if use["network"] in tested}
        before = [as_here(self.sets[name].pooled(ranked), here) for name in SETS[:-1]]
        learned = {DRAWN: before}
        learned |= {row: [*before, as_here(heap, here)] for row, heap in self._heaps(platform, ranked).items()}
        found = {row: self._judged(heaps, platform, tested, seed) for row, heaps in learned.items()}
        return found | {LAMBDA: self._judged(learned[ALL], platform, tested, seed, "rank")}

    def _heaps(self, platform: str, ranked: Collection[str]) -> dict[str, Samples]:
        """What each row learns in addition to `drawn`, without the tasks that are ranked."""
        pooled, numbers = self.searched.pooled(ranked), len(self.searched.encoder.numbers)
        of_platform = pooled.tasks // numbers == self.searched.platforms.index(platform)
        here, drawn = pooled.take(of_platform), self._drawn(platform)
        samples = self.searched.samples(platform)
        drawn = drawn[np.isin(samples.tasks, here.tasks % numbers)]
        heaps = {HERE: here.take(drawn), ALONE: here.take(~drawn), BOTH: here, ELSEWHERE: pooled.take(~of_platform), ALL: pooled}
        return {row: heap for row, heap in heaps.items() if len(heap)}

    def _drawn(self, platform: str) -> np.ndarray:
        """(N,) mask of the platform's programs that were drawn, not searched."""
        records = store.read_records(self.searched.folder / f"platform={platform}")
        return np.array([record.key in self.draws[platform] for record in records])

    def _judged(self, heaps: Sequence[Samples], platform: str, tested: Sequence[str], seed: int, loss: str = "pairs") -> Figures:
        model = catalogue.create("trees", replace(catalogue.own_settings("trees"), seed=seed, loss=loss))
        model.fit(apart(heaps, self.counts[: len(heaps)]))
        found: Figures = {name: {} for name in FIGURES}
        weights = self.searched.case(platform, tested=tested).networks.values()
        samples = self.searched.samples(platform)
        searched = samples.take(np.isin(samples.tasks, [task for of in weights for task in of]) & ~self._drawn(platform))
        for name, values in correlations(model.predict(searched), searched, self.enough).items():
            found[name] |= {f"{platform}, {task}": round(value, DIGITS) for task, value in values.items()}
        drawn = self.sets["registers"]
        for each in drawn.platforms:
            test = as_here(drawn.case(each, tested=tested).test, self.searched.hardware(platform))
            by_task = task_pairs(model.predict(test), test.latencies_s, test.tasks)
            found["pairs"] |= {f"{each}, {task}": round(float(value), DIGITS) for task, value in by_task.items()}
        return found


def correlations(scores: np.ndarray, samples: Samples, enough: int = ENOUGH) -> dict[str, dict[int, float]]:
    """Figure (all, near) -> task -> Spearman correlation of scores with speed, for tasks with enough programs that differ."""
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
    """Platform -> row -> figure -> [mean, low, high], and its difference from that of the row's base (``BASES``).

    A task of a fold counts once, with its mean.
    """
    found: dict[str, Any] = {}
    for platform in dict.fromkeys(unit.split(", ")[0] for unit in units):
        of_platform = {name: unit for name, unit in units.items() if name.split(", ")[0] == platform}
        rows = found[platform] = dict[str, Any]()
        for row in ROWS:
            if row not in next(iter(of_platform.values())):
                continue
            rows[row] = {}
            for name in FIGURES:
                mine, base = (_by_task(of_platform, which, name) for which in (row, BASES[row]))
                both = mine.keys() & base.keys()  # scores that are all alike have no correlation
                rows[row][name] = by_fold({place: mine[place] for place in both})
                rows[row][f"{name}_less_base"] = by_fold(mine, base)
    return found


def _by_task(units: Mapping[str, Mapping[str, Figures]], row: str, name: str) -> dict[tuple[str, int], float]:
    """(fold, task) -> mean over platforms and seeds."""
    values: dict[tuple[str, int], list[float]] = {}
    for unit, rows in units.items():
        for place, value in rows[row][name].items():
            values.setdefault((unit.split(", ")[1], int(place.split(", ")[1])), []).append(value)
    return {place: float(np.mean(of_task)) for place, of_task in values.items()}


def table(found: Mapping[str, Any]) -> str:
    def cell(rows: Mapping[str, Any], row: str, name: str) -> str:
        _, low, high = rows[row][f"{name}_less_base"]
        return f"{rows[row][name][0]:.3f}" + ("" if row == DRAWN or low is None else f" ({low:+.3f} to {high:+.3f})")

    lines = [[platform, row, *(cell(rows, row, name) for name in FIGURES)] for platform, rows in found.items() for row in rows]
    return markdown(["searched on", "learned", *FIGURES.values()], lines)


def run(given: Any) -> None:
    if given.smallest:
        from _smallest import reference

        sets = {name: reference() for name in SETS}
        records = store.read_records(sets["searched"].folder / "platform=host-avx512")
        bench = Bench(sets, {"host-avx512": {r.key for r in records if r.program_id % 2}}, FOLDS, enough=2)
    else:
        sets = {name: datasets.reference(ROOT / "data" / name) for name in SETS}
        folders = {platform: ROOT / "data" / folder / f"platform={platform}" for platform, folder in DRAWS.items()}
        bench = Bench(sets, {platform: {r.key for r in store.read_records(place)} for platform, place in folders.items()}, FOLDS)
    units = {
        f"{platform}, {fold}, {seed}": partial(bench.unit, platform, fold, seed)
        for seed in range(given.seeds)
        for fold in range(given.folds)
        for platform in bench.draws
    }
    drawn = hashlib.sha256(repr(sorted((platform, sorted(keys)) for platform, keys in bench.draws.items())).encode()).hexdigest()[:12]
    kept = identity("near", ["tcl_core.models.trees", "tcl_core.reference"], bench.sets.values(), drawn, digest_of(as_here))
    compute("near", given, kept, units, summary, table)


if __name__ == "__main__":
    begin(__doc__, run, seeds=1)

"""Which programs a cost model should learn from: those of a uniform draw, or those among which a search chooses.

    python bench/pools.py [--quick] [--folds N] [--seeds N] [--threads N] [--minutes M]

uniform   data/prepared: programs drawn uniformly over their sketches
leaning   data/registers: nine in ten accumulate in registers, as the draws of a search do (``programs.registers``)
half each, both   half of the records of either, and all of both; the first three rows learn equally many

Boosted trees on tokens, as in the teacher ensemble, learn the records of all targets in one heap, without the tasks of three training
networks at a time; they rank these networks' programs of either pool, platform by platform.

pairs  share of pairs ranked right; u16  top-1 of sixteen.  Mean over tasks, and the 95 % interval of the difference from `uniform` over
draws of the folds and of their tasks.  --quick: one fold, one seed.  Units with the same code and data are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from _by_fold import begin, compute, identity
from _pool_rows import Figures, beside_first, judged, table

from tcl_core import environment, store  # noqa: F401  (before torch is imported)

import numpy as np
from _transfer_data import FOLDS

from tcl_core import datasets
from tcl_core.reference import Reference, apart

UNIFORM, LEANING, HALVES, BOTH = "uniform", "leaning", "half each", "both"


class Bench:
    """Two pools with the same split of networks."""

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
        tests = {
            pool: {platform: data.case(platform, tested=tested).test for platform in data.platforms} for pool, data in self.pools.items()
        }
        return {row: judged(samples, tests, seed) for row, samples in learned.items()}


def run(given: Any) -> None:
    if given.smallest:
        from _smallest import reference

        bench = Bench({UNIFORM: reference(), LEANING: reference()}, FOLDS)
    else:
        bench = Bench({UNIFORM: datasets.prepared(), LEANING: datasets.registers()}, FOLDS)
    units = {f"{fold}, {seed}": partial(bench.unit, fold, seed) for seed in range(given.seeds) for fold in range(given.folds)}
    kept = identity("pools", ["tcl_core.models.trees", "tcl_core.reference"], bench.pools.values())
    shown = partial(table, first=UNIFORM, said="learned", of=" programs")
    compute("pools", given, kept, units, partial(beside_first, first=UNIFORM), shown)


if __name__ == "__main__":
    begin(__doc__, run, seeds=3)

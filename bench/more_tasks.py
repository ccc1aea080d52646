"""What several hundred further tasks, with few programs each, are worth to a cost model.

    python bench/more_tasks.py [--quick] [--folds N] [--seeds N] [--threads N] [--minutes M]

drawn        data/prepared and data/registers: sixteen programs of each of their tasks
+ others     and data/variants (twelve programs of each task), without what is of the tested networks' kinds
+ variants   and all of data/variants, so also the tested networks in other sizes
fewer        drawn, of half of the tasks

Boosted trees on tokens, as in the teacher ensemble, learn the records of all targets in one heap, without the tasks of three training
networks at a time; they rank these networks' programs of either pool, platform by platform.

pairs  share of pairs ranked right; u16  top-1 of sixteen.  Mean over tasks, and the 95 % interval of the difference from `drawn` over
draws of the folds and of their tasks.  --quick: one fold, one seed.  Units with the same code and data are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from _by_fold import begin, compute, identity
from _pool_rows import Figures, beside_first, judged, table

from tcl_core import environment  # noqa: F401  (before torch is imported)

import numpy as np
from _transfer_data import FOLDS
from _variants import VARIANTS

from tcl_core import datasets
from tcl_core.features.batches import Samples
from tcl_core.network_names import NETWORKS
from tcl_core.reference import Reference, apart

DRAWN, OTHERS, ALL, FEWER = "drawn", "+ others", "+ variants", "fewer"


class Bench:
    """``pools`` whose networks are tested in turn, and further tasks of ``variants``."""

    def __init__(self, pools: Mapping[str, Reference], variants: Reference, folds: Sequence[Sequence[str]]) -> None:
        self.pools, self.variants, self.folds = pools, variants, folds

    def unit(self, fold: int, seed: int) -> dict[str, Figures]:
        """Row -> its figures."""
        tested = self.folds[fold]
        uses = [use for data in (*self.pools.values(), self.variants) for use in data.uses]
        ranked = {use["task_key"] for use in uses if use["network"] in tested}
        alike = {use["task_key"] for use in self.variants.uses if is_alike(use["network"], tested)}
        drawn = {data: data.pooled(ranked) for data in self.pools.values()}
        fewer = {data: half(heap, np.random.default_rng([seed, fold])) for data, heap in drawn.items()}
        learned = {
            DRAWN: drawn,
            OTHERS: drawn | {self.variants: self.variants.pooled(ranked | alike)},
            ALL: drawn | {self.variants: self.variants.pooled(ranked)},
            FEWER: fewer,
        }
        tests = {
            pool: {platform: data.case(platform, tested=tested).test for platform in data.platforms} for pool, data in self.pools.items()
        }
        return {row: judged(together(heaps), tests, seed) for row, heaps in learned.items()}


def is_alike(variant: str, tested: Sequence[str]) -> bool:
    """Whether a variant is of the same kind as one of the tested networks: of the same class, in other sizes."""
    made = VARIANTS.get(variant)
    return made is not None and any(made.model == NETWORKS[name].model for name in tested)


def together(heaps: Mapping[Reference, Samples]) -> Samples:
    """One heap, each data set's tasks numbered apart."""
    return apart(list(heaps.values()), [len(data.platforms) * len(data.encoder.numbers) for data in heaps])


def half(heap: Samples, rng: np.random.Generator) -> Samples:
    """The programs of half of the tasks; a task is one platform's."""
    tasks = np.unique(heap.tasks)
    return heap.take(np.isin(heap.tasks, rng.permutation(tasks)[: len(tasks) // 2]))


def run(given: Any) -> None:
    if given.smallest:
        from _smallest import reference

        bench = Bench({"uniform": reference(), "leaning": reference()}, reference(), FOLDS)
    else:
        bench = Bench({"uniform": datasets.prepared(), "leaning": datasets.registers()}, datasets.variants(), FOLDS)
    units = {f"{fold}, {seed}": partial(bench.unit, fold, seed) for seed in range(given.seeds) for fold in range(given.folds)}
    sets = (*bench.pools.values(), bench.variants)
    kept = identity("more_tasks", ["tcl_core.models.trees", "tcl_core.reference"], sets)
    shown = partial(table, first=DRAWN, said="learned", of=" programs")
    compute("more_tasks", given, kept, units, partial(beside_first, first=DRAWN), shown)


if __name__ == "__main__":
    begin(__doc__, run, seeds=3)

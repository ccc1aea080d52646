"""What a cost model loses if it learns few of the programs that take long to build.

    python bench/costly.py [--quick] [--folds N] [--seeds N] [--threads N] [--minutes M]

A quarter of the drawn programs unroll 512 steps and take 3.5 times as long to build as the others (docs/measuring.md);
``candidates.costly`` is the share of these costly draws that a pool keeps.

all of them      ten random programs of each task, half of them from data/prepared, half from data/registers
a third          ten, drawn after two thirds of the costly ones were dropped
none             ten that are not costly
a third, longer  thirteen, drawn as for `a third`: by the factor above they take as long to build as the ten of the first row

Boosted trees on tokens learn these programs on one platform, as in a project, without the tasks of three training networks at a time; they
rank all of these networks' programs in either data set, costly or not.

pairs  share of pairs ranked right; u16  top-1 of sixteen.  Mean over tasks, and the 95 % interval of the difference from the first row
over draws of the folds and of their tasks.  --quick: one fold, one seed.  Units with the same code and data are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from _by_fold import begin, compute, identity
from _pool_rows import Figures, beside_first, judged, table

from tcl_core import environment, store  # noqa: F401  (before torch is imported)

import numpy as np
from _transfer_data import FOLDS

from tcl_core import datasets
from tcl_core.features.batches import Samples, rows_by_task
from tcl_core.programs.sketches import read_sketch, trace_from_json
from tcl_core.programs.unrolling import COSTLY, unrolled
from tcl_core.reference import Reference, apart

PLATFORM = "host-avx2"
ALL, THIRD, NONE, LONGER = "all of them", "a third", "none", "a third, longer"
ROWS = {ALL: (1.0, (5, 5)), THIRD: (1 / 3, (5, 5)), NONE: (0.0, (5, 5)), LONGER: (1 / 3, (6, 7))}
"""Row -> share of the costly programs that is kept, and programs of each task to learn from either data set."""


class Drawn:
    """A data set's programs on one platform, and which of them are costly."""

    def __init__(self, data: Reference, platform: str) -> None:
        self.data, self.platform = data, platform

    @cached_property
    def samples(self) -> Samples:
        return self.data.samples(self.platform)

    @cached_property
    def costly(self) -> np.ndarray:
        """(N,) mask of the costly programs."""
        records, encoder = store.read_records(self.data.folder / f"platform={self.platform}"), self.data.encoder
        steps, places = {}, {}
        for task in {record.task_key for record in records}:
            mine = sorted(sketch for key, sketch in encoder.texts if key == task)
            module = encoder.tasks[task].module()
            sketches = [read_sketch(task, sketch, trace_from_json(encoder.texts[task, sketch], module)) for sketch in mine]
            steps[task], places[task] = unrolled(sketches, encoder.workload(task)), {sketch: place for place, sketch in enumerate(mine)}
        keys = (record.key for record in records)
        return np.array([steps[task]((places[task][sketch], decisions)) >= COSTLY for task, sketch, decisions in keys])

    def learned(self, tasks: set[int], kept: float, count: int, rng: np.random.Generator) -> Samples:
        """Up to ``count`` random programs of each of the tasks, after keeping each costly one with probability ``kept``."""
        rows = []
        for group in rows_by_task(self.samples.tasks):
            if int(self.samples.tasks[group[0]]) in tasks:
                stays = ~self.costly[group] | (rng.random(len(group)) < kept)
                rows.append(rng.permutation(group[stays])[:count])
        return self.samples.take(np.sort(np.concatenate(rows)))


class Bench:
    """Two data sets with the same split of networks."""

    def __init__(self, sets: Mapping[str, Reference], platform: str, folds: Sequence[Sequence[str]]) -> None:
        self.sets = {name: Drawn(data, platform) for name, data in sets.items()}
        self.platform, self.folds = platform, folds

    def unit(self, fold: int, seed: int) -> dict[str, Figures]:
        """Row -> its figures."""
        cases = {name: each.data.case(self.platform, tested=self.folds[fold]) for name, each in self.sets.items()}
        numbers, found = [len(each.data.encoder.numbers) for each in self.sets.values()], {}
        for row, (kept, counts) in ROWS.items():
            rng = np.random.default_rng([seed, fold])
            parts = [
                each.learned(set(cases[name].train.tasks.tolist()), kept, count, rng)
                for (name, each), count in zip(self.sets.items(), counts, strict=True)
            ]
            tests = {name: {self.platform: case.test} for name, case in cases.items()}
            found[row] = judged(apart(parts, numbers), tests, seed)
        return found


def run(given: Any) -> None:
    if given.smallest:
        from _smallest import reference

        sets = {"prepared": reference(), "registers": reference()}
    else:
        sets = {"prepared": datasets.prepared(), "registers": datasets.registers()}
    bench = Bench(sets, PLATFORM, FOLDS)
    units = {f"{fold}, {seed}": partial(bench.unit, fold, seed) for seed in range(given.seeds) for fold in range(given.folds)}
    kept = identity("costly", ["tcl_core.models.trees", "tcl_core.reference"], sets.values())
    shown = partial(table, first=ALL, said="costly programs learned")
    compute("costly", given, kept, units, partial(beside_first, first=ALL), shown)


if __name__ == "__main__":
    begin(__doc__, run, seeds=3)

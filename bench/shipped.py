"""What the measurements that come with TCL are worth to a project on another machine.

    python bench/shipped.py [--quick] [--folds N] [--seeds N] [--threads N] [--minutes M]

Simulated on the training networks of data/registers, measured on a Xeon, and of data/epyc/registers, the same programs on an EPYC.
Three networks are tested at a time; five of the others, drawn by the seed, are a project's, which measures 160 of their programs on one of
the EPYC's targets; measurements of the remaining networks are what comes with TCL.  Each row ranks the tested networks' programs on that
target, sixteen of each task:

    own               learned the project's 160 programs alone
    Xeon              learned the Xeon's measurements on all of its targets, AVX-512 included, and none of the project's
    Xeon, EPYC        and the EPYC's, of networks other than the project's and the tested ones
    ..., and own      learned these and the project's in one heap

trees    boosted trees on tokens, the mean of two
network  the Mamba cost model, taught with these trees' labels of the same programs, of some thirty more of each task, and of the project's
         unmeasured ones (``tcl_core.teaching``), as with ``train.shipped``

pairs  share of pairs ranked right; u16  top-1 of the sixteen.  Mean over targets, tasks and seeds, and the 95 % interval of the
difference from `own` over draws of the folds and of their tasks.
--quick: one fold, one seed, one target, a third of the epochs.  Units with the same code and data are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

from tcl_core import datasets
from tcl_core.evaluation.metrics import subset_top_1, task_pairs
from tcl_core.features.batches import Samples, concatenate
from tcl_core.models.mamba import MambaModel
from tcl_core.reference import REGISTERS, Reference
from tcl_core.stages.training import as_here
from tcl_core.teaching import STUDENT, Member, pseudo_labelled

PROJECT, RECORDS = 5, 160  # networks, and programs measured on a platform, as in params.yaml
OWN, THERE, HERE = "own", "Xeon", "EPYC"
BOTH = f"{THERE}, {HERE}"
ROWS = {
    OWN: (True, ()), THERE: (False, (THERE,)), BOTH: (False, (THERE, HERE)),
    f"{THERE}, and own": (True, (THERE,)), f"{BOTH}, and own": (True, (THERE, HERE)),
}  # fmt: skip
FOLDERS = {HERE: ROOT / "data" / "epyc" / "registers", THERE: REGISTERS}
LEARNERS = TREES, NETWORK = "trees", "network"
FIGURES = {"pairs": "pairs right", "u16": "U16"}
TEACHERS = (Member("trees", 2, 1.0),)
QUICK_EPOCHS = 10
DIGITS = 5

Figures = dict[str, dict[str, dict[int, float]]]
"""Learner -> figure -> task -> value."""


class Bench:
    """Two machines' measurements of the same programs, and for how many epochs a network learns them."""

    def __init__(self, machines: Mapping[str, Reference], folds: Sequence[Sequence[str]], epochs: int = STUDENT.epochs) -> None:
        self.machines, self.folds, self.epochs = machines, folds, epochs
        self.reference = machines[HERE]
        self.count = len(self.reference.encoder.numbers)
        self.room = self.count * max(len(reference.platforms) for reference in machines.values())  # task numbers of a machine
        self.measured = {name: reference.pooled() for name, reference in machines.items()}
        self.further = {name: reference.unmeasured() for name, reference in machines.items()}

    def unit(self, fold: int, platform: str, seed: int) -> dict[str, Figures]:
        """Row -> its figures.  As in a project, all is learned and ranked as if this machine had measured it (``as_here``)."""
        here, case = self.reference.hardware(platform), self.reference.case(platform, "tokens", self.folds[fold])
        train = set(case.train.tasks.tolist())
        mine = self._project(train, seed)
        of_mine = _apart(case.train.take(np.isin(case.train.tasks, list(mine))), self.room * len(self.machines))
        drawn = np.random.default_rng([seed, fold]).permutation(len(of_mine))
        own, rest = (of_mine.take(np.sort(rows)) for rows in (drawn[:RECORDS], drawn[RECORDS:]))
        found = {}
        for row, (with_own, machines) in ROWS.items():
            known, more = ([self._of(heaps[name], name, train - mine) for name in machines] for heaps in (self.measured, self.further))
            known, more = (known + [own], more + [rest]) if with_own else (known, more)
            heaps = [as_here(heap, here) if len(heap) else heap for heap in (concatenate(known), concatenate(more), case.test)]
            found[row] = self._judged(heaps[0], heaps[1], heaps[2], seed)
        return found

    def _project(self, trained: set[int], seed: int) -> set[int]:
        """The tasks of the networks that the project measures."""
        by_network: dict[str, set[int]] = {}
        for use in self.reference.uses:
            if (task := self.reference.encoder.numbers[use["task_key"]]) in trained:
                by_network.setdefault(use["network"], set()).add(task)
        networks = np.random.default_rng(seed).permutation(sorted(by_network))[: min(PROJECT, len(by_network) // 2)]
        return set().union(*(by_network[name] for name in networks))

    def _of(self, heap: Samples, machine: str, tasks: set[int]) -> Samples:
        """A machine's samples of these tasks, with task numbers of that machine's own."""
        return _apart(heap.take(np.isin(heap.tasks % self.count, list(tasks))), self.room * list(self.machines).index(machine))

    def _judged(self, known: Samples, more: Samples, test: Samples, seed: int) -> Figures:
        """Figures of both learners; the trees' scores are their labels of the tested programs, in tasks that nothing else has."""
        labelled = pseudo_labelled({"tokens": known}, {"tokens": concatenate([more, test])}, seed, TEACHERS)
        lesson = labelled.take(np.arange(len(labelled) - len(test)))
        scores = -np.log(labelled.latencies_s[len(lesson) :])
        network = MambaModel(replace(STUDENT, epochs=self.epochs, period=self.epochs, seed=seed)).fit(lesson)
        return {TREES: figures(scores, test), NETWORK: figures(network.predict(test), test)}


def _apart(samples: Samples, first: int) -> Samples:
    return replace(samples, tasks=samples.tasks + np.int32(first), task_names=())


def figures(scores: np.ndarray, test: Samples) -> dict[str, dict[int, float]]:
    ranked = scores, test.latencies_s, test.tasks
    found = {"pairs": task_pairs(*ranked), "u16": subset_top_1(*ranked)}
    return {name: {task: round(float(value), DIGITS) for task, value in of.items()} for name, of in found.items()}


# --- what the units say together ---


def summary(units: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Platform ("all": their mean) -> row -> learner -> figure -> [mean, low, high], and its difference from `own`."""
    platforms = list(dict.fromkeys(name.split(", ")[1] for name in units))
    found: dict[str, Any] = {}
    for platform in [*platforms, "all"]:
        there = {name: unit for name, unit in units.items() if platform in ("all", name.split(", ")[1])}
        found[platform] = {row: {learner: _compared(there, row, learner) for learner in LEARNERS} for row in ROWS}
    return found


def _compared(units: Mapping[str, Mapping[str, Any]], row: str, learner: str) -> dict[str, list[float | None]]:
    found = {}
    for name in FIGURES:
        mine, own = (_by_task(units, which, learner, name) for which in (row, OWN))
        found[name], found[f"{name}_less_own"] = by_fold(mine), by_fold(mine, own)
    return found


def _by_task(units: Mapping[str, Mapping[str, Any]], row: str, learner: str, name: str) -> dict[tuple[str, int], float]:
    """(fold, task) -> mean over platforms and seeds."""
    values: dict[tuple[str, int], list[float]] = {}
    for unit, rows in units.items():
        for task, value in rows[row][learner][name].items():
            values.setdefault((unit.split(", ")[0], int(task)), []).append(value)
    return {place: float(np.mean(of_task)) for place, of_task in values.items()}


def table(found: Mapping[str, Any]) -> str:
    def cell(row: str, of: Mapping[str, Any], name: str) -> str:
        _, low, high = of[f"{name}_less_own"]
        return f"{of[name][0]:.3f}" + ("" if row == OWN or low is None else f" ({low:+.3f} to {high:+.3f})")

    columns = [(learner, name) for learner in LEARNERS for name in FIGURES]
    header = ["learned", *(f"{learner}, {FIGURES[name]}" for learner, name in columns)]
    return markdown(header, [[row, *(cell(row, of[learner], name) for learner, name in columns)] for row, of in found["all"].items()])


def run(given: Any) -> None:
    if given.smallest:
        from _smallest import reference

        bench = Bench({HERE: reference(), THERE: reference()}, FOLDS, epochs=1)
    else:
        machines = {name: datasets.reference(folder) for name, folder in FOLDERS.items()}
        bench = Bench(machines, FOLDS, QUICK_EPOCHS if given.quick else STUDENT.epochs)
    platforms = bench.reference.platforms
    if given.quick or given.smallest:
        platforms = platforms[1:2]
    todo = [(fold, platform, seed) for seed in range(given.seeds) for fold in range(given.folds) for platform in platforms]
    units = {f"{fold}, {platform}, {seed}": partial(bench.unit, fold, platform, seed) for fold, platform, seed in todo}
    compute(
        "shipped",
        given,
        identity("shipped", ["tcl_core.teaching", "tcl_core.reference"], bench.machines.values(), digest_of(as_here)),
        units,
        summary,
        table,
    )


if __name__ == "__main__":
    begin(__doc__, run, seeds=3, quick="one fold, one seed, one platform, fewer epochs")

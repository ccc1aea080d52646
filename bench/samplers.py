"""Samplers at equal budgets: what their choice of programs is worth to a model that learns it, and by its best programs.

    python bench/samplers.py [--quick] [--pool NAME ...] [--platform NAME ...] [--share S ...] [--seeds N] [--threads N] [--minutes M] [--force]

Simulates each sampler's collection, as in the pipeline, over a data set in which every program's latency is known: with the rounds of
params.yaml, and for `rdu` with the measurements of the platform before, here a uniformly drawn quarter of its programs (the chain's
first platform has none).  The pool is the training networks' programs except those of three networks, which are ranked: each of four
groups of three in turn (grouped cross-validation; the networks that other tables report take no part).

uniform     data/reference: programs drawn evenly from the design space, 64 of most tasks
leaning     data/registers: nine in ten accumulate in registers, as a search's draws do (``programs.registers``), 16 of each task
pairs, u16  of boosted trees on tokens that learned from the measured programs alone, on unseen tasks
found       seconds of the task's fastest program / of its fastest chosen one, mean over the pool's tasks; 0 for a task without one
labels      on later platforms: share of the pool's pairs that are ordered right by the labels that the chain's next step learns
            from (``tcl_core.chain.completion``: chosen programs have their own, others the platform before's, corrected by these)

at scale    seconds to pick a tenth of a million synthetic candidates of 2,000 tasks, and the peak memory

Mean over platforms, groups and seeds, and the 95 % interval over the four groups of the difference from random with the same group
and seed.  --quick: the uniform pool's last platform, a tenth, one seed; it has a results file of its own.  Collections with the same
code and data are kept, so that the same command resumes a stopped comparison.
"""

from __future__ import annotations

import hashlib
import math
import resource
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from _tables import ROOT, Quick, Results, arguments, into_document, markdown, mean_interval

from tcl_core import environment, store  # noqa: F401  (before torch is imported)

import numpy as np
import torch
from _datasets import Case, Reference
from _identity import code, code_identity
from _transfer_data import FOLDS

from tcl_core.chain.completion import completed
from tcl_core.collect import Collection, Plan, collect
from tcl_core.errors import TclError, unknown_name
from tcl_core.evaluation.metrics import pairwise_accuracy, subset_top_1
from tcl_core.features.batches import Samples, rows_by_task
from tcl_core.models import catalogue
from tcl_core.params import load_params
from tcl_core.platforms import read_saved_hardware
from tcl_core.programs.pool import Program
from tcl_core.progress import progress
from tcl_core.sampler_names import LEARNED_ELSEWHERE
from tcl_core.sampling.catalogue import pick
from tcl_core.stages.collecting import member, setup_of
from tcl_core.stages.workspace import Workspace

COMMAND = "python bench/samplers.py"
SAMPLERS = ("random", "per-task", "rdu-paper", "rdu")
SHARES = (0.05, 0.1, 0.2)
MEASURED_BEFORE = 0.25  # share of the programs of the platform before
TREES = 20  # tens of trees of the model that judges; a third of its own, to save time
FIGURES = {"pairs": "pairs right", "u16": "U16", "found": "best found", "labels": "labels for the next step"}
POOLS = {"uniform": "reference", "leaning": "registers"}  # folders of data/


@dataclass(frozen=True)
class Unit:
    """One collection of one sampler."""

    pool: str
    platform: str
    share: float
    sampler: str
    fold: int
    seed: int

    @property
    def name(self) -> str:
        return " ".join(map(str, astuple(self)))


class Bench:
    """Simulates units, and keeps the figures of each."""

    def __init__(self, pools: Mapping[str, Reference], workspace: Workspace, force: bool = False, trees: int = TREES) -> None:
        self.pools, self.workspace, self.trees = pools, workspace, trees
        modules = ["tcl_core.chain.completion", "tcl_core.evaluation.metrics", "tcl_core.models.mamba", "tcl_core.models.trees"]
        core = ROOT / "tcl_core"
        chosen_by = [*sorted((core / "sampling").glob("*.py")), core / "collect.py", core / "stages" / "collecting.py"]
        about = "".join(code(path.read_text()) for path in chosen_by)
        c = workspace.params.collect
        settings = repr((c.rounds, c.initial_share, c.epochs, c.ensemble, trees))
        data = {pool: store.data_digest(reference.folder) for pool, reference in pools.items()}
        self.identity = [code_identity(modules, ["samplers", "_datasets"]), data, settings, hash_of(about)]
        self.results, self.published = Results("samplers", lambda found: found["runs"]), False
        self.runs: dict[str, dict[str, float]] = {} if force else self.results.of(self.identity).get("runs", {})

    def run(self, units: Sequence[Unit], until: float) -> None:
        todo = [unit for unit in units if unit.name not in self.runs]
        with tempfile.TemporaryDirectory() as journal, progress("playing collections", len(todo)) as shown:
            for place, unit in enumerate(todo):
                if time.monotonic() > until:
                    print(f"{len(todo) - place} collections are left; the same command goes on", file=sys.stderr)
                    break
                self.runs[unit.name] = found = self.play(unit, Path(journal))
                self.save()
                shown.advance(f"{unit.sampler} {unit.share:.0%}: pairs {found['pairs']:.3f}, U16 {found['u16']:.3f}")

    def play(self, unit: Unit, journal: Path) -> dict[str, float]:
        reference = self.pools[unit.pool]
        case = reference.case(unit.platform, "tokens", FOLDS[unit.fold])
        pool = measured_pool(reference, self.workspace, unit.platform, case, journal)
        c = replace(self.workspace.params.collect, sampler=unit.sampler)
        workspace = Workspace(params=replace(self.workspace.params, collect=c, seed=unit.seed))
        budget = round(unit.share * len(pool.programs))
        # Another seed on each platform: they share a pool, and a sampler that ignores the platform would choose the same on all.
        draw = unit.seed * len(reference.platforms) + reference.platforms.index(unit.platform)
        plan = Plan(unit.sampler, budget, round(c.initial_share * budget), c.rounds, 0.0, draw)
        models = [member(workspace, number) for number in range(c.ensemble)]
        before = self.before(unit) if unit.sampler in LEARNED_ELSEWHERE else None
        collect(pool, plan, models, lambda step: None, lambda record: None, before)
        return self.judged(unit, pool, case)

    def before(self, unit: Unit) -> Samples | None:
        """Measurements of the platform before; None on the first."""
        if (earlier := self.earlier(unit)) is None:
            return None
        train = self.pools[unit.pool].case(earlier, "tokens", FOLDS[unit.fold]).train
        draw = np.random.default_rng([unit.seed, unit.fold]).permutation(len(train))
        return train.take(np.sort(draw[: round(MEASURED_BEFORE * len(train))]))

    def earlier(self, unit: Unit) -> str | None:
        platforms = self.pools[unit.pool].platforms
        place = platforms.index(unit.platform)
        return platforms[place - 1] if place else None

    def judged(self, unit: Unit, pool: Collection, case: Case) -> dict[str, float]:
        chosen = pool.samples()
        model = catalogue.create("trees")
        model.settings = replace(model.settings, epochs=self.trees, seed=unit.seed)
        ranked = model.fit(chosen).predict(case.test), case.test.latencies_s, case.test.tasks
        return {
            "pairs": pairwise_accuracy(*ranked),
            "u16": fmean(subset_top_1(*ranked).values()),
            "found": best_found(case.train, chosen),
            **self.labels(unit, pool, case),
        }

    def labels(self, unit: Unit, pool: Collection, case: Case) -> dict[str, float]:
        """How well the labels that follow from the chosen programs order all programs; empty on the first platform.

        Of all, since what each sampler leaves differs: one that chooses close programs would be judged on distant ones.
        """
        if (earlier := self.earlier(unit)) is None:
            return {}
        everything = pool.encoder.encode(pool.keys, pool.hardware, [pool.known[row].latency_s for row in range(len(pool.keys))])
        seconds = {record.key: record.latency_s for record in store.read_records(self.pools[unit.pool].folder / f"platform={earlier}")}
        source_s, open_rows = np.array([seconds[key] for key in pool.keys]), pool.open_rows()
        target_s = everything.latencies_s.astype(np.float64)
        target_s[open_rows] = np.nan
        labelled = completed(everything, source_s, target_s, unit.seed).latencies_s
        speed = -np.log(np.minimum(labelled, 1e6))  # a program that failed on the platform before is the slowest
        return {"labels": pairwise_accuracy(speed, everything.latencies_s, everything.tasks)}

    @property
    def summary(self) -> dict[str, Any]:
        """POOL, and "POOL, PLATFORM" -> budget -> sampler -> figure, and its difference from random's -> [mean, low, high]."""
        units = [
            Unit(pool, platform, float(share), sampler, int(fold), int(seed))
            for pool, platform, share, sampler, fold, seed in (name.split(" ") for name in self.runs)
        ]
        found: dict[str, Any] = {}
        for pool, platform in product(POOLS, (None, *dict.fromkeys(unit.platform for unit in units))):
            mine = [unit for unit in units if unit.pool == pool and platform in (None, unit.platform)]
            if not mine:
                continue
            of_budget = found.setdefault(pool if platform is None else f"{pool}, {platform}", {})
            for share in sorted({unit.share for unit in mine}):
                row = {sampler: self._figures(mine, share, sampler) for sampler in SAMPLERS}
                of_budget[f"{share:g}"] = {sampler: figures for sampler, figures in row.items() if figures}
        return found

    def _figures(self, units: Iterable[Unit], share: float, sampler: str) -> dict[str, list[float]]:
        pairs = [
            (unit.fold, self.runs[unit.name], self.runs.get(replace(unit, sampler="random").name))
            for unit in units
            if (unit.share, unit.sampler) == (share, sampler)
        ]
        found: dict[str, list[float]] = {}
        for key in FIGURES:
            both = [(fold, mine[key], random[key]) for fold, mine, random in pairs if random and key in mine]
            if len(both) > 1:
                found[key] = _over_folds([(fold, mine) for fold, mine, _ in both])
                found[f"{key}_less_random"] = _over_folds([(fold, mine - random) for fold, mine, random in both])
        return found

    def save(self, **more: Any) -> None:
        about = {"measured_before": MEASURED_BEFORE, "identity": self.identity, "summary": self.summary}
        self.published = self.results.save({**about, **more, "runs": self.runs}, COMMAND)


def _over_folds(values: Sequence[tuple[int, float]]) -> list[float]:
    """Mean and 95 % interval over the means of the groups of networks; with one group, over the values themselves.

    Seeds and platforms rank the same tested tasks of a group, and so are not independent.
    """
    folds = {fold: [value for of, value in values if of == fold] for fold, _ in values}
    return list(mean_interval([fmean(each) for each in folds.values()] if len(folds) > 1 else [value for _, value in values]))


def at_scale(programs: int, tasks: int) -> dict[str, dict[str, float]]:
    """Sampler -> seconds to pick a tenth, and peak GiB of its process; each runs in a process of its own."""
    found = {}
    for sampler in SAMPLERS:
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            found[sampler] = alone.submit(_picked_at_scale, sampler, programs, tasks).result()
    return found


def _picked_at_scale(sampler: str, programs: int, tasks: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    predictions, of_task = rng.random(programs), rng.integers(0, tasks, programs)
    known, none = np.zeros(0, int), np.zeros(0)
    start = time.monotonic()
    chosen = pick(sampler, predictions, of_task % 12, none, programs // 10, tasks=of_task, labelled_tasks=known, rng=rng)
    assert len(np.unique(chosen)) == programs // 10
    return {"seconds": round(time.monotonic() - start, 3), "gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 3)}


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def best_found(pool: Samples, chosen: Samples) -> float:
    """Mean over the pool's tasks of the fastest program's seconds / the fastest chosen one's; 0 where none that runs was chosen."""
    best = {int(chosen.tasks[rows[0]]): chosen.latencies_s[rows].min() for rows in rows_by_task(chosen.tasks)}
    with np.errstate(invalid="ignore"):  # a task of which nothing runs: left out
        shares = [pool.latencies_s[rows].min() / best.get(int(pool.tasks[rows[0]]), math.inf) for rows in rows_by_task(pool.tasks)]
    return fmean(float(share) for share in shares if not math.isnan(share))


def measured_pool(reference: Reference, workspace: Workspace, platform: str, case: Case, journal: Path) -> Collection:
    """The measured programs of the case's training tasks, with their records."""
    place = reference.folder / f"platform={platform}"
    records = {record.key: record for record in store.read_records(place)}
    rows, trained = store.read_table(reference.folder / "programs.parquet", "programs"), set(case.train.tasks.tolist())
    programs = [Program.from_row(row) for row in rows if reference.encoder.numbers[row["task_key"]] in trained]
    programs = [p for p in programs if (p.task_key, p.sketch, p.decisions) in records]
    return Collection(
        programs=programs,
        encoder=reference.encoder,
        hardware=read_saved_hardware(place).vector(),
        host=next(iter(records.values())).host,
        setup=setup_of(workspace, platform),
        journal=journal,
        known={row: records[p.task_key, p.sketch, p.decisions] for row, p in enumerate(programs)},
    )


def planned(pools: Sequence[str], platforms: Sequence[str], shares: Sequence[float], folds: int, seeds: int) -> list[Unit]:
    """Units, seed by seed, so that a stopped comparison is complete up to a seed."""
    order = product(range(seeds), pools, range(folds), shares, platforms, SAMPLERS)
    return [Unit(pool, platform, share, sampler, fold, seed) for seed, pool, fold, share, platform, sampler in order]


def table(summary: dict[str, Any]) -> str:
    rows = []
    for pool, budgets in summary.items():
        for budget, samplers in budgets.items():
            for sampler, figures in samplers.items():
                rows.append([pool, f"{float(budget):.0%}", sampler, *(_shown(figures, key, sampler) for key in FIGURES)])
    return markdown(["pool", "of it", "sampler", *FIGURES.values()], rows)


def _shown(figures: dict[str, list[float]], key: str, sampler: str) -> str:
    if key not in figures:
        return "-"
    _, low, high = figures[f"{key}_less_random"]
    return f"{figures[key][0]:.3f}" + ("" if sampler == "random" else f" ({low:+.3f} to {high:+.3f})")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="the last platform, a tenth, one seed")
    parser.add_argument("--pool", nargs="+", choices=list(POOLS), metavar="NAME", help="only these (uniform leaning)")
    parser.add_argument("--platform", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--share", nargs="+", type=float, metavar="S", help="of the pool (0.05 0.1 0.2)")
    parser.add_argument("--seeds", type=int, choices=range(1, 51), default=5, help="for each group of networks (5)")
    parser.add_argument("--threads", type=int, default=2, help="of training and ranking (2)")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no collection after that")
    parser.add_argument("--force", action="store_true", help="compute also what is known")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    try:
        run(given)
    except TclError as error:
        sys.exit(f"samplers: {error}")


def run(given: Any) -> None:
    until, params = time.monotonic() + 60 * given.minutes, load_params()
    if given.smallest:
        from _smallest import reference

        small = Workspace(params=replace(params, collect=replace(params.collect, epochs=1, rounds=2)))
        bench = Bench(dict.fromkeys(POOLS, reference()), small, given.force, trees=1)
        units = planned(list(POOLS), reference().platforms[-2:], (0.5,), 1, 2)
    else:
        data = {pool: Reference(ROOT / "data" / folder, ROOT / "data" / "features") for pool, folder in POOLS.items()}
        known = data["uniform"].platforms
        for platform in given.platform or ():
            if platform not in known:
                raise unknown_name("platform", platform, known, "data/reference")
        bench = Bench(data, Workspace(params=params), given.force)
        pools = given.pool or list(POOLS)[: 1 if given.quick else None]
        platforms = given.platform or (known[-1:] if given.quick else known)
        shares = given.share or ((0.1,) if given.quick else SHARES)
        units = planned(pools, platforms, shares, len(FOLDS), 1 if given.quick else given.seeds)
    bench.run(units, until)
    if not bench.runs:
        sys.exit("samplers: nothing was begun; give more --minutes")
    scale = at_scale(*((1_000, 20) if given.smallest else (1_000_000, 2_000)))
    bench.save(at_scale=scale)
    print(table(bench.summary))
    print(markdown(["sampler", "seconds", "GiB"], [[sampler, *figures.values()] for sampler, figures in scale.items()]))
    if not bench.published:
        print("not published: what is published has collections that are not played again")
    elif not (given.quick or given.smallest):
        note = (
            "Mean over platforms, four groups of tested networks and seeds; in brackets the 95 % interval over the groups of the difference from `random`.\n"
            "Platform by platform: `bench/results/samplers.json`."
        )
        over_platforms = {pool: found for pool, found in bench.summary.items() if pool in POOLS}
        into_document("samplers", f"{table(over_platforms)}\n\n{note}")


if __name__ == "__main__":
    main()

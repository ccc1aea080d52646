"""RDU against random at equal budgets: how good is a model trained on what each sampler picks?

    python bench/samplers.py [--quick] [--threads N]

Plays each sampler's collection, several seeds, over the reference data set, where every program's latency is known.  The pool
are the programs of the chain's last platform, but for three of the training networks (``_datasets.VALIDATION``), by which
params.yaml's sampler is chosen, and the held-out ones, which take no part.  A tenth or a quarter of the pool is picked in the
rounds of params.yaml, and what was picked trains two models, our network by LambdaRank and boosted trees on the same tokens,
which rank those three networks' programs.  A seed gives all samplers the same random start, so that they are compared seed by
seed.  --quick: a tenth only.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from _tables import ROOT, arguments, into_document, markdown, mean_interval, save

from tcl_core import environment, store  # noqa: F401  (before torch is imported)

import torch
from _datasets import VALIDATION, Case, Reference

from tcl_core.collect import Collection, Plan, collect
from tcl_core.errors import TclError
from tcl_core.evaluation.metrics import pairwise_accuracy, subset_top_1, top_k
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.programs.pool import Program
from tcl_core.progress import progress
from tcl_core.params import load_params
from tcl_core.platforms import read_saved_hardware
from tcl_core.stages.collecting import setup_of
from tcl_core.stages.workspace import Workspace

COMMAND = "python bench/samplers.py"
SAMPLERS = ("random", "per-task", "rdu-paper", "rdu")
NETWORK = FitSettings(epochs=60, batch_size=256, learning_rate=2e-3, schedule="cosine", period=60)
JUDGES = {"mamba": NETWORK, "trees": catalogue.own_settings("trees")}
FIGURES = {"top1": "top-1", "u16": "U16", "pairs": "pairs right"}


def measured_pool(reference: Reference, workspace: Workspace, platform: str, case: Case, journal: Path) -> Collection:
    """The programs of the case's training tasks and what was measured of them."""
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


def play(
    workspace: Workspace, pool: Collection, case: Case, sampler: str, seed: int, share: float, judges: Mapping[str, FitSettings]
) -> dict[str, dict[str, float]]:
    """Judge -> figures, of one collection with a sampler and a seed."""
    c, budget = workspace.params.collect, round(share * len(pool.programs))
    plan = Plan(sampler, budget, round(c.initial_share * budget), c.rounds, 0.0, seed)
    collection = replace(pool, records={}, known=dict(pool.known))
    models = [catalogue.create("mamba", replace(NETWORK, epochs=c.epochs, seed=seed + n)) for n in range(c.ensemble)]
    collect(collection, plan, models, lambda step: None, lambda record: None)
    found = {}
    for judge, settings in judges.items():
        model = catalogue.create(judge, replace(settings, seed=seed))
        model.fit(collection.samples())
        ranked = model.predict(case.test), case.test.latencies_s, case.test.tasks
        found[judge] = {
            "top1": top_k(*ranked, case.networks, 1),
            "top5": top_k(*ranked, case.networks, 5),
            "u16": fmean(subset_top_1(*ranked).values()),
            "pairs": pairwise_accuracy(*ranked),
        }
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the pool only")
    parser.add_argument("--threads", type=int, default=2, help="of training and ranking (2)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    try:
        run_smallest() if given.smallest else run(Size(shares=(0.1,) if given.quick else (0.1, 0.25)))
    except TclError as error:
        sys.exit(f"samplers: {error}")


@dataclass(frozen=True)
class Size:
    """Shares of the pool that are picked, seeds, and how the models learn that judge what was."""

    shares: Sequence[float]
    seeds: int = 5
    judges: Mapping[str, FitSettings] = field(default_factory=lambda: JUDGES)


def run_smallest() -> None:
    from _smallest import reference

    params = load_params()
    workspace = Workspace(params=replace(params, collect=replace(params.collect, epochs=1, rounds=2)))
    judges = {judge: replace(settings, epochs=1) for judge, settings in JUDGES.items()}
    run(Size((0.5,), 2, judges), workspace, reference())


def run(size: Size, workspace: Workspace | None = None, reference: Reference | None = None) -> None:
    seeds, shares, workspace = range(size.seeds), size.shares, workspace or Workspace()
    reference = reference or Reference(ROOT / "data" / "reference", ROOT / "data" / "features")
    platform = reference.platforms[-1]
    case, runs = reference.case(platform, "tokens", VALIDATION), {}
    with tempfile.TemporaryDirectory() as journal, progress("playing collections", len(shares) * len(SAMPLERS) * len(seeds)) as shown:
        pool = measured_pool(reference, workspace, platform, case, Path(journal))
        for share in shares:
            for sampler in SAMPLERS:
                runs[sampler, share] = []
                for seed in seeds:
                    runs[sampler, share].append(play(workspace, pool, case, sampler, seed, share, size.judges))
                    shown.advance(f"{sampler} {share:.0%}: pairs {runs[sampler, share][-1]['trees']['pairs']:.3f} by trees")
    about = {"platform": platform, "programs": len(pool.programs), "seeds": len(seeds)}
    figures = {f"{sampler} {share:g}": found for (sampler, share), found in runs.items()}
    save("samplers", {**about, "figures": figures}, COMMAND)
    text = table(runs)
    note = f"Mean over {len(seeds)} seeds, {platform}, a pool of {len(pool.programs):,} programs; in brackets the 95 % interval "
    into_document("samplers", f"{text}\n\n{note}of the difference from `random`, seed by seed.")
    print(text)


def table(runs: dict[tuple[str, float], list[dict[str, dict[str, float]]]]) -> str:
    rows = []
    for (sampler, share), found in runs.items():
        cells = [_against(found, runs["random", share], judge, key) for judge in JUDGES for key in FIGURES]
        rows.append([sampler, f"{share:.0%}", *cells])
    return markdown(["sampler", "of the pool", *(f"{judge}: {name}" for judge in JUDGES for name in FIGURES.values())], rows)


def _against(runs: list[dict[str, dict[str, float]]], random: list[dict[str, dict[str, float]]], judge: str, key: str) -> str:
    """A figure's mean and how far it differs from that of the random sampler."""
    mean = mean_interval([run[judge][key] for run in runs])[0]
    if runs is random:
        return f"{mean:.3f}"
    _, low, high = mean_interval([run[judge][key] - other[judge][key] for run, other in zip(runs, random, strict=True)])
    return f"{mean:.3f} ({low:+.3f} to {high:+.3f})"


if __name__ == "__main__":
    main()

"""How much narrower the sampler's strata should be among fast programs, and which program of a stratum to take; on devices that no
other table of the sampler uses.

    python bench/lean.py [--quick] [--logs FOLDER] [--seeds N] [--threads N]

On a later platform `rdu` chooses by the scores of trees that learned an earlier one's measurements (``tcl_core.sampling.rdu``).  Its
``LEAN`` is set here, on imported AutoTVM logs, and judged by ``bench/samplers.py`` on the reference data.  For each pair of devices
trees learn a few uniformly drawn programs of every task of the first; a tenth is chosen of 64 uniformly drawn programs of each of three
quarters of the second's tasks; trees that learned the chosen ones alone rank the other tasks' programs.

pairs, u16, found   as in ``bench/samplers.py``
least certain       of each stratum the program on whose score the trees disagree most, not any one as with `rdu`

Mean over devices and seeds, and the 95 % interval of the difference from programs drawn at random for the same device and seed.  Pairs
with the same second device share its programs, and count as one.
--quick: one pair, two seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from _tables import ROOT, Quick, arguments, markdown, mean_interval, save

from tcl_core import environment  # noqa: F401  (before torch is imported)

import numpy as np
import torch
from _datasets import LOG_TASKS_HELD_OUT, Logs
from samplers import TREES, best_found

from tcl_core.errors import TclError
from tcl_core.evaluation.metrics import pairwise_accuracy, subset_top_1
from tcl_core.features.batches import Samples, concatenate, scaled_within_task
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel
from tcl_core.params import load_params
from tcl_core.progress import progress
from tcl_core.sampling import per_task, rdu
from tcl_core.sampling.pool import Pool
from tcl_core.stages import exchange

COMMAND = "python bench/lean.py"
PAIRS = (("ryzen-3700x", "i5-1035g1"), ("i5-1035g1", "cortex-a72"), ("ryzen-3700x", "cortex-a72"), ("cortex-a72", "ryzen-3700x"))
LEANS, DOUBTED = (1.0, 1.25, 1.5, 2.0, 3.0), (1.0, 1.5, 2.0)
RANDOM, PER_TASK = "random", "per-task"
PROGRAMS, BEFORE, SHARE = 64, 16, 0.1  # of each task: in the pool, of the device before; share chosen
FIGURES = {"pairs": "pairs right", "u16": "U16", "found": "best found"}


Drawn = Callable[[str], Samples]
"""A device's uniformly drawn programs."""


def of_logs(folder: Path) -> Drawn:
    """``Drawn`` of devices with imported logs."""
    logs = Logs(folder, ROOT / "data" / "bench" / "logs")
    return lru_cache(maxsize=3)(lambda device: concatenate(list(exchange.imported_batches(logs.workspace, device, ["random"]))))


def few(samples: Samples, each: int, rng: np.random.Generator) -> Samples:
    """At most ``each`` programs of every task, at random."""
    order = rng.permutation(len(samples))
    order = order[np.argsort(samples.tasks[order], kind="stable")]
    tasks = samples.tasks[order]
    place = np.arange(len(order)) - np.searchsorted(tasks, tasks)
    return samples.take(np.sort(order[place < each]))


def trees(train: Samples, epochs: int, seed: int) -> CostModel:
    return catalogue.create("trees", replace(catalogue.own_settings("trees"), epochs=epochs, seed=seed)).fit(train)


def played(drawn: Drawn, before: str, device: str, seed: int, share: float) -> dict[str, dict[str, float]]:
    """Choice -> its figures."""
    rng, c = np.random.default_rng(seed), load_params().collect
    samples = drawn(device)
    tasks = rng.permutation(np.unique(samples.tasks))
    tested = np.isin(samples.tasks, tasks[: round(LOG_TASKS_HELD_OUT * len(tasks))])
    pool, test = few(samples.take(~tested), PROGRAMS, rng), few(samples.take(tested), PROGRAMS, rng)
    known = few(drawn(before), BEFORE, rng)
    members = [trees(known, c.epochs, seed + number) for number in range(c.ensemble)]
    predictions = np.stack([scaled_within_task(member.predict(pool), pool.tasks) for member in members])
    nothing = np.zeros(0)
    seen, doubt = Pool(predictions.mean(axis=0), pool.tasks, nothing, pool.tasks, nothing.astype(int)), predictions.var(axis=0)
    budget = round(share * len(pool))
    choices = {f"{lean:g}": lambda draw, lean=lean: rdu.pick(seen, budget, draw, lean) for lean in LEANS}
    choices = {
        RANDOM: lambda draw: draw.permutation(len(pool))[:budget],
        PER_TASK: lambda draw: per_task.pick(seen, budget, draw),
        **choices,
        **{f"{lean:g}, least certain": lambda draw, lean=lean: rdu.pick(seen, budget, draw, lean, doubt) for lean in DOUBTED},
    }
    return {name: judged(pool, pool.take(np.sort(choose(np.random.default_rng(seed)))), test, seed) for name, choose in choices.items()}


def judged(pool: Samples, chosen: Samples, test: Samples, seed: int) -> dict[str, float]:
    ranked = trees(chosen, TREES, seed).predict(test), test.latencies_s, test.tasks
    return {"pairs": pairwise_accuracy(*ranked), "u16": fmean(subset_top_1(*ranked).values()), "found": best_found(pool, chosen)}


def summary(runs: dict[str, dict[str, dict[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Choice -> figure, and FIGURE_less_random -> [mean, low, high] over the devices chosen for; of a single one over its runs.

    All runs on a device share its pool and tested tasks, so they count as one, with their mean.
    """
    found: dict[str, dict[str, list[float]]] = {}
    alike: dict[str, list[dict[str, dict[str, float]]]] = {}
    for name, run in runs.items():
        alike.setdefault(name.partition(" > ")[2].partition(",")[0], []).append(run)
    if len(alike) == 1:
        alike = {name: [run] for name, run in runs.items()}
    for choice in next(iter(runs.values())):
        for key in FIGURES:
            mine, random = ([fmean(run[name][key] for run in some) for some in alike.values()] for name in (choice, RANDOM))
            row = found.setdefault(choice, {})
            row[key] = list(mean_interval(mine))
            row[f"{key}_less_random"] = list(mean_interval([a - b for a, b in zip(mine, random, strict=True)]))
    return found


def table(found: dict[str, dict[str, list[float]]]) -> str:
    def cell(row: dict[str, list[float]], choice: str, key: str) -> str:
        low, high = row[f"{key}_less_random"][1:]
        return f"{row[key][0]:.3f}" + ("" if choice == RANDOM else f" ({low:+.3f} to {high:+.3f})")

    return markdown(["choice", *FIGURES.values()], [[name, *(cell(row, name, key) for key in FIGURES)] for name, row in found.items()])


def run(given: Any) -> None:
    pairs, seeds = (PAIRS[:1], 2) if given.quick or given.smallest else (PAIRS, given.seeds)
    if given.smallest:
        from _smallest import reference

        drawn: Drawn = lambda platform: reference().case(platform, "tokens").train  # noqa: E731
        pairs = [tuple(reference().platforms[-2:])]
    elif given.logs.exists():
        drawn = of_logs(given.logs)
    else:
        print(f"there is no {given.logs}; nothing was compared (give the folder of tuning logs with --logs)")
        return
    runs: dict[str, Any] = {}
    with progress("choosing", len(pairs) * seeds) as shown:
        for before, device in pairs:
            for seed in range(seeds):
                runs[f"{before} > {device}, {seed}"] = played(drawn, before, device, seed, 0.5 if given.smallest else SHARE)
                shown.advance(f"{before} > {device}")
    found = summary(runs)
    save("lean", {"summary": found, "runs": runs}, " ".join([COMMAND, *sys.argv[1:]]))
    print(table(found))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="one pair, two seeds")
    parser.add_argument("--logs", type=Path, default=ROOT.parent / "shared" / "bench", help="folder of tuning logs")
    parser.add_argument("--seeds", type=int, choices=range(2, 51), default=5, help="for each pair (5)")
    parser.add_argument("--threads", type=int, default=2, help="of training and ranking (2)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    try:
        run(given)
    except TclError as error:
        sys.exit(f"lean: {error}")


if __name__ == "__main__":
    main()

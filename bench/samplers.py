"""RDU against random at equal budgets: how good is a model trained on what each sampler picks?

    python bench/samplers.py [--quick]

Measures every program of some training tasks on the chain's last platform once (kept in the journal), then plays each
sampler's collection over these known latencies for several seeds, trains the plain Mamba on what was picked, and ranks
the held-out programs of the same platform.  --quick: fewer tasks and five seeds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from _tables import into_readme, markdown, mean_interval, save

from tcl_core import environment  # noqa: F401  (before torch is imported)
from tcl_core.collect import Collection, Plan, collect, measure_all
from tcl_core.evaluation.metrics import pairwise_accuracy, top_k
from tcl_core.models import catalogue
from tcl_core.platforms import host_fingerprint
from tcl_core.progress import progress
from tcl_core.stages.data import hardware_here, setup_of
from tcl_core.stages.models import fit_settings
from tcl_core.stages.project import JOURNAL, Project, measuring_alone

SAMPLERS = ("random", "rdu-paper", "rdu")
COMMAND = "python bench/samplers.py"


def measured_pool(project: Project, platform: str, tasks: int) -> Collection:
    """All programs of the pool's first tasks, measured."""
    programs = project.programs("train")
    kept = list(dict.fromkeys(p.task_key for p in programs))[:tasks]
    spec = project.params.platforms[platform]
    collection = Collection(
        programs=[p for p in programs if p.task_key in kept],
        encoder=project.encoder,
        hardware=hardware_here(spec.mcpu, spec.hardware).vector(),
        host=host_fingerprint(),
        setup=setup_of(project, platform),
        journal=JOURNAL / "bench" / platform,
    )
    with measuring_alone(), progress("measuring the whole pool", len(collection.programs)) as shown:
        measure_all(collection, 0.0, lambda record: shown.advance())
    return collection


def play(project: Project, pool: Collection, platform: str, sampler: str, seed: int, share: float) -> dict[str, float]:
    """One collection with a sampler and a seed, and how well a model trained on it ranks the held-out programs."""
    budget = round(share * len(pool.programs))
    plan = Plan(sampler, budget, round(0.3 * budget), project.params.collect.rounds, 0.0, seed)
    settings = replace(fit_settings(project), seed=seed)
    refit = replace(settings, epochs=project.params.collect.epochs)
    collection = replace(pool, records={}, known=dict(pool.known))
    models = [catalogue.create("mamba", replace(refit, seed=seed + n)) for n in range(project.params.collect.ensemble)]
    collect(collection, plan, models, lambda step: None, lambda record: None)
    model = catalogue.create("mamba", settings)
    model.fit(collection.samples())
    held_out, weights = project.samples(platform, "holdout"), project.task_weights("held_out")
    predicted = model.predict(held_out)
    seconds, tasks = held_out.latencies_s, held_out.tasks
    return {
        "top1": top_k(predicted, seconds, tasks, weights, 1),
        "top5": top_k(predicted, seconds, tasks, weights, 5),
        "pairs": pairwise_accuracy(predicted, seconds, tasks),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer tasks and five seeds")
    quick = parser.parse_args().quick
    seeds, tasks, shares = (range(5), 14, (0.1, 0.25)) if quick else (range(10), 48, (0.1, 0.25))
    project = Project.here()
    platform = project.params.chain_order[-1]
    pool = measured_pool(project, platform, tasks)
    found, rows = {}, []
    with progress("playing collections", len(SAMPLERS) * len(shares) * len(seeds)) as shown:
        for share in shares:
            for sampler in SAMPLERS:
                runs = []
                for seed in seeds:
                    runs.append(play(project, pool, platform, sampler, seed, share))
                    shown.advance(f"{sampler} {share:g}")
                intervals = {key: mean_interval([run[key] for run in runs]) for key in runs[0]}
                found[f"{sampler} {share:g}"] = intervals
                rows.append([sampler, f"{share:.0%}", *(f"{m:.3f} ({a:.3f} to {b:.3f})" for m, a, b in intervals.values())])
    text = markdown(["sampler", "of the pool", "top-1", "top-5", "pairs ranked right"], rows)
    save("samplers", {"platform": platform, "programs": len(pool.programs), "seeds": len(seeds), "figures": found}, COMMAND)
    into_readme("samplers", f"{text}\n\nMean and 95 % interval over {len(seeds)} seeds, {platform}, a pool of {len(pool.programs)} programs.")
    print(text)


if __name__ == "__main__":
    main()

"""A sampler of one's own, beside those of TCL: which tenth of the programs teaches a model most.

A sampler is a function (pool, budget, random generator) -> row numbers.  One line in the catalogue gives it a name, by which
params.yaml and `tcl.samplers` know it too.
"""

import numpy as np

import tcl_core as tcl
from tcl_core.sampler_names import SAMPLERS
from tcl_core.sampling import catalogue
from tcl_core.sampling.pool import Pool


def pick_the_middle(pool: Pool, budget: int, rng: np.random.Generator) -> np.ndarray:
    """Programs whose predictions are nearest to the median: neither the best nor the worst."""
    return np.argsort(np.abs(pool.predictions - np.median(pool.predictions)), kind="stable")[:budget]


SAMPLERS["middle"] = f"{__name__}:pick_the_middle"

case = tcl.datasets.reference().case("host-avx512").thinned(tasks=40, programs=24, seed=0)
candidates = case.train
model = tcl.Trees().fit(candidates.take(tcl.samplers.random(candidates, 0.05)))
scores = model.predict(candidates)
chosen = {
    "random": tcl.samplers.random(candidates, 0.1, seed=1),
    "per task": tcl.samplers.per_task(candidates, 0.1, seed=1),
    "rdu": tcl.samplers.rdu(candidates, model, 0.1),
    "middle": catalogue.pick("middle", scores, candidates.tasks, scores[:0], len(candidates) // 10, rng=np.random.default_rng(1)),
}
for name, rows in chosen.items():
    found = tcl.figures(tcl.Trees().fit(candidates.take(rows)).predict(case.test), case.test)
    print(
        f"{name:8s} {len(rows)} programs, {len(np.unique(candidates.tasks[rows])):2d} tasks: {found['pairs']:.1%} of the pairs ranked right"
    )

"""A cost model of one's own, beside those of TCL: least squares on what a program's tokens say in all.

A model derives from `tcl.CostModel` and needs a name, `fit` and `predict`.  One line in the catalogue makes it known by its name.
"""

import numpy as np

import tcl_core as tcl
from tcl_core.features.action_statistics import action_statistics
from tcl_core.features.batches import rows_by_task
from tcl_core.models.catalogue import CLASSES


class LeastSquares(tcl.CostModel):
    """Scores are linear in statistics of the tokens; only what differs within a task is learned."""

    name = "least-squares"
    weights = np.zeros(0)

    def fit(self, train, valid=None, on_epoch=None, *, sources=(), checkpoint=None):
        train = train.take(train.scores > 0)  # programs that ran
        x, y = action_statistics(train.features).astype(float), np.log(train.scores.astype(float))
        for rows in rows_by_task(train.tasks):
            x[rows] -= x[rows].mean(axis=0)
            y[rows] -= y[rows].mean()
        self.weights = np.linalg.solve(x.T @ x + 10.0 * np.eye(x.shape[1]), x.T @ y)
        return self

    def predict(self, samples):
        return (action_statistics(samples.features) @ self.weights).astype(np.float32)

    def parameter_count(self):
        return len(self.weights)


CLASSES[LeastSquares.name] = f"{__name__}:LeastSquares"

case = tcl.datasets.reference().case("host-avx512").thinned(tasks=60, programs=32, seed=0)
for name in ("random", "least-squares", "trees"):
    model = tcl.create(name).fit(case.train)
    found = tcl.figures(model.predict(case.test), case.test)
    print(f"{name:13s} {model.parameter_count():6,d} numbers, ranks {found['pairs']:.1%} of the pairs right")

mine = tcl.create("least-squares").fit(case.train)
picked = tcl.samplers.rdu(case.train, mine, 0.1)  # whatever asks a model takes this one too
print(f"the sampler rdu, asking it, picks {len(picked)} of {len(case.train)} programs")

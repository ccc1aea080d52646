"""The samplers of ``tcl_core.sampling`` as plain functions on arrays: which programs to measure.

    picked = tcl.samplers.rdu(candidates, model, budget=0.1)          # the tenth of a pool that is most worth measuring
    picked = tcl.samplers.rdu(candidates, model, 64, labelled=known)  # 64 more, beside those measured already

``candidates`` and ``labelled`` are ``Samples`` of one task numbering, N and M programs; ``budget`` is a share of the N (a float
up to 1) or a number of programs.  Each function returns row numbers of ``candidates`` in picking order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral

import numpy as np

from tcl_core.errors import UsageError, check_seed
from tcl_core.features.batches import Samples, concatenate, scaled_within_task
from tcl_core.features.layout import WIDTH
from tcl_core.features.tokens import operators_of
from tcl_core.models.cost_model import CostModel
from tcl_core.sampling import catalogue
from tcl_core.trained import Trained

Ranks = CostModel | Trained
"""A model that predicts."""

__all__ = ["per_task", "random", "rdu", "rdu_paper"]


def rdu(
    candidates: Samples,
    model: Ranks | Sequence[Ranks],
    budget: float = 0.1,
    *,
    labelled: Samples | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Pick representative and diverse programs (``sampling.rdu.pick``).

    Each task gets equally many, counting ``labelled``, spread over the predicted ranking and denser among the fast ones.

    model  one model, such as that of a similar platform, or an ensemble, whose mean ranking is used

    Raises UsageError for a budget or a seed below 0, DataError for predictions that are not finite.
    """
    scores, _ = _scores(candidates, model, labelled)
    return _picked("rdu", candidates, scores.mean(axis=0), budget, labelled, seed)


def rdu_paper(
    candidates: Samples,
    model: Ranks | Sequence[Ranks],
    budget: float = 0.1,
    *,
    labelled: Samples | None = None,
    operator_types: Sequence[str] | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Pick by the score that arXiv 2604.12891 prints, from predictions alone (``sampling.rdu.pick_as_printed``).

    model           as for ``rdu``, but of an ensemble only the first model is used
    operator_types  (N,) of the candidates; None: read from the tokens' workload rows

    Raises as ``rdu``, and UsageError for tokens that do not tell operator types.
    """
    scores, known = _scores(candidates, model[:1] if isinstance(model, Sequence) else model, labelled)
    types = _operators(candidates) if operator_types is None else np.asarray(operator_types)
    return _picked("rdu-paper", candidates, scores[0], budget, labelled, seed, operator_types=types, labelled_predictions=known[0])


def random(candidates: Samples, budget: float = 0.1, *, seed: int = 0) -> np.ndarray:
    """Pick uniformly at random: the baseline that every sampler must beat."""
    return _picked("random", candidates, np.zeros(len(candidates)), budget, None, seed)


def per_task(candidates: Samples, budget: float = 0.1, *, labelled: Samples | None = None, seed: int = 0) -> np.ndarray:
    """Pick equally many programs per task, counting ``labelled`` (``sampling.per_task.pick``)."""
    return _picked("per-task", candidates, np.zeros(len(candidates)), budget, labelled, seed)


def _scores(candidates: Samples, model: Ranks | Sequence[Ranks], labelled: Samples | None) -> tuple[np.ndarray, np.ndarray]:
    """(members, N) and (members, M): each model's predictions, scaled to [0, 1] within each task."""
    models = list(model) if isinstance(model, Sequence) else [model]
    if not models:
        raise UsageError("the ensemble has no model; give one, or several")
    both = candidates if labelled is None else concatenate([candidates, labelled])
    scores = np.stack([scaled_within_task(each.predict(both), both.tasks) for each in models])
    return scores[:, : len(candidates)], scores[:, len(candidates) :]


def _picked(
    name: str, candidates: Samples, predictions: np.ndarray, budget: float, labelled: Samples | None, seed: int, **told: np.ndarray
) -> np.ndarray:
    known = np.zeros(0, dtype=np.int32) if labelled is None else labelled.tasks
    told = {"operator_types": candidates.tasks, "labelled_predictions": np.zeros(len(known)), **told}
    count = _programs(budget, len(candidates))
    check_seed(seed)
    rng = np.random.default_rng(seed)
    return catalogue.pick(name, predictions, budget=count, tasks=candidates.tasks, labelled_tasks=known, rng=rng, **told)


def _operators(candidates: Samples) -> np.ndarray:
    if candidates.features.shape[2] != WIDTH:
        raise UsageError(
            f"these samples have {candidates.features.shape[2]} features per token, not the {WIDTH} of TCL's own tokens, which tell the "
            "operator; give operator_types"
        )
    return operators_of(candidates.features)


def _programs(budget: float, count: int) -> int:
    """The budget as a number of programs."""
    if not 0 <= budget < math.inf:
        raise UsageError(f"the budget is {budget}; give a share of the programs up to 1.0, or a number of programs")
    return int(budget) if isinstance(budget, Integral) or budget > 1 else round(float(budget) * count)

"""Which programs to measure, from arrays alone: the samplers of ``tcl_core.sampling`` as plain functions.

    picked = tcl.samplers.rdu(candidates, model, budget=0.1)          # of a pool, the tenth that is worth measuring
    picked = tcl.samplers.rdu(candidates, model, 64, labelled=known)  # 64 more, after those that are measured already

``candidates`` and ``labelled`` are ``Samples`` of one task numbering, N and M programs; ``budget`` is a share of the N (a float
up to 1) or a number of programs.  Each function returns row numbers of ``candidates`` in picking order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tcl_core.errors import UsageError
from tcl_core.features.batches import Samples, concatenate, scaled_within_task
from tcl_core.features.layout import WIDTH
from tcl_core.features.tokens import operators_of
from tcl_core.models.cost_model import CostModel
from tcl_core.sampling import catalogue
from tcl_core.trained import Trained

Ranks = CostModel | Trained
"""What predicts and embeds."""

__all__ = ["per_task", "random", "rdu", "rdu_paper"]


def rdu(
    candidates: Samples,
    model: Ranks | Sequence[Ranks],
    budget: float = 0.1,
    *,
    labelled: Samples | None = None,
    operator_types: Sequence[str] | None = None,
    seed: int = 0,
) -> np.ndarray:
    """Representative, diverse and uncertain ones, with distances between embeddings; ``sampling.rdu.pick``.

    model           one, or an ensemble whose disagreement is the uncertainty; the first one's ranking counts
    operator_types  (N,) of the candidates; without them the tokens' workload rows tell

    Raises UsageError for a budget below 0 or for tokens that do not tell operator types, DataError for predictions that are not
    finite.
    """
    return _asked("rdu", candidates, model, budget, labelled, operator_types, seed)


def rdu_paper(
    candidates: Samples,
    model: Ranks | Sequence[Ranks],
    budget: float = 0.1,
    *,
    labelled: Samples | None = None,
    operator_types: Sequence[str] | None = None,
    seed: int = 0,
) -> np.ndarray:
    """The score that arXiv 2604.12891 prints, from predictions alone; ``sampling.rdu.pick_as_printed``.  Arguments as of ``rdu``."""
    return _asked("rdu-paper", candidates, model, budget, labelled, operator_types, seed)


def random(candidates: Samples, budget: float = 0.1, *, seed: int = 0) -> np.ndarray:
    """Any, each as likely: what every sampler must beat."""
    return _blind("random", candidates, budget, None, seed)


def per_task(candidates: Samples, budget: float = 0.1, *, labelled: Samples | None = None, seed: int = 0) -> np.ndarray:
    """Equally many of each task, the ``labelled`` ones counted; ``sampling.per_task.pick``."""
    return _blind("per-task", candidates, budget, labelled, seed)


def _asked(
    name: str,
    candidates: Samples,
    model: Ranks | Sequence[Ranks],
    budget: float,
    labelled: Samples | None,
    operator_types: Sequence[str] | None,
    seed: int,
) -> np.ndarray:
    models = list(model) if isinstance(model, Sequence) else [model]
    known = candidates.take(np.arange(0)) if labelled is None else labelled
    both, count = concatenate([candidates, known]), len(candidates)
    predictions = np.stack([scaled_within_task(each.predict(both), both.tasks) for each in models])
    embeddings = models[0].embed(both) if name == "rdu" else None
    return catalogue.pick(
        name,
        predictions[0, :count],
        np.asarray(_operators(candidates) if operator_types is None else operator_types),
        predictions[0, count:],
        _programs(budget, count),
        uncertainty=predictions.var(axis=0)[:count],
        embeddings=None if embeddings is None else embeddings[:count],
        labelled_embeddings=None if embeddings is None else embeddings[count:],
        rng=np.random.default_rng(seed),
    )


def _blind(name: str, candidates: Samples, budget: float, labelled: Samples | None, seed: int) -> np.ndarray:
    known = np.zeros(0, dtype=np.int32) if labelled is None else labelled.tasks
    nothing = np.zeros(len(candidates))
    return catalogue.pick(
        name, nothing, nothing, np.zeros(len(known)), _programs(budget, len(candidates)),
        tasks=candidates.tasks, labelled_tasks=known, rng=np.random.default_rng(seed),
    )  # fmt: skip


def _operators(candidates: Samples) -> np.ndarray:
    if candidates.features.shape[2] != WIDTH:
        raise UsageError(
            f"these samples have {candidates.features.shape[2]} features per token, not the {WIDTH} of TCL's own tokens, which tell the "
            "operator; give operator_types"
        )
    return operators_of(candidates.features)


def _programs(budget: float, count: int) -> int:
    """A whole number of programs."""
    if budget < 0:
        raise UsageError(f"the budget is {budget}; give a share of the programs up to 1.0, or a number of programs")
    return round(budget * count) if isinstance(budget, float) and budget <= 1 else int(budget)

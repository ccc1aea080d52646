"""Rank the held-out programs with every model, and write the figures and plots."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from tcl_core import provenance
from tcl_core.checked import write_json
from tcl_core.errors import DataError
from tcl_core.evaluation import plots
from tcl_core.evaluation.intervals import chain_figures, model_figures
from tcl_core.evaluation.metrics import Networks, pairwise_accuracy
from tcl_core.evaluation.report import collection_progress
from tcl_core.features.batches import Samples
from tcl_core.models import catalogue
from tcl_core.models.mamba import MambaModel
from tcl_core.progress import say
from tcl_core.stages import baselines
from tcl_core.stages.workspace import ELSEWHERE, SCRATCH, Workspace, learning_curve, without_tasks


def evaluate(workspace: Workspace) -> dict[str, Any]:
    """Rank every platform's held-out programs with every platform's model -> data/reports/evaluation.json, which is returned, and plots.

    Two models show what distillation is worth beside a platform's chained model: ``zero-shot``, the model of the
    platform before that it was distilled from, which has seen no measurement of this one but is given its hardware row,
    and ``own data only``, a plain model that knows nothing of the chain.  The models of params.yaml's ``baselines`` follow.
    Held-out tasks that a model of the chain has learned, as a champion from elsewhere may have, are left out, with a message.
    """
    ran = workspace.platforms_here()
    if away := [p for p in workspace.platforms_that_ran() if p not in ran]:
        say(f"left out, since {ELSEWHERE}: {', '.join(away)}")
    with workspace.timed("evaluate"):
        collected = {p: _collection(workspace, p) for p in ran}
        judged = {p: workspace.judged_now(p) for p in ran}
        links = _links(workspace, judged)
        weights = workspace.task_weights("held_out")
        known = frozenset().union(*(provenance.learned_tasks(workspace.model_folder(p)) for p in ran))
        held_out = {p: _unknown(workspace, p, known) for p in ran}
        models = {p: catalogue.load(workspace.model_folder(p)) for p in ran}
        bases = {p: catalogue.load(workspace.model_folder(p) / "knowledge_base") for p in ran}
        predicted = {(m, p): models[m].predict(held_out[p]) for m in ran for p in ran}
        others = workspace.params.baselines.models
        by_base = {(m, p): bases[m].predict(held_out[p]) for m in ran for p in ran}
        evaluation = {
            "platforms": _figures(workspace, held_out, weights, {p: predicted[p, p] for p in ran}),
            "baselines": {
                "zero-shot": _figures(workspace, held_out, weights, {p: predicted[before, p] for p, before in links.items()}),
                "own data only": _figures(workspace, held_out, weights, _by_scratch(workspace, held_out)),
                **{name: _figures(workspace, held_out, weights, baselines.predicted(workspace, name, known)) for name in others},
            },
            "chain": _chain(workspace, links, predicted, held_out),
            "knowledge_base": _chain(workspace, links, by_base, held_out),
            "parameters": {p: m.parameter_count() for p, m in models.items()},
            "judged": judged,
        }
        write_json(workspace.reports / "evaluation.json", evaluation)
        _plot(workspace, evaluation, held_out, predicted, collected)
    return evaluation


def _links(workspace: Workspace, judged: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Platform -> the platform whose model it was distilled from, if that very model is ``judged`` (``Workspace.judged_now``) too."""
    links = {}
    for platform in list(judged)[1:]:
        before = workspace.ran_before(platform)
        if before is None or before not in judged:
            continue
        if provenance.read(workspace.model_folder(platform))["model_before"] == judged[before]["model"]:
            links[platform] = before
        else:
            say(
                f"the model of {platform} was not distilled from the model of {before} that lies here: zero-shot, and what was forgotten "
                f"since {before}, are left out"
            )
    return links


def _unknown(workspace: Workspace, platform: str, known: Collection[str]) -> Samples:
    """A platform's held-out programs of tasks that no model has learned.  Raises DataError where there are none."""
    samples, count = without_tasks(workspace, workspace.samples(platform, "holdout"), known)
    if count and not len(samples):
        raise DataError(f"each of the {count} held-out tasks of {platform} was learned by a model of the chain; hold out other networks")
    if count:
        say(f"held-out tasks of {platform} that a model of the chain has learned, and that are left out of all figures: {count}")
    return samples


def _figures(workspace: Workspace, held_out: dict[str, Samples], weights: Networks, predicted: dict[str, np.ndarray]) -> dict[str, Any]:
    """Platform -> figures of the predictions for its held-out programs."""
    e, seed = workspace.params.evaluate, workspace.params.seed
    return {
        p: model_figures(scores, held_out[p].latencies_s, held_out[p].tasks, weights, e.top_k, e.bootstrap, seed)
        for p, scores in predicted.items()
    }


def _by_scratch(workspace: Workspace, held_out: dict[str, Samples]) -> dict[str, np.ndarray]:
    """Platform -> predictions of its model that was trained on its own records only; the chain's first has none."""
    folders = {p: workspace.model_folder(p) / SCRATCH for p in held_out}
    return {p: MambaModel.load(f).predict(held_out[p]) for p, f in folders.items() if f.exists()}


def _chain(
    workspace: Workspace,
    links: dict[str, str],
    predicted: dict[tuple[str, str], np.ndarray],
    held_out: dict[str, Samples],
) -> dict[str, Any]:
    """The matrix of pairs (row = model after a platform, column = platform ranked), and what was forgotten; None where a link is missing."""
    ran = list(held_out)
    pairs = lambda m, p: pairwise_accuracy(predicted[m, p], held_out[p].latencies_s, held_out[p].tasks)  # noqa: E731
    found = chain_figures(ran, [[pairs(m, p) for p in ran] for m in ran], links)
    for platform in ran[1:]:
        before = None if platform in links else workspace.ran_before(platform)
        while before in ran:
            found["forgotten"][before] = None
            before = links.get(before)
    return found


def _plot(
    workspace: Workspace,
    evaluation: dict[str, Any],
    held_out: dict[str, Samples],
    predicted: dict[tuple[str, str], np.ndarray],
    collected: dict[str, list[dict[str, Any]]],
) -> None:
    folder, ran = workspace.reports / "plots", list(held_out)
    written = {
        plots.plot_top_k(evaluation, folder),
        plots.plot_chain(evaluation["chain"], folder),
        plots.plot_ranks({p: (predicted[p, p], held_out[p].scores, held_out[p].tasks) for p in ran}, folder),
        plots.plot_learning({p: learning_curve(workspace.model_folder(p)) for p in ran}, folder),
        plots.plot_collection(collected, folder),
    }
    for stale in set(folder.glob("*.png")) - written:
        stale.unlink()


def _collection(workspace: Workspace, platform: str) -> list[dict[str, Any]]:
    records = workspace.records(platform)
    numbers = workspace.encoder.numbers
    if not numbers.keys() >= {r.task_key for r in records}:
        raise DataError(f"records of {platform} are of tasks that the project no longer has; run: dvc repro collect@{platform}")
    return collection_progress(
        np.array([r.round for r in records]),
        np.array([r.latency_s for r in records]),
        np.array([numbers[r.task_key] for r in records]),
        workspace.encoder.operators([r.key for r in records]).tolist(),
    )

"""One run of the accuracy comparison: a model is trained once and ranks the tested programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from _chain_case import ChainCase
from _datasets import Case
from _lessons import Lesson
from _paired import task_figures

import numpy as np

from tcl_core.chain.bridge import BridgeSettings, bridged
from tcl_core.evaluation.metrics import mean_over_tasks, spearman, top_k
from tcl_core.features.batches import Samples
from tcl_core.learning.fit_settings import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel
from tcl_core.models.mamba import MambaModel
from tcl_core.teaching import STUDENT

TWINS = {name: "prepared" for name in ("registers", "sealed", "sealed-registers")}  # data sets that learn the same programs
SEARCHED = "searched"
SETS = "reference", "prepared", *TWINS, SEARCHED
OURS, CHAINED = "mamba", "tcl"
MODELS = ("random", "xgboost", "trees", "tenset-mlp", "tlp", "mtl-tlp", "world-model", "mamba-paper", OURS, CHAINED)
EPOCHS = {("logs", "tlp"): 4} | {(data, model): epochs for data in SETS for model, epochs in (("tlp", 12), ("mtl-tlp", 6))}
"""Instead of these models' own 50, which would take a day; docs/accuracy.md says what the shortening costs."""
TIMED = 512  # programs whose scoring is timed
DIGITS = 4  # of a task's figures


@dataclass(frozen=True)
class Run:
    """One training of a model: its data set, platform or device, and seed; ``tasks`` and ``programs`` of each are bounds, None for all."""

    data: str
    platform: str
    model: str
    seed: int
    tasks: int | None = None
    programs: int | None = None

    @property
    def whole(self) -> bool:
        """Whether it learned all tasks and programs; other runs are points of a learning curve."""
        return self.tasks is None and self.programs is None


def own_settings(run: Run) -> object:
    """Epochs that this comparison sets for a run's model; None for the model's own."""
    return EPOCHS.get((run.data, run.model))


def create(run: Run) -> CostModel:
    """A fresh model of the catalogue with its own settings and the seed."""
    settings = catalogue.own_settings(run.model)
    epochs = EPOCHS.get((run.data, run.model), settings.epochs)
    return catalogue.create(run.model, replace(settings, seed=run.seed, epochs=epochs))


def trained(run: Run, case: Any) -> CostModel:
    """The run's model, fitted to all of the case that it can learn from."""
    if run.model == CHAINED:
        return chained(run, case)
    if run.model == OURS:
        return taught(run, case)
    model = create(run)
    return model.fit(case.train, sources=case.before if model.learns_from_sources else ())


def taught(run: Run, case: Lesson) -> MambaModel:
    return MambaModel(_ours(run, STUDENT)).fit(case.taught(run.seed))


def _ours(run: Run, usual: FitSettings) -> FitSettings:
    epochs = EPOCHS.get((run.data, run.model), usual.epochs)
    return replace(usual, seed=run.seed, epochs=epochs, period=epochs)


def chained(run: Run, case: ChainCase) -> MambaModel:
    """Our model along the chain, as in the pipeline: taught on the first platform, then bridged to each later one's measurements."""
    settings = BridgeSettings(_ours(run, BridgeSettings().fit))
    model = taught(run, case.first)
    for place, step in enumerate(case.steps, start=1):
        known, nearest_first = case.hardware[:place], step.sources_s[::-1]
        model, _ = bridged(model, step.measured, step.further, settings, sources_s=nearest_first, machines=known[::-1], earlier=known)
    return model


def figures(run: Run, case: Case, kept: Path | None = None, folder: Path | None = None) -> dict[str, Any]:
    """Train a run's model; its ranking figures (overall, and for each of the ``tasks``), size and times.

    The scores are saved to ``kept`` and the model to ``folder``, if given.
    """
    start = time.process_time()
    model = trained(run, case)
    took = {"train_s": time.process_time() - start, "trained_programs": len(case.train)}
    if folder:
        folder.parent.mkdir(parents=True, exist_ok=True)
        model.save(folder)
    return ranked(model, case, kept) | took


def ranked(model: CostModel, case: Case, kept: Path | None) -> dict[str, Any]:
    """Ranking figures, size and speed of a trained model on the tested programs; its scores are saved to ``kept``."""
    test = case.test
    measured = model.predict(test), test.latencies_s, test.tasks
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, scores=measured[0], latencies_s=test.latencies_s, tasks=test.tasks)
    of_tasks = task_figures(*measured)
    return {
        "pairs": mean_over_tasks(of_tasks["pairs"]),
        "u16": mean_over_tasks(of_tasks["u16"]),
        "top1": top_k(*measured, case.networks, 1),
        "top5": top_k(*measured, case.networks, 5),
        "spearman": spearman(*measured),
        "tasks": list(of_tasks["pairs"]),
        "of_tasks": {name: [round(x, DIGITS) for x in values.values()] for name, values in of_tasks.items()},
        "parameters": model.parameter_count(),
        "programs_per_s": rate(model.predict, test),
        "tested_programs": len(test),
    }


def rate(predict: Callable[[Samples], np.ndarray], samples: Samples) -> float:
    """Programs per second of processor time, from features in memory to scores."""
    few = samples.take(np.arange(min(TIMED, len(samples))))
    predict(few)
    start = time.process_time()
    predict(few)
    return len(few) / max(time.process_time() - start, 1e-9)

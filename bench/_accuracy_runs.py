"""One model of the accuracy comparison, trained once, and what it makes of the tested programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from _datasets import Case
from _lessons import ChainCase, Lesson
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

TWINS = {name: "prepared" for name in ("registers", "sealed", "sealed-registers")}  # learned alike
SETS = "reference", "prepared", *TWINS
OURS, CHAINED = "mamba", "tcl"
MODELS = ("random", "xgboost", "trees", "tenset-mlp", "tlp", "mtl-tlp", "world-model", "mamba-paper", OURS, CHAINED)
EPOCHS = {("logs", "tlp"): 4} | {(data, model): epochs for data in SETS for model, epochs in (("tlp", 12), ("mtl-tlp", 6))}
"""Of their own 50, which would take a day: docs/accuracy.md says what that costs."""
TIMED = 512  # programs whose scoring is timed
DIGITS = 4  # of a task's figures


@dataclass(frozen=True)
class Run:
    """One model, trained once: on which data set, platform or device, with which seed; None: all tasks, all programs."""

    data: str
    platform: str
    model: str
    seed: int
    tasks: int | None = None
    programs: int | None = None

    @property
    def whole(self) -> bool:
        """Whether it learned from all that there is; the others are points of a curve."""
        return self.tasks is None and self.programs is None


def own_settings(run: Run) -> object:
    """What this comparison settles of how a run's model is trained, beside the model's own code."""
    return EPOCHS.get((run.data, run.model))


def create(run: Run) -> CostModel:
    """A fresh model of the catalogue with its own settings and the seed."""
    settings = catalogue.own_settings(run.model)
    epochs = EPOCHS.get((run.data, run.model), settings.epochs)
    return catalogue.create(run.model, replace(settings, seed=run.seed, epochs=epochs))


def trained(run: Run, case: Any) -> CostModel:
    """The model, having learned all that a case allows it to."""
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
    """Our model as the pipeline has it: taught on the chain's first platform, then carried on by what each later one measured."""
    settings = BridgeSettings(_ours(run, BridgeSettings().fit))
    model, platforms = taught(run, case.first), (*case.before, case.train)
    for place in range(1, len(platforms)):
        further = case.further[place]
        source_s = np.concatenate([platforms[place - 1].latencies_s, np.full(len(further), np.nan)])
        model, _ = bridged(model, platforms[place], further, settings, source_s=source_s, earlier=case.hardware[:place])
    return model


def figures(run: Run, case: Case, kept: Path | None = None, folder: Path | None = None) -> dict[str, Any]:
    """Of one run: how well it ranks, over all and of each of the ``tasks``, how large it is, how long it took.

    The scores go to ``kept``, the model to ``folder``.
    """
    start = time.process_time()
    model = trained(run, case)
    took = {"train_s": time.process_time() - start, "trained_programs": len(case.train)}
    if folder:
        folder.parent.mkdir(parents=True, exist_ok=True)
        model.save(folder)
    return ranked(model, case, kept) | took


def ranked(model: CostModel, case: Case, kept: Path | None) -> dict[str, Any]:
    """What a trained model makes of the tested programs."""
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

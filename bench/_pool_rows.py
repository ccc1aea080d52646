"""Comparisons of training programs: in each row boosted trees on tokens learn others and rank every data set's tested programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from _tables import markdown

from tcl_core import environment  # noqa: F401  (before torch is imported)

import numpy as np
from _paired import by_fold

from tcl_core.evaluation.metrics import subset_top_1, task_pairs
from tcl_core.features.batches import Samples
from tcl_core.models import catalogue

FIGURES = {"pairs": task_pairs, "u16": subset_top_1}
LABELS = {"pairs": "pairs right", "u16": "U16"}
DIGITS = 5

Figures = dict[str, dict[str, dict[str, float]]]
"""Data set -> figure -> "platform, task" -> value."""


def judged(learned: Samples, tests: Mapping[str, Mapping[str, Samples]], seed: int) -> Figures:
    """Figures of trees that learn ``learned`` and rank ``tests``, each data set's tested programs by platform."""
    model = catalogue.create("trees", replace(catalogue.own_settings("trees"), seed=seed))
    model.fit(learned)
    found: Figures = {}
    for data, platforms in tests.items():
        of_data = found.setdefault(data, {name: {} for name in FIGURES})
        for platform, test in platforms.items():
            scores = model.predict(test)
            for name, figure in FIGURES.items():
                by_task = figure(scores, test.latencies_s, test.tasks)
                of_data[name] |= {f"{platform}, {task}": round(float(value), DIGITS) for task, value in by_task.items()}
    return found


def beside_first(units: Mapping[str, Mapping[str, Figures]], first: str) -> dict[str, Any]:
    """Data set -> row -> figure -> [mean, low, high], and FIGURE_less_FIRST, the difference from the first row.

    ``units``  "fold, seed" -> row -> its figures.  A task of a fold counts once, with its mean over platforms and seeds; intervals are over
    draws of the folds and of their tasks.
    """
    rows, word = next(iter(units.values())), first.split()[0]
    found: dict[str, Any] = {}
    for data in rows[first]:
        for row in rows:
            of_row = found.setdefault(data, {}).setdefault(row, {})
            for name in FIGURES:
                mine, base = (_by_task(units, which, data, name) for which in (row, first))
                of_row[name], of_row[f"{name}_less_{word}"] = by_fold(mine), by_fold(mine, base)
    return found


def _by_task(units: Mapping[str, Mapping[str, Figures]], row: str, data: str, name: str) -> dict[tuple[str, int], float]:
    """(fold, task) -> mean over platforms and seeds."""
    values: dict[tuple[str, int], list[float]] = {}
    for unit, rows in units.items():
        for place, value in rows[row][data][name].items():
            values.setdefault((unit.split(", ")[0], int(place.split(", ")[1])), []).append(value)
    return {place: float(np.mean(of_task)) for place, of_task in values.items()}


def table(found: Mapping[str, Any], first: str, said: str, of: str = "") -> str:
    """Table of ``beside_first``; ``said`` is the header of the row names, ``of`` follows the names of the data sets."""
    word = first.split()[0]

    def cell(row: str, figures: Mapping[str, Any], name: str) -> str:
        _, low, high = figures[f"{name}_less_{word}"]
        return f"{figures[name][0]:.3f}" + ("" if row == first or low is None else f" ({low:+.3f} to {high:+.3f})")

    header = [said, *(f"{data}{of}, {LABELS[name]}" for data in found for name in FIGURES)]
    rows = next(iter(found.values()))
    return markdown(header, [[row, *(cell(row, data[row], name) for data in found.values() for name in FIGURES)] for row in rows])

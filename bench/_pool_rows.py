"""Rows of a comparison that differ in which programs were learned: boosted trees on tokens learn them and rank every data set's tested programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from _tables import markdown

from tcl_core import environment  # noqa: F401  (before torch is imported)

import numpy as np
from _paired import against

from tcl_core.evaluation.metrics import subset_top_1, task_pairs
from tcl_core.features.batches import Samples
from tcl_core.models import catalogue

FIGURES = {"pairs": task_pairs, "u16": subset_top_1}
LABELS = {"pairs": "pairs right", "u16": "U16"}
DIGITS = 5

Figures = dict[str, dict[str, dict[str, float]]]
"""Data set -> figure -> "platform, task" -> value."""


def judged(learned: Samples, tests: Mapping[str, Mapping[str, Samples]], seed: int) -> Figures:
    """``tests`` are each data set's tested programs by platform."""
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
    """Data set -> row -> figure -> [mean, low, high], and FIGURE_less_FIRST, the figure less that of the first row.

    ``units``  of each, row -> its figures.  A task counts once, with its mean over platforms, folds and seeds.
    """
    rows, word = next(iter(units.values())), first.split()[0]
    found: dict[str, Any] = {}
    for data in rows[first]:
        for row in rows:
            of_row = found.setdefault(data, {}).setdefault(row, {})
            for name in FIGURES:
                mine, base = (_by_task(units, which, data, name) for which in (row, first))
                of_row[name] = against(mine, np.zeros(len(mine)))
                of_row[f"{name}_less_{word}"] = against(mine, base)
    return found


def _by_task(units: Mapping[str, Mapping[str, Figures]], row: str, data: str, name: str) -> np.ndarray:
    """(T,) each task's mean, in order of the tasks."""
    values: dict[int, list[float]] = {}
    for unit in units.values():
        for place, value in unit[row][data][name].items():
            values.setdefault(int(place.split(", ")[1]), []).append(value)
    return np.array([np.mean(values[task]) for task in sorted(values)])


def table(found: Mapping[str, Any], first: str, said: str, of: str = "") -> str:
    """``said`` heads the rows' names; ``of`` stands behind the data sets'."""
    word = first.split()[0]

    def cell(row: str, figures: Mapping[str, Any], name: str) -> str:
        _, low, high = figures[f"{name}_less_{word}"]
        return f"{figures[name][0]:.3f}" + ("" if row == first or low is None else f" ({low:+.3f} to {high:+.3f})")

    header = [said, *(f"{data}{of}, {LABELS[name]}" for data in found for name in FIGURES)]
    rows = next(iter(found.values()))
    return markdown(header, [[row, *(cell(row, data[row], name) for data in found.values() for name in FIGURES)] for row in rows])

"""Plot of accuracy against the amount of measured data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _ranking_tables import interval

from tcl_core.evaluation.plots import BLUE, GREEN, ORANGE, PINK

FIGURES = {"pairs": "pairs ranked right", "top1": "top-1"}


def draw_curve(rows: Sequence[Sequence[Any]], whole: tuple[int, int], path: Path) -> None:
    """Draw a column of panels over the number of tasks, and one over the programs of each; mean and 95 % interval over seeds.

    rows   [tasks or None, programs of each or None, model, figures of all seeds], where None means all
    whole  numbers of all tasks and of all programs of each
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6.5), layout="constrained")
    panels = figure.subplots(len(FIGURES), 2, sharey="row", squeeze=False)
    models = list(dict.fromkeys(row[2] for row in rows))
    for column, label in enumerate(("training tasks (all programs of each)", "programs of each task (all tasks)")):
        for line, (key, name) in enumerate(FIGURES.items()):
            axes = panels[line][column]
            for model, colour in zip(models, (ORANGE, GREEN, BLUE, PINK), strict=False):
                mine = [row for row in rows if row[2] == model and row[1 - column] is None]
                if not mine:
                    continue
                points = sorted((row[column] or whole[column], interval([f[key] for f in row[3]])) for row in mine)
                size, spread = [at for at, _ in points], list(zip(*(figures for _, figures in points), strict=True))
                axes.plot(size, spread[0], "o-", color=colour, label=model)
                axes.fill_between(size, spread[1], spread[2], color=colour, alpha=0.15, linewidth=0)
            axes.set_xscale("log", base=2)
            ticks = sorted({row[column] or whole[column] for row in rows if row[1 - column] is None})
            axes.set_xticks(ticks, [str(tick) for tick in ticks], minor=False)
            axes.set(xlabel=label, ylabel=name if not column else "")
            axes.grid(alpha=0.3)
    panels[0][0].legend(frameon=False)
    figure.savefig(path, dpi=100, metadata={"Software": None})

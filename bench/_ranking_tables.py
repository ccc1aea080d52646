"""Tables of ranking figures: means over seeds with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from _paired import JUDGED
from _tables import markdown, mean_interval

FIGURES = {"pairs": "pairs ranked right", "u16": "U16", "top1": "top-1", "top5": "top-5", "spearman": "Spearman"}
LEAST = {"pairs": 0.0, "u16": 0.0, "top1": 0.0, "top5": 0.0, "spearman": -1.0}  # smallest possible value of each


def curve_table(rows: list[list[Any]]) -> str:
    names = ("pairs", "u16", "top1")
    cells = [
        [tasks or "all", programs or "all", model, *(shown([f[name] for f in runs]) for name in names)]
        for tasks, programs, model, runs in rows
    ]
    return markdown(["training tasks", "programs of each", "model", *(FIGURES[name] for name in names)], cells)


def overview_table(models: Sequence[str], platforms: Sequence[str], found: dict[tuple[str, str], list[dict[str, Any]]]) -> str:
    """A row for each model, from (model, platform) -> figures of all seeds; parameters are those on its last platform."""
    names = ("pairs", "u16", "top1")
    cell = lambda runs: " / ".join(f"{np.mean([f[name] for f in runs]):.3f}" for name in names) if runs else ""  # noqa: E731
    rows = []
    for model in models:
        runs = [found.get((model, platform), []) for platform in platforms]
        size = next(np.median([f["parameters"] for f in some]) for some in reversed(runs) if some)
        rows.append([model, f"{size:,.0f}", *map(cell, runs)])
    return markdown(["model", "parameters", *(f"{platform}: pairs / U16 / top-1" for platform in platforms)], rows)


def compared_table(ours: str, rows: list[dict[str, Any]]) -> str:
    """Table of ``compared``'s rows: each figure's mean over tasks, and our model's difference from it."""
    cells = []
    for row in rows:
        less = ["" if row["model"] == ours else signed(row[f"{name}_ours_less"]) for name in JUDGED]
        figures = [cell for name, differs in zip(JUDGED, less, strict=True) for cell in (f"{row[name]:.3f}", differs)]
        cells.append([row["platform"], row["model"], row["seeds"], row["tasks"], *figures])
    heads = [head for name in JUDGED.values() for head in (name, f"{ours} less it")]
    return markdown(["platform", "model", "seeds", "tasks", *heads], cells)


def calibration_table(rows: list[dict[str, Any]]) -> str:
    shown_of = lambda x: f"{x:.3f}" if isinstance(x, float) else "" if x is None else x  # noqa: E731
    cells = [[shown_of(x) for key, x in row.items() if key != "identity"] for row in rows]
    header = ["platform", "model", "members", "calibration error", "certainty tells right from wrong", "disagreement tells error"]
    return markdown(header, cells)


def sizes_and_times(runs: Sequence[dict[str, float]]) -> list[str]:
    """Parameters, training seconds, and programs ranked per second: medians over the runs."""
    return [f"{np.median([f[key] for f in runs]):,.0f}" for key in ("parameters", "train_s", "programs_per_s")]


def interval(values: Sequence[float], least: float = 0.0) -> list[float]:
    """[mean, low, high], clipped to the figure's range (``least`` to 1); for a single run all three are its value."""
    found = mean_interval(values) if len(values) > 1 else (values[0],) * 3
    return [round(min(max(x, least), 1.0), 4) for x in found]


def shown(values: Sequence[float], least: float = 0.0) -> str:
    mean, low, high = interval(values, least)
    return f"{mean:.3f} ({low:.3f} to {high:.3f})" if len(values) > 1 else f"{mean:.3f} (one seed)"


def signed(found: Sequence[float | None]) -> str:
    mean, low, high = found
    return f"{mean:+.3f}" if low is None else f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"

"""One model against another on the tasks of each operator, to see where it ranks better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from _paired import JUDGED, ByTask, against
from _ranking_tables import signed
from _tables import markdown


def by_operator(
    judged: Mapping[tuple[str, str], Mapping[int, Mapping[str, ByTask]]], operators: Mapping[int, str], ours: str
) -> list[dict[str, Any]]:
    """Rows as of ``compared`` for the tasks of each operator, most frequent operator first; seeds of all platforms count as seeds.

    ``operators`` maps a task to its operator's name.  Only seeds that both models have on a platform count.
    """
    shared: dict[str, list[tuple[Mapping[str, ByTask], Mapping[str, ByTask]]]] = {}
    for (platform, model), seeds in judged.items():
        mine = judged.get((platform, ours), {})
        if both := sorted(mine.keys() & seeds.keys()):
            shared.setdefault(model, []).extend((mine[seed], seeds[seed]) for seed in both)
    tested = sorted({task for found, _ in shared.get(ours, []) for task in found["pairs"]})
    rows = []
    for operator, count in Counter(operators[task] for task in tested).most_common():
        some = [task for task in tested if operators[task] == operator]
        for model, runs in shared.items():
            row: dict[str, Any] = {"operator": operator, "tasks": count, "model": model}
            for name in JUDGED:
                a, b = (_means([run[of][name] for run in runs], some) for of in (0, 1))
                row |= {name: float(b.mean()), f"{name}_ours_less": against(a, b)}
            rows.append(row)
    return rows


def operators_table(ours: str, rows: list[dict[str, Any]], names: Sequence[str] = ("pairs", "u16")) -> str:
    """Table of ``by_operator``'s rows: each figure's mean over the operator's tasks, and our model's difference from it."""
    cells = []
    for row in rows:
        less = ["" if row["model"] == ours else signed(row[f"{name}_ours_less"]) for name in names]
        figures = [cell for name, differs in zip(names, less, strict=True) for cell in (f"{row[name]:.3f}", differs)]
        cells.append([row["operator"], row["tasks"], row["model"], *figures])
    heads = [head for name in names for head in (JUDGED[name], f"{ours} less it")]
    return markdown(["operator", "tasks", "model", *heads], cells)


def _means(runs: Sequence[ByTask], tasks: Sequence[int]) -> np.ndarray:
    """(T,) mean of each task over the runs that have it."""
    return np.array([np.mean([run[task] for run in runs if task in run]) for task in tasks])

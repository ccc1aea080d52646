"""One model against another on each kind of tasks, to see where it ranks better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from _paired import JUDGED, ByTask, against
from _ranking_tables import signed
from _tables import markdown

from tcl_core.programs.tasks import Task

NEAR, FAR = "near one learned", "far from all"
ALIKE = 1.02  # largest ratio of two tasks' operations that counts as the same: what follows the main operator changes it by as much


def by_kind(
    judged: Mapping[tuple[str, str], Mapping[int, Mapping[str, ByTask]]], kinds: Mapping[int, str], ours: str
) -> list[dict[str, Any]]:
    """Rows as of ``compared`` for each kind of tasks, the most frequent first; seeds of all platforms count as seeds.

    ``kinds`` maps a task to its kind's name.  Only seeds that both models have on a platform count.
    """
    shared: dict[str, list[tuple[Mapping[str, ByTask], Mapping[str, ByTask]]]] = {}
    for (platform, model), seeds in judged.items():
        mine = judged.get((platform, ours), {})
        if both := sorted(mine.keys() & seeds.keys()):
            shared.setdefault(model, []).extend((mine[seed], seeds[seed]) for seed in both)
    tested = sorted({task for found, _ in shared.get(ours, []) for task in found["pairs"]})
    rows = []
    for kind, count in Counter(kinds[task] for task in tested).most_common():
        some = [task for task in tested if kinds[task] == kind]
        for model, runs in shared.items():
            row: dict[str, Any] = {"kind": kind, "tasks": count, "model": model}
            for name in JUDGED:
                a, b = (_means([run[of][name] for run in runs], some) for of in (0, 1))
                row |= {name: float(b.mean()), f"{name}_ours_less": against(a, b)}
            rows.append(row)
    return rows


def near_or_far(tasks: Mapping[int, Task], learned: Iterable[Task]) -> dict[int, str]:
    """``NEAR`` for a task with the operator and as many operations (``ALIKE``) as one of ``learned``, else ``FAR``."""
    sizes: dict[str, list[float]] = {}
    for task in learned:
        sizes.setdefault(task.operator, []).append(task.flops)
    alike = lambda a, b: max(a, b) <= ALIKE * min(a, b)  # noqa: E731
    return {
        number: NEAR if any(alike(task.flops, flops) for flops in sizes.get(task.operator, ())) else FAR for number, task in tasks.items()
    }


def kinds_table(ours: str, rows: list[dict[str, Any]], *heads: str) -> str:
    """Table of ``by_kind``'s rows: each figure's mean over the kind's tasks, and our model's difference from it.

    ``heads``: names of the columns before the number of tasks; the last is the kind, the others are keys of the rows.
    """
    names = ("pairs", "u16")
    cells = []
    for row in rows:
        less = ["" if row["model"] == ours else signed(row[f"{name}_ours_less"]) for name in names]
        figures = [cell for name, differs in zip(names, less, strict=True) for cell in (f"{row[name]:.3f}", differs)]
        cells.append([*(row[head] for head in heads[:-1]), row["kind"], row["tasks"], row["model"], *figures])
    figures = [head for name in names for head in (JUDGED[name], f"{ours} less it")]
    return markdown([*heads, "tasks", "model", *figures], cells)


def _means(runs: Sequence[ByTask], tasks: Sequence[int]) -> np.ndarray:
    """(T,) mean of each task over the runs that have it."""
    return np.array([np.mean([run[task] for run in runs if task in run]) for task in tasks])

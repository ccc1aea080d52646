"""An evaluation as text, from plain numbers; independent of models and files.

Format of the evaluation that the functions here and in ``plots`` read:

    {"platforms": {platform: figures of its own model},          figures: intervals.model_figures
     "baselines": {name: {platform: figures}},                   may be missing
     "chain": intervals.chain_figures(...),                      of the deployable models; may be missing
     "knowledge_base": intervals.chain_figures(...)}             of the knowledge base; may be missing, or the same
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from io import StringIO
from typing import Any

import numpy as np


def terminal_table(evaluation: Mapping[str, Any], width: int = 160) -> str:
    """Tables of each platform's models and a random ranking, then of the chain and its knowledge base."""
    from rich.console import Console

    console = Console(file=StringIO(), width=width)
    console.print(_ranking_table(evaluation))
    titles = {
        "chain": "Pairs along the chain, by platform ranked",
        "knowledge_base": "Pairs of the knowledge base alone, by platform ranked",
    }
    for name, matrix in chain_matrices(evaluation).items():
        console.print(_chain_table(matrix, titles[name]))
    return console.file.getvalue()  # type: ignore[attr-defined]


def chain_matrices(evaluation: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Name -> the evaluation's matrix of pairs: "chain", and "knowledge_base" where that is not the deployable model.

    An evaluation of an earlier version, whose matrices are of top-1, has none.
    """
    found = {name: matrix for name in ("chain", "knowledge_base") if (matrix := evaluation.get(name, {})).get("pairs")}
    return {name: matrix for name, matrix in found.items() if name == "chain" or matrix != found.get("chain")}


def _ranking_table(evaluation: Mapping[str, Any]) -> Any:
    from rich.table import Table

    ks = ks_of(evaluation)
    table = Table(title="Ranking of held-out programs (95 % interval); 1 is best")
    for heading in ("platform", "model"):
        table.add_column(heading, no_wrap=True)
    for heading in (*(f"top-{k}" for k in ks), "pairs", "Spearman", "tasks", "programs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for platform, own in evaluation["platforms"].items():
        baselines = ((name, figures.get(platform)) for name, figures in evaluation.get("baselines", {}).items())
        table.add_row(platform, "TCL", *_cells(own, ks))
        for name, figures in baselines:
            if figures:
                table.add_row("", name, *_cells(figures, ks))
        chance = (_interval(own[f"top_{k}_random"]) for k in ks)
        table.add_row("", "random", *chance, "0.500", "0.000", style="dim", end_section=True)
    return table


def _cells(figures: Mapping[str, Any], ks: Sequence[int]) -> list[str]:
    tops = [_interval(figures[f"top_{k}"]) for k in ks]
    ranks = [_number(figures["pairwise_accuracy"]), _number(figures["spearman"])]
    return [*tops, *ranks, str(figures["tasks"]), str(figures["programs"])]


def _chain_table(chain: Mapping[str, Any], title: str) -> Any:
    from rich.table import Table

    table = Table("model after", title=title)
    for platform in chain["platforms"]:
        table.add_column(platform, justify="right", no_wrap=True)
    for platform, row in zip(chain["platforms"], chain["pairs"], strict=True):
        table.add_row(platform, *map(_number, row), end_section=platform == chain["platforms"][-1])
    table.add_row("forgotten", *(_number(chain["forgotten"][platform]) for platform in chain["platforms"]))
    return table


def ks_of(evaluation: Mapping[str, Any]) -> list[int]:
    """The k of every top-k in the evaluation, ascending."""
    names = {name for figures in evaluation["platforms"].values() for name in figures}
    return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"top_(\d+)", name)))


def _interval(interval: Mapping[str, float]) -> str:
    return f"{_number(interval['value'])} ({_number(interval['low'])}-{_number(interval['high'])})"


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def collection_progress(
    rounds: np.ndarray, latencies_s: np.ndarray, tasks: np.ndarray, operator_types: Sequence[str]
) -> list[dict[str, Any]]:
    """Progress of a collection, one entry per round: {round, measured {operator type: programs}, failed, best_score}.

    All arguments have one entry per measured program; latency is inf where it failed.  best_score is the mean of (fastest
    latency at the end) / (fastest so far) over the tasks that run in the end; 0 for one in which nothing has run yet.
    """
    rounds, latencies_s, kinds = np.asarray(rounds), np.asarray(latencies_s), np.asarray(operator_types)
    names, task = np.unique(tasks, return_inverse=True)
    final = _fastest(task, latencies_s, len(names))
    ran, progress = np.isfinite(final), []
    for number in np.unique(rounds).tolist():
        now, until = rounds == number, rounds <= number
        so_far = _fastest(task[until], latencies_s[until], len(names))
        progress.append({
            "round": number,
            "measured": dict(sorted(Counter(kinds[now].tolist()).items())),
            "failed": int(np.isinf(latencies_s[now]).sum()),
            "best_score": float(np.mean(final[ran] / so_far[ran])) if ran.any() else 0.0,
        })  # fmt: skip
    return progress


def _fastest(task: np.ndarray, latencies_s: np.ndarray, count: int) -> np.ndarray:
    fastest = np.full(count, np.inf)
    np.minimum.at(fastest, task, latencies_s)
    return fastest

"""Plots of an evaluation: each function writes one PNG into ``folder`` and returns its path.

Colours are Okabe and Ito's, which colour-blind readers can distinguish; the same data gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tcl_core.evaluation.report import ks_of
from tcl_core.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, GREY = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999",
)  # fmt: skip
_SERIES = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW)


def plot_top_k(evaluation: Mapping[str, Any], folder: str | Path) -> Path:
    """Top-k of each platform's own model, the baselines and a random ranking, with 95 % intervals."""
    platforms, ks = list(evaluation["platforms"]), ks_of(evaluation)
    figure, panels = _panels(len(ks), width=1.5 + 1.2 * len(platforms))
    for k, axes in zip(ks, panels, strict=True):
        own = {p: figures[f"top_{k}"] for p, figures in evaluation["platforms"].items()}
        others = {
            name: {p: figures[f"top_{k}"] for p, figures in by_platform.items()}
            for name, by_platform in evaluation.get("baselines", {}).items()
        }
        chance = {p: figures[f"top_{k}_random"] for p, figures in evaluation["platforms"].items()}
        _bars(axes, platforms, {"TCL": own, **others, "random": chance})
        axes.set(ylim=(0, 1.02), ylabel=f"top-{k} (1: the fastest is found)", title=f"top-{k}")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False)
    return _save(figure, folder, "top_k.png")


def _bars(axes: Axes, platforms: Sequence[str], series: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
    width = 0.8 / len(series)
    for index, (name, intervals) in enumerate(series.items()):
        at = [place for place, platform in enumerate(platforms) if platform in intervals]
        value, low, high = (np.array([intervals[platforms[p]][end] for p in at]) for end in ("value", "low", "high"))
        axes.bar(
            np.array(at) + (index - (len(series) - 1) / 2) * width, value, width, label=name,
            yerr=np.maximum([value - low, high - value], 0), capsize=3,
            color=GREY if name == "random" else _SERIES[index % len(_SERIES)],
            hatch="" if name == "random" else "//" * (index // len(_SERIES)),  # where colours repeat
        )  # fmt: skip
    axes.set_xticks(range(len(platforms)), platforms, rotation=15)


def plot_chain(chain: Mapping[str, Any], folder: str | Path) -> Path:
    """The chain matrix as a heat map: transfer above the diagonal, retention below it."""
    platforms, pairs = chain["platforms"], np.array(chain["pairs"], dtype=float)
    figure, (axes,) = _panels(1, width=2.8 + 1.1 * len(platforms), height=1.8 + 0.8 * len(platforms))
    image = axes.imshow(pairs, cmap="cividis", vmin=np.fmin.reduce(pairs, axis=None, initial=0.5), vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(pairs):
        shade = "black" if image.norm(value) > 0.5 else "white"
        if np.isfinite(value):
            axes.text(column, row, f"{value:.3f}", ha="center", va="center", color=shade)
    axes.set_xticks(range(len(platforms)), platforms, rotation=15)
    axes.set_yticks(range(len(platforms)), platforms)
    axes.set(xlabel="evaluated on", ylabel="model after", title="pairs ranked right, along the chain")
    figure.colorbar(image, label="pairs ranked right")
    return _save(figure, folder, "chain.png")


def plot_ranks(ranked: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]], folder: str | Path) -> Path:
    """Predicted rank against measured score: platform -> (predictions (N,), scores (N,), tasks (N,)).

    A model that ranks well slopes down from the upper left.
    """
    figure, panels = _panels(len(ranked))
    for (platform, (predictions, scores, tasks)), axes in zip(ranked.items(), panels, strict=True):
        rank = _rank_share(np.asarray(predictions), np.asarray(tasks))
        axes.scatter(rank, scores, s=8, alpha=0.4, color=BLUE, linewidths=0)
        edges = np.linspace(0, 1, 11)
        tenth = np.clip(np.digitize(rank, edges) - 1, 0, 9)
        filled = np.unique(tenth)
        means = [np.mean(np.asarray(scores)[tenth == t]) for t in filled]
        axes.plot(edges[filled] + 0.05, means, color=RED, marker="o", label="mean of each tenth")
        axes.set(xlabel="predicted rank in the task (0 best, 1 worst)", title=platform, ylim=(-0.02, 1.02))
        axes.legend(loc="upper right", frameon=False)
    panels[0].set_ylabel("measured score (fastest / own latency)")
    return _save(figure, folder, "ranks.png")


def _rank_share(predictions: np.ndarray, tasks: np.ndarray) -> np.ndarray:
    share = np.zeros(len(tasks))
    for task in np.unique(tasks):
        rows = np.flatnonzero(tasks == task)
        ranked = rows[np.argsort(-predictions[rows], kind="stable")]
        share[ranked] = np.arange(len(rows)) / max(len(rows) - 1, 1)
    return share


def plot_learning(curves: Mapping[str, Sequence[Mapping[str, Any]]], folder: str | Path) -> Path:
    """Training and validation loss by epoch: platform -> [{epoch, loss, phase?, valid_loss?}] in order."""
    figure, panels = _panels(len(curves))
    for (platform, epochs), axes in zip(curves.items(), panels, strict=True):
        phases = list(dict.fromkeys(entry.get("phase", "") for entry in epochs))
        for index, phase in enumerate(phases):
            for name, style, meaning in (("loss", "-", "training"), ("valid_loss", "--", "validation, LambdaRank")):
                points = [(e["epoch"], e[name]) for e in epochs if e.get("phase", "") == phase and e.get(name) is not None]
                if points:
                    label = f"{phase} {meaning}".strip()
                    axes.plot(*zip(*points, strict=True), style, color=_SERIES[index % len(_SERIES)], label=label)
        axes.set(xlabel="epoch", title=platform)
        axes.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
        if axes.lines:
            axes.legend(frameon=False)
    panels[0].set_ylabel("loss (mean over batches)")
    return _save(figure, folder, "learning.png")


def plot_collection(progress: Mapping[str, Sequence[Mapping[str, Any]]], folder: str | Path) -> Path:
    """Programs measured per round and operator type, and best score found: platform -> ``collection_progress``."""
    figure, panels = _panels(len(progress), rows=2, height=6.4)
    kinds = sorted({kind for rounds in progress.values() for entry in rounds for kind in entry["measured"]})
    for column, (platform, rounds) in enumerate(progress.items()):
        numbers = [entry["round"] for entry in rounds]
        _stack(
            panels[column],
            numbers,
            {kind: [entry["measured"].get(kind, 0) for entry in rounds] for kind in kinds},
        )
        panels[column].set(title=platform, xticks=numbers)
        below = panels[len(progress) + column]
        below.plot(numbers, [entry["best_score"] for entry in rounds], color=BLUE, marker="o")
        below.set(xlabel="round", xticks=numbers, ylim=(0, 1.02))
    panels[0].set_ylabel("programs measured")
    panels[len(progress)].set_ylabel("best score found (mean of tasks)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, title="operator type")
    return _save(figure, folder, "collection.png")


def _stack(axes: Axes, at: Sequence[int], parts: Mapping[str, Sequence[int]]) -> None:
    """Stacked bars; after seven parts the colours repeat with a hatch."""
    floor = np.zeros(len(at))
    for index, (name, counts) in enumerate(parts.items()):
        hatch = ("", "//", "..", "xx")[index // len(_SERIES) % 4]
        axes.bar(
            at,
            counts,
            bottom=floor,
            label=name,
            color=_SERIES[index % len(_SERIES)],
            hatch=hatch,
            edgecolor="white",
        )
        floor += counts


def _panels(count: int, rows: int = 1, width: float = 4.2, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, row by row; avoids pyplot, which keeps global state and may need a display."""
    from matplotlib.figure import Figure

    if not count:
        raise ValueError("a plot needs at least one platform")
    figure = Figure(figsize=(max(width * count, 4.8), height), layout="constrained")
    return figure, list(figure.subplots(rows, count, squeeze=False, sharey="row").flat)


def _save(figure: Figure, folder: str | Path, name: str) -> Path:
    path = Path(folder) / name
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=120, metadata={"Software": None})
    return path

"""Plot of what further labels are worth beside zero-shot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from _transfer_rows import OURS
from _transfer_tables import size_of

from tcl_core.evaluation.plots import BLUE, GREEN, ORANGE, PINK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {OURS: BLUE, "own-taught": ORANGE, "fine-tuned": GREEN, "own": PINK}
ACROSS = 3


def by_labels(found: Mapping[str, Any]) -> Figure | None:
    """A panel for each pair of platforms with several numbers of labels: pairs ranked right less zero-shot's, with the 95 % interval task
    by task.  Numbers of labels lie evenly.  None where no pair has several.

    found   ``_transfer_tables.summary``'s
    """
    from matplotlib.figure import Figure

    shown = {pair: by for pair, by in found.items() if pair.count(">") == 1 and sum(OURS in row for row in by.values()) > 1}
    if not shown:
        return None
    counts = sorted({labels for by in shown.values() for labels in by if labels != "0"}, key=size_of)
    down = -(-len(shown) // ACROSS)
    figure = Figure(figsize=(10, 0.6 + 2.7 * down), layout="constrained")
    panels = figure.subplots(down, ACROSS, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, (pair, by) in zip(panels, shown.items(), strict=False):
        axes.axhline(0, color="0.4", linewidth=1)
        for method, colour in COLOURS.items():
            points = [(counts.index(n), by[n][method]["pairs_less_zero_shot"]) for n in counts if method in by.get(n, {})]
            if points:
                at, spread = [place for place, _ in points], list(zip(*(figures for _, figures in points), strict=True))
                axes.plot(at, spread[0], "o-", color=colour, label=method, markersize=4)
                axes.fill_between(at, spread[1], spread[2], color=colour, alpha=0.2, linewidth=0)
        axes.set_title(f"{pair.replace('>', ' to ')}, zero-shot {by['0']['zero-shot']['pairs'][0]:.3f}", fontsize=10)
        axes.set_xticks(range(len(counts)), counts)
        axes.grid(alpha=0.3)
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    figure.supxlabel("labels of the target", fontsize=10)
    figure.supylabel("pairs ranked right, less zero-shot", fontsize=10)
    panels[0].legend(frameon=False, fontsize=9, loc="lower right")
    return figure

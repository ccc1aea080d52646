"""Plots of networks' latencies while they are tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tcl_core.evaluation.plots import BLUE, GREEN, GREY, ORANGE, PINK, RED, SKY, YELLOW

COLOURS = (BLUE, GREY, GREEN, ORANGE, PINK, SKY, RED, YELLOW)
Curve = Sequence[Sequence[float]]
"""Points [programs, seconds, milliseconds]."""


def draw(curves: Mapping[str, Mapping[str, Sequence[Curve]]], lines: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw a column of panels for each network: milliseconds against programs above, against seconds below.

    curves  network -> system -> a curve for each seed; no more systems than ``COLOURS``
    lines   network -> untuned system -> its milliseconds
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    systems = list(dict.fromkeys(system for found in curves.values() for system in found))
    colour = dict(zip(systems, COLOURS, strict=False))
    figure = Figure(figsize=(3.2 * len(curves), 6), layout="constrained")
    panels = figure.subplots(2, len(curves), squeeze=False)
    for column, (network, found) in enumerate(curves.items()):
        for row, (place, label) in enumerate(((0, "programs measured"), (1, "seconds"))):
            axes = panels[row][column]
            for system, seeds in found.items():
                for number, curve in enumerate(seeds):
                    points = [(point[place], point[2]) for point in curve]
                    axes.step(*zip(*points, strict=True), where="post", color=colour[system], alpha=0.8, label="" if number else system)
            for style, (name, ms) in zip(("--", ":"), lines.get(network, {}).items(), strict=False):
                axes.axhline(ms, color="black", linestyle=style, linewidth=1, label=name)
            axes.set(xlabel=label, yscale="log", title="" if row else network, ylabel="" if column else "milliseconds")
            axes.grid(alpha=0.3, which="both")
            if place:
                axes.set_xscale("log")
            for axis in (axes.yaxis, *([axes.xaxis] if place else [])):
                axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                axis.set_major_formatter("{x:g}")
                axis.set_minor_formatter(NullFormatter())
    handles = {label: handle for panel in panels.flat for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=100, metadata={"Software": None})

"""Chart types of a page: plain numbers in, an SVG element out; independent of runs and files.

Each chart is as wide as a phone.  ``name`` must be unique on the page, ``alt`` describes the chart.  A series' colour is its
number, from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from tcl_core.report.parts import short
from tcl_core.report.svg import FAINT, INK, LINE, PAPER, as_svg, colour, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

ROW_PX, AXIS_PX = 22, 48  # heights of one row and of the axis, in charts made of rows
FAR = 12  # ratio of largest to smallest value above which an axis is logarithmic


class Dot(NamedTuple):
    """A value with its interval; without a value, a heading."""

    label: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    colour: int = 0
    hollow: bool = False


class Line(NamedTuple):
    xs: Sequence[float]
    ys: Sequence[float]
    colour: int
    dashed: bool = False


class Level(NamedTuple):
    """A horizontal line: a value that does not depend on x."""

    label: str
    value: float
    colour: int


class Bar(NamedTuple):
    label: str
    value: float
    colour: int
    told: str


def dots(name: str, alt: str, rows: Sequence[Dot], xlabel: str) -> Markup:
    """Dot plot: one row per value, from 0 to 1, with its interval and number; headings in between."""
    with drawing(AXIS_PX + ROW_PX * len(rows)) as figure:
        axes = figure.subplots()
        for place, row in enumerate(rows):
            if row.value is None:
                continue
            if row.low is not None and row.high is not None:
                axes.plot(
                    [row.low, min(row.high, 1)],
                    [place, place],
                    color=colour(row.colour),
                    linewidth=3,
                    alpha=0.4,
                    solid_capstyle="round",
                    clip_on=False,
                )
            face = PAPER if row.hollow else colour(row.colour)
            axes.plot(
                [row.value],
                [place],
                "o",
                color=colour(row.colour),
                markersize=6.5,
                markerfacecolor=face,
                markeredgewidth=1.6,
                clip_on=False,
            )
            axes.text(1.03, place, f"{row.value:.3f}", transform=axes.get_yaxis_transform(), va="center", color=INK)
        axes.set(xlim=(0, 1), xlabel=xlabel, xticks=(0, 0.25, 0.5, 0.75, 1), xticklabels=("0", ".25", ".5", ".75", "1"))
        _name_rows(axes, [row.label for row in rows], [place for place, row in enumerate(rows) if row.value is None])
        return as_svg(figure, name, alt)


def _name_rows(axes: Axes, labels: Sequence[str], headings: Sequence[int] = ()) -> None:
    """Label the rows from top to bottom, headings in bold."""
    axes.set_yticks(range(len(labels)), [short(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="both", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    for place in headings:
        axes.get_yticklabels()[place].set_fontweight("bold")


def lines(
    name: str, alt: str, series: Sequence[Line], xlabel: str, ylabel: str, log: bool = False, steps: bool = False, levels: Sequence[Level] = (),
    zero: bool = False,
) -> Markup:  # fmt: skip
    """Curves.

    log    logarithmic y-axis
    zero   start a linear y-axis at 0
    steps  hold each value until the next one
    """
    from matplotlib.ticker import MaxNLocator

    with drawing(240) as figure:
        axes = figure.subplots()
        for line in series:
            style = "--" if line.dashed else "-"
            lone = "o" if len(line.xs) == 1 else None
            axes.plot(line.xs, line.ys, style, color=colour(line.colour), marker=lone, drawstyle="steps-post" if steps else "default")
        for level in levels:
            axes.axhline(level.value, color=colour(level.colour), linestyle=(0, (4, 3)), linewidth=1.4)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if steps:
            axes.set_xlim(left=0)
        if log:
            axes.set_yscale("log")
            _plain_logarithmic(axes.yaxis)
        elif zero:
            axes.margins(y=0.08)
            axes.set_ylim(bottom=0)
        axes.tick_params(axis="both", length=0, labelcolor=FAINT)
        return as_svg(figure, name, alt)


def _plain_logarithmic(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers, at least a few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    subs = (1.0,) if high > 300 * low else (1.0, 2.0, 5.0) if high > 12 * low else (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
    axis.set_major_locator(LogLocator(subs=subs, numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def stacks(name: str, alt: str, at: Sequence[int], parts: Mapping[str, tuple[int, Sequence[float]]], xlabel: str, ylabel: str) -> Markup:
    """Stacked columns: part -> (colour, its height in each column)."""
    with drawing(240) as figure:
        axes = figure.subplots()
        floor = [0.0] * len(at)
        for number, heights in parts.values():
            axes.bar(at, heights, bottom=floor, color=colour(number), width=0.72, edgecolor=PAPER, linewidth=1)
            floor = [below + height for below, height in zip(floor, heights, strict=True)]
        axes.set(xlabel=xlabel, ylabel=ylabel, xticks=_few(at))
        axes.grid(visible=False, axis="x")
        axes.tick_params(axis="both", length=0, labelcolor=FAINT)
        return as_svg(figure, name, alt)


def _few(places: Sequence[int], most: int = 9) -> list[int]:
    return list(places)[:: -(-len(places) // most) or 1]


def bars(name: str, alt: str, rows: Sequence[Bar], xlabel: str) -> Markup:
    """Horizontal bars, one per row, each with its text (``Bar.told``) at its end."""
    from matplotlib.ticker import MaxNLocator

    with drawing(AXIS_PX + ROW_PX * len(rows)) as figure:
        axes = figure.subplots()
        most = max((row.value for row in rows), default=0) or 1
        axes.barh(range(len(rows)), [row.value for row in rows], color=[colour(row.colour) for row in rows], height=0.66)
        for place, row in enumerate(rows):
            axes.text(row.value + 0.015 * most, place, row.told, va="center", color=INK)
        axes.set(xlim=(0, 1.24 * most), xlabel=xlabel)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=(1, 2, 2.5, 5, 10), integer=all(isinstance(row.value, int) for row in rows)))
        _name_rows(axes, [row.label for row in rows])
        return as_svg(figure, name, alt)


class Repeated(NamedTuple):
    """Repeated measurements of one thing; ``middle`` is their median, ``told`` the median as text."""

    label: str
    values: Sequence[float]
    middle: float
    colour: int
    told: str


def scatters(name: str, alt: str, rows: Sequence[Repeated], xlabel: str) -> Markup:
    """One row per thing: all its values as dots, their median as a stroke with its number.

    The axis starts at 0, or is logarithmic if the largest value exceeds ``FAR`` times the smallest.
    """
    with drawing(AXIS_PX + 1.5 * ROW_PX * len(rows)) as figure:
        axes = figure.subplots()
        for place, row in enumerate(rows):
            axes.plot(row.values, [place] * len(row.values), "o", color=colour(row.colour), markersize=6, alpha=0.45, markeredgewidth=0)
            axes.plot([row.middle] * 2, [place - 0.3, place + 0.3], color=colour(row.colour), linewidth=2.4, solid_capstyle="butt")
            axes.text(1.03, place, row.told, transform=axes.get_yaxis_transform(), va="center", color=INK)
        values = [value for row in rows for value in (*row.values, row.middle)]
        axes.set(xlabel=xlabel)
        if max(values) > FAR * min(values) > 0:
            axes.set_xscale("log")
            _plain_logarithmic(axes.xaxis)
        else:
            axes.set_xlim(0, 1.04 * max(values))
            axes.axvline(0, color=LINE)
        _name_rows(axes, [row.label for row in rows])
        return as_svg(figure, name, alt)

"""Parts of a page as plain data for the template, and formatting of its figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from markupsafe import Markup

from tcl_core.files import printable

UNKNOWN = "–"


class Cell(NamedTuple):
    """A table cell with a shade or a tone; other cells are plain strings.

    shade  strength of its tint, 0 to 100; None for no tint
    tone   "better", "worse" or ""
    """

    text: str
    shade: int | None = None
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """A table whose first ``left`` columns hold words and all others figures."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    left: int = 1


@dataclass(frozen=True)
class Chart:
    title: str
    svg: Markup


class Key(NamedTuple):
    """One entry of a legend: a name and its colour, a number as for ``svg.colour``."""

    name: str
    colour: int


@dataclass(frozen=True)
class Group:
    """Charts side by side, with the legend of their colours.

    table   the same figures, initially folded
    beside  a table next to a single chart where there is room
    """

    charts: Sequence[Chart]
    table: Table | None = None
    legend: Sequence[Key] = ()
    beside: Table | None = None


@dataclass(frozen=True)
class Section:
    """A section of the page; ``tables`` follow the groups, then ``folded`` ones, which the reader can unfold."""

    anchor: str
    title: str
    text: str
    groups: Sequence[Group] = ()
    tables: Sequence[Table] = ()
    folded: Sequence[Table] = ()


class Tile(NamedTuple):
    """A key figure at the top of the page."""

    value: str
    name: str
    note: str = ""


class Step(NamedTuple):
    """A platform of the chain; ``tone`` is "skipped" or ""."""

    name: str
    facts: Sequence[str]
    tone: str = ""


@dataclass(frozen=True)
class Page:
    title: str
    subtitle: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    chain: Sequence[Step] = ()
    notes: Sequence[str] = field(default=())


def number(value: float | None, digits: int = 3) -> str:
    """``0.614``; a dash if unknown or not finite."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def percent(share: float | None, digits: int = 1) -> str:
    return UNKNOWN if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f} %"


def interval(figure: dict[str, float | None] | None) -> str:
    """``0.614 (0.411 to 0.792)``, with the 95 % interval in parentheses if there is one."""
    if not figure:
        return UNKNOWN
    low, high = figure.get("low"), figure.get("high")
    return number(figure["value"]) + ("" if low is None or high is None else f" ({number(low)} to {number(high)})")


def milliseconds(value: float | None) -> str:
    """Milliseconds with about three significant digits: ``12.4 ms``, ``0.481 ms``, ``0.0076 ms``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3 if value >= 0.1 else 4
    return f"{value:,.{digits}f} ms"


def duration(seconds: float | None) -> str:
    """``86 s``, ``14.9 min``, ``2.5 h``"""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def short(text: str, most: int = 22) -> str:
    """A name shortened in the middle to fit beside a chart; escapes control characters, which SVG does not allow."""
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 9]}…{text[-8:]}"

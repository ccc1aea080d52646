"""A matplotlib figure as SVG for the midst of a page: it takes the page's font and colours, and follows them to dark and back.

Figures are drawn in marker colours that mean nothing; each then becomes a CSS variable of the page.  Text stays text.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from markupsafe import Markup

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, FAINT, LINE, PAPER = "#0b0a01", "#0b0a02", "#0b0a03", "#0b0a04"  # text, ticks, grid, what lies behind
SERIES = tuple(f"#0b0b{number:02x}" for number in range(1, 9))  # of what is compared, in the order in which they are taken
VARIABLES = {INK: "var(--ink)", FAINT: "var(--faint)", LINE: "var(--line)", PAPER: "var(--card)"} | {
    colour: f"var(--s{number})" for number, colour in enumerate(SERIES, start=1)
}
WIDTH_PX, INCH_PX = 360, 72  # of a chart on a phone, where it is shown as large as it was drawn
_LOOK = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tcl",  # the same figures give the same bytes
    "text.parse_math": False,  # a name with dollar signs is a name
    "font.family": "DejaVu Sans",  # comes with matplotlib, and is wider than what browsers take: what is measured with it fits
    "font.size": 11,
    "axes.labelsize": 11,
    "axes.titlesize": 11,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "text.color": INK,
    "axes.labelcolor": FAINT,
    "axes.edgecolor": LINE,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": FAINT,
    "ytick.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.9,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.linewidth": 1.8,
}
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"


def colour(number: int) -> str:
    """The marker colour of a series, the first being 1; beyond the last they come again."""
    return SERIES[(number - 1) % len(SERIES)]


@contextmanager
def drawing(height_px: float) -> Iterator[Figure]:
    """A figure of a phone's width to draw on, to be given to ``as_svg`` before the block ends."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_LOOK):
        yield Figure(figsize=(WIDTH_PX / INCH_PX, height_px / INCH_PX), layout="constrained")


def as_svg(figure: Figure, name: str, alt: str) -> Markup:
    """The drawn figure as an element of the page.

    name  unlike any other of the page: its parts are called by it
    alt   says what is to be seen, to those who cannot
    """
    raw = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # of a name in letters that the font lacks: the browser's has them
        figure.savefig(raw, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(raw.getvalue())
    _remove_what_reaches_beyond(root)
    for element in root.iter():
        _adapt(element, name)
    title = ElementTree.Element("title", {"id": f"{name}-title"})
    title.text = alt
    root.insert(0, title)
    view = root.get("viewBox", f"0 0 {WIDTH_PX} {WIDTH_PX}")
    root.attrib.clear()
    root.attrib.update({"class": "chart", "viewBox": view, "role": "img", "aria-labelledby": f"{name}-title"})
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # ElementTree has escaped it


def _remove_what_reaches_beyond(root: ElementTree.Element) -> None:
    """Facts about the file, and a style sheet that would be the whole page's."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{_SVG}style" or "metadata" in child.tag:
                parent.remove(child)


def _adapt(element: ElementTree.Element, name: str) -> None:
    """Take the page's colours and font, shorten numbers, and call by ``name`` what has a name of its own."""
    element.tag = element.tag.removeprefix(_SVG)  # within a page it needs none
    if _LINK in element.attrib:
        element.set("href", element.attrib.pop(_LINK))
    for key, value in element.attrib.items():
        if key == "id":
            value = f"{name}-{value}"
        elif key == "href":
            value = f"#{name}-{value[1:]}"
        else:
            value = re.sub(r"url\(#", f"url(#{name}-", value)
            value = re.sub(r"#[0-9a-f]{6}\b", lambda found: VARIABLES.get(found[0], found[0]), value)
            value = re.sub(r"font-family:[^;]*;?", "", value)
            value = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", value)
        element.set(key, value)

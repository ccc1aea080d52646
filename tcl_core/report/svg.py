"""Convert a matplotlib figure to inline SVG that uses the page's font and colours, in light and dark mode.

Figures are drawn in placeholder colours, each of which is then replaced by a CSS variable of the page.  Text stays text.
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

INK, FAINT, LINE, PAPER = "#0b0a01", "#0b0a02", "#0b0a03", "#0b0a04"  # text, ticks, grid, background
SERIES = tuple(f"#0b0b{number:02x}" for number in range(1, 9))  # colours of data series, in order of use
VARIABLES = {INK: "var(--ink)", FAINT: "var(--faint)", LINE: "var(--line)", PAPER: "var(--card)"} | {
    colour: f"var(--s{number})" for number, colour in enumerate(SERIES, start=1)
}
WIDTH_PX, INCH_PX = 360, 72  # chart width on a phone, where it is shown at its drawn size
_LOOK = {
    "svg.fonttype": "none",
    "svg.hashsalt": "tcl",  # the same figures give the same bytes
    "text.parse_math": False,  # dollar signs in names are literal
    "font.family": "DejaVu Sans",  # ships with matplotlib and is wider than browsers' fonts, so text laid out with it fits
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
    """Placeholder colour of series ``number``, from 1; colours repeat after the last."""
    return SERIES[(number - 1) % len(SERIES)]


@contextmanager
def drawing(height_px: float) -> Iterator[Figure]:
    """An empty figure of a phone's width; pass it to ``as_svg`` before the block ends."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_LOOK):
        yield Figure(figsize=(WIDTH_PX / INCH_PX, height_px / INCH_PX), layout="constrained")


def as_svg(figure: Figure, name: str, alt: str) -> Markup:
    """The drawn figure as an SVG element of the page.

    name  unique on the page; prefixes the ids in the SVG
    alt   description for readers who cannot see it
    """
    raw = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # letters that matplotlib's font lacks: the browser has them
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
    """Remove file metadata, and the style sheet, which would apply to the whole page."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{_SVG}style" or "metadata" in child.tag:
                parent.remove(child)


def _adapt(element: ElementTree.Element, name: str) -> None:
    """Use the page's colours and font, shorten numbers, and prefix ids and references to them with ``name``."""
    element.tag = element.tag.removeprefix(_SVG)  # inline SVG needs no namespace
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

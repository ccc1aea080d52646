"""Render a page as one self-contained HTML file: style and charts are inline, and it has no scripts and needs no network."""

from __future__ import annotations

from tcl_core.report.parts import Page


def render(page: Page) -> str:
    """The page as HTML; Jinja escapes everything, such as names, except the charts, which ElementTree has escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("tcl_core.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html").render(page=page)

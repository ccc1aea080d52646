"""A page as one HTML file that needs nothing else, no network either: style and charts lie in it, there is no script."""

from __future__ import annotations

from tcl_core.report.parts import Page


def render(page: Page) -> str:
    """Whatever names the page holds, they are text in it: Jinja escapes all but the charts, which ElementTree wrote."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("tcl_core.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html").render(page=page)

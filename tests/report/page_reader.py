"""A page as a reader finds it: elements, tables as rows of texts, texts by section."""

from __future__ import annotations

from html.parser import HTMLParser

import made_up
import pytest

from tcl_core.report.page import page_of
from tcl_core.report.render import render

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>--> ]]> &amp; $x^2$ \\frac{ </style></svg>"
VOID = {"meta", "link", "img", "br", "path", "use", "rect"}


class Reader(HTMLParser):
    """What a browser makes of a page: elements with their attributes, tables as rows of texts, texts by section."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.sections: dict[str, str] = {"": ""}
        self._section, self._caption, self._in, self._expecting = "", "", "", False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        found = {name: value or "" for name, value in attributes}
        self.elements.append((tag, found))
        if tag == "section":
            self._section = found["id"]
            self.sections[self._section] = ""
        if tag == "caption":
            self._caption, self._expecting = "", True
        if tag == "tr":
            self.tables.setdefault(self._caption, []).append([])
        if tag in ("td", "th"):
            self.tables[self._caption][-1].append("")
        self._in = tag

    def handle_endtag(self, tag):
        self._in = ""
        self._expecting &= tag != "caption"

    def handle_data(self, data):
        if self._in == "style":
            return
        self.sections[self._section] += data
        if self._in == "span" and self._expecting:
            self._caption += data
        if self._in in ("td", "th"):
            self.tables[self._caption][-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def undrawn(monkeypatch):
    made_up.undraw(monkeypatch)


def without(**parts) -> Reader:
    return Reader(render(page_of(made_up.run() | parts)))

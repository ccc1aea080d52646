"""What the documents point to is there: files of the repository, and links between pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md"), ROOT / "data" / "reference" / "README.md"])
MADE_BY_RUNS = ("data/", "bench/results/", "logs/", "networks/", "build/")  # what a checkout does not have
WRITTEN = ("report.md",)  # by commands, into folders of a user's
PLACES = ("tcl_core/", "flows/", "tests/", "bench/", "docs/", "examples/", "profiles/", ".ci/")


def named(text: str) -> list[str]:
    """Paths in backticks, without what is a pattern or a placeholder."""
    found = re.findall(r"`([\w./-]+/[\w./-]*|[\w-]+\.md)`", text)
    return [name for name in found if not re.search(r"[A-Z]{2,}(?![\w.]*\.md)", name.rsplit("/", 1)[-1])]


def lacking(document: Path, names: list[str]) -> list[str]:
    bases = (ROOT, document.parent, ROOT / "tcl_core")
    ours = [name for name in names if name.startswith(PLACES) or (name.endswith(".md") and name not in WRITTEN)]
    return [name for name in ours if not name.startswith(MADE_BY_RUNS) and not any((base / name).exists() for base in bases)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_a_document_names_are_there(document):
    assert lacking(document, named(document.read_text())) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_within_the_repository_lead_somewhere(document):
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text())
    assert [target for target in targets if "://" not in target and not (document.parent / target).exists()] == []


def test_a_name_that_is_gone_is_found():
    assert lacking(ROOT / "docs" / "x.md", named("see `tcl_core/no_such.py`, `bench/tune.py` and `nowhere.md`")) == [
        "tcl_core/no_such.py",
        "nowhere.md",
    ]


def test_the_readme_stays_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150

"""The API's pages, as `make docs` builds them: one for each public module, and no link in them leads nowhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 300


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    (command,) = re.findall(r"^\t@python (-m pdoc .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    folder = tmp_path_factory.mktemp("api")
    words = command.replace("build/api", str(folder)).split()
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def test_public_modules_and_names_have_a_page(pages):
    import tcl_core as tcl

    there = {page.relative_to(pages).as_posix() for page in pages.rglob("*.html")}
    assert {"index.html", "tcl_core.html", "tcl_core/datasets.html", "tcl_core/samplers.html", "tcl_core/errors.html"} <= there
    text = (pages / "tcl_core.html").read_text()
    assert [name for name in tcl.__all__ if f'id="{name}"' not in text and f'href="tcl_core/{name}.html"' not in text] == []


def test_no_link_leads_nowhere(pages):
    shown = {page: re.sub(r"<script.*?</script>", "", page.read_text(), flags=re.DOTALL) for page in pages.rglob("*.html")}
    ids = {page: set(re.findall(r'id="([^"]+)"', text)) for page, text in shown.items()}
    broken = []
    for page, text in shown.items():
        for target, _, part in re.findall(r'href="([^"#:]*)(#([^"]*))?"', text):
            there = (page.parent / target).resolve() if target else page
            if there not in ids or (part and part not in ids[there]):
                broken.append(f"{page.name}: {target}#{part}")
    assert broken == []

"""`tcl report`: a run, or two side by side, as one HTML page.  Leaves history, not reproducible bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tcl_core import registry
from tcl_core.checked import write_json
from tcl_core.errors import UsageError
from tcl_core.files import replacing_given
from tcl_core.stages import promotion
from tcl_core.stages.figures import FIGURES, FORMAT, figures_of, gather
from tcl_core.stages.project import REPORTS, Project

COMPARISON = REPORTS / "comparison.html"


def write_report(project: Project, to: Path | None = None, force: bool = False) -> str:
    """The page of the last run -> ``to``, or data/reports/report.html, which each registered version of its models gets too.

    Its figures go to data/reports/report.json, for comparisons with a copy of that folder.
    """
    from tcl_core.report.page import page_of
    from tcl_core.report.render import render

    there = registry.is_there()
    champions = {name: registry.champion_version(name) if there else None for name in project.params.chain_order}
    figures = gather(Path("."), champions)
    page = render(page_of(figures))
    _write(to or promotion.PAGE, page, force or to is None)
    if to is not None:
        return f"wrote {to}"
    write_json(FIGURES, {"format": FORMAT, **figures})
    kept = promotion.keep_page(project) if there else []
    return f"wrote {promotion.PAGE}" + (f", also kept with {', '.join(kept)}" if kept else "")


def write_comparison(runs: Sequence[Path], to: Path | None = None, force: bool = False) -> str:
    """A page with the figures of two runs and their differences -> ``to``, or data/reports/comparison.html."""
    from tcl_core.report.compare import compare
    from tcl_core.report.render import render

    if len(runs) != 2:
        raise UsageError(f"{len(runs)} runs cannot be compared; name two, each a project's folder or a copy of its {REPORTS}, or none")
    first, second = (figures_of(run) for run in runs)
    page = render(compare(first, second, (_called(runs[0]), _called(runs[1]))))
    _write(to or COMPARISON, page, force or to is None)
    return f"wrote {to or COMPARISON}"


def _called(run: Path) -> str:
    """From where the project lies; the project itself by its own name."""
    name = os.path.relpath(run)
    return Path.cwd().name if name == "." else name


def _write(path: Path, page: str, force: bool) -> None:
    with replacing_given(path, force) as file:
        file.write(page.encode("utf-8", "backslashreplace"))

"""`tcl report`: a run, or two side by side, as one HTML page.  Leaves history, not reproducible bytes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tcl_core import registry
from tcl_core.checked import write_json
from tcl_core.errors import UsageError
from tcl_core.files import replacing_given
from tcl_core.stages import promotion
from tcl_core.stages.figures import FIGURES, FORMAT, figures_of, gather
from tcl_core.stages.workspace import Workspace, with_registry

COMPARISON = "comparison.html"  # in the folder of reports


@dataclass(frozen=True)
class Page:
    """Where a page was written, and the registered versions that it is attached to; ``not_kept``: why it is attached to none."""

    path: Path
    kept_with: tuple[promotion.Registered, ...] = ()
    not_kept: str = ""

    def __str__(self) -> str:
        kept = f", also kept with {', '.join(map(str, self.kept_with))}" if self.kept_with else ""
        return f"wrote {self.path}{kept}" + (f", not kept with its models' versions: {self.not_kept}" if self.not_kept else "")


@with_registry
def write_report(workspace: Workspace, to: Path | None = None, overwrite: bool = False) -> Page:
    """Write the page of the last run -> ``to``, or data/reports/report.html, which is also attached to its models' versions.

    Without ``to`` its figures go to data/reports/report.json, for comparisons with a copy of that folder.  While the registry is
    away the page lacks the versions and is attached to none.
    """
    from tcl_core.report.page import page_of
    from tcl_core.report.render import render

    there = registry.is_there()
    figures = gather(workspace, {name: promotion.standing(workspace, name) if there else {} for name in workspace.params.chain_order})
    page, place = render(page_of(figures)), to or workspace.reports / promotion.PAGE
    _write(place, page, overwrite or to is None)
    if to is not None:
        return Page(to)
    write_json(workspace.reports / FIGURES, {"format": FORMAT, **figures})
    try:
        return Page(place, tuple(promotion.keep_page(workspace)) if there else ())
    except registry.RegistryAway as away:
        return Page(place, not_kept=str(away))


def write_comparison(workspace: Workspace, runs: Sequence[Path], to: Path | None = None, overwrite: bool = False) -> Page:
    """Write a page with the figures of two runs and their differences -> ``to``, or data/reports/comparison.html."""
    from tcl_core.report.compare import compare
    from tcl_core.report.render import render

    if len(runs) != 2:
        raise UsageError(f"a comparison takes two runs, not {len(runs)}; name a project's folder, or a copy of its data/reports, for each")
    first, second = (figures_of(run) for run in runs)
    page = render(compare(first, second, (_called(workspace, runs[0]), _called(workspace, runs[1]))))
    place = to or workspace.reports / COMPARISON
    _write(place, page, overwrite or to is None)
    return Page(place)


def _called(workspace: Workspace, run: Path) -> str:
    """A run's path relative to the project; the project's own run has the project's name."""
    name = os.path.relpath(run, workspace.root)
    return Path(os.path.abspath(workspace.root)).name if name == "." else name


def _write(path: Path, page: str, overwrite: bool) -> None:
    with replacing_given(path, overwrite) as file:
        file.write(page.encode("utf-8", "backslashreplace"))

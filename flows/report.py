"""What a run shows in Prefect: the rounds of a collection as they happen, tables, pictures and the summary.

Reads the small files that stages write; knows no stage and no mathematics.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect.artifacts import create_image_artifact, create_link_artifact, create_markdown_artifact, create_table_artifact

from tcl_core.checked import read_json
from tcl_core.evaluation.drift import UNDECIDED
from tcl_core.journal import parse_line
from tcl_core.records import ERRORS
from tcl_core.stages.promotion import PAGE
from tcl_core.stages.workspace import Workspace

HERE = Workspace()  # Prefect starts a flow in the project's folder
LATEST = 50  # drift checks that are shown

log = logging.getLogger(__name__)


class Rounds:
    """The round report of a platform's collection: one checksummed line per step."""

    def __init__(self, platform: str, workspace: Workspace = HERE) -> None:
        self.path = workspace.journal_folder(platform, "collect") / "rounds.jsonl"
        self.seen, self.read = self._stand()

    def new(self) -> list[dict[str, Any]]:
        """The steps completed since the last call; skips damaged lines and logs a warning."""
        identity, size = self._stand()
        if identity != self.seen or size < self.read:  # another collection's
            self.seen, self.read = identity, 0
        if size == self.read:
            return []
        try:
            with open(self.path, "rb") as file:
                file.seek(self.read)
                lines = file.read().rpartition(b"\n")
        except OSError:  # just set aside
            return []
        whole = b"".join(lines[:2])
        self.read += len(whole)
        return self._steps(whole.splitlines(keepends=True))

    def all(self) -> list[dict[str, Any]]:
        self.read = 0
        return self.new()

    def _stand(self) -> tuple[int | None, int]:
        """The file's inode, which changes when another file replaces it, and its size; (None, 0) while there is no file."""
        try:
            found = self.path.stat()
        except OSError:
            return None, 0
        return found.st_ino, found.st_size

    def _steps(self, lines: list[bytes]) -> list[dict[str, Any]]:
        steps = [step for step in map(parse_line, lines) if step and {"round", "step", "seconds"} <= step.keys()]
        if damaged := len(lines) - len(steps):
            log.warning("%s: passed over %d lines that are damaged; measurements do not depend on them", self.path, damaged)
        return steps


def one_line(step: dict[str, Any]) -> str:
    """``round 2 measure: 12.3 s, programs 40, failed 1``"""
    counts = [f"{name} {_short(value)}" for name, value in step.items() if name not in ("round", "step", "seconds")]
    return f"round {step['round']} {step['step']}: " + ", ".join([f"{step['seconds']:.1f} s", *counts])


def show_rounds(platform: str) -> None:
    """Show a table of what each round of the collection chose, measured and learned."""
    if steps := Rounds(platform).all():
        create_table_artifact(steps, key=f"rounds-{platform}", description=f"Collection rounds on {platform}")


def show_errors(reports: Path = HERE.reports) -> None:
    """Show a row per platform of params.yaml: how many of its candidates ran, and how the others failed."""
    files = [file for file in sorted((reports / "collect").glob("*.json")) if file.stem in HERE.params.platforms]
    found = [read_json(file, "collect its platform again: dvc repro") for file in files]
    if rows := error_rows([one for one in found if "errors" in one]):
        create_table_artifact(rows, key="errors", description="What became of the measured candidates, by platform and kind of error")


def error_rows(collected: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row per collection report, with a column for each kind of outcome that occurs."""
    kinds = [kind for kind in ERRORS if any(kind in one["errors"] for one in collected)]
    return [
        {"platform": one["platform"], "programs": one["programs"], **{kind: one["errors"].get(kind, 0) for kind in kinds}}
        for one in collected
    ]


def show_drift(platform: str, reports: Path = HERE.reports) -> None:
    """Show the latest drift checks of a platform, newest first."""
    checks = read_json(reports / "drift.json", "move it away")["checks"]
    rows = [drift_row(check) for check in reversed(checks) if check["platform"] == platform][:LATEST]
    create_table_artifact(rows, key=f"drift-{platform}", description=f"Checks of {platform}: is the machine as it was measured?")


def undecided(platform: str, reports: Path = HERE.reports) -> int:
    """How many drift checks of a platform in a row, up to the latest, were undecided."""
    checks = [check for check in read_json(reports / "drift.json", "move it away")["checks"] if check["platform"] == platform]
    return next((number for number, check in enumerate(reversed(checks)) if check["verdict"] != UNDECIDED), len(checks))


def drift_row(check: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: _short(check[name]) for name in ("checked_at", "verdict", "then", "now", "pairs", "failed", "seconds", "reason")}
    return {**plain, "ratio": _short(check["ratio"]["value"]), "agreement": _short(check["agreement"]["value"])}


def show_evaluation(reports: Path = HERE.reports) -> None:
    """Show the figures of ``evaluation.json`` as one table, and every plot as a picture that needs no file server."""
    rows = table_rows(read_json(reports / "evaluation.json", "judge the models again: dvc repro evaluate"))
    create_table_artifact(rows, key="evaluation", description="Held-out programs, ranked by every model")
    for plot in sorted((reports / "plots").glob("*.png")):
        picture = base64.b64encode(plot.read_bytes()).decode()
        create_image_artifact(f"data:image/png;base64,{picture}", key=f"plot-{plot.stem.replace('_', '-').lower()}")


def show_page(page: Path = HERE.reports / PAGE) -> None:
    """Show the address of the run's page, to be copied: browsers follow no link from a server to a file."""
    if page.is_file():
        address = page.absolute().as_uri()
        create_link_artifact(
            address, link_text=address, key="page", description=f"The page of this run, to be opened in a browser: `{page}`"
        )


def show_summary(text: str) -> None:
    create_markdown_artifact(text, key="summary", description="What this run measured, learned, promoted and tuned")


def table_rows(tree: Any, path: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """One row for every object of a JSON tree that holds plain values: its path, and these values."""
    if isinstance(tree, list):
        return [row for item in tree for row in table_rows(item, path)]
    if not isinstance(tree, dict):
        return []
    plain = {name: _short(value) for name, value in tree.items() if not isinstance(value, (dict, list))}
    deeper = [row for name, value in tree.items() for row in table_rows(value, (*path, name))]
    return ([{"of": " / ".join(path) or "all", **plain}] if plain else []) + deeper


def _short(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value

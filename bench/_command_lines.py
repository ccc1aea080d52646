"""Wrong command lines: each must be answered with a sentence, in time, and change nothing in the project."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import _tiny_project as tiny
from _lanes import Lane
from _state import processes_left
from _trials import SENTENCES, Finding, Result, Workshop, judged

PART = "command-lines"
LIMIT_S = 60.0


@dataclass(frozen=True)
class CommandLine:
    """``argv`` is without the program's name."""

    name: str
    argv: Sequence[str]


def drawn(shop: Workshop, count: int, seed: int) -> list[CommandLine]:
    """At most ``count`` command lines, evenly spaced in the list; paths in them are of the first lane's project."""
    try:
        from _wrong_command_lines import wrong_command_lines
    except ImportError:
        print("there is no bench/_wrong_command_lines.py: no command line was tried", file=sys.stderr)
        return []
    given = wrong_command_lines(shop.lanes[0].project, shop.folder / "scratch")
    lines = [CommandLine(name, tuple(argv)) for name, argv in given]
    return lines[:: max(1, -(-len(lines) // count))]


def give(shop: Workshop, lane: Lane, wanted: CommandLine) -> Result:
    """Run a command line in the lane's unchanged project; one that changes it makes the next trial begin with a fresh copy."""
    if lane.holds != PART:
        tiny.restore(shop.finished, lane.folder)
        lane.holds = PART
    argv = [word.replace(shop.lanes[0].folder.name, lane.folder.name) for word in wanted.argv]
    before = listing(lane.project)
    outcome = lane.run(*argv, limit_s=LIMIT_S)
    findings = judged(outcome, PART, wanted.name, also=SENTENCES)
    if changed := sorted(before ^ listing(lane.project)):
        lane.holds = ""
        findings.append(Finding(PART, wanted.name, "unforeseen", f"the project changed: {changed[0][0]}"))
    if processes_left(lane.folder, 5.0):
        findings.append(Finding(PART, wanted.name, "leftovers", "a process is left"))
    return Result(wanted.name, f"exit {outcome.code}", findings)


def listing(project: Path) -> set[tuple[str, int, int]]:
    """Path, size and modification time of every file, except locks and a file that MLflow writes when it reads a model."""
    found = set()
    for path in project.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file() and not path.name.endswith(("lock", "registered_model_meta")):
                about = path.stat()
                found.add((str(path.relative_to(project)), about.st_size, about.st_mtime_ns))
    return found

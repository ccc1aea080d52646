"""Every command twice at once in one project: both succeed, or one exits with a message; the result is that of a single run."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import _tiny_project as tiny
from _kills import compared
from _lanes import Lane
from _state import processes_left
from _trials import SENTENCES, Finding, Result, Workshop, judged

PART = "twice"


@dataclass(frozen=True)
class Twice:
    """``late``: delay of the second one, as a share of the undisturbed duration."""

    command: str
    late: float

    @property
    def name(self) -> str:
        return f"{self.command}, {self.late:.3f} late"

    @classmethod
    def named(cls, name: str) -> Twice:
        found = re.fullmatch(r"(.+), ([\d.]+) late", name)
        if not found:
            raise SystemExit(f"'{name}' names no two commands; a name is as in: {cls('train', 0.25).name}")
        return cls(found[1], float(found[2]))


def drawn(shop: Workshop, count: int, seed: int) -> list[Twice]:
    """Each command with a second one started at the same time, and with ones started later."""
    draw = random.Random(seed)
    commands = [command for command in shop.commands if command.name != "flow" or count >= 2 * len(shop.commands)]
    lates = [0.0, *(round(draw.uniform(0, 0.9), 3) for _ in range(max(0, count // len(commands) - 1)))]
    return [Twice(command.name, late) for late in lates for command in commands if not late or command.share > 0.1]


def both(shop: Workshop, lane: Lane, wanted: Twice) -> Result:
    """Run a command twice at once; if one is refused, the other must do all of the work."""
    ready = shop.named(wanted.command)
    tiny.restore(ready.snapshot, lane.folder)
    argv, delay = ready.command.argv, wanted.late * ready.outcome.seconds
    outcomes = lane.run_all([argv, argv], [0.0, delay], 2 * ready.command.limit_s)
    codes = (*SENTENCES, 1, 255) if argv[0] == tiny.DVC else SENTENCES  # DVC refuses the second one with its own words
    findings = [finding for outcome in outcomes for finding in judged(outcome, PART, wanted.name, codes)]
    if all(outcome.code for outcome in outcomes):
        findings.append(Finding(PART, wanted.name, "unforeseen", f"both were refused: {outcomes[0].sentence}"))
    if processes_left(lane.folder):
        findings.append(Finding(PART, wanted.name, "leftovers", "a process is left"))
    if not findings:
        findings = compared(lane, ready, wanted.name, PART)
    refused = [outcome for outcome in outcomes if outcome.code]
    return Result(wanted.name, "one was refused" if refused else "both ended well", findings)

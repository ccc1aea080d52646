"""Kills before the Nth change of a file below the project, and at random moments; then the same command runs again.

Afterwards the project must hold exactly what an undisturbed run makes.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import _tiny_project as tiny
from _lanes import KILL_GROUP, KILL_PROCESS, Harm, Lane
from _state import differences, doubled, leftovers, processes_left, state
from _trials import Finding, Ready, Result, Workshop, judged

PART = "kills"
AT_MOMENTS = 0.25  # of the kills; the others are before a call
PATIENCE_S = 60.0
DVC_FAILED = 255


@dataclass(frozen=True)
class Kill:
    """One kill of a command; ``name`` holds all fields.

    at      number of a call, or a moment as a share of the undisturbed duration
    group   kill all processes of the command, not one
    later   wait for surviving processes to end before the command is started again
    """

    command: str
    at: int | float
    group: bool
    later: bool

    @property
    def name(self) -> str:
        where = f"call {self.at}" if isinstance(self.at, int) else f"moment {self.at:.3f}"
        return f"{self.command}, {where}, {'all' if self.group else 'one'}, {'later' if self.later else 'at once'}"

    @classmethod
    def named(cls, name: str) -> Kill:
        found = re.fullmatch(r"(.+), (call|moment) ([\d.]+), (all|one), (later|at once)", name)
        if not found:
            raise SystemExit(f"'{name}' names no kill; a name is as in: {cls('train', 12, True, False).name}")
        command, kind, at, whom, when = found.groups()
        return cls(command, (int if kind == "call" else float)(at), whom == "all", when == "later")


def drawn(shop: Workshop, count: int, seed: int) -> list[Kill]:
    """About ``count`` kills, spread over the commands by their shares; the calls are a stratified random sample of a command's."""
    draw, total = random.Random(seed), sum(command.share for command in shop.commands)
    kills = []
    for command in shop.commands:
        number = max(2, round(count * command.share / total))
        calls = max(1, shop.ready(command).outcome.calls)
        at_calls = max(1, round(number * (1 - AT_MOMENTS)))
        stretches = [1 + int((i + draw.random()) * calls / at_calls) for i in range(at_calls)]
        moments = [round(draw.uniform(0, 1), 3) for _ in range(number - at_calls)]
        kills += [Kill(command.name, at, draw.random() < 0.5, draw.random() < 0.5) for at in (*stretches, *moments)]
    draw.shuffle(kills)
    return kills


def kill(shop: Workshop, lane: Lane, wanted: Kill) -> Result:
    """Kill the command, run it again, compare."""
    ready = shop.named(wanted.command)
    tiny.restore(ready.snapshot, lane.folder)
    limit = ready.command.limit_s
    killed = lane.run(*ready.command.argv, limit_s=limit, harm=_harm(wanted, ready))
    findings = [] if killed.code is not None else judged(killed, PART, wanted.name)
    if wanted.later and processes_left(lane.folder, PATIENCE_S):
        findings.append(Finding(PART, wanted.name, "leftovers", "a process outlived the kill"))
    again = lane.run(*ready.command.argv, limit_s=limit)
    mended = again.code == DVC_FAILED and (remove_torn_lock(lane.project) or restore_damaged_lock(lane, ready.snapshot))
    if mended:
        again = lane.run(*ready.command.argv, limit_s=limit)
    findings += judged(again, PART, wanted.name)
    if processes_left(lane.folder):
        findings.append(Finding(PART, wanted.name, "leftovers", "a process is left"))
    if not findings:
        findings = compared(lane, ready, wanted.name, PART)
    where = killed.hit.partition(" ")[0] or ("moment" if isinstance(wanted.at, float) else "not reached")
    where = "a file of DVC's own, mended by hand" if mended else where
    return Result(wanted.name, where, [Finding(f.part, f.name, f.kind, f"{killed.hit}: {f.said}") for f in findings])


def remove_torn_lock(project: Path) -> bool:
    """Delete DVC's own list of locks if a kill tore it, as the documentation tells users to; whether it was torn."""
    path = project / ".dvc/tmp/rwlock"
    try:
        json.loads(path.read_bytes())
    except FileNotFoundError:
        return False
    except ValueError:
        path.unlink()
        return True
    return False


def restore_damaged_lock(lane: Lane, snapshot: Path) -> bool:
    """Restore dvc.lock, as from Git, if a kill left one that DVC cannot read; whether it did."""
    said = lane.run(tiny.DVC, "status").said
    if "dvc.lock' is invalid" not in said and "dvc.lock' validation failed" not in said:
        return False
    shutil.copy(snapshot / "project/dvc.lock", lane.project / "dvc.lock")
    return True


def _harm(wanted: Kill, ready: Ready) -> Harm:
    if isinstance(wanted.at, int):
        return Harm(KILL_GROUP if wanted.group else KILL_PROCESS, wanted.at)
    return Harm(after_s=wanted.at * ready.outcome.seconds, group=wanted.group)


def compared(lane: Lane, ready: Ready, name: str, part: str) -> list[Finding]:
    """Differences from the undisturbed project: lost, silently new or changed, doubled, or left over."""
    findings = []
    now = state(lane.project, ready.command.measured)
    for line in differences(ready.state, now):
        if ".jsonl.cut-" in line and line.endswith(" is new"):  # the copy of a torn line, which the command reports
            continue
        findings.append(Finding(part, name, "lost" if line.endswith(" is gone") else "silent", line))
    if twice := doubled(lane.project):
        findings.append(Finding(part, name, "doubled", f"{twice} records or versions are there twice"))
    findings += [Finding(part, name, "leftovers", line) for line in leftovers(lane.project)]
    return findings

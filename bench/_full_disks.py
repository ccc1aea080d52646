"""Full disks at every stage: no file may exceed a size (RLIMIT_FSIZE), or every call from the Nth on finds no space.

The command must say so in a message that names a file, and must keep what was there; run again with space, it must
make what an undisturbed run makes.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import _tiny_project as tiny
from _kills import DVC_FAILED, compared, remove_torn_lock
from _lanes import DISK_FULL, Harm, Lane, Outcome
from _state import differences, processes_left, state
from _trials import SENTENCES, Finding, Result, Workshop, judged

PART = "full-disk"
SIZES = (0, 300, 4096, 30_000)  # bytes
STAGE_FAILED = re.compile("^tcl: |exited with", re.MULTILINE)  # how a stage, or DVC about a stage, reports failure
NAMES_A_FILE = re.compile(r"\S*[/.]\w+")


@dataclass(frozen=True)
class FullDisk:
    """``at``: the largest size of a file (kind "bytes"), or the number of the first call that finds no space ("call")."""

    command: str
    kind: str
    at: int

    @property
    def name(self) -> str:
        return f"{self.command}, {self.kind} {self.at}"

    @classmethod
    def named(cls, name: str) -> FullDisk:
        found = re.fullmatch(r"(.+), (bytes|call) (\d+)", name)
        if not found:
            raise SystemExit(f"'{name}' names no full disk; a name is as in: {cls('train', 'bytes', 300).name}")
        return cls(found[1], found[2], int(found[3]))


def drawn(shop: Workshop, count: int, seed: int) -> list[FullDisk]:
    """Every size for every command, and a stratified random sample of its calls; about ``count`` in all."""
    draw = random.Random(seed)
    commands = [command for command in shop.commands if command.share > 0.1]
    calls = max(1, count // len(commands) - len(SIZES))
    disks = []
    for command in commands:
        known = shop.ready(command).outcome.calls
        disks += [FullDisk(command.name, "bytes", size) for size in SIZES]
        disks += [FullDisk(command.name, "call", 1 + int((i + draw.random()) * known / calls)) for i in range(calls)]
    return disks


def fill(shop: Workshop, lane: Lane, wanted: FullDisk) -> Result:
    """Run the command on a full disk, check what it left, and run it again with space."""
    ready = shop.named(wanted.command)
    tiny.restore(ready.snapshot, lane.folder)
    before = state(lane.project, ready.command.measured)
    harm = Harm(largest_file=wanted.at) if wanted.kind == "bytes" else Harm(DISK_FULL, wanted.at)
    full = lane.run(*ready.command.argv, limit_s=ready.command.limit_s, harm=harm)
    findings = said_well(full, wanted.name)
    now = state(lane.project, ready.command.measured)
    for line in differences(before, now):
        name = line.rpartition(" ")[0]
        if not line.endswith(" is new") and now.get(name) != ready.state.get(name):
            findings.append(Finding(PART, wanted.name, "lost", f"on the full disk {line}"))
    again = lane.run(*ready.command.argv, limit_s=ready.command.limit_s)
    if again.code == DVC_FAILED and remove_torn_lock(lane.project):
        again = lane.run(*ready.command.argv, limit_s=ready.command.limit_s)
    findings += judged(again, PART, wanted.name)
    if processes_left(lane.folder):
        findings.append(Finding(PART, wanted.name, "leftovers", "a process is left"))
    if not findings:
        findings = compared(lane, ready, wanted.name, PART)
    outcome = "ended well" if full.code == 0 else "a sentence"
    return Result(wanted.name, outcome, [Finding(f.part, f.name, f.kind, f"{full.hit}: {f.said}") for f in findings])


def said_well(full: Outcome, name: str) -> list[Finding]:
    """Failures in how a command reports the full disk; DVC has its own words and exit code, and repeats its stage's message.

    If no stage failed, DVC itself found no space (for a lock, a link or dvc.lock), and it need not say where.
    """
    codes = (*SENTENCES, 1, 255) if name.startswith("dvc") else SENTENCES
    findings = judged(full, PART, name, also=codes)
    its_own = name.startswith("dvc") and not STAGE_FAILED.search(full.said)
    if full.code and not findings and not its_own and not NAMES_A_FILE.search(full.sentence):
        findings.append(Finding(PART, name, "unforeseen", f"no file is named: {full.sentence}"))
    return findings

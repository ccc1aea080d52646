"""Corruptions: a file of the data set or of the registry is damaged, then a command reads it.

The command may exit with an error message, be unaffected, or rebuild a cache and say so.  The worst outcome is an answer that
differs from the undisturbed run's without a warning.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import _tiny_project as tiny
from _lanes import Lane, Outcome
from _state import differences, plain, state
from _trials import COMMANDS, SENTENCES, Command, Finding, Ready, Result, Workshop, judged, without

PART = "corruptions"
_BY_NAME = {command.name: command for command in COMMANDS}
_NOTHING_UNDONE = without()
SUMMARY = Command("summary", ("summary",), without("data/reports/summary.json"))
EXPORT = Command("export", ("export", "-p", tiny.LAST, "--to", "data/exported"), _NOTHING_UNDONE)
PREDICT = Command("predict", ("predict", tiny.LOG, "-p", tiny.LAST, "--to", "data/scores.csv"), _NOTHING_UNDONE)
MODEL = f"data/models/{tiny.LAST}"
SCORE = Command("predict --model", ("predict", tiny.LOG, "--model", MODEL, "--to", "data/scores.csv"), _NOTHING_UNDONE)
COLLECTED = Command("collect again", ("collect", "-p", tiny.LAST), _NOTHING_UNDONE, measured=True)
HELD_OUT = Command("holdout again", ("holdout", "-p", tiny.LAST), _NOTHING_UNDONE, measured=True)
BASELINE = Command("train --model xgboost", ("train", "--model", "xgboost"), without("data/models/beside_chain"))
IMPORT_AGAIN = Command("import again", ("import", tiny.LOG, "-p", tiny.IMPORTED), _NOTHING_UNDONE)
BEGUN = tuple(replace(_BY_NAME[name], name=f"{name}, begun", begun=0.6) for name in ("train", "distill"))
TRAIN, DISTILL, EVALUATE, REGISTER, PROMOTE, TUNE = (
    _BY_NAME[name] for name in ("train", "distill", "evaluate", "register", "promote", "tune")
)

# File patterns and the commands that read them; every kind of file occurs at least once.
READ = (
    ("data/programs/tasks/tasks.parquet", (EXPORT, EVALUATE)),
    ("data/programs/tasks/networks.parquet", (EVALUATE, PROMOTE)),
    ("data/programs/pool/*/*.parquet", (EVALUATE, EXPORT)),
    ("data/records/*/records.parquet", (TRAIN, DISTILL, EXPORT, EVALUATE, BASELINE)),
    ("data/records/*/hardware.json", (TRAIN, DISTILL, EVALUATE)),
    ("data/holdout/*/records.parquet", (EVALUATE, PROMOTE, EXPORT)),
    ("data/holdout/*/hardware.json", (EVALUATE, PROMOTE)),
    (f"data/journal/collect/{tiny.LAST}/records.jsonl", (COLLECTED,)),
    (f"data/journal/holdout/{tiny.LAST}/records.jsonl", (HELD_OUT,)),
    ("data/journal/hardware.json", (COLLECTED,)),
    ("data/journal/seconds/*.json", (SUMMARY,)),
    ("data/journal/checkpoints/**/*", BEGUN),
    ("data/models/host-*/*", (EVALUATE, REGISTER, SCORE)),
    (f"data/models/{tiny.FIRST}/*", (DISTILL,)),
    ("data/models/beside_chain/**/*", (EVALUATE,)),
    ("data/features/**/*.safetensors", (EVALUATE, BASELINE)),
    ("data/reports/evaluation.json", (REGISTER, SUMMARY)),
    ("data/reports/tuned.json", (SUMMARY,)),
    ("data/reports/collect/*.json", (SUMMARY, COLLECTED)),
    ("data/imported/*/*.parquet", (IMPORT_AGAIN,)),
    ("data/imported/*/re*/*", (IMPORT_AGAIN,)),
    ("mlruns/**/artifacts/*/*", (PREDICT, PROMOTE)),
)
READERS = tuple({command.name: command for _, commands in READ for command in commands}.values())


# --- damage ---


def one_bit(content: bytes, _: bytes, draw: random.Random) -> bytes:
    return _put(content, place := draw.randrange(len(content)), bytes([content[place] ^ (1 << draw.randrange(8))]))


def overwritten(content: bytes, _: bytes, draw: random.Random) -> bytes:
    return _put(content, draw.randrange(len(content)), draw.randbytes(draw.choice((1, 8, 64))))


def zeroed(content: bytes, _: bytes, draw: random.Random) -> bytes:
    """One 512-byte block is zero, as a disk loses it."""
    return _put(content, draw.randrange(len(content)) // 512 * 512, bytes(512))


def cut_short(content: bytes, _: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content))]


def emptied(content: bytes, _: bytes, draw: random.Random) -> bytes:
    return b""


def appended(content: bytes, _: bytes, draw: random.Random) -> bytes:
    return content + draw.randbytes(draw.choice((1, 16, 512)))


def swapped(content: bytes, sibling: bytes, draw: random.Random) -> bytes:
    """The content of another file of the same kind: intact, but wrong here."""
    return sibling


def _put(content: bytes, place: int, run: bytes) -> bytes:
    return content[:place] + run[: len(content) - place] + content[place + len(run) :]


Damage = Callable[[bytes, bytes, random.Random], bytes]
DAMAGES: dict[str, Damage] = {
    damage.__name__.replace("_", " "): damage for damage in (one_bit, overwritten, zeroed, cut_short, emptied, appended, swapped)
}
WEIGHTS = (6, 3, 2, 2, 1, 1, 1)


@dataclass(frozen=True)
class Corruption:
    """One damaged file and the command that reads it; ``name`` holds all fields."""

    command: str
    path: str
    damage: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.command}; {self.path}; {self.damage}; {self.seed}"

    @classmethod
    def named(cls, name: str) -> Corruption:
        parts = name.split("; ")
        if len(parts) != 4 or parts[2] not in DAMAGES:
            example = cls("train", "data/a.json", "one bit", 3).name
            raise SystemExit(f"'{name}' names no corruption; a name is as in: {example}")
        return cls(parts[0], parts[1], parts[2], int(parts[3]))


def drawn(shop: Workshop, count: int, seed: int) -> list[Corruption]:
    """``count`` corruptions, spread evenly over the pairs of a file pattern and a command that reads it."""
    draw = random.Random(seed)
    pairs = [(pattern, command) for pattern, commands in READ for command in commands]
    files = {pair: _files(shop.ready(pair[1]).snapshot / "project", pair[0]) for pair in pairs}
    if empty := [pattern for (pattern, _), found in files.items() if not found]:
        raise RuntimeError(f"the tiny project has no file {empty[0]} to damage")
    pairs = [pair for pair in pairs if files[pair]]
    trials = []
    for number in range(count):
        pattern, command = pairs[number % len(pairs)]
        path = draw.choice(files[pattern, command])
        [damage] = draw.choices(list(DAMAGES), WEIGHTS)
        trials.append(Corruption(command.name, path, damage, draw.randrange(10**6)))
    return trials


def _files(project: Path, pattern: str) -> list[str]:
    found = [path for path in project.glob(pattern) if path.is_file() and path.stat().st_size]
    return [str(path.relative_to(project)) for path in sorted(found) if path.suffix not in (".png", ".lock")]


def _sibling(project: Path, path: str) -> bytes:
    """Different content of another file of the same name, or else of the same suffix in the folder; b"{}" without one."""
    same = [p for p in project.glob(f"{Path(*Path(path).parts[:2])}/**/{Path(path).name}") if p != project / path]
    alike = [p for p in (project / path).parent.glob(f"*{Path(path).suffix}") if p != project / path]
    here = (project / path).read_bytes()
    return next((content for p in (*same, *alike) if (content := p.read_bytes()) != here), b"{}")


def corrupt(shop: Workshop, lane: Lane, wanted: Corruption) -> Result:
    """Damage the file, run the command, and judge its answer."""
    ready = shop.named(wanted.command)
    tiny.restore(ready.snapshot, lane.folder)
    path = lane.project / wanted.path
    content, draw = path.read_bytes(), random.Random(wanted.seed)
    harmed = DAMAGES[wanted.damage](content, _sibling(lane.project, wanted.path), draw)
    path.write_bytes(harmed)
    before = state(lane.project, ready.command.measured)
    outcome = lane.run(*ready.command.argv, limit_s=ready.command.limit_s)
    if findings := judged(outcome, PART, wanted.name, also=SENTENCES):
        return Result(wanted.name, findings[0].kind, findings)
    now = state(lane.project, ready.command.measured)
    if outcome.code:
        changed = [line for line in differences(before, now) if line.endswith((" is gone", " changed"))]
        lines = [f"exit {outcome.code}, but {line}" for line in changed if "rounds.jsonl" not in line]
        return Result(wanted.name, "a sentence", [Finding(PART, wanted.name, "lost", line) for line in lines])
    harmed_names = {name for name, digest in before.items() if ready.before.get(name) != digest == now.get(name)}
    rest = {name: digest for name, digest in now.items() if name not in harmed_names}
    return answered(lane, ready, wanted, outcome, rest, harmed_names)


def answered(lane: Lane, ready: Ready, wanted: Corruption, outcome: Outcome, now: dict[str, str], harmed: set[str]) -> Result:
    """Judge a command that exited with 0: it must give the undisturbed answer, or say what it rebuilt or left out.

    harmed  names of what is still as the damage left it; ``now`` is without them
    """
    expected = {name: digest for name, digest in ready.state.items() if name not in harmed}
    other = [line for line in differences(expected, now) if not line.startswith(f"{wanted.path} ")]
    words, usual = _words(lane.project, outcome.said), _words(ready.snapshot / "project", ready.outcome.said)
    spoke = [line for line in words if line not in usual]
    if any("left out" in line and wanted.path in line for line in spoke):
        return Result(wanted.name, "left out")  # and said, with its name
    warned = any(re.search(r"damaged|anew|again|passed over|cannot|left out|belongs to other", line) for line in spoke)
    if other and not (warned and not _answers_differ(words, usual)):
        return Result(wanted.name, "silent", [Finding(PART, wanted.name, "silent", other[0])])
    if warned:
        return Result(wanted.name, "made anew")
    if words != usual:
        said = next((line for line in spoke), "it said less")
        return Result(wanted.name, "silent", [Finding(PART, wanted.name, "silent", f"another answer: {said[:200]}")])
    return Result(wanted.name, "no effect")


def _answers_differ(words: Sequence[str], usual: Sequence[str]) -> bool:
    return bool(set(usual) - set(words))


def _words(project: Path, said: str) -> list[str]:
    """Lines that a command printed, without its progress and the lane's name."""
    text = plain(project, said.encode()).decode()
    return [line for line in text.splitlines() if not re.search(r": \d+ of \d+", line)]

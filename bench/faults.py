"""Is anything ever lost, doubled or changed in silence?  Faults of every kind, on real commands in a tiny project.

    python bench/faults.py [--quick] [--part PART] [--only NAME] [--seed N] [--trials N]

candidates      bad programs, killed workers and collectors, a full disk, second collectors (_candidates.py)
kills           kill -9 before any change of a file and at random moments, then the same command again (_kills.py)
corruptions     damaged files, then a command that reads them (_corruptions.py)
command-lines   wrong ones (_command_lines.py)
twice           two of everything at once (_twice.py)
full-disk       no room at every stage (_full_disks.py)

Exits with 1 if anything failed; each failure is printed with the command that repeats it.  Parts may run separately:
each puts its own figures into bench/results/faults.json.  --quick: a sample of each part, without the commands that
take long; it has a results file of its own.  --smallest: two kills each of four commands.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import _command_lines
import _corruptions
import _full_disks
import _kills
import _twice
from _tables import Quick, arguments as parser_of, into_document, markdown, result_file, save
from _trials import COMMANDS, KINDS, QUICK, SMALLEST, Result, Workshop, totals, workshop

COMMAND = "python bench/faults.py"
CANDIDATES = "candidates"
# Part -> module, name of its trial, number of trials in a whole run and in a quick one.
PARTS: dict[str, tuple[ModuleType, str, int, int]] = {
    _kills.PART: (_kills, "kill", 520, 18),
    _corruptions.PART: (_corruptions, "corrupt", 1040, 60),
    _command_lines.PART: (_command_lines, "give", 100_000, 60),
    _twice.PART: (_twice, "both", 40, 4),
    _full_disks.PART: (_full_disks, "fill", 120, 20),
}
TRIALS: dict[str, Any] = {
    _kills.PART: _kills.Kill,
    _corruptions.PART: _corruptions.Corruption,
    _twice.PART: _twice.Twice,
    _full_disks.PART: _full_disks.FullDisk,
}
SHOWN_AS = {_command_lines.PART: "wrong command lines", _twice.PART: "two at once", _full_disks.PART: "full disks"}


def figures_of(results: list[Result], seed: int, seconds: float) -> dict[str, Any]:
    """What a part puts into the results: totals, outcomes and a line for each failure."""
    outcomes = Counter(result.outcome for result in results)
    failures = [finding.line() for result in results for finding in result.findings]
    about = {"seed": seed, "seconds": round(seconds)}
    return {**totals(results), "outcomes": dict(outcomes.most_common()), **about, "failures": failures}


def run_parts(parts: list[str], arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Make one tiny project and try the parts in it, one after another; yield each one's figures as soon as it is done."""
    if not parts:
        return
    with tempfile.TemporaryDirectory(prefix="tcl-faults-", ignore_cleanup_errors=True) as folder:
        commands = SMALLEST if arguments.smallest else QUICK if arguments.quick else COMMANDS
        with workshop(Path(folder), arguments.lanes, _corruptions.READERS, commands) as shop:
            for part in parts:
                module, trial, *_ = PARTS[part]
                start = time.monotonic()
                trials = chosen(part, shop, arguments)
                results = shop.each(part, trials, partial(getattr(module, trial), shop))
                yield part, figures_of(results, arguments.seed, time.monotonic() - start)


def chosen(part: str, shop: Workshop, arguments: argparse.Namespace) -> list[Any]:
    """The trials of a part: drawn at random by the seed, or the one that is named."""
    if arguments.only and part in TRIALS:
        return [TRIALS[part].named(arguments.only)]
    module, _, count, few = PARTS[part]
    drawn = module.drawn(shop, arguments.trials or (few if arguments.quick else count), arguments.seed)
    if arguments.quick:
        drawn = random.Random(arguments.seed).sample(drawn, min(few, len(drawn)))
    return [trial for trial in drawn if arguments.only in (None, trial.name)]


def merged(found: dict[str, Any]) -> dict[str, Any]:
    """All stored parts, with those of this run in the place of their former results."""
    path = result_file("faults.json")
    kept = json.loads(path.read_text()) if path.exists() else {}
    if kept and "parts" not in kept:  # written when candidates were the only part
        kept = {"parts": {CANDIDATES: {"totals": kept["summary"], "figures": kept["figures"]}}}
    return {**kept.get("parts", {}), **found}


def keep(found: dict[str, Any], quick: bool) -> None:
    """Save all parts known so far, for a run may be stopped between two parts."""
    parts = merged(found)
    save("faults", {"summary": summary_of(parts), "parts": parts}, COMMAND + " --quick" * quick)
    into_document("faults-parts", table_of(parts))


def summary_of(parts: dict[str, Any]) -> dict[str, int]:
    """Numbers of trials of each part, then the totals over all parts that must be 0."""
    candidates = parts.get(CANDIDATES, {}).get("totals", {})
    trials = {part.replace("-", "_"): parts.get(part, {}).get("trials", 0) for part in PARTS}
    wrong = {kind: sum(parts.get(part, {}).get(kind, 0) for part in PARTS) for kind in KINDS}
    for kind in ("lost", "doubled", "leftovers"):
        wrong[kind] += candidates.get(kind, 0)
    known = {name: candidates[name] for name in ("injected", "recorded", "candidates", "misjudged") if name in candidates}
    return {**known, **trials, **wrong}


def table_of(parts: dict[str, Any]) -> str:
    header = ("part", "trials", *KINDS, "how they ended")
    rows = []
    for part in PARTS:
        if figures := parts.get(part):
            outcomes = list(figures["outcomes"].items())
            told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes[:6]) + (", ..." if outcomes[6:] else "")
            rows.append([SHOWN_AS.get(part, part), figures["trials"], *(figures[kind] for kind in KINDS), told])
    return markdown(header, rows)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action=Quick, help="a sample of each part")
    parser.add_argument("--part", action="append", choices=(CANDIDATES, *PARTS), help="only this one; may be given again")
    parser.add_argument("--only", metavar="NAME", help="with --part: repeat one trial; nothing is written")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn at random")
    parser.add_argument("--trials", type=int, help="so many of each part")
    parser.add_argument("--lanes", type=int, default=len(os.sched_getaffinity(0)), help="trials at once")
    arguments = parser.parse_args()
    if arguments.smallest:  # two kills of each of four commands
        arguments.part, arguments.trials = [_kills.PART], 1
    if arguments.only and len(arguments.part or ()) != 1:
        parser.error("--only needs one --part")
    wanted = arguments.part or [CANDIDATES, *PARTS]
    found: dict[str, Any] = {}
    if CANDIDATES in wanted:
        import _candidates  # imports TVM, which other parts need in their lanes only

        candidates, figures, table = _candidates.inject(arguments.quick)
        found[CANDIDATES] = {"totals": candidates, "figures": figures}
        print(table, flush=True)
        if not arguments.only:
            into_document("faults", table)
            keep(found, arguments.quick)
    for part, figures in run_parts([part for part in PARTS if part in wanted], arguments):
        found[part] = figures
        print("".join(f"{line}\n" for line in figures["failures"]), end="", flush=True)
        if not arguments.only:
            keep(found, arguments.quick)
    failures = [line for part in PARTS for line in found.get(part, {}).get("failures", ())]
    if not arguments.only:
        parts = merged(found)
        print(f"{table_of(parts)}\n\n" + ", ".join(f"{total} {name}" for name, total in summary_of(parts).items()))
    wrong = sum(candidates_wrong(found.get(CANDIDATES, {}).get("totals", {}))) + len(failures)
    sys.exit(1 if wrong else 0)


def candidates_wrong(totals: dict[str, int]) -> list[int]:
    return [totals.get(name, 0) for name in ("lost", "doubled", "misjudged", "leftovers")]


if __name__ == "__main__":
    main()

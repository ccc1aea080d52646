"""Which candidates a promotion gate lets through, and what that gains.

    python bench/gate.py [--quick] [--draws N]

Champion and candidate are boosted trees that learned different programs, two of the four rows of `bench/pools.py`: which one is better is
known from 23 to 35 tasks of each of four folds on three platforms.  A gate sees --held-out of a platform's tasks, drawn repeatedly; the
candidate's gain is its difference on the other tasks.

both 95%        the candidate is better in pairs, and in U16, each with that confidence
together 90%    pairs and U16 are both higher, and the two together better with that confidence (`tcl_core.stages.gate.together`)
higher          pairs and U16 are both higher

The table has the share of candidates that pass, by how they differ from the champion on all tasks, and the mean gain per decision in pairs
and U16.  --quick: a quarter of the draws.  Nothing is learned here: bench/results/pools.json has the figures of each task.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from _tables import RESULTS, Quick, arguments, into_document, markdown, save

from tcl_core import environment  # noqa: F401  (before torch is imported)

import numpy as np

from tcl_core.evaluation.intervals import flipped_signs
from tcl_core.progress import progress
from tcl_core.stages.gate import together

COMMAND = "python bench/gate.py"
LEVEL = 0.01  # the smallest difference of a figure that counts

ByTask = Mapping[int, float]
Figures = tuple[ByTask, ByTask]
"""Pairs and U16 by task."""


@dataclass(frozen=True)
class Decision:
    """What a gate saw of a candidate, and how the candidate truly differs from the champion.

    pairs, u16, together   confidences that it is better;  higher: whether both figures are, on the tasks that were seen
    differs                differences in (pairs, U16) on all tasks;  gains: on those that were not seen
    """

    pairs: float
    u16: float
    together: float
    higher: bool
    differs: tuple[float, float]
    gains: tuple[float, float]


RULES: Mapping[str, Callable[[Decision], bool]] = {
    "both 95%": lambda seen: seen.higher and min(seen.pairs, seen.u16) >= 0.95,
    "both 80%": lambda seen: seen.higher and min(seen.pairs, seen.u16) >= 0.8,
    "together 99%": lambda seen: seen.higher and seen.together >= 0.99,
    "together 95%": lambda seen: seen.higher and seen.together >= 0.95,
    "together 90%": lambda seen: seen.higher and seen.together >= 0.9,
    "higher": lambda seen: seen.higher,
    "all": lambda seen: True,
}
KINDS: Mapping[str, Callable[[float, float], bool]] = {
    "better in both": lambda pairs, u16: min(pairs, u16) > 0,
    "level": lambda pairs, u16: max(abs(pairs), abs(u16)) < LEVEL,
    "U16 lower": lambda pairs, u16: u16 < -LEVEL,
    "pairs lower": lambda pairs, u16: pairs < -LEVEL,
    "worse in both": lambda pairs, u16: max(pairs, u16) < 0,
}


def matches(units: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[Figures, Figures]]:
    """Yield champion and candidate: any two rows of pools.json of the same seed, on the same pool and platform."""
    seeds = sorted({name.split(", ")[1] for name in units})
    first = next(iter(units.values()))
    rows, pools = list(first), list(next(iter(first.values())))
    for seed in seeds:
        of_seed = [unit for name, unit in units.items() if name.endswith(f", {seed}")]
        for pool in pools:
            for platform in sorted({place.split(", ")[0] for place in of_seed[0][rows[0]][pool]["pairs"]}):
                of = {row: tuple(_by_task(of_seed, row, pool, name, platform) for name in ("pairs", "u16")) for row in rows}
                yield from ((of[champion], of[candidate]) for champion, candidate in permutations(rows, 2))  # type: ignore[misc]


def _by_task(units: list[Mapping[str, Any]], row: str, pool: str, name: str, platform: str) -> dict[int, float]:
    values = ((place.split(", "), value) for unit in units for place, value in unit[row][pool][name].items())
    return {int(task): value for (where, task), value in values if where == platform}


def decision(champion: Figures, candidate: Figures, seen: list[int], seed: int) -> Decision:
    """``Decision`` of a gate that sees the tasks ``seen``."""
    unseen = sorted(champion[0].keys() - set(seen))
    (old_pairs, old_u16), (new_pairs, new_u16) = (
        [{task: figure[task] for task in seen} for figure in model] for model in (champion, candidate)
    )
    pairs, u16 = flipped_signs(old_pairs, new_pairs, 1, seed), flipped_signs(old_u16, new_u16, 1, seed)
    higher = pairs.candidate > pairs.champion and u16.candidate > u16.champion
    both = together((old_pairs, new_pairs), (old_u16, new_u16), seed)
    differs, gains = (_differences(champion, candidate, tasks) for tasks in (sorted(champion[0]), unseen))
    return Decision(pairs.probability, u16.probability, both, higher, differs, gains)


def _differences(champion: Figures, candidate: Figures, tasks: list[int]) -> tuple[float, float]:
    pairs, u16 = (float(np.mean([new[task] - old[task] for task in tasks])) for old, new in zip(champion, candidate, strict=True))
    return pairs, u16


def summary(decisions: list[Decision]) -> dict[str, Any]:
    """Rule -> kind of candidate -> share that passes; also the mean gains per decision."""
    found: dict[str, Any] = {}
    for rule, passes in RULES.items():
        let = np.array([passes(seen) for seen in decisions])
        of_kind = {kind: [which(*seen.differs) for seen in decisions] for kind, which in KINDS.items()}
        gained = np.array([seen.gains for seen in decisions])
        found[rule] = {kind: float(let[which].mean()) if any(which) else None for kind, which in of_kind.items()}
        found[rule] |= dict(zip(("pairs_gained", "u16_gained"), (gained * let[:, None]).mean(axis=0).tolist(), strict=True))
    return found


def table(found: Mapping[str, Any]) -> str:
    share = lambda value: "-" if value is None else f"{value:.1%}"  # noqa: E731
    header = ["gate", *KINDS, "pairs gained", "U16 gained"]
    rows = [
        [rule, *(share(of[kind]) for kind in KINDS), f"{of['pairs_gained']:+.4f}", f"{of['u16_gained']:+.4f}"] for rule, of in found.items()
    ]
    return markdown(header, rows)


def run(given: Namespace) -> None:
    pools = json.loads((RESULTS / "pools.json").read_text())
    pairs = list(matches(pools["units"]))
    least = min((len(champion[0]) for champion, _ in pairs), default=0)
    if least <= given.held_out and not given.smallest:
        sys.exit(
            f"gate: bench/results/pools.json has {least} tasks, and the gate sees {given.held_out}; run python bench/pools.py to its end"
        )
    if given.smallest:
        pairs = pairs[:12]
    count = 1 if given.smallest else given.draws // 4 if given.quick else given.draws
    rng, decisions = np.random.default_rng(0), list[Decision]()
    with progress("deciding", len(pairs)) as shown:
        for champion, candidate in pairs:
            tasks = sorted(champion[0])
            for _ in range(count):
                seen = [tasks[place] for place in rng.permutation(len(tasks))[: given.held_out]]
                decisions.append(decision(champion, candidate, seen, int(rng.integers(2**31))))
            shown.advance("")
    found = summary(decisions)
    about = {"decisions": len(decisions), "held_out": given.held_out, "pools": pools.get("identity")}
    save("gate", {**about, "summary": found}, " ".join([COMMAND, *sys.argv[1:]]))
    into_document("gate", table(found))
    print(table(found))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="a quarter of the draws")
    parser.add_argument("--draws", type=int, default=40, metavar="N", help="of held-out tasks, for each two models (40)")
    parser.add_argument("--held-out", type=int, default=24, metavar="N", help="tasks that the gate sees, as in params.yaml (24)")
    run(parser.parse_args())


if __name__ == "__main__":
    main()

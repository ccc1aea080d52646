"""Whether a machine still orders programs as when it was measured, told by a few that are measured again.

A model ranks programs of one task, so only their order within a task can make it wrong.  A factor that all programs
share (a neighbour, a lower clock) is told, and is no drift.  Noise swaps programs that are nearly equally fast;
therefore only *clear* pairs count, those whose latencies are some factor apart.

Arrays are aligned on N programs: latencies in seconds, inf where a program failed, NaN where others on the machine disturbed
it; tasks (N,) int.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tcl_core.evaluation.intervals import Interval

DRAWS = 1000
SAME = 0.05  # a common factor nearer to 1 than this is not worth a word
SAMPLE = 8  # clear pairs, below which nothing can be told
SWAPPED = 3  # clear pairs, by fewer of which no order has changed: of eight one would be more than a tenth
DRIFTED, SAME_ORDER, UNDECIDED = "drift", "no drift", "undecided"


@dataclass(frozen=True)
class Comparison:
    """Programs measured again.

    programs   that ran then and were not disturbed now; disturbed: those that were; failed: that fail now
    ratio      median of new / old latency, with its 95 % interval over programs
    spread     ratios between which 80 % of the programs lie
    pairs      clear pairs of the old measurement; agreement: share of them in the same order now
    both       pairs that are clear in both measurements
    then, now  share of those that the champion orders right, by the old and by the new measurement; None without one
    """

    programs: int
    disturbed: int
    failed: int
    ratio: Interval
    spread: tuple[float, float]
    pairs: int
    agreement: Interval
    both: int = 0
    then: float | None = None
    now: float | None = None

    @property
    def fall(self) -> float:
        """By how much the champion's share fell."""
        return 0.0 if self.then is None or self.now is None else self.then - self.now


def compare(
    old_s: np.ndarray, new_s: np.ndarray, tasks: np.ndarray, clear: float, champion: np.ndarray | None = None, seed: int = 0
) -> Comparison:
    """The figures of programs that ran then (``old_s`` is finite).

    clear     factor between the latencies of a pair that counts
    champion  (N,) its predictions, higher is better
    """
    known = ~np.isnan(new_s)
    disturbed, champion = int((~known).sum()), None if champion is None else champion[known]
    old_s, new_s, tasks = old_s[known], new_s[known], tasks[known]
    ran = np.isfinite(new_s)
    ratios = new_s[ran] / old_s[ran]
    old = _clear_pairs(old_s, tasks, clear)
    kept = _ordered(-new_s, old)
    shares: dict[str, Any] = {}
    if champion is not None:
        # The same pairs: one that is a little less, or more, than clear now says nothing of the champion.
        then, now = _in_both(old, _clear_pairs(new_s, tasks, clear))
        shares = {"both": len(then), "then": _mean(_ordered(champion, then)), "now": _mean(_ordered(champion, now))}
    return Comparison(
        programs=len(old_s),
        disturbed=disturbed,
        failed=int((~ran).sum()),
        ratio=_median(ratios, seed),
        spread=tuple(np.percentile(ratios, [10, 90]).tolist()) if len(ratios) else (float("nan"), float("nan")),
        pairs=len(kept),
        agreement=_share_over_tasks(kept, tasks[old[:, 0]], seed),
        **shares,
    )


def verdict(found: Comparison, least_agreement: float, most_fall: float) -> tuple[str, str]:
    """Whether that is drift, and the sentence that says why."""
    if found.pairs < SAMPLE:
        return UNDECIDED, f"only {found.pairs} clear pairs of programs could be compared{_disturbed(found)}"
    other_order = found.agreement.value < least_agreement
    few = found.pairs * (1 - found.agreement.value) < SWAPPED - 0.25  # equal ones count by halves
    fell = found.fall > most_fall and found.fall * found.both >= SWAPPED - 0.25
    if other_order and few and not fell:
        kept = f"{found.agreement.value:.0%} of only {found.pairs} clear pairs of programs keep their order, too few to tell"
        return UNDECIDED, kept + _disturbed(found)
    why = []
    if other_order and not few:
        why.append(
            f"the machine keeps the order of only {found.agreement.value:.0%} of {found.pairs} clear pairs ({least_agreement:.0%} needed)"
        )
    if fell:
        why.append(
            f"the champion orders {found.now:.0%} of clear pairs right, {found.then:.0%} before (a fall of {most_fall:.0%} is allowed)"
        )
    machine = _machine(found)
    if why:
        return DRIFTED, f"{'; '.join(why)}; {machine}"
    ranking = f"{found.agreement.value:.0%} of {found.pairs} clear pairs are in their old order"
    champion = "" if found.now is None else f", the champion orders {found.now:.0%} right ({found.then:.0%} before)"
    return SAME_ORDER, f"{machine}, ranking unchanged: {ranking}{champion}"


def _disturbed(found: Comparison) -> str:
    return f", for others on this machine disturbed {found.disturbed} programs; try again when it is quieter" if found.disturbed else ""


def _machine(found: Comparison) -> str:
    if found.failed == found.programs > 0:
        return f"none of {found.programs} programs runs any more"
    ratio, failed = found.ratio, f", {found.failed} programs that ran then fail now" if found.failed else ""
    if not abs(ratio.value - 1) > SAME or ratio.low <= 1 <= ratio.high:
        return f"the machine is as fast as then{failed}"
    factor = ratio.value if ratio.value > 1 else 1 / ratio.value
    return f"the machine is {'slower' if ratio.value > 1 else 'faster'} by a factor of {factor:.2f}{failed}"


def _clear_pairs(seconds: np.ndarray, tasks: np.ndarray, clear: float) -> np.ndarray:
    """(P, 2) rows of programs of one task, the clearly faster one first."""
    faster = (seconds[:, None] * clear <= seconds[None, :]) & np.isfinite(seconds)[:, None]
    return np.argwhere(faster & (tasks[:, None] == tasks[None, :]))


def _in_both(old: np.ndarray, new: np.ndarray) -> list[np.ndarray]:
    """Those of either whose two programs are a pair of the other, in whichever order."""
    names = [[frozenset(pair) for pair in pairs.tolist()] for pairs in (old, new)]
    shared = set(names[0]) & set(names[1])
    return [pairs[[name in shared for name in of]] for pairs, of in zip((old, new), names, strict=True)]


def _ordered(goodness: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """(P,) 1 where the first of a pair is the better one, 1/2 where both are equal, else 0."""
    first, second = goodness[pairs[:, 0]], goodness[pairs[:, 1]]
    return np.where(first == second, 0.5, first > second)


def _mean(shares: np.ndarray) -> float | None:
    return float(shares.mean()) if len(shares) else None


def _median(ratios: np.ndarray, seed: int) -> Interval:
    if not len(ratios):
        return Interval(float("nan"), float("nan"), float("nan"))
    drawn = np.random.default_rng(seed).integers(0, len(ratios), (DRAWS, len(ratios)))
    return Interval(float(np.median(ratios)), *np.percentile(np.median(ratios[drawn], axis=1), [2.5, 97.5]).tolist())


def _share_over_tasks(kept: np.ndarray, tasks: np.ndarray, seed: int) -> Interval:
    """The mean of ``kept`` and its 95 % interval over tasks drawn with replacement."""
    if not len(kept):
        return Interval(float("nan"), float("nan"), float("nan"))
    names, group = np.unique(tasks, return_inverse=True)
    kept_of, count_of = np.bincount(group, kept), np.bincount(group)
    drawn = np.random.default_rng(seed).integers(0, len(names), (DRAWS, len(names)))
    shares = kept_of[drawn].sum(axis=1) / count_of[drawn].sum(axis=1)
    return Interval(float(kept.mean()), *np.percentile(shares, [2.5, 97.5]).tolist())

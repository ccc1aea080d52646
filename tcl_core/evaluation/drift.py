"""Drift detection: whether a machine still orders programs as it did before, judged by measuring a few again.

A model ranks programs of one task, so only a changed order within a task makes it wrong.  A factor common to all programs
(a neighbour, a lower clock) is reported, but is no drift.  Noise swaps programs of nearly equal speed, so only *clear*
pairs count: those whose latencies differ by at least a given factor.

Arrays are aligned on N programs: latencies in seconds, inf where a program failed, NaN where the machine was disturbed by
others; tasks (N,) int.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tcl_core.evaluation.intervals import Interval

DRAWS = 1000
SAME = 0.05  # a common factor that differs from 1 by no more than this is not reported
SAMPLE = 8  # fewest clear pairs for a verdict
SWAPPED = 3  # fewest swapped clear pairs that count as a changed order: one of eight would already be over a tenth
DRIFTED, SAME_ORDER, UNDECIDED = "drift", "no drift", "undecided"


@dataclass(frozen=True)
class Comparison:
    """Comparison of a repeated measurement with the old one.

    programs   number that ran before and were not disturbed now
    disturbed  number disturbed now
    failed     number of ``programs`` that fail now
    ratio      median of new / old latency, with its 95 % interval over programs
    spread     10th and 90th percentile of the ratios
    pairs      number of clear pairs in the old measurement
    agreement  share of these in the same order now, with its 95 % interval over tasks
    both       number of pairs that are clear in both measurements
    then, now  share of these that the champion orders right by the old and by the new measurement; None without a champion
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
        """Drop in the champion's share; 0 if unknown."""
        return 0.0 if self.then is None or self.now is None else self.then - self.now


def compare(
    old_s: np.ndarray, new_s: np.ndarray, tasks: np.ndarray, clear: float, champion: np.ndarray | None = None, seed: int = 0
) -> Comparison:
    """Compare old and new latencies of programs that ran before (``old_s`` must be finite).

    clear     least factor between the latencies of a clear pair
    champion  (N,) the champion's predictions, higher is better
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
        # Use the same pairs for both shares: a pair that just crossed the threshold says nothing about the champion.
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
    """Verdict (``DRIFTED``, ``SAME_ORDER`` or ``UNDECIDED``) and the sentence that explains it.

    least_agreement  share of clear pairs that must keep their order
    most_fall        largest allowed drop in the champion's share
    """
    if found.pairs < SAMPLE:
        return UNDECIDED, f"only {found.pairs} clear pairs of programs could be compared{_disturbed(found)}"
    other_order = found.agreement.value < least_agreement
    few = found.pairs * (1 - found.agreement.value) < SWAPPED - 0.25  # ties count one half
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
    """(P, 2) row numbers of clear pairs within a task, the faster program first."""
    faster = (seconds[:, None] * clear <= seconds[None, :]) & np.isfinite(seconds)[:, None]
    return np.argwhere(faster & (tasks[:, None] == tasks[None, :]))


def _in_both(old: np.ndarray, new: np.ndarray) -> list[np.ndarray]:
    """``old`` and ``new``, each reduced to pairs that are in both, in either order."""
    names = [[frozenset(pair) for pair in pairs.tolist()] for pairs in (old, new)]
    shared = set(names[0]) & set(names[1])
    return [pairs[[name in shared for name in of]] for pairs, of in zip((old, new), names, strict=True)]


def _ordered(goodness: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """(P,) 1 where a pair's first program has the higher ``goodness``, 1/2 for ties, else 0."""
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
    """Mean of ``kept`` with its 95 % bootstrap interval over tasks."""
    if not len(kept):
        return Interval(float("nan"), float("nan"), float("nan"))
    names, group = np.unique(tasks, return_inverse=True)
    kept_of, count_of = np.bincount(group, kept), np.bincount(group)
    drawn = np.random.default_rng(seed).integers(0, len(names), (DRAWS, len(names)))
    shares = kept_of[drawn].sum(axis=1) / count_of[drawn].sum(axis=1)
    return Interval(float(kept.mean()), *np.percentile(shares, [2.5, 97.5]).tolist())

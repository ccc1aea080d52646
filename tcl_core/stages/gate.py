"""The promotion gate: whether a model may take the champion's place, judged on held-out programs that both rank.

Three figures, each of both models on the same programs, paired over tasks:

    pairs   share of program pairs ranked right             each task counts the same, and all of its programs count
    U16     top-1 over subsets of sixteen programs          each task counts the same; it judges the choice that a search makes
                                                            (plain top-1 for tasks with fewer programs)
    top-1   fastest / chosen latency, weighted by time      what a compiler gets, but a few heavy tasks decide it

A candidate passes when pairs and U16 are both higher, when the two together are better with ``promote.confidence``, and when top-1
is not worse beyond its interval.  Together: each figure's differences, divided by their root mean square, are added task by task, and
one test says how sure it is that the sum is not chance.  Top-1 alone cannot decide: its interval for one model spans .4 to .9, so chance
would choose.  Nor can pairs alone: they can be won among slow programs, which no search asks for.  Two dozen tasks are too few to be sure
of each figure by itself: five in six candidates that are better in both would be kept back (``bench/gate.py``).  Knows no registry
and no file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tcl_core.errors import DataError
from tcl_core.evaluation.intervals import PairedComparison, flipped_signs, paired_bootstrap
from tcl_core.evaluation.metrics import Networks, subset_top_1, task_pairs
from tcl_core.features.batches import Samples
from tcl_core.params import Promote


ByTask = Mapping[int, float]


@dataclass(frozen=True)
class Verdict:
    """``better``: the candidate passes;  ``reason``: one sentence with all figures;  ``comparisons``: figure -> both models' values.

    decided  there were tasks enough to compare on
    """

    better: bool
    reason: str
    comparisons: Mapping[str, PairedComparison]
    decided: bool = True

    def figures(self) -> dict[str, Any]:
        """The comparisons as plain numbers, for JSON."""
        return {name: asdict(comparison) for name, comparison in self.comparisons.items()}


def judge(
    rival: np.ndarray,
    candidate: np.ndarray,
    samples: Samples,
    networks: Networks,
    settings: Promote,
    against: str,
    first: bool,
    draws: int,
    seed: int = 0,
) -> Verdict:
    """Judge a candidate by its and its rival's predictions (N,) for the same held-out programs.

    against  the rival's name in the reason;  first: there is no champion yet, the rival is a random ranking
    draws    resamples of the tasks behind each interval

    Raises DataError for predictions that are not numbers, and where there is nothing to rank.
    """
    records = samples.latencies_s, samples.tasks
    top_1 = paired_bootstrap(rival, candidate, *records, networks, 1, draws, seed)
    pairs = [task_pairs(predictions, *records) for predictions in (rival, candidate)]
    if not pairs[0]:
        raise DataError("no held-out task has two programs of different latencies, so there is nothing to rank; hold out more programs")
    chosen = [subset_top_1(predictions, *records) for predictions in (rival, candidate)]
    comparisons = {"pairs": flipped_signs(*pairs, draws, seed), "u16": flipped_signs(*chosen, draws, seed), "top_1": top_1}  # type: ignore[call-arg]
    confidence = together(pairs, chosen, seed)
    needed, least = (settings.first_confidence, 1) if first else (settings.confidence, settings.min_tasks)
    told = f"{_told(comparisons, confidence)}, against {against} on {len(samples)} held-out programs of {len(pairs[0])} tasks"
    if len(pairs[0]) < least:
        return Verdict(
            False,
            f"too few tasks to decide: {len(pairs[0])} held-out tasks have programs that differ, and {least} are needed "
            f"(promote.min_tasks); hold out more tasks or networks; {told}",
            comparisons,
            decided=False,
        )
    higher = all(comparisons[figure].candidate > comparisons[figure].champion for figure in ("pairs", "u16"))
    lost = top_1.high < 0
    why = f"both must be higher, with confidence {needed:g} together" + (", and top-1 is lost beyond its interval" if lost else "")
    return Verdict(higher and confidence >= needed and not lost, f"{told}; {why}", comparisons)


def together(pairs: Sequence[ByTask], chosen: Sequence[ByTask], seed: int = 0) -> float:
    """Confidence, from 0 to 1, that the candidate is better in both figures taken together.

    ``pairs`` and ``chosen`` are the rival's and the candidate's values of a figure by task.  Each figure's differences, divided by
    their root mean square over the tasks, are added task by task.  The confidence is the probability of ``flipped_signs``, which is
    exact: of two equally good models one in twenty reaches .95.
    """
    added: dict[int, float] = dict.fromkeys(pairs[0], 0.0)
    for rival, candidate in (pairs, chosen):
        size = math.sqrt(sum((candidate[task] - rival[task]) ** 2 for task in added) / len(added))
        for task in added:
            added[task] += (candidate[task] - rival[task]) / size if size else 0.0
    return flipped_signs(dict.fromkeys(added, 0.0), added, 1, seed).probability


def _told(comparisons: Mapping[str, PairedComparison], confidence: float) -> str:
    """``pairs 0.731 to 0.702, U16 0.801 to 0.760 (confidence together 0.981), top-1 ...``: the candidate's figures to its rival's."""
    pairs, u16, top_1 = (f"{c.candidate:.3f} to {c.champion:.3f}" for c in (comparisons[name] for name in ("pairs", "u16", "top_1")))
    interval = f"{comparisons['top_1'].low:+.3f} to {comparisons['top_1'].high:+.3f}"
    return f"pairs {pairs}, U16 {u16} (confidence together {confidence:.3f}), top-1 {top_1} (difference {interval})"

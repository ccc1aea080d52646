"""The promotion gate: whether a model may take the champion's place, judged on held-out programs that both rank.

Three figures, each of both models on the same programs, paired over tasks:

    pairs   share of pairs of programs ranked right         every task one vote, every program its say
    U16     top-1 over subsets of sixteen programs          likewise, but of the choice that a search makes (of tasks with
                                                            fewer programs their top-1, each task one vote)
    top-1   fastest / chosen latency, weighted by time      what a compiler gets, but a few heavy tasks decide it

A candidate passes when it is better in pairs and in U16, each with ``promote.confidence``, and does not lose top-1 beyond its
interval.  Top-1 alone is no gate: of one model its interval spans .4 to .9, so chance would choose.  Pairs alone are none
either: they can be won among slow programs, which no search asks for.  That both must hold needs no correction for looking
twice: whoever is not better passes with at most 1 - confidence (an intersection-union test), and as a guard top-1 only ever
refuses.  Knows no registry and no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tcl_core.errors import DataError
from tcl_core.evaluation.intervals import PairedComparison, flipped_signs, paired_bootstrap
from tcl_core.evaluation.metrics import Networks, subset_top_1, task_pairs
from tcl_core.features.batches import Samples
from tcl_core.params import Promote


@dataclass(frozen=True)
class Verdict:
    """``better``: the candidate passes;  ``reason``: one sentence with all figures;  ``comparisons``: figure -> both models' values."""

    better: bool
    reason: str
    comparisons: Mapping[str, PairedComparison]

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
    """Two models' predictions (N,) of the same held-out programs.

    against  what the rival is called in the reason;  first: there is no champion yet, the rival is a random ranking
    draws    resamples of the tasks behind each interval

    Raises DataError for predictions that are not numbers, and where nothing is there to rank.
    """
    records = samples.latencies_s, samples.tasks
    top_1 = paired_bootstrap(rival, candidate, *records, networks, 1, draws, seed)
    pairs = [task_pairs(predictions, *records) for predictions in (rival, candidate)]
    if not pairs[0]:
        raise DataError("no held-out task has two programs of different latencies, so there is nothing to rank; hold out more programs")
    chosen = [subset_top_1(predictions, *records) for predictions in (rival, candidate)]
    comparisons = {"pairs": flipped_signs(*pairs, draws, seed), "u16": flipped_signs(*chosen, draws, seed), "top_1": top_1}  # type: ignore[call-arg]
    needed, least = (settings.first_confidence, 1) if first else (settings.confidence, settings.min_tasks)
    told = f"{_told(comparisons)}, against {against} on {len(samples)} held-out programs of {len(pairs[0])} tasks"
    if len(pairs[0]) < least:
        return Verdict(
            False,
            f"too few tasks to decide: {len(pairs[0])} held-out tasks have programs that differ, and {least} are needed "
            f"(promote.min_tasks); hold out more tasks or networks; {told}",
            comparisons,
        )
    surer = all(
        comparisons[figure].probability >= needed and comparisons[figure].candidate > comparisons[figure].champion
        for figure in ("pairs", "u16")
    )
    lost = top_1.high < 0
    why = f"confidence {needed:g} needed of pairs and U16" + (", and top-1 is lost beyond its interval" if lost else "")
    return Verdict(surer and not lost, f"{told}; {why}", comparisons)


def _told(comparisons: Mapping[str, PairedComparison]) -> str:
    """``pairs 0.731 to 0.702 (confidence 0.981), ...``: the candidate's figures to its rival's."""
    pairs, u16, top_1 = (comparisons[name] for name in ("pairs", "u16", "top_1"))
    sure = [
        f"{name} {d.candidate:.3f} to {d.champion:.3f} (confidence {d.probability:.3f})" for name, d in (("pairs", pairs), ("U16", u16))
    ]
    return f"{', '.join(sure)}, top-1 {top_1.candidate:.3f} to {top_1.champion:.3f} (difference {top_1.low:+.3f} to {top_1.high:+.3f})"

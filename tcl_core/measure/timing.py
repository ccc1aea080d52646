"""When to stop timing a program.  Pure policy over a clock, which knows how the program is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol as Interface

from tcl_core.measure.job import Protocol
from tcl_core.records import spread

# A single run is timed from Python, whose call takes about a microsecond: nothing tells it from the fastest programs.
CALL_S = 2e-6


class Clock(Interface):
    """One program, ready to run; ``between_s`` seconds pass before each run."""

    between_s: float

    def once(self) -> float:
        """Seconds of one run."""

    def means(self, number: int, count: int) -> list[float]:
        """``count`` times the mean seconds of ``number`` runs in a row."""


def time_program(clock: Clock, protocol: Protocol, best_s: float = math.inf) -> list[float]:
    """Mean seconds of each repeat: fewer of a slow program, a single run of one far behind its task's best.

    best_s  the fastest latency of the task so far
    """
    for _ in range(max(1, protocol.warmup)):
        warm_s = clock.once()
    once_s = clock.once()
    # One slow run may be bad luck, two are not.
    hopeless = min(warm_s, once_s) > protocol.early_stop_factor * max(best_s, CALL_S)
    if hopeless or once_s > protocol.enough_s:
        return [once_s]
    number = runs_per_repeat(once_s + clock.between_s, protocol)
    at_once = number * once_s * protocol.repeats <= protocol.enough_s
    repeats = [once_s] if number == 1 else []
    while _more_is_worth_it(repeats, number, protocol):
        repeats += clock.means(number, max(1, protocol.repeats - len(repeats)) if at_once else 1)
    return repeats


def _more_is_worth_it(repeats: Sequence[float], number: int, protocol: Protocol) -> bool:
    if number * sum(repeats) >= protocol.enough_s:
        return False
    if len(repeats) < protocol.repeats:
        return True
    return len(repeats) < protocol.max_repeats and spread(repeats) > protocol.max_spread


def runs_per_repeat(once_s: float, protocol: Protocol) -> int:
    """Runs that last ``min_repeat_ms`` together, at most ``max_number``; one where each costs a flush."""
    if protocol.flush_cache:
        return 1
    wanted = protocol.min_repeat_ms / 1e3 / max(once_s, 1e-7)
    return int(min(max(1, math.ceil(wanted)), protocol.max_number))

"""When to stop timing a program.  Pure policy over a clock, which knows how the program is run.

A program's repeats are not consecutive: between two of them the other programs of its batch take one (``runner``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol as Interface

from tcl_core.measure.job import Protocol
from tcl_core.records import spread

# Seconds up to which a single run's time may be overhead.  It is timed from Python, whose call takes about a microsecond, as long
# as the fastest programs.  On a GPU the launch and the wait add tens of microseconds, which runs in a loop do not show.
CALL_S, LAUNCH_S = 2e-6, 1e-4


class Clock(Interface):
    """One program, ready to run.

    between_s  untimed seconds before each run (evicting caches)
    call_s     upper bound of the call overhead that a single run's time includes, seconds
    """

    between_s: float
    call_s: float

    def once(self) -> float:
        """Seconds of one run."""

    def mean(self, number: int) -> float:
        """Mean seconds of ``number`` runs in a row."""


def time_repeat(clock: Clock, protocol: Protocol, best_s: float = math.inf) -> float:
    """Mean seconds of one repeat's runs; a single run if the program is slow or far behind its task's best.

    best_s  the fastest latency of the task so far
    """
    for _ in range(max(1, protocol.warmup)):
        warm_s = clock.once()
    once_s = clock.once()
    # One slow run may be bad luck, two are not.
    if _is_far_behind(min(warm_s, once_s), protocol, max(best_s, clock.call_s)) or once_s > protocol.enough_s:
        return once_s
    number = runs_per_repeat(once_s + clock.between_s, protocol)
    return once_s if number == 1 else clock.mean(number)


def is_worth_repeating(repeats: Sequence[float], protocol: Protocol, best_s: float = math.inf) -> bool:
    """Whether a program with these repeats needs another."""
    lasted_s = sum(mean_s * runs_per_repeat(mean_s, protocol) for mean_s in repeats)
    if lasted_s >= protocol.enough_s or _is_far_behind(min(repeats), protocol, best_s):
        return False
    if len(repeats) < protocol.repeats:
        return True
    return len(repeats) < protocol.max_repeats and spread(repeats) > protocol.max_spread


def _is_far_behind(seconds: float, protocol: Protocol, best_s: float) -> bool:
    return seconds > protocol.early_stop_factor * max(best_s, CALL_S)


def runs_per_repeat(once_s: float, protocol: Protocol) -> int:
    """Number of runs that together last ``min_repeat_ms``, at most ``max_number``; 1 if each needs a cache flush."""
    if protocol.flush_cache:
        return 1
    wanted = protocol.min_repeat_ms / 1e3 / max(once_s, 1e-7)
    return int(min(max(1, math.ceil(wanted)), protocol.max_number))

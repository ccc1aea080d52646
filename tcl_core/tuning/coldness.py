"""Decides which programs of a network are timed with cold weights, those in no cache.

Timed in a loop of its own, a program finds its weights where its last run left them.  In a network its next run comes milliseconds
later: all other weights have been read since, and others on the machine have used the shared caches.  The fastest program with warm
weights need not be the fastest with cold ones (docs/experiments.md).  So programs with large weights are timed with cold ones, unless
all weights of the network fit the cores' private caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tcl_core.programs.weights import weight_bytes

TIMED = "large weights cold, and nothing else"  # tells a database of programs timed so from one timed otherwise


def is_cold(uses: Sequence[tuple[Any, float]], own_bytes: float) -> bool:
    """Whether a network's weights exceed the ``own_bytes`` of private caches; ``uses`` are its tasks, with the runs of each."""
    return sum(times * weight_bytes(module) for module, times in uses) > own_bytes


def own_cache_bytes(host: Mapping[str, float]) -> float:
    """Bytes of second-level cache of the cores that the threads run on, from ``platforms.host_fields``; 0 if the machine does not tell.

    Two threads of one core share its cache.
    """
    return min(host["cores"] or host["threads"], host["threads"]) * host["l2_kib"] * 1024

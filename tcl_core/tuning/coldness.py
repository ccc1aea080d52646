"""Decides which programs of a network are timed with cold weights, those in no cache.

Timed in a loop of its own, a program finds its weights where its last run left them.  In a network its next run comes milliseconds
later: all other weights have been read since, and others on the machine have used the shared caches.  The fastest program with warm
weights need not be the fastest with cold ones (docs/experiments.md).  So programs with large weights are timed with cold ones, unless
all weights of the network fit the cores' private caches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tcl_core.programs.graph import FREE
from tcl_core.programs.tasks import argument_types

TIMED = "large weights cold"  # tells a database of programs timed so from one timed otherwise
LARGE = 1 << 16  # bytes of weights; reading fewer from memory takes only some microseconds


def weight_bytes(module: Any) -> int:
    """Bytes of the arguments that the graph says may be packed, without argument 0, which cold timing does not evict.

    0 for a graph that is not packed: it names none.
    """
    types = argument_types(module)
    places = [int(place) for place in (module["main"].attrs or {}).get(FREE) or () if int(place)]
    return sum(math.prod(types[place][0]) * np.dtype(types[place][1]).itemsize for place in places)


def is_large(module: Any) -> bool:
    """Whether a task has ``LARGE`` bytes of weights or more, worth timing cold."""
    return weight_bytes(module) >= LARGE


def is_cold(uses: Sequence[tuple[Any, float]], own_bytes: float) -> bool:
    """Whether a network's weights exceed the ``own_bytes`` of private caches; ``uses`` are its tasks, with the runs of each."""
    return sum(times * weight_bytes(module) for module, times in uses) > own_bytes


def own_cache_bytes(host: Mapping[str, float]) -> float:
    """Bytes of second-level cache of the cores that the threads run on, from ``platforms.host_fields``; 0 if the machine does not tell.

    Two threads of one core share its cache.
    """
    return min(host["cores"] or host["threads"], host["threads"]) * host["l2_kib"] * 1024

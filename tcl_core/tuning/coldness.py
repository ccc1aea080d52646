"""Which programs of a network find their weights in no cache when their turn comes.

Timed in a loop of its own, a program finds its weights where its last run left them.  In a network it comes milliseconds later: all
other weights were read since, and whoever shares a cache of the machine has used it.  What is fastest with warm weights need not be with
cold ones (docs/experiments.md); so programs with large weights are timed with cold ones, unless the weights of the whole network fit what
the cores have to themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tcl_core.programs.graph import FREE
from tcl_core.programs.tasks import argument_types

TIMED = "large weights cold"  # what a database of programs timed otherwise is told apart by
LARGE = 1 << 16  # bytes of weights; to read fewer from memory takes some microseconds


def weight_bytes(module: Any) -> int:
    """Bytes of those arguments that the graph says may be packed, but the first: a clock leaves that one where it is.

    A graph that is not packed names none.
    """
    types = argument_types(module)
    places = [int(place) for place in (module["main"].attrs or {}).get(FREE) or () if int(place)]
    return sum(math.prod(types[place][0]) * np.dtype(types[place][1]).itemsize for place in places)


def is_large(module: Any) -> bool:
    """Whether a task's weights are worth the trouble."""
    return weight_bytes(module) >= LARGE


def is_cold(uses: Sequence[tuple[Any, float]], own_bytes: float) -> bool:
    """Whether a network, of tasks and how often each is run, has more weights than the ``own_bytes`` of caches that no other core uses."""
    return sum(times * weight_bytes(module) for module, times in uses) > own_bytes


def own_cache_bytes(host: Mapping[str, float]) -> float:
    """Second-level caches of the cores that the threads run on, from ``platforms.host_fields``; 0 where the machine does not tell.

    Two threads of one core share its cache.
    """
    return min(host["cores"] or host["threads"], host["threads"]) * host["l2_kib"] * 1024

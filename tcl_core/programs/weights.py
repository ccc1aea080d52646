"""Tells the tasks with so large weights that it matters whether these lie in a cache."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from tcl_core.compat import load_module
from tcl_core.programs.graph import FREE
from tcl_core.programs.tasks import argument_types

LARGE = 1 << 16  # bytes of weights; reading fewer from memory takes only some microseconds


def weight_places(module: Any) -> list[int]:
    """Numbers of the arguments that the graph says may be packed, without argument 0; none for a graph that is not packed."""
    return [int(place) for place in (module["main"].attrs or {}).get(FREE) or () if int(place)]


def weight_bytes(module: Any) -> int:
    """Bytes of the arguments at ``weight_places``."""
    types = argument_types(module)
    return sum(math.prod(types[place][0]) * np.dtype(types[place][1]).itemsize for place in weight_places(module))


def is_large(module: Any) -> bool:
    """Whether a task has ``LARGE`` bytes of weights or more, worth timing cold."""
    return weight_bytes(module) >= LARGE


@cache
def is_large_json(module_json: str) -> bool:
    """``is_large`` of a task's module as TVM's JSON."""
    return is_large(load_module(module_json))

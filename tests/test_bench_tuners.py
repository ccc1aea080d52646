"""What a comparison keeps of a stock tuner: the network's time while it measures."""

from __future__ import annotations

import math

from _tuners import _Curve

FAILED = math.inf


def told(*rounds: tuple[int, list[float]]):
    curve = _Curve(weights=[2.0, 1.0, 5.0], began=0.0)
    for task, seconds in rounds:
        curve.told(task, seconds)
    return curve.spent()


def test_a_task_that_never_ran_leaves_the_networks_time_known():
    """TVM's own program takes its place: 2 * 3 s + 4 s when both others have one, then 2 * 1 s + 4 s."""
    spent = told((0, [3.0, FAILED]), (2, [FAILED]), (1, [4.0]), (2, [FAILED]), (0, [1.0]), (1, []))
    assert [(measured, ms) for measured, _, ms in spent.curve] == [(4, 10_000.0), (6, 6_000.0)] and spent.failed == 3


def test_where_nothing_ran_nothing_is_known():
    assert told((0, [FAILED]), (1, [FAILED, FAILED])).curve == []

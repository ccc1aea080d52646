"""What the comparison of measuring says of two measurements, on latencies that are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from collect import COMPARABLE_S, Measured, agreement, agreement_table, refuse_failures

TASKS = np.array([0, 0, 0, 1, 1])


def measured(*latencies_s):
    return [Measured(1.0, np.array(latencies_s), {})]


def test_two_measurements_agree_as_far_as_programs_are_comparable():
    ours = measured(1e-3, 2e-3, 4e-3, COMPARABLE_S / 2, 1e-3)
    found = agreement(ours, measured(1e-3, 1e-3, 2e-3, 1e-3, math.inf), TASKS)
    assert found["programs"] == 3 and found["median_ratio"] == pytest.approx(2.0)


def test_where_one_of_them_failed_throughout_nothing_is_claimed():
    found = agreement(measured(*[1e-3] * 5), measured(*[math.inf] * 5), TASKS)
    assert found.pop("programs") == 0 and all(math.isnan(x) for x in found.values())
    assert "| a / b | 0 | nan |" in agreement_table({"a / b": {"programs": 0, **found}})


def test_a_rate_at_which_programs_fail_is_not_compared():
    refuse_failures(measured(1e-3, math.inf) + measured(1e-3, 1e-3))
    with pytest.raises(SystemExit, match="TVM measured 1 of 4 programs, each within 120 s: nothing is compared"):
        refuse_failures(measured(1e-3, math.inf) + measured(math.inf, math.inf))

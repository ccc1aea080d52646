"""What one measurement is, and what can be none."""

from __future__ import annotations

from datetime import datetime

import pytest

from tcl_core.records import spread
from tests.made_up_records import FAILED, record


def test_latency_is_the_median_and_inf_for_a_failed_program():
    assert record(1).latency_s == 0.5
    assert record(1, **FAILED).latency_s == float("inf")
    assert record(4).key == ("task-a", 1, (4, 2, 4))


@pytest.mark.parametrize(
    "changes",
    [dict(error="oops"), dict(error="ok", latencies_s=()), dict(error="run"), dict(latencies_s=(0.0,)),
     dict(latencies_s=(float("nan"),)), dict(measured_at=datetime(2026, 1, 1))],
)  # fmt: skip
def test_an_impossible_record_cannot_be_made(changes):
    with pytest.raises(ValueError, match="task-a"):
        record(1, **changes)


def test_the_spread_is_that_of_the_middle_half():
    assert spread([2.0]) == 0.0 == record(1, **FAILED).spread
    assert spread([1.0, 2.0, 3.0, 4.0, 100.0]) == pytest.approx((4.0 - 2.0) / 3.0)  # one that was disturbed does not count
    assert record(1, latencies_s=(1.0, 2.0, 3.0)).spread == spread([1.0, 2.0, 3.0])

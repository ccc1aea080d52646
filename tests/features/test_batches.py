"""Samples: what is picked and put together stays aligned, and says what it holds."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from tcl_core.features.batches import Samples, concatenate, slowest_where_failed


def samples(first: int, count: int, rows: int, **more) -> Samples:
    """``count`` programs of ``rows`` rows of one number, which is ``first`` and those after it."""
    features = np.repeat(np.arange(first, first + count, dtype=np.float32), rows).reshape(count, rows, 1)
    numbers = np.arange(count, dtype=np.int32)
    return Samples(features, np.full(count, rows, np.int32), numbers, 1.0 + numbers, ("a", "b"), **more)


def test_a_pick_keeps_names_and_what_the_rows_are():
    states = np.array([None, "walk", None], dtype=object)
    found = samples(0, 3, 2, states=states, holds="per-store features").take(np.array([2, 1]))
    assert found.features[:, 0, 0].tolist() == [2, 1] and found.tasks.tolist() == [2, 1]
    assert found.latencies_s.tolist() == [3.0, 2.0] and found.states.tolist() == [None, "walk"]
    assert (found.task_names, found.holds) == (("a", "b"), "per-store features")
    assert samples(0, 3, 2).take(np.array([True, False, False])).states is None


def test_parts_are_padded_to_the_longest():
    both = concatenate([samples(1, 2, 1), samples(5, 1, 3)])
    assert both.features[..., 0].tolist() == [[1, 0, 0], [2, 0, 0], [5, 5, 5]] and both.lengths.tolist() == [1, 1, 3]
    assert both.holds == "tokens" and both.states is None
    assert concatenate([samples(0, 1, 1, holds="per-store features")] * 2).holds == "per-store features"


@pytest.mark.parametrize("rows", [(8, 8), (8, 5)])
def test_putting_together_holds_the_rows_once_beside_the_parts(rows):
    """They are by far the largest array: copies of it decide how much data can be learned."""
    parts = [samples(0, 50_000, count) for count in rows]
    tracemalloc.start()
    try:
        both = concatenate(parts)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    others = sum(array.nbytes for array in (both.lengths, both.tasks, both.latencies_s))
    assert both.features.nbytes == 100_000 * 8 * 4 and peak < both.features.nbytes + others + 2**18


def test_rows_of_two_kinds_or_widths_are_not_put_together():
    with pytest.raises(ValueError, match="^samples of per-store features and of tokens cannot be put together$"):
        concatenate([samples(0, 1, 1), replace(samples(0, 1, 1), holds="per-store features")])
    with pytest.raises(ValueError):
        concatenate([samples(0, 1, 1), replace(samples(0, 1, 1), features=np.zeros((1, 1, 2), np.float32))])


def test_a_failed_program_is_told_as_its_tasks_slowest():
    """To a regression a program without a label is unknown, and its like would be ranked as if nothing had failed."""
    tasks = np.array([0, 0, 0, 1, 1], dtype=np.int32)
    found = slowest_where_failed(np.array([1.0, np.inf, 3.0, np.inf, np.inf]), tasks)
    assert found.tolist() == [1.0, 3.0, 3.0, np.inf, np.inf]
    assert slowest_where_failed(found, tasks).tolist() == found.tolist()
    assert np.isnan(slowest_where_failed(np.array([1.0, np.nan]), tasks[:2])[1])  # no failure: an error, for others to name

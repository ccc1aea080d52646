"""When an output counts as that of the reference."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tcl_core.outputs import difference, of_array


def of(found, expected, **given):
    return of_array(np.array(found), np.array(expected), **given)


def test_differences_by_hand():
    assert of([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]) == of([], []) == 0.0
    assert of([1.0, 2.0], [1.0, 4.0]) == 0.5  # of the largest magnitude, not of each
    assert of([1e-6, 4.0], [0.0, 4.0]) == pytest.approx(2.5e-7)
    assert of([-4.0], [4.0]) == 2.0
    assert of([1.0], [1.0, 4.0]) == math.inf


def test_what_is_not_finite_must_be_the_same():
    assert of([1.0, np.nan], [1.0, 4.0]) == of([1.0, 4.0], [1.0, np.nan]) == math.inf
    assert of([1.0, -np.inf], [1.0, -np.inf]) == 0.0 and of([1.0, -np.inf], [1.0, np.inf]) == math.inf  # a mask is an output too
    assert of([1.0, np.nan], [1.0, np.nan]) == math.inf and of([1.0, np.nan], [1.0, np.nan], equal_nan=True) == 0.0
    assert of([1.0, np.nan], [1.0, np.inf], equal_nan=True) == of([1.0, np.inf], [1.0, np.nan], equal_nan=True) == math.inf


@pytest.mark.parametrize("fill", [-1e4, -9998.0, -10003.201, -1e9, float(np.finfo(np.float32).min)])
def test_nothing_is_right_beside_a_fill_value_because_of_it(fill):
    assert of([0.0, 5.0, fill, fill], [5.0, 5.0, fill, fill]) == 1.0
    assert of([5.0, 5.0, fill * 1.00001, fill], [5.0, 5.0, fill, fill]) == pytest.approx(1e-5)  # logits that are masked by a sum
    assert of([5.0, fill, 0.0], [5.0, fill, fill]) == 1.0  # one that is not filled
    assert of([fill * 0.9, fill], [fill, fill]) == pytest.approx(0.1)


def test_large_outputs_are_no_fill_values():
    """Rounding of sums as large as the largest shows in all of them."""
    assert of([1e5, 600.3, 2.0], [1e5, 600.0, 2.5]) == pytest.approx(5e-6)


def test_integers_and_truths_are_equal_or_not():
    assert of([31_970, 5, 7, 9], [31_999, 5, 7, 9]) == 0.25
    assert of([True, False], [True, True]) == 0.5


def test_the_largest_difference_of_all_outputs_counts():
    ones, off = np.ones(3), np.array([1.0, 1.0, 1.5])
    assert difference([ones, off], [ones, ones]) == 0.5
    assert difference([ones, ones], [ones]) == difference([ones], [ones, ones]) == math.inf

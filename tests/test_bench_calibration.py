"""Figures of certainty on scores whose certainty is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from _calibration import area, calibration, certainty, ece, pairs


def problem(noise: float, seed: int = 0, tasks: int = 40, programs: int = 30):
    """True scores, latencies that follow from them, and scores with noise on top."""
    draw = np.random.default_rng(seed)
    truth = draw.normal(size=tasks * programs)
    groups = np.repeat(np.arange(tasks, dtype=np.int32), programs)
    return truth + noise * draw.normal(size=len(truth)), np.exp(-truth), groups


def test_pairs_are_of_one_task_and_differ():
    left, right = pairs(np.array([1.0, 1.0, 2.0, 5.0]), np.array([0, 0, 0, 1], np.int32))
    assert sorted(zip(left.tolist(), right.tolist(), strict=True)) == [(0, 2), (1, 2)]


def test_calibration_error_by_hand():
    """Four pairs at certainty 0.9, three of them right; four at 0.5, two of them right."""
    sure = np.array([0.9] * 4 + [0.5] * 4)
    right = np.array([True] * 3 + [False] + [True, True, False, False])
    assert ece(sure, right) == pytest.approx(0.5 * abs(0.9 - 0.75))
    assert area(sure, right) == pytest.approx((3 * 2 + 0.5 * (3 * 1 + 2 * 2)) / (5 * 3))


def test_area_of_perfect_and_of_no_knowledge():
    right = np.array([False, False, True, True])
    assert area(np.array([0.5, 0.6, 0.8, 0.9]), right) == 1.0
    assert area(np.array([0.9, 0.8, 0.6, 0.5]), right) == 0.0


def test_an_ensembles_certainty_is_the_mean_of_its_members():
    assert certainty(np.array([[1.0], [-1.0]]), 2.0) == pytest.approx([0.5])
    assert certainty(np.array([[1.0]]), 2.0) == pytest.approx([1 / (1 + math.exp(-2))])


def test_honest_scores_are_calibrated_and_more_noise_says_less():
    clean, latencies_s, tasks = problem(0.3)
    noisy, *_ = problem(2.0)
    good, bad = (calibration([scores], latencies_s, tasks) for scores in (clean, noisy))
    assert good["ece"] < 0.03 and bad["ece"] < 0.03  # the steepness is fitted to each
    assert good["sharp"] > bad["sharp"] > 0.5 and good["error"] is None


def test_disagreement_tells_where_the_error_is():
    truth, latencies_s, tasks = problem(0.0)
    draw = np.random.default_rng(1)
    noise = np.where(draw.random(len(truth)) < 0.5, 0.05, 2.0)  # of each program
    members = [truth + noise * draw.normal(size=len(truth)) for _ in range(4)]
    assert calibration(members, latencies_s, tasks)["error"] > 0.3

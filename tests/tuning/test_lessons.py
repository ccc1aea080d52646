from __future__ import annotations

import numpy as np
import pytest

from tcl_core.tuning.lessons import ENOUGH, NOISE, PRIOR, SLOPE, Lessons

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_draws(monkeypatch):
    """Of every test, whichever ran before it."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(1))


def task(programs=8, slope=0.5, of_row=0.0):
    """Scores of variance 1, rows and gains: what the scores say times the slope, and what the first column says."""
    scores, rows = RNG.normal(size=programs), RNG.normal(size=(programs, 3)).astype(np.float32)
    return scores, rows, slope * scores + of_row * np.sign(rows[:, 0])


def test_with_nothing_told_a_score_is_worth_what_it_usually_is():
    scores, rows, _ = task()
    np.testing.assert_allclose(Lessons().gains(scores, rows), SLOPE * scores)


def test_the_slope_is_that_of_the_formula():
    lessons, (scores, rows, _) = Lessons(), task(3)
    lessons.tell(1, scores, rows, np.array([0.0, 2.0, 1.0]))
    centred = scores - scores.mean()
    slope = (centred @ np.array([-1.0, 1.0, 0.0]) / NOISE + SLOPE * PRIOR) / (centred @ centred / NOISE + PRIOR)
    np.testing.assert_allclose(lessons.gains(scores, rows), slope * scores)


def test_what_is_told_again_of_a_task_takes_the_place_of_what_was_told_before():
    once, twice, right, wrong = Lessons(), Lessons(), task(6), task(6, -3.0)
    once.tell(1, *right)
    twice.tell(1, *wrong)
    twice.gains(*wrong[:2])
    twice.tell(1, *right)
    np.testing.assert_array_equal(once.gains(*right[:2]), twice.gains(*right[:2]))


def test_a_single_record_says_nothing():
    lessons, (scores, rows, gains) = Lessons(), task(1)
    lessons.tell(1, scores, rows, gains)
    np.testing.assert_allclose(lessons.gains(scores, rows), SLOPE * scores)


@pytest.mark.parametrize("slope", [0.0, -0.5], ids=["no champion", "a champion that is wrong"])
def test_tasks_learn_from_each_other(slope):
    """What twelve tasks show, whatever their levels, orders the programs of the next; with too few records it does not."""
    lessons, (scores, rows, gains) = Lessons(), task(60, slope, of_row=1.0)
    champion = scores * (slope != 0)
    for number in range(ENOUGH // 8 - 1):
        told = task(8, slope, of_row=1.0)
        lessons.tell(number, told[0] * (slope != 0), told[1], told[2])
    few = lessons.gains(champion, rows)
    for number in range(2, 14):
        told = task(8, slope, of_row=1.0)
        lessons.tell(number, told[0] * (slope != 0), told[1], told[2] + 10.0 * number)
    assert np.corrcoef(lessons.gains(champion, rows), gains)[0, 1] > 0.85
    assert not few.any() or np.corrcoef(few, gains)[0, 1] < 0.7


def test_no_programs_have_no_gains():
    lessons = Lessons()
    lessons.tell(1, *task(40, of_row=1.0))
    assert lessons.gains(np.zeros(0), np.zeros((0, 3))).shape == (0,)

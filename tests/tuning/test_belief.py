from __future__ import annotations

import numpy as np
import pytest

from tcl_core.tuning.belief import (
    FAILED,
    FASTEST,
    OTHERS,
    Belief,
    Picker,
    Points,
    Scale,
    Views,
    gains_of,
    worth_learning,
)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))


@pytest.fixture(autouse=True)
def same_draws(monkeypatch):
    """Of every test, whichever ran before it."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(1))


def points_of(features, scores=None):
    return Points(np.zeros(len(features)) if scores is None else np.asarray(scores, float), np.asarray(features, float))


def test_without_records_the_champion_decides():
    scores = RNG.normal(size=60)
    mean, deviation = Belief(points_of(X[:0]), np.zeros(0)).of(points_of(X, scores))
    np.testing.assert_array_equal(mean, scores)
    assert (deviation > 1).all()


def test_records_take_over_from_a_champion_that_is_wrong():
    """Scores are the negative gains: after 40 records the order of the 20 others is that of the gains."""
    gains = X[:, 0] + np.sin(2 * X[:, 1])
    belief = Belief(points_of(X[:40], -gains[:40]), gains[:40])
    mean, _ = belief.of(points_of(X[40:], -gains[40:]))
    assert np.corrcoef(mean, gains[40:])[0, 1] > 0.8


def test_a_champion_that_is_right_is_left_alone():
    """Eight records that agree with it do not disturb the order of others."""
    gains = RNG.normal(size=60)
    mean, _ = Belief(points_of(X[:8], gains[:8]), gains[:8]).of(points_of(X[8:], gains[8:]))
    assert np.corrcoef(mean, gains[8:])[0, 1] > 0.99


def test_the_posterior_is_that_of_the_formula():
    """Against the textbook's matrices, at the hyperparameters that were chosen."""
    gains, scores = RNG.normal(size=10), RNG.normal(size=15)
    belief = Belief(points_of(X[:10], scores[:10]), gains)

    def kernel(a, b):
        distance = 3**0.5 * np.linalg.norm(X[a][:, None] - X[b][None], axis=2) / belief.length
        return belief.amplitude * (1 + distance) * np.exp(-distance) + 1 + 0.25 * np.outer(scores[a], scores[b])

    known, new = np.arange(10), np.arange(10, 15)
    weights = np.linalg.solve(kernel(known, known) + belief.noise * np.eye(10), kernel(known, new))
    mean, covariance = belief.joint(points_of(X[10:15], scores[10:]))
    np.testing.assert_allclose(mean, scores[10:] + weights.T @ (gains - scores[:10]))
    np.testing.assert_allclose(covariance, kernel(new, new) - kernel(new, known) @ weights, atol=1e-12)
    np.testing.assert_allclose(belief.of(points_of(X[10:15], scores[10:]))[1], np.sqrt(np.diag(covariance)))


def test_the_likeliest_noise_is_chosen():
    """Gains that features do not explain are noise; gains that they explain without rest are not."""
    noisy = Belief(points_of(X), RNG.normal(size=60))
    smooth = Belief(points_of(X), X[:, 0])
    assert noisy.noise > smooth.noise


def test_each_pick_counts_as_measured():
    """Of two equals and a slightly worse one elsewhere, the second pick is elsewhere; what is not allowed is not picked."""
    belief = Belief(points_of(np.zeros((1, 1))), np.zeros(1))
    picker = Picker(belief, points_of([[2.0], [2.0], [-2.0], [5.0]], [0.1, 0.1, 0.05, 9.0]), 1.0)
    allowed = np.array([True, True, True, False])
    found = []
    for _ in range(3):
        found.append(picker.best(allowed))
        picker.take(found[-1])
    assert found == [0, 2, 1] and picker.best(allowed) is None and picker.best(np.ones(4, bool)) == 3


def test_a_pick_counts_as_measured_with_the_noise_of_a_measurement():
    """So the same point keeps v n / (v + n) of its variance, and is not known for good."""
    belief = Belief(points_of(X), RNG.normal(size=60))
    picker = Picker(belief, points_of(X[:5]), 1.0)
    before = picker._covariance[2, 2]
    picker.take(2)
    assert belief.noise > 0 and picker._covariance[2, 2] == pytest.approx(before * belief.noise / (before + belief.noise))


def test_gains_by_hand():
    gains = gains_of([1.0, np.e, np.e**2, np.inf])
    np.testing.assert_allclose(gains, [1.0, 0.0, -1.0, -1.0 - FAILED])
    assert gains_of([np.inf, np.inf]).tolist() == [-FAILED, -FAILED]
    assert gains_of([]).shape == (0,)


@pytest.mark.parametrize(("count", "learned"), [(0, 0), (10, 10), (FASTEST + 5, FASTEST + 5), (5000, FASTEST + OTHERS)])
def test_the_fastest_and_a_choice_of_the_others_are_learned(count, learned):
    latencies_s = np.random.default_rng(1).permutation(count) + 1.0
    rows = worth_learning(latencies_s)
    assert len(rows) == learned == len(set(rows.tolist()))
    assert set(range(1, min(count, FASTEST) + 1)) <= set(latencies_s[rows].tolist())
    if count == 5000:
        assert max(latencies_s[rows]) > 4900


def test_points_of_a_sample_have_unit_scale():
    """Scores and each block alike; columns in which programs do not differ are left out."""
    block, wide = RNG.normal(size=(50, 3)) * 9 + 4, RNG.normal(size=(50, 40))
    views = Views(RNG.normal(size=50) * 7 - 3, (np.c_[block, np.ones(50)], wide))
    points = Scale(views)(views)
    assert points.features.shape == (50, 43)
    assert points.scores.mean() == pytest.approx(0, abs=1e-9) and points.scores.std() == pytest.approx(1)
    for part in (points.features[:, :3], points.features[:, 3:]):
        assert (part**2).sum(axis=1).mean() == pytest.approx(1.0)


@pytest.mark.parametrize("count", [7, 200, 256])
def test_equal_scores_are_equal_also_where_rounding_differs(count):
    """The mean of equal numbers of float32 is often another number."""
    scale = Scale(Views(np.full(count, 0.3, np.float32), (np.ones((count, 1)),)))
    later = scale(Views(np.array([0.3, 0.31, 0.29], np.float32), (np.ones((3, 1)),)))
    assert later.scores == pytest.approx([0.0, 0.01, -0.01], abs=1e-6)


def test_a_sample_without_scores_or_differences():
    views = Views(np.zeros(3), (np.ones((3, 2)),))
    points = Scale(views)(views)
    assert points.scores.tolist() == [0.0] * 3 and points.features.shape == (3, 0)

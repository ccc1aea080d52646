from __future__ import annotations

import numpy as np
import pytest

from tcl_core.sampling.scores import (
    embedding_gap,
    normalised,
    paper_scores,
    paper_scores_reference,
    prediction_gap,
    prediction_variance,
    rescaled_variance,
    within_unit_ball,
)


def test_normalisation_is_joint():
    pool, labelled = normalised(np.array([2.0, 4.0]), np.array([0.0, 8.0]))
    assert pool.tolist() == [0.25, 0.5] and labelled.tolist() == [0.0, 1.0]
    assert normalised(np.array([3.0]), np.array([3.0]))[0].tolist() == [0.0]
    assert [len(x) for x in normalised(np.array([]), np.array([]))] == [0, 0]


def test_gap_is_the_distance_to_the_nearer_neighbour():
    assert prediction_gap(np.array([0.0, 0.3, 0.5, 1.0]), np.array([0.9, 0.2])) == pytest.approx([0.2, 0.1, 0.3, 0.1])
    assert prediction_gap(np.array([0.4]), np.array([])).tolist() == [1.0]
    assert prediction_gap(np.array([0.4]), np.array([0.4, 0.4])).tolist() == [0.0]


def test_variance_by_hand():
    """f = 1 with the labelled 0 and 0.5: mean 0.5, squares 0.25 + 0.25 + 0, divided by 3."""
    assert prediction_variance(np.array([1.0]), np.array([0.0, 0.5])) == pytest.approx([0.5 / 3])
    assert prediction_variance(np.array([1.0]), np.array([])).tolist() == [0.0]


@pytest.mark.parametrize("labelled", [1, 2, 37])
def test_fast_scores_equal_the_formula(labelled):
    rng = np.random.default_rng(labelled)
    f, f_labelled = rng.random(53), rng.random(labelled)
    f[:3] = f_labelled[0]  # on a labelled point the distance is 0
    assert paper_scores(f, f_labelled) == pytest.approx(paper_scores_reference(f, f_labelled), abs=1e-12)


def test_embedding_gap_equals_the_naive_distance_also_over_several_chunks(monkeypatch):
    monkeypatch.setattr("tcl_core.sampling.scores._CHUNK", 4)
    rng = np.random.default_rng(0)
    pool, labelled = rng.normal(size=(11, 3)), rng.normal(size=(5, 3))
    naive = [min(np.linalg.norm(x - y) for y in labelled) for x in pool]
    assert embedding_gap(pool, labelled) == pytest.approx(naive)
    assert embedding_gap(pool, labelled[:0]).tolist() == [1.0] * 11


def test_unit_ball_bounds_every_distance_and_keeps_proportions():
    rng = np.random.default_rng(1)
    pool, labelled = within_unit_ball(100 + rng.normal(size=(20, 4)), 100 + rng.normal(size=(9, 4)))
    both = np.concatenate([pool, labelled])
    assert np.linalg.norm(both[:, None] - both[None], axis=2).max() <= 1.0
    line, _ = within_unit_ball(np.array([[0.0], [1.0], [4.0]]), np.zeros((0, 1)))
    assert (line[2] - line[0]) / (line[1] - line[0]) == pytest.approx(4.0)


def test_variance_is_scaled_to_the_greatest():
    assert rescaled_variance(np.array([0.0, 2.0, 8.0])).tolist() == [0.0, 0.25, 1.0]
    assert rescaled_variance(np.zeros(3)).tolist() == [0.0, 0.0, 0.0]

from __future__ import annotations

import numpy as np
import pytest

from tcl_core.sampling.scores import (
    normalised,
    paper_scores,
    paper_scores_reference,
    prediction_gap,
    prediction_variance,
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

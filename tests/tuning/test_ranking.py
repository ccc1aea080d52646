from __future__ import annotations

import numpy as np
import pytest

from tcl_core.models.cost_model import CostModel
from tcl_core.features.encode import Encoder
from tcl_core.tuning.ranking import TaskRanking

HARDWARE = (1.0,) * 11


class Backwards:
    """Scores that fall with the innermost tile of the matmul's rows, which the latencies below do as well: it is wrong."""

    name = "backwards"

    def predict(self, samples):
        return -samples.features.sum(axis=(1, 2)).astype(np.float32)

    def embed(self, samples):
        return samples.features.sum(axis=1)

    predict_and_embed = CostModel.predict_and_embed


@pytest.fixture(scope="module")
def programs(matmul):
    """64 programs of one sketch."""
    sketch = matmul.sketches[-1]
    decisions = np.unique(matmul.sample(sketch, 96), axis=0)[:64]
    keys = [(matmul.task.key, sketch.index, tuple(row)) for row in decisions.tolist()]
    return Encoder([matmul.task], matmul.rows()).encode(keys, HARDWARE)


def order(speeds):
    return np.argsort(-speeds).tolist()


def agreement(left, right):
    """Share of the pairs that both rank alike."""
    i, j = np.triu_indices(len(left), 1)
    return np.mean((left[i] > left[j]) == (right[i] > right[j]))


def test_without_measurements_the_model_ranks(programs):
    """And every number is above 0: MetaSchedule takes what is below for 0, and could not tell such programs apart."""
    speeds = TaskRanking(Backwards()).speeds(programs)
    assert (speeds > 0).all() and speeds.dtype == np.float64
    scores = Backwards().predict(programs)
    assert (scores < 0).all() and agreement(speeds, scores) > 0.99


def test_what_is_measured_corrects_a_model_that_is_wrong(programs):
    ranking, scores = TaskRanking(Backwards()), Backwards().predict(programs)
    true_speeds = np.exp(-(scores - scores.mean()) / scores.std())
    even, odd = np.arange(0, 64, 2), np.arange(1, 64, 2)
    assert agreement(ranking.speeds(programs.take(odd)), true_speeds[odd]) < 0.1
    for rows in np.array_split(even, 4):
        ranking.tell(programs.take(rows), (1e-3 / true_speeds[rows]).tolist())
    assert agreement(ranking.speeds(programs.take(odd)), true_speeds[odd]) > 0.9


def test_a_program_that_failed_is_expected_to_be_slow(programs):
    ranking = TaskRanking(Backwards())
    latencies_s = np.where(np.arange(64) == 5, np.inf, 1e-3)
    ranking.speeds(programs)
    ranking.tell(programs, latencies_s.tolist())
    speeds = ranking.speeds(programs)
    assert np.isfinite(speeds).all() and order(speeds)[-1] == 5


def test_measurements_may_come_before_any_question(programs):
    ranking = TaskRanking(Backwards())
    ranking.tell(programs.take(np.arange(2)), [1e-3, 2e-3])
    assert np.isfinite(ranking.speeds(programs)).all()

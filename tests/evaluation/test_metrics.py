from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tcl_core.errors import DataError
from tcl_core.evaluation import metrics
from tcl_core.evaluation.metrics import (
    subset_top_1,
    first_of_random,
    forgetting,
    pairwise_accuracy,
    picks,
    pooled,
    spearman,
    task_pairs,
    top_k,
    top_k_network_average,
)

# Task 0: latencies 1, 2, 4; the model likes 2 best.  Task 1: latencies 10, 5; the model likes 5 best.
TASKS = np.array([0, 0, 0, 1, 1])
LATENCIES = np.array([1.0, 2.0, 4.0, 10.0, 5.0])
PREDICTIONS = np.array([0.5, 0.9, 0.1, -3.0, -2.0])
NETWORKS = {"m": {0: 3.0, 1: 1.0}, "n": {0: 1.0}}
INF = math.inf


def test_top_1_by_hand():
    """Pooled weights 4 and 1: best 4 * 1 + 5 = 9, picked 4 * 2 + 5 = 13.  Network m alone 8/11, network n
    alone 1/2.
    """
    assert pooled(NETWORKS) == {0: 4.0, 1: 1.0}
    assert top_k(PREDICTIONS, LATENCIES, TASKS, NETWORKS, 1) == pytest.approx(9 / 13)
    assert top_k_network_average(PREDICTIONS, LATENCIES, TASKS, NETWORKS, 1) == pytest.approx((8 / 11 + 1 / 2) / 2)


def test_top_k_reaches_1_with_enough_picks_and_ignores_row_order():
    assert top_k(PREDICTIONS, LATENCIES, TASKS, NETWORKS, 2) == 1.0
    assert top_k(PREDICTIONS, LATENCIES, TASKS, NETWORKS, 99) == 1.0
    shuffled = np.random.default_rng(0).permutation(5)
    assert top_k(PREDICTIONS[shuffled], LATENCIES[shuffled], TASKS[shuffled], NETWORKS, 1) == pytest.approx(9 / 13)


def test_only_the_order_within_a_task_matters():
    assert top_k(np.exp(PREDICTIONS) - 100 * TASKS, LATENCIES, TASKS, NETWORKS, 1) == pytest.approx(9 / 13)


def test_failed_programs_are_never_best_and_cost_the_slowest_that_ran():
    seconds = np.array([INF, 2.0, 8.0, INF])
    likes_failed = np.array([9.0, 2.0, 1.0, 8.0])
    tasks, networks = np.zeros(4, int), {"m": {0: 1.0}}
    assert top_k(likes_failed, seconds, tasks, networks, 1) == 2 / 8
    assert top_k(likes_failed, seconds, tasks, networks, 2) == 2 / 8
    assert top_k(likes_failed, seconds, tasks, networks, 3) == 1.0


def test_tasks_without_weight_or_without_any_run_do_not_count():
    tasks = np.append(TASKS, [2, 2, 3])
    seconds = np.append(LATENCIES, [INF, INF, 7.0])
    predictions = np.append(PREDICTIONS, [1.0, 2.0, 0.0])
    networks = {"m": NETWORKS["m"] | {2: 5.0}, "n": NETWORKS["n"], "unlabelled": {9: 1.0}}
    assert picks(predictions, seconds, tasks, 1).tasks.tolist() == [0, 1, 3]
    assert top_k(predictions, seconds, tasks, networks, 1) == pytest.approx(9 / 13)
    assert top_k_network_average(predictions, seconds, tasks, networks, 1) == pytest.approx((8 / 11 + 1 / 2) / 2)


def test_a_task_of_one_program_is_always_ranked_right():
    assert top_k(np.array([0.0]), np.array([3.0]), np.array([4]), {"m": {4: 2.0}}, 1) == 1.0


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_ties_count_as_the_mean_over_every_way_to_break_them(k):
    seconds, predictions = np.array([4.0, 1.0, 6.0, 3.0, 2.0]), np.array([7.0, 5.0, 5.0, 5.0, 1.0])
    tasks, expected = np.zeros(5, int), []
    for order in itertools.permutations(range(5)):
        if all(predictions[a] >= predictions[b] for a, b in itertools.pairwise(order)):
            expected.append(min(seconds[list(order[:k])]))
    assert picks(predictions, seconds, tasks, k).picked_s[0] == pytest.approx(np.mean(expected))


@pytest.mark.parametrize(("count", "k"), [(1, 1), (5, 1), (5, 2), (5, 5), (5, 9), (40, 7)])
def test_odds_of_the_best_of_k_random_programs(count, k):
    k_drawn = min(k, count)
    exact = [math.comb(count - 1 - i, k_drawn - 1) / math.comb(count, k_drawn) for i in range(count)]
    assert first_of_random(count, k) == pytest.approx(exact) and sum(exact) == pytest.approx(1)


def test_odds_stay_sound_for_thousands_of_programs():
    assert first_of_random(4000, 5).sum() == pytest.approx(1.0)


def test_pairwise_accuracy_by_hand():
    """Task 0: (1,2) wrong, (1,4) and (2,4) right: 2/3.  Task 1: its one pair right."""
    assert pairwise_accuracy(PREDICTIONS, LATENCIES, TASKS) == pytest.approx((2 / 3 + 1) / 2)
    assert pairwise_accuracy(np.zeros(5), LATENCIES, TASKS) == 0.5
    with_failed = np.where(LATENCIES == 4.0, INF, LATENCIES)
    assert pairwise_accuracy(-with_failed, with_failed, TASKS) == 1.0
    assert math.isnan(pairwise_accuracy(np.array([1.0, 2.0]), np.array([3.0, 3.0]), np.array([0, 0])))


@pytest.mark.parametrize("at_once", [1, 7, 30])
def test_pairs_are_the_same_however_many_are_compared_at_once(monkeypatch, at_once):
    draw = np.random.default_rng(0)
    scores, seconds, tasks = draw.integers(0, 5, 20).astype(float), draw.integers(1, 6, 20).astype(float), np.repeat([0, 1], 10)
    whole = pairwise_accuracy(scores, seconds, tasks)
    monkeypatch.setattr(metrics, "PAIRS_AT_ONCE", at_once)
    assert pairwise_accuracy(scores, seconds, tasks) == whole


def test_pairs_of_each_task_by_hand():
    """A task whose programs all take as long has no pair to rank."""
    assert task_pairs(PREDICTIONS, LATENCIES, TASKS) == pytest.approx({0: 2 / 3, 1: 1.0})
    assert task_pairs(np.array([1.0, 2.0]), np.array([3.0, 3.0]), np.array([0, 0])) == {}


def test_spearman_equals_scipys_with_ties_and_failures():
    rng = np.random.default_rng(5)
    seconds = np.append(rng.integers(1, 6, 30).astype(float), [INF, INF])
    predictions = rng.integers(0, 5, 32).astype(float)
    tasks = np.append(np.zeros(20, int), np.ones(12, int))
    expected = np.mean([stats.spearmanr(predictions[tasks == t], -np.minimum(seconds[tasks == t], 99)).statistic for t in (0, 1)])
    assert spearman(predictions, seconds, tasks) == pytest.approx(expected)
    assert spearman(-seconds, seconds, tasks) == pytest.approx(1.0)
    assert spearman(np.zeros(32), seconds, tasks) == 0.0


def test_forgetting_is_the_best_so_far_minus_the_end():
    matrix = np.array([[0.9, 0.5, np.nan], [0.8, 0.95, 0.6], [0.85, 0.9, 0.7]])
    assert forgetting(matrix, [None, 0, 1]) == pytest.approx([0.05, 0.05, 0.0])


@pytest.mark.parametrize("figure", [pairwise_accuracy, spearman, lambda *a: top_k(*a, NETWORKS, 1)])
def test_unusable_numbers_are_named(figure):
    broken = PREDICTIONS.copy()
    broken[3:] = np.nan
    with pytest.raises(DataError, match="predicts NaN for 2 programs, first in task 1"):
        figure(broken, LATENCIES, TASKS)
    with pytest.raises(DataError, match="NaN, zero or negative"):
        figure(PREDICTIONS, np.where(TASKS == 1, np.nan, LATENCIES), TASKS)
    with pytest.raises(ValueError, match="4 predictions, 5 latencies"):
        figure(PREDICTIONS[1:], LATENCIES, TASKS)


def test_nothing_to_rank_is_an_error_not_a_figure():
    with pytest.raises(DataError, match="no task has a program that ran"):
        top_k(PREDICTIONS, np.full(5, INF), TASKS, NETWORKS, 1)
    with pytest.raises(DataError, match="none of the networks' tasks"):
        top_k(PREDICTIONS, LATENCIES, TASKS, {"m": {7: 1.0}}, 1)


def test_top_1_over_subsets_by_hand():
    seconds, tasks = np.array([1.0, 2.0, 4.0]), np.zeros(3, dtype=int)
    assert subset_top_1(-seconds, seconds, tasks) == {0: 1.0}
    assert subset_top_1(seconds, seconds, tasks) == {0: 0.25}  # no more than a subset: the whole task
    assert subset_top_1(np.zeros(3), seconds, tasks) == {0: pytest.approx((1 + 1 / 2 + 1 / 4) / 3)}  # the mean of a random choice


def test_top_1_over_subsets_is_the_mean_over_draws_of_sixteen():
    rng = np.random.default_rng(0)
    seconds, tasks, wrong = np.exp(rng.normal(size=60)), np.full(60, 7), rng.normal(size=60)
    found = subset_top_1(wrong, seconds, tasks)[7]
    drawn = (rng.permutation(60)[:16] for _ in range(4000))
    assert found == pytest.approx(np.mean([seconds[d].min() / seconds[d[wrong[d].argmax()]] for d in drawn]), abs=0.08)
    assert subset_top_1(-seconds, seconds, tasks) == {7: 1.0}


def test_subsets_do_not_depend_on_the_other_tasks():
    rng = np.random.default_rng(1)
    seconds, scores, tasks = np.exp(rng.normal(size=80)), rng.normal(size=80), np.repeat([3, 5], 40)
    both, alone = subset_top_1(scores, seconds, tasks), subset_top_1(scores[40:], seconds[40:], tasks[40:])
    assert both[5] == alone[5] and set(both) == {3, 5}


def test_subsets_in_which_nothing_ran_are_left_out():
    """Whatever one chooses among failures would be a perfect choice."""
    seconds, tasks = np.full(100, np.inf), np.zeros(100, int)
    seconds[:5] = [1.0, 2.0, 4.0, 8.0, 8.0]
    failures_first = np.where(np.isfinite(seconds), 0.0, 1.0)
    found = subset_top_1(failures_first, seconds, tasks)[0]
    draw = np.random.default_rng([16, 100])
    subsets = np.argsort(draw.random((64, 100)), axis=1)[:, :16]
    ran = [subset for subset in subsets if np.isfinite(seconds[subset]).any()]
    assert 20 < len(ran) < 60
    assert found == pytest.approx(np.mean([seconds[subset].min() / 8.0 for subset in ran]))
    alone, other = np.full(2000, np.inf), np.zeros(2000)
    drawn = np.argsort(np.random.default_rng([16, 2000]).random((64, 2000)), axis=1)[:, :16]
    fast, slow, *_ = sorted(set(range(2000)) - set(drawn.ravel().tolist()))  # in none of the subsets: the whole task stands for them
    alone[fast], alone[slow], other[slow] = 1.0, 4.0, 1.0
    assert subset_top_1(other, alone, np.zeros(2000, int)) == {0: 0.25}

from __future__ import annotations

import math

import numpy as np
import pytest

from tcl_core.evaluation.intervals import (
    bootstrap_top_k,
    chain_figures,
    flipped_signs,
    model_figures,
    paired_bootstrap,
    random_top_k,
)
from tcl_core.evaluation.metrics import picks, top_k

RNG = np.random.default_rng(11)
TASKS = np.repeat(np.arange(30), 8)
LATENCIES = np.exp(RNG.normal(size=240))
NETWORKS = {"m": {task: 1.0 + task % 3 for task in range(30)}}
GOOD, BAD = -LATENCIES, RNG.normal(size=240)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_random_ranking_equals_the_mean_over_real_shuffles(k):
    rng = np.random.default_rng(2)
    shuffled = [top_k(rng.random(240), LATENCIES, TASKS, NETWORKS, k) for _ in range(400)]
    found = random_top_k(LATENCIES, TASKS, NETWORKS, k, draws=4000)
    assert found.value == pytest.approx(np.mean(shuffled), abs=5 * np.std(shuffled) / 20 + 1e-12)
    assert np.mean([found.low - 1e-9 <= x <= found.high + 1e-9 for x in shuffled]) > 0.9


def test_random_ranking_counts_failures_like_the_metric():
    seconds = np.array([math.inf, 1.0, 4.0])
    found = random_top_k(seconds, np.zeros(3, int), {"m": {0: 1.0}}, 1, draws=20_000)
    assert found.value == pytest.approx(1 / 3 * 1 + 2 / 3 * 1 / 4, abs=0.02)


def test_bootstrap_holds_the_value_and_is_wider_with_fewer_tasks():
    whole = bootstrap_top_k(picks(BAD, LATENCIES, TASKS, 1), NETWORKS, 1000)
    assert whole.value == top_k(BAD, LATENCIES, TASKS, NETWORKS, 1) and whole.low < whole.value < whole.high
    few = TASKS < 6
    part = bootstrap_top_k(picks(BAD[few], LATENCIES[few], TASKS[few], 1), NETWORKS, 1000)
    assert part.high - part.low > whole.high - whole.low
    assert bootstrap_top_k(picks(GOOD, LATENCIES, TASKS, 1), NETWORKS, 100).low == 1.0


def test_the_duel_is_won_lost_or_even():
    won = paired_bootstrap(BAD, GOOD, LATENCIES, TASKS, NETWORKS)
    assert won.probability == 1.0 and won.candidate == 1.0 and 0 < won.low < 1.0 - won.champion < won.high
    assert paired_bootstrap(GOOD, BAD, LATENCIES, TASKS, NETWORKS).probability == 0.0
    twins = paired_bootstrap(BAD, 2 * BAD + 1, LATENCIES, TASKS, NETWORKS)
    assert (twins.probability, twins.low, twins.high) == (0.5, 0.0, 0.0)


def test_the_duel_of_two_guessers_is_undecided_and_repeats_for_a_seed():
    other = np.random.default_rng(8).normal(size=240)
    comparison = paired_bootstrap(BAD, other, LATENCIES, TASKS, NETWORKS, seed=4)
    assert 0.02 < comparison.probability < 0.98 and comparison.low < 0 < comparison.high
    assert comparison == paired_bootstrap(BAD, other, LATENCIES, TASKS, NETWORKS, seed=4)


def test_tasks_without_weight_do_not_dilute_the_duel():
    """Only task 0 counts, where the candidate is better: every resample says so."""
    comparison = paired_bootstrap(BAD, np.where(TASKS == 0, GOOD, BAD), LATENCIES, TASKS, {"m": {0: 1.0}})
    assert comparison.champion < 1.0 and comparison.probability == 1.0


def comparison(*differences: float):
    """Of as many tasks, in each of which the candidate's figure is so much higher."""
    old = {task: 0.5 for task in range(len(differences))}
    return flipped_signs(old, {task: 0.5 + d for task, d in enumerate(differences)})


def test_flipped_signs_by_hand():
    """Of the eight signs of 1, 2, 3 two sums are at least 4: 1+2+3 and -1+2+3."""
    found = comparison(-0.1, 0.2, 0.3)
    assert (found.champion, found.candidate) == (0.5, pytest.approx(0.5 + 0.4 / 3))
    assert found.probability == 1 - 2 / 8
    assert comparison(0.1, 0.2, 0.3).probability == 1 - 1 / 8 and comparison(-0.1, -0.2, -0.3).probability == 0.0


@pytest.mark.parametrize("tasks, sure", [(1, 0.5), (4, 0.9375), (5, 0.96875), (12, 1 - 2**-12)])
def test_few_tasks_allow_no_more_than_they_can_tell(tasks, sure):
    """However much better: below five tasks .95 cannot be reached, which is what promote.min_tasks says."""
    assert comparison(*[0.4] * tasks).probability == sure


def test_twins_are_not_better_and_a_task_without_a_difference_tells_nothing():
    assert comparison(0.0, 0.0, 0.0).probability == 0.0
    assert comparison(0.1, 0.1, 0.1, 0.1, 0.0).probability == comparison(0.1, 0.1, 0.1, 0.1).probability


def test_many_tasks_are_judged_by_random_signs_as_by_all_of_them():
    """Thirteen tasks: 4,096 random choices of signs against all 8,192; and against the normal distribution for many."""
    rng = np.random.default_rng(3)
    differences = rng.normal(0.02, 0.05, size=13)
    signs = 1 - 2 * (np.arange(2**13)[:, None] >> np.arange(13) & 1)
    assert comparison(*differences).probability == pytest.approx(1 - np.mean(signs @ differences >= differences.sum()), abs=0.02)
    many = comparison(*rng.normal(0.01, 0.05, size=100))
    assert 0.9 < many.probability < 1.0 and many.low < many.candidate - many.champion < many.high
    assert comparison(*[0.1] * 40).probability > 0.999


def test_a_test_of_flipped_signs_errs_as_often_as_it_says():
    """Of two models that are equally good the candidate is surer than .9 in a tenth of the cases, with 6 tasks as with 20."""
    rng = np.random.default_rng(5)
    for tasks in (6, 20):
        sure = [comparison(*rng.normal(size=tasks)).probability >= 0.9 for _ in range(400)]
        assert 0.05 < np.mean(sure) < 0.15


def test_unpaired_tasks_are_a_bug():
    with pytest.raises(ValueError, match="2 and 1 tasks do not pair"):
        flipped_signs({1: 0.5, 2: 0.5}, {1: 0.5})
    with pytest.raises(ValueError, match="0 and 0 tasks"):
        flipped_signs({}, {})


def test_model_figures_hold_every_table_column():
    figures = model_figures(GOOD, LATENCIES, TASKS, NETWORKS, (1, 5), draws=50)
    assert figures["tasks"] == 30 and figures["programs"] == 240 and figures["failed"] == 0
    assert figures["top_1"] == {"value": 1.0, "low": 1.0, "high": 1.0} and figures["top_5_network_average"] == 1.0
    assert figures["top_1_random"]["value"] < figures["top_5_random"]["value"] < 1.0
    assert figures["spearman"] == pytest.approx(1.0) and figures["pairwise_accuracy"] == 1.0 == figures["subset_top_1"]


def test_chain_figures():
    chain = chain_figures(["a", "b"], np.array([[0.9, 0.6], [0.85, 0.8]]), {"b": "a"})
    assert chain["pairs"] == [[0.9, 0.6], [0.85, 0.8]]
    assert chain["forgotten"] == pytest.approx({"a": 0.05, "b": 0.0})


@pytest.mark.filterwarnings("error")
def test_where_no_pair_can_be_judged_there_is_no_figure():
    nan = float("nan")
    chain = chain_figures(["a", "b"], [[nan, 0.6], [nan, 0.8]], {"b": "a"})
    assert chain["pairs"] == [[None, 0.6], [None, 0.8]] and chain["forgotten"] == {"a": None, "b": 0.0}


def test_a_branch_forgets_nothing_of_another_one():
    """Both b and c go on from a: c's model has never learned b."""
    pairs = [[0.9, 0.5, 0.4], [0.8, 0.9, 0.4], [0.85, 0.6, 0.7]]
    assert chain_figures(["a", "b", "c"], pairs, {"b": "a", "c": "a"})["forgotten"] == pytest.approx({"a": 0.05, "b": 0.0, "c": 0.0})
    assert chain_figures(["a", "b", "c"], pairs, {"b": "a", "c": "b"})["forgotten"] == pytest.approx({"a": 0.05, "b": 0.3, "c": 0.0})

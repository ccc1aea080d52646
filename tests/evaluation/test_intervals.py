from __future__ import annotations

import math

import numpy as np
import pytest

from tcl_core.evaluation.intervals import (
    bootstrap_top_k,
    chain_figures,
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
    duel = paired_bootstrap(BAD, other, LATENCIES, TASKS, NETWORKS, seed=4)
    assert 0.02 < duel.probability < 0.98 and duel.low < 0 < duel.high
    assert duel == paired_bootstrap(BAD, other, LATENCIES, TASKS, NETWORKS, seed=4)


def test_tasks_without_weight_do_not_dilute_the_duel():
    """Only task 0 counts, where the candidate is better: every resample says so."""
    duel = paired_bootstrap(BAD, np.where(TASKS == 0, GOOD, BAD), LATENCIES, TASKS, {"m": {0: 1.0}})
    assert duel.champion < 1.0 and duel.probability == 1.0


def test_model_figures_hold_every_table_column():
    figures = model_figures(GOOD, LATENCIES, TASKS, NETWORKS, (1, 5), draws=50)
    assert figures["tasks"] == 30 and figures["programs"] == 240 and figures["failed"] == 0
    assert (
        figures["top_1"] == {"value": 1.0, "low": 1.0, "high": 1.0}
        and figures["top_5_network_average"] == 1.0
    )
    assert figures["top_1_random"]["value"] < figures["top_5_random"]["value"] < 1.0
    assert figures["spearman"] == pytest.approx(1.0) and figures["pairwise_accuracy"] == 1.0


def test_chain_figures():
    chain = chain_figures(["a", "b"], np.array([[0.9, 0.6], [0.85, 0.8]]))
    assert chain["top_1"] == [[0.9, 0.6], [0.85, 0.8]]
    assert chain["forgetting"] == pytest.approx({"a": 0.05, "b": 0.0})

"""Task by task: what a model chose against what another one chose."""

from __future__ import annotations

import numpy as np
import pytest
from _paired import JUDGED, against, by_fold, compared, task_figures
from _task_kinds import FAR, NEAR, by_kind, near_or_far

from tcl_core.programs.tasks import Task

LATENCIES_S = np.array([1.0, 2.0, 4.0, 3.0, 3.0, 1.5])
TASKS = np.array([0, 0, 0, 1, 1, 1], np.int32)


def test_the_figures_of_each_task():
    found = task_figures(np.array([0.1, 0.9, 0.5, 0.0, 0.2, 0.9]), LATENCIES_S, TASKS)
    assert found["top1"] == {0: pytest.approx(0.5), 1: pytest.approx(1.0)}
    assert found["pairs"] == {0: pytest.approx(1 / 3), 1: pytest.approx(1.0)}
    assert found["u16"] == found["top1"]  # of fewer than sixteen programs


def test_a_task_without_a_difference_has_no_figures():
    found = task_figures(np.arange(4.0), np.array([1.0, 1.0, 2.0, np.inf]), np.array([0, 0, 1, 1], np.int32))
    assert {name: set(values) for name, values in found.items()} == {"pairs": {1}, "u16": {1}, "top1": {1}}


def judged(top1):
    """The same value for every figure."""
    return {key: {seed: dict.fromkeys(JUDGED, tasks) for seed, tasks in seeds.items()} for key, seeds in top1.items()}


def test_a_difference_that_every_task_has_is_certain_and_one_that_tasks_disagree_on_is_not():
    assert against(np.full(30, 0.9), np.full(30, 0.8)) == pytest.approx([0.1, 0.1, 0.1])
    mean, low, high = against(np.tile([1.0, 0.5], 15), np.tile([0.5, 1.0], 15))
    assert mean == pytest.approx(0.0) and low < -0.1 and 0.1 < high


def test_of_a_handful_of_tasks_no_interval_is_claimed():
    assert against(np.full(9, 0.9), np.full(9, 0.5)) == [pytest.approx(0.4), None, None]


def test_the_tasks_of_a_fold_share_its_luck():
    """Twenty tasks of each of two folds: one is ahead by .1 in all of them, the other by .3."""
    ours, folds = np.repeat([0.1, 0.3], 20), np.repeat([0, 1], 20)
    mean, low, high = against(ours, np.zeros(40), folds)
    assert (mean, low, high) == pytest.approx((0.2, 0.1, 0.3))
    assert against(ours, np.zeros(40))[1] > 0.15  # as if each task were a training of its own
    assert against(ours, np.zeros(40), np.zeros(40)) == against(ours, np.zeros(40))


def test_a_task_of_networks_in_several_folds_counts_once():
    mine = {("0", task): 0.5 for task in range(12)} | {("1", task): 0.9 for task in range(6, 24)}
    theirs = {place: value - 0.25 for place, value in mine.items() if place[1] < 20}
    assert by_fold(mine)[0] == pytest.approx(0.7) == by_fold({place: value for place, value in mine.items() if place != ("1", 6)})[0]
    assert by_fold(mine, theirs) == pytest.approx([0.25] * 3)


def test_models_are_compared_on_their_own_platform_and_by_the_seeds_that_both_have():
    best, worse, none = {0: 1.0, 1: 1.0}, {0: 0.25, 1: 0.5}, {0: 0.0, 1: 0.0}
    chosen = {
        ("a", "mamba"): {0: best, 1: best},
        ("a", "tlp"): {1: worse, 2: none},
        ("a", "trees"): {3: best},
        ("b", "tlp"): {0: worse},
    }
    found = compared(judged(chosen), "mamba")
    assert [(row["platform"], row["model"], row["seeds"], row["tasks"]) for row in found] == [("a", "mamba", 2, 2), ("a", "tlp", 1, 2)]
    assert found[1]["u16_ours_less"][0] == pytest.approx(1.0 - (0.25 + 0.5) / 2)


def test_a_task_counts_once_however_many_seeds_were_tested_on_it():
    ours, theirs = {0: {7: 1.0}, 1: {7: 0.6, 8: 0.5}}, {0: {7: 0.4}, 1: {7: 0.2, 8: 0.9}}
    row = compared(judged({("a", "mamba"): ours, ("a", "tlp"): theirs}), "mamba")[1]
    assert row["tasks"] == 2 and row["top1"] == pytest.approx((0.3 + 0.9) / 2)
    assert row["pairs_ours_less"][0] == pytest.approx((0.8 - 0.3 + 0.5 - 0.9) / 2)


def test_each_operators_tasks_are_compared_apart_over_the_platforms_that_both_models_ranked():
    ours = {("a", "mamba"): {0: {0: 1.0, 1: 0.5, 2: 0.6}}, ("b", "mamba"): {0: {0: 0.8, 1: 0.7, 2: 0.4}}}
    theirs = {("a", "trees"): {0: {0: 0.4, 1: 0.9, 2: 0.5}, 1: {0: 0.0, 1: 0.0, 2: 0.0}}}
    found = by_kind(judged(ours | theirs), {0: "softmax", 1: "conv2d", 2: "conv2d", 3: "norm"}, "mamba")
    assert [(row["kind"], row["tasks"], row["model"]) for row in found] == [
        (operator, tasks, model) for operator, tasks in (("conv2d", 2), ("softmax", 1)) for model in ("mamba", "trees")
    ]
    assert [row["u16"] for row in found] == pytest.approx([(0.6 + 0.5) / 2, (0.9 + 0.5) / 2, 0.9, 0.4])
    assert [row["u16_ours_less"][0] for row in found] == pytest.approx([0.0, (0.5 + 0.6 - 0.9 - 0.5) / 2, 0.0, 0.6])
    assert by_kind(judged(theirs), {0: "softmax", 1: "conv2d", 2: "conv2d"}, "mamba") == []


def test_a_tested_task_is_near_one_with_its_operator_and_as_many_operations():
    task = lambda operator, flops: Task("0" * 16, operator, operator, flops, "{}")  # noqa: E731
    tested = {3: task("conv2d", 101.0), 5: task("matmul", 100.0), 7: task("conv2d", 97.0), 9: task("take", 0.0)}
    learned = [task("conv2d", 100.0), task("softmax", 100.0), task("take", 0.0)]
    assert near_or_far(tested, learned) == {3: NEAR, 5: FAR, 7: FAR, 9: NEAR}
    assert near_or_far(tested, []) == dict.fromkeys(tested, FAR)

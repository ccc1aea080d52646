"""The promotion gate on figures that are told by hand: who passes, who does not, and why."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tcl_core.errors import DataError
from tcl_core.evaluation.intervals import flipped_signs
from tcl_core.features.batches import Samples
from tcl_core.params import Promote
from tcl_core.stages.gate import Verdict, judge, together

SETTINGS = Promote(confidence=0.95, first_confidence=0.5, min_tasks=5)
BEST = (1, 2, 3, 4, 5, 6, 7, 8)  # the place at which each program is ranked, from the fastest to the slowest
SECOND_FIRST = (2, 1, 3, 4, 5, 6, 7, 8)  # U16 .5, pairs 27 of 28
THIRD_FIRST = (3, 2, 1, 4, 5, 6, 7, 8)  # U16 .333, pairs 25 of 28
SLOW_MIXED = (1, 2, 3, 4, 8, 7, 6, 5)  # U16 1, pairs 22 of 28
RANDOM = (0,) * 8


def verdict(champion, candidate, tasks: int = 12, first: bool = False, weights: dict | None = None, mixed: int = 0, **settings) -> Verdict:
    """Of tasks of eight programs of 1 to 8 ms, in which both models rank alike; in ``mixed`` of them the two are swapped."""
    ids = np.repeat(np.arange(tasks, dtype=np.int32), 8)
    samples = Samples(np.zeros((len(ids), 1, 1), np.float32), np.ones(len(ids), np.int32), ids, np.tile(np.arange(1, 9) * 1e-3, tasks))
    old, new = (-np.tile(np.array(places, np.float32), tasks) for places in (champion, candidate))
    swapped = ids < mixed
    old, new = np.where(swapped, new, old), np.where(swapped, old, new)
    networks = {"network": weights or dict.fromkeys(range(tasks), 1.0)}
    return judge(old, new, samples, networks, dataclasses.replace(SETTINGS, **settings), "champion version 1", first, 200)


def test_better_in_pairs_and_in_choices_passes():
    found = verdict(THIRD_FIRST, SECOND_FIRST)
    assert found.better
    assert found.reason == (
        "pairs 0.964 to 0.893, U16 0.500 to 0.333 (confidence together 1.000), top-1 0.500 to 0.333 "
        "(difference +0.167 to +0.167), against champion version 1 on 96 held-out programs of 12 tasks; "
        "both must be higher, with confidence 0.95 together"
    )
    assert set(found.figures()) == {"pairs", "u16", "top_1"} and found.figures()["u16"]["candidate"] == 0.5


@pytest.mark.parametrize(
    "champion, candidate",
    [(SLOW_MIXED, BEST), (SECOND_FIRST, SLOW_MIXED), (SECOND_FIRST, SECOND_FIRST), (SECOND_FIRST, THIRD_FIRST)],
    ids=["only pairs", "only choices", "twins", "worse"],
)
def test_one_figure_is_not_enough(champion, candidate):
    assert not verdict(champion, candidate).better


def test_who_is_better_on_some_tasks_and_worse_on_others_must_be_so_on_enough():
    assert verdict(THIRD_FIRST, SECOND_FIRST, mixed=2).better
    lost = verdict(THIRD_FIRST, SECOND_FIRST, mixed=4)
    assert not lost.better and lost.comparisons["pairs"].candidate > lost.comparisons["pairs"].champion


def test_two_figures_that_are_each_unsure_can_be_sure_together():
    """Of twelve tasks the candidate wins pairs in all but the first three, and choices in all but the next three."""
    old, won = dict.fromkeys(range(12), 0.5), lambda lost: {task: 0.5 + (-0.01 if task in lost else 0.01) for task in range(12)}
    pairs, chosen = won(range(3)), won(range(3, 6))
    alone = [flipped_signs(old, figure).probability for figure in (pairs, chosen)]
    assert alone == [pytest.approx(1 - 299 / 4096)] * 2  # at most three of twelve coins show heads
    assert together((old, pairs), (old, chosen)) == 1 - 1 / 64


def test_together_is_exact_for_few_tasks_and_nothing_for_twins():
    old, new = dict.fromkeys(range(4), 0.5), dict.fromkeys(range(4), 0.6)
    assert together((old, new), (old, new)) == 1 - 1 / 16
    assert together((old, new), (old, old)) == 1 - 1 / 16, "a figure in which nothing differs has no say"
    assert together((old, old), (old, old)) == 0.0
    assert together((old, new), (new, old)) == 0.0, "what one figure wins the other loses, task by task"


def test_equal_models_pass_as_often_as_the_confidence_says():
    draw, passed = np.random.default_rng(0), 0
    old = dict.fromkeys(range(12), 0.5)
    for _ in range(200):
        pairs, chosen = (dict(enumerate(0.5 + draw.normal(0, 0.01, 12))) for _ in range(2))
        passed += together((old, pairs), (old, chosen)) >= 0.95
    assert 2 <= passed <= 22  # of 10 that are expected


def test_top_1_that_is_lost_beyond_its_interval_refuses():
    """Better on ten light tasks, worse on the only two that the networks run often enough to matter."""
    found = verdict(THIRD_FIRST, SECOND_FIRST, mixed=2, weights={0: 1.0, 1: 1.0})
    assert found.comparisons["top_1"].high < 0 and not found.better
    assert found.reason.endswith("; both must be higher, with confidence 0.95 together, and top-1 is lost beyond its interval")


def test_top_1_that_may_be_lost_does_not_refuse():
    """One heavy task is lost, but another set of tasks might well be without it."""
    found = verdict(THIRD_FIRST, SECOND_FIRST, mixed=1, weights=dict.fromkeys(range(12), 1.0) | {0: 100.0})
    assert (
        found.comparisons["top_1"].candidate < found.comparisons["top_1"].champion
        and found.comparisons["top_1"].low < 0 < found.comparisons["top_1"].high
    )
    assert found.better


def test_too_few_tasks_decide_nothing():
    found = verdict(THIRD_FIRST, BEST, tasks=4)
    assert not found.better and found.reason.startswith(
        "too few tasks to decide: 4 held-out tasks have programs that differ, and 5 are needed (promote.min_tasks); hold out more"
    )
    assert verdict(THIRD_FIRST, BEST, tasks=5).better
    assert not verdict(THIRD_FIRST, BEST, tasks=4, min_tasks=1).better, "four tasks cannot be that sure"
    assert verdict(THIRD_FIRST, BEST, tasks=4, min_tasks=1, confidence=0.9).better


@pytest.mark.parametrize("tasks", [1, 4, 10])
def test_the_first_champion_must_beat_chance_on_however_few_tasks(tasks):
    assert verdict(RANDOM, SECOND_FIRST, tasks=tasks, first=True).better
    assert not verdict(RANDOM, BEST[::-1], tasks=tasks, first=True).better
    assert not verdict(RANDOM, RANDOM, tasks=tasks, first=True).better, "who ranks nothing is no better than chance"


def test_what_cannot_be_judged_is_said():
    same = Samples(np.zeros((4, 1, 1), np.float32), np.ones(4, np.int32), np.array([0, 0, 1, 1], np.int32), np.full(4, 1e-3))
    zeros = np.zeros(4, np.float32)
    with pytest.raises(
        DataError, match="^no held-out task has two programs of different latencies, so there is nothing to rank; hold out more"
    ):
        judge(zeros, zeros, same, {"n": {0: 1.0, 1: 1.0}}, SETTINGS, "champion version 1", False, 10)
    with pytest.raises(DataError, match="the model predicts NaN for 4 programs"):
        judge(zeros, zeros + np.nan, same, {"n": {0: 1.0, 1: 1.0}}, SETTINGS, "champion version 1", False, 10)

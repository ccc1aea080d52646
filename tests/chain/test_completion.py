"""Labels from another platform: kept where nothing is known, corrected where a residual can be learned, true where measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tcl_core.features import layout
from tcl_core.features.batches import Samples
from tcl_core.evaluation.metrics import pairwise_accuracy
from tcl_core.chain.bridge import source_seconds
from tcl_core.chain.completion import Completed, best_share, combined, completed

TASKS, EACH = 40, 25
N = TASKS * EACH


@pytest.fixture
def world() -> tuple[Samples, np.ndarray, np.ndarray]:
    """Programs, what depends on them in another way on either platform, and the source's seconds."""
    rng = np.random.default_rng(0)
    found = np.zeros((N, 3, layout.WIDTH), np.float32)
    found[:, :, 1:6] = rng.normal(size=(N, 3, 5))
    tasks = np.repeat(np.arange(TASKS, dtype=np.int32), EACH)
    programs = Samples(found, np.full(N, 3, np.int32), tasks, np.full(N, np.inf))
    return programs, found[:, 2, 3].astype(np.float64), np.exp(rng.normal(size=N) + rng.normal(size=TASKS)[tasks])


def measured(target_s: np.ndarray, count: int, seed: int = 1) -> np.ndarray:
    known = np.full(len(target_s), np.nan)
    drawn = np.random.default_rng(seed).permutation(len(target_s))[:count]
    known[drawn] = target_s[drawn]
    return known


def pairs(label_s: np.ndarray, target_s: np.ndarray, tasks: np.ndarray) -> float:
    return pairwise_accuracy(-np.log(label_s), target_s, tasks)


def test_without_a_paired_program_the_sources_order_stays(world):
    programs, _, source_s = world
    found = completed(programs, source_s, np.full(N, np.nan))
    assert found.share == 0 and found.latencies_s == pytest.approx(source_s)


def test_a_difference_that_follows_from_the_programs_is_learned_from_few(world):
    programs, difference, source_s = world
    target_s = 3 * source_s * np.exp(difference)
    found = completed(programs, source_s, measured(target_s, 200))
    before, after = (pairs(label_s, target_s, programs.tasks) for label_s in (source_s, found.latencies_s))
    assert before < 0.77 and after > 0.87
    assert found.share >= 0.75 and found.left < 0.4


def test_a_difference_that_follows_from_nothing_is_not_believed(world):
    programs, _, source_s = world
    target_s = source_s * np.exp(np.random.default_rng(2).normal(size=N))
    found = completed(programs, source_s, measured(target_s, 200))
    assert found.share == 0 and found.left == 1.0


def test_what_was_measured_keeps_its_value_and_others_stand_at_its_level(world):
    programs, _, source_s = world
    target_s = 5 * source_s
    known = measured(target_s, 200)
    found = completed(programs, source_s, known)
    there = np.isfinite(known)
    assert found.latencies_s[there] == pytest.approx(target_s[there])
    with_some = np.isin(programs.tasks, programs.tasks[there])
    assert found.latencies_s[with_some] == pytest.approx(target_s[with_some], rel=1e-6)


def test_where_all_that_is_known_of_a_task_failed_on_the_source_other_tasks_tell_its_level(world):
    programs, _, source_s = world
    target_s, known = 5 * source_s, measured(5 * source_s, 200)
    in_first = np.flatnonzero(np.isfinite(known[:EACH]))
    assert 0 < len(in_first) < EACH
    source_s[in_first] = np.inf
    found = completed(programs, source_s, known).latencies_s
    assert found[:EACH] == pytest.approx(target_s[:EACH], rel=1e-6)


@pytest.mark.parametrize("on_source", [np.inf, np.nan])
def test_a_task_of_which_nothing_ran_on_the_source_is_on_the_targets_level(world, on_source):
    """Whether the source failed with what the target measured, or never tried it; all else is told by a network's scores."""
    programs, _, source_s = world
    target_s, known = 5 * source_s, measured(5 * source_s, 200)
    scores, in_first = -np.log(source_s), np.flatnonzero(np.isfinite(known[:EACH]))
    source_s[:EACH] = np.nan
    source_s[in_first] = on_source
    guess_s = source_seconds(scores, replace(programs, latencies_s=known), source_s)
    found = completed(programs, guess_s, known).latencies_s
    assert found[:EACH] == pytest.approx(target_s[:EACH], rel=1e-6)


def test_of_several_sources_those_that_ran_a_program_tell_its_label_on_the_level_of_the_widest():
    """Two tasks with four programs each; of the second the first source measured none.  Nothing says which is nearer."""
    tasks = np.repeat([0, 1], 4)
    one, wide = Completed(np.array([8.0, 2.0, 2.0, np.inf] + [1.0] * 4), 0.0, 1.0), Completed(np.arange(1.0, 9.0), 0.5, 0.6)
    one_s = np.array([1.0, 1.0, np.nan, np.inf] + [np.nan] * 4)
    wide_s = np.array([np.nan, 1.0, 1.0, 1.0] + [1.0, 1.0, np.nan, 1.0])
    target_s = np.array([np.nan, np.nan, np.nan, np.nan] + [5.0, np.nan, np.nan, np.nan])
    found = combined([one, wide], [one_s, wide_s], target_s, tasks)
    factor = (1 * 2 * 3 / (8 * 2 * 2)) ** (1 / 3)  # of the programs that ran on both
    assert found.latencies_s == pytest.approx([8 * factor, 2 * factor**0.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    assert (found.share, found.left) == pytest.approx((0.5 * 6.5 / 8, (1.5 * 1.0 + 6.5 * 0.6) / 8))


def test_the_nearer_a_source_is_the_more_it_weighs():
    """By its variance of log(target / source) within tasks, .25 and 1, each drawn to their mean by four more degrees of freedom."""
    tasks, target_s = np.repeat([0, 1, 2], 3), np.array([1.0, 1.0, np.nan] * 3)
    apart = lambda deviation: np.tile(np.exp([deviation / 2**0.5, -deviation / 2**0.5, 0.0]), 3)  # noqa: E731
    near_s, far_s = apart(0.5), apart(1.0)
    labels = [Completed(np.where(np.isnan(target_s), label, target_s), 1.0, 0.5) for label in (np.tile([1.0, 1.0, 4.0], 3), np.ones(9))]
    labels[0].latencies_s[5] = labels[1].latencies_s[8] = np.inf  # one failed on either
    found = combined(labels, [near_s, far_s], target_s, tasks)
    near, far = ((3 * variance + 4 * 0.625) / 7 for variance in (0.25, 1.0))
    level = -np.log(4)  # the first source is the widest: the other's labels are brought to its level
    share = near**-2 / (near**-2 + far**-2)
    assert 0.5 < share < 0.9
    assert np.log(found.latencies_s[2]) == pytest.approx(share * np.log(4) + (1 - share) * (0.0 - level))
    assert found.latencies_s[[0, 1, 3, 4, 6, 7]] == pytest.approx(1.0) and found.share == pytest.approx(1.0)
    assert found.latencies_s[5] == pytest.approx(1.0) and found.latencies_s[8] == pytest.approx(4.0)


def test_what_failed_on_each_source_that_measured_it_stays_failed():
    nan, inf = np.nan, np.inf
    labels = [Completed(np.array([inf, inf, 2.0]), 0.0, 1.0), Completed(np.array([inf, 3.0, 3.0]), 0.0, 1.0)]
    found = combined(labels, [np.array([inf, inf, 2.0]), np.array([inf, nan, nan])], np.full(3, nan), np.zeros(3, int))
    assert found.latencies_s == pytest.approx([inf, inf, 2.0])


def test_programs_that_the_target_measured_count_for_the_widest_source():
    """And where what the near source measured failed on it, the other labels of the task bring both to one level."""
    tasks, nan = np.zeros(6, int), np.nan
    wide, near = Completed(np.array([np.inf, 2.0, 3.0, 4.0, 5.0, 6.0]), 0.0, 1.0), Completed(np.arange(10.0, 70.0, 10.0), 0.0, 1.0)
    wide_s, near_s = np.array([np.inf, nan, nan, nan, 1.0, 1.0]), np.array([1.0, nan, nan, nan, nan, nan])
    found = combined([near, wide], [near_s, wide_s], np.array([nan, nan, nan, nan, 5.0, 6.0]), tasks)
    assert found.latencies_s == pytest.approx([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def test_programs_that_ran_on_the_target_keep_their_values_whatever_two_sources_say(world):
    programs, difference, source_s = world
    target_s = 3 * source_s * np.exp(difference)
    known, near_s, far_s = measured(target_s, 200), measured(target_s, 300, seed=4), source_s
    near_s[np.isnan(near_s)] = np.where(np.arange(N) % 2, source_s, np.nan)[np.isnan(near_s)]
    each = [completed(programs, np.where(np.isnan(s), source_s, s), known) for s in (near_s, far_s)]
    found, there = combined(each, [near_s, far_s], known, programs.tasks), np.isfinite(known)
    assert found.latencies_s[there] == pytest.approx(target_s[there])


def test_failures_stay_failures(world):
    programs, _, source_s = world
    known = measured(2 * source_s, 100)
    source_s[:2], known[:4] = np.inf, [np.nan, 1.0, np.inf, np.nan]
    found = completed(programs, source_s, known).latencies_s
    assert found[0] == np.inf and found[1] == 1.0 and found[2] == np.inf and np.isfinite(found[3])


def test_a_difference_that_follows_from_the_place_on_the_source_is_learned(world):
    """The target takes half of each step of the source's, whatever the programs are."""
    programs, _, source_s = world
    found = completed(programs, source_s, measured(np.sqrt(source_s), 400))
    assert found.share >= 0.75 and found.left < 0.75  # what is left are the levels of the tasks, which nothing tells


def test_many_tasks_tell_a_share_that_few_cannot():
    """Errors of 1 beside a difference of 1: their mean over 400 tasks is known to a twentieth, over four to a half."""
    share = lambda tasks: best_share(1.0 + np.tile([1.0, -1.0], tasks // 2), np.ones(tasks), np.arange(tasks))[0]  # noqa: E731
    assert share(400) == 1.0 and share(4) == 0.0


def test_the_share_by_hand():
    tasks = np.repeat(np.arange(10), 2)
    ratio = np.tile([1.0, -1.0], 10)
    assert best_share(ratio, ratio, tasks) == (1.0, 0.0)
    assert best_share(ratio, 2 * ratio, tasks) == (0.5, 0.0)
    assert best_share(ratio, -ratio, tasks) == (0.0, 1.0)
    for_and_against = np.where(tasks == 0, ratio, np.where(tasks == 1, -0.5 * ratio, 0.0))
    assert best_share(ratio, for_and_against, tasks) == (0.0, 1.0)  # a half of it would be better here, within the error

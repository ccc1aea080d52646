"""Drift: a machine that is merely slower or noisy is none, one that orders programs otherwise is."""

from __future__ import annotations

import numpy as np
import pytest

from tcl_core.evaluation.drift import DRIFTED, SAME_ORDER, UNDECIDED, compare, verdict

TASKS = np.repeat(np.arange(6), 4)
OLD_S = np.tile([1e-3, 2e-3, 3e-3, 6e-3], 6) * np.repeat([1, 0.1, 5, 0.02, 1, 2], 4)  # 36 pairs, all 1.5 times apart or more
CLEAR, LEAST, FALL = 1.3, 0.85, 0.1


def judged(new_s, champion=None):
    found = compare(OLD_S, new_s, TASKS, CLEAR, champion)
    judged, reason = verdict(found, LEAST, FALL)
    return found, judged == DRIFTED, reason


def test_the_same_again():
    found, drifted, reason = judged(OLD_S)
    assert (found.pairs, found.agreement.value, found.ratio.value, found.failed) == (36, 1.0, 1.0, 0)
    assert not drifted
    assert reason == "the machine is as fast as then, ranking unchanged: 100% of 36 clear pairs are in their old order"


def test_noise_of_a_shared_machine_is_no_drift():
    rng = np.random.default_rng(0)
    for _ in range(200):
        noise = np.exp(rng.normal(0, 0.08, 24)) * np.where(rng.random(24) < 0.05, 1.4, 1)
        assert not judged(OLD_S * noise)[1]


@pytest.mark.parametrize(("factor", "told"), [(1.31, "slower by a factor of 1.31"), (0.5, "faster by a factor of 2.00")])
def test_a_common_factor_is_told_and_is_no_drift(factor, told):
    found, drifted, reason = judged(OLD_S * factor)
    assert not drifted and told in reason and "ranking unchanged" in reason
    assert (found.ratio.low, found.ratio.high) == (pytest.approx(factor), pytest.approx(factor))


def test_tasks_may_have_factors_of_their_own():
    found, drifted, _ = judged(OLD_S * np.repeat([1, 1, 3, 1, 3, 1], 4))
    assert not drifted and found.agreement.value == 1.0 and found.spread == pytest.approx((1.0, 3.0))


def test_another_order_is_drift():
    slow = np.tile([5.0, 1.0, 1.0, 1.0], 6)  # each task's fastest program now takes as long as its third to fourth
    found, drifted, reason = judged(OLD_S * slow)
    assert drifted and found.agreement.value == pytest.approx(4 / 6)
    assert reason == ("the machine keeps the order of only 67% of 36 clear pairs (85% needed); the machine is as fast as then")


def test_programs_that_fail_now_are_the_slowest():
    new_s = OLD_S.copy()
    new_s[0::4] = np.inf
    found, drifted, reason = judged(new_s)
    assert drifted and found.agreement.value == 0.5 and found.failed == 6
    assert "6 programs that ran then fail now" in reason


def test_a_champion_that_became_wrong_is_drift_even_where_enough_pairs_stand():
    new_s = OLD_S * np.tile([1.0, 1.0, 1.0, 0.3], 6)  # 1, 2, 3, 1.8: five clear pairs a task, one of them turned
    found = compare(OLD_S, new_s, TASKS, CLEAR, champion=-OLD_S)
    assert (found.then, found.now, found.fall) == (1.0, pytest.approx(0.8), pytest.approx(0.2))
    judged, reason = verdict(found, 0.5, FALL)
    assert judged == DRIFTED and reason.startswith(
        "the champion orders 80% of clear pairs right, 100% before (a fall of 10% is allowed); the machine"
    )
    assert verdict(found, 0.5, 0.3)[0] != DRIFTED
    assert compare(OLD_S, new_s, TASKS, CLEAR, champion=new_s * 0).fall == 0.0  # one that says nothing loses nothing


def test_pairs_that_are_a_little_clearer_now_say_nothing_of_the_champion():
    """It has them wrong; before they were too near to count, and nothing has moved by more than three hundredths."""
    old_s, new_s = np.tile([1.0, 1.28, 2.0, 4.0], 6), np.tile([0.99, 1.3, 2.0, 4.0], 6)
    found = compare(old_s, new_s, TASKS, CLEAR, champion=-np.tile([1.28, 1.0, 2.0, 4.0], 6))
    assert (found.both, found.then, found.now) == (30, 1.0, 1.0) and verdict(found, LEAST, FALL)[0] == SAME_ORDER


def test_a_champions_fall_on_two_pairs_is_no_drift():
    new_s = OLD_S[:8].copy()
    new_s[[0, 1]] = new_s[[1, 0]]
    new_s[[4, 5]] = new_s[[5, 4]]
    found = compare(OLD_S[:8], new_s, TASKS[:8], CLEAR, champion=-OLD_S[:8])
    assert found.fall > FALL and verdict(found, LEAST, FALL)[0] == UNDECIDED


def test_few_pairs_tell_nothing():
    found = compare(OLD_S[:4], OLD_S[3::-1], TASKS[:4], CLEAR)
    assert found.agreement.value == 0.0
    assert verdict(found, LEAST, FALL) == (UNDECIDED, "only 6 clear pairs of programs could be compared")


def test_two_swapped_pairs_are_no_other_order():
    """Of twelve pairs they are more than a tenth, and noise."""
    new_s = OLD_S[:8].copy()
    new_s[[0, 1]] = new_s[[1, 0]]
    new_s[[4, 5]] = new_s[[5, 4]]
    found = compare(OLD_S[:8], new_s, TASKS[:8], CLEAR)
    assert found.pairs == 12 and found.agreement.value == pytest.approx(10 / 12)
    assert verdict(found, LEAST, FALL) == (UNDECIDED, "83% of only 12 clear pairs of programs keep their order, too few to tell")


def test_disturbed_programs_tell_nothing():
    new_s = OLD_S[::-1].copy()
    new_s[:20] = np.nan
    found, _, reason = judged(new_s, champion=-OLD_S)
    assert (found.programs, found.disturbed, found.pairs) == (4, 20, 6)
    assert (
        reason
        == "only 6 clear pairs of programs could be compared, for others on this machine disturbed 20 programs; try again when it is quieter"
    )
    new_s = OLD_S.copy()
    new_s[::4] = np.nan
    found, drifted, _ = judged(new_s, champion=-OLD_S)
    assert not drifted and (found.pairs, found.now) == (18, 1.0)
    assert verdict(compare(OLD_S, OLD_S * np.nan, TASKS, CLEAR, -OLD_S), LEAST, FALL)[0] == UNDECIDED


def test_nothing_ran():
    found, drifted, reason = judged(np.full(24, np.inf))
    assert drifted and np.isnan(found.ratio.value) and found.failed == 24
    assert reason.endswith("; none of 24 programs runs any more")

"""A repeat, and when a program has had enough of them: sequences by hand, on a clock that answers from a list."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tcl_core.measure.job import Protocol
from tcl_core.measure.timing import CALL_S, LAUNCH_S, is_worth_repeating, runs_per_repeat, time_repeat
from tcl_core.records import spread

PLAIN = Protocol(repeats=4, max_repeats=4, min_repeat_ms=10, max_number=200, enough_s=1.0, early_stop_factor=10)


class ListClock:
    """Single runs and means from lists; whatever is asked for beyond them fails the test."""

    between_s, call_s = 0.0, CALL_S

    def __init__(self, single, means=()):
        self.single, self.waiting, self.asked = list(single), list(means), []

    def once(self):
        return self.single.pop(0)

    def mean(self, number):
        self.asked.append(number)
        return self.waiting.pop(0)


def repeats_of(seconds, protocol, best_s=math.inf):
    """How many of these repeats, in seconds, a program gets."""
    return next((n for n in range(1, len(seconds)) if not is_worth_repeating(seconds[:n], protocol, best_s)), len(seconds))


# --- how many runs make a repeat ---


@pytest.mark.parametrize(("once_s", "number"), [(1e-3, 10), (3e-3, 4), (1.0, 1), (1e-5, 200), (0.0, 200), (10e-3, 1), (6e-3, 2)])
def test_runs_until_a_repeat_has_lasted(once_s, number):
    assert runs_per_repeat(once_s, PLAIN) == number


@pytest.mark.parametrize(("warmup", "single"), [(0, [9.0, 2e-3]), (1, [9.0, 2e-3]), (3, [9.0, 8.0, 7.0, 2e-3])])
def test_warmup_and_number(warmup, single):
    """The warm-up (one run at least), one run that chooses the number, then so many."""
    clock = ListClock(single, [3e-3])
    assert time_repeat(clock, replace(PLAIN, warmup=warmup)) == 3e-3
    assert clock.asked == [5] and clock.single == []


def test_a_single_run_on_a_gpu_is_mostly_its_launch():
    """Which a loop's mean, as the best so far is, knows nothing of: the program is not far behind."""
    clock = ListClock([30e-6, 30e-6], [3e-6])
    assert time_repeat(clock, PLAIN, best_s=2e-6) == 30e-6
    clock = ListClock([30e-6, 30e-6], [3e-6])
    clock.call_s = LAUNCH_S
    assert time_repeat(clock, PLAIN, best_s=2e-6) == 3e-6
    clock = ListClock([2e-3, 2e-3])
    clock.call_s = LAUNCH_S
    assert time_repeat(clock, PLAIN, best_s=2e-6) == 2e-3


def test_what_passes_between_runs_is_part_of_a_repeat():
    """Ten milliseconds hold five runs of two, or two with four before each."""
    clock = ListClock([2e-3, 2e-3], [2e-3])
    clock.between_s = 4e-3
    time_repeat(clock, PLAIN)
    assert clock.asked == [2]


def test_a_run_that_is_a_repeat_by_itself_counts():
    """It lasts long enough, so that the run that chose the number is the repeat."""
    clock = ListClock([0.5, 0.012])
    assert time_repeat(clock, PLAIN) == 0.012 and clock.asked == []


def test_a_cold_run_is_a_repeat_by_itself():
    """However short: evicting the caches before each of two hundred runs takes longer than the program is worth."""
    assert time_repeat(ListClock([0.5, 1e-6]), replace(PLAIN, flush_cache=True)) == 1e-6


# --- far behind the best ---


@pytest.mark.parametrize(
    ("warmup", "single_runs", "is_behind"),
    [
        (1, [99.0, 1.0], False),  # cold: the first run loads the code and makes the threads
        (1, [99.0, 9.9], False),
        (1, [99.0, 10.1], True),
        (1, [9.9, 99.0], False),  # one slow run may be bad luck
        (3, [99.0, 98.0, 2.0, 99.0], False),  # the last warm-up counts
        (3, [2.0, 2.0, 30.0, 20.0], True),
        (0, [30.0, 20.0], True),
    ],
)
def test_a_program_far_behind_is_given_up_after_two_slow_runs(warmup, single_runs, is_behind):
    """Ten times slower than the best (1 s) in the last warm-up and in one run more; that run is then the latency."""
    protocol = replace(PLAIN, warmup=warmup, enough_s=1e3, min_repeat_ms=1e6)
    clock = ListClock(single_runs, [7.0])
    assert time_repeat(clock, protocol, best_s=1.0) == (single_runs[-1] if is_behind else 7.0)
    assert clock.single == []


@pytest.mark.parametrize(("once_s", "is_behind"), [(1.2e-6, False), (1.9e-5, False), (2.1e-5, True)])
def test_the_call_of_a_short_program_does_not_count_against_it(once_s, is_behind):
    """80 ns in TVM's loop are more than a microsecond in a single run from Python."""
    assert time_repeat(ListClock([once_s, once_s], [8e-8]), PLAIN, best_s=8e-8) == (once_s if is_behind else 8e-8)


@pytest.mark.parametrize(("seconds", "repeats"), [([10.1e-3] * 4, 1), ([9.9e-3] * 4, 4), ([9.9e-3, *[99e-3] * 3], 4)])
def test_a_program_far_behind_is_not_repeated(seconds, repeats):
    """Unless one of its repeats was not."""
    assert repeats_of(seconds, PLAIN, best_s=1e-3) == repeats


def test_without_a_best_nothing_is_given_up():
    """The first program of a task has nothing to be behind of, however slow it is."""
    assert repeats_of([1e6, 1e6], replace(PLAIN, repeats=2, max_repeats=2, enough_s=1e9)) == 2


# --- enough seconds ---


@pytest.mark.parametrize(
    ("run_s", "repeats"),
    [
        (0.01, 5),  # 5 repeats of 100 ms
        (0.15, 5),  # 0.15, 0.3 .. 0.75 s: none has yet lasted a second
        (0.3, 4),  # 0.9 s after three, 1.2 s after four
        (0.999, 2),
        (1.0, 1),
        (30.0, 1),
    ],
)
def test_a_slow_program_is_repeated_until_it_has_lasted_a_second(run_s, repeats):
    assert repeats_of([run_s] * 5, replace(PLAIN, repeats=5, max_repeats=5, min_repeat_ms=100)) == repeats


@pytest.mark.parametrize(("enough_s", "repeats"), [(0.4, 1), (0.5, 1), (0.6, 2), (1.4, 3), (9.0, 5)])
def test_long_repeats_of_a_fast_program_end_too(enough_s, repeats):
    """Repeats of half a second, made of 50 runs each."""
    protocol = replace(PLAIN, repeats=5, max_repeats=5, min_repeat_ms=500, enough_s=enough_s)
    assert repeats_of([0.01] * 5, protocol) == repeats


def test_a_single_run_that_is_enough_is_a_repeat():
    """Though the repeats that params.yaml asks for would be longer still."""
    assert time_repeat(ListClock([2.0, 2.0]), replace(PLAIN, min_repeat_ms=5000)) == 2.0


def test_repeats_that_differ_end_with_the_seconds_too():
    """0.3 s a run: four of them last more than a second, however much they differ."""
    assert repeats_of([0.3, 0.2, 0.4, 0.3, 0.5, 0.1], replace(PLAIN, repeats=2, max_repeats=9, max_spread=0.1)) == 4


# --- repeats that differ ---


def test_spread_by_hand():
    assert spread([2.0]) == 0
    assert spread([1.0, 1.0]) == 0
    assert spread([4.0, 1.0, 2.0]) == 0.75  # quartiles 1.5 and 3
    assert spread([1.0, 1.0, 9.0, 1.0, 1.0]) == 0


@pytest.mark.parametrize(
    ("milliseconds", "taken"),
    [
        ([2.0, 2.1, 2.3, 2.0], 3),  # quartiles 2.05 and 2.2 around 2.1
        ([2.0, 2.1, 3.0, 2.0, 2.0, 2.0, 2.0], 5),  # one outlier is outvoted
        ([2.0, 3.0, 4.0, 2.0, 3.0, 4.0, 3.0, 3.0], 7),
    ],
)
def test_repeats_that_differ_are_followed_by_more(milliseconds, taken):
    assert repeats_of([m / 1e3 for m in milliseconds], replace(PLAIN, repeats=3, max_repeats=7, max_spread=0.1)) == taken


@pytest.mark.parametrize(("max_spread", "taken"), [(0.0, 5), (10.0, 2)])
def test_the_spread_that_is_enough(max_spread, taken):
    seconds = [1e-3, 1.01e-3, 1e-3, 1e-3, 1e-3, 1e-3]
    assert repeats_of(seconds, replace(PLAIN, repeats=2, max_repeats=6, max_spread=max_spread)) == taken


def test_equal_repeats_need_no_more():
    assert repeats_of([1e-3] * 50, replace(PLAIN, repeats=2, max_repeats=50, max_spread=0.0)) == 2

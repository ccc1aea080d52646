from __future__ import annotations

import math

import pytest

from tcl_core.tuning.budget import ENOUGH, HOPE, Account, Budget


def accounts_of(*pairs):
    return [Account(weight, operations) for weight, operations in pairs]


def play(budget, latency_s):
    """Turns until the budget is spent; ``latency_s`` of a task and its number of trials so far."""
    turns = []
    while turn := budget.next():
        done = budget.accounts[turn.task].trials
        budget.tell(turn.task, [latency_s(turn.task, done + n) for n in range(turn.count)])
        turns.append(turn)
    return turns


def trials(budget):
    return [account.trials for account in budget.accounts]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 30, 64, 201])
def test_exactly_the_trials_are_spent(count):
    budget = Budget(accounts_of((1, 1e9), (3, 1e8), (1, 1e2)), count)
    play(budget, lambda task, n: 1e-3)
    assert sum(trials(budget)) == count and budget.left == 0


def test_each_task_is_reached_before_any_has_its_second_round():
    """Twelve trials for three tasks: one must not take eight at once."""
    budget = Budget(accounts_of((1, 1e9), (1, 1e9), (1, 1e9)), 12)
    turns = play(budget, lambda task, n: 1e-3)
    assert [turn.task for turn in turns[:3]] == [0, 1, 2] and trials(budget) == [4, 4, 4]


def test_what_costs_nothing_gets_one_trial_and_the_rest_goes_elsewhere():
    """A reshape beside two convolutions."""
    budget = Budget(accounts_of((1, 1e9), (20, 1e3), (2, 5e8)), 100)
    play(budget, lambda task, n: (1e-3, 1e-7, 1e-3)[task])
    assert trials(budget)[1] == 1 and min(trials(budget)[0], trials(budget)[2]) >= ENOUGH


def test_a_task_that_turns_out_to_matter_gets_enough():
    """By its operations it is nothing, by the clock it is half of the network."""
    budget = Budget(accounts_of((1, 1e9), (1, 1e3)), 40)
    play(budget, lambda task, n: 1e-3)
    assert trials(budget)[1] >= ENOUGH


def test_trials_go_where_the_time_is_and_still_falls():
    """The first task is as large as the second and stands still; the second falls with each trial; the third is small."""
    budget = Budget(accounts_of((1, 1e9), (1, 1e9), (1, 5e7)), 100)
    play(budget, lambda task, n: (1e-3, 1e-3 * 0.98**n, 5e-5)[task])
    still, falling, small = trials(budget)
    assert falling > 1.5 * still and still > small >= ENOUGH


def test_only_what_fell_lately_counts():
    """Sixteen trials ago the best was 4 times the present one; what fell before says nothing of what is still to be gained."""
    account = Account(1.0, 1.0, [16.0] * ENOUGH + [4.0] * 8 + [1.0] * 16)
    assert account.fall == pytest.approx(math.log(4) / 16)
    assert Account(1.0, 1.0, [16.0] * ENOUGH + [1.0] * 40).fall == pytest.approx(HOPE / 48)


def test_the_weight_counts_as_the_latency_does():
    budget = Budget(accounts_of((6, 1e8), (1, 1e8)), 150)
    play(budget, lambda task, n: 1e-4)
    assert trials(budget)[0] > 1.8 * trials(budget)[1]


def test_a_task_whose_first_round_failed_is_tried_again():
    """All of the first ten fail; it is the costliest task, and its time is guessed from the other's."""
    budget = Budget(accounts_of((1, 1e9), (1, 5e8)), 60)
    play(budget, lambda task, n: math.inf if task == 0 and n < 10 else 1e-3)
    assert budget.accounts[0].best_s == 1e-3 and trials(budget)[0] > 10
    assert budget.network_s() == pytest.approx(2e-3)


def test_a_small_task_that_fails_is_tried_a_few_times():
    budget = Budget(accounts_of((1, 1e9), (1, 1e2)), 50)
    play(budget, lambda task, n: 1e-3 if task == 0 else math.inf)
    assert trials(budget) == [47, 3] and budget.network_s() == math.inf


def test_an_exhausted_task_is_passed_over_and_all_of_them_end_the_run():
    budget, spaces = Budget(accounts_of((1, 1e9), (1, 1e9)), 100), [5, 12]
    while turn := budget.next():
        count = min(turn.count, spaces[turn.task])
        spaces[turn.task] -= count
        budget.tell(turn.task, [1e-3] * count)
    assert trials(budget) == [5, 12] and budget.left == 83


def test_no_tasks_no_turn():
    assert Budget([], 10).next() is None

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tcl_core.errors import DataError, UsageError
from tcl_core.sampler_names import BLIND, SAMPLERS
from tcl_core.sampling.catalogue import pick
from tcl_core.sampling import rdu
from tcl_core.sampling.pool import Pool
from tcl_core.sampling.per_task import turns
from tcl_core.sampling.rdu import _strata, quota
from tcl_core.sampling.scores import normalised, paper_scores_reference


def pool(count=60, labelled=9, seed=3) -> dict:
    rng = np.random.default_rng(seed)
    return dict(
        predictions=rng.normal(size=count),
        operator_types=np.array(["conv2d", "dense", "conv2d", "softmax"])[rng.integers(0, 4, count)],
        labelled_predictions=rng.normal(size=labelled),
        tasks=rng.integers(0, 9, count),
        labelled_tasks=rng.integers(0, 9, labelled),
    )


def rng():
    return np.random.default_rng(0)


def test_samplers_that_ask_no_model_pick_alike_whatever_it_says():
    for sampler in SAMPLERS:
        first, other = pool(), pool() | {"predictions": -pool()["predictions"]}
        same = np.array_equal(*(pick(sampler, budget=9, rng=rng(), **data) for data in (first, other)))
        assert same == (sampler in BLIND), sampler


# --- quota ---


@pytest.mark.parametrize("budget", [0, 1, 2, 7, 59, 60, 500])
def test_quota_sums_to_the_budget_and_never_exceeds_a_type(budget):
    types = pool()["operator_types"]
    seats, counts = quota(types, budget), Counter(types.tolist())
    assert sum(seats.values()) == min(budget, len(types))
    assert all(seats[kind] <= counts[kind] for kind in seats)


def test_quota_by_hand():
    """10 programs, budget 4: 2.4, 1.2 and 0.4 seats; the seat that is left goes to a remainder of 0.4, the
    first by name.
    """
    assert quota(np.array(["a"] * 6 + ["b"] * 3 + ["c"]), 4) == {"a": 3, "b": 1, "c": 0}
    assert quota(np.array([7, 7, 5]), 3) == {5: 1, 7: 2}
    assert quota(np.array([], dtype=str), 3) == {}


@pytest.mark.parametrize("budget", [1, 7, 23, 60])
def test_an_exhausted_type_is_never_picked(budget):
    data = pool()
    data["predictions"] += 10 * (data["operator_types"] == "dense")  # the model loves one type
    chosen = pick("rdu-paper", budget=budget, rng=rng(), **data)
    taken = Counter(data["operator_types"][chosen].tolist())
    assert {k: taken[k] for k in quota(data["operator_types"], budget)} == quota(data["operator_types"], budget)


# --- per task ---


def test_tasks_end_with_equally_many_programs_those_measured_before_among_them():
    tasks, labelled = np.repeat(np.arange(4), [20, 20, 20, 3]), np.repeat([0, 1], [5, 1])
    same = dict(predictions=np.zeros(63), operator_types=np.zeros(63), labelled_predictions=np.zeros(6))
    chosen = pick("per-task", budget=17, rng=rng(), tasks=tasks, labelled_tasks=labelled, **same)
    counts = np.bincount(tasks[chosen], minlength=4) + np.bincount(labelled, minlength=4)
    assert sorted(counts.tolist()) == [3, 6, 7, 7] and counts[3] == 3  # all that the small task has; nobody is far ahead
    orders = {tuple(pick("per-task", budget=3, rng=np.random.default_rng(n), tasks=tasks, labelled_tasks=labelled[:0],
                         **same | {"labelled_predictions": np.zeros(0)}).tolist()) for n in range(9)}  # fmt: skip
    assert len(orders) > 5
    with pytest.raises(ValueError, match="needs tasks and labelled_tasks"):
        pick("per-task", budget=3, rng=rng(), **same)


@pytest.mark.parametrize(
    ("budget", "counts"),
    [(1, [2, 0, 0, 0]), (4, [2, 1, 2, 0]), (5, [2, 2, 2, 0]), (7, [2, 2, 2, 2]), (10, [2, 3, 3, 3])],
)
def test_a_lone_program_has_nothing_to_be_compared_with_so_a_second_comes_first(budget, counts):
    tasks, labelled = np.repeat(np.arange(4), [1, 9, 9, 9]), np.zeros(1, int)  # the first task has one, and one more in the pool
    found = turns(tasks, labelled, budget, rng())
    assert found[0] == 0
    now = np.bincount(found, minlength=4) + [1, 0, 0, 0]
    assert now[0] == 2 and sorted(now[1:].tolist()) == sorted(counts[1:])


# --- all samplers ---


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_picks_are_distinct_deterministic_and_as_many_as_the_budget(sampler):
    data = pool()
    chosen = pick(sampler, budget=17, rng=rng(), **data)
    assert len(set(chosen.tolist())) == 17 and chosen.min() >= 0 and chosen.max() < 60
    assert chosen.tolist() == pick(sampler, budget=17, rng=rng(), **data).tolist()
    assert sorted(pick(sampler, budget=999, rng=rng(), **data).tolist()) == list(range(60))
    assert pick(sampler, budget=0, rng=rng(), **data).tolist() == []


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_an_empty_pool_or_no_labels_yet(sampler):
    assert pick(sampler, budget=3, rng=rng(), **pool(count=0)).tolist() == []
    assert len(pick(sampler, budget=3, rng=rng(), **pool(labelled=0))) == 3


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_equal_programs_are_picked_in_random_order_not_by_position(sampler):
    same = dict(
        predictions=np.ones(30), operator_types=np.zeros(30, int), labelled_predictions=np.ones(2),
        tasks=np.zeros(30, int), labelled_tasks=np.zeros(2, int),
    )  # fmt: skip
    firsts = {int(pick(sampler, budget=1, rng=np.random.default_rng(seed), **same)[0]) for seed in range(20)}
    assert len(firsts) > 5


def test_random_picks_every_program_about_equally_often():
    data = pool(count=10)
    draws = np.concatenate([pick("random", budget=3, rng=np.random.default_rng(s), **data) for s in range(1000)])
    assert np.bincount(draws, minlength=10) == pytest.approx(np.full(10, 300), abs=75)  # 5 standard deviations


# --- rdu as printed ---


def test_paper_pick_by_hand():
    """Labelled 0 and 1; the pool 0.5, 0.9, 0.6 has d 0.5, 0.1, 0.4, so f * d is .25, .09, .24.

    u = 2/3 * 1/4 + 2/9 * (f - 1/2)^2 adds 0, .0356 and .0022 to a constant: totals .25, .1256, .2422.
    """
    chosen = pick("rdu-paper", np.array([0.5, 0.9, 0.6]), np.array(["a", "a", "a"]), np.array([0.0, 1.0]), 3, rng=rng())
    assert chosen.tolist() == [0, 2, 1]


def test_paper_pick_equals_the_naive_argmax_with_types_dropped():
    data = pool(count=80, labelled=11)
    f, labelled = normalised(data["predictions"], data["labelled_predictions"])
    scores, left, naive = paper_scores_reference(f, labelled), quota(data["operator_types"], 25), []
    while len(naive) < 25:
        best = int(np.argmax(scores))
        scores[best] = -np.inf
        if left[data["operator_types"][best]]:
            left[data["operator_types"][best]] -= 1
            naive.append(best)
    assert pick("rdu-paper", budget=25, rng=rng(), **data).tolist() == naive


# --- rdu with other means ---


def test_rdu_by_hand():
    """Nine programs of a task in the order predicted, three picks: strata of the fastest two, the next three and the last four.

    (1/3)^1.5 and (2/3)^1.5 of 9 are 1.7 and 4.9.  Of each stratum any.
    """
    data = dict(operator_types=np.zeros(9), labelled_predictions=np.zeros(0), tasks=np.zeros(9, int), labelled_tasks=np.zeros(0, int))
    draws = [sorted(pick("rdu", np.arange(9.0)[::-1], budget=3, rng=np.random.default_rng(n), **data).tolist()) for n in range(300)]
    assert [sorted(set(column)) for column in zip(*draws, strict=True)] == [[0, 1], [2, 3, 4], [5, 6, 7, 8]]
    counts = np.bincount(np.concatenate(draws), minlength=9)
    assert counts == pytest.approx(np.repeat([150, 100, 75], [2, 3, 4]), abs=45)  # 5 standard deviations


def test_of_a_stratum_the_preferred_is_taken():
    """As by hand above, with strata as wide as at 2: the fastest one, the next three and the last five."""
    preferred = np.array([0, 1, 3, 2, 0, 0, 4, 0, 3])
    seen = Pool(np.arange(9.0)[::-1], np.zeros(9), np.zeros(0), np.zeros(9, int), np.zeros(0, int))
    assert sorted(rdu.pick(seen, 3, rng(), 2.0, preferred).tolist()) == [0, 2, 6]


@pytest.mark.parametrize("size", [1, 2, 5, 9, 40])
def test_strata_are_as_many_as_asked_in_order_and_none_is_empty(size):
    for count in range(1, size + 1):
        strata = _strata(size, count, 2.0)
        assert np.unique(strata).tolist() == list(range(count)) and (np.diff(strata) >= 0).all()
    assert np.bincount(_strata(40, 4, 2.0)).tolist() == [2, 8, 12, 18]  # 1/16, 4/16 and 9/16 of 40 are 2.5, 10 and 22.5, rounded to even


@pytest.mark.parametrize("budget", [1, 7, 24, 55])
def test_rdu_equals_the_naive_choice_task_by_task(budget):
    data = pool()
    data["predictions"], preferred = np.unique(data["predictions"]), rng().permutation(60)  # no two are equal
    chosen = rdu.pick(Pool(**data), budget, rng(), preferred=preferred)
    assert len(chosen) == budget
    for task in np.unique(data["tasks"]):
        rows, mine = np.flatnonzero(data["tasks"] == task), chosen[data["tasks"][chosen] == task]
        places = sorted(rows, key=lambda row: -data["predictions"][row])
        expected, start = set(), 0
        for number in range(len(mine)):
            end = round(len(places) * ((number + 1) / len(mine)) ** 1.5)
            end = min(max(end, start + 1), len(places) - (len(mine) - number - 1))
            expected.add(max(places[start:end], key=lambda row: preferred[row]))
            start = end
        assert set(mine.tolist()) == expected
    counts = np.bincount(data["tasks"][chosen], minlength=9) + np.bincount(data["labelled_tasks"], minlength=9)
    open_tasks = [t for t in range(9) if (data["tasks"] == t).sum() > (data["tasks"][chosen] == t).sum()]
    picked_tasks = [t for t in open_tasks if (data["tasks"][chosen] == t).any()]
    assert all(counts[task] <= max(2, counts[open_tasks].min() + 1) for task in picked_tasks)  # two at once


def test_wrong_calls_say_what_is_wrong():
    data = pool()
    with pytest.raises(UsageError, match="unknown sampler 'rud' in collect.sampler of params.yaml; did you mean 'rdu'"):
        pick("rud", budget=1, rng=rng(), **data)
    with pytest.raises(ValueError, match="'rdu' needs tasks and labelled_tasks"):
        pick("rdu", budget=1, rng=rng(), **data | dict(tasks=None))
    with pytest.raises(ValueError, match="tasks has 59 rows where there are 60 programs"):
        pick("rdu", budget=1, rng=rng(), **data | dict(tasks=data["tasks"][1:]))
    with pytest.raises(ValueError, match="cannot be negative"):
        pick("random", budget=-1, rng=rng(), **data)
    data["predictions"][3] = np.nan
    with pytest.raises(DataError, match="predictions are not all finite"):
        pick("random", budget=1, rng=rng(), **data)

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tcl_core.programs.sketches import Sketch, Slot
from tcl_core.tuning.search import DecisionSearch


def sketch_of(index, *sizes):
    """A sketch of one-column slots with 0 .. size - 1 as choices; nothing here replays a trace."""
    slots = [Slot("categorical", n, n, 1, np.arange(size, dtype=np.int32)[:, None]) for n, size in enumerate(sizes)]
    return Sketch("key", index, None, tuple(slots))


def search_of(sketches, score, **options):
    def scores(candidates):
        return np.array([score(c) for c in candidates], dtype=np.float64)

    return DecisionSearch(sketches, scores, np.random.default_rng(options.pop("seed", 0)), **options)


def hill(candidate):
    """One optimum: sketch 1, every decision 3."""
    index, decisions = candidate
    return -sum(abs(d - 3) for d in decisions) - 5 * (index != 1)


@pytest.fixture
def sketches():
    return [sketch_of(0, 8, 8, 8, 8), sketch_of(1, 8, 8, 8, 8)]


@pytest.mark.parametrize("seed", range(5))
def test_the_optimum_comes_first(sketches, seed):
    """One of 8192 programs, found by 64 candidates over ten generations."""
    search = search_of(sketches, hill, seed=seed, population=64, generations=10)
    assert search.propose(8)[0] == (1, (3, 3, 3, 3))


def test_an_optimum_of_joint_choices(sketches):
    """Neither decision alone shows the way; the best of all is still among the proposals of a small space."""
    best = (0, (7, 1, 0, 0))
    search = search_of([sketch_of(0, 8, 8, 1, 1)], lambda c: float(c == best), population=64)
    assert search.propose(4)[0] == best


def test_proposals_are_distinct_and_best_first(sketches):
    search = search_of(sketches, hill, population=64, explore=0.25)
    found = search.propose(16)
    assert len(found) == 16 == len(set(found))
    greedy = [hill(c) for c in found[:12]]
    assert greedy == sorted(greedy, reverse=True)
    assert min(hill(c) for c in found[12:]) < greedy[-1]  # the random ones


def test_nothing_measured_is_proposed_again(sketches):
    search = search_of(sketches, hill, population=64)
    seen = set()
    for _ in range(12):
        proposals = search.propose(16)
        assert len(proposals) == 16 and not seen & set(proposals)
        seen |= set(proposals)
        for candidate in proposals:
            search.tell(candidate, np.inf if candidate[1][0] == 0 else 1.0 - hill(candidate) / 100)


def test_a_small_space_is_exhausted_and_then_nothing_is_left():
    search = search_of([sketch_of(0, 3, 2), sketch_of(1, 4)], lambda c: 0.0, population=32)
    found = []
    for _ in range(20):
        proposals = search.propose(4)
        for candidate in proposals:
            search.tell(candidate, 1.0)
        found += proposals
    everything = {(0, d) for d in product(range(3), range(2))} | {(1, (d,)) for d in range(4)}
    assert len(found) == 10 and set(found) == everything
    assert search.propose(4) == []


def test_a_space_of_one_program():
    search = search_of([sketch_of(0)], lambda c: 0.0)
    assert search.propose(4) == [(0, ())]
    search.tell((0, ()), 1.0)
    assert search.propose(4) == []


def test_the_fastest_measured_programs_are_parents():
    """Of 16 million programs, those that differ in one decision from the measured one are tried; not from a failed one."""
    fast, failed, asked = (0, (50, 50, 50, 50)), (0, (20, 20, 20, 20)), []
    search = search_of([sketch_of(0, 64, 64, 64, 64)], lambda c: float(asked.append(c) or 0), population=64)
    search.tell(fast, 1e-6)
    search.tell(failed, np.inf)
    search.propose(4)

    def neighbours(of):
        return sum(sum(a == b for a, b in zip(c[1], of[1], strict=True)) == 3 for c in set(asked))

    assert neighbours(fast) >= 5 and neighbours(failed) == 0


def test_the_best_of_several_measurements_counts(sketches):
    search = search_of(sketches, hill)
    for latency in (2.0, 1.0, np.inf, 3.0):
        search.tell((0, (0, 0, 0, 0)), latency)
    assert search.measured == {(0, (0, 0, 0, 0)): 1.0}


@pytest.mark.parametrize(("explore", "wanted"), [(0.0, 0), (1.0, 10)])
def test_exploration_is_a_share_of_the_proposals(explore, wanted):
    """With a score that favours the even ones, what is proposed against it was drawn at random."""
    search = search_of([sketch_of(0, 64, 64)], lambda c: -float(sum(c[1])), population=128, explore=explore, generations=6)
    proposals = search.propose(10)
    assert sum(sum(decisions) > 12 for _, decisions in proposals) >= wanted * 0.8
    assert len(proposals) == 10
    if not wanted:
        assert all(sum(decisions) <= 12 for _, decisions in proposals)


def test_proposals_repeat_with_the_seed(sketches):
    first, second, other = (search_of(sketches, hill, seed=s, population=32).propose(8) for s in (4, 4, 5))
    assert first == second != other


def test_the_score_is_asked_for_candidates_of_known_sketches_only(sketches):
    asked = []

    def score(candidate):
        asked.append(candidate)
        return 0.0

    search_of(sketches, score, population=16, generations=2).propose(4)
    assert {index for index, _ in asked} <= {0, 1}
    assert all(len(d) == 4 and all(0 <= x < 8 for x in d) and all(type(x) is int for x in d) for _, d in asked)

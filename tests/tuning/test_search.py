from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tcl_core.programs.sketches import Sketch, Slot
from tcl_core.tuning.belief import Views
from tcl_core.programs.unrolling import COSTLY
from tcl_core.tuning.search import DecisionSearch


def sketch_of(index, *sizes):
    """A sketch of one-column slots with 0 .. size - 1 as choices; nothing here replays a trace."""
    slots = [Slot("categorical", n, n, 1, np.arange(size, dtype=np.int32)[:, None]) for n, size in enumerate(sizes)]
    return Sketch("key", index, None, tuple(slots))


def search_of(sketches, score, **options):
    def view(candidates):
        width = max(len(decisions) for _, decisions in candidates)
        padded = [[index, *decisions, *[0] * (width - len(decisions))] for index, decisions in candidates]
        return Views(np.array([score(c) for c in candidates], np.float64), (np.array(padded, np.float64),))

    options = {"explore": 0.0} | options
    return DecisionSearch(sketches, view, np.random.default_rng(options.pop("seed", 0)), **options)


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


def test_proposals_are_distinct_and_promising(sketches):
    """A model's favourites, not all of one kind: the best comes first, and no random one is as bad as most are."""
    search = search_of(sketches, hill, population=64, generations=6)
    found = search.propose(16)
    assert len(found) == 16 == len(set(found))
    at_random = np.mean([hill(c) for c in search._random(500)])
    assert hill(found[0]) == max(map(hill, found)) and min(map(hill, found)) > at_random


@pytest.mark.parametrize("taken", [4, 16, 32])
def test_any_part_of_the_proposals_has_its_share_of_random_ones(taken):
    """Callers ask for more than they take, since some turn out to be invalid: the random ones must not be behind."""
    search = search_of([sketch_of(0, 64, 64)], lambda c: -float(sum(c[1])), population=128, explore=0.5, generations=6)
    far = [sum(decisions) > 20 for _, decisions in search.propose(64)[:taken]]
    assert abs(sum(far) - taken / 2) <= max(1, taken / 8)


def test_small_batches_explore_too():
    """One in ten, in rounds of four: not none, as four tenths are rounded to."""
    search, at_random = search_of([sketch_of(0, 64, 64)], lambda c: -float(sum(c[1])), population=128, explore=0.1), 0
    for _ in range(10):
        for candidate in search.propose(4):
            at_random += sum(candidate[1]) > 40
            search.tell(candidate, 1e-3 * (1 + sum(candidate[1])))
    assert 2 <= at_random <= 5


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


def test_a_space_of_which_no_draw_fits_proposes_nothing_until_one_does(monkeypatch):
    """As a GPU's may be, most of whose draws no device could launch."""
    search = search_of([sketch_of(0, 4, 4)], hill)
    draws = search._random
    monkeypatch.setattr(search, "_random", lambda count: [])
    assert search.propose(4) == []
    monkeypatch.setattr(search, "_random", draws)
    assert len(search.propose(4)) == 4


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
    assert sum(sum(decisions) > 20 for _, decisions in proposals) >= wanted * 0.8
    assert len(proposals) == 10
    if not wanted:
        assert all(sum(decisions) <= 20 for _, decisions in proposals)


def tune(search, latency_s, rounds, count=8):
    """The best latency after each round."""
    best = []
    for _ in range(rounds):
        for candidate in search.propose(count):
            search.tell(candidate, latency_s(candidate))
        best.append(min(search.measured.values()))
    return best


def far_from(target):
    """Seconds that rise with the distance to one program of 4096."""
    return lambda c: 1e-3 * np.exp(sum(abs(d - t) for d, t in zip(c[1], target, strict=True)) / 4)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_measured_corrects_a_champion_that_is_wrong(seed):
    """It favours the corner that is farthest from the fastest program; after some rounds the search is there all the same."""
    latency_s = far_from((6, 6, 6, 6))
    search = search_of([sketch_of(0, 8, 8, 8, 8)], lambda c: -float(sum(c[1])), seed=seed, population=64)
    best = tune(search, latency_s, 8)
    assert best[0] > 2e-3 and best[-1] <= 1.3e-3


@pytest.mark.parametrize("seed", range(3))
def test_without_a_champion_the_search_learns_from_scratch(seed):
    latency_s = far_from((5, 2, 6, 1))
    search = search_of([sketch_of(0, 8, 8, 8, 8)], lambda c: 0.0, seed=seed, population=64)
    tune(search, latency_s, 8)
    learned = [latency_s(c) for c in list(search.measured)[32:]]
    assert min(search.measured.values()) <= 1.3e-3
    assert np.median(learned) < 0.6 * np.median([latency_s(c) for c in list(search.measured)[:8]])


def test_the_first_batch_without_a_champion_is_random():
    """Nothing tells programs apart, and the farthest corners are no better start than any other programs."""
    search = search_of([sketch_of(0, 64, 64)], lambda c: 0.0, population=64)
    found = np.array([decisions for _, decisions in search.propose(32)])
    assert 24 < found.mean() < 39 and 14 < found.std() < 23


def test_a_guess_is_what_the_champion_ranks_first_among_draws(sketches):
    """As its seed draws them, in the champion's order, and nothing is learned or waited for."""
    search, same = search_of(sketches, hill, population=64), search_of(sketches, hill, population=64)
    found = search.guess(5)
    assert found == sorted(same._random(64), key=hill, reverse=True)[:5] and not search.measured and not search.excluded
    assert hill(found[0]) > hill(found[4])


def test_without_a_champion_draws_are_guessed_as_they_come_and_without_a_draw_nothing(sketches, monkeypatch):
    search, same = search_of(sketches, lambda c: 0.0), search_of(sketches, lambda c: 0.0)
    assert search.guess(5) == same._random(256)[:5]
    assert search_of([sketch_of(0)], lambda c: 0.0).guess(5) == [(0, ())]  # there is no other program
    search = search_of(sketches, hill)
    monkeypatch.setattr(search, "_random", lambda count: [])
    assert search.guess(5) == []


def test_no_guess_is_costly_to_build():
    search = search_of([sketch_of(0, 4, 64)], lambda c: float(c[1][0]), population=64)
    search.unroll = lambda candidate: COSTLY * (candidate[1][0] == 3)
    assert {decisions[0] for _, decisions in search.guess(4)} == {2}


def test_a_batch_is_no_heap_of_twins():
    """Two peaks that the champion thinks equal: without regard to each other all picks would be around one of them."""
    peaks = ((8, 8), (56, 56))

    def score(candidate):
        return -min(sum(abs(d - p) for d, p in zip(candidate[1], peak, strict=True)) + 0.01 * peak[0] for peak in peaks)

    search = search_of([sketch_of(0, 64, 64)], score, population=128, generations=4)
    sides = [sum(decisions) < 64 for _, decisions in search.propose(8)]
    assert 2 <= sum(sides) <= 6


def test_who_lives_on_is_not_scored_again():
    asked = []
    search = search_of([sketch_of(0, 64, 64, 64)], lambda c: float(asked.append(c) or -sum(c[1])), population=64)
    first = search.propose(4)
    assert len(asked) == len(set(asked))
    for candidate in first:
        search.tell(candidate, 1e-3)
    lived, seen = set(search._alive), len(asked)
    search.propose(4)
    assert not lived & set(asked[seen:]) and len(asked) > seen


@pytest.mark.parametrize("favoured", [True, False])
def test_programs_that_are_costly_to_build_keep_to_their_quota(favoured):
    """One in ten over all rounds, though the model likes nothing else; no more where it does not like them."""
    sketch, steps = sketch_of(0, 64, 64, 4), (0, 16, 64, 512)
    search = search_of([sketch], lambda c: float(c[1][2] == 3) * (1 if favoured else -1), population=128, generations=6)
    search.unroll = lambda candidate: steps[candidate[1][2]]
    costly = []
    for _ in range(5):
        batch = search.propose(16)[:8]  # as who replays them takes them
        costly += [search.unroll(candidate) >= COSTLY for candidate in batch]
        for candidate in batch:
            search.tell(candidate, 1e-3)
    assert len(costly) == 40 and (sum(costly) == 4 if favoured else sum(costly) <= 4)


def of_the_lower_half(sketch, decisions):
    return decisions[:, 0] < 32


@pytest.mark.parametrize(("lean", "least", "most"), [(0.0, 0.4, 0.6), (0.5, 0.65, 0.85), (1.0, 1.0, 1.0)])
def test_draws_lean_to_what_is_likely_to_be_fast(lean, least, most):
    """Half of what is drawn uniformly is of the kind as well."""
    search = search_of([sketch_of(0, 64, 64)], lambda c: 0.0, leans=of_the_lower_half, lean=lean)
    drawn = search._random(400)
    assert least <= np.mean([decisions[0] < 32 for _, decisions in drawn]) <= most


def test_a_kind_of_which_there_is_nothing_leaves_the_draws_uniform():
    search = search_of([sketch_of(0, 64, 64)], lambda c: 0.0, leans=lambda sketch, decisions: np.zeros(len(decisions), bool), lean=0.9)
    assert len(search._random(400)) > 350


@pytest.mark.parametrize(("lean", "most"), [(0.0, 1.0), (0.9, 0.2)])
def test_children_that_leave_the_kind_mostly_go(lean, most):
    """A mutation of the slot that tells draws it anew, so it leaves the lower half as often as not."""
    search = search_of([sketch_of(0, 64, 64)], lambda c: 0.0, leans=of_the_lower_half, lean=lean, population=512)
    children = search._children([(0, (number % 32, number)) for number in range(64)])
    left = np.mean([decisions[0] >= 32 for _, decisions in children])
    assert (left > 0.2) == (lean == 0.0) and left <= most


def test_a_space_of_costly_programs_is_searched_all_the_same():
    search = search_of([sketch_of(0, 4, 4)], lambda c: 0.0, population=32)
    search.unroll = lambda candidate: COSTLY
    assert len(search.propose(8)) == 8


def test_what_is_excluded_is_neither_proposed_nor_learned_from():
    search = search_of([sketch_of(0, 3, 2)], lambda c: 0.0, population=32)
    search.exclude((0, (0, 0)))
    assert set(search.propose(20)) == {(0, d) for d in product(range(3), range(2))} - {(0, (0, 0))}
    assert search.measured == {}
    for decisions in product(range(3), range(2)):
        search.exclude((0, decisions))
    assert search.propose(4) == []


def test_excluded_candidates_do_not_crowd_out_others():
    """The champion likes nothing but names that are other programs'; the search proposes programs all the same, and no random ones."""
    search = search_of([sketch_of(0, 4, 64, 64)], lambda c: 100.0 * (c[1][0] == 3) - sum(c[1]), population=64, generations=6)
    for pair in product(range(64), range(64)):
        search.exclude((0, (3, *pair)))
    found = search.propose(8)
    assert len(found) == 8 and all(decisions[0] < 3 and sum(decisions) < 20 for _, decisions in found)


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

"""Evolutionary search over decision vectors: thousands are scored for each one that is replayed.

Stock MetaSchedule replays a schedule for every candidate it scores; this search replays only its proposals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tcl_core.programs.registers import Fits
from tcl_core.programs.sketches import Sketch
from tcl_core.programs.unrolling import COSTLY, COSTLY_SHARE
from tcl_core.tuning.belief import Belief, Picker, Points, Scale, Views, gains_of, joined, worth_learning

Candidate = tuple[int, tuple[int, ...]]
"""(sketch index, decisions)."""
View = Callable[[Sequence[Candidate]], Views]

CURIOSITY = 1.0  # standard deviations of the belief added to the expected gain
FOUNDERS = 4  # fastest measured programs, which rank first as parents whatever the others promise
REDRAWS = 32  # further draws per wanted vector, where some of the first draws are not of the kind


@dataclass
class DecisionSearch:
    """Proposes programs of one task, and learns from their measurements.

    view         gives the champion's scores of candidates, and their features
    population   candidates alive in a generation
    generations  rounds of mutation and crossover per proposal
    explore      share of proposals drawn at random, so that the model's blind spots get measured too
    unroll       steps that a candidate unrolls, on which the cost of its build depends
    fits         tells, without a replay, which vectors may be valid programs; others are never considered
    leans, lean  ``leans`` tells which vectors are likelier to be fast; ``lean`` is their share among random draws, as far as
                 there are enough, and the probability that a child of the other kind is dropped
    splits       tells which vectors have columns that the compiler splits well (``transfer.adapted``)
    measured     candidate -> seconds, inf where it failed
    excluded     candidates that are invalid, or other names of programs
    waiting      candidates whose results are due
    """

    sketches: Sequence[Sketch]
    view: View
    rng: np.random.Generator
    population: int = 256
    generations: int = 3
    explore: float = 0.1
    unroll: Callable[[Candidate], int] = lambda candidate: 0
    fits: Fits = lambda sketch, decisions: np.ones(len(decisions), dtype=bool)
    leans: Fits = lambda sketch, decisions: np.ones(len(decisions), dtype=bool)
    lean: float = 0.0
    splits: Fits = lambda sketch, decisions: np.ones(len(decisions), dtype=bool)
    measured: dict[Candidate, float] = field(default_factory=dict)
    excluded: set[Candidate] = field(default_factory=set)
    waiting: list[Candidate] = field(default_factory=list)
    _scale: Scale | None = None
    _alive: list[Candidate] = field(default_factory=list)
    _seen: dict[Candidate, Points] = field(default_factory=dict)  # of those alive, picked, measured or waiting

    def propose(self, count: int) -> list[Candidate]:
        """Up to ``count`` distinct candidates that were not measured, the most promising first.

        Random candidates, and those that are costly to build, are spread evenly among the others: any prefix of the proposals
        has its share of both.
        """
        fresh = self._random(self.population)
        self._measure_scale(fresh)
        if self._scale is None:
            return []
        belief = self._belief()
        merits: dict[Candidate, float] = {}  # upper confidence bound of the gain, for each candidate met in this proposal
        alive = self._best(self._first_generation(fresh), belief, merits)
        for _ in range(self.generations):
            alive = self._best([*alive, *self._children(alive)], belief, merits)
        batch = self._batch([c for c in alive if self._is_new(c)], belief, count)
        self._alive = alive[: self.population // 2]
        kept = {*self._alive, *batch, *self.measured, *self.waiting}
        self._seen = {c: seen for c, seen in self._seen.items() if c in kept}
        return batch

    def guess(self, count: int) -> list[Candidate]:
        """Up to ``count`` random candidates, none costly to build, the champion's favourites first; without a champion in random order.

        For a task of which nothing will be measured, or nothing ran.  They are not evolved: tried on 58 tasks, that gained nothing.
        """
        drawn = [candidate for candidate in self._random(self.population) if self._is_new(candidate) and not self._is_costly(candidate)]
        self._measure_scale(drawn)
        scores = self._points(drawn).scores
        self._seen = {}  # nothing more is asked of this search, and hundreds of tasks may be guessed
        return [drawn[row] for row in np.argsort(-scores, kind="stable")[:count]]

    def tell(self, candidate: Candidate, latency_s: float) -> None:
        """Remember a measurement; inf for a candidate that failed.  Of several, the fastest counts."""
        self.measured[candidate] = min(latency_s, self.measured.get(candidate, np.inf))

    def exclude(self, candidate: Candidate) -> None:
        """Never propose this candidate, nor let it into a generation."""
        self.excluded.add(candidate)

    def _is_new(self, candidate: Candidate) -> bool:
        return candidate not in self.measured and candidate not in self.excluded and candidate not in self.waiting

    def _measure_scale(self, sample: Sequence[Candidate]) -> None:
        """Set the scale from the first candidates met; for an empty sample, from another draw, or else from the measured ones."""
        if self._scale is None:
            if not (sample := sample or self._random(self.population) or list(self.measured)):
                return  # no candidates: no scale, and nothing to propose
            views = self.view(sample)
            self._scale = Scale(views)
            self._remember(sample, views)

    def _points(self, candidates: Sequence[Candidate]) -> Points:
        """Points of candidates, each viewed only once while it lives: viewing takes nearly all of a search's time."""
        if unseen := [candidate for candidate in dict.fromkeys(candidates) if candidate not in self._seen]:
            self._remember(unseen, self.view(unseen))
        return joined([self._seen[candidate] for candidate in candidates])

    def _remember(self, candidates: Sequence[Candidate], views: Views) -> None:
        points = self._scale(views)
        self._seen |= {candidate: points.take([row]) for row, candidate in enumerate(candidates)}

    def _belief(self) -> Belief:
        """The belief from the measured programs that are ``worth_learning``."""
        latencies_s, candidates = list(self.measured.values()), list(self.measured)
        rows = worth_learning(latencies_s)
        return Belief(self._points([candidates[row] for row in rows]), gains_of(latencies_s)[rows])

    def _best(self, candidates: Sequence[Candidate], belief: Belief, merits: dict[Candidate, float]) -> list[Candidate]:
        """The ``population`` distinct candidates that promise most, best first; adds new ones to ``merits``.

        Leaves out excluded candidates: other names of a program promise as much as it does, and would crowd it out.
        """
        distinct = [candidate for candidate in dict.fromkeys(candidates) if candidate not in self.excluded]
        new = [candidate for candidate in distinct if candidate not in merits]
        mean, deviation = belief.of(self._points(new))
        merits |= zip(new, (mean + CURIOSITY * deviation).tolist(), strict=True)
        return sorted(distinct, key=lambda candidate: -merits[candidate])[: self.population]

    def _first_generation(self, fresh: Sequence[Candidate]) -> list[Candidate]:
        """The fastest measured programs, the best survivors of the last proposal, and fresh ones."""
        return [*self._fastest(self.population // 8), *self._alive, *fresh]

    def _fastest(self, count: int) -> list[Candidate]:
        """The fastest measured programs, best first."""
        ran = sorted((s, c) for c, s in self.measured.items() if np.isfinite(s))
        return [candidate for _, candidate in ran[:count]]

    def _batch(self, promising: list[Candidate], belief: Belief, count: int) -> list[Candidate]:
        """Pick promising candidates, and random ones by the share ``explore``.

        Keeps to the quota of costly ones while there are others.  Waiting candidates count as measured.
        """
        known = [*self.waiting, *promising]
        picker, places = Picker(belief, self._points(known), CURIOSITY), {c: n for n, c in enumerate(known)}
        for place in range(len(self.waiting)):
            picker.take(place)
        cheap = np.array([not self._is_costly(candidate) for candidate in known], dtype=bool)
        draws = [candidate for candidate in self._random(4 * count) if self._is_new(candidate)]

        def by_merit(cheap_only: bool) -> Candidate | None:
            place = picker.best(cheap | (not cheap_only))
            return None if place is None else known[place]

        def by_chance(cheap_only: bool) -> Candidate | None:
            left = (c for c in draws if c not in picked and not (cheap_only and self._is_costly(c)))
            return next(left, None)

        picked: dict[Candidate, None] = {}
        costly, before = sum(map(self._is_costly, [*self.measured, *self.waiting])), len(self.measured) + len(self.waiting)
        blind = not self.measured and not belief.has_opinion(self._points(promising))
        for turn in range(before, before + count):
            explores = blind or int((turn + 1) * self.explore + 0.5) > int(turn * self.explore + 0.5)
            sources = (by_chance, by_merit) if explores else (by_merit, by_chance)
            spent = costly >= math.ceil(COSTLY_SHARE * (turn + 1))
            offers = (source(cheap_only) for cheap_only in ((True, False) if spent else (False,)) for source in sources)
            candidate = next((offer for offer in offers if offer is not None), None)
            if candidate is None:
                break
            picked[candidate] = None
            costly += self._is_costly(candidate)
            if candidate in places:
                picker.take(places[candidate])
        return list(picked)

    def _is_costly(self, candidate: Candidate) -> bool:
        return self.unroll(candidate) >= COSTLY

    def _random(self, count: int) -> list[Candidate]:
        which = self.rng.integers(len(self.sketches), size=count)
        found: list[Candidate] = []
        for number, sketch in enumerate(self.sketches):
            found += _candidates(sketch, self._drawn(sketch, int((which == number).sum())))
        distinct = list(dict.fromkeys(found))
        return [distinct[row] for row in self.rng.permutation(len(distinct))]

    def _drawn(self, sketch: Sketch, count: int) -> np.ndarray:
        """(count, width) random vectors that fit, the share ``lean`` among those that also lean; fewer where few fit."""
        leaning = self._of_kind(sketch, round(self.lean * count), lambda *given: self.fits(*given) & self.leans(*given))
        return np.concatenate([leaning, self._of_kind(sketch, count - len(leaning), self.fits)])

    def _of_kind(self, sketch: Sketch, count: int, kind: Fits) -> np.ndarray:
        """Up to ``count`` vectors (rows) of a kind, drawn uniformly within it."""
        drawn = sketch.sample(count, self.rng)
        found = drawn[kind(sketch, drawn)]
        if len(found) == count:
            return found
        more = sketch.sample(REDRAWS * count, self.rng)
        return np.concatenate([found, more[kind(sketch, more)]])[:count]

    def _children(self, alive: Sequence[Candidate]) -> list[Candidate]:
        """Children of parents drawn by rank: all are mutated, half of them after a crossover with a parent of the same sketch.

        The fastest measured programs rank first: being known, they promise less than they are worth as parents.
        """
        ranked = list(dict.fromkeys([*self._fastest(FOUNDERS), *alive]))
        weight = 1.0 / (2.0 + np.arange(len(ranked)))
        parents = self.rng.choice(len(ranked), size=self.population, p=weight / weight.sum()) if ranked else ()
        children: list[Candidate] = []
        for sketch in self.sketches:
            rows = [ranked[p][1] for p in parents if ranked[p][0] == sketch.index]
            if not rows or not sketch.width:
                continue
            matrix = np.array(rows, dtype=np.int32)
            half = len(matrix) // 2
            partners = matrix[self.rng.integers(len(matrix), size=half)]
            crossed = sketch.crossover(matrix[:half], partners, self.rng)
            mutated = sketch.mutate(np.concatenate([crossed, matrix[half:]]), self.rng)
            spared = self.rng.random(len(mutated)) >= self.lean
            kept = self.fits(sketch, mutated) & (self.leans(sketch, mutated) | spared)
            children += _candidates(sketch, mutated[kept])
        return children


def _candidates(sketch: Sketch, decisions: np.ndarray) -> list[Candidate]:
    return [(sketch.index, tuple(row)) for row in decisions.tolist()]

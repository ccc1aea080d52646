"""Evolutionary search over decision vectors: thousands are scored for each one that is replayed.

Stock MetaSchedule replays a schedule for every candidate it scores; here only the proposals are ever materialised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tcl_core.programs.sketches import Sketch

Candidate = tuple[int, tuple[int, ...]]
"""(sketch index, decisions)."""
Score = Callable[[Sequence[Candidate]], np.ndarray]


@dataclass
class DecisionSearch:
    """Proposes programs of one task.

    score        (N,) predictions of candidates, higher is better
    population   candidates alive in a generation
    generations  rounds of mutation and crossover per proposal
    explore      share of proposals that are drawn at random, so that the model's blind spots get measured too
    """

    sketches: Sequence[Sketch]
    score: Score
    rng: np.random.Generator
    population: int = 512
    generations: int = 4
    explore: float = 0.1
    measured: dict[Candidate, float] = field(default_factory=dict)

    def propose(self, count: int) -> list[Candidate]:
        """Up to ``count`` distinct candidates that were not measured, best first, then the random ones."""
        alive = self._first_generation()
        scores = self._scores(alive)
        for _ in range(self.generations):
            children = self._children(alive, scores)
            alive = list(dict.fromkeys([*alive, *children]))
            scores = self._scores(alive)
            best = np.argsort(-scores, kind="stable")[: self.population]
            alive, scores = [alive[i] for i in best], scores[best]
        fresh = [candidate for candidate in alive if candidate not in self.measured]
        at_random = [c for c in self._random(4 * count) if c not in self.measured]
        greedy = count - min(int(round(self.explore * count)), len(at_random))
        return list(dict.fromkeys([*fresh[:greedy], *at_random, *fresh[greedy:]]))[:count]

    def tell(self, candidate: Candidate, latency_s: float) -> None:
        """Remember a measurement; inf for a candidate that failed or is invalid."""
        self.measured[candidate] = min(latency_s, self.measured.get(candidate, np.inf))

    def _scores(self, candidates: Sequence[Candidate]) -> np.ndarray:
        return np.asarray(self.score(candidates)) if candidates else np.zeros(0)

    def _first_generation(self) -> list[Candidate]:
        """The fastest measured programs, and fresh ones for the rest."""
        fastest = sorted((s, c) for c, s in self.measured.items() if np.isfinite(s))[: self.population // 8]
        return list(dict.fromkeys([*(c for _, c in fastest), *self._random(self.population)]))

    def _random(self, count: int) -> list[Candidate]:
        which = self.rng.integers(len(self.sketches), size=count)
        found: list[Candidate] = []
        for number, sketch in enumerate(self.sketches):
            found += _candidates(sketch, sketch.sample(int((which == number).sum()), self.rng))
        return list(dict.fromkeys(found))

    def _children(self, alive: Sequence[Candidate], scores: np.ndarray) -> list[Candidate]:
        """Parents drawn by rank; half of the children are mutated, half crossed with another parent of their sketch."""
        rank = np.argsort(np.argsort(-scores, kind="stable"), kind="stable")
        weight = 1.0 / (2.0 + rank)
        parents = self.rng.choice(len(alive), size=self.population, p=weight / weight.sum())
        children: list[Candidate] = []
        for sketch in self.sketches:
            rows = [alive[p][1] for p in parents if alive[p][0] == sketch.index]
            if not rows or not sketch.width:
                continue
            matrix = np.array(rows, dtype=np.int32)
            half = len(matrix) // 2
            partners = matrix[self.rng.integers(len(matrix), size=half)]
            crossed = sketch.crossover(matrix[:half], partners, self.rng)
            children += _candidates(sketch, sketch.mutate(np.concatenate([crossed, matrix[half:]]), self.rng))
        return children


def _candidates(sketch: Sketch, decisions: np.ndarray) -> list[Candidate]:
    return [(sketch.index, tuple(row)) for row in decisions.tolist()]

"""The search of one real task: decision vectors in, buildable schedules out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.features.encode import Encoder
from tcl_core.models.cost_model import CostModel
from tcl_core.models.trees import TreesModel
from tcl_core.platforms import simd_bytes
from tcl_core.programs.gpu_limits import launching
from tcl_core.programs.registers import leaning, splitting
from tcl_core.programs.sketches import DesignSpace, InvalidProgram, in_threads, trace_to_json
from tcl_core.programs.tasks import Task
from tcl_core.programs.unrolling import unrolled
from tcl_core.tuning.belief import Views
from tcl_core.tuning.search import Candidate, DecisionSearch, View

BARREN = 8  # consecutive proposals without a new program, after which a design space counts as exhausted


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the search of one task; see ``DecisionSearch``."""

    population: int = 256
    generations: int = 3
    explore: float = 0.1
    lean: float = 0.9
    seed: int = 0


class ScheduleSearch(DecisionSearch):
    """The search of one task: it proposes schedules, whose candidates stand in ``waiting`` in the same order.

    space   the design space that replays proposals
    viewed  number of candidates scored so far
    """

    def __init__(
        self,
        task: Task,
        model: CostModel | None,
        hardware: Sequence[float],
        target: dict[str, Any],
        settings: SearchSettings,
    ) -> None:
        """``model`` is the champion; None: the search learns from its own measurements alone."""
        self.space = DesignSpace(task.key, task.module(), target)
        self.viewed = 0
        sketches = self.space.sketches()
        encoder = Encoder([task], [])
        for sketch in sketches:
            encoder.add(sketch)
        rng = np.random.default_rng([settings.seed, int(task.key[:8], 16)])
        shape = (settings.population, settings.generations, settings.explore)
        view = self._counted(_view(task, encoder, model, hardware))
        super().__init__(sketches, view, rng, *shape, unrolled(sketches, encoder.workload(task.key)))
        if target["kind"] == "cuda":
            self.fits = launching(sketches, encoder.workload(task.key))
        else:
            width = simd_bytes(self.space.target)
            in_registers, self.splits = leaning(sketches, width), splitting(sketches, width)
            self.leans = lambda sketch, decisions: in_registers(sketch, decisions) & self.splits(sketch, decisions)
            self.lean = settings.lean

    def _counted(self, view: View) -> View:
        def counted(candidates: Sequence[Candidate]) -> Views:
            self.viewed += len(candidates)
            return view(candidates)

        return counted

    def schedules(self, count: int, first: Sequence[Candidate] = ()) -> list[Any]:
        """Replay up to ``count`` valid proposals, those of ``first`` before its own; empty when the design space is exhausted."""
        self.waiting = []
        found, barren = self._replayed(first[:count]), 0
        while len(found) < count and barren < BARREN:
            before = len(self.excluded), len(found)
            proposed = iter(self.propose(2 * count))
            while some := list(islice(proposed, count - len(found))):
                found += self._replayed(some)
            if (len(self.excluded), len(found)) == before:
                break  # nothing is left; otherwise invalid and duplicate candidates are excluded now, and the next proposals differ
            barren = barren + 1 if len(found) == before[1] else 0
        return found

    def first_valid(self, candidates: Iterable[Candidate]) -> Any | None:
        """The schedule of the first valid candidate that is not measured; None if there is none."""
        self.waiting = []
        return next((schedule for candidate in candidates for schedule in self._replayed([candidate])), None)

    def _replayed(self, candidates: Sequence[Candidate]) -> list[Any]:
        """Schedules of those candidates that are valid, and no programs that are measured or waiting already; these wait from now on."""
        found = []
        for candidate, replayed in zip(candidates, in_threads(self._replay, candidates), strict=True):
            if replayed is None:
                self.exclude(candidate)
                continue
            schedule, canonical = replayed
            if canonical != candidate:
                self.exclude(candidate)  # another name of the program: TVM changed an impossible decision
            if canonical not in self.measured and canonical not in self.waiting:
                self.waiting.append(canonical)
                found.append(schedule)
        return found

    def _replay(self, candidate: Candidate) -> tuple[Any, Candidate] | None:
        """The candidate's schedule, and the candidate as TVM understands it; None if it is invalid."""
        sketch = self.sketches[candidate[0]]
        try:
            schedule = self.space.materialise(sketch, candidate[1])
            decisions = sketch.decisions_of(schedule.trace.simplified(remove_postproc=True))
        except InvalidProgram:
            return None
        return schedule, (candidate[0], tuple(decisions.tolist()))

    @cached_property
    def traces_json(self) -> list[str]:
        """Each sketch as JSON, for the worker that replays its programs."""
        return [trace_to_json(sketch.trace) for sketch in self.sketches]

    def candidate_of(self, trace: Any) -> Candidate | None:
        """The candidate of a schedule's trace, such as a database's; None for a trace of another design space."""
        bare = trace.simplified(remove_postproc=True)
        for sketch in self.sketches:
            try:
                decisions = sketch.decisions_of(bare)
            except InvalidProgram:
                continue
            if str(sketch.trace_with(decisions)) == str(bare):  # sketches may differ only in arguments
                return sketch.index, tuple(decisions.tolist())
        return None


def _view(task: Task, encoder: Encoder, model: CostModel | None, hardware: Sequence[float]) -> View:
    """Return what encodes candidates as tokens, from their decisions alone, and applies ``views_of``."""
    return lambda candidates: views_of(model, encoder.encode([(task.key, *candidate) for candidate in candidates], hardware))


def views_of(model: CostModel | None, samples: Samples) -> Views:
    """A model's scores and embeddings of programs, and the rows that trees read; without a model the scores are 0.

    Raises DataError for scores that are not finite.
    """
    rows, _ = TreesModel.rows(samples)
    if model is None:
        return Views(np.zeros(len(samples)), (rows,))
    scores, places = model.predict_and_embed(samples)
    if not np.isfinite(scores).all():
        raise DataError("the model predicts values that are not numbers; train it again")
    return Views(scores, (places, rows))

"""The active loop, [select -> measure -> refit]* on one platform: joins sampling, measurement and fitting.

A collection always plays its plan from the start, with the journal as a cache of earlier measurements.  So a killed one
resumes when it is started again: it measures nothing twice and ends with the records of an uninterrupted run.  Another
plan (sampler, seed, budget) selects anew and measures only what the journal lacks.
"""

from __future__ import annotations

import math
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples, scaled_within_task
from tcl_core.features.encode import Encoder
from tcl_core.journal import Journal, iter_journal
from tcl_core.measure.job import Job, Outcome, Setup
from tcl_core.measure.runner import Runner
from tcl_core.programs.pool import Program
from tcl_core.records import ProgramKey, Record
from tcl_core.sampler_names import BLIND, FIRST_MODEL_ALONE
from tcl_core.sampling.catalogue import pick

if TYPE_CHECKING:
    from tcl_core.learning.fit import OnEpoch


class Chooser(Protocol):
    """The part of a cost model that selection uses."""

    def fit(self, train: Samples, valid: Samples | None = None, on_epoch: OnEpoch | None = None) -> Any: ...

    def predict(self, samples: Samples) -> np.ndarray: ...


OnProgram = Callable[[Record], Any]
OnStep = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class Plan:
    """How a platform's budget is spent.

    sampler         name in ``sampler_names``
    budget          programs to measure in all
    initial         of these, the programs of the random start
    rounds          rounds after the random start, of equal size
    check_fraction  share of the programs whose output is compared with the untuned program's
    """

    sampler: str
    budget: int
    initial: int
    rounds: int
    check_fraction: float
    seed: int

    def goals(self) -> list[int]:
        """Programs measured at the end of the random start and of each round."""
        steps = [self.initial + (self.budget - self.initial) * r // self.rounds for r in range(self.rounds + 1)]
        return sorted({min(step, self.budget) for step in steps})


@dataclass
class Collection:
    """One platform's candidate programs and their measurements.

    programs  N candidates in fixed order
    known     row -> record in the journal, measured with the present protocol and undisturbed: the cache
    records   row -> record of the programs that this collection selected, with its own round numbers
    """

    programs: Sequence[Program]
    encoder: Encoder
    hardware: Sequence[float]
    host: str
    setup: Setup
    journal: Path
    known: dict[int, Record] = field(default_factory=dict)
    records: dict[int, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keys: list[ProgramKey] = [(p.task_key, p.sketch, p.decisions) for p in self.programs]
        self._read_journal()

    def _read_journal(self) -> None:
        rows = {key: row for row, key in enumerate(self.keys)}
        for record in iter_journal(self.journal):
            if record.key in rows and record.protocol == self.protocol_json(record.task_key, record.error):
                self._require_this_host(record)
                if not record.disturbed:
                    self.known[rows[record.key]] = record

    def _require_this_host(self, record: Record) -> None:
        if record.host != self.host:
            raise DataError(
                f"{self.journal} holds measurements of another host ({record.host}; this one is {self.host}); "
                "give this host a platform name of its own in params.yaml, or move that folder away"
            )

    def times_cold(self, task_key: str) -> bool:
        """Whether the task's programs are timed with cold weights."""
        return self.setup.times_cold(self.encoder.tasks[task_key].module_json)

    def protocol_json(self, task_key: str, error: str) -> str:
        """``Setup.protocol_json`` of a program of the task."""
        return self.setup.protocol_json(error, self.times_cold(task_key))

    @contextmanager
    def measuring(self) -> Iterator[Measuring]:
        """Lock the journal, read what another process has added meanwhile, and open a runner."""
        with Journal(self.journal) as journal, Runner(self.setup) as runner:
            self._read_journal()
            yield Measuring(self, journal, runner)

    def samples(self) -> Samples:
        """The programs selected so far with their latencies, in row order."""
        rows = sorted(self.records)
        latencies = [self.records[row].latency_s for row in rows]
        return self.encoder.encode([self.keys[row] for row in rows], self.hardware, latencies)

    def open_rows(self) -> np.ndarray:
        """(R,) rows that are not selected yet, ascending."""
        return np.array([row for row in range(len(self.programs)) if row not in self.records], dtype=int)

    def by_operator(self, rows: Sequence[int]) -> dict[str, int]:
        """Operator type -> number of the programs at ``rows``, sorted by name."""
        names, counts = np.unique(self.encoder.operators([self.keys[row] for row in rows]), return_counts=True)
        return {str(name): int(count) for name, count in zip(names, counts, strict=True)}

    def can_rank(self) -> bool:
        """Whether any task has two selected programs, one of which ran; no model can learn from less."""
        told = [(self.keys[row][0], math.isfinite(record.latency_s)) for row, record in self.records.items()]
        counts, ran = Counter(task for task, _ in told), {task for task, there in told if there}
        return any(counts[task] > 1 for task in ran)


@dataclass
class Measuring:
    """A collection with its locked journal and a runner to measure with."""

    collection: Collection
    journal: Journal
    runner: Runner

    def measure(self, rows: Sequence[int], number: int, check_fraction: float, on_program: OnProgram) -> dict[str, int]:
        """Measure the programs at ``rows`` for round ``number``; each is recorded as soon as its outcome is known.

        Rows go task by task, so that a task's inputs are made once.  Returns counts: programs taken from the journal,
        programs of each error kind, and disturbed ones.
        """
        counts: Counter[str] = Counter()
        known, best, rows = self.collection.known, self._best(), sorted(rows)
        outcomes = self.runner.measure(self._job(row, best, check_fraction) for row in rows if row not in known)
        for row in rows:
            counts["from_journal"] += row in known
            record = known[row] if row in known else self._recorded(row, number, next(outcomes))
            self.collection.records[row] = record = replace(record, round=number)
            best[record.task_key] = min(best.get(record.task_key, math.inf), record.latency_s)
            counts[record.error] += 1
            counts["disturbed"] += record.disturbed
            on_program(record)
        return {name: count for name, count in counts.items() if count or name == "from_journal"}

    def _best(self) -> dict[str, float]:
        best: dict[str, float] = {}
        for record in self.collection.records.values():
            best[record.task_key] = min(best.get(record.task_key, math.inf), record.latency_s)
        return best

    def _job(self, row: int, best: Mapping[str, float], check_fraction: float) -> Job:
        program, encoder = self.collection.programs[row], self.collection.encoder
        return Job(
            task_key=program.task_key,
            module_json=encoder.tasks[program.task_key].module_json,
            trace_json=encoder.texts[program.task_key, program.sketch],
            decisions=program.decisions,
            best_s=best.get(program.task_key, math.inf),
            check=_is_checked(self.collection.keys[row], check_fraction),
            cold=self.collection.times_cold(program.task_key),
        )

    def _recorded(self, row: int, number: int, outcome: Outcome) -> Record:
        program = self.collection.programs[row]
        record = Record(
            task_key=program.task_key,
            sketch_id=program.sketch,
            program_id=program.number,
            decisions=program.decisions,
            latencies_s=outcome.latencies_s,
            error=outcome.error,
            message=outcome.message,
            round=number,
            measured_at=datetime.now(UTC),
            protocol=self.collection.protocol_json(program.task_key, outcome.error),
            host=self.collection.host,
            tvm_version=self.runner.tvm_version,
            checked=outcome.checked,
            disturbed=outcome.disturbed,
        )
        self.journal.append([record])
        self.collection.known[row] = record
        return record


def _is_checked(key: ProgramKey, fraction: float) -> bool:
    """Whether a program's output is checked: a fixed share of all programs, whatever else is measured."""
    return zlib.crc32(repr(key).encode()) < fraction * 2**32


def collect(
    collection: Collection,
    plan: Plan,
    models: Sequence[Chooser],
    on_step: OnStep,
    on_program: OnProgram,
    before: Samples | None = None,
) -> None:
    """Spend the plan's budget: a random start, then rounds of select, measure and refit; with ``before``, all in one selection.

    models   the ensemble that selects, by its mean ranking; `rdu-paper` uses the first model alone
    on_step  called after each step with its round, step, seconds and counts
    before   another platform's measurements of the same tasks.  Models fitted to these alone select: adding rounds of this
             platform's own found slower programs (docs/learning.md, Samplers)
    """
    goals = plan.goals() if before is None else [plan.budget]
    with collection.measuring() as measuring:
        if before is not None:
            with _step(on_step, 0, "refit") as counts:
                counts.update(_fitted(models, before))
        for number, goal in enumerate(goals):
            with _step(on_step, number, "select") as counts:
                open_rows = collection.open_rows()
                rows = _select(collection, plan, models, open_rows, goal - len(collection.records), number, before is not None)
                counts.update({"of": len(open_rows), **collection.by_operator(rows)})
            with _step(on_step, number, "measure") as counts:
                found = measuring.measure(rows, number, plan.check_fraction, on_program)
                counts.update({"programs": len(rows), **found, "in_all": len(collection.records)})
            if goal < goals[-1] and plan.sampler not in BLIND and collection.can_rank():
                with _step(on_step, number, "refit") as counts:
                    counts.update(_fitted(models, collection.samples()))


def measure_all(collection: Collection, check_fraction: float, on_program: OnProgram) -> None:
    """Measure every program."""
    with collection.measuring() as measuring:
        measuring.measure(range(len(collection.programs)), 0, check_fraction, on_program)


@contextmanager
def _step(on_step: OnStep, number: int, name: str) -> Iterator[dict[str, Any]]:
    """Time one step of a round, then report it to ``on_step`` with the counts that the block put into the dictionary."""
    start, counts = time.perf_counter(), dict[str, Any]()
    yield counts
    on_step({"round": number, "step": name, "seconds": round(time.perf_counter() - start, 2), **counts})


def _fitted(models: Sequence[Chooser], samples: Samples) -> dict[str, Any]:
    """Fit the models; return the number of programs, and the last loss reported, if any."""
    losses: list[float] = []
    for model in models:
        model.fit(samples, on_epoch=lambda epoch, loss, metrics: losses.append(loss))
    return {"programs": len(samples), **({"loss": round(losses[-1], 4)} if losses else {})}


def _select(
    collection: Collection, plan: Plan, models: Sequence[Chooser], open_rows: np.ndarray, count: int, number: int, learned: bool
) -> list[int]:
    """Pick the ``open_rows`` to measure next: at random until a model could learn something, then by the sampler.

    A sampler that uses no model, or whose models have ``learned`` elsewhere, picks from the start.
    """
    rng = np.random.default_rng([plan.seed, number])
    if plan.sampler in BLIND:
        picked = _pick_blindly(collection, plan, open_rows, count, rng)
    elif not learned and (number == 0 or not collection.can_rank()):
        picked = rng.permutation(len(open_rows))[:count]
    else:
        picked = _pick(collection, plan, models, open_rows, count, rng)
    return [int(row) for row in open_rows[picked]]


def _pick_blindly(collection: Collection, plan: Plan, open_rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    known, numbers = sorted(collection.records), collection.encoder.numbers
    tasks, labelled = (np.array([numbers[collection.keys[row][0]] for row in rows], dtype=int) for rows in (open_rows, known))
    nothing = np.zeros(len(open_rows))
    return pick(plan.sampler, nothing, nothing, np.zeros(len(known)), count, tasks=tasks, labelled_tasks=labelled, rng=rng)


def _pick(
    collection: Collection,
    plan: Plan,
    models: Sequence[Chooser],
    open_rows: np.ndarray,
    count: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Positions in ``open_rows`` that the sampler picks; predictions are scaled within each task, so that tasks compare."""
    everything = collection.encoder.encode(collection.keys, collection.hardware)
    predictions = np.stack([scaled_within_task(m.predict(everything), everything.tasks) for m in models])
    ranking = predictions[0] if plan.sampler in FIRST_MODEL_ALONE else predictions.mean(axis=0)
    known = np.array(sorted(collection.records), dtype=int)
    return pick(
        plan.sampler,
        ranking[open_rows],
        collection.encoder.operators([collection.keys[row] for row in open_rows]),
        ranking[known],
        count,
        tasks=everything.tasks[open_rows],
        labelled_tasks=everything.tasks[known],
        rng=rng,
    )

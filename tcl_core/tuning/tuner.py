"""The tuner's loop: a budget picks the next task, its search proposes programs, the runner measures them.

Every measured program goes to a MetaSchedule database.  The searches first learn what that database already holds, so that
a stopped run goes on.  A trial is one program; measuring it again, because the machine was not quiet or to choose among the
best, is no trial.  A program that fails is a result like any other.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tcl_core.compat import make_target, meta_schedule
from tcl_core.measure.job import Job, Outcome
from tcl_core.measure.runner import Runner
from tcl_core.models.cost_model import CostModel
from tcl_core.programs.pool import cost
from tcl_core.programs.tasks import Task
from tcl_core.tuning.budget import Account, Budget
from tcl_core.tuning.database import GUESSED_S, Shelf, in_order
from tcl_core.tuning.schedules import ScheduleSearch, SearchSettings
from tcl_core.tuning.search import Candidate
from tcl_core.tuning.transfer import TRANSFERRED, Donors, transferred

# Programs are measured again where the machine was not quiet: each AGAIN times at most, and in all at most AGAIN_SHARE of the
# trials, or, without a number of trials, of what was measured so far.
AGAIN, AGAIN_SHARE = 2, 0.25
# Programs of a task that are measured again at the end: at most FINALISTS, none slower than CLOSE times the fastest.
FINALISTS, CLOSE = 3, 1.1
FINALS = 3  # most rounds of finals: another follows where all finalists of one fail, or others then seem faster
LAST_FINALS = 6  # most of a task none of whose finalists is right yet: any right program that was measured is better than a guess
DRIFT_OF = 8  # finalists from which on their second readings tell how much slower the machine has become since the first ones
AT_ONCE = 32  # finalists measured at once, whose results are then kept
GUESSES = 16  # best ranked candidates to try for a task without a program found right: some are invalid


@dataclass(frozen=True)
class Tunable:
    """A task of a network, how often the network runs it, and its module as the compiler will look it up in the database.

    ``cold``: as in ``Job``.
    """

    task: Task
    weight: float
    module: Any
    cold: bool = False


@dataclass(frozen=True)
class TaskTime:
    """Tuning's result for one task.

    latency_ms  of its best program that was not found wrong; None if it has none: then it has a guessed program, or TVM's own
    cold        timed with cold weights (``coldness``)
    key         the task's
    guessed     it has a program that nobody measured
    checked     its program's output is known to be the untuned program's; False where that takes minutes, or where another program
                than the one that was compared is in the network
    """

    name: str
    weight: float
    latency_ms: float | None
    trials: int
    cold: bool = False
    key: str = ""
    guessed: bool = False
    checked: bool = False


def readings_of(
    search: ScheduleSearch, programs: Iterable[tuple[Any, Sequence[float]]]
) -> tuple[dict[Candidate, tuple[float, ...]], dict[Candidate, Any]]:
    """Two dicts of a database's programs of one task: candidate -> all its latencies (empty if it ever failed), and -> its trace."""
    readings: dict[Candidate, tuple[float, ...]] = {}
    traces: dict[Candidate, Any] = {}
    for trace, latencies_s in programs:
        if (candidate := search.candidate_of(trace)) is not None:
            earlier = readings.get(candidate)
            readings[candidate] = () if earlier == () or not latencies_s else (*(earlier or ()), *latencies_s)
            traces[candidate] = trace
    return readings, traces


class TaskRun:
    """The tuning of one task.

    readings  candidate -> its latencies, seconds; for a finalist only those measured again; empty: it failed
    final     candidates that were measured again and not found wrong; ``checked`` are those found right
    donated   candidates from other tasks, to be measured before the search's own
    """

    def __init__(
        self, tunable: Tunable, search: ScheduleSearch, shelf: Shelf, donated: Sequence[Candidate] = (), searches: bool = True
    ) -> None:
        """Without ``searches`` only ``donated`` candidates are proposed."""
        self.task, self.search, self.donated = tunable.task, search, list(donated)
        self._cold = tunable.cold
        self._searches = searches
        self.readings: dict[Candidate, tuple[float, ...]] = {}
        self.final: set[Candidate] = set()
        self.checked: set[Candidate] = set()
        self._traces: dict[Candidate, Any] = {}
        self._shelf = shelf

    def recall(self, programs: Iterable[tuple[Any, Sequence[float]]]) -> list[float]:
        """Learn a database's programs, traces and latencies; return the latency of each candidate (inf: failed)."""
        self.readings, self._traces = readings_of(self.search, programs)
        for candidate in self.readings:
            self.search.tell(candidate, self.latency_s(candidate))
        return [self.latency_s(candidate) for candidate in self.readings]

    def propose(self, count: int) -> list[Candidate]:
        """Up to ``count`` programs to measure, the slowest to build first; empty when there are no more."""
        donated = [candidate for candidate in self.donated if candidate not in self.readings][:count]
        schedules = self.search.schedules(count if self._searches else len(donated), donated)
        proposed = dict(zip(self.search.waiting, schedules, strict=True))
        self._traces |= {candidate: schedule.trace for candidate, schedule in proposed.items()}
        return sorted(proposed, key=lambda candidate: -self.search.unroll(candidate))

    def job(self, candidate: Candidate, check: bool = False) -> Job:
        sketch, decisions = candidate
        return Job(
            task_key=self.task.key,
            module_json=self.task.module_json,
            trace_json=self.search.traces_json[sketch],
            decisions=decisions,
            best_s=min(map(self.latency_s, self.readings), default=math.inf),
            check=check,
            cold=self._cold,
        )

    def tell(self, candidate: Candidate, outcome: Outcome) -> float:
        """Keep a measurement; return its latency (inf: failed)."""
        self.readings[candidate] = outcome.latencies_s
        self._shelf.put(self._traces[candidate], outcome.latencies_s)
        self.search.tell(candidate, self.latency_s(candidate))
        return self.latency_s(candidate)

    def latency_s(self, candidate: Candidate) -> float:
        """Median of the candidate's ``readings``; inf if it failed."""
        readings = self.readings[candidate]
        return statistics.median(readings) if readings else math.inf

    def finalists(self, drift: float = 1.0, close: float = CLOSE) -> list[Candidate]:
        """The few best candidates, or, once some are in ``final``, the few best of those measured faster than all of these.

        ``drift``: how many times as long a program takes now as when it was first measured;  ``close``: how many times as long as the
        fastest one candidates may take.
        """
        ran = sorted((self.latency_s(c), c) for c, readings in self.readings.items() if readings)
        if sure := [latency_s for latency_s, candidate in ran if candidate in self.final]:
            return [candidate for latency_s, candidate in ran if candidate not in self.final and drift * latency_s < min(sure)][:FINALISTS]
        return [candidate for latency_s, candidate in ran if latency_s <= close * ran[0][0]][:FINALISTS]

    def confirm(self, candidate: Candidate, outcome: Outcome) -> float | None:
        """Replace a finalist's first measurement, which was selected for being fast and thus partly lucky, by its second.

        Returns how many times as long it takes now; None if it fails.  Then it is out, unless something disturbed it: the next round of
        finals, if any, measures it again.
        """
        if outcome.disturbed and not outcome.latencies_s:
            return None
        before_s = self.latency_s(candidate)
        self._shelf.put(self._traces[candidate], outcome.latencies_s)
        self.readings[candidate] = outcome.latencies_s
        if not outcome.latencies_s:
            return None
        self.final.add(candidate)
        self.checked |= {candidate} if outcome.checked else set()
        return self.latency_s(candidate) / before_s

    def guess(self) -> Any | None:
        """The trace of an unmeasured program: a donated one, else the model's favourite, or a random one without a model."""
        schedule = self.search.first_valid(self.donated)
        if schedule is None:  # only then, for many draws are scored
            schedule = self.search.first_valid(self.search.guess(GUESSES))
        return None if schedule is None else schedule.trace

    def winner(self) -> tuple[Any, float] | None:
        """The trace and latency of the best finalist; None without one."""
        return next(iter(self.best(1)), None)

    def best(self, count: int) -> list[tuple[Any, float]]:
        """Traces and latencies of up to ``count`` programs, as ``_order``."""
        return [(self._traces[candidate], self.latency_s(candidate)) for candidate in self._order()[:count]]

    @property
    def is_checked(self) -> bool:
        """Whether the winner's output was found right."""
        return not self.checked.isdisjoint(self._order()[:1])

    def _order(self) -> list[Candidate]:
        """Candidates that ran: those found right, other finalists, then the others, each fastest first; empty without a finalist."""
        ran = [candidate for candidate, readings in self.readings.items() if readings and self.final]
        return sorted(ran, key=lambda c: (c not in self.checked, c not in self.final, self.latency_s(c), c))


class Tuner:
    """Tunes the tasks of a network together.

    model      the champion; None: each search learns from its own measurements alone
    trials     programs to measure; None: as many as the time of ``run`` allows
    settings   of every task's search
    database   a MetaSchedule database, which gets every measured program
    donors     programs of other networks, which each task measures first, as trials
    shares     later tasks try the programs of earlier ones, like donors' programs
    searches   False: only donors' programs are measured; a task without any stays untuned (Transfer-Tuning, arXiv 2201.05587)
    """

    def __init__(
        self,
        tunables: Sequence[Tunable],
        model: CostModel | None,
        hardware: Sequence[float],
        target: dict[str, Any],
        trials: int | None,
        settings: SearchSettings,
        database: Any,
        donors: Donors | None = None,
        searches: bool = True,
        shares: bool = True,
    ) -> None:
        self.tunables = list(tunables)
        self.budget = Budget([Account(t.weight, cost(t.task)) for t in self.tunables], sys.maxsize if trials is None else trials)
        self._search = lambda task: ScheduleSearch(task, model, hardware, target, settings)
        self._target, self._database = make_target(target), database
        self._donors, self._searches = donors, searches
        self._neighbours = Donors((), target) if shares and searches else None  # tasks of this network
        self._again, self._again_more = (0.0, AGAIN_SHARE) if trials is None else (AGAIN_SHARE * trials, 0.0)
        self._runs: dict[int, TaskRun] = {}
        self._lent: set[int] = set()  # tasks whose programs later tasks may try
        self._donated: set[int] = set()  # tasks that ``donors`` fit
        self._guessed: set[int] = set()  # tasks with a program that nobody measured
        self._borrowed: set[int] = set()  # tasks that have asked ``_neighbours``
        self._opened_s: dict[int, float] = {}  # time it took to open each task: its design space, and candidates from donors
        self._gain = 0.0  # share of the network's time that the latest turn with a gain saved
        if len(database):
            records = in_order(database)  # read once: there may be thousands, for dozens of tasks
            shelves = [Shelf(database, tunable.module, self._target) for tunable in self.tunables]
            for number in sorted(range(len(shelves)), key=lambda number: shelves[number].first(records)):  # lend in the earlier run's order
                programs = shelves[number].programs(records)
                if programs and (told := self._run(number).recall(programs)):
                    self.budget.tell(number, told)
                    if len(told) > 1:
                        self._borrow(number)
                    self._lend(number)

    def _run(self, number: int) -> TaskRun:
        """The run of a task, made when first needed: finding a design space takes a moment."""
        if number not in self._runs:
            began, tunable = time.monotonic(), self.tunables[number]
            shelf = Shelf(self._database, tunable.module, self._target)
            search = self._search(tunable.task)
            donated = transferred(search, self._donors) if self._donors else []
            self._donated |= {number} if donated else set()
            self._runs[number] = TaskRun(tunable, search, shelf, donated, self._searches)
            self._opened_s[number] = time.monotonic() - began
        return self._runs[number]

    def _borrow(self, number: int) -> None:
        """Let a task try what others have lent so far, once: in its first turn of several programs, or for a guess."""
        run = self._run(number)
        if self._neighbours and number not in self._borrowed:
            self._borrowed.add(number)
            began = time.monotonic()
            run.donated = list(dict.fromkeys([*run.donated, *transferred(run.search, self._neighbours)]))[:TRANSFERRED]
            self._opened_s[number] += time.monotonic() - began

    def _lend(self, number: int) -> None:
        """Offer what a task's first turn with a program that ran has measured to the tasks that come later."""
        run = self._runs[number]
        several = len(run.readings) > 1 and any(run.readings.values())  # a single program was not selected among others
        if self._neighbours and number not in self._lent and several:
            self._neighbours.lend(run.task.key, run.search.sketches, run.readings)
            self._lent.add(number)

    def run(self, runner: Runner, on_trial: Callable[[Outcome], Any] = lambda outcome: None, seconds: float = math.inf) -> None:
        """Spend the trials, then measure the best programs of each task again and check their outputs.

        With ``seconds`` the last turn begins early enough for all this to end in time, as estimated from the turns before, and after
        them no second round of finals begins, but two more for tasks none of whose finalists is right.
        """
        end, rates_s = time.monotonic() + seconds, []  # seconds per program of each turn
        while turn := self.budget.next():
            began = time.monotonic()
            unopened = sum(task not in self._runs for task in self.untouched())
            after_s = _usual(rates_s) * self._finalists() + _usual([*self._opened_s.values()]) * unopened
            if began >= end or began + _usual(rates_s) * turn.count + after_s > end:
                break
            before_s = self.budget.network_s()
            run = self._run(turn.task)
            if turn.count > 1:
                self._borrow(turn.task)
            candidates, outcomes, told = run.propose(turn.count), list[Outcome](), list[float]()
            try:
                self._measure(runner, [run.job(candidate) for candidate in candidates], outcomes)
            finally:
                told += [run.tell(*each) for each in zip(candidates, outcomes, strict=False)]
            self.budget.tell(turn.task, told)
            self._lend(turn.task)
            if told:
                rates_s.append((time.monotonic() - began) / len(told))
            if math.isfinite(before_s) and self.budget.network_s() < before_s:
                self._gain = 1.0 - self.budget.network_s() / before_s
            for outcome in outcomes:
                on_trial(outcome)
        drifts: list[float] = []
        for number in range(LAST_FINALS):
            over = number and time.monotonic() >= end
            if number >= FINALS and over:
                break
            drift, runs = _drift(drifts), [run for run in self._runs.values() if not (run.final and (over or number >= FINALS))]
            close = math.inf if number else CLOSE  # of a task whose fastest programs are wrong any other may be right
            pairs = [(run, candidate) for run in runs for candidate in run.finalists(drift, close)]
            for start in range(0, len(pairs), AT_ONCE):
                drifts += self._finals(runner, pairs[start : start + AT_ONCE])

    def _finalists(self) -> int:
        return sum(len(run.finalists()) for run in self._runs.values())

    def _measure(self, runner: Runner, jobs: Sequence[Job], outcomes: list[Outcome]) -> None:
        """Append the jobs' outcomes to ``outcomes``, in order; measure disturbed ones again, within ``AGAIN`` and ``AGAIN_SHARE``.

        If the runner raises, ``outcomes`` keeps those it had yielded.
        """
        for outcome in runner.measure(jobs):
            outcomes.append(outcome)
        self._again += self._again_more * len(jobs)
        for _ in range(AGAIN):
            disturbed = [number for number, outcome in enumerate(outcomes) if outcome.disturbed][: int(self._again)]
            self._again -= len(disturbed)
            again = runner.measure([jobs[number] for number in disturbed]) if disturbed else ()
            for number, outcome in zip(disturbed, again, strict=True):
                outcomes[number] = _steadier(outcomes[number], outcome)

    def _finals(self, runner: Runner, pairs: Sequence[tuple[TaskRun, Candidate]]) -> list[float]:
        """Measure the finalists of all tasks once more, side by side, and check their outputs.

        Returns how many times as long as before each takes that runs.
        """
        outcomes: list[Outcome] = []
        try:
            self._measure(runner, [run.job(candidate, check=True) for run, candidate in pairs], outcomes)
        finally:
            drifts = [run.confirm(candidate, outcome) for (run, candidate), outcome in zip(pairs, outcomes, strict=False)]
        return [drift for drift in drifts if drift is not None]

    def winners(self, count: int = 1) -> Any:
        """A database of up to ``count`` programs per task for the compiler to apply, in the order of ``TaskRun.best``."""
        database = meta_schedule().database.MemoryDatabase()
        for number, run in self._runs.items():
            shelf = Shelf(database, self.tunables[number].module, self._target)
            for trace, latency_s in run.best(count):
                shelf.put(trace, [latency_s])
        return database

    def untouched(self) -> list[int]:
        """Tasks without a finalist that ran: trials or minutes were too few, nothing ran, or all finalists failed or were wrong.

        Empty without ``searches``.
        """
        won = {number for number, _ in self._won()}
        return [number for number in range(len(self.tunables)) if self._searches and number not in won]

    def guess(self, task: int, database: Any) -> None:
        """Put a guessed program of an ``untouched`` task, if there is one, into the database for the compiler to apply.

        Without any program TVM compiles a task as it is written down: on one thread, and not vectorised.
        """
        self._borrow(task)
        if (trace := self._run(task).guess()) is not None:
            Shelf(database, self.tunables[task].module, self._target).put(trace, [GUESSED_S])
            self._guessed.add(task)

    def donated_tasks(self) -> int:
        """Number of tasks that other networks' programs fit, among those that had a turn or a guess."""
        return len(self._donated)

    def times(self) -> list[TaskTime]:
        """The result of each task, in the order of the tasks."""
        won = {number: latency_s * 1e3 for number, (_, latency_s) in self._won()}
        accounts = zip(self.tunables, self.budget.accounts, strict=True)
        return [
            TaskTime(
                t.task.name, t.weight, won.get(number), account.trials, t.cold, t.task.key, number in self._guessed,
                number in self._runs and self._runs[number].is_checked,
            )
            for number, (t, account) in enumerate(accounts)
        ]  # fmt: skip

    def _won(self) -> Iterator[tuple[int, tuple[Any, float]]]:
        found = ((number, run.winner()) for number, run in self._runs.items())
        return ((number, winner) for number, winner in found if winner is not None)

    def said(self) -> str:
        """Progress as text: the network's known or estimated time, and the last gain or how many tasks have run."""
        network_s, ran = self.budget.estimate_s(), sum(account.ran for account in self.budget.accounts)
        if ran == len(self.tunables):
            return f"network {network_s * 1e3:.2f} ms, last gain {self._gain:.1%}"
        untouched = sum(not account.trials for account in self.budget.accounts)
        about = f"network about {network_s * 1e3:.2f} ms, " if ran else ""
        return f"{about}{ran} of {len(self.tunables)} tasks run" + (f", {untouched} untouched" if untouched else "")


def _usual(rates_s: Sequence[float]) -> float:
    """Median without the first value, which includes starting workers or loading TVM; 0 without others."""
    return statistics.median(rates_s[1:]) if rates_s[1:] else 0.0


def _drift(ratios: Sequence[float]) -> float:
    """How much slower the machine has become, from how many times as long finalists take now; 1 for few of them.

    Finalists were read fast partly for luck, so most take longer now even on a steady machine: hence their lower quartile.
    """
    return max(1.0, statistics.quantiles(ratios, n=4)[0]) if len(ratios) >= DRIFT_OF else 1.0


def _steadier(first: Outcome, second: Outcome) -> Outcome:
    """The second outcome if undisturbed; else the faster of the two, since no disturbance makes a program faster."""
    if not second.disturbed:
        return second
    ran = [outcome for outcome in (first, second) if outcome.latencies_s]
    return min(ran, key=lambda outcome: statistics.median(outcome.latencies_s), default=second)

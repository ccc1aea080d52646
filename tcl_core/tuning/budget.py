"""Decides which task is measured next: trials go where the network's time is and still falls.

A task matters while it takes at least ``SMALL`` of the network's time, by its measurements, or before these by what it
computes and moves.  Each task that matters gets ``ENOUGH`` trials; the others (reshapes, transposes and the like) get
up to ``TRIES``, until a program runs.  All further rounds go to the task that promises to shorten the network most per trial:

    gain = weight * best latency * max(its fall per trial in the latest rounds, HOPE / max(ENOUGH, its trials))

The second term is a guess for tasks that have not fallen lately, so that none is given up, and a task whose programs all
failed is tried again.  This is pure policy: it knows no program and no clock, and of a task only an ``Account``.

Source: Ansor's task scheduler (arXiv 2006.06762, section 6), with gains relative to the task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SMALL = 0.01  # share of the network's time
ENOUGH = 8  # trials of a task that matters, and of a round
TRIES = 3  # most trials of a task that does not matter while its programs fail
LATELY = 2 * ENOUGH  # latest trials, over which a task's fall is averaged
HOPE = 0.2  # nats that a task may still fall by, spread over as many trials as it had


class Turn(NamedTuple):
    """Measure ``count`` programs of the task with number ``task``."""

    task: int
    count: int


@dataclass
class Account:
    """One task: how often the network runs it, its operations (flops plus weighted bytes moved), and its trials.

    bests      fastest latency after each trial, seconds; inf as long as no program ran
    exhausted  its design space has no program left
    """

    weight: float
    operations: float
    bests: list[float] = field(default_factory=list)
    exhausted: bool = False

    @property
    def best_s(self) -> float:
        return self.bests[-1] if self.bests else math.inf

    @property
    def trials(self) -> int:
        return len(self.bests)

    @property
    def ran(self) -> bool:
        return math.isfinite(self.best_s)

    @property
    def fall(self) -> float:
        """Nats per trial by which its best latency is expected to fall."""
        before = self.bests[max(ENOUGH, self.trials - LATELY) - 1] if self.trials > ENOUGH else self.best_s
        steps = min(LATELY, self.trials - ENOUGH)
        lately = math.log(before / self.best_s) / steps if steps > 0 and math.isfinite(before) else 0.0
        return max(lately, HOPE / max(ENOUGH, self.trials))


class Budget:
    """Spends exactly ``trials`` trials, fewer only if all design spaces are exhausted first."""

    def __init__(self, accounts: Sequence[Account], trials: int) -> None:
        self.accounts = list(accounts)
        self.left = trials

    def next(self) -> Turn | None:
        """The next turn; None when the trials are spent or all tasks are exhausted.  Deterministic."""
        open_ = [number for number, account in enumerate(self.accounts) if not account.exhausted]
        if self.left <= 0 or not open_:
            return None
        shares = self.shares()
        for wanted in (self._unlabelled, self._unfinished, self._gainful):
            if turn := wanted(open_, shares):
                return turn
        return None

    def tell(self, task: int, latencies_s: Sequence[float]) -> None:
        """Record a turn's results: a latency per program (inf: failed); an empty list marks the task as exhausted."""
        account = self.accounts[task]
        account.exhausted = account.exhausted or not latencies_s
        for latency_s in latencies_s:
            account.bests.append(min(latency_s, account.best_s))
        self.left -= len(latencies_s)

    def network_s(self) -> float:
        """Seconds of the network, the sum of its tasks' weights times best latencies: inf while a task has no program that ran."""
        return sum(account.weight * account.best_s for account in self.accounts)

    def estimate_s(self) -> float:
        """As ``network_s``, but estimating tasks without a program that ran from their operations: inf while no task has one."""
        return sum(self._times()) if any(account.ran for account in self.accounts) else math.inf

    def shares(self) -> list[float]:
        """Each task's share of the network's time, estimated as in ``estimate_s``."""
        times = self._times()
        return [time / max(sum(times), 1e-30) for time in times]

    def _times(self) -> list[float]:
        ran = [account for account in self.accounts if account.ran]
        seconds = sum(a.best_s for a in ran)
        rate = seconds / max(sum(a.operations for a in ran), 1.0) if ran else 1.0
        return [a.weight * (a.best_s if a.ran else rate * a.operations) for a in self.accounts]

    def _unlabelled(self, tasks: list[int], shares: list[float]) -> Turn | None:
        """A turn for the costliest task without a trial; each task must get one before any gets its second round."""
        new = [n for n in tasks if not self.accounts[n].trials]
        if not new:
            return None
        task = max(new, key=lambda n: (shares[n], -n))
        small = sum(share < SMALL for share in shares)
        fair = max(1, (self.left + sum(a.trials for a in self.accounts) - small) // max(1, len(shares) - small))
        count = min(ENOUGH, fair) if shares[task] >= SMALL else 1
        return Turn(task, max(1, min(count, self.left - (len(new) - 1))))

    def _unfinished(self, tasks: list[int], shares: list[float]) -> Turn | None:
        """A turn for the costliest task that is due more trials: one that matters and has too few, or of which no program ran."""
        wanting = [n for n in tasks if self.accounts[n].trials < self._due(n, shares)]
        if not wanting:
            return None
        task = max(wanting, key=lambda n: (shares[n], -n))
        return Turn(task, min(self._due(task, shares) - self.accounts[task].trials, self.left))

    def _due(self, task: int, shares: list[float]) -> int:
        if shares[task] >= SMALL:
            return ENOUGH
        account = self.accounts[task]
        return 0 if account.ran else min(TRIES, account.trials + 1)

    def _gainful(self, tasks: list[int], shares: list[float]) -> Turn | None:
        task = max(tasks, key=lambda n: (shares[n] * self.accounts[n].fall, -n))
        return Turn(task, min(ENOUGH, self.left))

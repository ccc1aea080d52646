"""One measurement: the plain types that measuring, the journal, the data set and learning share."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

SCHEMA_VERSION = 2  # of a record, wherever one is written
ERRORS = ("ok", "build", "run", "timeout", "crash", "wrong-result")

ProgramKey = tuple[str, int, tuple[int, ...]]
"""(task key, sketch index, decisions)."""


def spread(repeats: Sequence[float]) -> float:
    """Interquartile range / median, so that more repeats can outweigh a disturbed one; 0 for a single repeat."""
    if len(repeats) < 2:
        return 0.0
    low, median, high = statistics.quantiles(repeats, n=4, method="inclusive")
    return (high - low) / median


@dataclass(frozen=True)
class Record:
    """One measured program.

    decisions    the program's decision vector within its sketch
    latencies_s  one per repeat, seconds; empty unless ``error`` is "ok"
    error        one of ERRORS; ``message`` says more, and is empty for "ok"
    round        collection round, 0 for the random start
    protocol     JSON of how it was timed; host: fingerprint of the machine; latencies compare only if both are equal
    checked      its output was compared with the untuned program's and found equal
    disturbed    something else affected its timing; a later collection measures it again
    """

    task_key: str
    sketch_id: int
    program_id: int
    decisions: tuple[int, ...]
    latencies_s: tuple[float, ...]
    error: str
    message: str
    round: int
    measured_at: datetime
    protocol: str
    host: str
    tvm_version: str
    checked: bool = False
    disturbed: bool = False

    def __post_init__(self) -> None:
        if self.error not in ERRORS:
            raise ValueError(f"error kind '{self.error}' of task {self.task_key} is none of {', '.join(ERRORS)}")
        if (self.error == "ok") != bool(self.latencies_s) or not all(0 < x < math.inf for x in self.latencies_s):
            raise ValueError(f"'{self.error}' of task {self.task_key} with the latencies {self.latencies_s}")
        if self.measured_at.tzinfo is None:
            raise ValueError(f"measured_at of task {self.task_key} has no time zone; use datetime.now(timezone.utc)")

    @property
    def key(self) -> ProgramKey:
        """Identity of the program, equal on all platforms."""
        return (self.task_key, self.sketch_id, self.decisions)

    @property
    def latency_s(self) -> float:
        """Median over the repeats, seconds; inf for a failed program."""
        return statistics.median(self.latencies_s) if self.latencies_s else math.inf

    @property
    def spread(self) -> float:
        """Relative spread of the repeats (``spread``); 0 for a failed program."""
        return spread(self.latencies_s) if self.latencies_s else 0.0

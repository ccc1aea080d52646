"""A real program for real worker processes, and what an ordinary outcome of it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tcl_core.measure.job import Job, Outcome
from tcl_core.measure.runner import Runner
from tcl_core.programs.sketches import trace_to_json

ROOT = Path(__file__).parents[2]


@pytest.fixture
def program(matmul):
    """A valid candidate of the tiny matmul."""
    sketch = matmul.sketches[0]
    decisions = tuple(matmul.space.canonical(sketch, matmul.sample(sketch, 1)[0]).tolist())
    return Job(matmul.task.key, matmul.task.module_json, trace_to_json(sketch.trace), decisions, check=True)


def measure(runner: Runner, *jobs: Job) -> list[Outcome]:
    return list(runner.measure(jobs))


def ordinary(outcome: Outcome) -> bool:
    return outcome.error == "ok" and not outcome.message and 1e-7 < min(outcome.latencies_s) <= max(outcome.latencies_s) < 1


def worker_of(runner: Runner) -> int:
    return runner.workers[0].process.pid

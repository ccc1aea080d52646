"""How far measurements of the same programs agree: the figures of a task, by hand, and which programs are measured."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import repeats
from repeats import ANEW, EACH, NEW, ORACLE, SAME, SCATTER, SPREAD, chosen, figures, summary

from tcl_core import store
from tests.stages.exchanged import TARGET, measured


def test_figures_by_hand():
    """Two passes that agree, a third one that is the other way round, and a record that is the first's."""
    seconds = [1.0, 2.0, 4.0, 8.0]
    found = figures(seconds, seconds, [2 * s for s in seconds], seconds[::-1])
    assert (found[SAME], found[NEW], found[EACH]) == pytest.approx((1.0, -1.0, 1 / 3))
    assert found[SCATTER] == pytest.approx(0.0)  # twice as slow alike is the task's level
    assert found[ANEW] == pytest.approx(np.std(np.log([8, 2, 1 / 2, 1 / 8]), ddof=1) / math.sqrt(2))
    mean = np.log([s * 2 * s * r for s, r in zip(seconds, seconds[::-1], strict=True)]) / 3
    assert found[SPREAD] == pytest.approx(mean.std(ddof=1)) and found[ORACLE] == pytest.approx(1.0)


def test_a_task_of_which_hardly_any_program_ran_has_none():
    inf = math.inf
    assert figures([1.0, 2.0, 3.0], [1.0, inf, 3.0], [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) is None
    assert figures([1.0, 2.0, 3.0, 4.0], [1.0, inf, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])[SAME] == pytest.approx(1.0)
    rows = {str(n): dict.fromkeys(repeats.FIGURES, 0.1 * n) for n in range(10)} | {"constant": dict.fromkeys(repeats.FIGURES, math.nan)}
    mean, low, high = summary(rows)[SAME]
    assert mean == pytest.approx(0.45) and low < mean < high


def test_programs_near_the_fastest_are_measured(tmp_path, matmul, conv):
    """Of tasks that have enough of them, the same ones each time."""
    rng = np.random.default_rng(0)
    by_task = {tiny.task.key: measured(tiny, rng, TARGET) for tiny in (matmul, conv)}
    store.write_records(tmp_path / "platform=p", [record for records in by_task.values() for record in records])
    data = SimpleNamespace(folder=tmp_path)
    found = chosen(data, "p", 5, 3, enough=2)
    assert found == chosen(data, "p", 5, 3, enough=2) and {task.key for task in found} <= by_task.keys()
    for task in found:
        fastest = min(record.latency_s for record in by_task[task.key])
        assert 2 <= len(task.records) <= 3 and all(record.latency_s <= repeats.NEAR * fastest for record in task.records)
    assert chosen(data, "p", 0, 3, enough=2) == [] == chosen(data, "p", 5, 3, enough=1000)

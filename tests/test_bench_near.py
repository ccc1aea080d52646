"""What the comparison of what models should have learned says of made-up scores."""

from __future__ import annotations

import numpy as np
import pytest
from near import ALL, ALONE, DRAWN, FIGURES, LAMBDA, ROWS, correlations, summary, table

from tcl_core.features.batches import Samples


def of(latencies_s, tasks) -> Samples:
    count = len(tasks)
    return Samples(np.zeros((count, 1, 1), np.float32), np.ones(count, np.int32), np.array(tasks, np.int32), np.array(latencies_s))


def test_near_the_fastest_is_apart_from_all():
    """Task 3's ranking tells fast from slow and has the fast ones in reverse; task 5 has too few programs, and what failed counts nowhere."""
    latencies_s = [1.0, 1.1, 1.2, 1.3, 3.0, 4.0, np.inf, 1.0, 2.0]
    scores = np.array([6.0, 7.0, 8.0, 9.0, 2.0, 1.0, 10.0, 1.0, 0.0])
    found = correlations(scores, of(latencies_s, [3] * 7 + [5] * 2), enough=4)
    assert found["near"] == {3: pytest.approx(-1.0)} and found["all"].keys() == {3}
    assert found["all"][3] == pytest.approx(1 - 6 * 20 / (6 * 35))  # ranks 4 3 2 1 5 6 for 1 to 6


def test_scores_that_are_all_alike_have_no_correlation():
    assert correlations(np.zeros(8), of(np.arange(1.0, 9.0), [0] * 8)) == {"all": {}, "near": {}}


def test_a_difference_is_of_tasks_that_both_ranked():
    figures = {row: {name: {f"host-avx2, {task}": 0.25 for task in range(12)} for name in FIGURES} for row in ROWS}
    figures[ALONE]["near"] = {f"host-avx2, {task}": 0.5 for task in range(1, 13)}
    found = summary({"host-avx2, 0, 0": figures})["host-avx2"]
    assert found[ALONE]["near"] == [0.5, 0.5, 0.5] and found[ALONE]["near_less_base"] == [0.25, 0.25, 0.25]
    assert found[DRAWN]["near_less_base"] == [0.0, 0.0, 0.0]


def test_another_loss_is_compared_with_the_same_data():
    figures = {
        row: {name: {f"host-avx2, {task}": {ALL: 0.5, LAMBDA: 0.375}.get(row, 0.25) for task in range(12)} for name in FIGURES}
        for row in ROWS
    }
    found = summary({"host-avx2, 0, 0": figures})["host-avx2"]
    assert found[ALL]["near_less_base"] == [0.25, 0.25, 0.25] and found[LAMBDA]["near_less_base"] == [-0.125, -0.125, -0.125]


def test_platforms_stand_apart():
    rows = lambda value: {row: {name: {"p, 0": value} for name in FIGURES} for row in ROWS}  # noqa: E731
    found = summary({"a, 0, 0": rows(0.25), "b, 0, 0": {DRAWN: rows(0.5)[DRAWN]}, "a, 0, 1": rows(0.75)})
    assert found["a"][ALONE]["all"][0] == 0.5 and found["b"] == {DRAWN: found["b"][DRAWN]} and found["b"][DRAWN]["all"][0] == 0.5
    lines = table(found).splitlines()
    assert len(lines) == 2 + len(ROWS) + 1 and lines[-1].startswith("| b | drawn | 0.500 |")

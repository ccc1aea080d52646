from __future__ import annotations

import math

import pytest
import search
from _paired import ENOUGH
from search import OURS, RANDOM, SCRATCH, STOCK, figures, ratio


def unit(task, seed, ours, stock, operator="conv2d", host="a"):
    return {
        "task": task,
        "operator": operator,
        "seed": seed,
        "host": host,
        "best_s": {OURS: ours, STOCK: stock, RANDOM: 4e-3, SCRATCH: None},
        "candidates": {OURS: 6000, STOCK: 1000},
        "search_s": {OURS: 2.0, STOCK: 4.0},
        "read_s": {OURS: [ours] * 16, STOCK: [None, stock], RANDOM: [8e-3] * 8 + [4e-3] * 8, SCRATCH: [None] * 16},
    }


def test_ratios_by_hand():
    """Seeds of a task are averaged first; a system without a program that ran takes no part."""
    units = [unit("a", 0, 1e-3, 2e-3), unit("a", 1, 2e-3, 2e-3), unit("b", 0, 2e-3, 2e-3)]
    mean, low, high = ratio(units, OURS, STOCK)
    assert mean == pytest.approx(math.sqrt(math.sqrt(0.5)))  # of a: sqrt(1/2), of b: 1
    assert (low, high) == (None, None)  # two tasks are too few to draw from
    assert ratio(units, SCRATCH, STOCK) is None
    alike = [unit(str(task), 0, 1e-3, 2e-3) for task in range(ENOUGH)]
    assert ratio(alike, OURS, STOCK) == pytest.approx([0.5] * 3)


def test_what_was_found_on_the_way_by_hand():
    found = figures([unit("a", 0, 1e-3, 2e-3), unit("b", 0, 4e-3, 8e-3)])["after"]
    assert found[RANDOM] == {"8": pytest.approx(2.0), "16": pytest.approx(1.0)}
    assert found[OURS]["8"] == pytest.approx(0.5) and found[STOCK]["16"] == pytest.approx(1.0)
    assert found[SCRATCH] == {"8": None, "16": None}
    text = search.table_after({"after": found})
    assert text.splitlines()[0] == "| fastest after | 8 programs | 16 programs |" and "| ours from scratch | - | - |" in text


def test_the_summary_and_its_rows():
    found = figures([unit("a", 0, 1e-3, 2e-3), unit("b", 0, 3e-3, 2e-3, "matmul")])
    assert found["summary"]["candidates_x"] == pytest.approx(12.0)
    assert (found["summary"]["search_s"], found["summary"]["stock_search_s"]) == (2.0, 4.0)
    assert found["summary"]["best_vs_random"][0] == pytest.approx(math.sqrt(1 / 4 * 3 / 4))
    assert [(row["operator"], row["best_vs_stock"][0]) for row in found["rows"]] == [
        ("conv2d", pytest.approx(0.5)),
        ("matmul", pytest.approx(1.5)),
    ]


def test_several_machines_have_a_row_each():
    units = [unit("a", 0, 1e-3, 2e-3), unit("a", 1, 1e-3, 4e-3, host="b")]
    rows = figures(units)["rows"]
    assert [(row["operator"], row["units"]) for row in rows] == [("conv2d", 2), ("all, a", 1), ("all, b", 1)]
    assert [row["best_vs_stock"][0] for row in rows] == pytest.approx([math.sqrt(1 / 2 * 1 / 4), 1 / 2, 1 / 4])
    assert "| all | 2 |" in search.table(figures(units))

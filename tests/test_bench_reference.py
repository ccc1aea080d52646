"""The order in which the data sets are measured."""

from __future__ import annotations

import pytest
from reference import BATCH, PASS, turns_of

from tcl_core.programs.pool import Program


@pytest.fixture(scope="module")
def programs():
    """Three tasks of 48, 16 and 3 programs."""
    return [Program(key, number, 0, (number,)) for key, count in (("a", 48), ("b", 16), ("c", 3)) for number in range(count)]


def test_every_program_has_one_turn(programs):
    turns = turns_of(programs)
    assert sorted(row for turn in turns for row in turn) == list(range(len(programs)))
    assert all(len(turn) == BATCH for turn in turns[:-1]) and turns == turns_of(programs)


def test_as_large_a_share_of_each_task_is_measured_at_any_time(programs):
    ordered = [row for turn in turns_of(programs) for row in turn]
    half = [programs[row].task_key for row in ordered[: 3 * PASS + PASS + 3]]
    assert {key: half.count(key) for key in "abc"} == {"a": 24, "b": 8, "c": 3}


def test_a_pass_is_drawn_from_all_of_a_task(programs):
    """Programs lie by sketch: the first ones would be of one sketch."""
    first = [row for row in (row for turn in turns_of(programs) for row in turn) if row < 48][:PASS]
    assert len(set(first)) == PASS and max(first) > 24 and first != sorted(first)

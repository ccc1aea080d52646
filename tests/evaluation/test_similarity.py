"""Which platform is near, from few programs."""

from __future__ import annotations

import numpy as np

from tcl_core.evaluation.similarity import agreement


def test_sources_are_ordered_by_what_the_few_measurements_say():
    tasks = np.zeros(4, dtype=np.int32)
    target_s = np.array([1.0, 2.0, 3.0, np.nan])
    sources_s = {"backward": np.array([3.0, 2.0, 1.0, 1.0]), "alike": np.array([1.0, 2.0, 4.0, 0.1]), "apart": np.full(4, np.nan)}
    assert agreement(sources_s, target_s, tasks) == {"alike": (3 + 8) / 19, "apart": 0.5, "backward": 8 / 19}  # of three pairs
    assert list(agreement(sources_s, target_s, tasks)) == ["alike", "apart", "backward"]


def test_two_programs_in_common_are_no_nearer_than_hundreds_of_pairs():
    target_s, tasks = np.arange(1.0, 25.0), np.zeros(24, dtype=np.int32)
    few, many = np.full(24, np.nan), target_s.copy()
    few[:2], many[[3, 9]] = target_s[:2], many[[9, 3]]
    assert list(agreement({"few": few, "many": many}, target_s, tasks)) == ["many", "few"]

"""What the comparisons' chain learns at each platform, where the platforms measured different programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from _chain_case import _keys, step
from _datasets import Learned, Reference
from _variants_data import Variants
from synthetic import ranking_problem

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.features.layout import WIDTH
from tcl_core.features.tokens import hardware_rows
from tcl_core.platforms import read_saved_hardware

FOLDER = Path(__file__).resolve().parents[1] / "data" / "variants"
NAN = float("nan")
PROGRAMS = replace(
    ranking_problem(tasks=2, programs=3), features=np.arange(6, dtype=np.float32)[:, None, None] + np.zeros((1, 2, WIDTH), np.float32)
)


def measured(rows, seconds):
    return replace(PROGRAMS.take(np.array(rows, dtype=np.int64)), latencies_s=np.array(seconds))


def test_a_step_has_every_earlier_platforms_seconds_beside_its_own_programs():
    """Programs a to e: the target measured c and a, the first platform a and b, the second b, c and d; e is of none."""
    first, second, target = measured([0, 1], [1.0, 2.0]), measured([1, 2, 3], [20.0, 30.0, float("inf")]), measured([2, 0], [300.0, 100.0])
    hardware = read_saved_hardware(FOLDER / "platform=host-avx2").vector()
    found = step([first, second, target], ["ab", "bcd", "ca"], measured([4], [NAN]), hardware)
    assert found.measured is target
    np.testing.assert_array_equal(found.further.features[:, 1:], PROGRAMS.features[[1, 3, 4], 1:])
    np.testing.assert_array_equal(found.further.features[:, 0], hardware_rows(hardware, 3))
    np.testing.assert_array_equal(found.sources_s[0], [NAN, 1.0, 2.0, NAN, NAN])
    np.testing.assert_array_equal(found.sources_s[1], [30.0, NAN, 20.0, float("inf"), NAN])


def test_of_what_no_platform_measured_the_measured_tasks_are_taken():
    """The last program is of the second task, which neither platform measured."""
    first, target = measured([0, 1], [1.0, 2.0]), measured([2], [3.0])
    found = step([first, target], ["ab", "c"], measured([2, 5], [NAN, NAN]), read_saved_hardware(FOLDER / "platform=host-avx2").vector())
    assert found.further.tasks.tolist() == [0, 0, 0] and len(found.sources_s[0]) == 4


def test_a_program_that_a_platform_has_twice():
    with pytest.raises(DataError, match="a program twice"):
        step([measured([0], [1.0]), measured([1, 1], [1.0, 2.0])], ["a", "bb"], measured([], []), (2.0,))


class Light:
    """Samples without tokens."""

    def samples(self, platform, reads="tokens"):
        records = self._records(platform)
        return Samples(
            features=np.zeros((len(records), 1, 1), np.float32),
            lengths=np.ones(len(records), np.int32),
            tasks=np.array([self.encoder.numbers[record.task_key] for record in records], np.int32),
            latencies_s=np.array([record.latency_s for record in records]),
        )


class LightReference(Light, Reference):
    pass


class LightVariants(Light, Variants):
    pass


def test_keys_are_in_the_order_of_the_programs(tmp_path):
    sets = LightReference(FOLDER.with_name("prepared"), tmp_path), LightVariants(FOLDER, tmp_path)
    case, keys = Learned(sets, sets[0]).case("host-avx2"), _keys(Learned(sets, sets[0]), "host-avx2", "held_out")
    seconds = [{record.key: record.latency_s for record in each._records("host-avx2")} for each in sets]
    assert len(keys) == len(set(keys)) > 10_000
    np.testing.assert_array_equal([seconds[place][key] for place, key in keys], case.train.latencies_s)


def test_of_the_variants_all_programs_are_learned_and_none_is_ranked(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(Variants, "samples", lambda self, *what: asked.append(what) or PROGRAMS)
    case = Variants(FOLDER, tmp_path).case("host-avx2", "per-store features", split="sealed")
    assert case.train is PROGRAMS and len(case.test) == 0 and case.networks == {} and case.before == (PROGRAMS,)
    assert set(asked) == {("host-avx2", "per-store features"), ("host-sse42", "tokens")}

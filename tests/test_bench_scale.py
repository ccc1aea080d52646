"""The schedule of a fleet, by hand, and where its rates come from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scale import FLEETS, PARTS, Fleet, Rates, added, collection_s, compared, learning_s, play

from tcl_core.params import load_params
from tests.shipped import SHIPPED

ROOT = Path(__file__).resolve().parents[1]
# A program is built in 4 s of a core and timed in 1 s; learning, choosing and writing take next to nothing.
RATES = Rates(2, 4.0, 1.0, 0.0, 1e12, 1e12, 1e12, 1e12, 28.0, 600.0)


@pytest.fixture(scope="module")
def params():
    """Half of the pool on the first platform, a quarter on later ones."""
    read = load_params(SHIPPED)
    collect = replace(read.collect, rounds=2, first_fraction=0.5, fraction=0.25, initial_share=0.5, epochs=10, ensemble=2)
    return replace(read, collect=collect, train=replace(read.train, epochs=30), bridge=replace(read.bridge, epochs=15, rehearsal=1.0))


@pytest.mark.parametrize(
    ("fleet", "seconds"),
    [
        (Fleet(1, 1, 100, 2), 200),  # building: 100 * 4 s on two cores
        (Fleet(1, 1, 100, 8), 100),  # no more than four workers for a device: 100 * 1 s
        (Fleet(1, 2, 100, 8), 50),  # two devices have eight
        (Fleet(1, 1, 100, 4, overlap=False), 200),  # 100 * (1 + 1) s one after the other
    ],
)
def test_measuring_takes_as_long_as_the_slower_of_building_and_timing(params, fleet, seconds):
    played = play(RATES, params, fleet)
    assert played.collected_s == pytest.approx(seconds) and played.device_s == pytest.approx(seconds * fleet.devices)
    assert played.ended_s == pytest.approx(played.collected_s)


def test_platforms_share_coordinators_and_the_chain_waits_for_the_model_before(params):
    """Three platforms measure 50, 25 and 25 of a pool of 100; two seconds a program."""
    learn = replace(RATES, learned_per_s=15.0)  # the first: 50 * 30 / 15 = 100 s
    # The second: its network of own data 25 * 30 / 15 = 50, and 30 passes over 25 and the first's other 37.5: 125 s; the third: 50 and 87.5 s.
    collect = replace(params.collect, ensemble=1, epochs=1, rounds=1)
    few = replace(params, collect=replace(collect, initial_share=1e-9, sampler="random"))  # refits on nothing
    alone, two = (play(learn, few, Fleet(3, 1, 100, 2, coordinators=n)) for n in (1, 2))
    assert alone.collected_s == pytest.approx(200) and two.collected_s == pytest.approx(100)  # records at 100, 150, 200 or 100, 50, 100
    assert alone.ended_s == two.ended_s == pytest.approx(512.5)  # models at 200, 375, 512.5: more coordinators do not help the chain
    assert alone.parts_s["measure"] == two.parts_s["measure"] == pytest.approx(200)
    assert two.core_s == pytest.approx(200 * 2 + 412.5 * 2)


def test_rounds_refit_on_all_that_is_known_and_rank_the_whole_pool(params):
    rates = replace(RATES, learned_per_s=10.0, scored_per_s=20.0, encoded_per_s=40.0, written_per_s=5.0)
    found = collection_s(rates, params, Fleet(1, 1, 0, 2), pool=200, share=0.5)
    assert found["refit"] == pytest.approx(2 * 10 * (50 + 75) / 10)  # after the random start and after the first round
    assert found["choose"] == pytest.approx(2 * 2 * 200 / 20)
    assert found["write"] == pytest.approx(100 / 5)
    assert set(found) == set(PARTS) - {"learn the chain"}
    later = collection_s(rates, params, Fleet(1, 1, 0, 2), pool=200, share=0.25, before=0.5)  # by what the first measured, at once
    assert later["refit"] == pytest.approx(2 * 10 * 100 / 10) and later["choose"] == pytest.approx(2 * 200 / 20)
    blind = replace(params, collect=replace(params.collect, sampler="rdu-paper"))
    assert collection_s(rates, blind, Fleet(1, 1, 0, 2), 200, 0.25, 0.5)["choose"] == pytest.approx(found["choose"])


def test_thousands_of_records_are_learned_twice_as_long(params):
    rates = replace(RATES, learned_per_s=1.0)
    few, many = (learning_s(rates, params, records, 0.0, first=False) / records for records in (500.0, 1e9))
    assert (few, many) == pytest.approx((30 + 15 * 2, 30 + 15 * 2 * 2))


def test_one_more_platform_measures_its_share_of_the_same_pool(params):
    hours, core_hours, device_hours = added(RATES, params, Fleet(2, 1, 75, 2))  # a pool of 100
    assert (hours * 3600, core_hours * 3600, device_hours * 3600) == pytest.approx((50, 100, 50))


def test_rates_are_those_of_the_results():
    found, collect = Rates.measured(records=20), json.loads((ROOT / "bench/results/collect.json").read_text())
    by_batch = collect["figures"]["rates"]
    rate = by_batch[max(by_batch, key=int)]["TCL, early stop"]
    assert rate["slowest"] <= 1 / (found.build_core_s / found.cores + found.device_s) <= rate["fastest"]
    assert f" x{found.cores} " in collect["host"]
    assert 100 < found.line_bytes < 5_000
    assert all(value > 0 for value in vars(found).values())


def test_what_is_played_for_this_machine_is_near_what_it_took(params):
    """The schedule has no free number; were it wrong by much, its extrapolation would be worthless."""
    rates = Rates.measured(records=20)
    ratios = [played / took for _, _, took, played in compared(rates, load_params(SHIPPED))]
    assert ratios and all(0.5 < ratio < 2 for ratio in ratios)


def test_what_another_machine_took_says_nothing_of_these_rates(params, tmp_path):
    for name, result in {
        "collect": {"host": "one"},
        "pipeline": {"collected_s": {"another": {"a": 90.0}, "one": {"a": 90.0, "b": 50.0}}},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    assert [found[:3] for found in compared(RATES, params, tmp_path)] == [("a", 800, 90.0), ("b", 400, 50.0)]
    (tmp_path / "collect.json").write_text(json.dumps({"host": "a third"}))
    assert not list(compared(RATES, params, tmp_path))


def test_larger_fleets_take_longer_and_more_machines_shorten_that():
    rates, read = Rates.measured(records=20), load_params(SHIPPED)
    ended = {fleet: play(rates, read, fleet).ended_s for fleet in FLEETS}
    small, large = (Fleet(10, 10, count, 40) for count in (1_000_000, 100_000_000))
    assert ended[large] > 10 * ended[small]
    assert ended[replace(large, cores=2)] > ended[large] > ended[replace(large, coordinators=10)]

"""The shipped data set is what its README says: enough of it, from one host, split by network."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from tcl_core import store

FOLDER = Path(__file__).resolve().parents[1] / "data" / "reference"
PLATFORMS = ("host-sse42", "host-avx2", "host-avx512")


@pytest.fixture(scope="module")
def records():
    return {name: store.read_records(FOLDER / f"platform={name}") for name in PLATFORMS}


@pytest.fixture(scope="module")
def uses():
    return store.read_table(FOLDER / "networks.parquet", "networks")


def test_every_platform_has_the_same_programs_of_one_host(records):
    keys = [[record.key for record in records[name]] for name in PLATFORMS]
    assert keys[0] == keys[1] == keys[2] and len(set(keys[0])) == len(keys[0])
    assert len({record.host for found in records.values() for record in found}) == 1


def test_how_programs_ended_is_what_the_readme_says(records):
    told = (FOLDER / "README.md").read_text()
    for name, found in records.items():
        ended = Counter(record.error for record in found)
        assert ended["ok"] > 0.99 * len(found)
        kinds = ", ".join(f"{ended.pop(kind):,} {kind}" for kind in ("ok", "run", "timeout", "wrong-result"))
        assert not ended and f"{name} {kinds}, {sum(record.disturbed for record in found)} disturbed" in told


def test_there_are_enough_tasks_and_programs(records, uses):
    counts: dict[str, int] = {}
    for record in records[PLATFORMS[-1]]:
        counts[record.task_key] = counts.get(record.task_key, 0) + 1
    held_out = {use["task_key"] for use in uses if use["split"] == "held_out"} & counts.keys()
    trained = counts.keys() - held_out
    assert len(trained) >= 150
    assert np.mean([count >= 64 for count in counts.values()]) > 0.95  # a few design spaces are smaller
    networks = {split: {use["network"] for use in uses if use["split"] == split} for split in ("train", "held_out")}
    assert len(networks["train"]) >= 10 and not networks["train"] & networks["held_out"]
    assert networks["held_out"] >= {"resnet-50", "mobilenet-v2", "bert-tiny"} and len(networks["held_out"]) >= 4
    for network in networks["held_out"]:
        assert {use["task_key"] for use in uses if use["network"] == network} & held_out


def test_platforms_differ_in_what_is_fast(records):
    """The same program's latencies differ from platform to platform, and wide vectors win on the whole."""
    seconds = {name: np.array([record.latency_s for record in records[name]]) for name in PLATFORMS}
    ran = np.isfinite(list(seconds.values())).all(axis=0)
    narrow, wide = seconds[PLATFORMS[0]][ran], seconds[PLATFORMS[-1]][ran]
    assert np.median(wide / narrow) < 1
    assert (wide > narrow).any()


@pytest.mark.parametrize("edition", ["prepared", "registers"])
def test_an_edition_is_what_its_readme_says(edition):
    folder = FOLDER.with_name(edition)
    keys, told = {}, (folder / "README.md").read_text()
    for name in PLATFORMS:
        found = store.read_records(folder / f"platform={name}")
        keys[name] = [record.key for record in found]
        ended = Counter(record.error for record in found)
        kinds = ", ".join(f"{ended.pop(kind):,} {kind}" for kind in ("ok", "timeout"))
        assert not ended and f"{name} {kinds}, {sum(record.disturbed for record in found)} disturbed" in told
        assert len({record.host for record in found}) == 1
    assert keys[PLATFORMS[0]] == keys[PLATFORMS[1]] == keys[PLATFORMS[2]] and len(set(keys[PLATFORMS[0]])) == len(keys[PLATFORMS[0]])
    measured = {key[0] for key in keys[PLATFORMS[0]]}
    uses = store.read_table(folder / "networks.parquet", "networks")
    of = {split: {use["task_key"] for use in uses if use["split"] == split} & measured for split in ("train", "held_out", "sealed")}
    trained, sealed = of["train"] - of["held_out"] - of["sealed"], of["sealed"] - of["held_out"]
    assert f"{len(trained)} of the training networks, {len(of['held_out'])} of the held-out ones, {len(sealed)} of the sealed ones" in told


SEARCHED = {"host-avx2": "epyc/registers", "host-avx512": "registers"}  # platform -> what its machine had measured of draws


@pytest.mark.parametrize("platform", SEARCHED)
def test_what_searches_met_is_what_its_readme_says(platform):
    folder = FOLDER.with_name("searched")
    records, told = store.read_records(folder / f"platform={platform}"), (folder / "README.md").read_text()
    ended = Counter(record.error for record in records)
    failed = sum(count for kind, count in ended.items() if kind != "ok")
    drawn = {record.key for record in store.read_records(FOLDER.parent / SEARCHED[platform] / f"platform={platform}")}
    searched = [record for record in records if record.key not in drawn]
    uses = store.read_table(folder / "networks.parquet", "networks")
    held_out = {use["task_key"] for use in uses if use["split"] == "held_out"} & {record.task_key for record in records}
    trained = {record.task_key for record in records} - held_out
    assert f"{len(trained)} tasks are of the training networks and {len(held_out)} of the held-out ones" in told
    of = f"{len(records):,} records, {len(searched):,} of them searched"
    assert f"{of}: {failed} failed, {sum(record.disturbed for record in records)} disturbed" in told
    assert len({record.host for record in records}) == 1
    programs = store.read_table(folder / "programs.parquet", "programs")
    numbers = {(row["task_key"], row["sketch_id"], tuple(row["decisions"])): row["program_id"] for row in programs}
    assert len(numbers) == len(programs) and all(numbers[record.key] == record.program_id for record in records)


def test_the_many_tasks_are_what_their_readme_says():
    """None is another data set's, so none that a comparison holds out."""
    folder = FOLDER.with_name("variants")
    told, on = " ".join((folder / "README.md").read_text().split()), Counter[str]()
    for platform in PLATFORMS:
        records = store.read_records(folder / f"platform={platform}")
        on.update({record.task_key for record in records})
        failed, disturbed = sum(record.error != "ok" for record in records), sum(record.disturbed for record in records)
        assert f"{platform} {len(records):,}, of these {failed} failed, {disturbed:,} disturbed" in told
        assert len({record.host for record in records}) == 1 and max(Counter(record.task_key for record in records).values()) == 12
    uses = store.read_table(folder / "networks.parquet", "networks")
    assert {use["split"] for use in uses} == {"train"} and on.keys() == {use["task_key"] for use in uses}
    counts = Counter(on.values())
    assert f"{counts[2]} tasks by two, {counts[1]} by one" in told and f"Measured programs of {len(on)} tasks" in told
    for other in ("reference", "prepared", "registers", "searched"):
        theirs = {use["task_key"] for use in store.read_table(FOLDER.with_name(other) / "networks.parquet", "networks")}
        assert not on.keys() & theirs


def test_searches_meet_faster_programs_than_draws():
    """Of the tasks that the EPYC measured both ways on AVX2: the median program as searched beside the median as drawn."""
    drawn_keys = {record.key for record in store.read_records(FOLDER.parent / "epyc" / "registers" / "platform=host-avx2")}
    of: dict[bool, dict[str, list[float]]] = {True: {}, False: {}}
    for record in store.read_records(FOLDER.with_name("searched") / "platform=host-avx2"):
        of[record.key in drawn_keys].setdefault(record.task_key, []).append(record.latency_s)
    drawn, searched = ({key: float(np.median(each)) for key, each in of[which].items()} for which in (True, False))
    both = [key for key in drawn if key in searched and np.isfinite([drawn[key], searched[key]]).all()]
    assert len(both) >= 100
    assert np.median([searched[key] / drawn[key] for key in both]) < 0.9


def test_what_one_edition_holds_out_the_other_does_not_train_on():
    """All are learned in one heap, and their tasks were cut from graphs that differ a little."""
    names = ("prepared", "registers", "searched", "variants")
    uses = {name: store.read_table(FOLDER.with_name(name) / "networks.parquet", "networks") for name in names}
    of = {
        name: {split: {use["task_key"] for use in rows if use["split"] == split} for split in ("train", "held_out", "sealed")}
        for name, rows in uses.items()
    }
    for mine, other in permutations(names, 2):
        apart = of[mine]["held_out"] | of[mine]["sealed"]
        assert not (of[other]["train"] - of[other]["held_out"] - of[other]["sealed"]) & apart


def test_it_is_small():
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < 20e6

"""How the comparisons split their data: nothing that is ranked was trained on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from _datasets import VALIDATION, Case, Learned, Logs, Reference
from _searched_data import Searched
from synthetic import ranking_problem

from tcl_core import store
from tcl_core.errors import UsageError
from tcl_core.programs.pool import WIDTHS
from tcl_core.programs.registers import blocks_of, in_registers
from tcl_core.programs.sketches import read_sketch, trace_from_json
from tcl_core.reference import shipped

FOLDER = Path(__file__).resolve().parents[1] / "data" / "reference"


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return Reference(FOLDER, tmp_path_factory.mktemp("features"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return Reference(FOLDER.with_name("prepared"), tmp_path_factory.mktemp("features"))


def tasks_of(reference, names):
    return {reference.encoder.numbers[use["task_key"]] for use in reference.uses if use["network"] in names}


def test_held_out_networks_share_no_task_with_what_is_trained_on(reference):
    held_out = {use["network"] for use in reference.uses if use["split"] == "held_out"}
    train, networks = reference._split(())
    assert networks.keys() == held_out and len(train) >= 150
    assert not train & tasks_of(reference, held_out)
    assert {task for weights in networks.values() for task in weights} == tasks_of(reference, held_out)
    assert all(weight >= 1 for weights in networks.values() for weight in weights.values())


def test_networks_that_settings_are_chosen_on_are_apart_from_both(reference):
    held_out = {use["network"] for use in reference.uses if use["split"] == "held_out"}
    train, networks = reference._split(VALIDATION)
    ranked = {task for weights in networks.values() for task in weights}
    assert networks.keys() == set(VALIDATION) and len(ranked) >= 20
    assert not train & tasks_of(reference, VALIDATION)
    assert not (train | ranked) & tasks_of(reference, held_out)


def test_a_network_that_is_none_of_those_to_test_is_said(reference):
    """Else it would be trained on, and nothing would say that it is not tested."""
    with pytest.raises(UsageError, match="^unknown training network 'resnet-50x'"):
        reference.case("host-avx2", tested=["resnet-50x"])
    held_out = next(use["network"] for use in reference.uses if use["split"] == "held_out")
    with pytest.raises(UsageError, match=f"^unknown training network '{held_out}'"):
        reference.case("host-avx2", tested=[held_out])
    with pytest.raises(UsageError, match="has no sealed networks; test some of its training networks$"):
        reference.case("host-avx2", split="sealed")


def test_all_platforms_in_one_heap_have_tasks_of_their_own(reference):
    train, _ = reference._split(())
    key = next(key for key, number in reference.encoder.numbers.items() if number in train)
    heap, left = reference.pooled([key, "of nobody"]), train - {reference.encoder.numbers[key]}
    count = len(reference.encoder.numbers)
    assert set(heap.tasks.tolist()) == {task + count * place for task in left for place in range(3)}
    for place, platform in enumerate(reference.platforms):
        mine, whole = heap.take(heap.tasks // count == place), reference.samples(platform)
        whole = whole.take(np.isin(whole.tasks, list(left)))
        np.testing.assert_array_equal(mine.features, whole.features[:, : mine.features.shape[1]])
        np.testing.assert_array_equal(mine.latencies_s, whole.latencies_s)


def test_a_platforms_samples_are_its_records_encoded_alone(reference):
    for platform in reference.platforms:
        records = store.read_records(reference.folder / f"platform={platform}")
        latencies_s = [record.latency_s for record in records]
        alone = reference.encoder.encode([record.key for record in records], reference.hardware(platform).vector(), latencies_s)
        found = reference.samples(platform)
        for field in ("features", "lengths", "tasks", "latencies_s"):
            np.testing.assert_array_equal(getattr(found, field), getattr(alone, field))


def test_what_no_platform_measured_is_a_heap_of_the_same_tasks(prepared):
    measured, more = prepared.pooled(), prepared.unmeasured()
    assert set(more.tasks.tolist()) >= set(measured.tasks.tolist()) and np.isinf(more.latencies_s).all()
    count, programs = len(prepared.encoder.numbers), store.read_table(prepared.folder / "programs.parquet", "programs")
    known = {record.key for record in store.read_records(prepared.folder / "platform=host-avx2")}
    train, _ = prepared._split(())
    left = [r for r in programs if (r["task_key"], r["sketch_id"], tuple(r["decisions"])) not in known]
    assert len(more) == 3 * sum(prepared.encoder.numbers[row["task_key"]] in train for row in left)
    for place, platform in enumerate(prepared.platforms):
        (row,) = np.unique(more.features[more.tasks // count == place, 0], axis=0)
        np.testing.assert_array_equal(row, prepared.samples(platform).features[0, 0])


def test_what_comes_with_tcl_is_four_data_sets_whose_tasks_are_numbered_apart():
    """However many of its tasks a heap has, the next data set's are behind all of the one's before."""
    few, asked = ranking_problem(tasks=2, programs=3), []
    heap = shipped(lambda data: (asked.append(data), few)[1])
    assert [data.folder.name for data in asked] == ["prepared", "registers", "searched", "variants"]
    first, second, third, _ = (len(data.platforms) * len(data.encoder.numbers) for data in asked)
    assert heap.tasks.tolist() == [*few.tasks, *(few.tasks + first), *(few.tasks + first + second), *(few.tasks + first + second + third)]
    np.testing.assert_array_equal(heap.latencies_s, [*few.latencies_s] * 4)


def test_of_data_sets_that_are_learned_together_one_is_ranked(prepared, tmp_path):
    registers = Reference(FOLDER.with_name("registers"), tmp_path)
    case = Learned((prepared, registers), registers).case("host-avx2")
    first, second = (each.case("host-avx2") for each in (prepared, registers))
    behind = second.train.tasks + len(prepared.encoder.numbers)
    assert case.train.tasks.tolist() == [*first.train.tasks, *behind]
    np.testing.assert_array_equal(case.train.latencies_s, [*first.train.latencies_s, *second.train.latencies_s])
    (before,) = case.before
    assert len(before) == len(first.before[0]) + len(second.before[0]) and set(before.tasks) == set(case.train.tasks)
    assert case.networks == second.networks
    np.testing.assert_array_equal(case.test.latencies_s, second.test.latencies_s)


def test_of_what_searches_met_no_draw_is_ranked_but_learned(tmp_path):
    folder, registers = FOLDER.with_name("searched"), FOLDER.with_name("registers")
    place = lambda name: registers / f"platform={name}"  # noqa: E731
    met, whole = (of.case("host-avx512") for of in (Searched(folder, tmp_path, 0, 0.9, place), Reference(folder, tmp_path)))
    assert len(met.train) == len(whole.train) and met.networks == whole.networks
    drawn = {record.key for record in store.read_records(place("host-avx512"))}
    ranked, names = set(np.unique(whole.test.tasks).tolist()), Reference(folder, tmp_path).encoder.numbers
    records = [r for r in store.read_records(folder / "platform=host-avx512") if names[r.task_key] in ranked]
    searched = [record.latency_s for record in records if record.key not in drawn]
    assert met.test.latencies_s.tolist() == searched and 1000 < len(searched) < len(records)


def test_the_second_data_set_is_mostly_of_programs_that_add_up_in_registers(prepared):
    uniform, leaning = (share_in_registers(folder) for folder in (prepared.folder, FOLDER.with_name("registers")))
    assert uniform < 0.3 < 0.6 < leaning


def share_in_registers(folder: Path, tasks: int = 20) -> float:
    """Of the programs of some tasks, where a sketch has blocks: those that add up in the registers of some width of vectors."""
    encoder, fit = Reference(folder, folder).encoder, []
    programs: dict[tuple[str, int], list[tuple[int, ...]]] = {}
    for record in store.read_records(folder / "platform=host-avx512"):
        if encoder.numbers[record.task_key] < tasks:
            programs.setdefault((record.task_key, record.sketch_id), []).append(tuple(record.decisions))
    for (key, number), decisions in programs.items():
        trace = trace_from_json(encoder.trace_json(key, number), encoder.tasks[key].module())
        if blocks := blocks_of(read_sketch(key, number, trace)):
            fit += np.any([in_registers(blocks, np.array(decisions), width) for width in WIDTHS], axis=0).tolist()
    return float(np.mean(fit))


def test_a_task_belongs_to_one_split(reference, monkeypatch):
    """Sealed networks rank what no held-out one has, and nothing of either is trained on."""
    keys = sorted(reference.encoder.numbers, key=reference.encoder.numbers.get)[:4]
    has = {"trained": ("train", (0, 1, 2)), "seen": ("held_out", (1, 3)), "new": ("sealed", (2, 3))}
    uses = [{"network": n, "split": split, "task_key": keys[t], "weight": 1} for n, (split, tasks) in has.items() for t in tasks]
    monkeypatch.setattr(reference, "uses", uses)
    assert reference._split(()) == ({0}, {"seen": {1: 1.0, 3: 1.0}})
    assert reference._split((), "sealed") == ({0}, {"new": {2: 1.0}})
    assert reference._split(("trained",)) == (set(), {"trained": {0: 1.0}})


def test_platforms_come_weakest_first(reference):
    assert reference.platforms == ["host-sse42", "host-avx2", "host-avx512"]


def test_a_thinned_case_has_the_same_programs_on_every_platform():
    samples = ranking_problem(tasks=6, programs=16)
    case = Case(samples, samples, {}, before=(samples,)).thinned(3, 5, seed=1)
    assert len(case.train) == 15 and len(np.unique(case.train.tasks)) == 3 and len(case.test) == 96
    np.testing.assert_array_equal(case.train.features, case.before[0].features)
    fewer = Case(samples, samples, {}).thinned(2, 5, seed=1).train
    assert set(fewer.tasks.tolist()) < set(case.train.tasks.tolist())  # a larger draw holds the smaller one


def autotvm_lines(tasks, programs, first):
    for task in range(tasks):
        arguments = [["TENSOR", [8 + task, 16], "float32"], ["TENSOR", [32, 16], "float32"], None, "float32"]
        for number in range(first, first + programs):
            knobs = [["tile_y", "sp", [-1, 2**number]], ["tile_x", "sp", [-1, 4]]]
            config = {"index": number, "code_hash": None, "entity": knobs}
            result = [[1e-3 * (1 + number)], 0, 1.0, 1000.0]
            yield {"input": ["llvm", "dense_nopack.x86", arguments, {}], "config": config, "result": result, "version": 0.2}


def write_log(path, tasks, programs, first=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, autotvm_lines(tasks, programs, first))).encode()))


def test_a_device_is_split_by_task_and_tested_on_what_was_drawn_uniformly(tmp_path):
    write_log(tmp_path / "logs/autotvm/board/random.log.gz", 8, 3)
    write_log(tmp_path / "logs/autotvm/board/searched.log.gz", 8, 5, first=5)
    write_log(tmp_path / "logs/autotvm/other/all.log.gz", 4, 2)
    logs = Logs(tmp_path / "logs", tmp_path / "scratch")
    assert logs.devices == ["board", "other"]
    assert logs.drawn("board") == ["random"] and logs.drawn("other") is None
    case = logs.case("board", 0)
    tested = set(case.test.tasks.tolist())
    assert len(tested) == 2 and len(case.test) == 2 * 3 and not tested & set(case.train.tasks.tolist())
    assert case.networks == {"board": dict.fromkeys(tested, 1.0)}
    assert len(case.train) == 6 * (3 + 5)
    assert set(logs.case("board", 1).test.tasks.tolist()) != tested or set(logs.case("board", 2).test.tasks.tolist()) != tested


def test_a_broken_off_import_is_taken_up(tmp_path):
    write_log(tmp_path / "logs/autotvm/board/random.log.gz", 2, 2)
    write_log(tmp_path / "logs/autotvm/board/searched.log.gz", 2, 2, first=5)
    Logs(tmp_path / "logs", tmp_path / "scratch")
    records = tmp_path / "scratch/data/imported/platform=board/records"
    (records / "searched.parquet").unlink()
    Logs(tmp_path / "logs", tmp_path / "scratch")
    assert len(store.read_records(records)) == 8

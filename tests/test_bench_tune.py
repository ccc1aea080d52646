"""The summary of tuned networks: what counts over several machines, and what of one alone."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import _tables
import _tuning_tables as tables
import numpy as np
import pytest
import tune
from synthetic import ranking_problem

from tcl_core.compat import make_target, meta_schedule
from tcl_core.errors import DataError, PlatformError
from tcl_core.features import layout
from tcl_core.programs.tasks import EXTRACTION_TARGET
from tcl_core.tuning.database import Shelf, open_database
from tcl_core.tuning.latency import Latencies, Timed


def group(network: str, trials: int | None = None, **rounds_ms: list[float]) -> dict[str, object]:
    """Systems' rounds; a system's milliseconds are its first round's."""
    systems = {name.replace("_", " "): rounds for name, rounds in rounds_ms.items()}
    others = {"eager_ms": systems["eager"][0], "compile_ms": None}
    systems_ms = {name: rounds[0] for name, rounds in systems.items() if name != "eager"}
    return {"network": network, "seed": 0, "trials": trials, "systems_ms": systems_ms, **others, "rounds_ms": systems}


SLOW = {"units": {}, "compared": {"net, seed 0": group("net", TCL=[10.0, 10.0, 10.0], random=[20.0, 20.0, 20.0], eager=[30.0, 30.0, 30.0])}}
FAST = {
    "units": {},
    "compared": {
        "net, seed 0": group("net", TCL=[1.0], eager=[2.0]),
        "net, seed 0, 1000 programs": group("net", tables.LONG, TCL=[0.5], eager=[2.0]),
    },
}


def test_figures_are_of_the_machine_with_most_systems_and_what_it_lacks_of_others():
    found = tables.figures("net", [SLOW, FAST])
    assert found["groups"] == 1 and found["ours_ms"] == [10.0, None, None] and found["random_ms"] == [20.0, None, None]
    assert found["speedup_over_eager"] == [pytest.approx(3.0), None, None]  # machines are no seeds
    twice = SLOW["compared"] | {"net, seed 1": group("net", TCL=[10.0], random=[20.0], eager=[20.0]) | {"seed": 1}}
    other = {"units": {}, "compared": {"net, seed 0": group("net", TCL=[1.0], MetaSchedule=[1.5], eager=[2.0])}}
    found_twice = tables.figures("net", [{"units": {}, "compared": twice}, other])
    mean, low, high = found_twice["speedup_over_eager"]
    assert mean == pytest.approx(6.0**0.5) and 0 < low < mean < high  # of 3 and 2
    assert found_twice["equal_trials_stock_x"] == [pytest.approx(1.5), None, None] and found_twice["elsewhere"] == ["MetaSchedule"]
    assert found["equal_trials_random_x"] == [pytest.approx(2.0), None, None] and found["compile_ms"] is None
    assert found["long_ms"] is None and found["long_speedup_over_eager"] == [pytest.approx(4.0), None, None]  # measured elsewhere


def test_what_the_last_search_was_not_compared_with_is_told_of_before():
    found = tables.figures("net", [FAST], [SLOW])
    assert found["speedup_over_eager"] == [pytest.approx(2.0), None, None] and found["systems_x"] == {"random": [2.0, None, None]}
    assert found["elsewhere"] == ["random"] and found["random_ms"] is None
    assert tables.summary_of([FAST], [{"units": {}, "compared": {"other": group("other", TCL=[2.0], eager=[4.0])}}]).keys() == {
        "net",
        "other",
    }


def test_of_two_machines_with_as_many_systems_the_later_is_shown():
    few = {"units": {}, "compared": {"net, seed 0": group("net", TCL=[7.0], eager=[14.0])}}
    assert tables.figures("net", [few, FAST])["ours_ms"] == [1.0, None, None]


def test_of_equals_the_one_with_most_seeds_is_shown():
    """And milliseconds are the mean of the two processes' medians, whichever had more of the rounds."""
    seeds = {f"net, seed {seed}": group("net", TCL=[4.0, 4.0, 6.0], eager=[8.0, 8.0, 12.0]) for seed in range(2)}
    several = {"units": {}, "compared": seeds}
    one = {"units": {}, "compared": {"net, seed 0": group("net", TCL=[1.0], eager=[2.0])}}
    assert tables.figures("net", [several, one])["ours_ms"][0] == 5.0


def test_seconds_to_a_rival_that_was_never_reached_are_counted():
    curve = lambda end: [[8, 10.0, 9.0], [16, 50.0, end]]  # noqa: E731
    rival = tables.TENSET
    compared = {f"net, seed {seed}": group("net", eager=[9.0], TCL=[ours], **{rival: [2.0]}) for seed, ours in enumerate((1.0, 3.0))}
    units = {f"net, seed {seed}: {system}": {"curve": curve(4.0)} for seed in range(2) for system in (tables.OURS, rival)}
    found = tables.figures("net", [{"units": units, "compared": compared}])
    assert found["reached"] == {"time_to_tenset_x": [1, 2]} and found["time_to_tenset_x"] == [1.0, None, None]


def test_what_differs_in_more_than_the_seed_has_no_interval():
    before = [SLOW, {"units": {}, "compared": {"net, seed 0": group("net", TCL=[1.0], random=[8.0], eager=[2.0])}}]
    assert tables.figures("net", [FAST], before)["systems_x"] == {"random": [pytest.approx(4.0), None, None]}


def test_a_network_that_we_did_not_tune_has_no_row():
    assert tables.figures("net", [{"units": {}, "compared": {"net, seed 0": group("net", random=[1.0], eager=[1.0])}}]) is None
    assert tables.figures("other", [SLOW]) is None


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(_tables, "_apart", tmp_path)
    about = {"platform": "host", "protocol": "{}"}
    (tmp_path / "tune.json").write_text(json.dumps({**about, "summary": {}, "parts": {"elsewhere": SLOW}}))
    return SimpleNamespace(about=about, file=tmp_path / "tune.json")


def bench(results, about: dict[str, object], force: bool = False) -> tune.Bench:
    return tune.Bench(None, "here", {"graph": {"layout": "NHWC"}, "search": {"lean": 0.5}}, about, "tune", tune.COMMAND, force)


def test_of_the_parts_some_networks_and_systems_are_tuned_and_donors_stay(monkeypatch, capsys):
    units = tune.wanted(["stock", "donors"], ["vit-tiny"])
    some = tune.chosen(units, ["bert-tiny"], ["MetaSchedule", "Transfer-Tuning"])
    assert [(unit.network, unit.system, unit.seed) for unit in some] == [
        ("bert-tiny", "MetaSchedule", 0),
        ("vit-tiny", "TCL", 0),
        *(("bert-tiny", "Transfer-Tuning", seed) for seed in range(tune.SEEDS)),
    ]
    assert tune.chosen(units, [], []) == units
    monkeypatch.setattr("sys.argv", ["tune.py", "--part", "world", "--system", "random"])
    with pytest.raises(SystemExit, match="no part that is asked for has such a system"):
        tune.main()


def test_what_another_machine_found_stays_in_the_file(results):
    mine = bench(results, results.about)
    mine.compared["net, seed 0"] = FAST["compared"]["net, seed 0"]
    mine.save()
    saved = json.loads(results.file.read_text())
    assert saved["parts"]["elsewhere"] == SLOW and list(saved["parts"]) == ["elsewhere", "here"]
    assert saved["summary"]["net"]["groups"] == 1 and saved["summary"]["net"]["elsewhere"] == ["random"]


def test_what_the_latest_change_cannot_have_touched_is_taken_over(results, monkeypatch):
    """Random programs' unit with its database, not TCL's; none whose database is gone, of another machine, or to code of later."""
    monkeypatch.setattr(tune, "LATEST", tune.Change("old", "new", (tables.RANDOM, tables.TENSET)))
    machine, random = SimpleNamespace(lenders=()), tune.Unit("bert-tiny", tables.RANDOM, 1)

    def of(name, code):
        choices = {"graph": {}, "code": {"digest": code}}
        return tune.Bench(machine, f"{name}, code {code}", choices, results.about, "tune", tune.COMMAND, False)

    earlier = of("here", "old")
    for unit in (random, tune.Unit("bert-tiny", tables.OURS, 1), tune.Unit("bert-tiny", tables.TENSET, 0)):
        earlier.units[tune._name(unit)] = {"seconds": 1.0, "curve": []}
    (earlier.folder / random.place).mkdir(parents=True)
    (earlier.folder / random.place / "database_workload.json").write_text("[]")
    earlier.save()
    now = of("here", "new")
    assert now.units == {"bert-tiny, seed 1: random": {"seconds": 1.0, "curve": []}}
    assert (now.folder / random.place / "database_workload.json").read_text() == "[]" and now.folder != earlier.folder
    assert not of("there", "new").units and not of("here", "newer").units


def test_results_by_another_protocol_are_neither_mixed_nor_dropped(results):
    kept = results.file.read_bytes()
    with pytest.raises(DataError, match=r"results of another protocol; give --force"):
        bench(results, {**results.about, "protocol": "{1}"})
    assert results.file.read_bytes() == kept
    assert list(bench(results, {**results.about, "protocol": "{1}"}, force=True).parts) == ["here"]


def test_each_part_keeps_what_it_found_apart_and_misses_what_is_gone(results):
    """Or another champion's programs would be built, or TVM's own schedules, and timed as this one's."""
    unit = tune.Unit("net", tables.OURS, 0)
    first = bench(results, results.about)
    second = tune.Bench(None, "there", {}, results.about, "tune", tune.COMMAND, False)
    assert first.folder / unit.place != second.folder / unit.place and first.folder == bench(results, results.about).folder
    with pytest.raises(DataError, match="what net, seed 0: TCL found, is gone; give --force to begin anew"):
        first._found(unit)


def test_a_database_of_a_network_that_was_prepared_otherwise_is_refused(results, matmul, conv, monkeypatch):
    """TVM would time its own schedules in the place of tasks that it does not find."""
    mine, unit, target = bench(results, results.about), tune.Unit("net", tables.OURS, 0), make_target(EXTRACTION_TARGET)
    mine.machine = SimpleNamespace(setup=SimpleNamespace(target=EXTRACTION_TARGET))
    trace = matmul.space.materialise(matmul.sketches[0], matmul.sample(matmul.sketches[0], 1)[0]).trace
    Shelf(open_database(mine.folder / unit.place), matmul.module, target).put(trace, [1e-3])
    monkeypatch.setattr(mine, "_fused", lambda unit: None)
    tasks = [conv.module]
    monkeypatch.setattr(meta_schedule().relax_integration, "extract_tasks", lambda *_: [SimpleNamespace(dispatched=[m]) for m in tasks])
    with pytest.raises(DataError, match="has programs of tasks that net no longer has; give --force to begin anew"):
        mine._found(unit)
    tasks.append(matmul.module)
    assert len(mine._found(unit)) == 1


def test_a_rival_that_does_not_run_or_computes_something_else_is_missing(results, monkeypatch):
    """And the others are compared; the next run tries it again."""
    mine = bench(results, results.about)
    protocol = SimpleNamespace(threads=1, pin_threads=False)
    mine.machine = SimpleNamespace(setup=SimpleNamespace(target=EXTRACTION_TARGET, protocol=protocol), rounds=1)
    units = [tune.Unit("net", system, 0) for system in (tables.OURS, tables.RANDOM, tables.SCRATCH)]
    for unit in units:
        mine.units[tune._name(unit)] = {"curve": []}
    for name in ("_fused", "_found"):
        monkeypatch.setattr(mine, name, lambda unit: None)
    monkeypatch.setattr(tune, "apply_database", lambda *_: None)
    monkeypatch.setattr(tune, "export", lambda applied, target, path: None)
    monkeypatch.setattr(tune, "example_inputs", lambda network: [])

    def running(library, *_):
        if library.stem == tables.RANDOM:
            raise PlatformError("it ended with -11")
        return nullcontext()

    def compared(network, libraries, *_):
        differences = {tables.OURS: 1e-6, tables.SCRATCH: 0.5}
        systems = {name: Timed(1.0, (1.0,), differences[name]) for name in libraries}
        return Latencies(systems, {"compile": "none", "eager": "none"}, {}, tables.OURS)

    monkeypatch.setattr(tune, "running", running)
    monkeypatch.setattr(tune, "compare", compared)
    mine._compare(units[0])
    (row,) = mine.compared.values()
    assert row["systems_ms"] == {tables.OURS: 1.0} and not mine._is_compared(units[0])
    assert row["missing"][tables.RANDOM] == "it ended with -11" and "differs by 5.0e-01" in row["missing"][tables.SCRATCH]


def test_a_row_for_each_network_and_machine():
    parts = {
        "AMD EPYC x2 0123abcd, host-avx2, champion 1, graph 2": SLOW,
        "Intel(R) Xeon(R) Processor x2 4567ef89, host-avx512, champion 2, graph 3": FAST,
    }
    header, _, *rows = tables.table(parts).split("\n\n")[0].splitlines()
    rows = [dict(zip(*([cell.strip() for cell in line.split("|")[1:-1]] for line in (header, row)), strict=True)) for row in rows]
    shown = [[row[name] for name in ("network", "machine", "TCL", "random / TCL", "eager / TCL")] for row in rows]
    assert shown == [
        ["net", "AMD EPYC, host-avx2", "10.00 ms", "2.00x", "3.00x"],
        ["net", "Intel Xeon, host-avx512", "1.00 ms", "-", "2.00x"],
    ]
    assert "machine" not in tables.table({"AMD EPYC x2 0123abcd, champion 1, graph 2": SLOW})


def test_a_machine_with_two_champions_names_them():
    here = [
        "AMD EPYC x2 0123abcd, champion aaaa11112222, graph 2",
        *(f"Intel(R) Xeon(R) Processor x2 45ef, champion {c}" for c in ("b1b2b3", "c4")),
    ]
    assert tables.names_of(here) == ["AMD EPYC", "Intel Xeon, champion b1b2", "Intel Xeon, champion c4"]


def test_graphs_and_searches_of_before_are_told_apart():
    """The first searches are not named in their parts."""
    kinds = {"a": ("NCHW", None), "b": ("NHWC", 0.9), "c": ("NHWC", 0.5), "d": ("NHWC", 0.9)}
    parts = {name: {"graph": {"layout": layout}, "search": lean and {"lean": lean}, **FAST} for name, (layout, lean) in kinds.items()}
    present, earlier = tables.by_age(parts)
    assert (list(present), list(earlier)) == (["b", "d"], ["a", "c"])
    champions = {f"Xeon, champion {n}": FAST for n in (1, 2)} | {"EPYC, champion 3": FAST}
    present, earlier = tables.by_age(champions)
    assert (list(present), list(earlier)) == (["Xeon, champion 2", "EPYC, champion 3"], ["Xeon, champion 1"])
    present, _ = tables.by_age(champions | {"Xeon, champion 4": FAST})
    assert list(present) == ["EPYC, champion 3", "Xeon, champion 4"]  # the last one's machine comes last


def test_a_part_that_has_only_begun_takes_no_place():
    both = {"units": {}, "compared": {name: group(name, TCL=[1.0], eager=[2.0]) for name in ("net", "other")}}
    parts = {"Xeon, champion 1": both, "Xeon, champion 2": FAST, "EPYC, champion 2": FAST}
    assert [list(each) for each in tables.by_age(parts)] == [["Xeon, champion 1", "EPYC, champion 2"], []]
    present, earlier = tables.by_age(parts | {"Xeon, champion 3": both})
    assert (list(present), list(earlier)) == (["EPYC, champion 2", "Xeon, champion 3"], ["Xeon, champion 1"])


def test_a_mean_over_networks_has_an_interval_over_the_seeds_that_have_them_all():
    eager = {"a, seed 0": 2.0, "b, seed 0": 8.0, "a, seed 1": 2.0, "b, seed 1": 2.0, "a, seed 2": 2.0}
    compared = {name: group(name[0], TCL=[1.0], eager=[ms]) | {"seed": int(name[-1])} for name, ms in eager.items()}
    text = tables.table({"Xeon x2 45ef, champion 1": {"units": {}, "compared": compared}})
    mean, low, high = tables._over_ratios([4.0, 2.0])
    assert f"PyTorch eager's time / TCL's: {mean:.2f} ({low:.2f} to {high:.2f})" in text
    alone = {"units": {}, "compared": {name: of for name, of in compared.items() if of["seed"] == 0}}
    assert "PyTorch eager's time / TCL's: 4.00." in tables.table({"Xeon x2 45ef, champion 1": alone})
    alone["compared"]["a, seed 0"] = group("a", TCL=[1.0], eager=[2.0], random=[3.0])
    assert "random programs' / TCL's: 3.00 (a alone)." in tables.table({"Xeon x2 45ef, champion 1": alone})


def test_what_donors_are_worth():
    curve = [[8, 10.0, 8.0], [16, 50.0, 4.0]]  # its end is what was then measured as 2 ms
    spent = {"TCL": (100.0, curve), "Transfer-Tuning": (5.0, [[4, 5.0, 8.0]]), "TCL, warm start": (60.0, curve)}
    units = {f"net, seed 0: {system}": {"seconds": seconds, "curve": of} for system, (seconds, of) in spent.items()}
    compared = {"net, seed 0": group("net", eager=[9.0], TCL=[2.0], **{"Transfer-Tuning": [4.0], "TCL, warm start": [1.6]})}
    (row,) = tables.table_of_donors([{"units": units, "compared": compared}, SLOW]).splitlines()[2:]
    assert row == "| net | 5 s | 50% | 10 s | 100 s | 60 s | 125% |"
    assert tables.table_of_donors([SLOW]) == ""


def test_a_table_of_what_was_reached_after_so_many_programs():
    """The mean over seeds, as the whole network takes; nothing before all tasks had a program, nor beyond the last one."""
    curves = {"seed 0": [[120, 9.0, 8.0], [190, 20.0, 4.0]], "seed 1": [[150, 9.0, 6.0], [250, 9.0, 2.0]]}  # ends were 2 and 4 ms
    late = [[201, 9.0, 3.0]]
    units = {f"net, {seed}: TCL": {"trials": 320, "curve": curve} for seed, curve in curves.items()}
    units["net, seed 0: random"] = {"trials": 600, "curve": late}
    compared = {"net, seed 0": group("net", eager=[9.0], TCL=[2.0], random=[9.0]), "net, seed 1": group("net", eager=[9.0], TCL=[4.0])}
    rows = tables.table_at_checkpoints({"units": units, "compared": compared}).splitlines()
    assert rows[0] == "| network | system | programs | after 200 | after 500 | in the end |"
    assert rows[2:] == ["| net | TCL | 320 | 7.00 | - | 3.00 |", "| net | random | 600 | - | 9.00 | 9.00 |"]


def test_a_table_of_all_systems_beside_ours():
    summary = {"net": tables.figures("net", [FAST], [SLOW]), "other": tables.figures("net", [FAST])}
    summary["net"] |= {"time_to_tenset_x": [5.0, None, None], "elsewhere": ["random", tables.TENSET]}
    summary["other"] |= {"time_to_tenset_x": [9.0, None, None], "reached": {"time_to_tenset_x": [1, 2]}}
    assert tables.table_of_systems(summary).splitlines() == [
        "| system / TCL | net | other | geometric mean |",
        "| --- | --- | --- | --- |",
        "| PyTorch eager | 2.00x | 2.00x | 2.00x |",
        "| PyTorch eager / TCL, 1,000 programs | 4.00x | 4.00x | 4.00x |",
        "| random | 2.00x* | - | 2.00x of 1 |",
        "| seconds to TenSet's best, its / TCL's | 5.00x* | 9.00x (1 of 2) | 5.00x of 1 |",
        "",
        "A star: on another machine, with another champion, or with graphs and searches of before, the mean of what there is. What else has no interval is of one seed; "
        "the others: net 1, other 1. Seconds (1 of 2): in one of two comparisons TCL never was as fast, and such a network is not in the mean.",
    ]


@pytest.fixture
def known(tmp_path, monkeypatch):
    """A project of two tasks' programs, and as many that come with TCL."""
    few = ranking_problem(tasks=2)
    wide = np.zeros((*few.features.shape[:2], layout.WIDTH), np.float32)
    wide[:, :, : few.features.shape[2]] = few.features
    samples = replace(few, features=wide)
    comes = lambda name, platforms: SimpleNamespace(  # noqa: E731
        folder=tmp_path / name,
        platforms=platforms,
        encoder=SimpleNamespace(numbers={"a": 0, "b": 1}),
        case=lambda platform, reads: SimpleNamespace(train=samples),
    )
    sets = [comes("registers", ["host-avx2"]), comes("elsewhere", ["host-avx512"])]
    folders = [tmp_path / name for name in ("registers", "elsewhere", "records")]
    for folder in folders:
        folder.mkdir()
        (folder / "records.parquet").write_bytes(b"records")
    monkeypatch.setattr(tune, "ROOT", tmp_path)
    monkeypatch.setattr(tune, "learned_sets", lambda: sets)
    uses = [{"task_key": "b", "split": "held_out"}, {"task_key": "a", "split": "train"}, {"task_key": "c", "split": "held_out"}]
    return SimpleNamespace(
        samples_for=lambda *_: samples, records_folder=lambda _: folders[-1], tasks=[1, 2], networks=uses, samples=samples
    )


def test_a_rival_learns_the_same_data_once(known, monkeypatch, capsys):
    first = tune.rival_of(known, "host-avx2", "trees")
    # Of the one data set that measured the platform, what no held-out network has.
    assert capsys.readouterr().out == "trees learns 32 programs of this project and 16 that come with TCL\n"
    monkeypatch.setattr(tune.catalogue, "create", lambda name: pytest.fail(f"{name} learns again"))
    again = tune.rival_of(known, "host-avx2", "trees")
    np.testing.assert_array_equal(again.predict(known.samples), first.predict(known.samples))
    (known.records_folder("host-avx2") / "more.parquet").write_bytes(b"one more")
    with pytest.raises(pytest.fail.Exception, match="trees learns again"):
        tune.rival_of(known, "host-avx2", "trees")

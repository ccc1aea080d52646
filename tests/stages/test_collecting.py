"""The stages collect and holdout on tiny tasks and a measuring process in memory."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import FakeRunner

from tcl_core import checked, store
from tcl_core.errors import BusyError, DataError, PlatformError, UsageError
from tcl_core.journal import Journal, iter_journal
from tcl_core.measure.job import Limits
from tcl_core.stages import collecting
from tcl_core.platforms import read_saved_hardware
from tcl_core.stages.workspace import Workspace
from tests.commands import tcl
from tests.stages import tiny_project
from tests.stages.tiny_project import HOLDOUT, JOURNAL, RECORDS, ROUNDS, lines_of, report, write_params

here, networks, pool, cannot_run = tiny_project.here, tiny_project.networks, tiny_project.pool, tiny_project.cannot_run


# --- collect and holdout ---


def test_a_platforms_share_is_collected(pool, runners):
    """Half of 40 programs, half of those at random, the rest in two rounds of five."""
    said = tcl("collect", "-p", "first")
    records = store.read_records(RECORDS)
    assert Counter(r.round for r in records) == {0: 10, 1: 5, 2: 5} and len({r.key for r in records}) == 20
    errors = Counter(r.error for r in records)
    assert said == f"20 of 40 programs; {', '.join(f'{errors[kind]} {kind}' for kind in sorted(errors))}"
    programs = {(p.task_key, p.sketch, p.decisions): p.number for p in Workspace().programs("train")}
    assert all(programs[r.key] == r.program_id for r in records)
    assert sorted(r.key for r in iter_journal(JOURNAL)) == [r.key for r in records]
    hardware = read_saved_hardware(RECORDS)
    assert (hardware.bandwidth_gbs, hardware.simd_bytes) == (12.5, 16)
    samples = Workspace().samples("first")
    assert samples.latencies_s.tolist() == [r.latency_s for r in records]


def test_what_is_asked_of_the_measuring_process_stands_in_params(pool, runners, monkeypatch):
    monkeypatch.setattr(collecting, "threads", lambda: 3)
    monkeypatch.setattr("tcl_core.platforms.local.threads", lambda: 3)
    protocol = {
        "repeats": 7, "min_repeat_ms": 1.5, "max_number": 11, "enough_s": 0.5, "warmup": 2,
        "early_stop_factor": 4.0, "flush_cache": True, "max_repeats": 9, "max_spread": 0.25, "pin_threads": False,
    }  # fmt: skip
    limits = {"timeout_s": 3, "build_timeout_s": 5, "memory_gib": 2.5}
    write_params({f"measure.{k}": v for k, v in (protocol | limits).items()})
    tcl("collect", "-p", "second")
    (runner,) = runners
    assert asdict(runner.setup.protocol) == protocol | {"threads": 3}
    assert runner.setup.limits == Limits(build_s=5, run_s=3, memory_bytes=5 << 29)
    assert runner.setup.target == {"kind": "llvm", "mcpu": "haswell", "num-cores": 3}
    records = store.read_records(Workspace().records_folder("second"))
    assert {r.protocol for r in records if r.error == "ok"} == {runner.setup.protocol_json()}


@pytest.mark.parametrize(("cold", "flush", "times_cold"), [(True, False, True), (False, False, False), (True, True, False)])
def test_weights_are_cold_where_params_say_so(pool, monkeypatch, cold, flush, times_cold):
    """With all caches flushed, they are as it is."""
    monkeypatch.setattr("tcl_core.measure.job.is_large_json", lambda text: True)
    write_params({"measure.cold_weights": cold, "measure.flush_cache": flush})
    assert collecting.setup_of(Workspace(), "first").times_cold("a module") is times_cold


def test_steps_are_reported_and_can_be_followed(pool, runners):
    tcl("collect", "-p", "first")
    steps = lines_of(ROUNDS)
    assert [(s["round"], s["step"]) for s in steps] == [
        (0, "select"), (0, "measure"), (0, "refit"),
        (1, "select"), (1, "measure"), (1, "refit"),
        (2, "select"), (2, "measure"),
    ]  # fmt: skip
    found = report()
    assert found["rounds"] == steps
    assert (found["platform"], found["programs"], found["pool"], sum(found["errors"].values())) == ("first", 20, 40, 20)


def test_a_second_collection_measures_nothing_and_writes_the_same(pool, runners):
    tcl("collect", "-p", "first")
    before, journal = store.data_digest(RECORDS), (JOURNAL / "records.jsonl").read_bytes()
    tcl("collect", "-p", "first")
    assert runners[-1].jobs == []
    assert store.data_digest(RECORDS) == before and (JOURNAL / "records.jsonl").read_bytes() == journal
    assert len(lines_of(ROUNDS)) == 8  # of this run only
    assert [s["from_journal"] for s in lines_of(ROUNDS) if s["step"] == "measure"] == [10, 5, 5]
    assert report()["rounds"] == lines_of(ROUNDS)


def test_an_interrupted_collection_leaves_the_old_records_and_goes_on(pool, runners):
    tcl("collect", "-p", "first")
    before = store.data_digest(RECORDS)
    write_params({"seed": 5})
    runners.limit = 4
    with pytest.raises(KeyboardInterrupt):
        tcl("collect", "-p", "first")
    assert store.data_digest(RECORDS) == before and len(list(iter_journal(JOURNAL))) == 24
    runners.limit = None
    tcl("collect", "-p", "first")
    resumed = store.read_records(RECORDS)
    journal = [r.key for r in iter_journal(JOURNAL)]
    assert len(journal) == len(set(journal)) == 24 + len(runners[-1].jobs)
    shutil.rmtree(JOURNAL)
    tcl("collect", "-p", "first")
    undisturbed = store.read_records(RECORDS)
    assert [(r.key, r.latencies_s, r.round) for r in resumed] == [(r.key, r.latencies_s, r.round) for r in undisturbed]


@pytest.mark.parametrize(("stage", "kind"), [("collect", "records"), ("holdout", "holdout")])
@pytest.mark.parametrize("skipped", [False, True])
def test_a_full_disk_keeps_the_old_records(pool, runners, cannot_run, monkeypatch, stage, kind, skipped):
    tcl(stage, "-p", "first")
    before = store.data_digest(Workspace().records_folder("first", kind))

    def full(path):
        raise PlatformError("disk full")

    monkeypatch.setattr(checked if skipped else store.writing, "replacing", full)
    if skipped:
        cannot_run("nehalem")
    with pytest.raises(PlatformError, match="^disk full$"):
        tcl(stage, "-p", "first")
    assert store.data_digest(Workspace().records_folder("first", kind)) == before


def test_another_sampler_selects_other_programs_of_the_same_start(pool, runners):
    tcl("collect", "-p", "first")
    rdu = {r.key: r.round for r in store.read_records(RECORDS)}
    write_params({"collect.sampler": "random"})
    tcl("collect", "-p", "first")
    at_random = {r.key: r.round for r in store.read_records(RECORDS)}
    start = {key for key, number in rdu.items() if number == 0}
    assert start == {key for key, number in at_random.items() if number == 0} and rdu.keys() != at_random.keys()
    assert len(runners[-1].jobs) == len(at_random.keys() - rdu.keys()) > 0
    assert {s["step"] for s in lines_of(ROUNDS)} == {"select", "measure"}


@pytest.mark.parametrize(("sampler", "models"), [("random", 0), ("per-task", 0), ("rdu-paper", 1), ("rdu", 3)])
def test_only_models_that_the_sampler_uses_are_made(pool, runners, monkeypatch, sampler, models):
    made, member = [], collecting.member
    monkeypatch.setattr(collecting, "member", lambda workspace, number: made.append(number) or member(workspace, number))
    write_params({"collect.sampler": sampler, "collect.ensemble": 3})
    tcl("collect", "-p", "first")
    assert made == list(range(models))


def test_later_platforms_have_a_smaller_share(pool, runners):
    write_params({"collect.sampler": "rdu-paper"})
    said = tcl("collect").splitlines()
    assert [line.split(" programs")[0] for line in said] == ["first: 20 of 40", "second: 10 of 40"]
    assert Counter(r.round for r in store.read_records(Workspace().records_folder("second"))) == {0: 5, 1: 2, 2: 3}
    assert read_saved_hardware(Workspace().records_folder("second")).simd_bytes == 32


def test_rdu_chooses_a_later_platforms_programs_by_what_the_one_before_measured(pool, runners):
    tcl("collect", "-p", "first")
    assert [s["step"] for s in lines_of(ROUNDS)] == ["select", "measure", "refit"] * 2 + ["select", "measure"]
    tcl("collect", "-p", "second")
    steps = lines_of(Workspace().journal_folder("second", "collect") / "rounds.jsonl")
    assert [(s["round"], s["step"], s.get("programs")) for s in steps] == [(0, "refit", 20), (0, "select", None), (0, "measure", 10)]
    assert sorted(Counter(r.task_key for r in store.read_records(Workspace().records_folder("second"))).values()) == [5, 5]


def test_rdu_does_without_a_platform_before_that_has_no_records(pool, runners):
    tcl("collect", "-p", "second")
    assert Counter(r.round for r in store.read_records(Workspace().records_folder("second"))) == {0: 5, 1: 2, 2: 3}


def test_a_platform_beside_the_chain_is_collected_as_if_it_were_the_first(pool, runners):
    """Such as one of which is asked yet from whom it should learn."""
    tcl("collect", "-p", "first")
    write_params({"chain.then": {}})
    tcl("collect", "-p", "second")
    assert Counter(r.round for r in store.read_records(Workspace().records_folder("second"))).keys() == {0, 1, 2}


def test_records_of_another_pool_are_no_beginning(pool, runners):
    """Their platform may be collected after this one: nothing orders the two for DVC."""
    tcl("collect", "-p", "first")
    for split in ("train", "held_out"):
        file = Workspace().pool / split / "sketches.parquet"
        rows = [row for row in store.read_table(file, "sketches") if row["sketch_id"] == 0]
        store.write_table(file, "sketches", rows)
    assert collecting._measured_before(Workspace(), "second") is None


def test_the_smallest_share_is_one_program(pool, runners):
    write_params({"collect.first_fraction": 0.001, "collect.initial_share": 0.001})
    assert tcl("collect", "-p", "first").startswith("1 of 40 programs")
    write_params({"collect.first_fraction": 0.05, "collect.initial_share": 0.001})
    assert tcl("collect", "-p", "first").startswith("2 of 40 programs")


def test_all_held_out_programs_are_measured(pool, runners, softmax):
    tcl("collect", "-p", "first")
    assert tcl("holdout", "-p", "first") == "6 held-out programs"
    records = store.read_records(HOLDOUT)
    assert {r.task_key for r in records} == {softmax.task.key} and {r.round for r in records} == {0}
    assert [r.program_id for r in sorted(records, key=lambda r: r.program_id)] == list(range(6))
    assert read_saved_hardware(HOLDOUT) == read_saved_hardware(RECORDS)
    assert len(list(iter_journal(Path("data/journal/holdout/first")))) == 6
    assert len(Workspace().samples("first", "holdout")) == 6
    digest = store.data_digest(HOLDOUT)
    tcl("holdout", "-p", "first")
    assert runners[-1].jobs == [] and store.data_digest(HOLDOUT) == digest


@pytest.mark.parametrize("force", [False, True])
def test_a_second_collector_is_refused_and_changes_nothing(pool, runners, force):
    tcl("collect", "-p", "first")
    before = store.data_digest(Path("data"))
    with Journal(JOURNAL), pytest.raises(BusyError, match=f"is already collecting into {JOURNAL}; wait"):
        tcl("collect", "-p", "first", *["--force"] * force)
    assert store.data_digest(Path("data")) == before
    assert len(lines_of(ROUNDS)) == 8


def test_the_steps_of_a_disk_without_room_are_one_sentence(pool, runners, monkeypatch):
    write_params({"collect.sampler": "random"})  # trains nothing

    def full(path):
        raise PlatformError("no room for steps")

    monkeypatch.setattr(collecting, "replacing", full)
    with pytest.raises(PlatformError, match="^no room for steps$"):
        tcl("collect", "-p", "first")


def test_how_long_stages_took_is_remembered(pool, runners):
    tcl("collect", "-p", "first")
    tcl("holdout", "-p", "second")
    kept = {f.stem for f in Path("data/journal/seconds").glob("*.json")}
    assert kept == {"tasks", "candidates", "collect@first", "holdout@second"}


# --- beside all journals ---


def test_programs_can_be_timed_beside_all_journals(pool, runners, monkeypatch):
    monkeypatch.setattr(collecting, "Runner", lambda setup: runners.append(FakeRunner(setup)) or runners[-1])
    project = Workspace()
    keys = [(p.task_key, p.sketch, p.decisions) for p in (*project.programs("held_out"), *project.programs("train")[:4])]
    monkeypatch.setattr("tcl_core.measure.job.is_large_json", lambda text: text == project.encoder.tasks[keys[0][0]].module_json)
    outcomes, protocols, host = collecting.measure_now(project, "first", keys)
    assert [(job.task_key, job.decisions) for job in runners[0].jobs] == [(key[0], key[2]) for key in keys]
    cold = [key[0] == keys[0][0] for key in keys]
    assert [job.cold for job in runners[0].jobs] == cold and set(cold) == {True, False}
    assert protocols == [collecting.setup_of(project, "first").protocol_json(cold=each) for each in cold]
    assert len(outcomes) == len(keys) == 10 and host
    assert not Path("data/journal/collect").exists() and not Path("data/journal/holdout").exists()
    with pytest.raises(DataError, match="sketch 99 of task"):
        collecting.measure_now(project, "first", [(keys[0][0], 99, keys[0][2])])
    monkeypatch.setattr("tcl_core.platforms.local.why_not", lambda mcpu: "no AVX2 here" if mcpu == "haswell" else None)
    with pytest.raises(PlatformError, match=r"second cannot be measured here \(no AVX2 here\); run this on its machine"):
        collecting.measure_now(project, "second", keys)


# --- a workspace ---


def test_nothing_depends_on_the_working_folder(pool, runners, tmp_path, monkeypatch):
    """Stages called as a library, from elsewhere: they work in the workspace's folder, and name it in what they say."""
    write_params({"collect.sampler": "random"})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    workspace = Workspace(pool)
    report = collecting.collect(workspace, "first")
    assert (report.platform, report.programs, report.pool, sum(report.errors.values())) == ("first", 20, 40, 20)
    assert collecting.holdout(workspace, "first") == collecting.HoldoutReport("first", 6)
    assert len(workspace.records("first")) == 20 and (pool / "data/records/platform=first/records.parquet").is_file()
    with pytest.raises(DataError, match=f"{pool}/data/records/platform=second"):
        workspace.records("second")
    assert list(elsewhere.iterdir()) == []


def test_a_network_file_of_the_parameters_lies_in_the_project(tmp_path):
    workspace = Workspace(tmp_path)
    assert workspace.network("networks/mine.pt2") == str(tmp_path / "networks/mine.pt2") and workspace.network("resnet-18") == "resnet-18"


def test_a_workspace_without_parameters_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match=f"{tmp_path}/params.yaml"):
        Workspace(tmp_path).params  # noqa: B018

"""The stages that make data (tasks, candidates, collect, holdout) on tiny tasks and a measuring process in memory."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import FakeRunner

from tcl_core import checked, gpu, store
from tcl_core.checked import read_json
from tcl_core.errors import BusyError, DataError, PlatformError, UsageError
from tcl_core.gpu import Gpu, GpuHardware
from tcl_core.journal import Journal, iter_journal, parse_line
from tcl_core.measure.job import Limits, Tracker
from tcl_core.settings import read_yaml, yaml_format
from tcl_core.stages import candidates, collecting, listing
from tcl_core.platforms import read_saved_hardware
from tcl_core.stages.workspace import Workspace
from tests.commands import tcl

ROOT = Path(__file__).resolve().parents[2]
RECORDS, HOLDOUT = Workspace().records_folder("first"), Workspace().records_folder("first", "holdout")
JOURNAL, ROUNDS = Path("data/journal/collect/first"), Path("data/journal/collect/first/rounds.jsonl")
PARAMS = {
    "networks": {"train": ["a.pt2", "b.pt2"], "held_out": ["c.pt2"]},
    "platforms": {"first": {"mcpu": "nehalem"}, "second": {"mcpu": "haswell"}},
    "chain": {"first": "first", "then": {"second": {"prev": "first"}}},
    "candidates.max_train_tasks": 0,
    "candidates.programs_per_task": 20,
    "candidates.held_out_programs_per_task": 6,
    "measure.check_fraction": 0.5,
    "collect.rounds": 2,
    "collect.first_fraction": 0.5,
    "collect.fraction": 0.25,
    "collect.initial_share": 0.5,
    "collect.epochs": 1,
}


def write_params(changes):
    """The repository's params.yaml with other values at dotted keys."""
    document = read_yaml(ROOT / "params.yaml", round_trip=True)
    for dotted, value in (PARAMS | changes).items():
        *sections, key = dotted.split(".")
        tree = document
        for section in sections:
            tree = tree[section]
        tree[key] = value
    with open("params.yaml", "wb") as file:
        yaml_format(round_trip=True).dump(document, file)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A folder of one's own to work in, where every platform can run and bandwidth is 12.5 GB/s."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # the lock is not that of real measurements
    monkeypatch.setattr("tcl_core.platforms.local.why_not", lambda mcpu: None)
    monkeypatch.setattr("tcl_core.stages.machine.copy_bandwidth_gbs", lambda: 12.5)
    write_params({})
    return work


@pytest.fixture
def networks(monkeypatch, matmul, conv, softmax):
    """Two networks to train on, which share a task, and a held-out one, which shares one with the first."""
    found = {
        "a.pt2": [(matmul.task, 2), (softmax.task, 1)],
        "b.pt2": [(conv.task, 1), (matmul.task, 4)],
        "c.pt2": [(softmax.task, 3)],
    }
    monkeypatch.setattr(candidates, "extract_tasks", lambda network, graph: found[network])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def pool(here, networks, made):
    """Tasks and candidates, made once and copied."""
    if not (made / "data").exists():
        tcl("tasks")
        tcl("candidates")
        shutil.copytree("data", made / "data")
    else:
        shutil.copytree(made / "data", "data")
    return here


def lines_of(path):
    return [parse_line(line) for line in path.read_bytes().splitlines(keepends=True)]


def report(platform="first"):
    return read_json(Path(f"data/reports/collect/{platform}.json"), "")


# --- tasks ---


def test_tasks_of_all_networks(here, networks, matmul, conv, softmax):
    assert tcl("tasks") == "3 distinct tasks of 3 networks"
    project = Workspace()
    assert project.tasks == [matmul.task, softmax.task, conv.task]
    keys = {matmul.task.key: "matmul", conv.task.key: "conv", softmax.task.key: "softmax"}
    assert [(r["network"], r["split"], keys[r["task_key"]], r["weight"]) for r in project.networks] == [
        ("a.pt2", "train", "matmul", 2),
        ("a.pt2", "train", "softmax", 1),
        ("b.pt2", "train", "conv", 1),
        ("b.pt2", "train", "matmul", 4),
        ("c.pt2", "held_out", "softmax", 3),
    ]
    assert project.task_weights("train") == {"a.pt2": {0: 2.0, 1: 1.0}, "b.pt2": {2: 1.0, 0: 4.0}}
    assert project.task_weights("held_out") == {"c.pt2": {1: 3.0}}


def test_one_networks_tasks_are_shown_heaviest_first_and_nothing_is_written(here, networks, matmul, conv):
    header, first, second = tcl("tasks", "b.pt2").splitlines()
    assert header.split() == ["task", "operator", "MFLOP", "weight", "name"]
    assert first.split() == [matmul.task.key, "matmul", "0.07", "4", matmul.task.name]
    assert second.split() == [conv.task.key, "conv2d", f"{conv.task.flops / 1e6:.2f}", "1", conv.task.name]
    assert not Path("data").exists()


# --- candidates ---


def test_a_pool_for_each_split(pool, matmul, conv, softmax):
    """What a held-out network also has is not trained on; both pools are encoded by one encoder."""
    project = Workspace()
    train, held_out = project.programs("train"), project.programs("held_out")
    assert Counter(p.task_key for p in train) == {matmul.task.key: 20, conv.task.key: 20}
    assert Counter(p.task_key for p in held_out) == {softmax.task.key: 6}
    assert {r["split"] for r in store.read_table(Workspace().pool / "train" / "programs.parquet", "programs")} == {"train"}
    assert {r["split"] for r in store.read_table(Workspace().pool / "held_out" / "programs.parquet", "programs")} == {"held_out"}
    samples = project.encoder.encode([(p.task_key, p.sketch, p.decisions) for p in (*train, *held_out)], (1.0,) * 11)
    assert len(samples) == 46 and set(samples.tasks.tolist()) == {0, 1, 2}


def test_the_same_parameters_give_the_same_pool(pool):
    before = store.data_digest(Workspace().pool)
    said = tcl("candidates")
    assert store.data_digest(Workspace().pool) == before
    assert said.startswith("train: 40 programs of 2 tasks, ") and "; held_out: 6 programs of 1 tasks, " in said
    write_params({"seed": 1})
    tcl("candidates")
    assert store.data_digest(Workspace().pool) != before


def test_a_limit_takes_the_heaviest_tasks(pool, matmul, conv):
    """Each network's heaviest in turn: the first network's is the matmul, whose other task is held out."""
    write_params({"candidates.max_train_tasks": 1})
    tcl("candidates")
    assert {p.task_key for p in Workspace().programs("train")} == {matmul.task.key}


@pytest.mark.parametrize(
    ("stage", "missing"),
    [("candidates", "tasks"), ("collect", "candidates"), ("holdout", "candidates")],
)
def test_a_stage_names_the_one_before_it(here, stage, missing):
    with pytest.raises(DataError, match=f"the stage {missing} writes it: dvc repro {missing}"):
        tcl(stage)


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
def test_a_full_disk_keeps_the_old_records(pool, runners, monkeypatch, stage, kind, skipped):
    tcl(stage, "-p", "first")
    before = store.data_digest(Workspace().records_folder("first", kind))

    def full(path):
        raise PlatformError("disk full")

    monkeypatch.setattr(checked if skipped else store.writing, "replacing", full)
    if skipped:
        monkeypatch.setattr("tcl_core.platforms.local.why_not", lambda mcpu: "too old" if mcpu == "nehalem" else None)
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


def test_later_platforms_have_a_smaller_share(pool, runners):
    said = tcl("collect").splitlines()
    assert [line.split(" programs")[0] for line in said] == ["first: 20 of 40", "second: 10 of 40"]
    assert Counter(r.round for r in store.read_records(Workspace().records_folder("second"))) == {0: 5, 1: 2, 2: 3}
    assert read_saved_hardware(Workspace().records_folder("second")).simd_bytes == 32


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


@pytest.mark.parametrize("again", [False, True])
def test_a_second_collector_is_refused_and_changes_nothing(pool, runners, again):
    tcl("collect", "-p", "first")
    before = store.data_digest(Path("data"))
    with Journal(JOURNAL), pytest.raises(BusyError, match=f"is already collecting into {JOURNAL}; wait"):
        tcl("collect", "-p", "first", *["--again"] * again)
    assert store.data_digest(Path("data")) == before
    assert len(lines_of(ROUNDS)) == 8


def test_measuring_again_keeps_the_old_journal(pool, runners):
    """Nothing that was measured is ever deleted; three times within a second, since names must not meet."""
    tcl("collect", "-p", "first")
    journals = [(JOURNAL / "records.jsonl").read_bytes()]
    for times in (1, 2, 3):
        tcl("collect", "-p", "first", "--again")
        assert len(runners[-1].jobs) == 20
        kept = sorted(JOURNAL.parent.glob("first.before-*"))
        assert [(k / "records.jsonl").read_bytes() for k in kept] == journals and len(kept) == times
        journals.append((JOURNAL / "records.jsonl").read_bytes())
    assert [s["from_journal"] for s in lines_of(ROUNDS) if s["step"] == "measure"] == [0, 0, 0]
    assert not list(Path("data/journal").rglob(collecting.AGAIN))
    tcl("holdout", "-p", "first", "--again")  # without a journal there is nothing to keep
    assert len(list(Path("data/journal/holdout").iterdir())) == 1


@pytest.mark.parametrize("stage", ["collect", "holdout"])
def test_measuring_again_that_was_stopped_goes_on(pool, runners, capfd, stage):
    """The same command, which a stop promises to go on, keeps what it had measured; so does one without --again."""
    write_params({"collect.sampler": "random"})  # trains nothing
    tcl(stage, "-p", "first")
    journal = Workspace().journal_folder("first", stage)
    old, runners.limit = (journal / "records.jsonl").read_bytes(), 1
    for again in (True, True, False):
        with pytest.raises(KeyboardInterrupt):
            tcl(stage, "-p", "first", *["--again"] * again)
    assert len(list(iter_journal(journal))) == 3
    (kept,) = journal.parent.glob("first.before-*")
    assert (kept / "records.jsonl").read_bytes() == old
    mark = journal / collecting.AGAIN
    assert f"going on with the --again that was stopped; to begin anew once more, remove {mark} first" in capfd.readouterr().err
    runners.limit = None
    tcl(stage, "-p", "first", "--again")
    assert len(list(iter_journal(journal))) == len(runners[-1].jobs) + 3 and not mark.exists()
    assert [path.name for path in journal.parent.glob("first.before-*")] == [kept.name]
    tcl(stage, "-p", "first", "--again")  # it ended well, so this one begins anew
    assert len(list(journal.parent.glob("first.before-*"))) == 2


def test_measuring_the_whole_chain_again_goes_on_where_it_was_stopped(pool, runners, monkeypatch):
    """Also past the platforms that it had finished."""
    write_params({"collect.sampler": "random"})  # trains nothing
    tcl("collect")
    real = collecting.collect

    def stop_at_second(project, platform, again):
        if platform == "second":
            raise KeyboardInterrupt
        return real(project, platform, again)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(collecting, "collect", stop_at_second)
        tcl("collect", "--again")
    tcl("collect", "--again")
    assert [len(runner.jobs) for runner in runners] == [20, 10, 20, 0, 10]
    assert sorted(path.name.partition(".before")[0] for path in JOURNAL.parent.glob("*.before-*")) == ["first", "second"]


def test_two_who_measure_again_at_once_measure_once(pool, runners, monkeypatch, capfd):
    """The second one waited for the machine: what the first one measured meanwhile stands."""
    write_params({"collect.sampler": "random"})  # trains nothing
    tcl("collect", "-p", "first")
    real, first = collecting.measuring_alone, []

    @contextmanager
    def after_another():
        if not first:
            first.append(True)
            tcl("collect", "-p", "first", "--again")
        with real():
            yield

    monkeypatch.setattr(collecting, "measuring_alone", after_another)
    tcl("collect", "-p", "first", "--again")
    assert [len(runner.jobs) for runner in runners] == [20, 20, 0]
    assert len(list(JOURNAL.parent.glob("first.before-*"))) == 1
    assert f"another process has measured into {JOURNAL} meanwhile" in capfd.readouterr().err


@pytest.mark.parametrize("stage", ["collect", "holdout"])
def test_nothing_is_set_aside_when_nothing_can_be_measured(pool, runners, monkeypatch, stage):
    write_params({"collect.sampler": "random"})  # trains nothing
    tcl(stage, "-p", "first")
    journal = Workspace().journal_folder("first", stage)
    shutil.move("data/programs/pool", "elsewhere")
    with pytest.raises(DataError, match="the stage candidates writes it"):
        tcl(stage, "-p", "first", "--again")
    assert not list(journal.parent.glob("*.before-*")) and not (journal / collecting.AGAIN).exists()


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


# --- platforms that cannot run ---


@pytest.fixture
def cannot_run(monkeypatch):
    """Say which CPU names this machine seems unable to run."""

    def say(*mcpus):
        monkeypatch.setattr("tcl_core.platforms.local.why_not", lambda mcpu: f"this CPU lacks {mcpu}" if mcpu in mcpus else None)

    return say


def names_in(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(("stage", "kind"), [("collect", "records"), ("holdout", "holdout")])
def test_a_skipped_platform_says_why_and_what_is_stale_goes(pool, runners, cannot_run, stage, kind):
    folder = Workspace().records_folder("second", kind)
    for first in (True, False):
        cannot_run("haswell")
        said = tcl(stage, "-p", "second")
        assert said == "skipped: this CPU lacks haswell" if first else said.startswith("skipped: this CPU lacks haswell; the ")
        assert names_in(folder) == {"skipped.json"} and store.skipped_reason(folder) == "this CPU lacks haswell"
        with pytest.raises(DataError, match="this CPU lacks haswell"):
            Workspace().samples("second", kind)
        cannot_run()
        tcl(stage, "-p", "second")
        assert names_in(folder) == {"records.parquet", "hardware.json"}
    assert runners[-1].jobs == []  # the journal outlived the skip


@pytest.mark.parametrize(("stage", "kind"), [("collect", "records"), ("holdout", "holdout")])
def test_records_of_a_platform_that_is_skipped_later_are_set_aside(pool, runners, cannot_run, tmp_path, stage, kind):
    """Nothing else in the folder goes, wherever a link has put it."""
    write_params({"collect.sampler": "random"})  # trains nothing
    elsewhere, folder = tmp_path / "elsewhere", Workspace().records_folder("second", kind)
    (elsewhere / "deeper").mkdir(parents=True)
    (elsewhere / "thesis.txt").write_text("years of work")
    (elsewhere / "deeper" / "photo.jpg").write_text("a child")
    folder.parent.mkdir(parents=True)
    folder.symlink_to(elsewhere)
    (elsewhere / "skipped.json").write_text('{"reason": "once"}')
    tcl(stage, "-p", "second")
    others = {"thesis.txt", "deeper"}
    assert names_in(folder) == others | {"records.parquet", "hardware.json"}
    before = (folder / "records.parquet").read_bytes()
    cannot_run("haswell")
    said = tcl(stage, "-p", "second")
    assert names_in(folder) == others | {"skipped.json"} and names_in(elsewhere / "deeper") == {"photo.jpg"}
    (aside,) = Path(f"data/set_aside/{kind}/platform=second").iterdir()
    assert said == f"skipped: this CPU lacks haswell; the records that were here are set aside in {aside}"
    assert (aside / "records.parquet").read_bytes() == before and names_in(aside) == {"records.parquet", "hardware.json"}
    assert tcl(stage, "-p", "second") == "skipped: this CPU lacks haswell"  # there is nothing more to set aside


def test_the_chain_goes_on_without_a_skipped_platform(pool, runners, cannot_run):
    cannot_run("nehalem")
    said = tcl("collect").splitlines()
    assert said[0] == "first: skipped: this CPU lacks nehalem" and said[1].startswith("second: 10 of 40 programs")
    assert report() == {"platform": "first", "skipped": "this CPU lacks nehalem"} and "rounds" in report("second")
    assert Workspace().platforms_that_ran() == ["second"]
    assert len(runners) == 1


@pytest.mark.parametrize("stage", ["collect", "holdout"])
def test_a_machine_that_can_run_no_platform(pool, runners, cannot_run, stage):
    """An error, not a chain of skipped platforms; what was measured before stays."""
    tcl(stage, "-p", "first")
    before = store.data_digest(Path("data"))
    cannot_run("nehalem", "haswell")
    for platform in (["-p", "first"], []):
        with pytest.raises(PlatformError) as raised:
            tcl(stage, *platform)
        assert str(raised.value) == ("this machine can run none of the platforms of params.yaml (this CPU lacks nehalem); add one it can")
    assert store.data_digest(Path("data")) == before


@pytest.mark.parametrize("stage", ["collect", "holdout"])
def test_an_unknown_platform(pool, runners, stage):
    with pytest.raises(UsageError, match="^unknown platform 'frist' in params.yaml; did you mean 'first'"):
        tcl(stage, "-p", "frist")
    assert runners == [] and not Workspace().records_folder("frist").exists()


COMMANDS = (
    "collect --again -p", "holdout --again -p", "tasks", "train -p", "train --model", "distill -p", "register -p", "promote -p", "tune",
    "tune -p", "export -p", "predict log -p", "profile", "models -p", "rollback --reason slow -p",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_name_does_not_mean_all_of_them(pool, runners, command, empty):
    """As in `tcl collect --again -p "$UNSET"`."""
    write_params({"collect.sampler": "random"})  # trains nothing
    tcl("collect", "-p", "first")
    before = store.data_digest(Path("data"))
    with pytest.raises(UsageError, match="is an empty name .is a variable of your shell not set.*; name a .*, or leave it out$"):
        tcl(*command.split(), empty)
    assert store.data_digest(Path("data")) == before and len(runners) == 1


# --- devices elsewhere ---

BOARD = {"kind": "rpc", "tracker": "10.0.0.2:9190", "key": "pi4", "mcpu": "cortex-a72", "threads": 4}
TOLD = {"host": "rpc pi4: Cortex-A72 x4 1234abcd", "hardware": {"cores": 4.0, "threads": 3.0, "l2_kib": 1024.0}}


@pytest.fixture
def board(pool, monkeypatch):
    """The first platform is a board, which tells of itself what stands in ``board``."""
    write_params({"platforms": {"first": BOARD | {"hardware": {"memory_gib": 4}}, "second": {"mcpu": "haswell"}}})
    board, asked = {"told": TOLD}, []

    class Describing:
        def __init__(self, setup, workers):
            asked.append((setup, workers))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def describe(self):
            if isinstance(board["told"], Exception):
                raise board["told"]
            return board["told"]

    monkeypatch.setattr(collecting, "Runner", Describing)
    return board


def test_a_board_is_measured_through_its_tracker(board, runners):
    """Its records bear the board's host, and models see the board's hardware: told, else given, else of its CPU."""
    tcl("collect", "-p", "first")
    (runner,) = runners
    assert runner.setup.tracker == Tracker("10.0.0.2", 9190, "pi4", host_told=TOLD["host"])
    assert runner.setup.target == {"kind": "llvm", "mcpu": "cortex-a72", "num-cores": 4, "mtriple": "aarch64-linux-gnu"}
    assert runner.setup.protocol.threads == 4
    assert {r.host for r in store.read_records(RECORDS)} == {TOLD["host"]}
    hardware = read_saved_hardware(RECORDS)
    assert (hardware.cores, hardware.threads, hardware.l2_kib) == (4, 4, 1024)
    assert (hardware.memory_gib, hardware.simd_bytes, hardware.bandwidth_gbs) == (4, 16, 0)
    tcl("collect", "-p", "second")
    assert runners[-1].setup.tracker is None


def test_a_board_that_is_another_one_today_is_not_mixed_in(board, runners):
    tcl("collect", "-p", "first")
    board["told"] = TOLD | {"host": "rpc pi4: Cortex-A76 x4 9999ffff"}
    with pytest.raises(DataError, match="holds measurements of another host .*1234abcd; this one is .*9999ffff"):
        tcl("collect", "-p", "first")


def test_a_board_that_is_away_is_an_error_and_what_was_measured_stays(board, runners):
    """No reason to skip its platform and go on without it."""
    tcl("collect", "-p", "first")
    before = store.data_digest(RECORDS)
    board["told"] = PlatformError("the RPC tracker at 10.0.0.2:9190 has had no device")
    with pytest.raises(PlatformError, match="^the RPC tracker at 10.0.0.2:9190 has had no device$"):
        tcl("collect", "-p", "first")
    assert store.data_digest(RECORDS) == before


def test_a_board_of_an_unknown_cpu(board, runners):
    write_params({"platforms": {"first": BOARD | {"mcpu": "cortex-a7"}, "second": {"mcpu": "haswell"}}})
    with pytest.raises(UsageError, match="^unknown CPU 'cortex-a7' in platforms of params.yaml; did you mean 'cortex-a72'"):
        tcl("collect", "-p", "first")


# --- a GPU ---

A100 = dict.fromkeys(gpu.ATTRIBUTES, 0) | gpu.POOL_LIMITS | {"multiprocessors": 108, "clock_khz": 1410000, "major": 8}


@pytest.fixture
def one_gpu(here, networks, monkeypatch):
    """The only platform is this machine's GPU, an A100."""
    monkeypatch.setattr(gpu, "read_gpu", lambda: Gpu("NVIDIA A100", 80 << 30, A100))
    monkeypatch.setattr("tcl_core.platforms.cuda.read_gpu", gpu.read_gpu)
    monkeypatch.setattr(gpu.shutil, "which", lambda command: command)
    monkeypatch.setattr(gpu, "_can_load", lambda library: True)
    platforms = {"platforms": {"gpu": {"kind": "cuda", "hardware": {"int8_tops": 624}}}, "chain": {"first": "gpu", "then": {}}}
    few = {"candidates.programs_per_task": 6, "candidates.held_out_programs_per_task": 3}
    monkeypatch.setattr("test_collecting.PARAMS", PARAMS | platforms | few | {"candidates.design_space": "cuda"})
    write_params({})


def test_a_gpu_has_a_pool_of_its_own_and_its_own_hardware(one_gpu, runners):
    tcl("tasks")
    tcl("candidates")
    assert {"threadIdx.x"} == {
        axis for row in store.read_table(Workspace().pool / "train" / "sketches.parquet", "sketches")
        for axis in ("threadIdx.x", "meta_schedule.parallel") if axis in row["trace_json"]
    }  # fmt: skip
    assert tcl("collect").startswith("gpu: 6 of 12 programs")
    (runner,) = runners
    assert runner.setup.target == {"kind": "cuda", "arch": "sm_80", **gpu.POOL_LIMITS}
    assert (runner.setup.limits.memory_bytes, runner.setup.tracker) == (0, None)
    folder = Workspace().records_folder("gpu")
    assert {r.host for r in store.read_records(folder)} == {gpu.gpu_fingerprint()}
    hardware = read_saved_hardware(folder)
    assert isinstance(hardware, GpuHardware) and (hardware.cuda_cores, hardware.int8_tops) == (6912, 624)
    assert tcl("holdout", "-p", "gpu") == "3 held-out programs"
    assert len(Workspace().samples("gpu")) == 6


def test_a_machine_without_a_gpu(one_gpu, runners, monkeypatch):
    monkeypatch.setattr(gpu, "cuda_compiler", lambda: "")
    with pytest.raises(PlatformError, match="can run none of the platforms of params.yaml .there is neither nvcc on the PATH"):
        tcl("collect", "-p", "gpu")


def test_a_gpus_caches_are_not_flushed(one_gpu, runners):
    write_params({"measure.flush_cache": True})
    with pytest.raises(UsageError, match="^measure.flush_cache empties a CPU's caches, and gpu is a GPU; set it to false"):
        tcl("collect", "-p", "gpu")


# --- what there is ---


def test_platforms_and_their_state(here, monkeypatch):
    from tcl_core.measure.tracker import Listed
    from tcl_core.stages import listing

    monkeypatch.setattr("tcl_core.platforms.local.why_not", lambda mcpu: None)
    monkeypatch.setattr(listing, "copy_bandwidth_gbs", lambda: 12.5)
    write_params({"platforms": {"first": {"mcpu": "nehalem"}, "second": BOARD}})
    monkeypatch.setattr(listing, "list_devices", lambda host, port: {"pi4": Listed(3, 1, 0)})
    header, first, second, _, known, unknown, _, confined = tcl("platforms").splitlines()
    assert header.split() == ["platform", "hardware", "from", "status"]
    assert first.split() == ["first", "nehalem", "-", "runs", "here"]
    assert second == f"{'second':14s} {'cortex-a72':16s} {'first':14s} 3 devices of key 'pi4' at 10.0.0.2:9190, 1 free"
    assert known.startswith("hardware of first: cores ") and "bandwidth_gbs 12.5" in known
    assert confined.startswith("what cannot be trusted runs ")
    told = json.loads(tcl("platforms", "--json"))
    assert [(row["platform"], row["from"], row["runs_here"]) for row in told["platforms"]] == [
        ("first", None, True),
        ("second", "first", False),
    ]
    assert told["hardware"]["platform"] == "first" and told["hardware"]["vector"]["bandwidth_gbs"] == 12.5

    def away(host, port):
        raise PlatformError("no RPC tracker answers")

    monkeypatch.setattr(listing, "list_devices", away)
    assert tcl("platforms").splitlines()[2].endswith(" no RPC tracker answers")


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (["user", "files", "network", "programs"], "confined in user, files, network, programs"),
        (["network", "programs"], "confined in network, programs; not in user, files (docs/security.md)"),
        ([], "with all rights of this user (docs/security.md)"),
    ],
)
def test_what_confines_programs_here(monkeypatch, held, said):
    monkeypatch.setattr(listing.sandbox, "barriers", lambda: held)
    assert listing._confined_text(listing._confinement()) == said


def test_a_gpu_and_its_state(one_gpu, monkeypatch):
    lines = tcl("platforms").splitlines()
    assert lines[1] == f"{'gpu':14s} {'NVIDIA A100':16s} {'-':14s} runs here"
    assert lines[3].startswith("hardware of gpu: cuda_cores 6912, boost_ghz 1.41, memory_gib 80, ")
    monkeypatch.setattr(gpu, "cuda_compiler", lambda: "")
    assert tcl("platforms").splitlines()[1].startswith(f"{'gpu':14s} {'GPU':16s} {'-':14s} there is neither nvcc")


def test_programs_can_be_timed_beside_all_journals(pool, runners, monkeypatch):
    monkeypatch.setattr(collecting, "Runner", lambda setup: runners.append(FakeRunner(setup)) or runners[-1])
    project = Workspace()
    keys = [(p.task_key, p.sketch, p.decisions) for p in project.programs("held_out")]
    outcomes, setup, host = collecting.measure_now(project, "first", keys)
    assert [(job.task_key, job.decisions) for job in runners[0].jobs] == [(key[0], key[2]) for key in keys]
    assert len(outcomes) == len(keys) == 6 and setup == collecting.setup_of(project, "first") and host
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

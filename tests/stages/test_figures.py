"""The figures of a run from the files of its stages, and `tcl report` from end to end, on a small project made by hand."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import made_up
import numpy as np
import pytest

from tcl_core import provenance, registry, store
from tcl_core.checked import read_json, write_json
from tcl_core.errors import DataError, UsageError
from tcl_core.evaluation.intervals import chain_figures, model_figures
from tcl_core.records import Record
from tcl_core.stages import figures, overview, promotion, tuned_report
from tcl_core.stages.figures import figures_of, gather
from tcl_core.stages.workspace import Workspace
from tests.commands import tcl
from tests.shipped import SHIPPED

REPORTS = Workspace().reports
EVALUATION, PAGE, TUNED = REPORTS / promotion.EVALUATION, REPORTS / promotion.PAGE, REPORTS / tuned_report.TUNED
FIGURES, SUMMARY = REPORTS / figures.FIGURES, REPORTS / overview.SUMMARY
FIRST, SECOND, SKIPPED = "host-sse42", "host-avx2", "host-avx512"
OPERATORS = {"a" * 16: "conv2d", "b" * 16: "conv2d", "c" * 16: "matmul"}
START = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


def record(task: str, number: int, **facts) -> Record:
    """Program ``number`` of a task in round ``number``: 10 ms less ``number``, in repeats that spread by 0.1 of it."""
    given = {
        "decisions": (number,), "latencies_s": tuple((10 - number) * 1e-3 * share for share in (0.9, 0.95, 1.0, 1.05, 1.1)), "error": "ok",
        "message": "", "round": number, "measured_at": START + timedelta(minutes=number), "protocol": "{}", "host": "a CPU x2",
        "tvm_version": "0.27",
    }  # fmt: skip
    return Record(task_key=task, sketch_id=0, program_id=number, **(given | facts))


def measured() -> list[Record]:
    """Three programs of the first task, two of the second, none of the third; one failed, one was disturbed."""
    first, second, _ = OPERATORS
    return [
        *(record(first, number) for number in range(3)),
        record(second, 0, disturbed=True),
        record(second, 1, error="timeout", latencies_s=(), message="slow"),
    ]


def judged() -> dict:
    seconds = np.tile(np.arange(1.0, 5.0), 6)
    return model_figures(-seconds, seconds, np.repeat(np.arange(6), 4), {"n": dict.fromkeys(range(6), 1.0)}, (1, 5), draws=20)


def write_run(root: Path) -> None:
    """As the pipeline leaves it: two platforms measured, the third skipped, nothing tuned yet."""
    root.mkdir(parents=True, exist_ok=True)
    shutil.copy(SHIPPED, root)
    tasks = [{"task_key": key, "name": "n", "op_type": kind, "flops": 1.0, "module_json": "{}"} for key, kind in OPERATORS.items()]
    pool = [{"task_key": key, "split": "train", "program_id": n, "sketch_id": 0, "decisions": [n]} for key in OPERATORS for n in range(10)]
    store.write_table(Workspace(root).task_tables / "tasks.parquet", "tasks", tasks)
    store.write_table(Workspace(root).pool / "train" / "programs.parquet", "programs", pool)
    for platform in (FIRST, SECOND):
        write_platform(root, platform)
    store.write_skipped(Workspace(root).records_folder(SKIPPED), SKIPPED, "this CPU lacks avx512f")
    write_json(Workspace(root).reports / "collect" / f"{SKIPPED}.json", {"platform": SKIPPED, "skipped": "this CPU lacks avx512f"})
    names = [FIRST, SECOND]
    write_json(root / EVALUATION, {
        "platforms": {name: judged() for name in names},
        "baselines": {"zero-shot": {SECOND: judged()}, "own data only": {SECOND: judged()}},
        "chain": chain_figures(names, [[1.0, 0.5], [0.9, 1.0]], {SECOND: FIRST}),
        "judged": {name: Workspace(root).judged_now(name) for name in names},
    })  # fmt: skip
    for stage, seconds in {"tasks": 60, f"collect@{FIRST}": 120.5, "collect@gone": 6000}.items():
        write_json(Workspace(root).journal / "seconds" / f"{stage}.json", {"stage": stage, "seconds": seconds})


def write_platform(root: Path, platform: str) -> None:
    store.write_records(Workspace(root).records_folder(platform), measured())
    store.write_records(Workspace(root).records_folder(platform, "holdout"), [record("d" * 16, number) for number in range(2)])
    report = {"platform": platform, "programs": 5, "pool": 30, "errors": {"ok": 4, "timeout": 1}, "rounds": []}
    write_json(Workspace(root).reports / "collect" / f"{platform}.json", report)
    model = Workspace(root).model_folder(platform)
    write_json(model / "model.json", {})
    write_json(model / "curve.json", {"epochs": [{"phase": "train", "epoch": epoch, "loss": 1.0 / epoch} for epoch in (1, 2)]})
    provenance.write(model, {
        "stage": "train", "parameters": {"seed": 0, "train": {"epochs": 30}}, "data": {platform: "d" * 64}, "model_before": None,
        "code": {"commit": "c" * 40, "changed": False, "sources": "s" * 64}, "versions": {"python": "3.11.9"}, "host": "a CPU x2",
    })  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    write_run(folder)
    return folder


@pytest.fixture
def project(finished, tmp_path, monkeypatch) -> Path:
    """A copy of the run, in which one works; without a registry, and with empty charts."""
    made_up.undraw(monkeypatch)
    folder = tmp_path / "project"
    shutil.copytree(finished, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    return folder


# --- gathering ---


def test_the_figures_of_a_run_by_hand(project):
    found = gather(Workspace(), {FIRST: {"version": 3, "champion_version": 3}})
    assert (found["name"], found["target"]) == ("project", SECOND)
    first, second, third = found["chain"]
    assert (first["measured"], first["held_out"], first["champion"], first["skipped"]) == (5, 2, 3, None)
    assert (first["hardware"], second["previous"], second["champion"]) == ("nehalem", FIRST, None)
    assert (third["measured"], third["skipped"]) == (0, "this CPU lacks avx512f")
    assert found["errors"] == {name: {"training": {"ok": 4, "timeout": 1}, "held-out": {"ok": 2}} for name in (FIRST, SECOND)}
    assert [epoch["loss"] for epoch in found["learning"][SECOND]] == [1.0, 0.5]
    assert found["seconds"] == {"tasks": 60, f"collect@{FIRST}": 120.5} and found["tuned"] == {}


def test_what_the_sampler_covered(project):
    found = gather(Workspace())["collection"][FIRST]
    assert found["coverage"] == {"conv2d": [5, 20], "matmul": [0, 10]}
    assert found["tasks"] == {"measured": 2, "of": 3, "least": 2, "most": 3}
    assert [entry["measured"] for entry in found["progress"]] == [{"conv2d": 2}, {"conv2d": 2}, {"conv2d": 1}]
    assert [entry["failed"] for entry in found["progress"]] == [0, 1, 0]
    # The first task's 10, 9, 8 ms end at 8; the second one's best is its first.
    assert [entry["best_score"] for entry in found["progress"]] == pytest.approx([(0.8 + 1) / 2, (8 / 9 + 1) / 2, 1.0])


def test_noise_is_that_of_programs_that_ran(project):
    noise = gather(Workspace())["noise"][FIRST]
    assert (noise["programs"], noise["repeats"], noise["disturbed"]) == (6, 5.0, 1)
    assert noise["spread"] == pytest.approx([0.1] * 21, abs=1e-4)


def test_the_run_is_told_from_what_params_say_now(project):
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("  epochs: 30 ", "  epochs: 31 "))
    made = gather(Workspace())
    assert made["made"]["parameters"]["train.epochs"] == 30 and made["made"]["changed"] is None
    left_out = [["what params.yaml says now", f"the model of {name} was made with another train.epochs"] for name in (FIRST, SECOND)]
    assert [entry for entry in made["left_out"] if entry[0] == left_out[0][0]] == left_out
    assert made["made"]["measured"] == ["2026-11-22T12:00:00", "2026-11-22T12:02:00"]
    assert made["made"]["models"][SECOND]["code"]["commit"] == "c" * 40


def test_one_model_of_other_parameters_is_named(project):
    """Whichever of them was made last."""
    for name, other in ((FIRST, SECOND), (SECOND, FIRST)):
        for platform, epochs in ((name, 31), (other, 30)):
            file = Workspace().model_folder(platform) / "provenance.json"
            write_json(file, read_json(file, "") | {"parameters": {"train": {"epochs": epochs}}})
        made = gather(Workspace())
        assert ["what params.yaml says now", f"the model of {name} was made with another train.epochs"] in made["left_out"]
        assert made["made"]["parameters"]["train.epochs"] == 31


def test_a_platform_that_was_not_judged_yet_is_named(project):
    whole = read_json(EVALUATION, "")
    write_json(EVALUATION, whole | {part: {FIRST: whole[part][FIRST]} for part in ("platforms", "judged")})
    found = gather(Workspace())
    assert found["target"] == FIRST
    assert [f"accuracy of {SECOND}", "no model of it has been judged yet; run: dvc repro evaluate"] in found["left_out"]


def test_parameters_are_compared_with_the_committed_ones(project):
    committer = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
    for words in (["init", "-q"], ["add", "params.yaml"], [*committer, "commit", "-q", "-m", "m"]):
        subprocess.run(["git", *words], cwd=project, check=True)
    assert gather(Workspace())["made"]["changed"] == {}
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("trials: 200 ", "trials: 99 ").replace("models: []", "models: [tlp, trees]"))
    assert gather(Workspace())["made"]["changed"] == {"baselines.models": [[], ["tlp", "trees"]], "tune.trials": [200, 99]}


def test_committed_parameters_that_are_no_yaml_are_not_compared_with(project):
    """They may be mended here already."""
    here = Path("params.yaml").read_text()
    Path("params.yaml").write_text(f"{here}seed: 0\nseed: 0\n<<<<<<< HEAD\n")
    committer = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
    for words in (["init", "-q"], ["add", "params.yaml"], [*committer, "commit", "-q", "-m", "m"]):
        subprocess.run(["git", *words], cwd=project, check=True)
    Path("params.yaml").write_text(here)
    assert gather(Workspace())["made"]["changed"] is None


def test_a_chain_that_an_earlier_version_judged_has_no_matrix_and_that_is_said(project):
    file = Workspace().reports / promotion.EVALUATION
    earlier = read_json(file, "")
    write_json(
        file, {name: value for name, value in earlier.items() if name != "checksum"} | {"chain": {"platforms": [FIRST], "top_1": [[1.0]]}}
    )
    why = "the models were judged by an earlier version; run: dvc repro -f evaluate"
    assert ["what was forgotten along the chain", why] in gather(Workspace())["left_out"]


def test_what_is_missing_is_said_with_its_reason(project):
    assert gather(Workspace())["left_out"] == [
        [f"platform {SKIPPED}", "this CPU lacks avx512f"],
        ["models beside the chain", "baselines.models of params.yaml lists none"],
        ["tuning", "no network has been tuned yet; run: tcl tune"],
    ]
    EVALUATION.unlink()
    write_json(Workspace().model_folder(SECOND) / "curve.json", {"epochs": []})
    (Workspace().model_folder(FIRST) / "provenance.json").unlink()
    write_json(TUNED, made_up.tuned() | {"curve": [], "left_out": 2, "compared": {"missing": {"compile": "no compiler"}}})
    (Workspace().journal / "seconds" / "tasks.json").write_text("torn")
    left_out = dict(gather(Workspace())["left_out"])
    assert left_out[f"learning curve of {SECOND}"].endswith("its model is that of the platform before")
    assert left_out["accuracy"] == "no model has been judged yet; run: dvc repro evaluate"
    why = "not every task had a program that ran; give more trials or minutes"
    assert left_out["torch.compile"] == "no compiler" and left_out["milliseconds against programs measured"] == why
    assert "TVM's own took their place" in left_out["tuned programs of 2 tasks"]
    assert "is damaged (it is no JSON)" in left_out["time of tasks"]
    assert "nobody knows what this model was made of" in left_out[f"what the model of {FIRST} was made of"]


@pytest.mark.parametrize("changed", ["model", "holdout"])
def test_figures_of_another_model_or_of_other_records_are_said_to_be_so(project, changed):
    folder = Workspace().model_folder(SECOND) if changed == "model" else Workspace().records_folder(SECOND, "holdout")
    assert gather(Workspace())["stale"] == []
    (folder / "more").write_text("other bytes")
    assert gather(Workspace())["stale"] == [SECOND]
    shutil.rmtree(folder)
    assert gather(Workspace())["stale"] == [SECOND]


def test_tasks_that_were_cut_anew_leave_the_collection_without_its_progress(project):
    store.write_table(
        Workspace().task_tables / "tasks.parquet",
        "tasks",
        [{"task_key": "x", "name": "n", "op_type": "o", "flops": 1.0, "module_json": "{}"}],
    )
    found = gather(Workspace())["collection"][FIRST]
    assert (found["programs"], found["progress"], found["coverage"]) == (5, [], {})


def test_where_nothing_has_been_run_that_is_said(project):
    shutil.rmtree("data")
    with pytest.raises(DataError, match=r"^nothing has been run yet in .*project; run: make run$"):
        gather(Workspace())


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (EVALUATION, r"evaluation\.json is damaged \(it is no JSON\); judge the models again: dvc repro evaluate"),
        (Workspace().reports / "collect" / f"{FIRST}.json", r"is damaged \(it is no JSON\); run its stage again: dvc repro -f collect@"),
        (TUNED, r"tuned\.json is damaged \(it is no JSON\); tune again: tcl tune"),
        (Workspace().records_folder(FIRST) / "records.parquet", r"records\.parquet is damaged"),
        (Workspace().model_folder(FIRST) / "curve.json", r"curve\.json is damaged"),
        (Workspace().task_tables / "tasks.parquet", r"tasks\.parquet is damaged"),
    ],
)
@pytest.mark.parametrize("damage", [b"", b"\0" * 64, b"[1, 2"], ids=["empty", "zeros", "cut"])
def test_a_damaged_file_is_one_sentence(project, file, sentence, damage):
    file.write_bytes(damage)
    with pytest.raises(DataError, match=sentence) as raised:
        tcl("report")
    assert "\n" not in str(raised.value) and not PAGE.exists()


@pytest.mark.parametrize("change", [{"platforms": {FIRST: {"top_1": {"value": 1.0}}}}, {"nothing": 1}])
def test_an_evaluation_of_another_version_is_one_sentence(project, change):
    write_json(EVALUATION, change)
    with pytest.raises(DataError, match=r"evaluation\.json lacks .*pairwise_accuracy.*; judge the models again"):
        tcl("report")


def test_another_file_in_the_place_of_a_report_is_one_sentence(project):
    write_json(Workspace().reports / "collect" / f"{FIRST}.json", {"platforms": {}})
    with pytest.raises(DataError, match="is damaged .it is no report of a collection"):
        tcl("report")


# --- the page ---


def test_the_page_and_its_figures_are_written(project):
    write_json(TUNED, made_up.tuned())
    assert tcl("report") == f"wrote {PAGE}"
    page = PAGE.read_text()
    assert page.startswith("<!doctype html>") and "TCL: project" in page and "resnet-18, tuned on host-avx512" in page
    assert "skipped: this CPU lacks avx512f" in page
    first = page
    assert tcl("report") == f"wrote {PAGE}" and PAGE.read_text() == first  # the same figures give the same page
    assert read_json(FIGURES, "")["errors"][FIRST]["training"] == {"ok": 4, "timeout": 1}


def test_a_page_of_the_users_own_name_is_not_overwritten_unasked(project, tmp_path):
    page = tmp_path / "run.html"
    page.write_text("mine")
    with pytest.raises(UsageError, match="run.html exists; give another name, or --overwrite"):
        tcl("report", "--to", page)
    assert page.read_text() == "mine" and not FIGURES.exists()
    assert tcl("report", "--to", page, "--overwrite") == f"wrote {page}" and page.read_text().startswith("<!doctype html>")


def test_names_of_params_are_text_in_the_page(project):
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("    - resnet-50\n", "    - '<img src=x onerror=alert(1)>.onnx'\n"))
    tcl("report")
    page = PAGE.read_text()
    assert "<img" not in page and "&lt;img src=x onerror=alert(1)&gt;.onnx" in page


def test_two_runs_are_compared_wherever_they_lie(project, tmp_path):
    tcl("report")
    shutil.copytree(Workspace().reports, tmp_path / "before")  # a copy of the reports knows all that the page showed
    other = tmp_path / "other"
    shutil.copytree(project, other)
    store.write_records(other / Workspace().records_folder(FIRST), [record("a" * 16, number) for number in range(4)])
    copy, live = figures_of(tmp_path / "before"), figures_of(Workspace().reports)
    assert copy == live and live["name"] == "project"
    assert figures_of(other)["errors"][FIRST]["training"] == {"ok": 4}
    assert tcl("report", tmp_path / "before", other) == "wrote data/reports/comparison.html"
    page = Path("data/reports/comparison.html").read_text()
    assert "A is ../before" in page and "B is ../other" in page and "held-out programs that failed" in page


def test_reports_alone_tell_less_and_say_so(project, tmp_path):
    shutil.copytree(Workspace().reports, tmp_path / "reports")
    found = figures_of(tmp_path / "reports")
    assert [step["platform"] for step in found["chain"]] == [FIRST, SECOND, SKIPPED] and found["target"] == SECOND
    assert (found["noise"], found["made"], found["errors"][FIRST]) == ({}, {}, {"training": {"ok": 4, "timeout": 1}})
    assert tcl("report", tmp_path / "reports", project) == "wrote data/reports/comparison.html"
    assert "nothing of it is known of this run" in Path("data/reports/comparison.html").read_text()


def test_what_is_no_run_is_refused(project, tmp_path):
    (tmp_path / "empty").mkdir()
    for runs, sentence in (
        ([project], "a comparison takes two runs, not 1; name a project's folder"),
        ([project] * 3, "a comparison takes two runs, not 3"),
        ([project, tmp_path / "gone"], "there is no folder .*gone; name a project"),
        ([tmp_path / "empty", project], "empty holds neither params.yaml nor reports"),
    ):
        with pytest.raises(UsageError, match=sentence):
            tcl("report", *runs)
    tcl("report")
    shutil.copytree(Workspace().reports, tmp_path / "before")
    (tmp_path / "before" / FIGURES.name).write_text("{}")
    with pytest.raises(DataError, match=r"report\.json is damaged"):
        tcl("report", tmp_path / "before", project)
    write_json(tmp_path / "before" / FIGURES.name, {"format": "another"})
    with pytest.raises(DataError, match="it holds no figures of this version"):
        tcl("report", tmp_path / "before", project)


def test_champions_come_from_the_registry_here_and_from_the_summary_elsewhere(project, monkeypatch):
    write_json(SUMMARY, {"platforms": {FIRST: {"champion_version": 7}, SKIPPED: {"skipped": "why"}}})
    assert [step["champion"] for step in gather(Workspace())["chain"]] == [7, None, None]
    monkeypatch.setattr(registry, "is_there", lambda: True)
    monkeypatch.setattr(registry, "champion_version", {FIRST: 2, SECOND: 1, SKIPPED: None}.__getitem__)
    monkeypatch.setattr(registry, "version_of", lambda platform, folder, tags: 2)
    kept = []
    monkeypatch.setattr(registry, "attach", lambda *given: kept.append(given))
    assert tcl("report") == f"wrote {PAGE}, also kept with tcl-{FIRST} version 2, tcl-{SECOND} version 2"
    assert kept == [(FIRST, 2, PAGE), (SECOND, 2, PAGE)]
    first, second, _ = gather(Workspace(), {name: promotion.standing(Workspace(), name) for name in (FIRST, SECOND)})["chain"]
    assert (first["champion"], first["version"], second["champion"], second["version"]) == (2, 2, 1, 2)
    page = PAGE.read_text()  # only a model that is not the champion is named beside it
    assert [page.count(said) for said in ("champion: version 2", "champion: version 1", "model: version 2")] == [1, 1, 1]
    write_json(EVALUATION, read_json(EVALUATION, "") | {"judged": {}})  # of other models: their versions get no page
    assert tcl("report") == f"wrote {PAGE}" and len(kept) == 2


def test_while_the_registry_is_away_the_page_is_written_all_the_same(project, monkeypatch):
    def away(*_):
        raise registry.RegistryAway("the model registry at http://mlflow:5000 is away (refused); start it")

    monkeypatch.setattr(registry, "is_there", lambda: True)
    for name in ("version_of", "champion_version"):
        monkeypatch.setattr(registry, name, away)
    said = "not kept with its models' versions: the model registry at http://mlflow:5000 is away (refused); start it"
    assert tcl("report") == f"wrote {PAGE}, {said}"
    assert "champion: version" not in PAGE.read_text() and read_json(FIGURES, "")["chain"][0]["champion"] is None
    assert ["versions of the models", "the registry is away"] in read_json(FIGURES, "")[
        "left_out"
    ] and "the registry is away" in PAGE.read_text()


def test_the_host_that_judges_a_model_is_that_of_its_held_out_programs(project):
    assert promotion._judging_host(Workspace(), FIRST) == "a CPU x2"
    shutil.rmtree(Workspace().records_folder(FIRST, "holdout"))
    with pytest.raises(DataError, match=f"dvc repro holdout@{FIRST}"):
        promotion._judging_host(Workspace(), FIRST)

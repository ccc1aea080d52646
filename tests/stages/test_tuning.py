"""Tuning and summing up, with models whose quality is known and the real registry."""

from __future__ import annotations

import shutil
import dataclasses
import json
import math
from contextlib import contextmanager
from pathlib import Path

import pytest

from tcl_core import registry, shipped_model, store
from tcl_core.checked import write_json, read_json
from tcl_core.errors import BusyError, DataError, NoChampionError, TclError, UsageError
from tcl_core.params import Platform
from tcl_core.platforms import Hardware, widest_cpu
from tcl_core.stages import exchange, overview, promotion, tuned_folder, tuned_report, tuning
from tcl_core.platforms import save_hardware
from tcl_core.stages.workspace import Workspace
from tests.stages import known_models
from tests.stages.known_models import Known, P, TinyWorkspace, evaluation, made_and_promoted, write_model

database, project = known_models.database, known_models.project


def tune(workspace: Workspace, network: str | None, platform: str | None, trials: int | None, **more) -> str:
    return str(tuning.tune(workspace, tuning.TuneRequest(network, platform, trials, **more)))


def summary(workspace: Workspace) -> str:
    return overview.summary_text(overview.summarise(workspace), workspace.reports)


# --- tuning ---

COMPARED = {
    "systems": {"tuned": {"median_ms": 87.619, "rounds_ms": [87.0, 87.619, 90.0], "difference": 6e-8, "waiting": ""}},
    "missing": {"compile": "it has no compiler"},
    "ratios": {"tuned/eager": {"value": 3.5, "low": 3.4, "high": 3.6}},
    "reference": "eager",
}


@pytest.fixture
def tuner(project, monkeypatch):
    """Stands in for the search: counts its calls and keeps its folders; PyTorch's time as told."""
    from tcl_core.tuning import network
    from tcl_core.tuning.network import Tuned
    from tcl_core.tuning.tuner import TaskTime

    class Tuner:
        calls: list[tuple[str, int]] = []
        models: list[Known]
        pytorch_ms: float | None = 24.6
        compile_ms: float | None = None
        reference = "PyTorch"
        left_out = 0
        guessed, checked = False, True
        keys = ("", "")

        folders: list[Path] = []
        stopped = False
        donors = None

        def __call__(self, name, graph, model, hardware, setup, trials, seed, folder, out=None, minutes=None, donors=None) -> Tuned:
            self.donors = donors
            self.calls.append((name, trials))
            self.models.append(model)
            self.folders.append(folder)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"measured-{len(self.calls)}").touch()
            if self.stopped:
                raise KeyboardInterrupt
            if out is not None:
                for name in ("network.so", "example.npz"):
                    (out / name).write_text("built")
                shutil.copytree(folder, out / "measured")
                (out / "database").mkdir()
            times = (
                TaskTime("fused_conv2d", 2.0, 1.5, 150, key=self.keys[0], checked=self.checked),
                TaskTime("reshape", 1.0, None, 1, False, self.keys[1], self.guessed),
            )
            return Tuned(
                trials or 151, 19, 2000.0, 87.619, self.pytorch_ms, 6e-8, 30.0, self.compile_ms, times, self.left_out, COMPARED,
                reference=self.reference,
            )  # fmt: skip

    tuner = Tuner()
    tuner.calls, tuner.folders, tuner.models = [], [], []
    monkeypatch.setattr(network, "tune_network", tuner)
    monkeypatch.setattr("tcl_core.platforms.local.why_not", lambda mcpu: None)
    monkeypatch.setattr(tuning, "keep_tuned", lambda workspace, database, platform: None)
    made_and_promoted(project, "best")
    return tuner


def test_nothing_new_is_tuned_once(project, tuner):
    said = tune(project, None, P, None)
    assert said == (
        f"resnet-18 on {P}: 2000.00 ms untuned, 87.62 ms tuned, PyTorch 24.60 ms; 200 programs measured, "
        "largest difference to PyTorch's output 6.0e-08"
    )
    said = tune(project, None, P, None)
    assert said.startswith("unchanged: resnet-18 on") and said.endswith("to tune it once more: tcl tune --force")
    assert tuner.calls == [("resnet-18", 200)]


@pytest.mark.parametrize("held_out", [(), ("one",), ("one", "other")])
def test_what_was_measured_teaches_the_next_model(project, tuner, monkeypatch, held_out):
    """Unless all of it is held-out networks': the same run of the pipeline again would find something new to learn."""
    project.networks = [{"split": "held_out", "task_key": key} for key in held_out]
    kept = []
    monkeypatch.setattr(tuning, "keep_tuned", lambda workspace, database, platform: kept.append((database, platform, database.exists())))
    tuner.keys = ("one", "other")
    tune(project, "resnet-18", P, 200)
    assert kept == ([] if len(held_out) == 2 else [(tuner.folders[0], P, True)])


def test_what_cannot_be_kept_for_the_next_model_is_said_and_not_removed(project, tuner, monkeypatch):
    """Nor found by the same command with --force, which is to measure anew."""
    monkeypatch.setattr(tuning, "keep_tuned", exchange.keep_tuned)
    said = tune(project, "resnet-18", P, 200)
    (aside,) = tuner.folders[0].parent.iterdir()
    assert aside.name.startswith(f"{tuner.folders[0].name}.not-learned-") and [file.name for file in aside.iterdir()] == ["measured-1"]
    assert said.startswith("resnet-18") and f"; what was measured will not teach the next model, and stays in {aside} (the folder" in said


def test_who_is_stopped_while_it_keeps_what_was_measured_goes_on(project, tuner, monkeypatch):
    """The report tells nothing yet, and what was measured is where the same command looks."""

    def stopped(workspace, database, platform):
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "keep_tuned", stopped)
    with pytest.raises(KeyboardInterrupt):
        tune(project, "resnet-18", P, 200)
    assert not (project.reports / tuned_report.TUNED).exists()
    monkeypatch.setattr(tuning, "keep_tuned", lambda workspace, database, platform: None)
    assert tune(project, "resnet-18", P, 200).startswith("resnet-18")
    assert tuner.folders[0] == tuner.folders[1] and not tuner.folders[0].exists()


def test_who_waited_for_the_same_tuning_is_told_its_outcome(project, tuner, monkeypatch):
    """And measures nothing: the other one has ended well meanwhile."""
    tune(project, "resnet-18", P, 200)
    told = (project.reports / tuned_report.TUNED).read_bytes()
    (project.reports / tuned_report.TUNED).unlink()

    @contextmanager
    def after_the_other():
        (project.reports / tuned_report.TUNED).write_bytes(told)
        yield

    monkeypatch.setattr(tuning, "measuring_alone", after_the_other)
    assert tune(project, "resnet-18", P, 200).startswith("unchanged") and len(tuner.calls) == 1


@pytest.mark.parametrize("change", ["network", "trials", "graph", "champion", "force"])
def test_what_is_new_is_tuned(project, tuner, change):
    tune(project, "resnet-18", P, 200)
    if change == "champion":
        registry.promote(P, registry.register(P, saved_elsewhere(), {}, {}, {}), True, "better", 1)
    if change == "graph":
        graph = dataclasses.replace(project.params.graph, layout="NCHW")
        project = TinyWorkspace(params=dataclasses.replace(project.params, graph=graph))
    network, trials = ("bert-tiny" if change == "network" else "resnet-18"), (64 if change == "trials" else 200)
    tune(project, network, P, trials, force=change == "force")
    assert tuner.calls == [("resnet-18", 200), (network, trials)]
    tuned = json.loads((Workspace().reports / tuned_report.TUNED).read_text())
    assert tuned["champion_version"] == (2 if change == "champion" else 1)
    assert tune(project, network, P, trials).startswith("unchanged")


def test_what_a_stopped_run_measured_is_found_again(project, tuner):
    """By the same command, and by one with more trials; not by another network's.  A run that ends well leaves nothing."""
    tuner.stopped = True
    for network, trials in (("resnet-18", 200), ("resnet-18", 300), ("bert-tiny", 200)):
        with pytest.raises(KeyboardInterrupt):
            tune(project, network, P, trials)
    mine, again, other = tuner.folders
    assert mine == again != other and sorted(p.name for p in mine.iterdir()) == ["measured-1", "measured-2"]
    tuner.stopped = False
    tune(project, "resnet-18", P, 200)
    assert tuner.folders[-1] == mine and not mine.exists() and other.exists()


def test_what_was_measured_is_kept_until_the_report_is_written(project, tuner, monkeypatch):
    """Else a full disk at the very end would cost all of it."""

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tuning, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        tune(project, "resnet-18", P, 200)
    assert [file.name for file in tuner.folders[0].iterdir()] == ["measured-1"]


@pytest.mark.parametrize("change", ["seed", "measure"])
def test_another_seed_or_protocol_is_another_tuning(project, tuner, change):
    """Neither answered with the last one's figures nor begun with its programs."""
    tune(project, "resnet-18", P, 200)
    changed = {"seed": 7} if change == "seed" else {"measure": dataclasses.replace(project.params.measure, repeats=5)}
    tune(TinyWorkspace(params=dataclasses.replace(project.params, **changed)), "resnet-18", P, 200)
    assert len(tuner.calls) == 2 and tuner.folders[0] != tuner.folders[1]


def test_the_report_has_the_programs_that_were_measured(project, tuner):
    """Which may be fewer than were asked for, of small design spaces, or more, of a run that was stopped with more to do."""
    usual = type(tuner).__call__
    fewer = lambda self, *args, **more: dataclasses.replace(usual(self, *args, **more), trials=151)  # noqa: E731
    type(tuner).__call__ = fewer
    assert "; 151 programs measured, " in tune(project, "resnet-18", P, 200)
    assert tune(project, "resnet-18", P, 200).startswith("unchanged")


def saved_elsewhere(how: str = "best") -> Path:
    write_model("elsewhere", how)
    save_hardware(Workspace().model_folder("elsewhere"), Hardware(cores=3))
    return Workspace().model_folder("elsewhere")


def tuned_before(folder: Path, mcpu: str) -> Path:
    """The database of a network of one tuned task, as ``tcl tune`` leaves it."""
    from tcl_core.compat import load_tvm, make_target
    from tcl_core.tuning.database import Shelf, open_database
    from tests.conftest import matmul_module

    module = matmul_module(8, 8, 8)
    trace = load_tvm().s_tir.Schedule(module).trace
    Shelf(open_database(folder / "database"), module, make_target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})).put(trace, [1e-3])
    return folder


def test_databases_to_start_from_are_read_and_told_apart(project, tuner, tmp_path):
    mcpu = project.params.platforms[P].mcpu
    start = tuned_before(tmp_path / "tuned", mcpu)
    said = tune(project, None, P, None, warm_start=[start])
    why = "perhaps the databases are of other operators, or of graphs prepared otherwise, such as in another layout"
    assert said.endswith(f"; 0 of 19 tasks had a donor: {why}") and tuner.donors.refused == 0
    assert tune(project, None, P, None, warm_start=[start]).startswith("unchanged")
    assert not tune(project, None, P, None).startswith("unchanged") and tuner.donors is None
    assert not tune(project, None, P, None, warm_start=[start]).startswith("unchanged")
    tuned_before(start, mcpu)  # holds one more record
    assert not tune(project, None, P, None, warm_start=[start]).startswith("unchanged")
    assert len(tuner.calls) == 4 and len(set(tuner.folders)) == 3


def test_lines_that_are_no_donors_are_counted(project, tuner, tmp_path):
    start = tuned_before(tmp_path / "tuned", project.params.platforms[P].mcpu)
    with (start / "database" / "database_tuning_record.json").open("a") as file:
        file.write("torn\n[]\n")
    said = tune(project, None, P, None, warm_start=[start])
    assert "; 0 of 19 tasks had a donor (2 lines of the databases are no programs): perhaps the databases are of other" in said


def test_a_bad_database_to_start_from_is_said_before_anything_is_tuned(project, tuner, tmp_path):
    (tmp_path / "empty").mkdir()
    ours = project.params.platforms[P].mcpu
    with pytest.raises(UsageError, match="empty has no database_tuning_record.json; give a log file or a MetaSchedule database"):
        tune(project, None, P, None, warm_start=[tmp_path / "empty"])
    with pytest.raises(UsageError, match=f"measured on llvm -mcpu=penryn, and what is tuned runs on llvm -mcpu={ours}; give a"):
        tune(project, None, P, None, warm_start=[tuned_before(tmp_path / "other", "penryn")])
    (tuned_before(tmp_path / "damaged", ours) / "database" / "database_tuning_record.json").write_text("[0, [[[], []]\n")
    with pytest.raises(DataError, match="is no tuning log"):
        tune(project, None, P, None, warm_start=[tmp_path / "damaged"])


def test_a_saved_model_takes_the_champions_place(project, tuner):
    """The report names it; the champion and the same folder with other bytes are other runs."""
    tune(project, None, P, None)
    folder = saved_elsewhere("worst")
    said = tune(project, None, P, None, model=folder)
    named = f"resnet-18 on {P}, by the known model in data/models/elsewhere: 2000.00 ms untuned"
    assert said.startswith(named) and tune(project, None, P, None, model=folder).startswith(f"unchanged: {named}")
    assert f"- {named}" in summary(project)
    assert json.loads((Workspace().reports / tuned_report.TUNED).read_text()).get("champion_version") is None
    saved_elsewhere("best")
    tune(project, None, P, None, model=folder)
    tune(project, None, P, None)
    assert [model.how for model in tuner.models] == ["best", "worst", "best", "best"] and len(set(tuner.folders)) == 3


def test_a_saved_model_needs_no_champion(project, tuner, monkeypatch):
    monkeypatch.setattr(registry, "champion", lambda platform: pytest.fail("asked for"))
    assert tune(project, None, P, None, model=saved_elsewhere()).startswith("resnet-18")


@pytest.fixture
def nothing_promoted(monkeypatch):
    def none(platform: str):
        raise NoChampionError(f"{platform} has no champion")

    monkeypatch.setattr(registry, "champion", none)
    monkeypatch.setattr(shipped_model, "_learned", lambda: Known("worst"))


def test_before_anything_is_promoted_the_model_that_comes_with_tcl_ranks(project, tuner, nothing_promoted, monkeypatch):
    said = tune(project, None, P, None)
    assert said.startswith(f"resnet-18 on {P}, by the model that comes with TCL: 2000.00 ms untuned") and tuner.models[0].how == "worst"
    assert tune(project, None, P, None).startswith("unchanged: ")
    monkeypatch.setattr(shipped_model, "digest", lambda: "of other data")
    assert not tune(project, None, P, None).startswith("unchanged: ") and len(set(tuner.folders)) == 2


def test_what_comes_with_tcl_ranks_nothing_for_an_arm(project, tuner, nothing_promoted, monkeypatch):
    """Who asked for it is told so; the pipeline, which takes the chain's last platform, is whole without."""
    arm = dataclasses.replace(project.params, platforms=project.params.platforms | {P: Platform(mcpu="cortex-a72")})
    with pytest.raises(NoChampionError, match=f"^{P} has no champion"):
        tune(TinyWorkspace(params=arm), None, P, None)
    monkeypatch.setattr(TinyWorkspace, "platforms_that_ran", lambda workspace: [P])
    assert tune(TinyWorkspace(params=arm), None, None, None) == f"nothing tuned: {P} has no champion"
    assert tuner.calls == []


def test_what_comes_with_tcl_ranks_nothing_for_a_gpu(project, tuner, nothing_promoted, monkeypatch):
    """Which has no mcpu: the pipeline then skips tuning, and does not fail."""
    monkeypatch.setattr(tuning, "_check_tunable", lambda workspace, platform: None)
    gpu = dataclasses.replace(
        project.params, platforms=project.params.platforms | {P: dataclasses.replace(project.params.platforms[P], mcpu="")}
    )
    with pytest.raises(NoChampionError, match=f"^{P} has no champion"):
        tune(TinyWorkspace(params=gpu), None, P, None)
    assert tuner.calls == []


def test_what_cannot_take_the_champions_place_is_said(project, tuner, tmp_path):
    folder = saved_elsewhere()
    save_hardware(folder, Hardware(simd_bytes=64))
    for model, kind, message in (
        (tmp_path / "none", UsageError, "none is no saved model"),
        (folder / "model.json", UsageError, "model.json is no folder; give the folder that a model was saved in$"),
        (folder, UsageError, r"ranks programs for vectors of 64 bytes, and those of the target \(nehalem\) have 16"),
    ):
        with pytest.raises(kind, match=message):
            tune(project, None, P, None, model=model)
    assert tuner.calls == []


def test_a_changed_file_is_tuned_anew(project, tuner, tmp_path):
    file = tmp_path / "net.onnx"
    for content in (b"one", b"one", b"two"):
        file.write_bytes(content)
        tune(project, str(file), P, 5)
    assert len(tuner.calls) == 2


def test_without_pytorch_everything_is_still_said(project, tuner, monkeypatch):
    tuner.pytorch_ms, tuner.reference = None, "the untuned network"
    Path("net.onnx").touch()
    said = tune(project, "net.onnx", P, 5)
    assert "87.62 ms tuned, PyTorch -;" in said and "difference to the untuned network's output 6.0e-08" in said
    tuner.checked = False
    said_2 = tune(project, "net.onnx", P, 6)
    assert "not known to be right" not in said
    assert ". The measured programs of 1 of 2 tasks are not known to be right by themselves; the network's output is" in said_2
    assert f"- net.onnx on {P}: 2000.00 ms untuned, 87.62 ms tuned, PyTorch -\n" in summary(project)
    assert json.loads((Workspace().reports / overview.SUMMARY).read_text())["pytorch_ms"] is None


@pytest.mark.parametrize(
    ("elsewhere", "why"),
    [
        (
            Platform("rpc", "cortex-a72", "localhost:9190", "pi4", 4),
            "networks are tuned for this machine's CPU or GPU; b is a device behind RPC",
        ),
        (Platform("cuda"), "the GPU is away"),
    ],
    ids=["rpc", "cuda"],
)
def test_a_chain_that_ends_elsewhere_goes_on_untuned(project, tuner, monkeypatch, elsewhere, why):
    """That is said where nobody asked for the platform, and an error where somebody did."""
    monkeypatch.setattr("tcl_core.platforms.cuda.why_no_gpu", lambda design_space: "the GPU is away")
    platforms = project.params.platforms | {"b": elsewhere}
    project = TinyWorkspace(params=dataclasses.replace(project.params, platforms=platforms))
    assert tune(project, None, None, None) == f"nothing tuned: {why}"
    with pytest.raises(UsageError, match=f"^cannot tune on b: {why}; choose one of: {P}$"):
        tune(project, None, "b", None)
    assert tuner.calls == [] and not (Workspace().reports / tuned_report.TUNED).exists()
    summary(project)
    assert json.loads((Workspace().reports / overview.SUMMARY).read_text())["tuned"] == {}
    tune(project, None, P, None)
    assert tuner.calls == [("resnet-18", 200)]


def test_a_chain_without_this_machine_names_what_to_add(project, tuner, monkeypatch):
    monkeypatch.setattr("tcl_core.platforms.cuda.why_no_gpu", lambda design_space: "the GPU is away")
    project = TinyWorkspace(params=dataclasses.replace(project.params, platforms=dict.fromkeys((P, "b"), Platform("cuda"))))
    with pytest.raises(UsageError, match=f"{P}: the GPU is away; add one to params.yaml that it can, with mcpu: {widest_cpu()}$"):
        tune(project, None, P, None)


def test_no_platform_is_offered_that_this_machine_lacks(project, tuner, monkeypatch):
    platforms = project.params.platforms | {"b": Platform(mcpu="haswell")}
    project = TinyWorkspace(params=dataclasses.replace(project.params, platforms=platforms))
    lacks = {"haswell": "this CPU lacks avx2"}
    monkeypatch.setattr("tcl_core.platforms.local.why_not", lacks.get)
    with pytest.raises(UsageError, match=f"^cannot tune on b: this CPU lacks avx2; choose one of: {P}$"):
        tune(project, None, "b", None)
    assert tuner.calls == []


def test_without_a_platform_the_last_one_that_ran_is_tuned(project, tuner):
    store.write_skipped(Workspace().records_folder("b"), "b", "no AVX-512 here")
    assert tune(project, None, None, None).startswith(f"resnet-18 on {P}: ")


def test_trials_or_minutes(project, tuner):
    with pytest.raises(UsageError, match="trials and minutes both say how long to tune; give one of them"):
        tune(project, None, P, 5, minutes=1.0)
    for minutes in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(UsageError, match=f"the minutes to tune are {minutes}; give a number above 0"):
            tune(project, None, P, None, minutes=minutes)
    assert "; 151 programs measured" in tune(project, None, P, None, minutes=1.0)
    assert tuner.calls == [("resnet-18", None)]
    assert tune(project, None, P, None, minutes=1.0).startswith("unchanged")
    tune(project, None, P, 151)
    assert len(tuner.calls) == 2


def test_torch_compile_and_what_was_left_out_are_said(project, tuner):
    tuner.compile_ms, tuner.left_out = 12.3, 2
    said = tune(project, None, P, None)
    assert "PyTorch 24.60 ms, torch.compile 12.30 ms; 200 programs" in said
    assert said.endswith("6.0e-08, 2 tasks left to TVM, for the network failed with their programs")


def test_what_nobody_measured_is_said(project, tuner):
    tuner.guessed = True
    said = tune(project, None, P, None)
    assert said.endswith(
        "6.0e-08; 1 of 19 tasks has no program that was found right by measuring, but one that promised most (more trials or minutes may give it one)"
    )


def test_a_tuned_network_has_a_folder_of_its_own(project, tuner, tmp_path):
    """The library, what was measured, and a report in figures and in words; said once more, it is tuned once more."""
    out = tmp_path / "below" / "fast"
    said = tune(project, None, P, 64, out=out)
    assert said.endswith(f" -> {out}") and [p.name for p in out.parent.iterdir()] == ["fast"]
    names = {"network.so", "example.npz", "database", "measured", "report.json", "report.md", "contents.json"}
    assert {path.name for path in out.iterdir()} == names and (out / "measured" / "measured-1").is_file()
    report = read_json(out / "report.json", "")
    assert (report["network"], report["platform"], report["champion_version"], report["trials"]) == ("resnet-18", P, 1, 64)
    assert report["tasks_ms"] == 3.0 and report["compared"] == COMPARED and report["target"] and report["graph"]
    text = (out / "report.md").read_text()
    assert "| fused_conv2d | 2 | 1.5 | warm | 150 |" in text and "| reshape | 1 | TVM's own | warm | 1 |" in text
    assert "| tuned | 87.62 | 87 to 90 | 6.0e-08 |" in text and "| compile | - | - | it has no compiler |" in text
    with pytest.raises(UsageError, match=r"fast exists; name another folder, or overwrite it \(--overwrite"):
        tune(project, None, P, 64, out=out)
    tune(project, None, P, 65, out=out, overwrite=True)
    assert read_json(out / "report.json", "")["trials"] == 65 and len(tuner.calls) == 2


def test_a_folder_that_is_not_ours_is_never_overwritten(project, tuner, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "file").touch()
    for name in ("mine", "file"):
        with pytest.raises(UsageError, match=f"{name} is there and is no folder that tcl tune wrote; name another one"):
            tune(project, None, P, 64, out=tmp_path / name, overwrite=True)
    with pytest.raises(TclError, match="cannot write .*file/below"):
        tune(project, None, P, 64, out=tmp_path / "file" / "below")
    assert tuner.calls == [] and (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_two_tunings_into_one_folder(project, tuner, tmp_path):
    """The second is refused before it measures; the first one's is whole."""
    with tuned_folder.tuned_folder(tmp_path / "fast", overwrite=False) as aside:
        with pytest.raises(BusyError, match="another tuning is writing .*fast; wait for its end, or name another folder"):
            tune(project, None, P, 64, out=tmp_path / "fast")
        (aside / "mine").touch()
    assert tuner.calls == [] and (tmp_path / "fast" / "mine").is_file()


def test_a_stopped_tuning_leaves_no_half_folder(project, tuner, tmp_path):
    tuner.stopped = True
    with pytest.raises(KeyboardInterrupt):
        tune(project, None, P, 64, out=tmp_path / "below" / "fast")
    assert list((tmp_path / "below").iterdir()) == []


# --- the summary ---


def test_the_summary_names_what_was_measured_learned_and_promoted(project):
    made_and_promoted(project, "best")
    store.write_skipped(Workspace().records_folder("b"), "b", "no AVX-512 here")
    text = summary(project)
    assert f"- {P}: top-1 0.900 on held-out networks (a random ranking: 0.500), 20 programs measured, champion is version 1\n" in text
    assert "\n  pairs ranked right 0.800, forgotten 0.000\n" in text
    assert "- b: skipped, no AVX-512 here" in text
    saved = json.loads((Workspace().reports / overview.SUMMARY).read_text())
    assert saved["platforms"][P]["champion_version"] == 1 and saved["platforms"]["b"] == {"skipped": "no AVX-512 here"}


def test_the_summary_tells_a_candidate_from_the_champion(project, monkeypatch):
    made_and_promoted(project, "best")
    monkeypatch.setattr(registry, "version_of", lambda platform, folder, tags: 2)
    assert "20 programs measured, version 2, champion is version 1\n" in summary(project)


def test_the_summary_says_what_top_1_is_to_be_read_with(project):
    known = evaluation(P, "b")
    known["platforms"][P] = known["platforms"][P] | {"top_1": {"value": 0.9, "low": 0.75, "high": 0.98}, "pairwise_accuracy": None}
    beside = {"top_1": {"value": 0.6}, "pairwise_accuracy": 0.75}
    known["baselines"] = {"zero-shot": {P: beside}, "xgboost": {"b": {"top_1": {"value": 0.7}}}}
    write_json(Workspace().reports / promotion.EVALUATION, known)
    rounds = [{"step": "measure", "disturbed": 3}, {"step": "refit"}, {"step": "measure", "disturbed": 4}]
    write_json(Workspace().reports / "collect" / f"{P}.json", {"errors": {"ok": 8, "timeout": 1, "crash": 1}, "rounds": rounds})
    assert (
        "  top-1 from 0.750 to 0.980 (95 %), pairs ranked right - (zero-shot 0.750), forgotten 0.000, top-1 of zero-shot 0.600, "
        "2 programs failed, 7 timed while the machine was not quiet\n"
    ) in summary(project)
    saved = json.loads((Workspace().reports / overview.SUMMARY).read_text())["platforms"][P]
    assert (saved["peers"], saved["peers_pairs"]) == ({"zero-shot": 0.6}, {"zero-shot": 0.75})
    assert (saved["failed"], saved["top1_interval"]) == (2, [0.75, 0.98])


@pytest.mark.parametrize("lacking", ["platform", "figure"])
def test_an_older_evaluation_is_said_to_be_old(project, lacking):
    old = evaluation(P, *("b" for _ in range(lacking != "platform")))
    if lacking == "figure":
        old["platforms"]["b"] = {"top_5": {"value": 1.0}}
    write_json(Workspace().reports / promotion.EVALUATION, old)
    with pytest.raises(DataError, match="evaluation.json lacks '.*' for platform b; run: dvc repro evaluate"):
        summary(project)


def test_times_of_stages_that_are_no_more_do_not_count(project):
    times = {"tasks": 60, f"collect@{P}": 120, "distill@b": 30, "tune": 30, "collect@gone": 6000, "baseline@tlp": 6000}
    for stage, seconds in times.items():
        write_json(Workspace().journal / "seconds" / f"{stage}.json", {"stage": stage, "seconds": seconds})
    assert "Time: 4.0 min in stages (collect@" in summary(project)
    assert not {"collect@gone", "baseline@tlp"} & set(json.loads((Workspace().reports / overview.SUMMARY).read_text())["seconds"])


def test_another_file_in_the_place_of_the_report_of_tuning_is_said(project):
    write_json(Workspace().reports / tuned_report.TUNED, {"platforms": {}})
    with pytest.raises(DataError, match=r"tuned.json is damaged \(it is no report of tuning\); tune again: tcl tune"):
        tuned_report.last_tuned(Workspace().reports)


def test_a_folder_that_came_meanwhile_stays(project, tuner, tmp_path):
    """Tuning takes its time; what was measured is kept, so that the same command with another name goes on."""
    with pytest.raises(UsageError, match="fast is there and is no folder that tcl tune wrote; name another one"):
        with tuned_folder.tuned_folder(tmp_path / "fast", overwrite=True):
            (tmp_path / "fast").mkdir()
            (tmp_path / "fast" / "letter.txt").write_text("dear")
    assert (tmp_path / "fast" / "letter.txt").read_text() == "dear" and [path.name for path in tmp_path.glob("*fast*")] == ["fast"]


def test_a_tuning_of_another_name_is_in_nobodys_way(project, tuner, tmp_path):
    with tuned_folder.tuned_folder(tmp_path / "fast.v2", overwrite=False), tuned_folder.tuned_folder(tmp_path / "fast", overwrite=False):
        pass
    assert (tmp_path / "fast").is_dir() and (tmp_path / "fast.v2").is_dir()


def test_the_same_number_of_another_registry_is_another_champion(project, tuner, monkeypatch):
    tune(project, None, P, None)
    version, folder = registry.champion(P)
    other = saved_elsewhere("worst")
    monkeypatch.setattr(registry, "champion", lambda platform: (version, other))
    tune(project, None, P, None)
    monkeypatch.setattr(registry, "champion", lambda platform: (version, folder))
    assert [model.how for model in tuner.models] == ["best", "worst"] and len(set(tuner.folders)) == 2


def test_a_model_in_one_file_takes_the_champions_place(project, tuner, monkeypatch, tmp_path):
    """As `Trained.save` writes it, and README shows."""
    file, trained = tmp_path / "mine.safetensors", tuning.find_trained(saved_elsewhere("worst"))
    file.write_bytes(b"weights")
    monkeypatch.setattr(tuning, "find_trained", lambda model: trained)
    tune(project, None, P, None, model=file)
    assert tune(project, None, P, None, model=file).startswith("unchanged: ")
    file.write_bytes(b"others")
    assert not tune(project, None, P, None, model=file).startswith("unchanged: ") and len(tuner.calls) == 2


def test_without_a_platform_none_is_tuned_that_this_machine_lacks(project, tuner, monkeypatch):
    """As in a project that has just begun, on a machine without the last platform's vectors: nothing says yet that it is skipped."""
    platforms = project.params.platforms | {"b": Platform(mcpu="skylake-avx512")}
    project = TinyWorkspace(params=dataclasses.replace(project.params, platforms=platforms))
    monkeypatch.setattr("tcl_core.platforms.local.why_not", {"skylake-avx512": "this CPU lacks avx512f"}.get)
    assert tune(project, None, None, None).startswith(f"resnet-18 on {P}: ")

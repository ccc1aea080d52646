"""The whole pipeline on a tiny real measurement: flow, DVC and registry together, in a copy of the project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pipeline
import pytest
from _tiny_project import CHAMPION
from ruamel.yaml import YAML

from tcl_core.platforms import why_not

ROOT = Path(__file__).resolve().parents[1]
COPIED = (
    "tcl_core",
    "flows",
    "profiles",
    "networks",
    "data/prepared",
    "data/registers",
    "data/searched",
    "data/variants",
    "data/tuned",
    ".dvc/config",
    ".dvcignore",
    "dvc.yaml",
    "params.yaml",
    "pyproject.toml",
    ".gitignore",
)
MCPUS = {"host-sse42": "nehalem", "host-avx2": "haswell", "host-avx512": "skylake-avx512"}
SMALL = {
    "candidates": {"max_train_tasks": 3, "max_held_out_tasks": 2, "programs_per_task": 8, "held_out_programs_per_task": 4},
    "measure": {"repeats": 1, "min_repeat_ms": 1},
    "collect": {"rounds": 1, "first_fraction": 0.6, "fraction": 0.5, "epochs": 1},
    "train": {"epochs": 2, "unlabelled": 6, "shipped": False, "validation_share": 0.0},
    "bridge": {"epochs": 2},
    "distill": {"epochs": 2, "kd_epochs": 1},
    "baselines": {"models": ["trees"]},
    "evaluate": {"bootstrap": 50},
    "promote": {"confidence": 0.5, "first_confidence": 0.0, "min_tasks": 1},  # two epochs on a dozen programs may rank worse than chance
    "tune": {"network": "networks/held_out.pt2", "trials": 8},
}


@pytest.fixture(scope="module")
def platforms() -> list[str]:
    """Two platforms of this CPU, or what there is."""
    runnable = [name for name, mcpu in MCPUS.items() if why_not(mcpu) is None]
    assert runnable, "this machine can run none of the default platforms"
    return runnable[:2]


@pytest.fixture(scope="module")
def project(tmp_path_factory, platforms) -> Path:
    """A copy of the project with two tiny networks and small sizes, after one run of the flow."""
    folder = tmp_path_factory.mktemp("project")
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, target, **({"ignore": shutil.ignore_patterns("__pycache__")} if source.is_dir() else {}))
    save_network(folder / "networks/train.pt2", channels=8, size=12)
    save_network(folder / "networks/held_out.pt2", channels=12, size=10)
    write_params(folder, platforms)
    run(folder, "git", "init", "-q")
    said = run(folder, sys.executable, "-m", "flows.pipeline", timeout=1200)
    assert "Task run 'summary'" in said and "hook" not in said.lower()  # which Prefect says twice a task
    return folder


def save_network(path: Path, channels: int, size: int) -> None:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, channels, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(channels * (size - 2) ** 2, 16)
    )
    path.parent.mkdir(exist_ok=True)
    torch.export.save(torch.export.export(model.eval(), (torch.randn(1, 3, size, size),)), path)


def write_params(folder: Path, platforms: list[str]) -> None:
    yaml = YAML()
    params = yaml.load((folder / "params.yaml").read_text())
    params["networks"] = {"train": ["networks/train.pt2"], "held_out": ["networks/held_out.pt2"]}
    params["platforms"] = {name: {"mcpu": MCPUS[name]} for name in platforms}
    params["chain"] = {"first": platforms[0], "then": {p: {"prev": platforms[0]} for p in platforms[1:]}}
    for section, values in SMALL.items():
        params[section].update(values)
    with open(folder / "params.yaml", "w") as file:
        yaml.dump(params, file)


def run(folder: Path, *command: str, timeout: int = 120) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
    with tempfile.TemporaryDirectory(prefix="tcl-") as own:  # where the lock of measuring is: other tests measure too
        environment |= {"PATH": path, "TMPDIR": own}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{command} exited with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def measured(folder: Path) -> dict[str, int]:
    """Journal -> lines, the header among them."""
    return {str(f.relative_to(folder)): len(f.read_text().splitlines()) for f in folder.rglob("records.jsonl")}


def test_the_summary_holds_real_figures(project, platforms):
    summary = json.loads((project / "data/reports/summary.json").read_text())
    assert list(summary["platforms"]) == platforms
    for figures in summary["platforms"].values():
        assert 0 < figures["top1"] <= figures["top5"] <= 1 and 0 < figures["random_top1"] <= 1
        assert figures["programs_measured"] >= 4
    assert {"tasks", "candidates", "train", "baseline@trees", "evaluate"} <= set(summary["seconds"])
    assert min(summary["tuned_ms"], summary["untuned_ms"], summary["pytorch_ms"]) > 0


def test_the_benchmark_shows_this_run(project, platforms):
    summary = json.loads((project / "data/reports/summary.json").read_text())
    text, known = pipeline.table(summary), summary["platforms"][platforms[-1]]
    assert f"| {platforms[-1]} | {known['programs_measured']} | {known['pairwise_accuracy']:.3f} |" in text
    assert set(known["peers_pairs"]) == set(known["peers"]) and "| pairs ranked right of zero-shot |" in text
    assert f"| {summary['tuned']['tuned_ms']:.2f} ms |" in text and "Time in stages: " in text
    assert set(pipeline.collected(summary)) == set(platforms)


def test_the_page_of_the_run_is_there_and_beside_each_version(project, platforms):
    page = (project / "data/reports/report.html").read_text()
    evaluation = json.loads((project / "data/reports/evaluation.json").read_text())
    for platform in platforms:
        assert f"{evaluation['platforms'][platform]['top_1']['value']:.3f}" in page and f">{platform}<" in page
    assert ">trees<" in page and "is that of another model" not in page
    assert [kept.read_text() for kept in (project / "mlruns").rglob("report.html")] == [page] * len(platforms)


def test_a_listed_model_is_judged_beside_the_chain(project, platforms):
    evaluation = json.loads((project / "data/reports/evaluation.json").read_text())
    assert list(evaluation["baselines"]["trees"]) == platforms


def test_a_few_probes_tell_which_platform_is_near(project, platforms):
    """They are of the collections' own journals: what was measured there is not measured again."""
    if len(platforms) < 2:
        pytest.skip("one platform alone")
    before = measured(project)
    said = run(project, sys.executable, "-m", "tcl_core.cli", "platforms", "--similar", platforms[1], "--probes", "8")
    assert f"{platforms[0]} " in said and (f"{platforms[1]} should learn from {platforms[0]}" in said or "none is near" in said)
    more = {path: count - before[path] for path, count in measured(project).items() if count != before[path]}
    assert all(platforms[1] in path and count <= 8 for path, count in more.items())


def test_models_lie_in_the_registry_without_pickle(project, platforms):
    summary = json.loads((project / "data/reports/summary.json").read_text())
    assert {p["champion_version"] for p in summary["platforms"].values()} <= {1, None}
    kept = [path.suffix for path in (project / "mlruns").rglob("*") if path.is_file()]
    assert kept.count(".safetensors") >= len(platforms)
    assert not {".pkl", ".pickle", ".pt", ".pth"} & set(kept)


def test_a_second_repro_does_nothing(project):
    before = measured(project)
    said = run(project, sys.executable, "-m", "dvc", "repro")
    assert "up to date" in said and "Running stage" not in said
    assert "up to date" in run(project, sys.executable, "-m", "dvc", "status")
    assert measured(project) == before


def test_one_number_reruns_what_depends_on_it_and_no_more(project):
    before = measured(project)
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("bootstrap: 50", "bootstrap: 60"))
    said = run(project, sys.executable, "-m", "dvc", "repro")
    assert [line for line in said.splitlines() if "Running stage" in line] == ["Running stage 'evaluate':"]
    assert measured(project) == before


def test_the_chain_is_visible_in_the_graph(project, platforms):
    if len(platforms) < 2:
        pytest.skip("one platform alone")
    graph = run(project, sys.executable, "-m", "dvc", "dag", "--dot")
    assert f'"train" -> "distill@{platforms[1]}"' in graph


@pytest.mark.parametrize("stage", ["candidates", "train", "baseline@trees", "evaluate"])
def test_a_stage_made_again_gives_the_same_bytes(project, stage):
    """What the flow wrote and what DVC alone writes for the same data do not differ in a byte."""
    lock = YAML(typ="safe").load((project / "dvc.lock").read_text())["stages"][stage]
    run(project, sys.executable, "-m", "dvc", "repro", "--force", "--no-run-cache", "--single-item", stage)
    again = YAML(typ="safe").load((project / "dvc.lock").read_text())["stages"][stage]
    assert again["outs"] == lock["outs"]


def test_the_champion_tunes(project, platforms):
    """Two epochs on a dozen programs may have ranked worse than chance; here there is a champion all the same."""
    run(project, sys.executable, "-c", CHAMPION, platforms[-1])
    said = run(project, sys.executable, "-m", "tcl_core.cli", "tune", "--force")
    tuned = json.loads((project / "data/reports/tuned.json").read_text())
    assert tuned["champion_version"] == 1 and "8 programs measured" in said
    assert all(task["checked"] for task in tuned["task_times"] if task["latency_ms"] is not None)

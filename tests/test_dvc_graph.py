"""dvc.yaml, params.yaml and the flow say the same: one graph, and every stage reproduces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tcl_core.chain import named
from tcl_core.params import METHODS, Params, load_params
from tcl_core.stages.diagram import OUTPUTS, diagram
from tcl_core.stages.workspace import Workspace
from tests.shipped import SHIPPED

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A checkout whose params.yaml lists two models beside the chain: as shipped it lists none."""
    return checkout(tmp_path_factory.mktemp("checkout"), "[xgboost, mtl-tlp]")


def checkout(folder: Path, models: str) -> Path:
    (folder / ".dvc").mkdir()
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = true\n")
    (folder / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    text = SHIPPED.read_text()
    assert text.count("  models: [] ") == 1
    (folder / "params.yaml").write_text(text.replace("  models: [] ", f"  models: {models} "))
    return folder


@pytest.fixture(scope="module")
def params(folder) -> Params:
    return load_params(folder / "params.yaml")


@pytest.fixture(scope="module")
def stages(folder) -> dict:
    return stages_of(folder)


def stages_of(folder: Path) -> dict:
    """Name -> DVC's stage, with foreach unrolled."""
    from dvc.repo import Repo

    return {stage.name: stage for stage in Repo(str(folder)).index.stages}


def relative(stage, part) -> str:
    """The path of a stage's input or output in its checkout."""
    return Path(part.fspath).relative_to(stage.repo.root_dir).as_posix()


def flow_graph(params: Params) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}

    def record(name: str, *inputs: str) -> str:
        assert name not in graph and set(inputs) <= set(graph), f"{name} runs twice or too early"
        graph[name] = set(inputs)
        return name

    diagram(params, record)
    return graph


def test_the_flow_and_dvc_have_the_same_graph(params, stages):
    graph = next(iter(stages.values())).repo.index.graph
    dvc = {stage.name: {needed.name for needed in graph.successors(stage)} for stage in graph}
    assert flow_graph(params) == dvc


def test_each_platform_has_its_stages(params, stages, tmp_path):
    expected = {"tasks", "candidates", "train", "evaluate"}
    expected |= {f"{kind}@{platform}" for kind in ("collect", "holdout") for platform in params.platforms}
    expected |= {f"distill@{platform}" for platform in params.chain.then}
    baselines = {"baseline@xgboost", "baseline@mtl-tlp"}
    assert expected | baselines <= set(stages)
    assert set(stages_of(checkout(tmp_path, "[]"))) == set(stages) - baselines


def test_the_summary_knows_the_flows_stages_and_tuning(params):
    from tcl_core.stages.overview import stages_of

    assert set(stages_of(params)) == {*flow_graph(params), "tune"}


def test_each_prev_is_an_earlier_platform_of_the_chain(params):
    order = list(params.chain_order)
    for platform, link in params.chain.then.items():
        assert order.index(link.prev) < order.index(platform)


def test_every_stage_is_one_command_of_tcl(stages):
    from tcl_core.cli import app

    commands = {command.callback.__name__ for command in app.registered_commands}
    for address, stage in stages.items():
        kind, _, of = address.partition("@")
        command, option = ("train", "--model") if kind == "baseline" else (kind, "--platform")
        assert command in commands
        assert stage.cmd == f"python -m tcl_core.cli {command}" + (f" {option} {of}" if of else "")


def test_inputs_in_the_checkout_exist_and_outputs_stay_below_data(stages):
    for stage in stages.values():
        assert all(relative(stage, out).startswith("data/") for out in stage.outs)
        code = [path for path in inputs(stage) if path.startswith("tcl_core")]
        assert [path for path in code if not (ROOT / path).exists()] == []


def test_a_stage_that_fails_keeps_its_former_outputs(stages):
    """DVC removes those of others before they run."""
    assert {out.fspath for stage in stages.values() for out in stage.outs if not out.persist} == set()


FAILING = """
stages:
  measure:
    cmd: python stage.py
    deps: [input.txt]
    outs: [data/records: {persist: true}]
    metrics: [data/report.json: {persist: true}]
    plots: [data/plots: {persist: true}]
"""
FAILING_STAGE = """
import os, signal
from pathlib import Path
word = Path("input.txt").read_text()
for name in ("data/records/a.txt", "data/plots/a.txt", "data/report.json"):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    if word == "fail":
        raise SystemExit(3)
    if word == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    Path(name).write_text(word)
"""


def test_dvc_keeps_what_a_failing_stage_had(tmp_path):
    """And takes it for out of date until the stage has ended well."""
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    (tmp_path / "dvc.yaml").write_text(FAILING)
    (tmp_path / "stage.py").write_text(FAILING_STAGE)
    held = {}
    for word in ("1", "fail", "killed", "2"):
        (tmp_path / "input.txt").write_text(word)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        repro = [sys.executable, "-m", "dvc", "repro", "--quiet"]
        code = subprocess.run(repro, cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, timeout=120).returncode
        files = (tmp_path / "data" / name for name in ("records/a.txt", "plots/a.txt", "report.json"))
        held[word] = (code == 0, {file.read_text() for file in files})
    assert held == {"1": (True, {"1"}), "fail": (False, {"1"}), "killed": (False, {"1"}), "2": (True, {"2"})}


def test_the_flow_looks_for_skipped_platforms_where_stages_write(stages):
    """Each that is of a platform or a model."""
    for address, stage in stages.items():
        kind, _, of = address.partition("@")
        if of:
            assert str(OUTPUTS[kind](Workspace(), of)) in {relative(stage, out) for out in stage.outs}


def inputs(stage) -> set[str]:
    """What a stage reads in this folder, relative to it, without parameters."""
    return {relative(stage, dep) for dep in stage.deps if not getattr(dep, "params", ())}


def parameters(stage) -> set[str]:
    return {name for dep in stage.deps for name in getattr(dep, "params", ())}


def test_an_edit_never_measures_again(stages):
    """Nor do tasks' names and weights, held-out programs of training platforms, or how the last model trains."""
    for address, stage in stages.items():
        kind, _, platform = address.partition("@")
        if kind == "collect":
            assert inputs(stage) == {"data/programs/pool/train"}
        if kind == "holdout":
            assert inputs(stage) == {"data/programs/pool/held_out"}
            assert parameters(stage) == {"measure", f"platforms.{platform}"}


def test_another_number_of_held_out_programs_trains_nothing_again(stages):
    kinds = {"collect", "train", "distill", "baseline"}
    readers = {address for address, stage in stages.items() if "data/programs/pool/held_out" in inputs(stage)}
    assert not {address for address in readers if address.partition("@")[0] in kinds}
    assert {"data/programs/pool/train", "data/programs/pool/held_out"} <= inputs(stages["evaluate"])


def test_tasks_are_cut_again_for_other_networks_only(stages):
    assert inputs(stages["tasks"]) == {
        "networks", "tcl_core/network_names.py", "tcl_core/stages/candidates.py",
        *(f"tcl_core/programs/{name}.py" for name in ("booleans", "graph", "network_files", "networks", "rewriting", "rounding", "simplify", "tasks", "vector_math", "winograd")),
    }  # fmt: skip
    assert (ROOT / "networks/README.md").is_file()


def test_what_draws_programs_is_an_input_of_the_pool_and_of_those_who_draw_further_ones(stages):
    for address, stage in stages.items():
        if address.partition("@")[0] in ("candidates", "train", "distill"):
            assert {f"tcl_core/programs/{name}.py" for name in ("pool", "registers", "sketches", "unrolling")} <= inputs(stage), address


def test_what_makes_tokens_and_models_is_an_input_of_all_that_use_them(stages):
    tokens = {f"tcl_core/programs/{name}.py" for name in ("primitives", "sketches", "tasks", "workload")}
    shared = {"tcl_core/features", "tcl_core/models", "tcl_core/stages/workspace.py", *tokens}
    own = {
        "train": {
            "data/prepared",
            "data/registers",
            "data/searched",
            "data/variants",
            "data/tuned",
            "tcl_core/reference.py",
            "tcl_core/chain/state.py",
            "tcl_core/learning",
            "tcl_core/stages/exchange.py",
            "tcl_core/stages/training.py",
            "tcl_core/teaching.py",
        },
        "distill": {"tcl_core/chain", "tcl_core/learning", "tcl_core/stages/training.py", "tcl_core/teaching.py"},
        "baseline": {"tcl_core/learning", "tcl_core/stages/baselines.py"},
        "evaluate": {"tcl_core/evaluation", "tcl_core/stages/baselines.py", "tcl_core/stages/judging.py"},
    }
    for address, stage in stages.items():
        if code := own.get(address.partition("@")[0]):
            assert shared | code <= inputs(stage), address


def test_a_step_of_the_chain_knows_its_links(stages):
    """Whether a platform is the last decides its KD phase, and only the links say which one is."""
    for address, stage in stages.items():
        if address.startswith("distill@"):
            assert parameters(stage) == {"seed", "candidates.design_space", "train", "bridge", "distill", "chain.then"}


def test_a_step_depends_on_what_its_method_reads_of_params(stages):
    for address, stage in stages.items():
        if address.startswith("distill@"):
            assert {section for method in METHODS for section in named(method).sections} <= parameters(stage)


def test_every_section_of_params_that_shapes_bytes_is_declared(stages):
    declared = {name.split(".")[0] for stage in stages.values() for name in parameters(stage)}
    sections = set(YAML(typ="safe").load(SHIPPED))
    # These leave history, or say where work is done: not bytes.
    assert declared == sections - {"promote", "tune", "run", "drift", "schedules"}

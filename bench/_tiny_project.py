"""A complete project of two tiny networks, made once and copied for every trial, which may spoil its copy.

MLflow and DVC write absolute paths into their files.  So all copies lie in folders with names of equal length, and a
copy is moved by replacing the name in these files, the database included.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from _lanes import Lane, Outcome
from _tables import ROOT

from tcl_core.platforms import why_not
from tcl_core.settings import read_yaml, yaml_format

COPIED = (
    "tcl_core",
    "flows",
    "profiles",
    ".dvc/config",
    ".dvcignore",
    "dvc.yaml",
    "params.yaml",
    "pyproject.toml",
    ".gitignore",
    "data/prepared",
    "data/registers",
    "data/searched",
    "data/variants",
    "data/tuned",
)
MCPUS = {"host-sse42": "nehalem", "host-avx2": "haswell"}
FIRST, LAST = MCPUS  # the chain
SMALL = {
    "candidates": {"max_train_tasks": 2, "max_held_out_tasks": 2, "programs_per_task": 8, "held_out_programs_per_task": 4},
    "measure": {"repeats": 1, "max_repeats": 1, "min_repeat_ms": 1},
    "collect": {"rounds": 1, "first_fraction": 0.6, "fraction": 0.5, "epochs": 1, "ensemble": 1, "sampler": "random"},
    "train": {"epochs": 3, "unlabelled": 0, "shipped": False, "validation_share": 0.0},
    "distill": {"epochs": 2, "kd_epochs": 1},
    "baselines": {"models": ["xgboost"]},
    "evaluate": {"bootstrap": 20},
    "promote": {"confidence": 0.5, "min_tasks": 1},
    "tune": {"network": "networks/held_out.pt2", "trials": 2},
}
LANE = "lane-{:04d}"
DVC = str(Path(sys.executable).parent / "dvc")
LOG = "logs-of-others/searched"  # a MetaSchedule database, to be imported
IMPORTED = "elsewhere"


def make(lane: Lane) -> None:
    """Fill the lane's project: every stage's output, a champion per platform, an imported log, a tuned network, and dvc.lock."""
    project = lane.project
    for name in COPIED:
        source, target = ROOT / name, project / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    _save_network(project / "networks/train.pt2", channels=4, size=8)
    _save_network(project / "networks/held_out.pt2", channels=6, size=7)
    _write_params(project / "params.yaml")
    for command in STAGES:
        done(lane, *command.split())
    done(lane, sys.executable, "-c", CHAMPION, *MCPUS)
    for command in ("tune", f"export -p {FIRST} --to {LOG}", f"import {LOG} -p {IMPORTED}"):
        done(lane, *command.split())
    done(lane, shutil.which("git") or "/usr/bin/git", "init", "-q")
    done(lane, DVC, "commit", "-f")


STAGES = (
    "tasks", "candidates", "collect", "holdout", "train", "distill", "train --model xgboost", "evaluate", "register", "promote",
)  # fmt: skip


def done(lane: Lane, *argv: str, limit_s: float = 300.0) -> Outcome:
    """Run a command.  Raises RuntimeError unless it exits with 0."""
    outcome = lane.run(*argv, limit_s=limit_s)
    if outcome.code != 0:
        raise RuntimeError(f"{' '.join(argv)} in {lane.project} ended with {outcome.code}: {outcome.said[-2000:]}")
    return outcome


# Three epochs on a dozen programs may rank worse than chance; there must be a champion all the same.
CHAMPION = """
import sys
from tcl_core.registry import champion_version, promote
for platform in sys.argv[1:]:
    champion_version(platform) or promote(platform, 1, True, "made for trials", None)
"""


def _save_network(path: Path, channels: int, size: int) -> None:
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, channels, 3), torch.nn.ReLU(), torch.nn.Flatten()
    model = torch.nn.Sequential(*layers, torch.nn.Linear(channels * (size - 2) ** 2, 8))
    path.parent.mkdir(exist_ok=True)
    torch.export.save(torch.export.export(model.eval(), (torch.randn(1, 3, size, size),)), path)


def _write_params(path: Path) -> None:
    document = read_yaml(path, round_trip=True)
    missing = [reason for mcpu in MCPUS.values() if (reason := why_not(mcpu))]
    if missing:
        raise SystemExit(f"the trials need a CPU that runs {', '.join(MCPUS)}: {missing[0]}")
    document["networks"] = {"train": ["networks/train.pt2"], "held_out": ["networks/held_out.pt2"]}
    document["platforms"] = {name: {"mcpu": mcpu} for name, mcpu in MCPUS.items()}
    document["chain"] = {"first": FIRST, "then": {LAST: {"prev": FIRST}}}
    for section, values in SMALL.items():
        document[section].update(values)
    with open(path, "w", encoding="utf-8") as file:
        yaml_format(round_trip=True).dump(document, file)


def environment(lane: Path) -> dict[str, str]:
    """Environment of a lane's processes: temporary files and homes lie in the lane, caches that lanes share beside it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_", "TCL_", "DVC_"))}
    places = {"TMPDIR": "tmp", "XDG_CACHE_HOME": "../cache", "HOME": "home", "PREFECT_HOME": "home/.prefect"}
    places["DVC_SITE_CACHE_DIR"] = places["DVC_GLOBAL_CONFIG_DIR"] = "home/dvc"
    for place in places.values():
        (lane / place).mkdir(parents=True, exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    few = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(lane.parent / "pycache")}
    return {**kept, **{name: str(lane / place) for name, place in places.items()}, **few, "PATH": path}


def restore(snapshot: Path, lane: Path) -> None:
    """Make the lane's project a copy of the snapshot's, which may be of another lane; tmp is emptied."""
    copy(snapshot, lane)
    shutil.rmtree(lane / "tmp", ignore_errors=True)
    (lane / "tmp").mkdir(parents=True)


def copy(there: Path, here: Path) -> None:
    """Copy the project of one lane or snapshot to another, replacing what is there."""
    shutil.rmtree(here / "project", ignore_errors=True)
    here.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", "--reflink=auto", str(there / "project"), str(here / "project")], check=True)
    move(here / "project", there.name, here.name)


def move(project: Path, there: str, here: str) -> None:
    """Replace the lane name ``there`` by ``here`` wherever MLflow and DVC wrote it."""
    holders = [*project.glob("mlflow.db*"), *project.glob("mlruns/**/MLmodel"), *project.glob("mlruns/**/meta.yaml")]
    holders += project.glob(".dvc/tmp/rwlock*")
    for path in holders:
        before = path.read_bytes()
        after = before.replace(there.encode(), here.encode())
        if after != before:
            path.write_bytes(after)

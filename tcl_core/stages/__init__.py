"""The entry points that `tcl`, dvc.yaml and the flows share: each reads params.yaml and data/, does one stage's work,
and returns what there is to say about it.

``platform=None`` means all of the chain.  All raise TclError with one sentence for the user.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tcl_core.checked import plain_json
from tcl_core.errors import UsageError
from tcl_core.params import apply_profile, load_params


def init(folder: Path) -> str:
    from tcl_core.stages.starting import run_init

    return run_init(folder)


def platforms(as_json: bool = False) -> str:
    from tcl_core.stages.listing import list_platforms, platforms_text

    return _told(list_platforms(load_params()), platforms_text, as_json)


def similar(platform: str, probes: int) -> str:
    from tcl_core.stages.probing import run_similar

    _refuse_empty(platform=platform)
    return run_similar(_project(), platform, probes)


def tasks(network: str | None = None) -> str:
    from tcl_core.stages.data import show_tasks, write_tasks

    _refuse_empty(network=network)
    return write_tasks(_project()) if network is None else show_tasks(network, load_params().graph)


def candidates() -> str:
    from tcl_core.stages.data import write_candidates

    return write_candidates(_project())


def collect(platform: str | None = None, again: bool = False) -> str:
    from tcl_core.stages.data import end_again, run_collect

    said = _each(platform, lambda project, name: run_collect(project, name, again))
    end_again("collect", _names(platform))
    return said


def holdout(platform: str | None = None, again: bool = False) -> str:
    from tcl_core.stages.data import end_again, run_holdout

    said = _each(platform, lambda project, name: run_holdout(project, name, again))
    end_again("holdout", _names(platform))
    return said


def train(model: str | None = None, platform: str | None = None) -> str:
    """The chain's first model; ``model``: another one of the catalogue, on one platform or on each."""
    from tcl_core.learning.distributed import with_helpers
    from tcl_core.models.catalogue import CHAIN_MODEL
    from tcl_core.stages.baselines import run_baseline
    from tcl_core.stages.data import check_platform
    from tcl_core.stages.models import run_train

    _refuse_empty(model=model, platform=platform)
    project = _project()
    if platform is not None:
        check_platform(project, platform)
    if model in (None, CHAIN_MODEL):
        if platform not in (None, project.params.chain.first):
            raise UsageError(f"the chain's model is trained on {project.params.chain.first}; "
                             f"it learns {platform} by: tcl distill --platform {platform}")
        return with_helpers(lambda: run_train(project)) or ""
    return with_helpers(lambda: run_baseline(project, model, platform)) or ""


def distill(platform: str | None = None, add: str | None = None) -> str:
    """``add`` is a platform that goes on from the champion of the one before it, in the place of that one's model here."""
    from tcl_core.learning.distributed import with_helpers
    from tcl_core.stages.models import run_distill

    if platform is not None and add is not None:
        raise UsageError("give either --platform, which goes on from the model here, or --add, which does from a champion")
    if load_params().chain.first in (platform, add):
        raise UsageError(f"{platform or add} is the chain's first platform and has nothing to learn from; run: tcl train")
    if add is not None:
        return with_helpers(lambda: _each(add, lambda project, name: run_distill(project, name, from_registry=True), first=False)) or ""
    return with_helpers(lambda: _each(platform, run_distill, first=False)) or ""


def evaluate() -> str:
    from tcl_core.stages.models import run_evaluate

    return run_evaluate(_project())


def register(platform: str | None = None) -> str:
    from tcl_core.stages.promotion import chosen_platforms, register_model

    _refuse_empty(platform=platform)
    project = _project()
    return "\n".join([*(register_model(project, name) for name in chosen_platforms(project, platform)), _registry()])


def promote(platform: str | None = None, as_json: bool = False) -> str:
    from dataclasses import asdict

    from tcl_core import registry
    from tcl_core.stages.promotion import chosen_platforms, promote_model

    _refuse_empty(platform=platform)
    project = _project()
    done = [promote_model(project, name) for name in chosen_platforms(project, platform)]
    found = {"registry": registry.where(), "promotions": [asdict(each) for each in done]}
    return _told(found, lambda _: "\n".join([*map(str, done), _registry()]), as_json)


def rollback(platform: str, reason: str, to: int | None = None, as_json: bool = False) -> str:
    from tcl_core.stages.promotion import roll_back, roll_back_text

    _refuse_empty(platform=platform, reason=reason)
    return _told(roll_back(platform, reason, to), roll_back_text, as_json)


def show_models(platform: str | None = None, as_json: bool = False) -> str:
    from tcl_core.stages.lineage import list_models, models_text

    _refuse_empty(platform=platform)
    return _told(list_models(platform), models_text, as_json)


def show_lineage(asked: str, as_json: bool = False) -> str:
    from tcl_core.stages.lineage import lineage, lineage_text

    return _told(lineage(asked, Path.cwd()), lineage_text, as_json)


def tune(
    network: str | None = None,
    platform: str | None = None,
    trials: int | None = None,
    again: bool = False,
    minutes: float | None = None,
    out: Path | None = None,
    force: bool = False,
    warm_start: Sequence[Path] = (),
    model: Path | None = None,
) -> str:
    from tcl_core.stages.use import run_tune

    _refuse_empty(network=network, platform=platform)
    return run_tune(_project(), network, platform, trials, again, minutes, out, force, warm_start, model)


def run(folder: Path, rounds: int = 7) -> str:
    from tcl_core.stages.tuned_folder import run_tuned

    return run_tuned(folder, rounds)


def drift(platform: str | None = None, as_json: bool = False) -> tuple[str, bool]:
    """What there is to say about the checks, and whether any found drift."""
    from tcl_core.checked import plain_json
    from tcl_core.evaluation.drift import DRIFTED
    from tcl_core.stages.drifting import drift_text, run_drift

    _refuse_empty(platform=platform)
    checks = run_drift(_project(), platform)
    said = json.dumps(plain_json({"checks": checks}), indent=2) if as_json else "\n".join(map(drift_text, checks))
    return said, any(check["verdict"] == DRIFTED for check in checks)


def import_logs(logs: Sequence[Path], platform: str, target: str = "") -> str:
    from tcl_core.stages.exchange import import_logs

    return import_logs(logs, platform, target)


def export(platform: str, to: Path | None = None, force: bool = False) -> str:
    from tcl_core.stages.exchange import export_database

    _refuse_empty(platform=platform)
    return export_database(_project(), platform, to, force)


def predict_log(
    log: Path,
    platform: str | None = None,
    model: Path | None = None,
    to: Path | None = None,
    top: int | None = None,
    target: str = "",
    force: bool = False,
) -> str:
    from tcl_core.stages.predict import predict_log

    _refuse_empty(platform=platform)
    return predict_log(log, platform, model, to, top, target, force)


def serve_device(key: str | None, tracker: str, host: str, port: int | None, say: Callable) -> None:
    from tcl_core.stages.device import serve

    serve(key, tracker, host, port, say)


def devices(tracker: str, as_json: bool = False) -> str:
    from tcl_core.stages.device import devices_at, show_devices

    return _told(devices_at(tracker), str, True) if as_json else show_devices(tracker)


def profile(name: str) -> str:
    _refuse_empty(profile=name)
    changed = apply_profile(name)
    return "\n".join(f"{key}: {old} -> {new}" for key, (old, new) in changed.items()) or f"params.yaml is {name} already"


def report(runs: Sequence[Path] = (), to: Path | None = None, force: bool = False) -> str:
    """The page of the last run, or one of two ``runs`` side by side."""
    from tcl_core.stages.reporting import write_comparison, write_report

    return write_comparison(runs, to, force) if runs else write_report(_project(), to, force)


def summary() -> str:
    from tcl_core.stages.overview import write_summary

    return write_summary(_project())


def _told(found: Mapping[str, Any], text: Callable[[Mapping[str, Any]], str], as_json: bool) -> str:
    """What a command found: as JSON for programs, or in words."""
    return json.dumps(plain_json(found), indent=2, allow_nan=False) if as_json else text(found)


def _registry() -> str:
    """Which registry was written: a copy of a project has its own, and MLFLOW_TRACKING_URI may name any."""
    from tcl_core import registry

    return f"registry: {registry.where()}"


def _project():
    from tcl_core.stages.project import Project

    return Project.here()


def _refuse_empty(**given: str | None) -> None:
    """An empty name is a shell variable that is not set: it must not mean all of them."""
    for what, name in given.items():
        if name is not None and not name.strip():
            raise UsageError(f"the {what} is an empty name (is a variable of your shell not set?); name a {what}, or leave it out")


def _each(platform: str | None, stage: Callable, first: bool = True) -> str:
    """Run a per-platform stage for one platform, or for all of the chain in order."""
    from tcl_core.stages.data import check_platform

    _refuse_empty(platform=platform)
    project = _project()
    if platform is not None:
        check_platform(project, platform)
        return stage(project, platform)
    return "\n".join(f"{name}: {stage(project, name)}" for name in project.params.chain_order[0 if first else 1 :])


def _names(platform: str | None) -> Sequence[str]:
    return load_params().chain_order if platform is None else [platform]

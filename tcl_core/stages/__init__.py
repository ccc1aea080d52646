"""The entry points that `tcl`, dvc.yaml and the flows share: each reads params.yaml and data/, does one stage's work,
and returns what there is to say about it.

``platform=None`` means all of the chain.  All raise TclError with one sentence for the user.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tcl_core.params import apply_profile, load_params


def platforms() -> str:
    from tcl_core.stages.listing import list_platforms

    return list_platforms(load_params())


def tasks(network: str | None = None) -> str:
    from tcl_core.stages.data import show_tasks, write_tasks

    return show_tasks(network) if network else write_tasks(_project())


def candidates() -> str:
    from tcl_core.stages.data import write_candidates

    return write_candidates(_project())


def collect(platform: str | None = None, again: bool = False) -> str:
    from tcl_core.stages.data import run_collect

    return _each(platform, lambda project, name: run_collect(project, name, again))


def holdout(platform: str | None = None, again: bool = False) -> str:
    from tcl_core.stages.data import run_holdout

    return _each(platform, lambda project, name: run_holdout(project, name, again))


def train(model: str | None = None, platform: str | None = None) -> str:
    """The chain's first model; ``model``: another one of the catalogue, on one platform or on each."""
    from tcl_core.errors import UsageError
    from tcl_core.stages.baselines import run_baseline
    from tcl_core.stages.data import check_platform
    from tcl_core.stages.models import run_train

    project = _project()
    if platform:
        check_platform(project, platform)
    if model in (None, project.params.train.model):
        if platform not in (None, project.params.chain.first):
            raise UsageError(f"the chain's model is trained on {project.params.chain.first}; "
                             f"it learns {platform} by: tcl distill --platform {platform}")
        return run_train(project)
    return run_baseline(project, model, platform)


def distill(platform: str | None = None) -> str:
    from tcl_core.errors import UsageError
    from tcl_core.stages.models import run_distill

    if platform == load_params().chain.first:
        raise UsageError(f"{platform} is the chain's first platform and has nothing to learn from; run: tcl train")
    return _each(platform, run_distill, first=False)


def evaluate() -> str:
    from tcl_core.stages.models import run_evaluate

    return run_evaluate(_project())


def register(platform: str | None = None) -> str:
    from tcl_core.stages.use import chosen_platforms, register_model

    project = _project()
    return "\n".join(register_model(project, name) for name in chosen_platforms(project, platform))


def promote(platform: str | None = None) -> str:
    from tcl_core.stages.use import chosen_platforms, promote_model

    project = _project()
    return "\n".join(promote_model(project, name) for name in chosen_platforms(project, platform))


def tune(
    network: str | None = None, platform: str | None = None, trials: int | None = None, again: bool = False
) -> str:
    from tcl_core.stages.use import run_tune

    return run_tune(_project(), network, platform, trials, again)


def import_logs(logs: Sequence[Path], platform: str, target: str = "") -> str:
    from tcl_core.stages.exchange import import_logs

    return import_logs(logs, platform, target)


def export(platform: str, to: Path | None = None, force: bool = False) -> str:
    from tcl_core.stages.exchange import export_database

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

    return predict_log(log, platform, model, to, top, target, force)


def serve_device(key: str | None, tracker: str, host: str, port: int | None, say: Callable) -> None:
    from tcl_core.stages.device import serve

    serve(key, tracker, host, port, say)


def devices(tracker: str) -> str:
    from tcl_core.stages.device import show_devices

    return show_devices(tracker)


def profile(name: str) -> str:
    changed = apply_profile(name)
    return "\n".join(f"{key}: {old} -> {new}" for key, (old, new) in changed.items()) or f"params.yaml is {name} already"


def summary() -> str:
    from tcl_core.stages.overview import write_summary

    return write_summary(_project())


def _project():
    from tcl_core.stages.project import Project

    return Project.here()


def _each(platform: str | None, stage: Callable, first: bool = True) -> str:
    """Run a per-platform stage for one platform, or for all of the chain in order."""
    from tcl_core.stages.data import check_platform

    project = _project()
    if platform:
        check_platform(project, platform)
        return stage(project, platform)
    names = project.params.chain_order[0 if first else 1 :]
    return "\n".join(f"{name}: {stage(project, name)}" for name in names)

"""What is done with models: list, register, promote, tune, sum up.  Leaves history, not reproducible bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core import registry, store
from tcl_core.errors import DataError, UsageError
from tcl_core.evaluation.intervals import paired_bootstrap
from tcl_core.evaluation.report import write_json
from tcl_core.models import catalogue
from tcl_core.params import Params
from tcl_core.platforms import why_not
from tcl_core.stages.data import check_platform, setup_of
from tcl_core.stages.project import (
    REPORTS,
    Project,
    model_folder,
    read_saved_hardware,
    records_folder,
    stage_seconds,
    timed,
)

TUNED = REPORTS / "tuned.json"
SUMMARY = REPORTS / "summary.json"


def chosen_platforms(project: Project, platform: str | None) -> list[str]:
    """One platform that was asked for, or all of the chain that this machine could measure."""
    if platform is None:
        return project.platforms_that_ran()
    check_platform(project, platform)
    if reason := store.skipped_reason(records_folder(platform)):
        raise DataError(f"platform {platform} was skipped here ({reason}); choose another one")
    return [platform]


def register_model(project: Project, platform: str) -> str:
    """Put a platform's model into the registry, with what it was made of and how good it is."""
    folder, stage = model_folder(platform), _stage_of(project.params, platform)
    evaluation = _evaluation().get("platforms", {}).get(platform, {})
    version = registry.register(
        platform,
        folder,
        facts=_flat({name: asdict(getattr(project.params, name)) for name in ("train", "distill", "collect", "measure")}),
        metrics={f"{key}.{part}".removesuffix(".value"): v for key, part, v in _numbers(evaluation)},
        tags={
            "data.hash": store.data_digest(records_folder(platform)),
            "holdout.hash": store.data_digest(records_folder(platform, "holdout")),
            "dvc.stage": stage,
        },
        curves=_curves(folder),
        artifacts=[REPORTS / "evaluation.json", *sorted((REPORTS / "plots").glob("*.png"))],
    )
    return f"tcl-{platform} version {version}"


def promote_model(project: Project, platform: str) -> str:
    """Make the newest version champion if it ranks the platform's held-out records better than the present one."""
    version, folder = registry.newest(platform)
    against = registry.champion_version(platform)
    if against == version:
        return f"tcl-{platform} version {version} is the champion already"
    better, reason = _verdict(project, platform, folder, against)
    registry.promote(platform, version, better, reason, against)
    return f"tcl-{platform} version {version} {'is now champion' if better else 'stays a candidate'}: {reason}"


def _verdict(project: Project, platform: str, candidate: Path, against: int | None) -> tuple[bool, str]:
    """Whether the candidate is better, and the sentence that says how sure that is."""
    samples, weights = project.samples(platform, "holdout"), project.task_weights("held_out")
    predicted = catalogue.load(candidate).predict(samples)
    if against is None:
        rival, name = catalogue.create("random").predict(samples), "a random ranking"
    else:
        name = f"champion version {against}"
        try:
            rival = catalogue.load(registry.champion(platform)[1]).predict(samples)
        except DataError as error:
            return True, f"{name} cannot read today's features ({error})"
    evaluate, needed = project.params.evaluate, project.params.promote.confidence
    duel = paired_bootstrap(
        rival, predicted, samples.latencies_s, samples.tasks, weights, 1, evaluate.bootstrap, project.params.seed
    )
    reason = (
        f"top-1 {duel.candidate:.3f} against {duel.champion:.3f} of {name} on {len(samples)} held-out programs, "
        f"better with probability {duel.probability:.3f} ({needed:g} needed), "
        f"difference {duel.low:+.3f} to {duel.high:+.3f}"
    )
    return duel.probability >= needed, reason


def run_tune(project: Project, network: str | None, platform: str | None, trials: int | None) -> str:
    """Tune a network with the platform's champion and compare it with PyTorch -> data/reports/tuned.json."""
    from tcl_core.tuning.network import tune_network

    network = network or project.params.tune.network
    platform = platform or project.platforms_that_ran()[-1]
    check_platform(project, platform)
    if reason := why_not(project.params.platforms[platform].mcpu):
        raise UsageError(f"cannot tune on {platform}: {reason}; choose one of: {', '.join(project.platforms_that_ran())}")
    version, folder = registry.champion(platform)
    with timed("tune"):
        result = tune_network(
            network,
            model=catalogue.load(folder),
            hardware=read_saved_hardware(folder).vector(),
            setup=setup_of(project, platform),
            trials=trials or project.params.tune.trials,
            seed=project.params.seed,
        )
    write_json(TUNED, {"network": network, "platform": platform, "champion_version": version, **asdict(result)})
    return (
        f"{network} on {platform} with {result.trials} measured programs: {result.untuned_ms:.2f} ms untuned, "
        f"{result.tuned_ms:.2f} ms tuned, PyTorch {result.pytorch_ms:.2f} ms; "
        f"largest difference to PyTorch's output {result.difference:.1e}"
    )


def write_summary(project: Project) -> str:
    """Everything of the last run that a person asks for first -> data/reports/summary.json, and as text."""
    evaluation, tuned = _evaluation(), json.loads(TUNED.read_text()) if TUNED.exists() else {}
    platforms: dict[str, Any] = {}
    for platform in project.params.chain_order:
        if reason := store.skipped_reason(records_folder(platform)):
            platforms[platform] = {"skipped": reason}
            continue
        figures = evaluation["platforms"][platform]
        platforms[platform] = {
            "top1": figures["top_1"]["value"],
            "top5": figures["top_5"]["value"] if "top_5" in figures else None,
            "random_top1": figures["top_1_random"]["value"],
            "pairwise_accuracy": figures["pairwise_accuracy"],
            "forgetting": evaluation["chain"]["forgetting"][platform],
            "programs_measured": sum(map(len, map(store.read_records, _both_folders(platform)))),
            "champion_version": registry.champion_version(platform),
        }
    seconds = stage_seconds()
    write_json(SUMMARY, {"platforms": platforms, "tuned": tuned, **_milliseconds(tuned), "seconds": seconds})
    return _as_text(platforms, tuned, seconds)


def _both_folders(platform: str) -> tuple[Path, Path]:
    return records_folder(platform), records_folder(platform, "holdout")


def _milliseconds(tuned: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: tuned.get(name) for name in ("tuned_ms", "untuned_ms", "pytorch_ms")}


def _as_text(platforms: Mapping[str, Any], tuned: Mapping[str, Any], seconds: Mapping[str, float]) -> str:
    lines = ["What was learned", ""]
    for name, p in platforms.items():
        if "skipped" in p:
            lines.append(f"- {name}: skipped, {p['skipped']}")
            continue
        champion = f"champion is version {p['champion_version']}" if p["champion_version"] else "no champion yet"
        top5 = "" if p["top5"] is None else f", top-5 {p['top5']:.3f}"
        lines.append(
            f"- {name}: top-1 {p['top1']:.3f}{top5} on held-out networks (a random ranking: {p['random_top1']:.3f}), "
            f"{p['programs_measured']} programs measured, {champion}"
        )
    if tuned:
        lines.append(
            f"- {tuned['network']} on {tuned['platform']}: {tuned['untuned_ms']:.2f} ms untuned, "
            f"{tuned['tuned_ms']:.2f} ms tuned, PyTorch {tuned['pytorch_ms']:.2f} ms"
        )
    total = sum(seconds.values())
    spent = ", ".join(f"{stage} {s:.0f} s" for stage, s in sorted(seconds.items(), key=lambda item: -item[1])[:5])
    lines += ["", f"Time: {total / 60:.1f} min in stages ({spent})"]
    lines += [f"Open next: {REPORTS / 'plots'}/*.png, {SUMMARY}; or `make ui` for MLflow and Prefect in the browser"]
    return "\n".join(lines)


def _stage_of(params: Params, platform: str) -> str:
    return "train" if platform == params.chain.first else f"distill@{platform}"


def _evaluation() -> dict[str, Any]:
    path = REPORTS / "evaluation.json"
    if not path.exists():
        raise DataError(f"there is no {path}; the stage evaluate writes it: dvc repro evaluate")
    return json.loads(path.read_text())


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _numbers(figures: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """(figure, part, value) of all finite numbers of one platform's figures."""
    found = []
    for key, value in figures.items():
        parts = value.items() if isinstance(value, Mapping) else [("value", value)]
        found += [(key, part, float(v)) for part, v in parts if isinstance(v, int | float) and np.isfinite(v)]
    return found


def _curves(folder: Path) -> dict[str, list[float]]:
    """Metric name -> one value per epoch, phases apart."""
    curves: dict[str, list[float]] = {}
    for entry in json.loads((folder / "curve.json").read_text()):
        for name, value in entry.items():
            if name not in ("phase", "epoch") and value is not None:
                curves.setdefault(f"{entry['phase']}.{name}", []).append(value)
    return curves

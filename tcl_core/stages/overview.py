"""`tcl summary`: what the last run measured, learned, promoted and tuned, from what the stages left behind."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tcl_core import registry, store
from tcl_core.checked import write_json
from tcl_core.errors import DataError
from tcl_core.params import Params
from tcl_core.stages import promotion, use
from tcl_core.stages.project import REPORTS, Project, records_folder, stage_seconds

SUMMARY = REPORTS / "summary.json"


def write_summary(project: Project) -> str:
    """Everything of the last run that a person asks for first -> data/reports/summary.json, and as text."""
    evaluation, tuned = promotion.evaluation(), use.last_tuned()
    platforms: dict[str, Any] = {}
    for platform in project.params.chain_order:
        reason = store.skipped_reason(records_folder(platform))
        platforms[platform] = {"skipped": reason} if reason else _figures(evaluation, platform)
    seconds = {stage: s for stage, s in stage_seconds().items() if stage in _stages(project.params)}
    write_json(SUMMARY, {"platforms": platforms, "tuned": tuned, **_milliseconds(tuned), "seconds": seconds})
    return _as_text(platforms, tuned, seconds)


def _figures(evaluation: Mapping[str, Any], platform: str) -> dict[str, Any]:
    """What the summary says of a platform.  Raises DataError when the evaluation is not of its present model and records."""
    try:
        figures = evaluation["platforms"][platform]
        found = {
            "top1": figures["top_1"]["value"],
            "top5": figures["top_5"]["value"] if "top_5" in figures else None,
            "random_top1": figures["top_1_random"]["value"],
            "pairwise_accuracy": figures["pairwise_accuracy"],
            "forgetting": evaluation["chain"]["forgetting"][platform],
            "programs_measured": sum(map(len, map(store.read_records, _both_folders(platform)))),
            "champion_version": registry.champion_version(platform),
        }
    except KeyError as error:
        raise DataError(f"{promotion.EVALUATION} lacks {error} for platform {platform}; run: dvc repro evaluate") from None
    promotion.check_judged(evaluation, platform)
    return found


def _stages(params: Params) -> set[str]:
    """The stages of the present graph; times of others, such as of a platform that was taken out, are history."""
    names = {"tasks", "candidates", "train", "evaluate", "tune", *(f"distill@{p}" for p in params.chain.then)}
    names |= {f"baseline@{model}" for model in params.baselines.models}
    return names | {f"{kind}@{platform}" for kind in ("collect", "holdout") for platform in params.platforms}


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
        lines.append(f"- {use.tuned_text(tuned)}")
    total = sum(seconds.values())
    spent = ", ".join(f"{stage} {s:.0f} s" for stage, s in sorted(seconds.items(), key=lambda item: -item[1])[:5])
    lines += ["", f"Time: {total / 60:.1f} min in stages ({spent})"]
    lines += [f"Open next: {REPORTS / 'plots'}/*.png, {SUMMARY}; or `make ui` for MLflow and Prefect in the browser"]
    return "\n".join(lines)

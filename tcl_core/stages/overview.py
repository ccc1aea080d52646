"""`tcl summary`: what the last run measured, learned, promoted and tuned, read from what the stages wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tcl_core.checked import read_json, write_json
from tcl_core.errors import DataError
from tcl_core.params import Params
from tcl_core.stages import promotion
from tcl_core.stages.diagram import stage_names
from tcl_core.stages.tuned_report import last_tuned, tuned_text
from tcl_core.stages.workspace import MEASURED_BY, Workspace, with_registry

SUMMARY = "summary.json"  # in the folder of reports


@with_registry
def summarise(workspace: Workspace) -> dict[str, Any]:
    """Write what a person asks first about the last run -> data/reports/summary.json, which is returned."""
    evaluation, tuned = promotion.evaluation(workspace.reports), last_tuned(workspace.reports)
    platforms: dict[str, Any] = {}
    for platform in workspace.params.chain_order:
        reason = workspace.left_out(platform)
        platforms[platform] = {"skipped": reason} if reason else _figures(workspace, evaluation, platform)
    seconds = {stage: s for stage, s in workspace.stage_seconds().items() if stage in stages_of(workspace.params)}
    summary = {"platforms": platforms, "tuned": tuned, **_milliseconds(tuned), "seconds": seconds}
    write_json(workspace.reports / SUMMARY, summary)
    return summary


def _figures(workspace: Workspace, evaluation: Mapping[str, Any], platform: str) -> dict[str, Any]:
    """What the summary says of a platform.  Raises DataError when the evaluation is not of its present model and records."""
    beside = evaluation.get("baselines", {})
    try:
        figures = evaluation["platforms"][platform]
        found = {
            "top1": figures["top_1"]["value"],
            "top1_interval": [figures["top_1"].get(end) for end in ("low", "high")],
            "top5": figures["top_5"]["value"] if "top_5" in figures else None,
            "random_top1": figures["top_1_random"]["value"],
            "pairwise_accuracy": figures["pairwise_accuracy"],
            "forgotten": evaluation["chain"]["forgotten"][platform],
            "programs_measured": sum(len(workspace.records(platform, kind)) for kind in MEASURED_BY),
            **promotion.standing(workspace, platform),
            "peers": {name: by[platform]["top_1"]["value"] for name, by in beside.items() if platform in by},
            "peers_pairs": {name: by[platform].get("pairwise_accuracy") for name, by in beside.items() if platform in by},
            **_collected(workspace, platform),
        }
    except KeyError as error:
        raise DataError(
            f"{workspace.reports / promotion.EVALUATION} lacks {error} for platform {platform}; run: dvc repro evaluate"
        ) from None
    promotion.check_judged(workspace, evaluation, platform)
    return found


def _collected(workspace: Workspace, platform: str) -> dict[str, int]:
    """Number of training programs that failed, and that were timed while the machine was not quiet; empty where unknown."""
    try:
        report = read_json(workspace.reports / "collect" / f"{platform}.json", f"run its stage again: dvc repro -f collect@{platform}")
    except FileNotFoundError:
        return {}
    failed = sum(programs for kind, programs in report.get("errors", {}).items() if kind != "ok")
    return {"failed": failed, "disturbed": sum(step.get("disturbed", 0) for step in report.get("rounds", ()))}


def stages_of(params: Params) -> list[str]:
    """The stages of the present graph, in the order in which they run.  Times of others, such as a removed platform's, are
    history and are not shown.
    """
    return [*stage_names(params), "tune"]


def _milliseconds(tuned: Mapping[str, Any]) -> dict[str, float | None]:
    return {name: tuned.get(name) for name in ("tuned_ms", "untuned_ms", "pytorch_ms")}


def summary_text(summary: Mapping[str, Any], reports: Path) -> str:
    """The summary as text for people, which points to files in ``reports``."""
    platforms, tuned, seconds = (summary[part] for part in ("platforms", "tuned", "seconds"))
    lines = ["What was learned", ""]
    for name, p in platforms.items():
        if "skipped" in p:
            lines.append(f"- {name}: skipped, {p['skipped']}")
            continue
        unknown = f"champion unknown, for {p['unknown']}" if "unknown" in p else "no champion yet"
        champion = f"champion is version {p['champion_version']}" if p["champion_version"] else unknown
        if p.get("version") not in (None, p["champion_version"]):
            champion = f"version {p['version']}, {champion}"
        top5 = "" if p["top5"] is None else f", top-5 {p['top5']:.3f}"
        lines.append(
            f"- {name}: top-1 {p['top1']:.3f}{top5} on held-out networks (a random ranking: {p['random_top1']:.3f}), "
            f"{p['programs_measured']} programs measured, {champion}"
        )
        lines.append(f"  {_beside(p)}")
    if tuned:
        lines.append(f"- {tuned_text(tuned)}")
    total = sum(seconds.values())
    spent = ", ".join(f"{stage} {s:.0f} s" for stage, s in sorted(seconds.items(), key=lambda item: -item[1])[:5])
    lines += ["", f"Time: {total / 60:.1f} min in stages ({spent})"]
    lines += [
        f"Open next: {reports / promotion.PAGE} (tcl report writes it), {reports / 'plots'}/*.png, {reports / SUMMARY}; or `make ui` for MLflow and Prefect in the browser"
    ]
    return "\n".join(lines)


def _beside(p: Mapping[str, Any]) -> str:
    """The figures that put a platform's top-1 into context."""
    low, high = p["top1_interval"]
    parts = [] if low is None or high is None else [f"top-1 from {low:.3f} to {high:.3f} (95 %)"]
    pairs = ", ".join(f"{name} {_number(right)}" for name, right in p["peers_pairs"].items())
    parts += [f"pairs ranked right {_number(p['pairwise_accuracy'])}{f' ({pairs})' if pairs else ''}, forgotten {_number(p['forgotten'])}"]
    parts += [f"top-1 of {name} {_number(top1)}" for name, top1 in p["peers"].items()]
    if "failed" in p:
        parts.append(f"{p['failed']} programs failed, {p['disturbed']} timed while the machine was not quiet")
    return ", ".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"

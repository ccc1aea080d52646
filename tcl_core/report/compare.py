"""Page that compares two runs: each figure of both, and the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tcl_core.evaluation.report import ks_of
from tcl_core.report import charts
from tcl_core.report.page import models_of, notes, title_of, value_of
from tcl_core.report.parts import (
    UNKNOWN,
    Cell,
    Chart,
    Group,
    Key,
    Page,
    Section,
    Table,
    count,
    duration,
    interval,
    milliseconds,
    number,
    percent,
    short,
)
from tcl_core.report.tuned import NAMES

Run = Mapping[str, Any]
Runs = tuple[Run, Run]


def compare(first: Run, second: Run, names: tuple[str, str]) -> Page:
    """Page that compares two runs; ``names`` are the user's names for them."""
    runs = (first, second)
    sections = [part for part in (
        _accuracy(runs), _tuning(runs), _measuring(runs), _time(runs), _parameters(runs), _left_out(runs),
    ) if part]  # fmt: skip
    lettered = list(zip("AB", names, runs, strict=True))
    about = [f"{letter} is {name}{_about(run)}" for letter, name, run in lettered]
    about += [f"{letter}: {note}" for letter, _, run in lettered for note in notes(run)]
    return Page(f"TCL: {short(names[0], 40)} and {short(names[1], 40)}", "A and B, side by side", [], sections, notes=about)


def _about(run: Run) -> str:
    """Known facts about the run's origin: time, commits, hosts."""
    models = run["made"].get("models", {}).values()
    commits = sorted({(made["code"]["commit"] or "")[:12] for made in models} - {""})
    hosts = sorted({made["host"] for made in models})
    measured = run["made"].get("measured")
    facts = [*([f"measured {measured[0].replace('T', ' ')} UTC"] if measured else []), *(f"commit {commit}" for commit in commits), *hosts]
    return f": {', '.join(facts)}" if facts else ""


def _both(of_first: Mapping[Any, Any], of_second: Mapping[Any, Any]) -> list[Any]:
    """Keys of either run in order, the first run's first."""
    return list(dict.fromkeys([*of_first, *of_second]))


# --- accuracy ---


def _accuracy(runs: Runs) -> Section | None:
    evaluations = [run["evaluation"] for run in runs]
    if not all(evaluation.get("platforms") for evaluation in evaluations):
        return None
    platforms = _both(*(evaluation["platforms"] for evaluation in evaluations))
    shown = [*(f"top_{k}" for k in sorted({k for evaluation in evaluations for k in ks_of(evaluation)})), "pairwise_accuracy"]
    rows = [row for platform in platforms for row in _accuracy_rows(evaluations, platform, shown)]
    drawn = [
        Chart(title_of(figure), charts.dots(f"accuracy-{figure}", f"{title_of(figure)} of TCL on every platform, run A beside run B", dots, "1 is best"))
        for figure in shown if len(dots := list(_dots(evaluations, platforms, figure))) > len(platforms)
    ]  # fmt: skip
    text = (
        "Held-out programs, ranked. A difference is marked where each value lies outside the other's 95 % interval; figures without "
        "an interval are not marked."
    )
    if apart := [platform for platform in platforms if not _same_data(evaluations, platform)]:
        text += f" Other held-out programs, or other measurements of them, which do not compare: {', '.join(apart)}."
    table = Table("Accuracy of every model", ["platform", "model", "figure", "A", "B", "B - A"], rows, left=3)
    forgetting = _forgetting(evaluations)
    return Section(
        "accuracy", "Accuracy", text, [Group(drawn, None, [Key("A", 2), Key("B", 1)])], [table, *([forgetting] if forgetting else [])]
    )


def _figure(evaluation: Mapping[str, Any], platform: str, model: str, figure: str) -> Mapping[str, Any] | None:
    """{value, low, high}, without low and high if no interval is known; None if the figure is missing."""
    if platform not in evaluation["platforms"]:
        return None
    found = models_of(evaluation, platform).get(model, {}).get(figure)
    return {"value": found} if isinstance(found, int | float) else found


def _dots(evaluations: Sequence[Mapping[str, Any]], platforms: Sequence[str], figure: str) -> Iterator[charts.Dot]:
    for platform in platforms:
        yield charts.Dot(platform)
        for name, colour, evaluation in (("A", 2, evaluations[0]), ("B", 1, evaluations[1])):
            if found := _figure(evaluation, platform, "TCL", figure):
                yield charts.Dot(name, found["value"], found.get("low"), found.get("high"), colour)


def _accuracy_rows(evaluations: Sequence[Mapping[str, Any]], platform: str, shown: Sequence[str]) -> Iterator[list[str | Cell]]:
    models = _both(*(models_of(e, platform) if platform in e["platforms"] else {} for e in evaluations))
    for model in models:
        for figure in shown:
            first, second = (_figure(evaluation, platform, model, figure) for evaluation in evaluations)
            if first or second:
                difference = _difference(first, second, _same_data(evaluations, platform))
                yield [platform, model, title_of(figure).lower(), interval(first), interval(second), difference]


def _same_data(evaluations: Sequence[Mapping[str, Any]], platform: str) -> bool:
    """Whether both runs were evaluated on the same held-out measurements."""
    first, second = (evaluation.get("judged", {}).get(platform, {}).get("holdout") for evaluation in evaluations)
    return first is not None and first == second


def _difference(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None, comparable: bool) -> Cell:
    """Difference of two figures (higher is better), marked better or worse only if ``comparable`` and beyond both intervals."""
    if not first or not second or first["value"] is None or second["value"] is None:
        return Cell(UNKNOWN)
    by = second["value"] - first["value"]
    beyond = all(_outside(one["value"], other) for one, other in ((first, second), (second, first)))
    return Cell(_signed(first["value"], second["value"]), tone=("better" if by > 0 else "worse") if beyond and comparable else "")


def _outside(value: float, of: Mapping[str, Any]) -> bool:
    low, high = of.get("low"), of.get("high")
    return low is not None and high is not None and not low <= value <= high


def _forgetting(evaluations: Sequence[Mapping[str, Any]]) -> Table | None:
    found = [evaluation.get("chain", {}).get("forgotten", {}) for evaluation in evaluations]
    rows = [[name, *(number(each.get(name)) for each in found), _signed(*(each.get(name) for each in found))] for name in _both(*found)]
    return Table("Pairs that were forgotten along the chain", ["platform", "A", "B", "B - A"], rows) if rows else None


def _signed(first: float | None, second: float | None, digits: int = 3) -> str:
    if first is None or second is None:
        return UNKNOWN
    return f"{second - first:+,.{digits}f}" if first != second else "0"


# --- tuning, measuring, time ---


def _tuning(runs: Runs) -> Section | None:
    tuned = [run["tuned"] for run in runs]
    if not all(tuned):
        return None
    same = all(tuned[0][key] == tuned[1][key] for key in ("network", "platform"))
    known = {"tuned": "tuned_ms", "eager": "pytorch_ms", "compile": "compile_ms", "untuned": "untuned_ms"}
    rows = []
    for name, key in known.items():
        first, second = (each.get(key) for each in tuned)
        if first is not None or second is not None:
            rows.append([NAMES.get(name, name), milliseconds(first), milliseconds(second), _ratio(first, second) if same else UNKNOWN])
    beside = [each["tuned_ms"] / each["pytorch_ms"] if each["tuned_ms"] and each["pytorch_ms"] else None for each in tuned]
    rows.append(["tuned / PyTorch eager", number(beside[0]), number(beside[1]), _ratio(*beside) if same else UNKNOWN])
    trials, seconds = ([each.get(key) for each in tuned] for key in ("trials", "search_s"))
    rows.append(["programs measured", *map(count, trials), _ratio(*trials)])
    rows.append(["search", *map(duration, seconds), _ratio(*seconds)])
    what = [f"{each['network']} on {each['platform']}" for each in tuned]
    text = (
        f"{what[0]} in both runs. Machines and hours differ: the ratio to PyTorch, timed in the same rounds, says more than milliseconds do."
        if what[0] == what[1]
        else f"A tuned {what[0]}, B {what[1]}."
    )
    return Section("tuning", "Tuning", text, tables=[Table("Tuning", ["figure", "A", "B", "B / A"], rows)])


def _ratio(first: float | None, second: float | None) -> str:
    return UNKNOWN if not first or second is None else f"{second / first:.2f}"


def _measuring(runs: Runs) -> Section | None:
    rows = []
    by_name = [{step["platform"]: step for step in run["chain"]} for run in runs]
    for name in _both(*by_name):
        steps = [found.get(name) for found in by_name]
        rows.append(
            [
                name,
                "programs measured",
                *(_measured(step) for step in steps),
                _signed(*(step and step["measured"] for step in steps), digits=0),
            ]
        )
        for kind in ("training", "held-out"):  # a copy of data/reports may know only the former
            failed = [_failed(run, name, kind) for run in runs]
            if any(value is not None for value in failed):
                rows.append([name, f"{kind} programs that failed", *map(count, failed), _signed(*failed, digits=0)])
        spread = [run["noise"][name]["spread"][10] if name in run["noise"] else None for run in runs]
        if any(value is not None for value in spread):
            rows.append([name, "spread of repeats, median", *map(percent, spread), _points(*spread)])
        quiet = [run["noise"][name]["disturbed"] if name in run["noise"] else None for run in runs]
        if any(value is not None for value in quiet):
            rows.append([name, "measured while the machine was not quiet", *map(count, quiet), _signed(*quiet, digits=0)])
    if not rows:
        return None
    return Section(
        "measuring",
        "Measuring",
        "",
        tables=[Table("What was measured, and how well", ["platform", "figure", "A", "B", "B - A"], rows, left=2)],
    )


def _measured(step: Mapping[str, Any] | None) -> str:
    return UNKNOWN if step is None else "skipped" if step["skipped"] else count(step["measured"])


def _failed(run: Run, name: str, kind: str) -> int | None:
    found = run["errors"].get(name, {}).get(kind)
    return None if found is None else sum(total for outcome, total in found.items() if outcome != "ok")


def _points(first: float | None, second: float | None) -> str:
    return UNKNOWN if first is None or second is None else "0" if first == second else f"{100 * (second - first):+.1f} points"


def _time(runs: Runs) -> Section | None:
    seconds = [run["seconds"] for run in runs]
    if not all(seconds):
        return None
    stages = _both(*seconds)
    rows = [
        [stage.replace("@", " "), *(duration(each.get(stage)) for each in seconds), _ratio(*(each.get(stage) for each in seconds))]
        for stage in stages
    ]
    totals = [sum(each.values()) for each in seconds]
    rows.append(["all", *map(duration, totals), _ratio(*totals)])
    bars = [
        charts.Bar(f"{letter}: {stage.replace('@', ' ')}", each[stage] / 60, colour, duration(each[stage]))
        for stage in stages
        for letter, colour, each in (("A", 2, seconds[0]), ("B", 1, seconds[1]))
        if stage in each
    ]
    chart = Chart("Time of each stage", charts.bars("time", "Minutes of each stage's last run, A beside B", bars, "minutes"))
    table = Table("Time of each stage's last run", ["stage", "A", "B", "B / A"], rows)
    return Section(
        "time",
        "Time",
        f"{duration(totals[0])} and {duration(totals[1])} in stages.",
        [Group([chart], None, [Key("A", 2), Key("B", 1)], table)],
    )


# --- parameters, and what is missing ---


def _parameters(runs: Runs) -> Section | None:
    first, second = (run["made"].get("parameters") for run in runs)
    if first is None or second is None:
        return None
    rows = [
        [name, value_of(first.get(name)), value_of(second.get(name))]
        for name in _both(first, second)
        if first.get(name) != second.get(name)
    ]
    if not rows:
        return Section("parameters", "Parameters", "Both runs have the same parameters.")
    return Section("parameters", "Parameters", "", tables=[Table("Parameters that differ", ["parameter", "A", "B"], rows, left=3)])


def _left_out(runs: Runs) -> Section | None:
    rows = [[letter, what, why] for letter, run in zip("AB", runs, strict=True) for what, why in run["left_out"]]
    for part, what in (("evaluation", "accuracy"), ("tuned", "tuning"), ("seconds", "time"), ("made", "parameters")):
        lacking = [letter for letter, run in zip("AB", runs, strict=True) if not run[part]]
        rows += [[letter, f"{what}, beside the other run", "nothing of it is known of this run"] for letter in lacking]
    return (
        Section("left-out", "What is missing, and why", "", tables=[Table("Left out", ["run", "what", "why"], rows, left=3)])
        if rows
        else None
    )

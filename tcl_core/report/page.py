"""Page of one run: turns its figures (listed in ``stages.figures``) into sections of charts and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tcl_core.evaluation.report import chain_matrices, ks_of
from tcl_core.provenance import changed_text
from tcl_core.report import charts
from tcl_core.report.parts import (
    UNKNOWN,
    Cell,
    Chart,
    Group,
    Key,
    Page,
    Section,
    Step,
    Table,
    Tile,
    count,
    duration,
    interval,
    milliseconds,
    number,
    percent,
)
from tcl_core.report.tuned import tuning

Run = Mapping[str, Any]
RANDOM = "random ranking"
PHASES = {"CL": "learning the platform (CL)", "KD": "distilling (KD)"}


def page_of(run: Run) -> Page:
    """The page of a run; sections without figures are left out."""
    sections = [part for part in (
        accuracy(run), chain_matrix(run), learning(run), collection(run), *tuning(run["tuned"]), failures(run), noise(run), time_spent(run),
        provenance(run), left_out(run),
    ) if part]  # fmt: skip
    measured = run["made"].get("measured")
    first, last = (time.replace("T", " ") for time in measured) if measured else ("", "")
    subtitle = f"measured from {first} to {last} UTC" if measured else ""
    return Page(f"TCL: {run['name']}", subtitle, tiles(run), sections, chain(run), notes(run))


def notes(run: Run) -> list[str]:
    """Warnings to read before any figure."""
    if not run["stale"]:
        return []
    return [
        f"The accuracy of {', '.join(run['stale'])} is that of another model, or on other held-out records, than the present ones; run: dvc repro evaluate"
    ]


def chain(run: Run) -> list[Step]:
    steps, before = [], None
    for p in run["chain"]:
        facts = [p["hardware"]] if p["hardware"] else []
        facts += [f"learns from {p['previous']}"] if p["previous"] != before and p["previous"] else []
        before = p["platform"]
        if p["skipped"]:
            steps.append(Step(p["platform"], [*facts, f"skipped: {p['skipped']}"], "skipped"))
            continue
        facts.append(f"{count(p['measured'])} programs measured" + (f", {count(p['held_out'])} held out" if p["held_out"] else ""))
        facts += [f"model: version {version}"] if (version := p.get("version")) and version != p["champion"] else []
        facts += [f"champion: version {p['champion']}"] if p["champion"] else []
        steps.append(Step(p["platform"], facts))
    return steps


def tiles(run: Run) -> list[Tile]:
    found, target, tuned = [], run["target"], run["tuned"]
    if tuned:
        faster = tuned["pytorch_ms"] and tuned["tuned_ms"] and tuned["pytorch_ms"] / tuned["tuned_ms"]
        beside = (
            f"{number(faster, 2)} times as fast as PyTorch eager ({milliseconds(tuned['pytorch_ms'])})"
            if faster
            else "PyTorch did not run it"
        )
        found.append(Tile(milliseconds(tuned["tuned_ms"]), f"{tuned['network']}, tuned on {tuned['platform']}", beside))
    figures = run["evaluation"].get("platforms", {}).get(target)
    if figures:
        found.append(
            Tile(number(figures["top_1"]["value"]), f"top-1 on {target}", f"a random ranking: {number(figures['top_1_random']['value'])}")
        )
        found.append(Tile(percent(figures["pairwise_accuracy"]), f"of pairs ranked right on {target}", "a random ranking: 50 %"))
    programs = sum((p["measured"] or 0) + (p["held_out"] or 0) for p in run["chain"])
    if programs:
        found.append(Tile(count(programs), "programs measured", f"on {sum(1 for p in run['chain'] if p['measured'])} platforms"))
    if run["seconds"]:
        found.append(Tile(duration(sum(run["seconds"].values())), "in stages"))
    return found


# --- accuracy ---


def models_of(evaluation: Mapping[str, Any], platform: str) -> dict[str, Mapping[str, Any]]:
    """Name -> figures of every model evaluated on a platform, a random ranking last."""
    own = evaluation["platforms"][platform]
    others = {name: found[platform] for name, found in evaluation.get("baselines", {}).items() if platform in found}
    chance = {f"top_{k}": own[f"top_{k}_random"] for k in ks_of(evaluation) if f"top_{k}_random" in own}
    return {"TCL": own, **others, RANDOM: {**chance, "pairwise_accuracy": 0.5, "spearman": 0.0}}


def accuracy(run: Run) -> Section | None:
    evaluation = run["evaluation"]
    if not evaluation.get("platforms"):
        return None
    names = ["TCL", *evaluation.get("baselines", {}), RANDOM]
    colours = {name: place for place, name in enumerate(names, start=1)} | {RANDOM: 8}
    shown = [*(f"top_{k}" for k in ks_of(evaluation)), "pairwise_accuracy"]
    drawn = [
        Chart(title_of(figure), charts.dots(
            f"accuracy-{figure}", f"{title_of(figure)} of every model on every platform's held-out programs, 1 is best",
            _rows(evaluation, figure, colours), "1: the best that was measured" if figure != "pairwise_accuracy" else "share of pairs",
        ))
        for figure in shown
    ]  # fmt: skip
    text = (
        "Held-out programs, ranked by every model. Top-k is the fastest latency over that of the best of the k programs ranked first, "
        "weighted over the networks' tasks; bars are 95 % intervals over resampled tasks, of the random ranking what 95 % of random rankings reach. Zero-shot is the model of the platform before."
    )
    return Section("accuracy", "Accuracy", text, [Group(drawn, _accuracy_table(evaluation))])


def title_of(figure: str) -> str:
    return "Pairs ranked right" if figure == "pairwise_accuracy" else figure.replace("_", "-").capitalize()


def _rows(evaluation: Mapping[str, Any], figure: str, colours: Mapping[str, int]) -> list[charts.Dot]:
    rows = []
    for platform in evaluation["platforms"]:
        rows.append(charts.Dot(platform))
        for name, figures in models_of(evaluation, platform).items():
            found = figures.get(figure)
            if found is None:
                continue
            found = found if isinstance(found, Mapping) else {"value": found}
            rows.append(charts.Dot(name, found["value"], found.get("low"), found.get("high"), colours[name], name == RANDOM))
    return rows


def _accuracy_table(evaluation: Mapping[str, Any]) -> Table:
    ks = ks_of(evaluation)
    rows = [
        [platform, name, *(interval(figures.get(f"top_{k}")) for k in ks), number(figures["pairwise_accuracy"]),
         number(figures.get("spearman")), count(figures.get("tasks")), count(figures.get("programs"))]
        for platform in evaluation["platforms"] for name, figures in models_of(evaluation, platform).items()
    ]  # fmt: skip
    head = ["platform", "model", *(f"top-{k} (95 % interval)" for k in ks), "pairs", "Spearman", "tasks", "programs"]
    return Table("Accuracy on held-out programs; 1 is best", head, rows, left=2)


def chain_matrix(run: Run) -> Section | None:
    """Pairs that each platform's model ranks right on all platforms, and what was forgotten."""
    whose = {"chain": "each platform's model", "knowledge_base": "the knowledge base that goes along the chain"}
    tables = [_matrix(matrix, f"Pairs ranked right, of {whose[name]}") for name, matrix in chain_matrices(run["evaluation"]).items()]
    text = (
        "A row is the model after a platform, a column the platform that it ranks. Right of the diagonal is transfer to platforms still to "
        "come, left of it what is remembered; forgotten is what was lost between the best earlier model and the last one that goes back to the platform's own."
    )
    return Section("forgetting", "Along the chain", text, tables=tables) if tables else None


def _matrix(matrix: Mapping[str, Any], caption: str) -> Table:
    platforms = matrix["platforms"]
    rows: list[list[str | Cell]] = [
        [platform, *(Cell(number(value), None if value is None else round(55 * max(0.0, min(value, 1.0)))) for value in row)]
        for platform, row in zip(platforms, matrix["pairs"], strict=True)
    ]
    rows.append(["forgotten", *(number(matrix["forgotten"].get(platform)) for platform in platforms)])
    return Table(caption, ["model after", *platforms], rows)


# --- learning and collecting ---


def learning(run: Run) -> Section | None:
    curves = {name: epochs for name, epochs in run["learning"].items() if epochs}
    if not curves:
        return None
    phases = list(dict.fromkeys(epoch.get("phase", "") for epochs in curves.values() for epoch in epochs))
    drawn = [
        Chart(name, charts.lines(
            f"learning-{place}", f"Loss of the model of {name} by epoch", _curves(epochs, phases), "epoch", "loss, mean of batches", zero=True,
        ))
        for place, (name, epochs) in enumerate(curves.items())
    ]  # fmt: skip
    rows = [
        [name, PHASES.get(phase, phase), count(len(of_phase)), number(of_phase[0]["loss"], 4), number(of_phase[-1]["loss"], 4)]
        for name, epochs in curves.items() for phase in phases if (of_phase := [e for e in epochs if e.get("phase", "") == phase])
    ]  # fmt: skip
    table = Table("Loss of each phase", ["platform", "phase", "epochs", "first", "last"], rows, left=2)
    legend = [Key(PHASES.get(phase, phase), place) for place, phase in enumerate(phases, start=1)]
    return Section(
        "learning",
        "Learning curves",
        "Losses of different phases, and of different platforms, do not compare. Dashes are the LambdaRank loss of tasks kept apart, where there are any.",
        [Group(drawn, table, legend)],
    )


def _curves(epochs: Sequence[Mapping[str, Any]], phases: Sequence[str]) -> list[charts.Line]:
    found = []
    for place, phase in enumerate(phases, start=1):
        for key, dashed in (("loss", False), ("valid_loss", True)):
            points = [(e["epoch"], e[key]) for e in epochs if e.get("phase", "") == phase and e.get(key) is not None]
            found += [charts.Line(*zip(*points, strict=True), place, dashed)] if points else []  # type: ignore[call-arg]
    return found


def collection(run: Run) -> Section | None:
    """Programs that the sampler picked from the pool, round by round."""
    found = {name: report for name, report in run["collection"].items() if report["progress"]}
    reports = run["collection"]
    if not reports:
        return None
    kinds = sorted({kind for report in found.values() for entry in report["progress"] for kind in entry["measured"]})
    drawn = [
        Chart(f"{name}: programs measured", charts.stacks(
            f"rounds-{place}", f"Programs measured on {name} in each round, by operator type",
            [entry["round"] for entry in report["progress"]],
            {kind: (colour, [entry["measured"].get(kind, 0) for entry in report["progress"]]) for colour, kind in enumerate(kinds, start=1)},
            "round", "programs",
        ))
        for place, (name, report) in enumerate(found.items())
    ]  # fmt: skip
    groups = [Group(drawn, _rounds_table(found, kinds), [Key(kind, colour) for colour, kind in enumerate(kinds, start=1)])] if found else []
    if found:
        best = [
            charts.Line([e["round"] for e in report["progress"]], [e["best_score"] for e in report["progress"]], place)
            for place, report in enumerate(found.values(), start=1)
        ]
        chart = charts.lines(
            "best-found", "Best score found by round, a line for each platform", best, "round", "mean over tasks, 1 at the end", zero=True
        )
        legend = [Key(name, place) for place, name in enumerate(found, start=1)]
        groups.append(Group([Chart("Best found so far", chart)], None, legend, _covered_table(reports)))
    text = "Programs that the sampler chose from the pool. The best score found is the fastest latency in the end over the fastest so far."
    return Section(
        "collection",
        "What was measured",
        text,
        groups,
        [] if found else [_covered_table(reports)],
        [_operators_table(found)] if found else [],
    )


def _rounds_table(found: Mapping[str, Any], kinds: Sequence[str]) -> Table:
    rows = [
        [
            name,
            str(entry["round"]),
            *(count(entry["measured"].get(kind, 0)) for kind in kinds),
            count(entry["failed"]),
            number(entry["best_score"]),
        ]
        for name, report in found.items()
        for entry in report["progress"]
    ]
    return Table("Programs measured in each round", ["platform", "round", *kinds, "failed", "best found"], rows)


def _covered_table(reports: Mapping[str, Any]) -> Table:
    rows = []
    for name, report in reports.items():
        tasks, share = report["tasks"], report["programs"] / report["pool"] if report["pool"] else None
        each = f"{tasks['least']} to {tasks['most']}" if tasks else UNKNOWN
        rows.append(
            [
                name,
                count(report["programs"]),
                count(report["pool"]),
                percent(share),
                f"{tasks['measured']} of {tasks['of']}" if tasks else UNKNOWN,
                each,
            ]
        )
    return Table("Covered", ["platform", "programs", "pool", "share", "tasks with programs", "programs of each"], rows)


def _operators_table(found: Mapping[str, Any]) -> Table:
    rows = [
        [name, kind, count(measured), count(pool), percent(measured / pool if pool else None)]
        for name, report in found.items()
        for kind, (measured, pool) in report["coverage"].items()
    ]
    return Table("Covered, by operator type", ["platform", "operator", "measured", "pool", "share"], rows, left=2)


# --- errors, noise, time ---


def failures(run: Run) -> Section | None:
    """Failed candidates by kind of error."""
    if not run["errors"]:
        return None
    of = {(name, which): found for name, by_kind in run["errors"].items() for which, found in by_kind.items()}
    kinds = sorted({kind for found in of.values() for kind in found} - {"ok"})
    rows = [
        [name, which, count(sum(found.values())), count(found.get("ok", 0)), *(count(found.get(kind, 0)) for kind in kinds)]
        for (name, which), found in of.items()
    ]
    table = Table("Candidates by how they ended", ["platform", "programs", "measured", "ok", *kinds], rows, left=2)
    failed = [
        charts.Bar(f"{name}: {kind}", total, 2, count(total))
        for name, by_kind in run["errors"].items()
        for kind in kinds
        if (total := sum(found.get(kind, 0) for found in by_kind.values()))
    ]
    if not failed:
        return Section("errors", "Errors of candidates", "Every candidate was built and ran.", tables=[table])
    chart = charts.bars("failed", "Candidates that failed, by platform and kind", failed, "candidates")
    text = "A program that fails is a result like any other; its score is 0."
    return Section("errors", "Errors of candidates", text, [Group([Chart("Failed candidates", chart)], beside=table)])


def noise(run: Run) -> Section | None:
    """Spread of repeated measurements of a program, and programs measured on a machine that was not quiet."""
    found = run["noise"]
    if not found:
        return None
    shares = [5 * place for place in range(21)]
    series = []
    for place, of in enumerate(found.values(), start=1):
        points = [(share, 100 * value) for share, value in zip(shares, of["spread"], strict=True) if value > 0]  # the axis is logarithmic
        series += [charts.Line(*zip(*points, strict=True), place)] if points else []  # type: ignore[call-arg]
    rows = [
        [
            name,
            count(n["programs"]),
            number(n["repeats"], 1),
            *(percent(n["spread"][place]) for place in (10, 18, 20)),
            count(n["disturbed"]),
        ]
        for name, n in found.items()
    ]
    head = ["platform", "programs", "repeats of each", "spread: median", "90 % below", "largest", "machine not quiet"]
    text = (
        "Spread is the interquartile range of a program's repeats over their median. The machine was not quiet where the sentinel, a "
        "program of known latency, was slower before and after, and measuring again did not help."
    )
    table = Table("Noise", head, rows)
    if not series:  # every program was timed once, so there is no spread
        return Section("noise", "Noise of the machine", text, tables=[table])
    chart = charts.lines(
        "spread", "Spread of a program's repeats, for each share of the programs", series, "% of the programs, the steadiest first", "spread, %",
        log=True,
    )  # fmt: skip
    return Section("noise", "Noise of the machine", text, [
        Group([Chart("Spread of repeats", chart)], None, [Key(name, place) for place, name in enumerate(found, start=1)], table)
    ])  # fmt: skip


KIND_COLOURS = {"collect": 1, "holdout": 1, "train": 2, "distill": 2, "baseline": 2, "evaluate": 2, "tune": 3}
TIME_KEYS = (Key("measuring", 1), Key("learning", 2), Key("tuning", 3), Key("tasks and candidates", 8))


def time_spent(run: Run) -> Section | None:
    seconds = run["seconds"]
    if not seconds:
        return None
    total = sum(seconds.values())
    bars = [
        charts.Bar(stage.replace("@", " "), s / 60, KIND_COLOURS.get(stage.partition("@")[0], 8), duration(s))
        for stage, s in seconds.items()
    ]
    chart = charts.bars("time", "Minutes of each stage's last run", bars, "minutes")
    rows = [[stage.replace("@", " "), number(s, 1), percent(s / total if total else None)] for stage, s in seconds.items()]
    table = Table("Time of each stage's last run", ["stage", "seconds", "share"], [*rows, ["all", number(total, 1), ""]])
    text = f"{duration(total)} in stages, each by its last run."
    return Section("time", "Time", text, [Group([Chart("Time of each stage", chart)], None, TIME_KEYS, table)])


# --- where it comes from ---


def code_text(changed: Sequence[str] | bool | None) -> str:
    """Whether the code was as committed, or which files differed; older models did not record the names."""
    if changed is None:
        return UNKNOWN
    return f"changed since: {changed_text(changed)}" if changed and changed is not True else "changed since" if changed else "as committed"


def provenance(run: Run) -> Section | None:
    made = run["made"]
    if not made:
        return None
    models = [
        [name, f["stage"], (f["code"]["commit"] or UNKNOWN)[:12], code_text(f["code"]["changed"]), f["host"]]
        for name, f in made["models"].items()
    ]
    versions = {(what, version) for f in made["models"].values() for what, version in f["versions"].items()}
    tables = [Table("Models", ["platform", "stage", "commit", "code", "host"], models, left=5)] if models else []
    if versions:
        tables.append(Table("Versions", ["what", "version"], [list(each) for each in sorted(versions)], left=2))
    if made["changed"]:
        rows = [[name, value_of(before), value_of(here)] for name, (before, here) in made["changed"].items()]
        tables.append(Table("Parameters that differ from the committed ones", ["parameter", "committed", "this run"], rows, left=3))
    parameters = Table(
        "All parameters", ["parameter", "value"], [[name, value_of(value)] for name, value in made["parameters"].items()], left=2
    )
    text = {True: "", False: "All parameters are those committed."}[bool(made["changed"])]
    text = (
        "Which parameters differ from the committed ones is not known: params.yaml is not committed." if made["changed"] is None else text
    )
    return Section("provenance", "Where it comes from", text, tables=tables, folded=[parameters])


def value_of(value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


def left_out(run: Run) -> Section | None:
    if not run["left_out"]:
        return None
    table = Table("Left out", ["what", "why"], [[what, why] for what, why in run["left_out"]], left=2)
    return Section("left-out", "What is missing, and why", "", tables=[table])

"""The page's section on the result of tuning a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tcl_core.report import charts
from tcl_core.report.parts import UNKNOWN, Chart, Group, Key, Section, Table, count, duration, milliseconds, number, percent

NAMES = {"tuned": "tuned", "eager": "PyTorch eager", "compile": "torch.compile"}
COLOURS = {"tuned": 1, "eager": 2, "compile": 4}
MOST_TASKS = 12  # rows of the task table; the other tasks are summed up in one row


def tuning(tuned: Mapping[str, Any]) -> list[Section]:
    """The tuning section; an empty list if no network was tuned."""
    if not tuned:
        return []
    systems = _systems(tuned)
    timed = [
        charts.Repeated(NAMES.get(name, name), system["rounds_ms"] or [system["median_ms"]], system["median_ms"], COLOURS.get(name, 5),
                        milliseconds(system["median_ms"]))
        for name, system in systems.items()
    ]  # fmt: skip
    what = f"{tuned['network']} on {tuned['platform']}"
    drawn = [
        Chart(
            "Milliseconds of one inference",
            charts.scatters("latency", f"Latency of {what}: every round and the median of each system", timed, "ms"),
        )
    ]
    legend = []
    if curve := tuned.get("curve"):
        drawn.insert(0, _curve(curve, tuned, systems))
        legend = [
            Key("tuned, by its tasks' best programs", 3),
            *(Key(f"{NAMES.get(name, name)}, measured", COLOURS.get(name, 5)) for name in systems),
        ]
    text = (
        f"{what}, ranked by {_ranker(tuned)}: {count(tuned.get('trials'))} programs of {count(tuned.get('tasks'))} tasks in {duration(tuned.get('search_s'))}. "
        f"Untuned it takes {milliseconds(tuned['untuned_ms'])}. All systems ran by turns, each in a process of its own; a dot is a round, a stroke what they come to."
    )
    folded = [_tasks(tuned["task_times"])] if tuned.get("task_times") else []
    return [Section("tuning", "Tuning", text, [Group(drawn, None, legend, _compared(tuned, systems))], folded=folded)]


def _ranker(tuned: Mapping[str, Any]) -> str:
    version = tuned.get("champion_version")
    return str(tuned["model"]) if "model" in tuned else f"champion version {version}" if version else "the champion"


def _systems(tuned: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Name -> {median_ms, rounds_ms, difference}; from a report without rounds, only the medians."""
    found = tuned.get("compared", {}).get("systems")
    if found:
        return dict(found)
    known = {"tuned": tuned["tuned_ms"], "eager": tuned["pytorch_ms"], "compile": tuned.get("compile_ms")}
    return {name: {"median_ms": ms, "rounds_ms": [], "difference": None} for name, ms in known.items() if ms is not None}


def _curve(curve: Sequence[Sequence[float]], tuned: Mapping[str, Any], systems: Mapping[str, Any]) -> Chart:
    trials, _, ms = (list(each) for each in zip(*curve, strict=True))
    if trials[-1] < (last := tuned.get("trials", 0)):  # later programs brought no improvement
        trials, ms = [*trials, last], [*ms, ms[-1]]
    levels = [charts.Level(NAMES.get(name, name), system["median_ms"], COLOURS.get(name, 5)) for name, system in systems.items()]
    alt = f"Milliseconds of {tuned['network']} against programs measured, beside what each system takes"
    series = [charts.Line(trials, ms, 3)]
    return Chart(
        "Against programs measured",
        charts.lines("tuned-curve", alt, series, "programs measured", "ms", log=True, steps=True, levels=levels),
    )


def _compared(tuned: Mapping[str, Any], systems: Mapping[str, Any]) -> Table:
    ratios = tuned.get("compared", {}).get("ratios", {})
    rows = []
    for name, system in systems.items():
        rounds = system["rounds_ms"]
        between = f"{milliseconds(min(rounds))} to {milliseconds(max(rounds))}" if rounds else UNKNOWN
        ratio = ratios.get(f"tuned/{name}")
        told = f"{number(ratio['value'], 2)} ({number(ratio['low'], 2)} to {number(ratio['high'], 2)})" if ratio else UNKNOWN
        differs = tuned.get("difference") if name == "tuned" else system["difference"]
        rows.append([NAMES.get(name, name), milliseconds(system["median_ms"]), between, told, _exponent(differs)])
    rows.append(["untuned", milliseconds(tuned["untuned_ms"]), UNKNOWN, UNKNOWN, UNKNOWN])
    return Table("One inference", ["system", "median", "rounds", "tuned / this (95 % interval)", "difference of the output"], rows)


def _exponent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1e}"


def _tasks(times: Sequence[Mapping[str, Any]]) -> Table:
    """Table of the network's costliest tasks, by their total time in one inference (runs times latency)."""
    total = sum(_share_ms(task) for task in times)
    ordered = sorted(times, key=lambda task: -_share_ms(task))
    rows = [
        [
            task["name"],
            f"{task['weight']:g}",
            milliseconds(task["latency_ms"]),
            percent(_share_ms(task) / total if total else None),
            count(task["trials"]),
        ]
        for task in ordered[:MOST_TASKS]
    ]
    if rest := ordered[MOST_TASKS:]:
        share = sum(map(_share_ms, rest)) / total if total else None
        rows.append([f"{len(rest)} others", "", "", percent(share), count(sum(task["trials"] for task in rest))])
    return Table("Tasks of the network, the costliest first", ["task", "times", "latency", "share", "programs measured"], rows)


def _share_ms(task: Mapping[str, Any]) -> float:
    return task["weight"] * (task["latency_ms"] or 0.0)

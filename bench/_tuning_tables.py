"""Figures of the networks that tune.py tuned, over seeds and machines, with their tables and curves."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from _tables import into_document, markdown, mean_interval, result_file

from tcl_core import environment  # noqa: F401  (before torch is imported)

from tcl_core.tuning.latency import ratio, typical

from _tuners import SYSTEMS
from _tuning_curves import draw

OURS, RANDOM, STOCK, TENSET, SCRATCH = "TCL", "random", "MetaSchedule", "TenSet MLP", "from scratch"
DONORS, WARM_START = "Transfer-Tuning", "TCL, warm start"
LONG = 1000  # programs
CHECKPOINTS = 200, 500  # programs
DRAWN = (OURS, WARM_START, SCRATCH, RANDOM, TENSET, f"{TENSET}, our engine", STOCK, f"{STOCK}, our engine")  # of the curves

Part = dict[str, dict[str, Any]]
"""Results of one machine, champion, graph and search: ``graph`` as in params.yaml, ``search``, our search's settings, ``units``, what
each did, and ``compared``, the milliseconds of each group's systems."""

Curve = Sequence[Sequence[float]]
"""Points [programs measured, seconds, the network's milliseconds]."""

Group = tuple[dict[str, Any], dict[str, Curve]]
"""Systems that were compared on a network, and the curve of each."""

RIVALS = {
    "time_to_tenset_x": TENSET,
    "time_to_tenset_our_engine_x": f"{TENSET}, our engine",
    "time_to_stock_x": STOCK,
    "time_to_random_x": RANDOM,
    "time_to_scratch_x": SCRATCH,
}
MEANS = {
    "speedup_over_eager": "PyTorch eager's time / TCL's",
    "speedup_over_compile": "torch.compile's / TCL's",
    "long_speedup_over_eager": "PyTorch eager's / TCL's with 1,000 programs",
    "long_speedup_over_compile": "torch.compile's / TCL's with 1,000 programs",
    "equal_trials_random_x": "random programs' / TCL's",
    "equal_trials_scratch_x": "from scratch / TCL's",
    "equal_trials_stock_x": "MetaSchedule's / TCL's",
    "equal_trials_x": "the TenSet MLP's / TCL's",
}


def show() -> None:
    """Print the tables and put them into the documents, and draw the curves."""
    found = json.loads(result_file("tune.json").read_text())
    summary, (present, _) = found["summary"], by_age(found["parts"])
    last, (main, others) = list(present.values()), by_seeds(present)
    print(table(present))
    into_document("tune", table(main))
    into_document("tune-machines", table(others))
    into_document("tune-systems", table_of_systems(summary))
    into_document("tune-checkpoints", table_at_checkpoints(next(iter(main.values()))))
    into_document(
        "tune-donors", table_of_donors(last) or table_of_donors(list(found["parts"].values()))
    )  # of earlier parts, where the present ones have none
    drawn = {network: fullest(network, last) for network in summary}  # one machine's: milliseconds of two do not compare
    curves = {
        network: {
            system: found
            for system in DRAWN
            if (found := [c for group in _groups(network, [part], False) if (c := _scaled(system, *group))])
        }
        for network, part in drawn.items()
    }
    lines = {
        network: {
            name: found[key][0]
            for key, name in {"eager_ms": "PyTorch eager", "compile_ms": "torch.compile"}.items() if found and found[key]
        }
        for network, part in drawn.items() for found in [figures(network, [part])]
    }  # fmt: skip
    draw({network: found for network, found in curves.items() if found}, lines, result_file("tune_curves.png"))


def by_age(parts: Mapping[str, Part]) -> tuple[dict[str, Part], dict[str, Part]]:
    """(present, earlier) parts; present are those with the last part's graph and search, of each machine its last champion's.

    A part that lacks a network of its machine's part before has only begun, and is neither.
    """
    shown: dict[str, Part] = {}
    before: dict[str, Part] = {}  # machine -> its last part
    for here, part in parts.items():
        if _tuned(before.get(_machine(here), {"compared": {}})) <= _tuned(part):
            before[_machine(here)] = shown[here] = part
    last = list(shown.values())[-1]
    alike = [here for here, part in shown.items() if all(part.get(key) == last.get(key) for key in ("graph", "search"))]
    latest: dict[str, str] = {}
    for here in alike:
        latest.pop(_machine(here), None)  # a machine takes the place of its last champion
        latest[_machine(here)] = here
    present = latest.values()
    return {here: parts[here] for here in present}, {here: part for here, part in shown.items() if here not in present}


def by_seeds(present: Mapping[str, Part]) -> tuple[dict[str, Part], dict[str, Part]]:
    """(the part with most seeds of its networks, the last one of several; the others)."""
    main = max(reversed(present), key=lambda here: sum(compared["trials"] != LONG for compared in present[here]["compared"].values()))
    return {main: present[main]}, {here: part for here, part in present.items() if here != main}


def _machine(here: str) -> str:
    return here.partition(", champion ")[0]


def _tuned(part: Part) -> set[str]:
    """Networks that TCL tuned."""
    return {compared["network"] for compared in part["compared"].values() if OURS in compared["systems_ms"]}


def summary_of(parts: Sequence[Part], earlier: Sequence[Part] = ()) -> dict[str, dict[str, Any]]:
    """Network -> its figures."""
    networks = dict.fromkeys(compared["network"] for part in (*parts, *earlier) for compared in part["compared"].values())
    return {network: found for network in networks if (found := figures(network, parts, earlier) or figures(network, earlier))}


def figures(network: str, parts: Sequence[Part], earlier: Sequence[Part] = ()) -> dict[str, Any] | None:
    """The network's row of the summary: each figure as [mean, low, high] over the seeds of the fullest part, the ends None for a single
    seed; None without a group of TCL.

    What another system is compared with in other parts alone (``elsewhere``), first in those of ``parts``, is the mean of what there
    is, without an interval: these differ in more than the seed.  ``reached`` is [groups in which TCL became as fast as the rival, all
    groups]; only in the former are their seconds compared.
    """
    short, long = (_groups(network, parts, is_long) for is_long in (False, True))
    before = _groups(network, earlier, False)
    if not any(OURS in compared["systems_ms"] for compared, _ in (*short, *long)):
        return None
    here, here_long = (_groups(network, [fullest(network, parts)], is_long) for is_long in (False, True))
    ms = lambda system: _over(typical(compared["rounds_ms"][system]) for compared, _ in here if system in compared["rounds_ms"])  # noqa: E731
    has = lambda system, groups: any(system in compared["rounds_ms"] for compared, _ in groups)  # noqa: E731
    of = lambda system: next((groups for groups in (here, short, before) if has(system, groups)), [])  # noqa: E731
    over = lambda other, values: _over_ratios(values) if has(other, here) else _mean_alone(_over_ratios(values))  # noqa: E731
    times = lambda other: over(other, (_times_ours(other, compared) for compared, _ in of(other)))  # noqa: E731
    times_long = lambda other: _over_ratios(_times_ours(other, compared) for compared, _ in here_long or long)  # noqa: E731
    seconds = {key: [time_to(rival, *group) for group in of(rival) if rival in group[0]["rounds_ms"]] for key, rival in RIVALS.items()}
    systems_x = {system: found for system in SYSTEMS if system != OURS and (found := times(system))}
    return {
        "groups": len(here),
        "ours_ms": ms(OURS),
        "eager_ms": ms("eager"),
        "compile_ms": ms("compile"),
        "stock_ms": ms(STOCK),
        "tenset_ms": ms(TENSET),
        "random_ms": ms(RANDOM),
        "scratch_ms": ms(SCRATCH),
        "systems_ms": {system: found for system in SYSTEMS if (found := ms(system))},
        "speedup_over_eager": times("eager"),
        "speedup_over_compile": times("compile"),
        "equal_trials_x": times(TENSET),
        "equal_trials_stock_x": times(STOCK),
        "equal_trials_random_x": times(RANDOM),
        "equal_trials_scratch_x": times(SCRATCH),
        "systems_x": systems_x,
        "elsewhere": [system for system in systems_x if not has(system, here)],
        **{key: over(RIVALS[key], found) for key, found in seconds.items()},
        "reached": {key: [sum(each is not None for each in found), len(found)] for key, found in seconds.items() if found},
        "long_ms": _over(typical(compared["rounds_ms"][OURS]) for compared, _ in here_long if OURS in compared["rounds_ms"]),
        "long_speedup_over_eager": times_long("eager"),
        "long_speedup_over_compile": times_long("compile"),
    }


def fullest(network: str, parts: Sequence[Part]) -> Part:
    """The part that tuned the network with most seeds, of equals the one by most systems, of equals again the last."""

    def full(part: Part) -> tuple[int, int]:
        groups = _groups(network, [part], False)
        return len(groups), len({system for compared, _ in groups for system in compared["systems_ms"]})

    return max(reversed(parts), key=full)


def _groups(network: str, parts: Sequence[Part], is_long: bool | None = None) -> list[Group]:
    """Groups compared on a network: those with ``LONG`` programs (``is_long``), those with others, or (None) all."""
    found = [
        (compared, {system: part["units"].get(f"{name}: {system}", {}).get("curve") or [] for system in compared["systems_ms"]})
        for part in parts
        for name, compared in part["compared"].items()
        if compared["network"] == network
    ]
    return [group for group in found if is_long is None or (group[0]["trials"] == LONG) == is_long]


def _times_ours(other: str, compared: Mapping[str, Any]) -> float | None:
    """Another system's milliseconds / ours, paired by rounds, in which both saw the same machine (``tuning.latency.ratio``)."""
    ours, theirs = (compared["rounds_ms"].get(system) for system in (OURS, other))
    return ratio(theirs, ours).value if ours and theirs else None


def _over(values: Iterable[float | None]) -> list[float | None] | None:
    """Mean and 95 % interval over groups."""
    there = [value for value in values if value is not None]
    if not there:
        return None
    return list(mean_interval(there)) if len(there) > 1 else [there[0], None, None]


def _over_ratios(values: Iterable[float | None]) -> list[float | None] | None:
    """Geometric mean and 95 % interval over groups, both computed on the logarithms."""
    found = _over(math.log(value) if value else None for value in values)
    return found and [None if end is None else math.exp(end) for end in found]


def _mean_alone(found: list[float | None] | None) -> list[float | None] | None:
    return found and [found[0], None, None]


def time_to(rival: str, compared: Mapping[str, Any], curves: Mapping[str, Curve]) -> float | None:
    """A rival's seconds to its best latency / our seconds to the same latency; None where we never reached it."""
    ours, theirs = (_scaled(system, compared, curves) for system in (OURS, rival))
    if not ours or not theirs:
        return None
    end = theirs[-1][2]
    reached = next((seconds for _, seconds, ms in ours if ms <= end), None)
    return None if reached is None else theirs[-1][1] / reached


def _scaled(system: str, compared: Mapping[str, Any], curves: Mapping[str, Curve]) -> Curve:
    """A system's curve, scaled to end at the latency of the whole network as measured side by side.

    While tuning, only the sum over the network's tasks is known.
    """
    final, curve = compared["systems_ms"].get(system), curves.get(system)
    if final is None or not curve:
        return []
    return [[trials, seconds, ms * final / curve[-1][2]] for trials, seconds, ms in curve]


def table(parts: Mapping[str, Part]) -> str:
    """A row for each network on each machine, then the geometric means over each machine's networks.

    Columns without any figure are left out; "" without parts.
    """
    if not parts:
        return ""
    columns = {"TCL": "ours_ms", "PyTorch eager": "eager_ms", "torch.compile": "compile_ms"}
    ratios = {
        "eager / TCL": "speedup_over_eager",
        "compile / TCL": "speedup_over_compile",
        "random / TCL": "equal_trials_random_x",
        "from scratch / TCL": "equal_trials_scratch_x",
    }
    rows, means = [], []
    for machine, part in zip(names_of(list(parts)), parts.values(), strict=True):
        summary = summary_of([part])
        for network, found in summary.items():
            cells = [
                *(_shown(found[key] and found[key][:1], " ms") for key in columns.values()),
                *(_shown(found[key], "x") for key in ratios.values()),
            ]
            rows.append([network, machine if len(parts) > 1 else "-", *cells])
        said = "; ".join(f"{said}: {mean}" for key, said in MEANS.items() if (mean := _mean_over_networks(part, summary, key)))
        means.append(f"Geometric means over the networks, {machine}. {said}.")
    header = ["network", "machine", *columns, *ratios]
    known = [place for place in range(len(header)) if any(row[place] != "-" for row in rows)]
    told = markdown([header[place] for place in known], [[row[place] for place in known] for row in rows])
    return "\n\n".join([told, *means])


def names_of(parts: Sequence[str]) -> list[str]:
    """Short name of each part's machine and platform; for a machine with several champions also the champion's first digits."""
    machines = [re.sub(r"\((R|TM)\)| Processor\b| x\d+ [0-9a-f]+|, champion .*", "", here) for here in parts]
    champions = [re.search(r", champion [0-9a-f]{1,4}", here) for here in parts]
    return [
        machine + (champion[0] if champion and machines.count(machine) > 1 else "")
        for machine, champion in zip(machines, champions, strict=True)
    ]


PYTORCH = {
    "PyTorch eager": "speedup_over_eager",
    "torch.compile": "speedup_over_compile",
    "PyTorch eager / TCL, 1,000 programs": "long_speedup_over_eager",
    "torch.compile / TCL, 1,000 programs": "long_speedup_over_compile",
}
TIMES = {
    TENSET: ("seconds to TenSet's best, its / TCL's", "time_to_tenset_x"),
    f"{TENSET}, our engine": ("the same, both on our engine", "time_to_tenset_our_engine_x"),
    RANDOM: ("seconds to random's best, its / TCL's", "time_to_random_x"),
    SCRATCH: ("seconds to the best from scratch, its / TCL's", "time_to_scratch_x"),
}  # the rival whose best is to be reached -> name of the row, figure


def table_of_systems(summary: Mapping[str, Mapping[str, Any]]) -> str:
    """Milliseconds of each other system / TCL's at equal trials, by network and in the geometric mean; last the ratios of tuning times."""
    systems = {system: [row["systems_x"].get(system) for row in summary.values()] for system in SYSTEMS}
    of_pytorch, of_times = ({name: [row[key] for row in summary.values()] for name, key in of} for of in (PYTORCH.items(), TIMES.values()))
    whose, keys, rows = {name: system for system, (name, _) in TIMES.items()}, dict(TIMES.values()), []
    for name, cells in {**of_pytorch, **systems, **of_times}.items():
        some = [row["reached"].get(keys.get(name, ""), [1, 1]) for row in summary.values()]
        told = [f" ({reached} of {groups})" * (reached < groups) for reached, groups in some]
        means = [cell[0] for cell, missed in zip(cells, told, strict=True) if cell and not missed]
        if means:
            stars = ["*" * (whose.get(name, name) in row["elsewhere"]) for row in summary.values()]
            mean = f"{math.exp(statistics.fmean(map(math.log, means))):.2f}x" + ("" if len(means) == len(cells) else f" of {len(means)}")
            shown = (_shown(cell, "x") + star + missed for cell, star, missed in zip(cells, stars, told, strict=True))
            rows.append([name, *shown, mean])
    groups = ", ".join(f"{network} {row['groups']}" for network, row in summary.items())
    return (
        f"{markdown(['system / TCL', *summary, 'geometric mean'], rows)}\n\n"
        f"A star: on another machine, with another champion, or with graphs and searches of before, the mean of what there is. What else has no interval is of one seed; the "
        f"others: {groups}. Seconds (1 of 2): in one of two comparisons TCL never was as fast, and such a network is not in the mean."
    )


def table_at_checkpoints(part: Part) -> str:
    """Milliseconds of each network after so many programs, by system and by how many programs it was given; means over seeds."""
    found: dict[tuple[str, int, str], list[Curve]] = {}
    for group, compared in part["compared"].items():
        for system in (OURS, SCRATCH, RANDOM, TENSET):
            unit = part["units"].get(f"{group}: {system}", {})
            if curve := _scaled(system, compared, {system: unit.get("curve", [])}):
                found.setdefault((compared["network"], unit["trials"], system), []).append(curve)
    rows = []
    networks = list(dict.fromkeys(network for network, *_ in found))
    for (network, trials, system), curves in sorted(found.items(), key=lambda each: networks.index(each[0][0])):
        cells = [[_ms_after(count, curve) for curve in curves] if count <= trials else [None] for count in CHECKPOINTS]
        rows.append([network, system, f"{trials:,}", *map(_mean_ms, cells), _mean_ms([curve[-1][2] for curve in curves])])
    return markdown(["network", "system", "programs", *(f"after {count:,}" for count in CHECKPOINTS), "in the end"], rows)


def _ms_after(count: int, curve: Curve) -> float | None:
    """A curve's milliseconds after so many programs; None while a task has none that ran."""
    reached = [ms for measured, _, ms in curve if measured <= count]
    return reached[-1] if reached else None


def _mean_ms(values: Sequence[float | None]) -> str:
    there = [value for value in values if value is not None]
    return f"{statistics.fmean(there):.2f}" if len(there) == len(values) else "-"


def table_of_donors(parts: Sequence[Part]) -> str:
    """What other networks' schedules are worth on each network: alone, and as a search's first programs; "" without any figures."""
    rows = []
    for part in parts:
        for group, compared in part["compared"].items():
            rounds, unit = compared["rounds_ms"], lambda system, group=group, part=part: part["units"][f"{group}: {system}"]
            if not {OURS, DONORS, WARM_START} <= rounds.keys():
                continue
            speed = lambda system, rounds=rounds: ratio(rounds[OURS], rounds[system]).value  # noqa: E731
            curves = {system: unit(system)["curve"] for system in (OURS, WARM_START)}
            end = compared["systems_ms"][DONORS]
            reached = next((seconds for _, seconds, ms in _scaled(OURS, compared, curves) if ms <= end), None)
            rows.append(
                [
                    compared["network"],
                    f"{unit(DONORS)['seconds']:.0f} s",
                    f"{speed(DONORS):.0%}",
                    "-" if reached is None else f"{reached:.0f} s",
                    f"{unit(OURS)['seconds']:.0f} s",
                    f"{unit(WARM_START)['seconds']:.0f} s",
                    f"{speed(WARM_START):.0%}",
                ]
            )
    if not rows:
        return ""
    header = ["network", "donors alone", "their speed / TCL's", "TCL as fast after", "TCL", "TCL with donors", "their speed / TCL's"]
    return markdown(header, rows)


def _mean_over_networks(part: Part, summary: Mapping[str, Mapping[str, Any]], key: str) -> str:
    """Geometric mean over the networks that have the figure (named if not all), and 95 % interval over the seeds that have all of these."""
    seeds = {compared["seed"] for compared in part["compared"].values()}
    alone = [
        summary_of([part | {"compared": {group: of for group, of in part["compared"].items() if of["seed"] == seed}}]) for seed in seeds
    ]
    networks = [network for network, found in summary.items() if found[key]]
    whole = [found for found in alone if all(found.get(network, {}).get(key) for network in networks)]
    mean, ends = geometric(summary, key), _over_ratios(geometric(found, key) for found in whole)
    some = "" if len(networks) == len(summary) else f" ({', '.join(networks)} alone)"
    return _shown([mean, *(ends[1:] if ends else (None, None))], "") + some if mean else ""


def geometric(summary: Mapping[str, Mapping[str, Any]], key: str) -> float | None:
    """Geometric mean over the networks of a figure's means; None if none has it."""
    found = [row[key][0] for row in summary.values() if row[key]]
    return math.exp(statistics.fmean(map(math.log, found))) if found else None


def _shown(found: Sequence[float | None] | None, unit: str) -> str:
    if found is None:
        return "-"
    mean, *ends = found
    return f"{mean:.2f}{unit}" + ("" if not ends or ends[0] is None else f" ({ends[0]:.2f} to {ends[1]:.2f})")

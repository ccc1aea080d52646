"""Summary of the units of ``transfer.py``: means over tasks, paired differences, and the tables of them.

A unit is identified by pair, labels, method, fold and variant; its figures are lists with a value per task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from _paired import against
from _tables import markdown
from _transfer_data import DEVICES
from _transfer_rows import OURS, ROWS, ZERO_SHOT

FIGURES = ("pairs", "u16", "top1")
METHODS = (ZERO_SHOT, *ROWS)
TITLES = {
    "pairs": "Pairs ranked right",
    "u16": "U16, the speed of the program chosen among sixteen",
    "forgetting": "Pairs forgotten before",
}


class Unit(Protocol):
    pair: str
    labels: int | str
    method: str
    fold: int
    variant: str | None


Units = Mapping[Unit, Mapping[str, Any]]


def best_variant(units: Units, pair: str, labels: int | str, method: str) -> str | None:
    """The variant that ranks most pairs right on the first fold; None while that fold has no unit."""
    known = {
        unit.variant: float(np.mean(found["pairs"]))
        for unit, found in units.items()
        if (unit.pair, unit.labels, unit.method, unit.fold) == (pair, labels, method, 0)
    }
    return max(known, key=known.get) if known else None


def summary(units: Units) -> dict[str, Any]:
    """pair -> labels -> method -> figure -> [mean, low, high] over the folds and their tasks, as ``transfer.py`` says.

    Further keys are ``on`` (platform -> pairs there), ``variant``, ``steps`` and ``folds``.  Zero-shot, which learns no labels, stands
    under each of their numbers.
    """
    found: dict[str, Any] = {}
    for pair, labels in dict.fromkeys((unit.pair, unit.labels) for unit in units):
        rows = {method: _folds(units, pair, labels, method) for method in METHODS}
        zero = rows[ZERO_SHOT] = _folds(units, pair, 0, ZERO_SHOT)
        ours = rows[OURS]
        for method, folds in rows.items():
            if folds:
                others = {"less_zero_shot": zero, "less_ours": ours}
                figures: dict[str, Any] = {name: _over_tasks(folds, name) for name in FIGURES}
                figures["forgetting"] = _over_tasks(folds, "forgetting")
                names = (*FIGURES, "forgetting")
                figures |= {f"{name}_{less}": _less(folds, other, name) for less, other in others.items() for name in names}
                figures["on"] = _on(folds)
                figures["variant"] = best_variant(units, pair, 0 if method == ZERO_SHOT else labels, method)
                figures["steps"] = float(np.mean([fold["steps"] for fold in folds.values()]))
                figures["folds"] = len(folds)
                found.setdefault(short(pair), {}).setdefault(str(labels), {})[method] = figures
    return found


def short(pair: str) -> str:
    return pair.replace("host-", "")


def _folds(units: Units, pair: str, labels: int | str, method: str) -> dict[int, Mapping[str, Any]]:
    """Fold -> figures of the best variant."""
    variant = best_variant(units, pair, labels, method)
    named = (pair, labels, method, variant)
    return {unit.fold: found for unit, found in units.items() if (unit.pair, unit.labels, unit.method, unit.variant) == named}


def _by_task(folds: Mapping[int, Mapping[str, Any]], name: str) -> dict[tuple[int, int], float]:
    """(fold, task) -> figure.  A task that occurs in several folds counts in the first."""
    values: dict[int, tuple[int, float]] = {}
    for fold, found in sorted(folds.items()):
        for task, value in zip(found["tasks"], found[name], strict=True):
            values.setdefault(task, (fold, value))
    return {(fold, task): value for task, (fold, value) in values.items()}


def _over_tasks(folds: Mapping[int, Mapping[str, Any]], name: str) -> list[float | None]:
    return _against(_by_task(folds, name), {})


def _against(mine: Mapping[tuple[int, int], float], theirs: Mapping[tuple[int, int], float]) -> list[float | None]:
    """``_paired.against`` over what both have, or with empty ``theirs`` of ``mine`` alone; for one fold over its tasks."""
    both = sorted(mine.keys() & theirs.keys()) if theirs else sorted(mine)
    ours, others = (np.array([of.get(key, 0.0) for key in both]) for of in (mine, theirs))
    return against(ours, others, np.array([fold for fold, _ in both]))


def _less(folds: Mapping[int, Mapping[str, Any]], other: Mapping[int, Mapping[str, Any]], name: str) -> list[float | None]:
    """Difference task by task, over the folds that both have; all None if there are none."""
    if not folds.keys() & other.keys():
        return [None, None, None]
    return _against(_by_task(folds, name), _by_task(other, name))


def _on(folds: Mapping[int, Mapping[str, Any]]) -> dict[str, float]:
    platforms = next(iter(folds.values()))["on"]
    return {short(name): float(np.mean([fold["on"][name] for fold in folds.values()])) for name in platforms}


def tables(found: Mapping[str, Any]) -> str:
    """Tables by pair, at the number of labels that most pairs have; by number of labels, as means over the data set's pairs A>B; and for pairs
    with several numbers of labels, one by these.

    A star marks a figure whose difference from ours has an interval without 0.  A pair's number of labels that was run on fewer folds
    than others is left out.
    """
    folds = {(pair, n): min(row["folds"] for row in by.values()) for pair, by_labels in found.items() for n, by in by_labels.items()}
    most = max(folds.values(), default=0)
    whole = {pair: {n: by for n, by in by_labels.items() if folds[pair, n] == most} for pair, by_labels in found.items()}
    found = {pair: by_labels for pair, by_labels in whole.items() if by_labels}
    counts = [labels for by_labels in found.values() for labels in by_labels if labels != "0"]
    if not counts:
        return _of_pairs(found, "0", "pairs")
    usual = max(sorted(set(counts), key=size_of), key=counts.count)
    parts = []
    for name, title in TITLES.items():
        parts.append(f"{title}, {usual} labels:\n\n{_of_pairs(found, usual, name)}")
        if sum(pair.count(">") == 1 for pair in found) > 1 or len(set(counts)) > 1:  # else it would repeat the one before
            parts.append(f"{title}, mean over pairs A to B:\n\n{_of_labels(found, sorted(set(counts), key=size_of), name)}")
        if name in FIGURES and len(set(counts)) > 1:
            parts.append(f"{title}, by number of labels:\n\n{_of_sizes(found, usual, sorted(set(counts), key=size_of), name)}")
    return "\n\n".join(
        [
            *parts,
            "A star: the difference from ours is beyond its 95 % interval, over draws of the folds and of their tasks. Four folds make such "
            "intervals narrow: where nothing differs, three to eleven in a hundred would have a star, most where folds differ most.",
        ]
    )


def _of_pairs(found: Mapping[str, Any], labels: str, name: str) -> str:
    """A row per pair, a column per method that any of them was run with."""
    methods = [method for method in METHODS if any(_row_of(by_labels, labels, method) for by_labels in found.values())]
    rows = [
        [
            pair.replace(">", " to "),
            *("-" if name == "forgetting" and _never_knew(pair, method) else _cell(by_labels, labels, method, name) for method in methods),
        ]
        for pair, by_labels in found.items()
        if labels in by_labels
    ]
    return markdown(["from, to", *methods], rows)


def _of_labels(found: Mapping[str, Any], counts: Sequence[str], name: str) -> str:
    """A row per method, a column per number of labels, if ours was run there on the pairs of the fullest: means over other pairs cannot
    be compared.  A method that was not run on all of these has none.  Real devices, whose programs are others, count only alone.
    """
    of_two = {pair: by_labels for pair, by_labels in found.items() if pair.count(">") == 1}
    of_two = {pair: by_labels for pair, by_labels in of_two.items() if pair.split(">")[0] not in DEVICES} or of_two
    run = {labels: {pair: by for pair, by in of_two.items() if _row_of(by, labels, OURS)} for labels in counts}
    most = max(run.values(), key=len)
    columns = {labels: list(pairs.values()) for labels, pairs in run.items() if pairs and pairs.keys() == most.keys()}
    rows = [
        [method, *(_mean([_row_of(by, labels, method) for by in pairs], name) for labels, pairs in columns.items())]
        for method in METHODS
        if any(_row_of(by, labels, method) for labels, pairs in columns.items() for by in pairs)
    ]
    return markdown(["learned by", *(f"{labels} labels ({len(pairs)} pairs)" for labels, pairs in columns.items())], rows)


def _of_sizes(found: Mapping[str, Any], usual: str, counts: Sequence[str], name: str) -> str:
    """For each pair a row per method that was run with other numbers of labels than the usual, and a column per number."""
    rows = [
        [
            pair.replace(">", " to "),
            method,
            _mean([_row_of(by_labels, "0", ZERO_SHOT)], name),
            *(_cell(by_labels, n, method, name) for n in counts),
        ]
        for pair, by_labels in found.items()
        for method in ROWS
        if any(_row_of(by_labels, n, method) for n in counts if n != usual)
    ]
    return markdown(["from, to", "learned by", "zero-shot", *(f"{labels} labels" for labels in counts)], rows)


def _mean(rows: Sequence[Mapping[str, Any] | None], name: str) -> str:
    values = [row[name][0] for row in rows if row]
    return f"{np.mean(values):.3f}" if len(values) == len(rows) else "-"


def _never_knew(pair: str, method: str) -> bool:
    """Whether a method learns only the last platform of a chain, so that it cannot forget those between first and last."""
    return pair.count(">") > 1 and method in ROWS and not ROWS[method].sequential


def _row_of(by_labels: Mapping[str, Any], labels: str, method: str) -> Mapping[str, Any] | None:
    return by_labels.get(labels, {}).get(method)


def _cell(by_labels: Mapping[str, Any], labels: str, method: str, name: str) -> str:
    figures = _row_of(by_labels, labels, method)
    if figures is None:
        return "-"
    ours = _row_of(by_labels, labels, OURS) or {}
    difference = ours.get(f"{name}_less_zero_shot") if method == ZERO_SHOT else figures.get(f"{name}_less_ours")
    low, high = (difference or [None] * 3)[1:]
    star = low is not None and not low <= 0.0 <= high
    return f"{figures[name][0]:.3f}{'*' if star else ''}"


def beside_plain(units: Units, plain: Units) -> dict[str, Any]:
    """pair -> labels -> method -> figure -> its mean in ``plain`` units, and ``FIGURE_less_plain`` [mean, low, high], where both have the
    same folds.
    """
    found: dict[str, Any] = {}
    for pair, labels, method in dict.fromkeys((unit.pair, unit.labels, unit.method) for unit in units):
        mine, theirs = (_folds(of, pair, labels, method) for of in (units, plain))
        if mine and mine.keys() == theirs.keys():
            figures: dict[str, Any] = {f"{name}_less_plain": _less(mine, theirs, name) for name in FIGURES}
            figures |= {name: float(np.mean(list(_by_task(theirs, name).values()))) for name in FIGURES}
            found.setdefault(short(pair), {}).setdefault(str(labels), {})[method] = figures
    return found


def beside_table(found: Mapping[str, Any], labels: str) -> str:
    """A row per pair: figures without the estimate, and what it adds, zero-shot and with a number of labels."""
    columns = [
        ("0", ZERO_SHOT, "pairs"),
        ("0", ZERO_SHOT, "u16"),
        (labels, OURS, "pairs"),
        (labels, OURS, "u16"),
        (labels, "own-taught", "pairs"),
    ]
    columns = [(n, method, name) for n, method, name in columns if any(_row_of(by_labels, n, method) for by_labels in found.values())]
    heads = [f"{method}, {'U16' if name == 'u16' else name}" for _, method, name in columns]
    rows = [
        [pair.replace(">", " to "), *(_added(_row_of(by_labels, n, method), name) for n, method, name in columns)]
        for pair, by_labels in found.items()
    ]
    return markdown(["from, to", *heads], rows)


def _added(row: Mapping[str, Any] | None, name: str) -> str:
    if row is None:
        return "-"
    mean, low, high = row[f"{name}_less_plain"]
    between = "" if low is None else f" ({low:+.3f} to {high:+.3f})"
    return f"{row[name]:.3f}, {mean:+.3f}{between}"


def size_of(labels: str) -> float:
    """A number of labels, to sort by; infinite for all."""
    return float(labels) if labels.isdigit() else np.inf

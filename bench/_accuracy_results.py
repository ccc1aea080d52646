"""Stored runs of the accuracy comparison, and what is derived from them: summaries, comparisons, tables."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from _accuracy_runs import CHAINED, MODELS, OURS, SEARCHED, SETS, TWINS, Run, figures, own_settings, ranked
from _calibration import calibration
from _chain_case import chain_case
from _datasets import Case, Learned, Logs, Reference, reads_of
from _identity import code_identity, data_identity, identity
from _lessons import lesson, log_lesson
from _paired import ByTask, compared
from _ranking_tables import FIGURES, LEAST, interval, overview_table, shown, sizes_and_times
from _tables import ROOT, markdown, result_file, save
from _task_kinds import by_kind, near_or_far

import numpy as np

from tcl_core.locks import wait_for_lock
from tcl_core.models import catalogue
from tcl_core.programs.tasks import Task
from tcl_core.progress import progress
from tcl_core.store import read_table

COMMAND = "python bench/accuracy.py"
DATA = {data: f"accuracy_{data}" for data in (*SETS, "logs")}  # data set -> its table
CURVE = ("xgboost", "trees", OURS, CHAINED)
CALIBRATED = ("trees", OURS, CHAINED)
NEAREST = ("xgboost", "trees", OURS)  # models that rank about equally well
ALL = 10**6  # sorts last: an unbounded number of tasks or programs


class Results:
    """Runs of the comparison: computes the missing ones and keeps all in the results file."""

    def __init__(self, sets: Mapping[str, Reference | Learned], logs: Path, force: bool, room: Path = ROOT / "data" / "bench") -> None:
        """``sets``: data sets by name, "reference" included;  ``room``: folder for imported logs, scores, models, and the lock of
        the results.
        """
        self.path, self.sets, self.logs, self.room = result_file("accuracy.json"), sets, logs, room
        self.reference = sets["reference"]
        self.imported = functools.cache(lambda: Logs(logs, room / "logs"))
        digest = lambda of: " ".join(data_identity(each.folder, logs)["reference"] for each in of.sets)  # noqa: E731
        data = dict.fromkeys(DATA, "") | {name: digest(of) for name, of in sets.items()}
        data["logs"] = data_identity(self.reference.folder, logs)["logs"]
        for name in sets.keys() - {"reference"}:
            data[name] += code_identity([], ["_variants_data"])  # what is learned beside it
        data[SEARCHED] += code_identity([], ["_searched_data"])  # what is ranked of it
        self.identity = functools.cache(lambda run: identity(run.model, data[run.data], own_settings(run)))
        self.force, self.known = force, self._stored()

    def _read(self, part: str) -> list[dict[str, Any]]:
        return json.loads(self.path.read_text())[part] if self.path.exists() else []

    def _stored(self) -> dict[Run, dict[str, Any]]:
        """Stored runs of the current code and data."""
        runs = ((Run(*row["run"]), row) for row in self._read("runs"))
        return {run: row["figures"] for run, row in runs if row["identity"] == self.identity(run) and "of_tasks" in row["figures"]}

    def case(self, run: Run) -> Case:
        """What a run's model learns and ranks; for our models also what the teacher ensemble needs."""
        if run.data == "logs":
            case = self.imported().case(run.platform, run.seed)
            return log_lesson(self.imported(), run.platform, case, run.seed) if run.model == OURS else case
        thin, split = (run.tasks, run.programs, run.seed), _split(run)
        reference = self.sets[run.data]
        if run.model == OURS:
            return lesson(reference, run.platform, thin=thin, split=split)
        if run.model == CHAINED:
            return chain_case(reference, run.platform, thin, split)
        return reference.case(run.platform, reads_of(run.model), split=split).thinned(*thin)

    def _untrue(self) -> list[dict[str, Any]]:
        """Stored rows of other code or data: kept until their runs are computed again.

        A machine without the logs, for example, cannot verify runs that were computed from them.
        """
        return [row for row in self._read("runs") if Run(*row["run"]) not in self.known]

    def outdated(self) -> set[str]:
        """Data sets of which a stored run is of other code or data: what is published of them stays until all are computed again.

        "curve" stands for the points of the learning curve, whose table is one of its own.
        """
        return {run.data if run.whole else "curve" for run in (Run(*row["run"]) for row in self._untrue())}

    def compute(self, runs: Sequence[Run]) -> None:
        """Compute the missing runs (with ``force`` all), saving each before the next begins."""
        todo = [run for run in runs if self.force or run not in self.known]
        with progress("training and ranking", len(todo)) as shown:
            for run in todo:
                kept = (self.scores_of(run), self.model_of(run)) if run.whole else ()
                self.known[run] = self.ranked_again(run) or figures(run, self.case(run), *kept)
                self.write()
                shown.advance(f"{run.model}: top-1 {self.known[run]['top1']:.3f}")

    def write(self, calibrated: list[dict[str, Any]] | None = None) -> None:
        """Save all known runs, those that another process has added meanwhile, and what is derived from them."""
        self.room.mkdir(parents=True, exist_ok=True)
        with (self.room / "accuracy.lock").open("w") as lock:  # held while the results are written
            wait_for_lock(lock)
            known = self._stored() | self.known
            self.known = {run: known[run] for run in sorted(known, key=self._order)}
            rows = [{"run": astuple(run), "identity": self.identity(run), "figures": found} for run, found in self.known.items()]
            old, before, after = self.outdated(), self._read("summary") or {}, self.summary()
            shown = {place: of for place, of in before.items() if _data(place, self.sets) in old}
            shown |= {place: of for place, of in after.items() if _data(place, self.sets) not in old}
            compared = [row for row in self._read("compared") if row["data"] in old] + [r for r in self.compared() if r["data"] not in old]
            calibration = self._read("calibration") if calibrated is None else calibrated
            save(
                "accuracy",
                {"summary": shown, "calibration": calibration, "compared": compared, "runs": rows + self._untrue()},
                COMMAND,
            )

    def _order(self, run: Run) -> tuple[Any, ...]:
        """Sort key: data set, platform along the chain, size, model as listed, seed."""
        places = {name: number for number, name in enumerate(self.reference.platforms)}
        sizes = (run.tasks or ALL, run.programs or ALL)
        return run.data, places.get(run.platform, ALL), run.platform, *sizes, MODELS.index(run.model), run.seed

    def scores_of(self, run: Run) -> Path:
        """File of a run's scores of the tested programs; its name changes with the code and the data."""
        name = f"{run.model}-{run.seed}-{self.identity(run)}.npz"
        return self.room / "scores" / run.data / run.platform / name

    def model_of(self, run: Run) -> Path:
        """Folder of a run's trained model."""
        return self.room / "models" / run.data / run.platform / f"{run.model}-{run.seed}-{self.identity(run)}"

    def ranked_again(self, run: Run) -> dict[str, Any] | None:
        """Figures by the stored model of the run's twin (``TWINS``), which learned the same programs; None without a twin or its model."""
        twin = replace(run, data=TWINS.get(run.data, run.data))
        if run.data not in TWINS or twin not in self.known or not self.model_of(twin).exists():
            return None
        reads = "tokens" if run.model == CHAINED else reads_of(run.model)
        case = self.sets[run.data].case(run.platform, reads, split=_split(run))
        found = ranked(catalogue.load(self.model_of(twin)), case, self.scores_of(run))
        return found | {name: self.known[twin][name] for name in ("train_s", "trained_programs")}

    def compared(self) -> list[dict[str, Any]]:
        """Our model against every other, task by task."""
        return [{"data": data, **row} for data in DATA for row in compared(self.of_tasks(data), OURS)]

    def calibrated(self) -> list[dict[str, Any]]:
        """Calibration of each model on each platform; where scores are not here, a stored row of unchanged identity is kept."""
        reference = [run for run in self.known if run.whole and run.data == "reference" and run.model in CALIBRATED]
        found, before = [], self._read("calibration")
        for platform, model in dict.fromkeys((run.platform, run.model) for run in reference):
            seeds = [run for run in reference if (run.platform, run.model) == (platform, model)]
            named = {"platform": platform, "model": model, "identity": self.identity(seeds[0])}
            found += self.calibration_of(seeds, named) or [row for row in before if named.items() <= row.items()]
        return found

    def of_tasks(self, data: str) -> dict[tuple[str, str], dict[int, dict[str, ByTask]]]:
        """(platform or device, model) -> seed -> figure -> task -> value."""
        found: dict[tuple[str, str], dict[int, dict[str, ByTask]]] = {}
        for run, one in self.known.items():
            if run.whole and run.data == data:
                of = {name: dict(zip(one["tasks"], values, strict=True)) for name, values in one["of_tasks"].items()}
                found.setdefault((run.platform, run.model), {})[run.seed] = of
        return found

    def by_operator(self, data: str) -> list[dict[str, Any]]:
        """Our model against the other two of ``NEAREST``, separately for the tasks of each operator."""
        return self._by_kind(data, {number: task.operator for number, task in self._tested(data).items()})

    def by_nearness(self, data: str) -> list[dict[str, Any]]:
        """The same for tested tasks near to one that was learned, and for those far from all."""
        learned = [tasks[number] for each in self.sets[data].sets for tasks in [_tasks(each)] for number in each._split(())[0]]
        return [{"data": data, **row} for row in self._by_kind(data, near_or_far(self._tested(data), learned))]

    def _tested(self, data: str) -> dict[int, Task]:
        return _tasks(getattr(self.sets[data], "ranked", self.sets[data]))

    def _by_kind(self, data: str, kinds: Mapping[int, str]) -> list[dict[str, Any]]:
        judged = {of: found for of, found in self.of_tasks(data).items() if of[1] in NEAREST}
        return by_kind(judged, kinds, OURS)

    def calibration_of(self, seeds: Sequence[Run], named: dict[str, Any]) -> list[dict[str, Any]]:
        """Calibration of single runs (mean over seeds) and of all seeds as one ensemble; empty for one seed or without their scores."""
        if len(seeds) < 2 or not all(self.scores_of(run).exists() for run in seeds):
            return []
        kept = [dict(np.load(self.scores_of(run))) for run in seeds]
        about = kept[0]["latencies_s"], kept[0]["tasks"]
        alone = [calibration([one["scores"]], *about) for one in kept]
        mean = {key: None if value is None else float(np.mean([a[key] for a in alone])) for key, value in alone[0].items()}
        together = calibration([one["scores"] for one in kept], *about)
        return [named | {"members": 1} | mean, named | {"members": len(seeds)} | together]

    def summary(self) -> dict[str, dict[str, dict[str, Any]]]:
        """platform or device -> model -> figures as [mean, low, high], and parameters.

        For data sets other than the reference and the logs the key is "platform, data set".
        """
        found: dict[str, dict[str, dict[str, Any]]] = {}
        key = lambda run: (run.data, run.platform, run.model) if run.whole else None  # noqa: E731
        for (data, platform, model), runs in grouped(self.known, key):
            entry = {key: interval([f[key] for f in runs], LEAST[key]) for key in FIGURES}
            place = platform if data in ("reference", "logs") else f"{platform}, {data}"
            found.setdefault(place, {})[model] = entry | {"parameters": int(runs[0]["parameters"])}
        return found

    def table(self, data: str) -> str:
        key = lambda run: (run.platform, run.model) if run.whole and run.data == data else None  # noqa: E731
        over_seeds = lambda runs, name: shown([f[name] for f in runs], LEAST[name])  # noqa: E731
        rows = [
            [self.label(place, data), model, *(over_seeds(runs, name) for name in FIGURES), *sizes_and_times(runs)]
            for (place, model), runs in grouped(self.known, key)
        ]
        header = ["device" if data == "logs" else "platform", "model", *FIGURES.values()]
        return markdown([*header, "parameters", "training, CPU s", "ranked per CPU s"], rows)

    def overview(self) -> str:
        """Table of all models on the reference data, by platform: means over seeds of pairs, U16 and top-1."""
        key = lambda run: (run.model, run.platform) if run.whole and run.data == "reference" else None  # noqa: E731
        found = dict(grouped(self.known, key))
        return overview_table([model for model in MODELS if model in {m for m, _ in found}], self.reference.platforms, found)

    def label(self, place: str, data: str) -> str:
        """A platform's or device's name, with "(chosen)" where a tuner chose the tested programs."""
        return f"{place} (chosen)" if data == "logs" and not self.imported().drawn(place) else place

    def size(self) -> tuple[int, int]:
        """Number of the reference data's training tasks, and of programs of the largest."""
        counts = np.bincount(self.reference.case(self.reference.platforms[-1], "tokens").train.tasks)
        return int((counts > 0).sum()), int(counts.max())

    def curve(self) -> list[list[Any]]:
        """Rows [tasks, programs of each, model, figures of all seeds] on the chain's last platform, by size."""
        mine = lambda run: run.data == "reference" and run.platform == self.reference.platforms[-1]  # noqa: E731
        key = lambda run: (run.tasks, run.programs, run.model) if mine(run) and run.model in CURVE else None  # noqa: E731
        found = [[*group, runs] for group, runs in grouped(self.known, key)]
        return sorted(found, key=lambda row: (row[0] or ALL, row[1] or ALL))


def _tasks(reference: Reference) -> dict[int, Task]:
    return dict(enumerate(map(Task.from_row, read_table(reference.folder / "tasks.parquet", "tasks"))))


def _data(place: str, sets: Mapping[str, Reference | Learned]) -> str:
    """Data set of a key of the summary."""
    platform, _, data = place.partition(", ")
    return data or ("reference" if platform in sets["reference"].platforms else "logs")


def _split(run: Run) -> str:
    """Split of the networks that a run's model ranks."""
    return "sealed" if run.data.startswith("sealed") else "held_out"


def grouped(known: dict[Run, Any], key: Callable[[Run], Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield each key with the values of its runs, keys in order of first appearance; runs whose key is None are left out."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for run, found in known.items():
        if (group := key(run)) is not None:
            groups.setdefault(group, []).append(found)
    yield from groups.items()

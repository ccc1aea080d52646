"""The figures of a run, gathered from what its stages wrote: plain data for the report page and for comparisons.

The run is a project's folder, this one or another, or a copy of its data/reports.  Writes nothing, and needs no compiler.

    name, target     the project's folder; the last platform of the chain that ran, of those judged if there are any
    chain            [{platform, kind, hardware, previous, skipped, measured, held_out, champion, version}]
    evaluation       as the stage evaluate wrote it
    learning         platform -> [{phase, epoch, loss, ...}]
    collection       platform -> what the stage collect wrote, and progress, coverage {operator: [measured, pool]}, tasks
    errors           platform -> {"training" or "held-out": {kind: programs}}
    noise            platform -> {programs, repeats, spread: its 0 %, 5 %, ... 100 % quantiles, disturbed}
    tuned            as `tcl tune` wrote it
    seconds          stage -> seconds
    made             measured [first, last], parameters, changed {name: [committed, here]} or None, models {platform: facts}
    stale            platforms whose figures in ``evaluation`` are not those of the present model and held-out records
    left_out         [what, why]

What is not known is empty, and ``left_out`` says why.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ruamel.yaml.error import YAMLError

from tcl_core import provenance, store
from tcl_core.checked import damaged, read_json
from tcl_core.errors import DataError, UsageError
from tcl_core.evaluation.report import chain_matrices, collection_progress
from tcl_core.files import shown
from tcl_core.params import PARAMS
from tcl_core.report.tuned import NAMES
from tcl_core.settings import read_yaml, yaml_format
from tcl_core.stages import promotion
from tcl_core.stages.overview import SUMMARY, stages_of
from tcl_core.stages.tuned_report import last_tuned
from tcl_core.stages.workspace import Workspace, learning_curve

FIGURES = "report.json"  # the figures behind a page, so that a copy of data/reports has them
FORMAT = "figures of a run 1"
KEPT = "its few measurements showed no difference to learn: its model is that of the platform before"
KINDS = {"records": "training", "holdout": "held-out"}
QUANTILES = np.linspace(0, 1, 21)
AGAIN = "write it again: tcl report"


def figures_of(folder: Path) -> dict[str, Any]:
    """The figures of a project, or of a folder of reports.

    Raises UsageError for a folder that is neither, DataError for a damaged file and where nothing has been run yet.
    """
    folder = Path(folder)
    above = folder.absolute().parent.parent
    if (folder / PARAMS).is_file():
        return gather(Workspace(folder))
    if folder.absolute() == Workspace(above).reports and (above / PARAMS).is_file():
        return gather(Workspace(above))
    if (folder / FIGURES).is_file():
        return _saved(folder / FIGURES)
    if not folder.is_dir():
        raise UsageError(f"there is no folder {shown(folder)}; name a project, or a copy of its data/reports")
    found = _of_reports(folder)
    if not _has_something(found):
        raise UsageError(f"{shown(folder)} holds neither params.yaml nor reports; name a project, or a copy of its data/reports")
    return found


def _saved(file: Path) -> dict[str, Any]:
    found = read_json(file, AGAIN)
    if (told := found.pop("format", None)) != FORMAT:
        if str(told).startswith("tuned network"):
            raise UsageError(
                f"{shown(file.parent)} is a tuned network, and reports are of runs; name a project, or a copy of its data/reports"
            )
        raise damaged(file, "it holds no figures of this version", AGAIN)
    return found


def gather(workspace: Workspace, standing: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """The figures of a project; ``standing``: platform -> ``promotion.standing``, by default from its last summary.

    Raises DataError for a damaged file and where nothing has been run yet, UsageError for wrong parameters.
    """
    run, root = _Run(workspace), workspace.root
    found = _of_reports(workspace.reports)
    standing = _summary(workspace) if standing is None else standing
    found |= {
        "name": root.absolute().name,
        "chain": [run.platform(name, standing.get(name, {})) for name in run.params.chain_order],
        "learning": {name: learning_curve(workspace.model_folder(name)) for name in run.trained},
        "collection": {
            name: run.collected(name, found["collection"][name]) for name in run.params.chain_order if name in found["collection"]
        },
        "errors": run.errors(),
        "noise": run.noise(),
        "seconds": run.seconds(),
        "made": run.made(),
    }
    if not _has_something(found):
        raise DataError(f"nothing has been run yet in {shown(root.absolute())}; run: make run")
    ran = [step["platform"] for step in found["chain"] if step["measured"]]
    judged = found["evaluation"].get("platforms", {})
    found["target"] = next((name for name in reversed(ran) if name in judged), ran[-1] if ran else None)
    found["stale"] = run.stale(found["evaluation"])
    found["left_out"] = [
        *([f"platform {step['platform']}", step["skipped"]] for step in found["chain"] if step["skipped"]),
        *(
            [f"accuracy of {name}", "no model of it has been judged yet; run: dvc repro evaluate"]
            for name in ran
            if judged and name not in judged
        ),
        *[["versions of the models", why] for why in dict.fromkeys(of["unknown"] for of in standing.values() if "unknown" in of)],
        *([f"learning curve of {name}", KEPT] for name, epochs in found["learning"].items() if not epochs),
        *found["left_out"],
        *run.left_out,
    ]
    return found


def _has_something(found: Mapping[str, Any]) -> bool:
    return any(found[part] for part in ("evaluation", "collection", "tuned"))


def _summary(workspace: Workspace) -> Mapping[str, Any]:
    try:
        return read_json(workspace.reports / SUMMARY, "write it again: tcl summary")["platforms"]
    except FileNotFoundError:
        return {}


# --- what the folder of reports alone tells ---


def _of_reports(reports: Path) -> dict[str, Any]:
    """Figures from a folder of reports alone.  Raises DataError for a damaged file."""
    evaluation = _evaluation(reports)
    collection = {file.stem: _collected(file) for file in sorted((reports / "collect").glob("*.json"))}
    tuned = last_tuned(reports)
    names = dict.fromkeys([*evaluation.get("chain", {}).get("platforms", evaluation.get("platforms", {})), *collection])
    ran = [name for name in names if not collection.get(name, {}).get("skipped")]
    unknown = dict.fromkeys(("kind", "hardware", "previous", "held_out", "champion", "version"))
    chain = [
        {
            **unknown,
            "platform": name,
            "skipped": collection.get(name, {}).get("skipped"),
            "measured": collection.get(name, {}).get("programs"),
        }
        for name in names
    ]
    collection = {name: collection[name] for name in names if name in collection and not collection[name].get("skipped")}
    return {
        "name": reports.absolute().name,
        "target": ran[-1] if ran else None,
        "chain": chain,
        "evaluation": evaluation,
        "learning": {},
        "collection": {name: {**report, "progress": [], "coverage": {}, "tasks": {}} for name, report in collection.items()},
        "errors": {name: {"training": report["errors"]} for name, report in collection.items()},
        "noise": {},
        "tuned": tuned,
        "seconds": {},
        "made": {},
        "stale": [],
        "left_out": [*_left_out_by_evaluation(evaluation), *_left_out_by_tuning(tuned)],
    }


def _evaluation(reports: Path) -> dict[str, Any]:
    """The evaluation as written; empty if there is none.  Raises DataError where it lacks a figure that all others rest on."""
    file = reports / promotion.EVALUATION
    if not file.is_file():
        return {}
    found = promotion.evaluation(reports)
    for name, figures in found.get("platforms", {"": {}}).items():
        if lacking := {"top_1", "top_1_random", "pairwise_accuracy"} - set(figures):
            lacks = ", ".join(sorted(lacking))
            raise DataError(f"{shown(file)} lacks {lacks} for platform {shown(name)}; judge the models again: dvc repro evaluate")
    return found


def _collected(file: Path) -> dict[str, Any]:
    again = "run its stage again: dvc repro -f collect@PLATFORM"
    found = read_json(file, again)
    if "skipped" not in found and not {"programs", "pool", "errors", "rounds"} <= found.keys():
        raise damaged(file, "it is no report of a collection", again)
    return found


def _left_out_by_evaluation(evaluation: Mapping[str, Any]) -> list[list[str]]:
    if not evaluation:
        return [["accuracy", "no model has been judged yet; run: dvc repro evaluate"]]
    found = []
    if set(evaluation.get("baselines", {})) <= {"zero-shot", "own data only"}:
        found.append(["models beside the chain", "baselines.models of params.yaml lists none"])
    if not chain_matrices(evaluation):
        found.append(["what was forgotten along the chain", "the models were judged by an earlier version; run: dvc repro -f evaluate"])
    return found


def _left_out_by_tuning(tuned: Mapping[str, Any]) -> list[list[str]]:
    if not tuned:
        return [["tuning", "no network has been tuned yet; run: tcl tune"]]
    found = [[NAMES.get(name, name), why] for name, why in tuned.get("compared", {}).get("missing", {}).items()]
    if not tuned.get("curve"):
        found.append(["milliseconds against programs measured", "not every task had a program that ran; give more trials or minutes"])
    if count := tuned.get("left_out"):
        found.append([f"tuned programs of {count} tasks", "the network failed with them, so TVM's own took their place"])
    return found


# --- what the rest of the project tells ---


class _Columns(NamedTuple):
    """Columns of one platform's N records, (N,) each."""

    tasks: np.ndarray
    latencies_s: np.ndarray
    spread: np.ndarray
    repeats: np.ndarray
    errors: np.ndarray
    rounds: np.ndarray
    disturbed: np.ndarray
    measured_at: np.ndarray


def _columns(folder: Path) -> _Columns | None:
    """Columns of a folder's records; None where nothing was measured."""
    if store.skipped_reason(folder) is not None or not any(folder.glob("*.parquet")):
        return None
    names = ("task_key", "latencies_s", "spread", "error", "round", "disturbed", "measured_at")
    blocks = [
        _Columns(
            _texts(block["task_key"]), store.median_latency_s(block["latencies_s"]), block["spread"],
            np.diff(block["latencies_s"].offsets), _texts(block["error"]), block["round"], block["disturbed"],
            block["measured_at"].astype("datetime64[s]"),
        )
        for block in store.iter_columns(folder, names)
    ]  # fmt: skip
    return _Columns(*map(np.concatenate, zip(*blocks, strict=True)))


def _texts(column: store.Coded) -> np.ndarray:
    return np.asarray(column.names, dtype=str)[column.codes]


@dataclass
class _Run:
    """A project; ``left_out`` grows with what is found missing."""

    workspace: Workspace
    left_out: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root, self.params = self.workspace.root, self.workspace.params
        self.records = {
            (name, kind): columns
            for name in self.params.chain_order
            for kind in KINDS
            if (columns := _columns(self.workspace.records_folder(name, kind))) is not None
        }
        self.trained = [name for name in self.params.chain_order if (self.workspace.model_folder(name) / "model.json").is_file()]

    def platform(self, name: str, standing: Mapping[str, Any]) -> dict[str, Any]:
        spec, counts = self.params.platforms[name], {kind: self.records.get((name, kind)) for kind in KINDS}
        return {
            "platform": name,
            "kind": spec.kind,
            "hardware": spec.mcpu or spec.kind,
            "previous": self.params.previous(name),
            "skipped": self.workspace.left_out(name),
            "measured": _length(counts["records"]),
            "held_out": _length(counts["holdout"]),
            "champion": standing.get("champion_version"),
            "version": standing.get("version"),
        }

    def collected(self, name: str, report: Mapping[str, Any]) -> dict[str, Any]:
        """A collection's report, with progress, coverage and tasks from its records."""
        found = self.records.get((name, "records"))
        operators, pool = self._operators(), self._pool()
        if found is None or not set(found.tasks) <= operators.keys():  # the tasks have been cut anew since
            return {**report, "progress": [], "coverage": {}, "tasks": {}}
        kinds = [operators[task] for task in found.tasks]
        measured, offered = Counter(kinds), Counter()
        for task, programs in pool.items():
            offered[operators.get(task, "")] += programs
        per_task = Counter(found.tasks.tolist())
        return {
            **report,
            "progress": collection_progress(found.rounds, found.latencies_s, found.tasks, kinds),
            "coverage": {kind: [measured[kind], offered[kind]] for kind in sorted(measured | offered)},
            "tasks": {"measured": len(per_task), "of": len(pool), "least": min(per_task.values()), "most": max(per_task.values())},
        }

    def _operators(self) -> dict[str, str]:
        """Task -> its operator type."""
        path = self.workspace.task_tables / "tasks.parquet"
        rows = store.read_table(path, "tasks", ["task_key", "op_type"]) if path.is_file() else []
        return {row["task_key"]: row["op_type"] for row in rows}

    def _pool(self) -> Counter[str]:
        """Task -> number of programs that the sampler could choose from."""
        path = self.workspace.pool / "train" / "programs.parquet"
        rows = store.read_table(path, "programs", ["task_key"]) if path.is_file() else []
        return Counter(row["task_key"] for row in rows)

    def errors(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for (name, kind), columns in self.records.items():
            found.setdefault(name, {})[KINDS[kind]] = dict(sorted(Counter(columns.errors.tolist()).items()))
        return found

    def noise(self) -> dict[str, Any]:
        """Platform -> noise of its programs that ran, training and held-out ones together."""
        found = {}
        for name in self.params.chain_order:
            both = [columns for kind in KINDS if (columns := self.records.get((name, kind))) is not None]
            if not both:
                continue
            columns = _Columns(*map(np.concatenate, zip(*both, strict=True)))
            ran = columns.errors == "ok"
            if ran.any():
                found[name] = {
                    "programs": int(ran.sum()),
                    "repeats": float(columns.repeats[ran].mean()),
                    "spread": np.quantile(columns.spread[ran], QUANTILES).round(5).tolist(),
                    "disturbed": int(columns.disturbed.sum()),
                }
        return found

    def seconds(self) -> dict[str, float]:
        """Stage of the present graph -> seconds of its last run, in the order in which stages run."""
        found, again = {}, "run that stage again, or delete the file"
        for stage in stages_of(self.params):
            try:
                found[stage] = read_json(self.workspace.journal / "seconds" / f"{stage}.json", again)["seconds"]
            except FileNotFoundError:
                continue
            except DataError as error:
                self.left_out.append([f"time of {stage}", str(error)])
        return found

    def made(self) -> dict[str, Any]:
        times = sorted(time for columns in self.records.values() for time in (columns.measured_at.min(), columns.measured_at.max()))
        models = {name: made for name in self.trained if (made := self._provenance(name))}
        here = _flat(read_yaml(self.root / "params.yaml"))
        other = {
            model: {name: value for name, value in _flat(made["parameters"]).items() if name in here and here[name] != value}
            for model, made in models.items()
        }
        for model, differs in other.items():
            if differs:
                self.left_out.append(
                    ["what params.yaml says now", f"the model of {model} was made with another {', '.join(sorted(differs))}"]
                )
        parameters, committed = here | {name: value for differs in other.values() for name, value in differs.items()}, _committed(self.root)
        return {
            "measured": [str(times[0]), str(times[-1])] if times else [],
            "parameters": parameters,
            "changed": None if committed is None else _changed(committed, parameters),
            "models": {name: {key: made[key] for key in ("code", "versions", "host", "stage")} for name, made in models.items()},
        }

    def _provenance(self, name: str) -> dict[str, Any]:
        try:
            return provenance.read(self.workspace.model_folder(name))
        except DataError as error:
            self.left_out.append([f"what the model of {name} was made of", str(error)])
            return {}

    def stale(self, evaluation: Mapping[str, Any]) -> list[str]:
        return [name for name, figures in evaluation.get("judged", {}).items() if figures != self._judged_now(name)]

    def _judged_now(self, name: str) -> dict[str, str] | None:
        """As ``Workspace.judged_now``; None where there is nothing to judge any more."""
        try:
            return self.workspace.judged_now(name)
        except DataError:
            return None


def _length(columns: _Columns | None) -> int:
    return 0 if columns is None else len(columns.tasks)


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted name -> value; a list is one value."""
    if not isinstance(tree, Mapping):
        return {prefix: list(tree) if isinstance(tree, Sequence) and not isinstance(tree, str) else tree}
    return {name: value for key, part in tree.items() for name, value in _flat(part, f"{prefix}.{key}" if prefix else str(key)).items()}


def _changed(committed: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Name of a parameter that differs -> [committed, here], None for a missing one."""
    names = dict.fromkeys([*committed, *here])
    return {name: [committed.get(name), here.get(name)] for name in names if committed.get(name) != here.get(name)}


def _committed(root: Path) -> dict[str, Any] | None:
    """The last committed params.yaml, flattened; None where it is not known."""
    try:
        answer = subprocess.run(["git", "show", "HEAD:./params.yaml"], cwd=root, capture_output=True, text=True, timeout=10)
        return _flat(yaml_format(round_trip=False).load(answer.stdout)) if answer.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError, ValueError, TypeError, RecursionError, YAMLError):
        return None

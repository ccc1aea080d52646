"""From a trained model to what compilers load: register, promote, roll back.  Leaves history, not reproducible bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core import provenance, registry, store
from tcl_core.checked import read_json
from tcl_core.errors import DataError, RegistryError, UsageError, unknown_name
from tcl_core.features.batches import Samples
from tcl_core.files import shown
from tcl_core.models import catalogue
from tcl_core.stages.gate import Verdict, judge
from tcl_core.stages.workspace import Workspace, by_measuring, learning_curve, with_registry, without_tasks

EVALUATION = "evaluation.json"  # in the folder of reports
PAGE = "report.html"  # likewise, written by `tcl report`
SHORT = 12  # digits of a hash that people see


@dataclass(frozen=True)
class Promotion:
    """Outcome of promoting a platform's present model; ``str`` gives it as a sentence.

    moved    the alias `champion` moved to it just now;  champion: it is champion now, moved or not
    figures  figure -> both models' values, as ``gate.Verdict`` has them; empty where nothing was compared
    """

    platform: str
    version: int
    champion: bool
    moved: bool
    reason: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        name = f"{registry.model_name(self.platform)} version {self.version}"
        if self.champion and not self.moved:
            return f"{name} is {self.reason}"
        return f"{name} {'is now champion' if self.moved else 'stays a candidate'}: {self.reason}"


@with_registry
def registry_of(workspace: Workspace) -> str:
    """Address of the registry that this workspace's models go to, without its password."""
    return registry.where()


def chosen_platforms(workspace: Workspace, platform: str | None) -> list[str]:
    """The platform asked for, or for None all of ``platforms_here``.  Raises UsageError for an unknown, DataError for a skipped one."""
    if platform is None:
        return workspace.platforms_here()
    workspace.check_platform(platform)
    if reason := workspace.skipped(platform):
        raise DataError(f"platform {platform} was skipped here ({reason}); choose another one")
    return [platform]


@dataclass(frozen=True)
class Registered:
    """The version under which a platform's model is registered."""

    platform: str
    version: int

    def __str__(self) -> str:
        return f"{registry.model_name(self.platform)} version {self.version}"


@with_registry
def register(workspace: Workspace, platform: str) -> Registered:
    """Register a platform's model, with its provenance and its figures.

    Both are as recorded when the model was made and judged, whatever params.yaml and the records are now.  Raises
    DataError where either is not known for this very model.
    """
    folder = workspace.model_folder(platform)
    made, report = provenance.read(folder), evaluation(workspace.reports)
    check_judged(workspace, report, platform)
    figures, origin = report["platforms"][platform], _origin(made, platform, folder)
    version = registry.register(
        platform,
        folder,
        facts=_flat(made["parameters"]),
        metrics={f"{key}.{part}".removesuffix(".value"): v for key, part, v in _numbers(figures)},
        tags=origin
        | {
            "holdout.hash": report["judged"][platform]["holdout"],
            registry.HOST: _judging_host(workspace, platform),
            "figures": figures_text(_plain(figures)),
        },
        curves=_curves(folder),
        artifacts=[
            workspace.reports / EVALUATION,
            *sorted((workspace.reports / "plots").glob("*.png")),
            *filter(Path.is_file, [workspace.root / "dvc.lock"]),  # lets `dvc checkout` restore its data
        ],
        description=_description(platform, figures, origin),
    )
    return Registered(platform, version)


@with_registry
def keep_page(workspace: Workspace) -> list[Registered]:
    """Attach the page of the last run to the registered versions of the present models; returns these.  Raises RegistryAway."""
    kept = []
    for platform in workspace.platforms_that_ran():
        try:
            check_judged(workspace, evaluation(workspace.reports), platform)
        except DataError:  # not judged since it was made: the page belongs to no version
            continue
        if version := _present_version(workspace, platform):
            registry.attach(platform, version, workspace.reports / PAGE)
            kept.append(Registered(platform, version))
    return kept


def standing(workspace: Workspace, platform: str) -> dict[str, int | str | None]:
    """Versions of a platform's present model, if it is registered, and of its champion; None where there is none.

    While the registry is away both are unknown, and ``unknown`` says so.
    """
    try:
        return {"version": _present_version(workspace, platform), "champion_version": registry.champion_version(platform)}
    except registry.RegistryAway:
        return {"version": None, "champion_version": None, "unknown": "the registry is away"}


def _present_version(workspace: Workspace, platform: str) -> int | None:
    """The version of a platform's present model, None where it is not registered.  Raises RegistryAway."""
    folder = workspace.model_folder(platform)
    try:
        return registry.version_of(platform, folder, _origin(provenance.read(folder), platform, folder))
    except registry.RegistryAway:
        raise
    except (DataError, RegistryError):
        return None


@with_registry
def promote(workspace: Workspace, platform: str) -> Promotion:
    """Make the present model champion if it passes the gate against today's champion, on the platform's held-out records.

    It must pass against each withdrawn version of this host too: a rollback holds until something better than what it took back is
    trained.  A champion of another host stays.  Raises RegistryError where it is not registered, DataError where its figures may be
    another model's, or of other records.
    """
    folder = workspace.model_folder(platform)
    version = registry.version_of(platform, folder, _origin(provenance.read(folder), platform, folder))
    check_judged(workspace, evaluation(workspace.reports), platform)
    against = registry.champion_version(platform)
    if against == version:
        return Promotion(platform, version, True, False, "the champion already")
    by_hand = f"tcl rollback --platform {platform} --to {version}"
    if taken := registry.withdrawn(platform, version):
        verdict = Verdict(False, f"a rollback took its place from it ({taken}); to give it back: {by_hand}", {})
    elif against is not None and (apart := registry.of_another_host(platform, version, against)):
        verdict = Verdict(False, apart, {})
    else:
        verdict = _verdict(workspace, platform, against)
        if verdict.better and (why := _no_better_than_withdrawn(workspace, platform)):
            verdict = replace(verdict, better=False, reason=f"{why}; to take it all the same: {by_hand}")
    moved = registry.promote(platform, version, verdict.better, verdict.reason, against)
    return Promotion(platform, version, moved, moved, verdict.reason, verdict.figures())


def check_registered(workspace: Workspace, platform: str, known: Collection[str]) -> None:
    """Raise RegistryError for a platform of the project that has no registered model, UsageError for an unknown name."""
    if platform in known:
        return
    names: Collection[str] = ()
    with suppress(UsageError):  # a registry can be queried without a project, and while params.yaml is being edited
        names = workspace.params.platforms
    if platform in names:
        raise RegistryError(f"no model of {platform} is registered at {registry.where()}; run: tcl register and then: tcl promote")
    raise unknown_name("platform", shown(platform), known, f"the registry at {registry.where()}")


@with_registry
def roll_back(workspace: Workspace, platform: str, reason: str, to: int | None) -> dict[str, Any]:
    """Make a platform's previous champion, or the version ``to``, champion again; returns the champion and previous versions.

    Raises as ``registry.rollback`` and ``check_registered``.
    """
    if not registry.is_there():
        raise RegistryError(
            f"there is no model registry at {registry.where()}, so nothing to go back to; run tcl where it is, or set MLFLOW_TRACKING_URI to it"
        )
    check_registered(workspace, platform, {version.platform for version in registry.versions()})
    reason = shown(reason, 500)
    version, former = registry.rollback(platform, reason, to)
    return {"platform": platform, "champion": version, "previous": former, "reason": reason}


def roll_back_text(done: Mapping[str, Any]) -> str:
    return (
        f"{registry.model_name(done['platform'])} version {done['champion']} is champion again ({done['reason']}); "
        f"version {done['previous']} is the previous one"
    )


def check_judged(workspace: Workspace, report: Mapping[str, Any], platform: str) -> None:
    """Raise DataError unless the evaluation's figures of a platform are the present model's, on the present records."""
    given, names = report.get("judged", {}).get(platform, {}), {"model": "model", "holdout": "held-out records"}
    if other := [names[what] for what, digest in workspace.judged_now(platform).items() if given.get(what) != digest]:
        raise DataError(
            f"the figures in {workspace.reports / EVALUATION} are not those of the present {' and '.join(other)} of platform {platform}; "
            "run: dvc repro evaluate"
        )


def evaluation(reports: Path) -> dict[str, Any]:
    """The report that the stage evaluate wrote into a folder of reports.  Raises DataError where there is none."""
    file = reports / EVALUATION
    try:
        return read_json(file, "judge the models again: dvc repro evaluate")
    except FileNotFoundError:
        raise DataError(f"there is no {file}; the stage evaluate writes it: dvc repro evaluate") from None


def figures_text(metrics: Mapping[str, float]) -> str:
    """``pairs 0.743, U16 0.951, top-1 0.546`` from registered metrics; figures that an older evaluation lacks are left out."""
    names = {"pairwise_accuracy": "pairs", "subset_top_1": "U16", "top_1": "top-1"}
    return ", ".join(f"{name} {metrics[key]:.3f}" for key, name in names.items() if key in metrics) or "none"


def _origin(made: Mapping[str, Any], platform: str, folder: Path) -> dict[str, str]:
    """What a model was made of, as tags; stage and data are part of its identity (``registry.run_key``)."""
    if platform not in made["data"]:
        raise DataError(f"{folder} holds a model of {', '.join(made['data'])}, says its {provenance.FILE}; {provenance.REMEDY}")
    code = made["code"]
    return {
        "dvc.stage": made["stage"],
        "data.hash": made["data"][platform],
        "data.dvc": made.get("dvc", {}).get(platform, "unknown"),
        "model.hash": store.data_digest(folder),
        "model.dvc": provenance.dvc_digest(folder),
        "model.before": made["model_before"] or "none",
        "git.commit": code["commit"] or "none",
        "git.dirty": provenance.changed_text(code["changed"]),
        "tcl_core.hash": code["sources"],
        **{f"{name}.version": version for name, version in made["versions"].items()},
        "host": made["host"],
    }


def _judging_host(workspace: Workspace, platform: str) -> str:
    """Fingerprint of the host that measured a platform's held-out programs."""
    file = workspace.records_folder(platform, "holdout") / "records.parquet"
    return ", ".join(sorted(store.record_hosts(file, by_measuring(platform, "holdout"))))


def _description(platform: str, figures: Mapping[str, Any], origin: Mapping[str, str]) -> str:
    """Description of a version, for people who see it in MLflow."""
    changed = "" if origin["git.dirty"] in ("false", "unknown") else f", where these files differed: {origin['git.dirty']}"
    held_out = f" on {figures['programs']} held-out programs of {figures['tasks']} tasks" if {"programs", "tasks"} <= figures.keys() else ""
    return "\n\n".join((
        f"Ranks tensor programs for {platform}: one number a program, higher is faster, comparable within a task only.",
        f"How good{held_out}, of networks that it was not trained on: {figures_text(_plain(figures))}.",
        f"Made by {origin['dvc.stage']} from the records {origin['data.hash'][:SHORT]} (DVC: {origin['data.dvc']}), "
        f"with the code of commit {origin['git.commit'][:SHORT]}{changed}, on {origin['host']}.",
    ))  # fmt: skip


def _no_better_than_withdrawn(workspace: Workspace, platform: str) -> str:
    """Why the present model does not pass the gate against a version that a rollback withdrew; empty where it passes against each.

    The next training repeats what the last one made, from a little more data, and beats today's champion as that one did.
    """
    here = _judging_host(workspace, platform)
    for version in registry.versions(platform):
        if (withdrawn := version.tags.get(registry.WITHDRAWN)) and version.tags.get(registry.HOST, here) == here:
            found = _verdict(workspace, platform, version.number, "withdrawn champion")
            if found.decided and not found.better:
                return f"no better than version {version.number}, which a rollback withdrew ({withdrawn}): {found.reason}"
    return ""


def _verdict(workspace: Workspace, platform: str, against: int | None, role: str = "champion") -> Verdict:
    """Whether the present model passes the gate against a version in a ``role``, or against a random ranking where there is none."""
    samples, params = workspace.samples(platform, "holdout"), workspace.params
    samples, known = without_tasks(workspace, samples, _learned(workspace, platform, against))
    if not len(samples):
        why = f"each of the {known} held-out tasks was learned by the candidate or the {role}; hold out other networks"
        return Verdict(False, why, {}, decided=False)
    predicted = catalogue.load(workspace.model_folder(platform)).predict(samples)
    rival, name = _rival(platform, against, samples, role)
    weights = workspace.task_weights("held_out")
    found = judge(rival, predicted, samples, weights, params.promote, name, against is None, params.evaluate.bootstrap, params.seed)
    left_out = f"; {known} tasks that the candidate or the {role} has learned are left out" if known else ""
    return replace(found, reason=found.reason + left_out)


def _learned(workspace: Workspace, platform: str, against: int | None) -> frozenset[str]:
    """Keys of the tasks that the present model or the version ``against`` has learned."""
    found = provenance.learned_tasks(workspace.model_folder(platform))
    if against is not None:
        with suppress(DataError, UsageError):  # a damaged version ranks nothing: see ``_rival``
            found |= provenance.learned_tasks(_folder(platform, against))
    return found


def _folder(platform: str, version: int) -> Path:
    return registry.champion(f"{platform}:{version}")[1]


def _rival(platform: str, against: int | None, samples: Samples, role: str) -> tuple[np.ndarray, str]:
    """Predictions (N,) that the candidate must beat, and their name: those of the version ``against``, or a random ranking.

    Equal predictions are exactly a random ranking, since the metrics take the expected latency of a choice among equals.
    A random ranking also replaces a version that cannot rank these samples, so that not just any candidate passes.
    """
    at_random = np.zeros(len(samples), np.float32)
    if against is None:
        return at_random, "a random ranking"
    try:
        predicted = catalogue.load(_folder(platform, against)).predict(samples)
        if np.isnan(predicted).any():
            raise DataError("it predicts values that are not numbers")
    except (DataError, UsageError) as error:  # damaged, of another feature width, of a class that no longer exists
        why = str(error).rstrip(".")
        return at_random, f"a random ranking ({role} version {against} cannot rank them: {why})"
    return predicted, f"{role} version {against}"


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


def _plain(figures: Mapping[str, Any]) -> dict[str, float]:
    """Figure -> its value, without intervals."""
    return {key: value for key, part, value in _numbers(figures) if part == "value"}


def _curves(folder: Path) -> dict[str, list[float]]:
    """``PHASE.METRIC`` -> one value per epoch of the phase."""
    curves: dict[str, list[float]] = {}
    for entry in learning_curve(folder):
        for name, value in entry.items():
            if name not in ("phase", "epoch") and value is not None:
                curves.setdefault(f"{entry['phase']}.{name}", []).append(value)
    return curves

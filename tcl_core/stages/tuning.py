"""`tcl tune`: tune a network with a champion.  Leaves history, not reproducible bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tcl_core import registry, shipped_model, store
from tcl_core.checked import write_json
from tcl_core.compat import TVM_VERSION, make_target
from tcl_core.errors import DataError, NoChampionError, TclError, UsageError
from tcl_core.files import shown, writing
from tcl_core.measure.job import Setup
from tcl_core.platforms import kind_of, what_to_add
from tcl_core.programs.networks import check_there
from tcl_core.stages.collecting import setup_of
from tcl_core.stages.exchange import keep_tuned
from tcl_core.stages.machine import measuring_alone
from tcl_core.stages.workspace import Workspace, kept, with_registry
from tcl_core.stages.tuned_folder import add_report, tasks_ms, tuned_folder, unchecked_text
from tcl_core.stages.tuned_report import TUNED, tuned_text
from tcl_core.stages.unfinished import asked_for, check_length, folder_of
from tcl_core.trained import Trained, find_trained


@dataclass(frozen=True)
class TuneRequest:
    """What to tune, and for how long.

    network     a name, or a file with fixed shapes; None: params.yaml's
    platform    None: the last of the chain that ran
    trials      programs to measure, or ``minutes`` to spend; neither: params.yaml's trials
    force       tune even if the last tuning had the same graph, champion and trials
    out         folder for the tuned network (``tuned_folder``);  overwrite: replace it if ``tcl tune`` wrote it
    warm_start  databases of tuned networks, whose programs are tried first
    model       folder or file of a saved model to use instead of the champion
    """

    network: str | None = None
    platform: str | None = None
    trials: int | None = None
    minutes: float | None = None
    force: bool = False
    out: Path | None = None
    overwrite: bool = False
    warm_start: Sequence[Path] = ()
    model: Path | None = None

    @property
    def of_the_pipeline(self) -> bool:
        """Whether nothing in particular was asked for; then having no model to tune with, or platform to tune on, is no failure."""
        return replace(self, force=False) == TuneRequest()

    def __post_init__(self) -> None:
        check_length(self.trials, self.minutes)


@dataclass(frozen=True)
class TuneReport:
    """Result of a tuning.

    figures      as in data/reports/tuned.json;  unchanged: they are an earlier command's
    not_learned  why no model will learn what was measured, and where it lies; empty if one will
    """

    figures: Mapping[str, Any]
    unchanged: bool = False
    out: Path | None = None
    not_learned: str = ""

    def __str__(self) -> str:
        tuned = self.figures
        if self.unchanged:
            return f"unchanged: {tuned_text(tuned)}; to tune it once more: tcl tune --force"
        reference = tuned.get("reference", "the reference")
        left_out = f", {tuned['left_out']} tasks left to TVM, for the network failed with their programs" if tuned["left_out"] else ""
        where = "" if self.out is None else f" -> {self.out}"
        unchecked = f".{said.removesuffix('.')}" if (said := unchecked_text(tuned)) else ""
        return (
            f"{tuned_text(tuned)}; {tuned['trials']} programs measured, "
            f"largest difference to {reference}'s output {tuned['difference']:.1e}{left_out}{_guessed_text(tuned)}"
            f"{_donated_text(tuned)}{where}{self.not_learned}{unchecked}"
        )


@dataclass(frozen=True)
class NotTuned:
    """Nothing was tuned: the chain's last platform is neither this machine's CPU nor its GPU, or has no champion."""

    platform: str
    reason: str

    def __str__(self) -> str:
        return f"nothing tuned: {self.reason}"


@with_registry
def tune(workspace: Workspace, request: TuneRequest) -> TuneReport | NotTuned:
    """Tune a network with the platform's champion and compare it with PyTorch -> data/reports/tuned.json.

    On an x86 CPU without a champion, the model that comes with TCL is used (``shipped_model``).

    If the last tuning had the same graph, champion and trials, its report is returned, unless ``force`` or ``out`` is given.

    Raises UsageError for a platform on which this machine tunes nothing, and where ``out`` must not be written; RegistryError
    for another platform without a champion, unless the request asks for nothing in particular (``NotTuned``); as
    ``transfer.Donors`` for the databases; as ``find_trained`` and ``Trained.check_target`` for a model that cannot be used.
    """
    platform = request.platform
    if platform is None:
        ran = workspace.platforms_that_ran() or workspace.params.chain_order
        here = (name for name in reversed(ran) if _why_elsewhere(workspace, name) or not _why_untunable(workspace, name))
        platform = next(here, ran[-1])
        if (reason := _why_elsewhere(workspace, platform)) and request.of_the_pipeline:
            return NotTuned(platform, reason)
    _check_tunable(workspace, platform)
    network = request.network or workspace.params.tune.network
    file = request.network or workspace.network(network)
    check_there(file)
    try:
        ranking, load = _ranking(workspace, platform, request.model)
    except NoChampionError as error:  # none of its models was promoted
        if not request.of_the_pipeline:
            raise
        return NotTuned(platform, str(error))
    trials = request.trials or (None if request.minutes else workspace.params.tune.trials)
    setup = setup_of(workspace, platform)
    asked = {"network": network, "platform": platform, **ranking, "minutes": request.minutes}
    asked |= {} if trials is None else {"trials_asked": trials}
    asked |= asked_for(file, workspace.params.graph, setup, workspace.params.seed, request.warm_start)
    anew = request.force or request.out is not None
    if not anew and (last := _told_before(workspace, asked)):
        return last
    folder = _unfinished(workspace, asked)
    with ExitStack() as alone:
        with nullcontext() if request.out is None else tuned_folder(request.out, request.overwrite) as aside:
            alone.enter_context(measuring_alone())  # to the end: no other process may use or remove what is not kept yet
            if not anew and (last := _told_before(workspace, asked)):  # by another process meanwhile
                return last
            tuned = _tune(workspace, asked, setup, file, load(), aside, request.warm_start, folder)
        not_kept = _keep(workspace, platform, folder, tuned)
        write_json(workspace.reports / TUNED, tuned)
        not_learned = _clear(folder, not_kept)  # only now: if it is stopped before, the same command resumes
    return TuneReport(tuned, out=request.out, not_learned=not_learned)


def _told_before(workspace: Workspace, asked: Mapping[str, Any]) -> TuneReport | None:
    """The last tuning's report, if exactly this was asked for then; else None."""
    last = kept(workspace.reports / TUNED, "it is tuned anew")
    return TuneReport(last, unchanged=True) if asked.items() <= last.items() else None


def _keep(workspace: Workspace, platform: str, measured: Path, tuned: Mapping[str, Any]) -> TclError | None:
    """Keep what was measured for the platform's next model (``training``), unless held-out networks have all its tasks.

    Returns the error if that failed.
    """
    try:
        apart = {row["task_key"] for row in workspace.networks if row["split"] == "held_out"}
    except DataError:  # no stage has cut any network
        apart = set()
    if {task["key"] for task in tuned["task_times"] if task["trials"]} <= apart:
        return None
    try:
        keep_tuned(workspace, measured, platform)
    except TclError as error:
        return error
    return None


def _clear(measured: Path, not_kept: TclError | None) -> str:
    """Remove what was measured or, if no other copy was kept, move it aside, so that the next tuning measures anew.

    Returns what to tell the user.
    """
    if not_kept is None:
        shutil.rmtree(measured, ignore_errors=True)
        return ""
    aside = measured.with_name(f"{measured.name}.not-learned-{uuid.uuid4().hex[:8]}")
    with writing(aside):
        os.replace(measured, aside)
    return f"; what was measured will not teach the next model, and stays in {shown(aside)} ({not_kept})"


def _guessed_text(tuned: Mapping[str, Any]) -> str:
    """How many tasks got a guessed program, since measuring found none that is right; empty if no task did."""
    count = sum(task.get("guessed", False) for task in tuned.get("task_times", ()))
    has, it = ("has", "it") if count == 1 else ("have", "them")
    said = f"; {count} of {tuned['tasks']} tasks {has} no program that was found right by measuring, but one that promised most (more trials or minutes may give {it} one)"
    return said if count else ""


def _donated_text(tuned: Mapping[str, Any]) -> str:
    """How much the warm start's databases gave; empty without any."""
    if not tuned["donors"]:
        return ""
    refused = f" ({tuned['refused']} lines of the databases are no programs)" if tuned["refused"] else ""
    why = (
        ""
        if tuned["donated"]
        else ": perhaps the databases are of other operators, or of graphs prepared otherwise, such as in another layout"
    )
    return f"; {tuned['donated']} of {tuned['tasks']} tasks had a donor{refused}{why}"


def _ranking(workspace: Workspace, platform: str, model: Path | None) -> tuple[dict[str, Any], Callable[[], Trained]]:
    """The report's entries for the model that ranks, and a function that loads it, to be called only if needed."""
    if model is not None:
        trained = find_trained(model)
        digest = store.data_digest(model) if model.is_dir() else hashlib.sha256(model.read_bytes()).hexdigest()
        return {"model": trained.origin, "model_sha256": digest}, lambda: trained
    try:
        version, folder = registry.champion(platform)
    except NoChampionError:
        mcpu = workspace.params.platforms[platform].mcpu  # a GPU has none
        if not mcpu or shipped_model.why_unknown(mcpu):
            raise
        return {"model": shipped_model.NAME, "model_sha256": shipped_model.digest()}, lambda: shipped_model.pretrained(mcpu)
    # The number alone is not enough: in another registry, or in one made anew, it is another model's.
    return {"champion_version": version, "model_sha256": store.data_digest(folder)}, lambda: find_trained(folder)


def _check_tunable(workspace: Workspace, platform: str) -> None:
    """Raise UsageError for a platform on which this machine tunes nothing."""
    workspace.check_platform(platform)
    if reason := _why_untunable(workspace, platform):
        others = ", ".join(name for name in workspace.platforms_that_ran() if _why_untunable(workspace, name) is None)
        advice = f"choose one of: {others}" if others else what_to_add(workspace.params.candidates.design_space)
        raise UsageError(f"cannot tune on {platform}: {reason}; {advice}")


def _why_elsewhere(workspace: Workspace, platform: str) -> str | None:
    """Why nothing is tuned on a platform that is neither this machine's CPU nor its GPU; None for one that is."""
    spec, design_space = workspace.params.platforms[platform], workspace.params.candidates.design_space
    kind = kind_of(spec)
    return kind.why_untuned(platform) or (kind.why_not(spec, design_space) if kind.apart else None)


def _why_untunable(workspace: Workspace, platform: str) -> str | None:
    """Why this machine tunes nothing on a platform; None where it does."""
    spec, design_space = workspace.params.platforms[platform], workspace.params.candidates.design_space
    return _why_elsewhere(workspace, platform) or kind_of(spec).why_not(spec, design_space)


def _tune(
    workspace: Workspace,
    asked: Mapping[str, Any],
    setup: Setup,
    file: str,
    trained: Trained,
    out: Path | None,
    warm_start: Sequence[Path],
    folder: Path,
) -> dict[str, Any]:
    """Tune, or resume the same tuning from the ``folder`` that it left when stopped; returns the report."""
    from tcl_core.tuning.network import tune_network
    from tcl_core.tuning.transfer import Donors

    trained.check_target(make_target(setup.target))
    donors = Donors(warm_start, setup.target) if warm_start else None
    with workspace.timed("tune"):
        result = tune_network(
            file,
            workspace.params.graph,
            model=trained.model,
            hardware=trained.hardware.vector(),
            setup=setup,
            trials=asked.get("trials_asked"),
            seed=asked["seed"],
            folder=folder,
            out=out,
            minutes=asked["minutes"],
            donors=donors,
        )
        report = {**asdict(result), "refused": donors.refused if donors else 0, **asked}
        if out is not None:
            add_report(out, {**report, **_circumstances(setup, result)})
    return report


def _circumstances(setup: Setup, result: Any) -> dict[str, Any]:
    """Further entries of a tuned folder's report: the target, the compiler and how programs were measured."""
    return {
        "tasks_ms": tasks_ms(asdict(result)["task_times"]),
        "target": setup.target,
        "threads": setup.protocol.threads,
        "pin_threads": setup.protocol.pin_threads,
        "protocol": asdict(setup.protocol),
        "tvm_version": TVM_VERSION,
    }


def _unfinished(workspace: Workspace, asked: Mapping[str, Any]) -> Path:
    """Folder of what was measured for exactly this, whatever the trials or minutes.

    A run that succeeds leaves nothing there.
    """
    return workspace.data / "tuning" / folder_of({name: value for name, value in asked.items() if name not in ("trials_asked", "minutes")})

"""What is done with a champion: tune a network.  Leaves history, not reproducible bytes."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tcl_core import registry, store
from tcl_core.checked import damaged, read_json, write_json
from tcl_core.compat import TVM_VERSION, make_target
from tcl_core.errors import UsageError
from tcl_core.measure.job import Setup
from tcl_core.platforms import host_fingerprint, kind_of
from tcl_core.stages.data import check_platform, setup_of
from tcl_core.stages.project import DATA, REPORTS, Project, kept, measuring_alone, timed
from tcl_core.stages.tuned_folder import fill, tasks_ms, tuned_folder
from tcl_core.trained import Trained, find_trained
from tcl_core.tuning.database import database_files

TUNED = REPORTS / "tuned.json"
TUNING = DATA / "tuning"  # what a run that was stopped has measured; a run that ends well leaves nothing there


def run_tune(
    project: Project,
    network: str | None,
    platform: str | None,
    trials: int | None,
    again: bool = False,
    minutes: float | None = None,
    out: Path | None = None,
    force: bool = False,
    warm_start: Sequence[Path] = (),
    model: Path | None = None,
) -> str:
    """Tune a network with the platform's champion and compare it with PyTorch -> data/reports/tuned.json.

    model  the folder of a saved model that takes the champion's place

    Without ``platform`` it is the last of the chain that ran; where that is not this machine's CPU, nothing is tuned,
    and that is said.  What was tuned last with the same graph, champion and trials is said once more, unless ``again``.
    ``minutes`` take the place of trials.  ``out`` is a folder that gets the tuned network (``tuned_folder``).  ``warm_start``
    are databases of tuned networks, whose programs are tried first.

    Raises UsageError for a platform on which this machine tunes nothing, for both trials and minutes, and for ``out`` where
    it must not be written; RegistryError where there is no champion; and as ``transfer.Donors`` for those databases, and as
    ``find_trained`` and ``Trained.check_target`` for a model that cannot be the champion's successor.
    """
    if trials is not None and minutes is not None:
        raise UsageError("trials and minutes both say how long to tune; give one of them")
    if minutes is not None and not 0 < minutes < math.inf:
        raise UsageError(f"the minutes to tune are {minutes}; give a number above 0")
    network = network or project.params.tune.network
    if platform is None:
        platform = (project.platforms_that_ran() or project.params.chain_order)[-1]
        if reason := _why_elsewhere(project, platform):
            return f"nothing tuned: {reason}"
    _check_tunable(project, platform)
    ranking, load = _ranking(platform, model)
    trials = trials or (None if minutes else project.params.tune.trials)
    asked = {"network": network, "platform": platform, **ranking, "minutes": minutes}
    asked |= {} if trials is None else {"trials": trials}
    asked |= _bytes_of(network) | {"graph": asdict(project.params.graph), "donors": _digests_of(warm_start)}
    last = kept(TUNED, "it is tuned anew")
    if not again and out is None and asked.items() <= last.items():
        return f"unchanged: {tuned_text(last)}; to tune it once more: tcl tune --again"
    with nullcontext() if out is None else tuned_folder(out, force) as aside:
        tuned = _tune(project, asked, load(), aside, warm_start)
    write_json(TUNED, tuned)
    reference = "the untuned network" if tuned["pytorch_ms"] is None else "PyTorch"
    left_out = f", {tuned['left_out']} tasks left to TVM, for the network failed with their programs" if tuned["left_out"] else ""
    where = "" if out is None else f" -> {out}"
    return (
        f"{tuned_text(tuned)}; {tuned['trials']} programs measured, "
        f"largest difference to {reference}'s output {tuned['difference']:.1e}{left_out}{_donated_text(tuned)}{where}"
    )


def _donated_text(tuned: Mapping[str, Any]) -> str:
    """What became of the databases to start from; nothing where there were none."""
    if not tuned["donors"]:
        return ""
    refused = f" ({tuned['refused']} lines of the databases are no programs)" if tuned["refused"] else ""
    return f"; {tuned['donated']} of {tuned['tasks']} tasks had a donor{refused}"


def _ranking(platform: str, model: Path | None) -> tuple[dict[str, Any], Callable[[], Trained]]:
    """Which model is to rank, as the report names it, and what loads it: a champion only if it is needed."""
    if model is None:
        version, folder = registry.champion(platform)
        return {"champion_version": version}, lambda: find_trained(folder)
    trained = find_trained(model)
    return {"model": trained.origin, "model_sha256": store.data_digest(model)}, lambda: trained


def _check_tunable(project: Project, platform: str) -> None:
    """Raise UsageError for a platform on which this machine tunes nothing."""
    check_platform(project, platform)
    spec, design_space = project.params.platforms[platform], project.params.candidates.design_space
    if reason := _why_elsewhere(project, platform) or kind_of(spec).why_not(spec, design_space):
        local = ", ".join(_local(project))
        advice = f"choose one of: {local}" if local else "add one of kind local to params.yaml"
        raise UsageError(f"cannot tune on {platform}: {reason}; {advice}")


def _why_elsewhere(project: Project, platform: str) -> str | None:
    """Why nothing is tuned on a platform that is not this machine's CPU; None for one that is."""
    return kind_of(project.params.platforms[platform]).why_untuned(platform)


def _local(project: Project) -> list[str]:
    """The chain's platforms that ran on this machine's CPU."""
    return [name for name in project.platforms_that_ran() if _why_elsewhere(project, name) is None]


def _tune(project: Project, asked: Mapping[str, Any], trained: Trained, out: Path | None, warm_start: Sequence[Path]) -> dict[str, Any]:
    """Tune, or go on where the same was stopped; what there is to report."""
    from tcl_core.tuning.network import tune_network
    from tcl_core.tuning.transfer import Donors

    setup = setup_of(project, asked["platform"])
    trained.check_target(make_target(setup.target))
    donors = Donors(warm_start, setup.target) if warm_start else None
    folder = _unfinished(asked, setup)
    with measuring_alone(), timed("tune"):
        result = tune_network(
            asked["network"],
            project.params.graph,
            model=trained.model,
            hardware=trained.hardware.vector(),
            setup=setup,
            trials=asked.get("trials"),
            seed=project.params.seed,
            folder=folder,
            out=out,
            minutes=asked["minutes"],
            donors=donors,
        )
        report = {**asdict(result), "refused": donors.refused if donors else 0, **asked}
        if out is not None:
            fill(out, folder, {**report, **_circumstances(project, setup, result)})
        shutil.rmtree(folder, ignore_errors=True)
    return report


def _circumstances(project: Project, setup: Setup, result: Any) -> dict[str, Any]:
    """What else a folder with a tuned network tells: of the machine, the compiler and the way it was measured."""
    return {
        "tasks_ms": tasks_ms(asdict(result)["task_times"]),
        "target": setup.target,
        "threads": setup.protocol.threads,
        "pin_threads": setup.protocol.pin_threads,
        "protocol": asdict(setup.protocol),
        "seed": project.params.seed,
        "host": host_fingerprint(),
        "tvm_version": TVM_VERSION,
    }


def _unfinished(asked: Mapping[str, Any], setup: Setup) -> Path:
    """The folder of what was measured for just that, by this host and protocol; however many trials were asked for."""
    what = {name: value for name, value in asked.items() if name not in ("trials", "minutes")}
    told = json.dumps([what, setup.protocol_json(), host_fingerprint()], sort_keys=True)
    return TUNING / hashlib.sha256(told.encode()).hexdigest()[:16]


def _bytes_of(network: str) -> dict[str, str]:
    """What tells a changed network file from the one before; nothing for a named network."""
    file = Path(network)
    return {"network_sha256": _sha256(file)} if file.is_file() else {}


def _digests_of(databases: Sequence[Path]) -> list[str]:
    """What tells changed databases from those before: a digest of each file."""
    return [_sha256(file) for folder in databases for file in database_files(folder)]


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def last_tuned(file: Path = TUNED) -> dict[str, Any]:
    """What tuning wrote last; empty before the first time.  Raises DataError where it is damaged."""
    again = "tune again: tcl tune"
    try:
        found = read_json(file, again)
    except FileNotFoundError:
        return {}
    if not {"network", "platform", "untuned_ms", "tuned_ms", "pytorch_ms"} <= found.keys():
        raise damaged(file, "it is no report of tuning", again)
    return found


def tuned_text(tuned: Mapping[str, Any]) -> str:
    """One line; PyTorch's time is unknown for an ONNX file, torch.compile's for any file."""
    pytorch = "-" if tuned["pytorch_ms"] is None else f"{tuned['pytorch_ms']:.2f} ms"
    compiled = "" if tuned.get("compile_ms") is None else f", torch.compile {tuned['compile_ms']:.2f} ms"
    by = f", by {tuned['model']}" if "model" in tuned else ""
    return (
        f"{tuned['network']} on {tuned['platform']}{by}: {tuned['untuned_ms']:.2f} ms untuned, "
        f"{tuned['tuned_ms']:.2f} ms tuned, PyTorch {pytorch}{compiled}"
    )

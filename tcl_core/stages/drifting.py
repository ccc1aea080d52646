"""`tcl drift`: is the machine still the one that was measured?  Measures a few held-out programs again and compares.

Chooses the programs, decides what is compared with what, and keeps the history; ``evaluation.drift`` defines the figures.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np

from tcl_core import registry
from tcl_core.checked import read_json, write_json
from tcl_core.compat import TVM_VERSION
from tcl_core.errors import DataError, NoChampionError, PlatformError, RegistryError, UsageError
from tcl_core.evaluation.drift import SAME_ORDER, UNDECIDED, Comparison, compare, verdict
from tcl_core.features.batches import Samples
from tcl_core.records import Record
from tcl_core.measure.job import Outcome
from tcl_core.models import catalogue
from tcl_core.platforms import kind_of, read_saved_hardware
from tcl_core.progress import say
from tcl_core.stages.collecting import measure_now
from tcl_core.stages.machine import measuring_alone
from tcl_core.stages.workspace import Workspace, with_registry

HISTORY = "drift.json"  # in the folder of reports
KEPT = 10_000  # checks that the history holds: some years
BUSY = 0.75  # largest share of the CPUs that others may take: on a small machine one neighbour may be permanent, and is tolerated
LOOK_S = 1.0  # seconds over which that share is measured
OF_A_TASK = 4  # probes per task; fewer give few pairs, more cover few tasks


@with_registry
def check_drift(workspace: Workspace, platform: str | None) -> list[dict[str, Any]]:
    """Check one platform, or each of the chain that was measured here; every check is added to the history.

    Raises UsageError for an unknown platform, DataError where there are no measurements to compare with, PlatformError where
    this machine cannot run the platform.  Of several, one that cannot be checked is reported and passed over, unless none can.
    """
    if platform is None:
        names = [name for name in workspace.platforms_that_ran() if not _why_none(workspace, name)]
        if not names:
            raise DataError("no platform has held-out records to compare with; run tcl holdout first")
    else:
        workspace.check_platform(platform)
        if reason := _why_none(workspace, platform):
            raise DataError(f"{platform} cannot be checked: {reason}")
        names = [platform]
    found, failed = list[dict[str, Any]](), None
    for name in names:
        with measuring_alone():
            checks = history(workspace)  # a damaged one raises before anything is measured
            try:
                found.append(_check(workspace, name))
            except (PlatformError, DataError) as error:
                if platform is not None:
                    raise
                say(f"{name} could not be checked: {error}")
                failed = error
                continue
            write_json(workspace.reports / HISTORY, {"checks": [*checks, found[-1]][-KEPT:]})
    if failed and not found:
        raise failed
    return found


def history(workspace: Workspace) -> list[dict[str, Any]]:
    """All checks, oldest first."""
    try:
        return read_json(workspace.reports / HISTORY, "move it away, and the next check begins a new history")["checks"]
    except FileNotFoundError:
        return []


def drift_text(check: Mapping[str, Any]) -> str:
    changed = f"; {', '.join(check['changed'])}" if check["changed"] else ""
    return f"{check['platform']}: {check['verdict']}: {check['reason']}{changed}"


def _why_none(workspace: Workspace, platform: str) -> str | None:
    folder = workspace.records_folder(platform, "holdout")
    if reason := workspace.skipped(platform, "holdout"):
        return f"it was skipped ({reason})"
    return None if any(folder.glob("*.parquet")) else f"it has no held-out records; run: tcl holdout --platform {platform}"


def _check(workspace: Workspace, platform: str) -> dict[str, Any]:
    start, settings = time.monotonic(), workspace.params.drift
    probes = choose_probes(workspace.records(platform, "holdout"), settings.probes, workspace.params.seed)
    if not probes:
        raise DataError(f"{platform} has no task of which two held-out programs ran; nothing can be compared")
    samples = _samples(workspace, platform, probes)
    version, champion = _champion(platform, samples)
    best_s, attempt, changed = np.full(len(probes), np.nan), 0, list[str]()
    found = compare(samples.latencies_s, best_s, samples.tasks, settings.clear)
    while attempt < 2:
        if reason := _why_busy(workspace, platform):
            judged = UNDECIDED
            break
        attempt += 1
        outcomes, protocols, host = measure_now(workspace, platform, [probe.key for probe in probes])
        if all(outcome.error == "build" for outcome in outcomes):
            raise PlatformError(f"none of the probes of {platform} can be built any more ({outcomes[0].message}); mend the compiler")
        changed = list(dict.fromkeys(line for probe, now in zip(probes, protocols, strict=True) for line in _changed(probe, now, host)))
        best_s = np.fmin(best_s, [_seconds(outcome) for outcome in outcomes])  # a neighbour only ever makes a program slower
        found = compare(samples.latencies_s, best_s, samples.tasks, settings.clear, champion, workspace.params.seed)
        judged, reason = verdict(found, settings.agreement, settings.champion_fall)
        if judged == SAME_ORDER:
            break
        if attempt == 1:
            say(f"{platform}: {reason}; measuring once more, to be sure")
    return {
        "platform": platform,
        "checked_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "verdict": judged,
        "reason": reason,
        "changed": changed,
        **_figures(found),
        "champion_version": version,
        "measured": attempt,
        "seconds": round(time.monotonic() - start, 1),
    }


def choose_probes(records: Sequence[Record], count: int, seed: int) -> list[Record]:
    """About ``count`` programs that ran undisturbed: ``OF_A_TASK`` per task of random tasks, from its fastest to its slowest.

    The same records and seed give the same programs.
    """
    tasks: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda one: one.latency_s):
        if record.error == "ok" and not record.disturbed:
            tasks.setdefault(record.task_key, []).append(record)
    names = sorted(name for name, found in tasks.items() if len(found) > 1)
    drawn = np.random.default_rng(seed).permutation(len(names))[: max(1, count // OF_A_TASK)]
    return [probe for number in sorted(drawn) for probe in _spread_out(tasks[names[number]])]


def _spread_out(ranked: Sequence[Record]) -> list[Record]:
    places = np.linspace(0, len(ranked) - 1, min(OF_A_TASK, len(ranked))).round().astype(int)
    return [ranked[place] for place in places]


def _samples(workspace: Workspace, platform: str, probes: Sequence[Record]) -> Samples:
    hardware = read_saved_hardware(workspace.records_folder(platform, "holdout")).vector()
    return workspace.encoder.encode([probe.key for probe in probes], hardware, [probe.latency_s for probe in probes])


def _champion(platform: str, samples: Samples) -> tuple[int | None, np.ndarray | None]:
    """The champion's version and predictions; None for both without a champion or, with a message, if it cannot be had or cannot rank."""
    if not registry.is_there():
        return None, None
    try:
        version, folder = registry.champion(platform)
        return version, catalogue.load(folder).predict(samples)
    except NoChampionError:
        return None, None
    except (RegistryError, DataError, UsageError) as error:
        say(f"{platform}: its champion is left out of the check: {error}")
        return None, None


def _why_busy(workspace: Workspace, platform: str) -> str | None:
    """Why measuring now would reflect other processes, not the machine; None if it would not, or if programs run on another device.

    The sentinel cannot see a load that lasts: its quiet level comes from readings of the present session alone.
    """
    if kind_of(workspace.params.platforms[platform]).apart:
        return None
    import psutil

    taken = psutil.cpu_percent(interval=LOOK_S) / 100
    return f"other processes take {taken:.0%} of this machine's CPUs; try again when it is quieter" if taken > BUSY else None


def _seconds(outcome: Outcome) -> float:
    """Median latency of a program; inf if it failed, NaN if it was disturbed."""
    if outcome.disturbed:
        return np.nan
    return float(np.median(outcome.latencies_s)) if outcome.latencies_s else np.inf


def _changed(old: Record, protocol: str, host: str) -> Iterator[str]:
    """What differs from the earlier measurement: the host, TVM's version, how it is timed, such as the threads."""
    if old.host != host:
        yield f"measured on {old.host} then, on {host} now"
    if old.tvm_version not in (TVM_VERSION, "unknown"):
        yield f"compiled by TVM {old.tvm_version} then, by {TVM_VERSION} now"
    before, now = json.loads(old.protocol), json.loads(protocol)
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield f"{name} was {before.get(name)} then and is {now.get(name)} now"


def _figures(found: Comparison) -> dict[str, Any]:
    return {**asdict(found), "fall": found.fall}

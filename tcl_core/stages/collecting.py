"""Measuring on a platform: the stages collect and holdout, and a few programs for other stages."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tcl_core import store
from tcl_core.collect import Chooser, Collection, Plan, collect as collect_in_rounds, measure_all
from tcl_core.checked import write_json
from tcl_core.errors import PlatformError
from tcl_core.features.batches import Samples
from tcl_core.files import replacing, sync_folder, writing
from tcl_core.journal import line_of, locked
from tcl_core.learning.fit_settings import FitSettings
from tcl_core.gpu import GpuHardware
from tcl_core.measure.job import Job, Limits, Outcome, Protocol, Setup, Tracker
from tcl_core.measure.runner import Runner
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel
from tcl_core.platforms import Ask, Hardware, kind_of, save_hardware, threads, what_to_add
from tcl_core.progress import progress, say
from tcl_core.records import ProgramKey, Record
from tcl_core.registry import FLOW_RUN_ID
from tcl_core.sampler_names import BLIND, FIRST_MODEL_ALONE, LEARNED_ELSEWHERE
from tcl_core.stages.machine import bandwidth_here, measuring_alone
from tcl_core.stages.workspace import Skipped, Workspace, by_measuring

if TYPE_CHECKING:
    from tcl_core.learning.fit import OnEpoch

FORCED = "measuring-again"  # a file in a journal that `--force` began and whose command has not succeeded yet
MARKED_S = 86_400.0  # how long a stopped `--force` can be resumed: later the machine may have changed
FORCED_BY = "measured-again-by"  # another such file: the id of the pipeline run whose `--force` succeeded there


@dataclass(frozen=True)
class CollectReport:
    """What was measured of a pool on a platform.

    programs, pool  number of programs measured, and in the pool
    errors          outcome, including ``ok`` -> number of programs
    rounds          what each step chose, measured and learned
    """

    platform: str
    programs: int
    pool: int
    errors: Mapping[str, int]
    rounds: Sequence[Mapping[str, Any]] = ()

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {kind}" for kind, count in self.errors.items())
        return f"{self.programs} of {self.pool} programs; {counts}"


@dataclass(frozen=True)
class HoldoutReport:
    """How many held-out programs were measured on a platform."""

    platform: str
    programs: int

    def __str__(self) -> str:
        return f"{self.programs} held-out programs"


def collect(workspace: Workspace, platform: str, force: bool = False) -> CollectReport | Skipped:
    """Measure the share of the training programs that the sampler picks -> data/records/platform=P/.

    ``force``: measure everything anew; until ``end_forced``, a forced run that was stopped is resumed.  Raises UsageError for
    an unknown platform, PlatformError where this machine can run none of params.yaml's platforms.
    """
    workspace.check_platform(platform)
    report_file = workspace.reports / "collect" / f"{platform}.json"
    if reason := reason_to_skip(workspace, platform):
        write_json(report_file, {"platform": platform, "skipped": reason})
        return _skip(workspace, platform, "records", reason)
    settings, journal = workspace.params.collect, _Journal(workspace.journal_folder(platform, "collect"), force)
    with measuring_alone(), workspace.timed(f"collect@{platform}"):
        place = _place(workspace, platform)
        collection = _collection(workspace, place, "train", journal)
        plan = _plan(workspace, platform, len(collection.programs))
        asked = 0 if settings.sampler in BLIND else 1 if settings.sampler in FIRST_MODEL_ALONE else settings.ensemble
        models = [member(workspace, number) for number in range(asked)]
        before = _measured_before(workspace, platform)
        steps = _StepLog(collection.journal / "rounds.jsonl")
        with progress(f"collecting on {platform}", plan.budget) as shown:
            collect_in_rounds(collection, plan, models, steps.add, lambda record: shown.advance(_short(record)), before)
        _write_records(workspace, platform, "records", collection, place)
        report = _report(platform, collection, steps.steps)
        write_json(report_file, asdict(report))
    return report


def holdout(workspace: Workspace, platform: str, force: bool = False) -> HoldoutReport | Skipped:
    """Measure all held-out programs -> data/holdout/platform=P/.  ``force`` and errors as for ``collect``."""
    workspace.check_platform(platform)
    if reason := reason_to_skip(workspace, platform):
        return _skip(workspace, platform, "holdout", reason)
    journal = _Journal(workspace.journal_folder(platform, "holdout"), force)
    with measuring_alone(), workspace.timed(f"holdout@{platform}"):
        place = _place(workspace, platform)
        collection = _collection(workspace, place, "held_out", journal)
        with progress(f"measuring held-out programs on {platform}", len(collection.programs)) as shown:
            measure_all(collection, workspace.params.measure.check_fraction, lambda record: shown.advance(_short(record)))
        _write_records(workspace, platform, "holdout", collection, place)
    return HoldoutReport(platform, len(collection.records))


def measure_probes(workspace: Workspace, platform: str, choose: Callable[[Sequence[ProgramKey]], Sequence[int]]) -> dict[ProgramKey, float]:
    """Measure the training programs whose rows ``choose`` picks from all keys; returns program -> seconds, inf for a failed one.

    The platform's journal keeps them, so its collection does not measure them again.  Raises PlatformError for a platform that
    this machine cannot run.
    """
    if reason := reason_to_skip(workspace, platform):
        raise PlatformError(f"{platform} cannot be measured here ({reason}); run this on its machine")
    with measuring_alone():
        collection = _collection(
            workspace, _place(workspace, platform), "train", _Journal(workspace.journal_folder(platform, "collect"), False)
        )
        rows = choose(collection.keys)
        with collection.measuring() as measuring, progress(f"probing {platform}", len(rows)) as shown:
            measuring.measure(rows, 0, workspace.params.measure.check_fraction, lambda record: shown.advance(_short(record)))
    return {record.key: record.latency_s for record in collection.records.values()}


def measure_now(workspace: Workspace, platform: str, keys: Sequence[ProgramKey]) -> tuple[list[Outcome], list[str], str]:
    """Measure programs of the pool by today's protocol, outside all journals; returns the outcomes, how each was
    timed (``Setup.protocol_json``), and the host.

    The caller must hold the machine (``measuring_alone``).  Raises PlatformError for a platform that this machine cannot run,
    DataError for a program of another pool.
    """
    if reason := reason_to_skip(workspace, platform):
        raise PlatformError(f"{platform} cannot be measured here ({reason}); run this on its machine")
    place, encoder = _place(workspace, platform), workspace.encoder
    traces = [encoder.trace_json(task_key, sketch) for task_key, sketch, _ in keys]
    modules = [encoder.tasks[task_key].module_json for task_key, _, _ in keys]
    jobs = [
        Job(task_key, module_json, trace, decisions, cold=place.setup.times_cold(module_json))
        for (task_key, _, decisions), module_json, trace in zip(keys, modules, traces, strict=True)
    ]
    outcomes = []
    with Runner(place.setup) as runner, progress(f"measuring {platform} again", len(jobs)) as shown:
        for outcome in runner.measure(jobs):
            outcomes.append(outcome)
            shown.advance(outcome.error)
    return outcomes, [place.setup.protocol_json(cold=job.cold) for job in jobs], place.host


def _plan(workspace: Workspace, platform: str, programs: int) -> Plan:
    settings = workspace.params.collect
    share = settings.first_fraction if platform == workspace.params.chain.first else settings.fraction
    budget = max(1, round(share * programs))
    return Plan(
        sampler=settings.sampler,
        budget=budget,
        initial=max(1, round(settings.initial_share * budget)),
        rounds=settings.rounds,
        check_fraction=workspace.params.measure.check_fraction,
        seed=workspace.params.seed,
    )


def _write_records(workspace: Workspace, platform: str, kind: str, collection: Collection, place: _Place) -> None:
    folder = workspace.records_folder(platform, kind)
    store.write_records(folder, collection.records.values(), by_measuring(platform, kind))
    save_hardware(folder, place.hardware)
    (folder / "skipped.json").unlink(missing_ok=True)


def _skip(workspace: Workspace, platform: str, kind: str, reason: str) -> Skipped:
    """Write why there are no records; those that a more capable machine left there are set aside, not deleted."""
    folder = workspace.records_folder(platform, kind)
    store.write_skipped(folder, platform, reason)
    kept = [folder / name for name in ("records.parquet", "hardware.json") if os.path.lexists(folder / name)]
    if not kept:
        return Skipped(platform, reason)
    aside = workspace.set_aside / folder.relative_to(workspace.data) / _stamp()
    with writing(aside):
        aside.mkdir(parents=True)
        for path in kept:
            shutil.move(path, aside / path.name)
    return Skipped(platform, reason, aside)


def setup_of(workspace: Workspace, platform: str) -> Setup:
    """How programs are measured on a platform: its target, its devices and the protocol of params.yaml."""
    m, spec = workspace.params.measure, workspace.params.platforms[platform]
    kind = kind_of(spec)
    kind.check_measure(platform, m)
    protocol = Protocol(
        repeats=m.repeats,
        max_repeats=m.max_repeats,
        max_spread=m.max_spread,
        min_repeat_ms=m.min_repeat_ms,
        max_number=m.max_number,
        enough_s=m.enough_s,
        warmup=m.warmup,
        threads=spec.threads or threads(),
        early_stop_factor=m.early_stop_factor,
        flush_cache=m.flush_cache,
        pin_threads=m.pin_threads,
    )
    memory_bytes = int(m.memory_gib * 2**30) if kind.bounded else 0
    limits = Limits(build_s=m.build_timeout_s, run_s=m.timeout_s, memory_bytes=memory_bytes)
    behind = kind.behind(spec)
    cold_weights = m.cold_weights and not m.flush_cache and not kind.apart  # flushed, all are cold; a GPU has no use for it
    return Setup(kind.target(spec), protocol, limits, Tracker(*behind) if behind else None, cold_weights)


@dataclass(frozen=True)
class _Place:
    """How and on which host a platform's programs run, and the hardware that models see."""

    setup: Setup
    host: str
    hardware: Hardware | GpuHardware


def _place(workspace: Workspace, platform: str) -> _Place:
    """Find a platform's host and hardware.  Raises PlatformError where its remote devices do not answer."""
    spec, setup = workspace.params.platforms[platform], setup_of(workspace, platform)
    found = kind_of(spec).find(spec, Ask(lambda: bandwidth_here(workspace), lambda: _describe(setup)))
    if setup.tracker:  # from now on all of its devices must be like this one
        setup = replace(setup, tracker=replace(setup.tracker, host_told=found.host))
    return _Place(setup, found.host, found.hardware)


def _describe(setup: Setup) -> dict[str, Any]:
    with Runner(setup, workers=1) as runner:
        return runner.describe()


def reason_to_skip(workspace: Workspace, platform: str) -> str | None:
    """Why this machine skips the platform; None if it does not.  Raises PlatformError where it can run none of params.yaml's."""
    design_space = workspace.params.candidates.design_space
    reasons = {name: kind_of(p).why_not(p, design_space) for name, p in workspace.params.platforms.items()}
    if all(reasons.values()):
        raise PlatformError(f"this machine can run none of the platforms of params.yaml ({reasons[platform]}); {what_to_add(design_space)}")
    return reasons[platform]


def _collection(workspace: Workspace, place: _Place, split: str, journal: _Journal) -> Collection:
    # First: data that is missing, or of other tasks, must raise before a journal is set aside.
    programs, encoder = workspace.programs(split), workspace.encoder
    for program in programs:
        encoder.trace_json(program.task_key, program.sketch)
    journal.begin()
    return Collection(
        programs=programs,
        encoder=encoder,
        hardware=place.hardware.vector(),
        host=place.host,
        setup=place.setup,
        journal=journal.folder,
    )


class _Anew:
    """A model that starts from scratch at every ``fit``: trees would otherwise only be added to those learned from fewer programs."""

    def __init__(self, make: Callable[[], CostModel]) -> None:
        self.make, self.model = make, make()

    def fit(self, train: Samples, valid: Samples | None = None, on_epoch: OnEpoch | None = None) -> None:
        self.model = self.make().fit(train, valid, on_epoch)

    def predict(self, samples: Samples) -> np.ndarray:
        return self.model.predict(samples)


def member(workspace: Workspace, number: int) -> Chooser:
    """A member of the sampler's ensemble: boosted trees for `rdu`, else the chain's network, as the paper has it (`rdu-paper`)."""
    train, collect_settings, seed = workspace.params.train, workspace.params.collect, workspace.params.seed + number
    if collect_settings.sampler in LEARNED_ELSEWHERE:
        settings = replace(catalogue.own_settings("trees"), epochs=collect_settings.epochs, seed=seed)
        return _Anew(lambda: catalogue.create("trees", settings))
    settings = FitSettings(
        epochs=collect_settings.epochs,
        batch_size=train.batch_size,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        clip_norm=train.gradient_clip,
        seed=seed,
    )
    return catalogue.create(catalogue.CHAIN_MODEL, settings)


def _measured_before(workspace: Workspace, platform: str) -> Samples | None:
    """Samples of the nearest earlier platform of the chain with records here, if the sampler starts from such; else None.

    None also for a platform outside the chain, and where these records are of another pool's programs or teach nothing.
    """
    if workspace.params.collect.sampler not in LEARNED_ELSEWHERE or platform not in workspace.params.chain_order:
        return None
    previous = workspace.params.previous(platform)
    while previous is not None and not workspace.seconds(previous):
        if not workspace.skipped(previous):
            say(
                f"{platform} begins without {previous}'s measurements, which tell its sampler where to begin; to have them: tcl collect -p {previous}"
            )
        previous = workspace.params.previous(previous)
    if previous is None or not all(key[:2] in workspace.encoder.texts for key in workspace.seconds(previous)):
        return None
    from tcl_core.learning.batches_by_task import any_usable  # with torch

    samples = workspace.samples(previous)
    return samples if any_usable(samples) else None


class _Journal:
    """The journal of a stage, as found before it waits for the machine; ``force``: set it aside and begin a new one."""

    def __init__(self, folder: Path, force: bool) -> None:
        self.folder, self.force = folder, force
        self.seen = _identity(folder)

    def begin(self) -> None:
        """With ``force``, rename the old journal and begin a new one: nothing measured is deleted.

        The old one goes on instead where a ``--force`` was stopped, where this run of the pipeline, restarted after a crash, had
        finished its ``--force``, and where another process began the journal while this one waited.
        Raises PlatformError while a process writes the journal.
        """
        if not self.force:
            return
        if self.folder.exists():
            with locked(self.folder), writing(self.folder):
                if why := self._why_kept():
                    say(why)
                    return
                os.replace(self.folder, self.folder.with_name(f"{self.folder.name}.before-{_stamp()}"))
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / FORCED).touch()
            sync_folder(self.folder.parent)

    def _alive(self) -> list[Path]:
        """The files whose times tell when measuring here began or last went on."""
        return [file for file in (self.folder / FORCED, self.folder / "records.jsonl") if file.exists()]

    def _why_kept(self) -> str | None:
        mark = self.folder / FORCED
        if mark.exists() and time.time() - max(file.stat().st_mtime for file in self._alive()) < MARKED_S:
            return f"going on with the --force that was stopped; to begin anew once more, remove {mark} first"
        by, run = self.folder / FORCED_BY, os.environ.get(FLOW_RUN_ID)
        if run and by.exists() and by.read_bytes() == run.encode():
            return "this run had measured it again before it was stopped; going on with that"
        if _identity(self.folder) != self.seen:
            return f"another process has measured into {self.folder} meanwhile; going on with that"
        return None


def end_forced(workspace: Workspace, kind: str, platforms: Iterable[str]) -> None:
    """Record that a ``--force`` command succeeded: the next one begins anew, unless it is of the same pipeline run.

    ``kind`` as for ``Workspace.journal_folder``.
    """
    for platform in platforms:
        mark = workspace.journal_folder(platform, kind) / FORCED
        with writing(mark):
            if mark.exists() and (run := os.environ.get(FLOW_RUN_ID)):
                mark.with_name(FORCED_BY).write_text(run)
            mark.unlink(missing_ok=True)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Device and inode, which tell a journal from one that later takes its place; None without a journal."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


class _StepLog:
    """File with a line per finished step of this run, each with a checksum as in the journal; it can be followed while it grows.

    The first step, not the constructor, replaces an earlier run's file: steps come while the journal's lock is held, but the
    constructor may be a second collector's, which the lock then refuses.
    """

    def __init__(self, path: Path) -> None:
        self.steps: list[dict[str, Any]] = []
        self.path = path

    def add(self, step: dict[str, Any]) -> None:
        if self.steps:
            with writing(self.path), open(self.path, "ab") as file:
                file.write(line_of(step))
        else:
            with replacing(self.path) as file:
                file.write(line_of(step))
        self.steps.append(step)


def _report(platform: str, collection: Collection, steps: list[dict[str, Any]]) -> CollectReport:
    errors = Counter(record.error for record in collection.records.values())
    return CollectReport(platform, len(collection.records), len(collection.programs), dict(sorted(errors.items())), steps)


def _short(record: Record) -> str:
    return f"{record.latency_s * 1e3:.3f} ms" if record.error == "ok" else record.error

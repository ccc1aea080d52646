"""Stages that make data: tasks, candidates, collect, holdout."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tcl_core import store
from tcl_core.collect import Collection, Plan, collect, measure_all
from tcl_core.checked import write_json
from tcl_core.errors import PlatformError, unknown_name
from tcl_core.files import replacing, sync_folder, writing
from tcl_core.journal import line_of, locked
from tcl_core.learning.fit import FitSettings
from tcl_core.gpu import GpuHardware
from tcl_core.measure.job import Job, Limits, Outcome, Protocol, Setup, Tracker
from tcl_core.measure.pool import Runner
from tcl_core.models import catalogue
from tcl_core.platforms import Ask, Hardware, kind_of, threads
from tcl_core.programs.graph import Graph
from tcl_core.programs.pool import Program, build_pool, rank_tasks
from tcl_core.programs.tasks import Task, extract_tasks
from tcl_core.progress import progress, say
from tcl_core.records import ProgramKey, Record
from tcl_core.stages.project import (
    DATA,
    POOL,
    REPORTS,
    SET_ASIDE,
    TASKS,
    Project,
    bandwidth_here,
    by_measuring,
    journal_folder,
    measuring_alone,
    records_folder,
    save_hardware,
    timed,
)

AGAIN = "measuring-again"  # a file in a journal: it was begun by `--again`, whose command has not ended well yet


def write_tasks(project: Project) -> str:
    """Extract the tasks of all networks -> data/programs/tasks/."""
    networks = project.params.networks
    splits = {**dict.fromkeys(networks.train, "train"), **dict.fromkeys(networks.held_out, "held_out")}
    tasks: dict[str, Task] = {}
    uses: list[dict[str, Any]] = []
    with timed("tasks"), progress("extracting tasks", len(splits)) as shown:
        for network, split in splits.items():
            for task, weight in extract_tasks(network, project.params.graph):
                tasks.setdefault(task.key, task)
                uses.append({"network": network, "split": split, "task_key": task.key, "weight": weight})
            shown.advance(network)
        rows = [vars(t) | {"task_key": t.key, "op_type": t.operator} for t in tasks.values()]
        columns = store.SCHEMAS["tasks"].names
        store.write_table(TASKS / "tasks.parquet", "tasks", [{c: row[c] for c in columns} for row in rows])
        store.write_table(TASKS / "networks.parquet", "networks", uses)
    return f"{len(tasks)} distinct tasks of {len(splits)} networks"


def show_tasks(network: str, graph: Graph) -> str:
    """One network's tasks as a table, its graph so prepared, without writing anything."""
    found = sorted(extract_tasks(network, graph), key=lambda t: -t[0].flops * t[1])
    lines = [f"{'task':16s}  {'operator':17s} {'MFLOP':>10s}  weight  name"]
    lines += [f"{t.key:16s}  {t.operator:17s} {t.flops / 1e6:10.2f}  {w:6d}  {t.name}" for t, w in found]
    return "\n".join(lines)


def write_candidates(project: Project) -> str:
    """Sample the candidate programs -> data/programs/pool/{train,held_out}/."""
    c = project.params.candidates
    held_out_keys = [row["task_key"] for row in project.networks if row["split"] == "held_out"]
    with timed("candidates"):
        said = [
            _write_pool(project, "train", held_out_keys, c.max_train_tasks, c.programs_per_task),
            _write_pool(project, "held_out", (), c.max_held_out_tasks, c.held_out_programs_per_task),
        ]
    return "; ".join(said)


def _write_pool(project: Project, split: str, without: Iterable[str], limit: int, count: int) -> str:
    ranked = rank_tasks(_by_network(project, split), without)
    with progress(f"sampling {split.replace('_', '-')} candidates", limit or len(ranked)) as shown:
        sketches, programs = build_pool(
            ranked,
            limit,
            count,
            project.params.seed,
            threads(),
            lambda task: shown.advance(task.name[:40]),
            project.params.candidates.design_space,
        )
    store.write_table(POOL / split / "sketches.parquet", "sketches", sketches)
    store.write_table(POOL / split / "programs.parquet", "programs", [_program_row(p, split) for p in programs])
    tasks = len({row["task_key"] for row in sketches})
    return f"{split}: {len(programs)} programs of {tasks} tasks, {len(sketches)} sketches"


def _program_row(program: Program, split: str) -> dict[str, Any]:
    return {
        "task_key": program.task_key,
        "split": split,
        "program_id": program.number,
        "sketch_id": program.sketch,
        "decisions": list(program.decisions),
    }


def _by_network(project: Project, split: str) -> dict[str, list[tuple[Task, int]]]:
    """network -> its tasks and their weights."""
    by_key = {task.key: task for task in project.tasks}
    found: dict[str, list[tuple[Task, int]]] = {}
    for row in project.networks:
        task = by_key[row["task_key"]]
        if row["split"] == split:
            found.setdefault(row["network"], []).append((task, row["weight"]))
    return found


def run_collect(project: Project, platform: str, again: bool = False) -> str:
    """Measure a platform's share of the training programs with the sampler -> data/records/platform=P/."""
    if reason := _reason_to_skip(project, platform):
        write_json(REPORTS / "collect" / f"{platform}.json", {"platform": platform, "skipped": reason})
        return _skip(records_folder(platform), platform, reason)
    settings, journal = project.params.collect, _Journal(journal_folder(platform, "collect"), again)
    with measuring_alone(), timed(f"collect@{platform}"):
        place = _place(project, platform)
        collection = _collection(project, place, "train", journal)
        plan = _plan(project, platform, len(collection.programs))
        models = [catalogue.create(catalogue.CHAIN_MODEL, _refit_settings(project, n)) for n in range(settings.ensemble)]
        steps = _StepLog(collection.journal / "rounds.jsonl")
        with progress(f"collecting on {platform}", plan.budget) as shown:
            collect(collection, plan, models, steps.add, lambda record: shown.advance(_short(record)))
        _write_records(platform, "records", collection, place)
        report = _collection_report(collection, steps.steps)
        write_json(REPORTS / "collect" / f"{platform}.json", {"platform": platform, **report})
    return f"{len(collection.records)} of {len(collection.programs)} programs; {_errors(report['errors'])}"


def run_holdout(project: Project, platform: str, again: bool = False) -> str:
    """Measure all held-out programs -> data/holdout/platform=P/."""
    if reason := _reason_to_skip(project, platform):
        return _skip(records_folder(platform, "holdout"), platform, reason)
    journal = _Journal(journal_folder(platform, "holdout"), again)
    with measuring_alone(), timed(f"holdout@{platform}"):
        place = _place(project, platform)
        collection = _collection(project, place, "held_out", journal)
        with progress(f"measuring held-out programs on {platform}", len(collection.programs)) as shown:
            measure_all(collection, project.params.measure.check_fraction, lambda record: shown.advance(_short(record)))
        _write_records(platform, "holdout", collection, place)
    return f"{len(collection.records)} held-out programs"


def measure_probes(
    project: Project, platform: str, choose: Callable[[Sequence[ProgramKey]], Sequence[int]]
) -> dict[ProgramKey, float]:
    """Seconds of those training programs on a platform whose rows ``choose`` picks from all keys; inf where one failed.

    They are kept in the platform's journal: its collection measures none of them again.  Raises PlatformError for a platform
    that this machine cannot run.
    """
    if reason := _reason_to_skip(project, platform):
        raise PlatformError(f"{platform} cannot be measured here ({reason}); run this on its machine")
    with measuring_alone():
        collection = _collection(project, _place(project, platform), "train", _Journal(journal_folder(platform, "collect"), False))
        rows = choose(collection.keys)
        with collection.measuring() as measuring, progress(f"probing {platform}", len(rows)) as shown:
            measuring.measure(rows, 0, project.params.measure.check_fraction, lambda record: shown.advance(_short(record)))
    return {record.key: record.latency_s for record in collection.records.values()}


def measure_now(project: Project, platform: str, keys: Sequence[ProgramKey]) -> tuple[list[Outcome], Setup, str]:
    """Time programs of the pool as the platform is measured today, beside all journals: outcomes, and how and on which host.

    The caller holds the machine (``measuring_alone``).  Raises PlatformError for a platform that this machine cannot run,
    DataError for a program of another pool.
    """
    if reason := _reason_to_skip(project, platform):
        raise PlatformError(f"{platform} cannot be measured here ({reason}); run this on its machine")
    place, encoder = _place(project, platform), project.encoder
    traces = [encoder.trace_json(task_key, sketch) for task_key, sketch, _ in keys]
    jobs = [Job(key[0], encoder.tasks[key[0]].module_json, trace, key[2]) for key, trace in zip(keys, traces, strict=True)]
    outcomes = []
    with Runner(place.setup) as runner, progress(f"measuring {platform} again", len(jobs)) as shown:
        for outcome in runner.measure(jobs):
            outcomes.append(outcome)
            shown.advance(outcome.error)
    return outcomes, place.setup, place.host


def _plan(project: Project, platform: str, programs: int) -> Plan:
    settings = project.params.collect
    share = settings.first_fraction if platform == project.params.chain.first else settings.fraction
    budget = max(1, round(share * programs))
    return Plan(
        sampler=settings.sampler,
        budget=budget,
        initial=max(1, round(settings.initial_share * budget)),
        rounds=settings.rounds,
        check_fraction=project.params.measure.check_fraction,
        seed=project.params.seed,
    )


def _write_records(platform: str, kind: str, collection: Collection, place: _Place) -> None:
    folder = records_folder(platform, kind)
    store.write_records(folder, collection.records.values(), by_measuring(platform, kind))
    save_hardware(folder, place.hardware)
    (folder / "skipped.json").unlink(missing_ok=True)


def _skip(folder: Path, platform: str, reason: str) -> str:
    """Say why there are no records; those that a better machine left there are set aside, not deleted."""
    store.write_skipped(folder, platform, reason)
    kept = [folder / name for name in ("records.parquet", "hardware.json") if os.path.lexists(folder / name)]
    if not kept:
        return f"skipped: {reason}"
    aside = SET_ASIDE / folder.relative_to(DATA) / _stamp()
    with writing(aside):
        aside.mkdir(parents=True)
        for path in kept:
            shutil.move(path, aside / path.name)
    return f"skipped: {reason}; the records that were here are set aside in {aside}"


def setup_of(project: Project, platform: str) -> Setup:
    """How programs are measured on a platform: its target, its devices and the protocol of params.yaml."""
    m, spec = project.params.measure, project.params.platforms[platform]
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
    return Setup(kind.target(spec), protocol, limits, Tracker(*behind) if behind else None)


@dataclass(frozen=True)
class _Place:
    """Where a platform's programs run: how, on which host, and what models are told of its hardware."""

    setup: Setup
    host: str
    hardware: Hardware | GpuHardware


def _place(project: Project, platform: str) -> _Place:
    """Raises PlatformError where the remote devices do not answer."""
    spec, setup = project.params.platforms[platform], setup_of(project, platform)
    found = kind_of(spec).find(spec, Ask(bandwidth_here, lambda: _describe(setup)))
    if setup.tracker:  # from now on all of its devices must be like this one
        setup = replace(setup, tracker=replace(setup.tracker, host_told=found.host))
    return _Place(setup, found.host, found.hardware)


def _describe(setup: Setup) -> dict[str, Any]:
    with Runner(setup, lanes=1) as runner:
        return runner.describe()


def check_platform(project: Project, platform: str) -> None:
    """Raise UsageError for a name that is not in params.yaml."""
    if platform not in project.params.platforms:
        raise unknown_name("platform", platform, project.params.platforms, "params.yaml")


def _reason_to_skip(project: Project, platform: str) -> str | None:
    """Why this machine leaves the platform out.  Raises PlatformError when it can run none of the chain."""
    design_space = project.params.candidates.design_space
    reasons = {name: kind_of(p).why_not(p, design_space) for name, p in project.params.platforms.items()}
    if all(reasons.values()):
        raise PlatformError(f"this machine can run none of the platforms of params.yaml ({reasons[platform]}); add one it can")
    return reasons[platform]


def _collection(project: Project, place: _Place, split: str, journal: _Journal) -> Collection:
    programs, encoder = project.programs(split), project.encoder  # what is missing is said before a journal is set aside
    journal.begin()
    return Collection(
        programs=programs,
        encoder=encoder,
        hardware=place.hardware.vector(),
        host=place.host,
        setup=place.setup,
        journal=journal.folder,
    )


def _refit_settings(project: Project, member: int) -> FitSettings:
    train, collect_settings = project.params.train, project.params.collect
    return FitSettings(
        epochs=collect_settings.epochs,
        batch_size=train.batch_size,
        learning_rate=train.learning_rate,
        weight_decay=train.weight_decay,
        clip_norm=train.gradient_clip,
        seed=project.params.seed + member,
    )


class _Journal:
    """The journal of a stage that is about to wait for the machine; ``again``: to be set aside, and begun anew."""

    def __init__(self, folder: Path, again: bool) -> None:
        self.folder, self.again = folder, again
        self.seen = _identity(folder)

    def begin(self) -> None:
        """With ``again`` keep the old journal under another name: nothing measured is deleted.

        Not where an ``--again`` was stopped: it goes on.  Nor where another process measured while this one waited.
        Raises PlatformError while a process writes the journal.
        """
        if not self.again:
            return
        if self.folder.exists():
            with locked(self.folder), writing(self.folder):
                if why := self._why_kept():
                    say(why)
                    return
                os.replace(self.folder, self.folder.with_name(f"{self.folder.name}.before-{_stamp()}"))
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / AGAIN).touch()
            sync_folder(self.folder.parent)

    def _why_kept(self) -> str | None:
        mark = self.folder / AGAIN
        if mark.exists():
            return f"going on with the --again that was stopped; to begin anew once more, remove {mark} first"
        if _identity(self.folder) != self.seen:
            return f"another process has measured into {self.folder} meanwhile; going on with that"
        return None


def end_again(kind: str, platforms: Iterable[str]) -> None:
    """The command has ended well: the next ``--again`` begins anew.  ``kind`` as for ``journal_folder``."""
    for platform in platforms:
        mark = journal_folder(platform, kind) / AGAIN
        with writing(mark):
            mark.unlink(missing_ok=True)


def _identity(folder: Path) -> tuple[int, int] | None:
    """What tells a journal from the one that later takes its place."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


class _StepLog:
    """A line per finished step of this run, with a checksum as in the journal, in a file that can be followed while it grows.

    The first step replaces what an earlier run wrote.  Not the start: steps come with the journal's lock held, while a
    start may be that of a second collector, which the lock then refuses.
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


def _collection_report(collection: Collection, steps: list[dict[str, Any]]) -> dict[str, Any]:
    errors = Counter(record.error for record in collection.records.values())
    counts = {"programs": len(collection.records), "pool": len(collection.programs)}
    return {**counts, "errors": dict(sorted(errors.items())), "rounds": steps}


def _errors(errors: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in errors.items())


def _short(record: Record) -> str:
    return f"{record.latency_s * 1e3:.3f} ms" if record.error == "ok" else record.error

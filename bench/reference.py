"""Measure the reference data set: many tasks, the same programs of each on every platform of the chain.

    python bench/reference.py [--minutes M] [--to data/reference]

The networks, sizes and protocol are those of bench/reference.yaml over params.yaml.  Tasks are measured one by one,
each on all platforms, held-out tasks evenly among the others; so a run that is stopped, or ends with its minutes, has
whole tasks, and the same command goes on from there.  Tables hold the tasks that were measured everywhere.  What another
machine or checkout measured is never replaced: give another folder with --to.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from _tables import arguments, result_file

from tcl_core import environment, store  # noqa: F401  (before torch is imported)
from tcl_core.collect import Collection, Measuring
from tcl_core.errors import DataError, TclError
from tcl_core.features.encode import Encoder
from tcl_core.params import Chain, Networks, Params
from tcl_core.profiles import load_patched
from tcl_core.platforms import Hardware, save_hardware, host_fingerprint, threads, why_not
from tcl_core.programs.pool import Program, build_pool, rank_tasks
from tcl_core.programs.tasks import Task, extract_tasks
from tcl_core.progress import progress
from tcl_core.stages.collecting import setup_of
from tcl_core.stages.machine import hardware_here, measuring_alone
from tcl_core.stages.workspace import Workspace

SPLITS = ("train", "held_out")


def tasks_of(params: Params) -> dict[str, dict[str, list[tuple[Task, int]]]]:
    """split -> network -> its tasks and their weights."""
    names = [*params.networks.train, *params.networks.held_out]
    with progress("extracting tasks", len(names)) as shown:
        found = {name: (extract_tasks(name, params.graph), shown.advance(name))[0] for name in names}
    return {split: {n: found[n] for n in getattr(params.networks, split)} for split in SPLITS}


def write_pool(params: Params, folder: Path) -> None:
    """Sample the programs of both splits and write what they are made of: tasks, networks, sketches, programs."""
    split_tasks = tasks_of(params)
    held_out = {task.key for tasks in split_tasks["held_out"].values() for task, _ in tasks}
    sketches: list[dict[str, Any]] = []
    programs: list[dict[str, Any]] = []
    c = params.candidates
    sizes = {"train": (c.max_train_tasks, c.programs_per_task), "held_out": (c.max_held_out_tasks, c.held_out_programs_per_task)}
    for split, (limit, count) in sizes.items():
        ranked = rank_tasks(split_tasks[split], held_out if split == "train" else ())
        with progress(f"sampling {split.replace('_', '-')} programs", limit) as shown:
            found, drawn = build_pool(ranked, limit, count, params.seed, threads(), lambda task: shown.advance(task.name[:40]))
        sketches += found
        programs += [
            {"task_key": p.task_key, "split": split, "program_id": p.number, "sketch_id": p.sketch, "decisions": list(p.decisions)}
            for p in drawn
        ]  # fmt: skip
    used = {row["task_key"] for row in programs}
    tasks = {t.key: t for nets in split_tasks.values() for ts in nets.values() for t, _ in ts if t.key in used}
    uses = [
        {"network": network, "split": split, "task_key": task.key, "weight": weight}
        for split, networks in split_tasks.items()
        for network, found in networks.items()
        for task, weight in found
        if task.key in used
    ]
    store.write_table(folder / "tasks.parquet", "tasks", [task.as_row() for task in tasks.values()])
    store.write_table(folder / "networks.parquet", "networks", uses)
    store.write_table(folder / "sketches.parquet", "sketches", sketches)
    store.write_table(folder / "programs.parquet", "programs", programs)  # last: its presence says that all are there


def collections_of(workspace: Workspace, folder: Path) -> dict[str, Collection]:
    """platform -> all programs, with what its journal knows of them."""
    rows = store.read_table(folder / "tasks.parquet", "tasks")
    tasks = [Task.from_row(row) for row in rows]
    encoder = Encoder(tasks, store.read_table(folder / "sketches.parquet", "sketches"))
    rows = store.read_table(folder / "programs.parquet", "programs")
    programs = [Program.from_row(row) for row in rows]
    return {
        name: Collection(
            programs=programs,
            encoder=encoder,
            hardware=hardware_of(workspace, name).vector(),
            host=host_fingerprint(),
            setup=setup_of(workspace, name),
            journal=workspace.journal / "reference" / name,
        )
        for name in workspace.params.chain_order
        if why_not(workspace.params.platforms[name].mcpu) is None
    }


def hardware_of(workspace: Workspace, name: str) -> Hardware:
    spec = workspace.params.platforms[name]
    return hardware_here(workspace, spec.mcpu, spec.hardware)


def tasks_in_turn(folder: Path) -> list[str]:
    """Task keys, the held-out ones evenly among those to train on."""
    split_of = {r["task_key"]: r["split"] for r in store.read_table(folder / "programs.parquet", "programs")}
    queues = [[key for key, split in split_of.items() if split == name] for name in SPLITS]
    places = [(n / len(queue), key) for queue in queues for n, key in enumerate(queue)]
    return [key for _, key in sorted(places)]


def measure(collections: Mapping[str, Collection], turns: Sequence[str], check_fraction: float, minutes: float) -> list[str]:
    """The tasks that are measured on every platform when the minutes are over, those of earlier runs among them."""
    end, done = time.monotonic() + 60 * minutes, []
    rows = _rows_by_task(next(iter(collections.values())).programs)
    known = lambda key: all(row in c.known for c in collections.values() for row in rows[key])  # noqa: E731
    with ExitStack() as stack, progress("measuring tasks", len(turns)) as shown:
        measuring = {name: stack.enter_context(c.measuring()) for name, c in collections.items()}
        for key in turns:
            if time.monotonic() > end and not known(key):
                continue
            _measure_task(measuring, rows[key], check_fraction)
            done.append(key)
            shown.advance(next(iter(collections.values())).encoder.tasks[key].name[:40])
    return done


def _measure_task(measuring: Mapping[str, Measuring], rows: Sequence[int], check_fraction: float) -> None:
    for platform in measuring.values():
        platform.measure(rows, 0, check_fraction, lambda record: None)


def _rows_by_task(programs: Sequence[Program]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, program in enumerate(programs):
        rows.setdefault(program.task_key, []).append(row)
    return rows


def write_records(workspace: Workspace, collections: Mapping[str, Collection], done: Sequence[str], folder: Path) -> Iterator[str]:
    """Each platform's records of the tasks that are done; says how many."""
    keep = set(done)
    for name, collection in collections.items():
        records = [record for record in collection.records.values() if record.task_key in keep]
        place = folder / f"platform={name}"
        store.write_records(place, records)
        save_hardware(place, hardware_of(workspace, name))
        failed, disturbed = sum(r.error != "ok" for r in records), sum(r.disturbed for r in records)
        yield f"{name}: {len(records)} records of {len(keep)} tasks, {failed} failed, {disturbed} disturbed"


def check_folder(workspace: Workspace, folder: Path) -> None:
    """Raise DataError where the folder holds another machine's measurements, or some of which there is no journal."""
    for place in folder.glob("platform=*"):
        others = {host for file in place.glob("*.parquet") for host in store.record_hosts(file)} - {host_fingerprint()}
        if others:
            raise DataError(f"{place} was measured on {' and '.join(sorted(others))}; give another folder with --to")
        if not (workspace.journal / "reference").exists():
            raise DataError(f"{place} is there, but not the journal of its measurements; give another folder with --to")


def smallest(params: Params) -> Workspace:
    """One task of each split, on one platform, in a folder of its own: the journal here is not touched."""
    from _smallest import network, scratch

    networks = Networks((network(32),), (network(48),))
    params = replace(
        params,
        networks=networks,
        chain=Chain(params.chain.first, {}),
        candidates=replace(params.candidates, max_train_tasks=1, max_held_out_tasks=1, programs_per_task=2, held_out_programs_per_task=2),
        measure=replace(params.measure, repeats=1, max_repeats=1, min_repeat_ms=1),
    )
    return Workspace(scratch(), params)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no task after so many")
    parser.add_argument("--to", type=Path, default=Path("data/reference"), help="folder of the data set")
    given = parser.parse_args()
    workspace = Workspace(".", load_patched(Path(__file__).with_suffix(".yaml")))
    if given.smallest:
        workspace, given.to = smallest(workspace.params), result_file("reference")
    params = workspace.params
    try:
        check_folder(workspace, given.to)
        if not (given.to / "programs.parquet").exists():
            write_pool(params, given.to)
        with measuring_alone():  # which another run may hold: what it measures is known to this one afterwards
            collections = collections_of(workspace, given.to)
            done = measure(collections, tasks_in_turn(given.to), params.measure.check_fraction, given.minutes)
        for line in write_records(workspace, collections, done, given.to):
            print(line)
    except TclError as error:
        sys.exit(f"reference: {error}")


if __name__ == "__main__":
    main()

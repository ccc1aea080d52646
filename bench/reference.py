"""Measure a reference data set: programs of many tasks on every platform of the chain.

    python bench/reference.py [--edition reference|prepared|registers|variants] [--minutes M] [--to data/EDITION] [--like FOLDER]

The networks, sizes and protocol are those of bench/EDITION.yaml over params.yaml.  Programs are measured in passes over
all tasks, a few programs of each on every platform; so a run that is stopped, or whose minutes are over, has measured the
same share of every task, and the same command resumes it.  The tables hold the programs that were measured on all platforms.
Measurements of another machine or checkout are never replaced: give another folder with --to.  With --like the programs are
those of another data set of the edition, in the same order, so that two machines measure the same ones.
The edition *variants* has only tasks to train on, none of which another edition has.  There each batch is measured by one platform
before any is measured by a second, and the tables hold what each has measured, disturbed or not: a model learns more from further tasks
than from further platforms.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections.abc import Collection as Several, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import _variants
import numpy as np
from _datasets import SEALED
from _tables import arguments, result_file

from tcl_core import environment, store  # noqa: F401  (before torch is imported)
from tcl_core.collect import Collection
from tcl_core.errors import DataError, TclError
from tcl_core.features.encode import Encoder
from tcl_core.files import replacing
from tcl_core.journal import iter_journal
from tcl_core.params import Chain, Networks, Params
from tcl_core.profiles import load_patched
from tcl_core.platforms import Hardware, save_hardware, host_fingerprint, threads, why_not
from tcl_core.programs.pool import Program, build_pool, rank_tasks
from tcl_core.programs.tasks import Task, extract_tasks
from tcl_core.progress import progress
from tcl_core.reference import PACKAGED, PREPARED, REGISTERS
from tcl_core.stages.collecting import setup_of
from tcl_core.stages.machine import hardware_here, measuring_alone
from tcl_core.stages.workspace import Workspace

BENCH = Path(__file__).parent
VARIANTS = "variants"
# Networks as written, as params.yaml prepares them, with programs as a search draws, and variants of the training networks.
EDITIONS = ("reference", "prepared", "registers", VARIANTS)
SPLITS = ("train", "held_out", "sealed")
SEALED_TASKS = 80  # in all; params.yaml has the numbers of the other splits
PASS = 16  # programs of a task that are measured before the next task's; switching to a task costs as much as some of its builds
BATCH = 64  # programs of one platform, at least, before the next platform's turn


def tasks_of(params: Params) -> dict[str, dict[str, list[tuple[Task, int]]]]:
    """split -> network -> its tasks and their weights."""
    names = [*params.networks.train, *params.networks.held_out]
    processes = ProcessPoolExecutor(threads(), get_context("spawn"), _variants.add)
    with progress("extracting tasks", len(names)) as shown, processes:
        futures = {name: processes.submit(extract_tasks, name, params.graph) for name in names}
        found = {name: (future.result(), shown.advance(name))[0] for name, future in futures.items()}
    split_of = lambda name: "train" if name in params.networks.train else "sealed" if name in SEALED else "held_out"  # noqa: E731
    return {split: {name: tasks for name, tasks in found.items() if split_of(name) == split} for split in SPLITS}


def write_pool(params: Params, folder: Path, splits: Sequence[str] = SPLITS, known: Several[str] = ()) -> None:
    """Sample programs of the splits and write their tables: tasks, networks, sketches, programs.  ``known`` tasks are not trained on."""
    split_tasks = tasks_of(params)
    held_out, sealed = ({t.key for tasks in split_tasks[s].values() for t, _ in tasks} for s in ("held_out", "sealed"))
    others = {"train": held_out | sealed | set(known), "held_out": set[str](), "sealed": held_out}
    tasks: dict[str, Task] = {}  # those whose sketches were drawn: another network's task of the same key may name its blocks otherwise
    sketches: list[dict[str, Any]] = []
    programs: list[dict[str, Any]] = []
    c = params.candidates
    sizes = {"train": (c.max_train_tasks, c.programs_per_task), "held_out": (c.max_held_out_tasks, c.held_out_programs_per_task)}
    sizes["sealed"] = (SEALED_TASKS, c.held_out_programs_per_task)
    for split in splits:
        limit, count = sizes[split]
        ranked = rank_tasks(split_tasks[split], others[split])
        with progress(f"sampling {split.replace('_', '-')} programs", limit) as shown:
            found, drawn = build_pool(
                ranked, limit, count, params.seed, threads(), lambda task: shown.advance(task.name[:40]), lean=c.lean, costly=c.costly
            )
        drawn_from = {program.task_key for program in drawn}
        tasks |= {task.key: task for task in ranked if task.key in drawn_from}
        sketches += found
        programs += [
            {"task_key": p.task_key, "split": split, "program_id": p.number, "sketch_id": p.sketch, "decisions": list(p.decisions)}
            for p in drawn
        ]  # fmt: skip
    uses = [
        {"network": network, "split": split, "task_key": task.key, "weight": weight}
        for split, networks in split_tasks.items()
        for network, found in networks.items()
        for task, weight in found
        if task.key in tasks
    ]
    store.write_table(folder / "tasks.parquet", "tasks", [task.as_row() for task in tasks.values()])
    store.write_table(folder / "networks.parquet", "networks", uses)
    store.write_table(folder / "sketches.parquet", "sketches", sketches)
    store.write_table(folder / "programs.parquet", "programs", programs)  # last: its presence tells that all are there


def tasks_known() -> set[str]:
    """Keys of the other editions' tasks."""
    return {row["task_key"] for folder in (PACKAGED, PREPARED, REGISTERS) for row in store.read_table(folder / "tasks.parquet", "tasks")}


def copy_pool(like: Path, folder: Path) -> None:
    """Copy the tables of another data set's programs, but no measurements.  Raises DataError where different tables are there."""
    if not (like / "programs.parquet").exists():
        raise DataError(f"{like} is no data set: it has no programs.parquet; give --like the folder of one, such as data/registers")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tasks", "networks", "sketches", "programs"):  # programs last, as above
        table, place = (like / f"{name}.parquet").read_bytes(), folder / f"{name}.parquet"
        if not place.exists():
            with replacing(place) as file:
                file.write(table)
        elif place.read_bytes() != table:
            raise DataError(f"{place} is another data set's than {like}; give another folder with --to")


def collections_of(workspace: Workspace, folder: Path) -> dict[str, Collection]:
    """platform that this machine can run -> collection of all programs, with its journal's records of them."""
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
            journal=workspace.journal / folder.name / name,
        )
        for name in workspace.params.chain_order
        if why_not(workspace.params.platforms[name].mcpu) is None
    }


def know_disturbed(collection: Collection) -> None:
    """Count disturbed measurements as known, but where there is an undisturbed one.

    A task's few programs are measured within seconds, and what lasts longer slows them all.
    """
    rows = {key: row for row, key in enumerate(collection.keys)}
    for record in iter_journal(collection.journal):
        if record.key in rows and record.protocol == collection.protocol_json(record.task_key, record.error):
            collection.known.setdefault(rows[record.key], record)


def hardware_of(workspace: Workspace, name: str) -> Hardware:
    spec = workspace.params.platforms[name]
    return hardware_here(workspace, spec.mcpu, spec.hardware)


def turns_of(programs: Sequence[Program]) -> list[list[int]]:
    """Batches of the programs' rows in the order of measuring: passes over all tasks, ``PASS`` programs of each.

    A task's programs, which are sorted by sketch, are shuffled.  Passes are ordered by the share of a task that is already measured, so
    that tasks with more programs keep up.  Tasks follow a hash of their keys, so that half a pass is over half of each network's and
    each split's.
    """
    rows: dict[str, list[int]] = {}
    for row, program in enumerate(programs):
        rows.setdefault(program.task_key, []).append(row)
    placed = []
    for key, found in rows.items():
        seed = zlib.crc32(key.encode())
        drawn = np.random.default_rng(seed).permutation(found).tolist()
        placed += [(start / len(drawn), seed, drawn[start : start + PASS]) for start in range(0, len(drawn), PASS)]
    batches: list[list[int]] = []
    for *_, part in sorted(placed):
        if not batches or len(batches[-1]) >= BATCH:
            batches.append([])
        batches[-1] += part
    return batches


def measure(collections: Mapping[str, Collection], check_fraction: float, minutes: float, apart: bool = False) -> dict[str, list[int]]:
    """Measure until the minutes are over; return the rows that each platform has measured, those of earlier runs included.

    Each platform measures a batch before the next batch's turn; with ``apart`` one of them does, and the others when all batches have
    been measured once.
    """
    turns, end = turns_of(next(iter(collections.values())).programs), time.monotonic() + 60 * minutes
    names = list(collections)
    together = [(rows, names) for rows in turns]
    one_by_one = [(rows, [names[(place + lap) % len(names)]]) for lap in range(len(names)) for place, rows in enumerate(turns)]
    done: dict[str, list[int]] = {name: [] for name in names}
    with ExitStack() as stack, progress("measuring batches of programs", len(one_by_one if apart else together)) as shown:
        measuring = {name: stack.enter_context(collection.measuring()) for name, collection in collections.items()}
        for rows, platforms in one_by_one if apart else together:
            if time.monotonic() > end:  # then only what earlier runs know of it
                known = [row for row in rows if all(row in collections[name].known for name in platforms)]
                rows = known if apart or len(known) == len(rows) else []
            for name in platforms:
                measuring[name].measure(rows, 0, check_fraction, lambda record: None)
                done[name] += rows
            shown.advance()
    return done


def write_records(
    workspace: Workspace, collections: Mapping[str, Collection], done: Mapping[str, Iterable[int]], folder: Path
) -> Iterator[str]:
    """Write each platform's records of its rows in ``done``; yield a line on each.  Raises DataError where more are there already."""
    for name, collection in collections.items():
        records = [collection.records[row] for row in sorted(done[name])]
        place = folder / f"platform={name}"
        if (there := sum(len(store.read_records(each.parent)) for each in place.glob("records.parquet"))) > len(records):
            raise DataError(
                f"{place} holds {there} records, and {len(records)} would take their place: what was disturbed is measured again "
                "first; give more --minutes"
            )
        store.write_records(place, records)
        save_hardware(place, hardware_of(workspace, name))
        failed, disturbed = sum(r.error != "ok" for r in records), sum(r.disturbed for r in records)
        yield f"{name}: {len(records)} records of {len({r.task_key for r in records})} tasks, {failed} failed, {disturbed} disturbed"


def check_folder(workspace: Workspace, folder: Path, platform: str = "*") -> None:
    """Raise DataError where the folder has measurements of the platform ("*": of any) by another machine, or without a journal here."""
    for place in folder.glob(f"platform={platform}"):
        others = {host for file in place.glob("*.parquet") for host in store.record_hosts(file)} - {host_fingerprint()}
        if others:
            raise DataError(f"{place} was measured on {' and '.join(sorted(others))}; give another folder with --to")
        if not (workspace.journal / folder.name / place.name.removeprefix("platform=")).exists():
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
    parser.add_argument("--edition", choices=EDITIONS, default="reference", help="whose settings: bench/EDITION.yaml")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after so many")
    parser.add_argument("--to", type=Path, help="folder of the data set (data/EDITION)")
    parser.add_argument("--like", type=Path, metavar="FOLDER", help="measure the programs of that data set, and draw none")
    given = parser.parse_args()
    given.to = given.to or Path("data") / given.edition
    _variants.add()
    workspace = Workspace(".", load_patched(BENCH / f"{given.edition}.yaml"))
    if given.smallest:
        workspace, given.to = smallest(workspace.params), result_file("reference")
    params = workspace.params
    try:
        check_folder(workspace, given.to)
        if given.like:
            copy_pool(given.like, given.to)
        elif not (given.to / "programs.parquet").exists():
            write_pool(params, given.to, *((("train",), tasks_known()) if given.edition == VARIANTS else ()))
        with measuring_alone():  # waits for another run, whose measurements are then known here
            collections = collections_of(workspace, given.to)
            if given.edition == VARIANTS:
                for collection in collections.values():
                    know_disturbed(collection)
            done = measure(collections, params.measure.check_fraction, given.minutes, apart=given.edition == VARIANTS)
        if not all(done.values()):
            sys.exit(
                f"reference: the programs are drawn, and not all of {', '.join(collections)} have measured some yet; give more --minutes"
            )
        for line in write_records(workspace, collections, done, given.to):
            print(line)
    except TclError as error:
        sys.exit(f"reference: {error}")


if __name__ == "__main__":
    main()

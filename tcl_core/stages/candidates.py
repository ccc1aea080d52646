"""The tasks that are cut from the networks, and the candidate programs of each that may be measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tcl_core import store
from tcl_core.compat import load_tvm
from tcl_core.errors import PlatformError, UsageError
from tcl_core.platforms import threads
from tcl_core.programs.graph import Graph
from tcl_core.programs.pool import Program, build_pool, rank_tasks
from tcl_core.programs.tasks import Task, extract_tasks
from tcl_core.progress import progress
from tcl_core.side_by_side import side_by_side
from tcl_core.stages.workspace import Workspace

MOST_AT_ONCE = 4  # networks cut at a time: each may take some gigabytes


@dataclass(frozen=True)
class TasksReport:
    """How many distinct tasks were cut from how many networks."""

    tasks: int
    networks: int

    def __str__(self) -> str:
        return f"{self.tasks} distinct tasks of {self.networks} networks"


def cut_tasks(workspace: Workspace) -> TasksReport:
    """Extract the tasks of all networks -> data/programs/tasks/."""
    networks = workspace.params.networks
    splits = {**dict.fromkeys(networks.train, "train"), **dict.fromkeys(networks.held_out, "held_out")}
    tasks: dict[str, Task] = {}
    uses: list[dict[str, Any]] = []
    with workspace.timed("tasks"):
        found = _cut(workspace, list(splits))
        for network, split in splits.items():
            for task, weight in found[network]:
                tasks.setdefault(task.key, task)
                uses.append({"network": network, "split": split, "task_key": task.key, "weight": weight})
        store.write_table(workspace.task_tables / "tasks.parquet", "tasks", [task.as_row() for task in tasks.values()])
        store.write_table(workspace.task_tables / "networks.parquet", "networks", uses)
    return TasksReport(len(tasks), len(splits))


def _cut(workspace: Workspace, networks: Sequence[str]) -> dict[str, list[tuple[Task, int]]]:
    """Network -> its tasks and their weights.  Processes cut at least two networks each, since starting one takes seconds."""
    processes = min(threads(), max(1, len(networks) // 2), MOST_AT_ONCE)
    files = {network: workspace.network(network) for network in networks}
    cut = partial(extract_tasks, graph=workspace.params.graph)
    died = PlatformError("a process that cuts networks into tasks died; nothing was written, run the same command again")
    found = {}
    with progress("extracting tasks", len(networks)) as shown:
        for file, tasks in side_by_side(cut, list(files.values()), processes, load_tvm, died):
            found[file] = tasks
            shown.advance(file)
    return {network: found[file] for network, file in files.items()}


def tasks_of(network: str, graph: Graph) -> list[tuple[Task, int]]:
    """One network's tasks and how often each occurs, most FLOPs in all first; ``graph`` says how to prepare it.  Writes nothing."""
    return sorted(extract_tasks(network, graph), key=lambda found: -found[0].flops * found[1])


def tasks_text(found: Sequence[tuple[Task, int]]) -> str:
    lines = [f"{'task':16s}  {'operator':17s} {'MFLOP':>10s}  weight  name"]
    return "\n".join([*lines, *(f"{t.key:16s}  {t.operator:17s} {t.flops / 1e6:10.2f}  {w:6d}  {t.name}" for t, w in found)])


@dataclass(frozen=True)
class PoolReport:
    """The size of a split's pool."""

    split: str
    programs: int
    tasks: int
    sketches: int

    def __str__(self) -> str:
        return f"{self.split}: {self.programs} programs of {self.tasks} tasks, {self.sketches} sketches"


def sample_candidates(workspace: Workspace) -> tuple[PoolReport, PoolReport]:
    """Sample the candidate programs -> data/programs/pool/{train,held_out}/; returns a report per split."""
    c = workspace.params.candidates
    held_out_keys = [row["task_key"] for row in workspace.networks if row["split"] == "held_out"]
    with workspace.timed("candidates"):
        train = _write_pool(workspace, "train", held_out_keys, c.max_train_tasks, c.programs_per_task)
        return train, _write_pool(workspace, "held_out", (), c.max_held_out_tasks, c.held_out_programs_per_task)


def _write_pool(workspace: Workspace, split: str, without: Iterable[str], limit: int, count: int) -> PoolReport:
    ranked = rank_tasks(_by_network(workspace, split), without)
    with progress(f"sampling {split.replace('_', '-')} candidates", limit or len(ranked)) as shown:
        sketches, programs = build_pool(
            ranked,
            limit,
            count,
            workspace.params.seed,
            threads(),
            lambda task: shown.advance(task.name[:40]),
            workspace.params.candidates.design_space,
            workspace.params.candidates.lean,
            workspace.params.candidates.costly,
        )
    if not programs:
        shared = "is a held-out network's too, or " if split == "train" else ""
        raise UsageError(
            f"no task of networks.{split} in params.yaml is left to sample programs of: each {shared}has but one program; "
            "name other networks there"
        )
    store.write_table(workspace.pool / split / "sketches.parquet", "sketches", sketches)
    store.write_table(workspace.pool / split / "programs.parquet", "programs", [_program_row(p, split) for p in programs])
    return PoolReport(split, len(programs), len({row["task_key"] for row in sketches}), len(sketches))


def _program_row(program: Program, split: str) -> dict[str, Any]:
    return {
        "task_key": program.task_key,
        "split": split,
        "program_id": program.number,
        "sketch_id": program.sketch,
        "decisions": list(program.decisions),
    }


def _by_network(workspace: Workspace, split: str) -> dict[str, list[tuple[Task, int]]]:
    """Network of the split -> its tasks and their weights."""
    by_key = {task.key: task for task in workspace.tasks}
    found: dict[str, list[tuple[Task, int]]] = {}
    for row in workspace.networks:
        task = by_key[row["task_key"]]
        if row["split"] == split:
            found.setdefault(row["network"], []).append((task, row["weight"]))
    return found

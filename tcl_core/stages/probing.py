"""`tcl platforms --similar NAME`: which known platform a new one should learn from, told by a few measured programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from tcl_core.errors import DataError
from tcl_core.evaluation.similarity import agreement
from tcl_core.records import ProgramKey
from tcl_core.stages.data import check_platform, measure_probes
from tcl_core.stages.project import Project

OF_A_TASK = 4  # probes; fewer pairs of programs come from more tasks
NEAR = 0.6  # share of pairs, below which a platform says next to nothing

Known = Mapping[str, Mapping[ProgramKey, float]]
"""Platform -> program -> seconds."""


def run_similar(project: Project, platform: str, probes: int) -> str:
    """Measure ``probes`` programs that other platforms measured on this one too, and say how alike they order them.

    Raises UsageError for an unknown platform, DataError where no other has records, PlatformError where this one cannot run.
    """
    check_platform(project, platform)
    known = {name: project.seconds(name) for name in project.params.platforms if name != platform}
    known = {name: seconds for name, seconds in known.items() if seconds}
    if not known:
        raise DataError("no other platform has records to compare with; run tcl collect for one first")
    target = measure_probes(project, platform, partial(choose_probes, known=known, count=probes, seed=project.params.seed))
    return table(platform, target, known)


def choose_probes(keys: Sequence[ProgramKey], known: Known, count: int, seed: int = 0) -> list[int]:
    """Rows of at most ``count`` programs: for each known platform in turn a task's ``OF_A_TASK`` that it measured, ascending.

    Those that several platforms measured come first, for they tell about all of these.
    """
    draw, rows = np.random.default_rng(seed), {key: row for row, key in enumerate(keys)}
    shared = {key: sum(key in seconds for seconds in known.values()) for key in keys}
    queues = []
    for seconds in known.values():
        tasks: dict[str, list[ProgramKey]] = {}
        for key in seconds:
            if key in rows:
                tasks.setdefault(key[0], []).append(key)
        groups = [draw.permutation(np.array([rows[key] for key in group])) for group in tasks.values() if len(group) > 1]
        groups = [sorted(group.tolist(), key=lambda row: -shared[keys[row]])[:OF_A_TASK] for group in groups]
        order = draw.permutation(len(groups)).tolist()
        queues.append([groups[number] for number in sorted(order, key=lambda n: -sum(shared[keys[row]] for row in groups[n]))])
    chosen: dict[int, None] = {}
    for place in range(max(map(len, queues), default=0)):
        for queue in queues:
            if place < len(queue) and len(chosen) + len(new := [row for row in queue[place] if row not in chosen]) <= count:
                chosen |= dict.fromkeys(new)
    return sorted(chosen)


def table(platform: str, target: Mapping[ProgramKey, float], known: Known) -> str:
    """How alike each known platform orders the probes, nearest first, and what to do about it."""
    keys = list(target)
    names = {key[0]: number for number, key in enumerate(keys)}
    tasks = np.array([names[key[0]] for key in keys], dtype=np.int32)
    sources = {name: np.array([seconds.get(key, np.nan) for key in keys]) for name, seconds in known.items()}
    found = agreement(sources, np.array([target[key] for key in keys]), tasks)
    lines = [f"{'platform':16s} {'both measured':>13s} {'pairs ordered alike':>20s}"]
    lines += [f"{name:16s} {int(np.isfinite(sources[name]).sum()):13d} {share:20.3f}" for name, share in found.items()]
    nearest, share = next(iter(found.items()))
    if share < NEAR:
        return "\n".join([*lines, "", f"none is near {platform}: measure more of its programs, and compare with what they alone teach"])
    return "\n".join([*lines, "", f"{platform} should learn from {nearest} (params.yaml, chain.then: {platform}: {{prev: {nearest}}})"])

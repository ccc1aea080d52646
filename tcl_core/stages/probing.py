"""`tcl platforms --similar NAME`: which known platform a new one should learn from, told by a few measured programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from tcl_core.errors import DataError
from tcl_core.evaluation.similarity import agreement
from tcl_core.records import ProgramKey
from tcl_core.stages.collecting import measure_probes
from tcl_core.stages.workspace import Workspace

OF_A_TASK = 4  # probes per task; fewer would cover more tasks but give fewer pairs
NEAR = 0.6  # least share of pairs ordered alike, shrunk towards a half: below it a platform says next to nothing

Known = Mapping[str, Mapping[ProgramKey, float]]
"""Platform -> program -> seconds."""


def find_similar(workspace: Workspace, platform: str, probes: int) -> Similar:
    """Measure on a platform at most ``probes`` programs that others measured, and compare how each platform orders them.

    Raises UsageError for an unknown platform, DataError where no other has records, PlatformError where this one cannot run.
    """
    workspace.check_platform(platform)
    known = {name: workspace.seconds(name) for name in workspace.params.platforms if name != platform}
    known = {name: seconds for name, seconds in known.items() if seconds}
    if not known:
        raise DataError("no other platform has records to compare with; run tcl collect for one first")
    target = measure_probes(workspace, platform, partial(choose_probes, known=known, count=probes, seed=workspace.params.seed))
    if not target:
        raise DataError("no other platform has measured two programs of a task of the present pool; run tcl collect for one again")
    return compare(platform, target, known)


def choose_probes(keys: Sequence[ProgramKey], known: Known, count: int, seed: int = 0) -> list[int]:
    """Rows of at most ``count`` programs, ascending: each known platform in turn adds up to ``OF_A_TASK`` of one task it measured.

    Programs that several platforms measured come first, since they tell about all of these.
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


@dataclass(frozen=True)
class Similar:
    """Known platforms, nearest first -> share of pairs ordered as on the new ``platform``, and number of its probes that they ran."""

    platform: str
    agreement: Mapping[str, float]
    shared: Mapping[str, int]

    @property
    def nearest(self) -> str | None:
        """The platform to learn from; None where none is near."""
        name, share = next(iter(self.agreement.items()))
        return name if share >= NEAR else None

    def __str__(self) -> str:
        lines = [f"{'platform':16s} {'both measured':>13s} {'pairs ordered alike':>20s}"]
        lines += [f"{name:16s} {self.shared[name]:13d} {share:20.3f}" for name, share in self.agreement.items()]
        if self.nearest is None:
            advice = f"none is near {self.platform}: measure more of its programs, and compare with what they alone teach"
        else:
            advice = (
                f"{self.platform} should learn from {self.nearest} (params.yaml, chain.then: {self.platform}: {{prev: {self.nearest}}})"
            )
        return "\n".join([*lines, "", advice])


def compare(platform: str, target: Mapping[ProgramKey, float], known: Known) -> Similar:
    """Compare how a new platform and the known ones order programs; ``target``: program -> seconds on the new one."""
    keys = list(target)
    names = {key[0]: number for number, key in enumerate(keys)}
    tasks = np.array([names[key[0]] for key in keys], dtype=np.int32)
    sources = {name: np.array([seconds.get(key, np.nan) for key in keys]) for name, seconds in known.items()}
    found = agreement(sources, np.array([target[key] for key in keys]), tasks)
    return Similar(platform, found, {name: int(np.isfinite(sources[name]).sum()) for name in found})

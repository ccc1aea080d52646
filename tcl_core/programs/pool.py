"""The candidate pool: which tasks are worth a model, and which programs of them may be measured.

One pool serves every CPU platform, so that the same program is measured on each and platforms can be compared; another
one, with CUDA's sketches, serves every GPU.
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import chain, zip_longest
from typing import Any, Self, TypeVar

import numpy as np

from tcl_core.platforms import pool_target, threads
from tcl_core.programs.gpu_limits import launching
from tcl_core.programs.registers import Fits, leaning
from tcl_core.programs.sketches import DesignSpace, InvalidProgram, Sketch, trace_to_json
from tcl_core.programs.tasks import Task, argument_types
from tcl_core.programs.unrolling import COSTLY, unrolled
from tcl_core.programs.workload import read_workload

# Share of a network's cost below which a task can wait.
SMALL = 0.01
# Draws per wanted program before a design space counts as exhausted; in a GPU's small ones few vectors can be launched.
DRAWS = {"llvm": 8, "cuda": 40}
# Vector widths in bytes: each leaning draw, of programs that accumulate in registers, picks one, since the pool serves every CPU.
WIDTHS = 16, 32, 64
REDRAWN = 64  # vectors searched for one that accumulates in registers; three to five of 100 do on AVX-512
LAUNCHED = 512  # vectors searched for one that a GPU can launch; it can launch some five of 100, for some sketches one


Job = TypeVar("Job")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Program:
    """One candidate: a sketch of a task and its decisions; ``number`` counts within the task."""

    task_key: str
    number: int
    sketch: int
    decisions: tuple[int, ...]

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        """The program of a row of the programs table (``store.SCHEMAS``)."""
        return cls(row["task_key"], row["program_id"], row["sketch_id"], tuple(row["decisions"]))


def rank_tasks(networks: Mapping[str, Iterable[tuple[Task, int]]], without: Iterable[str] = ()) -> list[Task]:
    """Distinct tasks in order of priority for the pool, taken from each network in turn.

    ``without`` are keys of tasks to leave out, such as those that a held-out network also has.
    """
    left_out = set(without)
    queues = [_by_turns([t for t in tasks if t[0].key not in left_out]) for tasks in networks.values()]
    turns = chain.from_iterable(zip_longest(*queues))
    return list({task.key: task for task in turns if task is not None}.values())


def _by_turns(tasks: Sequence[tuple[Task, int]]) -> list[Task]:
    """One network's tasks: its operator types in turn, each one's heaviest (weight x ``cost``) task first.

    Tasks below ``SMALL`` of the network's cost come last, whatever their type.
    """
    costs = {task.key: weight * cost(task) for task, weight in tasks}
    enough = SMALL * sum(costs.values())
    ranked = sorted((task for task, _ in tasks), key=lambda task: -costs[task.key])
    queues: dict[str, list[Task]] = {}
    for task in ranked:
        if costs[task.key] >= enough:
            queues.setdefault(task.operator, []).append(task)
    large = [task for task in chain.from_iterable(zip_longest(*queues.values())) if task is not None]
    return large + [task for task in ranked if costs[task.key] < enough]


@cache
def cost(task: Task) -> float:
    """Estimated cost of a task in operations: its own, plus ten for each byte of its arguments.

    By operations alone, depthwise convolutions and reductions, which wait for memory, would look cheap.
    """
    sizes = (math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in argument_types(task.module()))
    return task.flops + 10.0 * sum(sizes)


def sample_programs(
    task: Task,
    sketches: Sequence[Sketch],
    space: DesignSpace,
    count: int,
    seed: int,
    stream: Sequence[int] = (),
    known: Collection[tuple[int, tuple[int, ...]]] = (),
    lean: float = 0.0,
    costly: float = 1.0,
    tried: bool = True,
) -> list[Program]:
    """Up to ``count`` distinct valid programs, drawn uniformly over sketches; fewer from a small design space.

    The draw depends on the seed and the task alone, not on which other tasks are in the pool.  A GPU's programs are all drawn among
    those that it can launch (``gpu_limits``).

    stream  positive numbers; any but the pool's, which is empty, gives another draw for the same seed
    known   (sketch, decisions) to leave out
    lean    for CPUs, the share drawn among programs that accumulate in registers (``registers``)
    costly  for CPUs, the share that stays of programs that take long to build (``unrolling``)
    tried   whether post-processors try each program; otherwise all are taken to be valid (``DesignSpace.replayed``)
    """
    rng = np.random.default_rng([seed, zlib.crc32(task.key.encode()), *stream])
    on_cpu = space.target.kind.name == "llvm"
    understood = space.canonical if tried else space.replayed
    kinds = [leaning(sketches, width) for width in WIDTHS] if lean and on_cpu else []
    workload = read_workload(task.operator, task.flops, task.module())
    launches = None if on_cpu else launching(sketches, workload)
    steps = unrolled(sketches, workload) if on_cpu and costly < 1 else None

    def drawn(sketch: Sketch) -> np.ndarray:
        if launches:
            vectors = sketch.sample(LAUNCHED, rng)
            if not (fits := launches(sketch, vectors)).any():
                raise InvalidProgram("no GPU can launch any of these")
            return vectors[fits.argmax()]
        if kinds and rng.random() < lean:
            return _of_kind(kinds[rng.integers(len(kinds))], sketch, rng)
        return sketch.sample(1, rng)[0]

    found: dict[tuple[int, tuple[int, ...]], None] = {}
    for _ in range(DRAWS[space.target.kind.name] * count):
        place = rng.integers(len(sketches))
        sketch = sketches[place]
        try:
            vector = drawn(sketch)
            if steps and steps((place, vector)) >= COSTLY and rng.random() >= costly:
                continue
            decisions = understood(sketch, vector)
        except InvalidProgram:
            continue
        program = sketch.index, tuple(int(d) for d in decisions)
        if program not in known:
            found[program] = None
        if len(found) == count:
            break
    ordered = sorted(found)
    return [Program(task.key, number, *program) for number, program in enumerate(ordered)]


def _of_kind(kind: Fits, sketch: Sketch, rng: np.random.Generator) -> np.ndarray:
    """Draw a (width,) vector of the kind; any vector if none is found."""
    drawn = sketch.sample(REDRAWN, rng)
    return drawn[kind(sketch, drawn).argmax()]


def build_pool(
    tasks: Sequence[Task],
    limit: int,
    count: int,
    seed: int,
    cores: int,
    on_task: Callable[[Task], Any] = lambda task: None,
    design_space: str = "cpu",
    lean: float = 0.0,
    costly: float = 1.0,
) -> tuple[list[dict[str, Any]], list[Program]]:
    """The sketches (rows of the sketches table) and up to ``count`` programs each of the first ``limit`` (0: all) tasks.

    ``cores`` bounds the parallel loops of the sketches; ``design_space`` is cpu or one of ``gpu.DESIGN_SPACES``; ``lean`` and
    ``costly`` as for ``sample_programs``.
    A task whose design space is a single program needs no model and is skipped.
    """
    rows: list[dict[str, Any]] = []
    programs: list[Program] = []
    used = 0

    def with_sketches() -> Iterator[tuple[Task, DesignSpace, list[Sketch]]]:
        for task in tasks:
            space = DesignSpace(task.key, task.module(), pool_target(design_space, cores))
            yield task, space, space.sketches()

    def draw_of(known: tuple[Task, DesignSpace, list[Sketch]]) -> list[Program]:
        task, space, sketches = known
        return sample_programs(task, sketches, space, count, seed, lean=lean, costly=costly) if _has_choice(sketches) else []

    for (task, _, sketches), drawn in in_turn(draw_of, with_sketches()):
        if len(drawn) > 1:
            used += 1
            programs += drawn
            rows += [{"task_key": task.key, "sketch_id": s.index, "trace_json": trace_to_json(s.trace)} for s in sketches]
            on_task(task)
        if limit and used == limit:
            break
    return rows, programs


def in_turn(work: Callable[[Job], Found], jobs: Iterable[Job]) -> Iterator[tuple[Job, Found]]:
    """Each job with ``work``'s result, in order, a few begun ahead in threads: TVM, which replays the draws, lets threads run in parallel.

    Jobs are generated in this thread.  If the caller stops early, a few results are wasted.
    """
    with ThreadPoolExecutor(threads()) as pool:
        begun: deque[tuple[Job, Future[Found]]] = deque()
        try:
            for job in jobs:
                begun.append((job, pool.submit(work, job)))
                if len(begun) > threads():
                    first, found = begun.popleft()
                    yield first, found.result()
            while begun:
                first, found = begun.popleft()
                yield first, found.result()
        finally:
            for _, found in begun:
                found.cancel()


def _has_choice(sketches: Sequence[Sketch]) -> bool:
    return len(sketches) > 1 or any(len(slot.choices) > 1 for sketch in sketches for slot in sketch.slots)

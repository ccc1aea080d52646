"""Per-store features: what TVM's own cost models see of a program, one row per store of the lowered program.

A row is TVM's per-store feature vector (operation counts, loop annotations, bytes, strides and reuse of the buffers,
arithmetic intensity, allocation) with the workload's: 172 numbers, most of them log2(1 + x); TenSet (NeurIPS 2021) has
164 + 10 of the same kind.  On CPUs they depend on the schedule alone, so one cache serves all platforms.

Unlike tokens, rows need the program replayed and lowered, some 10 ms each.  So each program is extracted once, in
parallel processes, and its rows are kept in one file per task; a killed extraction resumes where it was.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path

import numpy as np

from tcl_core.compat import TVM_VERSION, load_module, load_tvm, meta_schedule, quiet_compiler
from tcl_core.errors import PlatformError
from tcl_core.features.batches import Samples
from tcl_core.features.cache import Cache
from tcl_core.features.encode import Encoder
from tcl_core.platforms import threads
from tcl_core.programs.sketches import DesignSpace, InvalidProgram, Sketch, read_sketch, trace_from_json
from tcl_core.programs.tasks import EXTRACTION_TARGET
from tcl_core.progress import progress
from tcl_core.records import ProgramKey
from tcl_core.side_by_side import side_by_side

log = logging.getLogger(__name__)
WIDTH = 172  # numbers per store; TVM: 164 of the store, 8 of the workload
FORMAT = f"1 {TVM_VERSION}"  # of the cache; the features are those of this TVM
CHUNK = 64  # programs per job: what a killed extraction loses at most, per process
FEW = 2 * CHUNK  # up to here, starting processes (2 s each) would take longer than the work


def with_per_store(samples: Samples, keys: Sequence[ProgramKey], encoder: Encoder, folder: Path) -> Samples:
    """The samples with per-store features (N, S, 172) as features, and each program's number of stores as length.

    ``keys`` are aligned with ``samples``, ``encoder`` knows their tasks and sketches, and ``folder`` is the cache.
    A program that TVM cannot lower has no store.  Raises DataError for a program of another pool, PlatformError
    when the compiler dies or the disk is full.
    """
    rows = read_per_store(keys, encoder, folder)
    counts = np.array([len(found) for found in rows], dtype=np.int32)
    features = np.zeros((len(keys), max([1, *counts]), WIDTH), dtype=np.float32)
    for place, found in zip(features, rows, strict=True):
        place[: len(found)] = found
    return replace(samples, features=features, lengths=counts, holds="per-store features")


def read_per_store(
    keys: Sequence[ProgramKey], encoder: Encoder, folder: Path, engine: Engine | None = None, chunk: int = CHUNK
) -> list[np.ndarray]:
    """The (stores, 172) float32 rows of each program, in order; rows that ``folder`` lacks are extracted and kept there.

    ``engine`` runs the jobs, each of up to ``chunk`` programs of one task, in any order; by default, processes on this machine.
    """
    names = [_name(key, encoder) for key in keys]
    caches = {task: Cache(folder / f"{task}.safetensors", FORMAT) for task in sorted({key[0] for key in keys})}
    missing = {name: key for name, key in zip(names, keys, strict=True) if name not in caches[key[0]].arrays}
    if missing:
        with progress("lowering programs for their features", len(missing)) as shown:
            for job, found in (engine or _extracted)(_jobs(missing, encoder, chunk)):
                caches[job.task_key].arrays.update(zip(job.names, found, strict=True))
                caches[job.task_key].write()
                for _ in found:
                    shown.advance(encoder.tasks[job.task_key].name)
    return [caches[key[0]].arrays[name] for name, key in zip(names, keys, strict=True)]


def _name(key: ProgramKey, encoder: Encoder) -> bytes:
    """Sixteen bytes that identify task, sketch (by its trace, not its number) and decisions."""
    task_key, sketch, decisions = key
    text = f"{task_key} {encoder.trace_json(task_key, sketch)} {[int(d) for d in decisions]}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


@dataclass(frozen=True)
class LoweringJob:
    """Programs of one task as plain data: ``programs`` are (sketch, decisions), ``traces`` the sketches' JSON."""

    task_key: str
    module_json: str
    traces: dict[int, str]
    programs: list[tuple[int, tuple[int, ...]]]
    names: list[bytes]


Engine = Callable[[Iterable[LoweringJob]], Iterable[tuple[LoweringJob, list[np.ndarray]]]]


def _jobs(missing: Mapping[bytes, ProgramKey], encoder: Encoder, chunk: int) -> Iterator[LoweringJob]:
    by_task: dict[str, list[bytes]] = {}
    for name, key in missing.items():
        by_task.setdefault(key[0], []).append(name)
    for task_key, names in by_task.items():
        for start in range(0, len(names), chunk):
            part = names[start : start + chunk]
            programs = [missing[name][1:] for name in part]
            traces = {sketch: encoder.trace_json(task_key, sketch) for sketch, _ in programs}
            yield LoweringJob(task_key, encoder.tasks[task_key].module_json, traces, programs, part)


def _extracted(jobs: Iterable[LoweringJob]) -> Iterator[tuple[LoweringJob, list[np.ndarray]]]:
    """Each job with the features of its programs, in order of completion."""
    todo = list(jobs)
    processes = 1 if sum(len(job.programs) for job in todo) <= FEW else threads()
    died = PlatformError("a process that lowers programs died; what was done is kept: run again, on one CPU (taskset -c 0) to see it")
    yield from side_by_side(extract, todo, processes, _without_torch, died)


def _without_torch() -> None:
    load_tvm(without_torch=True)


def extract(job: LoweringJob) -> list[np.ndarray]:
    """The (stores, 172) rows of each of the job's programs; (0, 172) for a program that TVM refuses."""
    with quiet_compiler():
        space = _space(job.task_key, job.module_json)
        sketches = {index: _sketch(job.task_key, job.module_json, text) for index, text in job.traces.items()}
        return [_rows(space, sketches[index], decisions) for index, decisions in job.programs]


def _rows(space: DesignSpace, sketch: Sketch, decisions: Sequence[int]) -> np.ndarray:
    try:
        schedule = space.materialise(sketch, decisions)
    except InvalidProgram as error:
        log.info("a program of task %s has no features (%s)", space.task_key, error)
        return np.zeros((0, WIDTH), dtype=np.float32)
    candidate = meta_schedule().MeasureCandidate(schedule, [])
    return _extractor().extract_from(space.context, [candidate])[0].numpy().astype(np.float32)


@cache
def _extractor():
    return meta_schedule().feature_extractor.PerStoreFeature(extract_workload=True)


@lru_cache(maxsize=4)
def _space(task_key: str, module_json: str) -> DesignSpace:
    return DesignSpace(task_key, load_module(module_json), EXTRACTION_TARGET)


@lru_cache(maxsize=32)
def _sketch(task_key: str, module_json: str, trace_json: str) -> Sketch:
    return read_sketch(task_key, 0, trace_from_json(trace_json, _space(task_key, module_json).module))

"""What teaches our model beside the measured programs' tokens: their per-store features, and unmeasured programs."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache

import numpy as np
from _datasets import LOG_PROGRAMS_PER_TASK, Case, Learned, Logs, Reference, drawn
from _identity import code

from tcl_core import store
from tcl_core.features.batches import Samples, concatenate
from tcl_core.features.per_store import with_per_store
from tcl_core.files import replacing
from tcl_core.platforms import pool_target, threads
from tcl_core.programs import pool, unlabelled as drawing
from tcl_core.records import ProgramKey
from tcl_core.stages import exchange
from tcl_core.platforms import read_saved_hardware
from tcl_core.teaching import pseudo_labelled

LOG_SHARE = 1  # programs of a log that stand for unlabelled ones, as a multiple of those trained on


@dataclass(frozen=True)
class Lesson(Case):
    """A case with what a teacher ensemble needs to teach our model (``tcl_core.teaching``).

    per_store   the training programs as per-store features, or None where nothing can be lowered
    unlabelled  further programs of the training tasks, in the same views; their latencies, if any, are not read
    """

    per_store: Samples | None = None
    unlabelled: Mapping[str, Samples] = field(default_factory=dict)

    def taught(self, seed: int, **teachers: object) -> Samples:
        """All programs, labelled by a teacher ensemble that learned the measured ones."""
        measured = {"tokens": self.train} | ({"per-store features": self.per_store} if self.per_store is not None else {})
        return pseudo_labelled(measured, self.unlabelled, seed, **teachers)


Thinned = tuple[int | None, int | None, int]


def lesson(
    reference: Reference | Learned, platform: str, tested: Sequence[str] = (), thin: Thinned = (None, None, 0), split: str = "held_out"
) -> Lesson:
    """A case of the reference data (``Reference.case``, then ``Case.thinned``) with its training programs as per-store features, and
    unlabelled programs of its training tasks.
    """
    case = reference.case(platform, "tokens", tested, split).thinned(*thin)
    per_store = reference.case(platform, "per-store features", tested, split).thinned(*thin).train
    further = {each: unlabelled(each, platform) for each in reference.sets}
    more = {reads: reference.heap(lambda each, reads=reads: further[each][reads]) for reads in ("tokens", "per-store features")}
    kept = np.isin(more["tokens"].tasks, np.unique(case.train.tasks))
    return Lesson(**_fields(case), per_store=per_store, unlabelled={reads: s.take(kept) for reads, s in more.items()})


def log_lesson(logs: Logs, device: str, case: Case, seed: int) -> Lesson:
    """Lesson of a device's case; further programs of its logs, which are not trained on, stand for unlabelled ones."""
    samples = concatenate(list(exchange.imported_batches(logs.workspace, device)))
    samples = samples.take(np.isin(samples.tasks, np.unique(case.train.tasks)))
    trained, both = (drawn(samples, None, share * LOG_PROGRAMS_PER_TASK, seed) for share in (1, 1 + LOG_SHARE))
    return Lesson(**_fields(case), unlabelled={"tokens": samples.take(np.setdiff1d(both, trained))})


@lru_cache(maxsize=8)  # of the most data sets that are learned together, for two platforms
def unlabelled(reference: Reference, platform: str) -> dict[str, Samples]:
    """View -> unmeasured programs of each training task of the reference data, the same on every platform."""
    encoder, keys = reference.encoder, _drawn_keys(reference)
    samples = encoder.encode(keys, read_saved_hardware(reference.folder / f"platform={platform}").vector())
    return {"tokens": samples, "per-store features": with_per_store(samples, keys, encoder, reference.features / "per-store features")}


@lru_cache(maxsize=4)
def _drawn_keys(reference: Reference) -> list[ProgramKey]:
    """Keys of unmeasured programs, of which the data set itself has none; drawn once and kept, for TVM takes a minute or two
    to find valid ones.
    """
    drawer = hashlib.sha256("".join(code(inspect.getsource(part)) for part in (pool, drawing)).encode()).hexdigest()
    path = (
        reference.features
        / f"unlabelled-{store.data_digest(reference.folder)[:12]}-{drawer[:12]}-{reference.unlabelled}{_leaning(reference)}.json"
    )
    if not path.exists():
        train, _ = reference._split(())
        tasks = [task for task in reference.encoder.tasks.values() if reference.encoder.numbers[task.key] in train]
        rows = store.read_table(reference.folder / "programs.parquet", "programs")
        measured = [(row["task_key"], row["sketch_id"], tuple(row["decisions"])) for row in rows]
        target = pool_target("cpu", threads())
        drawn = drawing.draw_unlabelled(tasks, reference.encoder.texts, measured, reference.unlabelled, 0, target, reference.lean)
        with replacing(path) as file:
            file.write(json.dumps(drawn).encode())
    return [(task, sketch, tuple(decisions)) for task, sketch, decisions in json.loads(path.read_text())]


def _leaning(reference: Reference) -> str:
    return f"-{reference.lean}" if reference.lean else ""


def _fields(case: Case) -> dict[str, object]:
    return {f.name: getattr(case, f.name) for f in fields(case)}

"""What our model learns along the chain: the first platform's lesson, and each later one's measurements beside the earlier ones'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from _datasets import Case, Learned, Reference, drawn
from _lessons import Lesson, Thinned, lesson, unlabelled

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples, concatenate
from tcl_core.features.tokens import with_hardware


@dataclass(frozen=True)
class Step:
    """A later platform of a chain.

    measured   its programs
    further    programs that it did not measure, with its hardware row: all of the earlier platforms', then the tasks' unmeasured ones,
               whose place the farther platforms' take in a project
    sources_s  for each earlier platform, in chain order, seconds of ``measured``, then of ``further``; NaN where not measured
    """

    measured: Samples
    further: Samples
    sources_s: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class ChainCase(Case):
    """A case to be learned along the chain; ``first`` teaches the chain's first platform.

    steps     one for each later platform up to this one
    hardware  the hardware vectors of all these platforms, in chain order
    """

    first: Lesson | None = None
    steps: tuple[Step, ...] = ()
    hardware: tuple[tuple[float, ...], ...] = ()


def chain_case(reference: Reference | Learned, platform: str, thin: Thinned, split: str = "held_out") -> ChainCase:
    """A case of the data (``case``, then ``Case.thinned``), and what is learned on the way to its platform."""
    chain = reference.platforms[: reference.platforms.index(platform) + 1]
    cases = [reference.case(name, "tokens", split=split) for name in chain]
    kept = [drawn(case.train, *thin) for case in cases]
    keys = [[_keys(reference, name, split)[row] for row in rows] for name, rows in zip(chain, kept, strict=True)]
    programs = [case.train.take(rows) for case, rows in zip(cases, kept, strict=True)]
    first = lesson(reference, chain[0], thin=thin, split=split)
    vectors = [tuple(reference.hardware(name).vector()) for name in chain]
    unmeasured = reference.heap(lambda each: unlabelled(each, chain[0])["tokens"])
    steps = (step(programs[:n], keys[:n], unmeasured, vectors[n - 1]) for n in range(2, len(chain) + 1))
    case = cases[-1].thinned(*thin)
    return ChainCase(**{f.name: getattr(case, f.name) for f in fields(case)}, first=first, steps=tuple(steps), hardware=tuple(vectors))


def step(programs: Sequence[Samples], keys: Sequence[Sequence[object]], unmeasured: Samples, hardware: Sequence[float]) -> Step:
    """The step to the last of the platforms that measured ``programs``, whose ``keys`` are given.

    ``unmeasured`` are further ones, of which those of the measured tasks are taken.  Raises DataError where the last platform has a program twice.
    """
    seconds = [dict(zip(names, heap.latencies_s.tolist(), strict=True)) for names, heap in zip(keys, programs, strict=True)]
    met, others = dict.fromkeys(keys[-1]), []
    if len(met) < len(keys[-1]):
        raise DataError("a platform has a program twice, which no chain can learn")
    for names, heap in zip(keys[:-1], programs[:-1], strict=True):
        new = [row for row, name in enumerate(names) if name not in met]
        met |= dict.fromkeys(names)
        others.append(heap.take(np.array(new, dtype=np.int64)))
    unmeasured = unmeasured.take(np.isin(unmeasured.tasks, np.concatenate([heap.tasks for heap in programs])))
    none = np.full(len(unmeasured), np.nan)
    sources_s = tuple(np.concatenate([[known.get(name, np.nan) for name in met], none]) for known in seconds[:-1])
    return Step(programs[-1], with_hardware(concatenate([*others, unmeasured]), hardware), sources_s)


def _keys(reference: Reference | Learned, platform: str, split: str) -> list[tuple[int, object]]:
    """(data set, program) of each row of a case's training programs."""
    found: list[tuple[int, object]] = []
    for place, each in enumerate(reference.sets):
        learned = set(np.unique(each.case(platform, "tokens", split=split).train.tasks).tolist())
        records = each._records(platform)
        found += [(place, record.key) for record in records if each.encoder.numbers[record.task_key] in learned]
    return found

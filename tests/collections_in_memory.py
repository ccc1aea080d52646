"""Collections of sixty programs on runners and models in memory, and what their journals hold."""

from __future__ import annotations

import zlib
from datetime import UTC, datetime

import numpy as np
import pytest

from tcl_core.collect import Collection, Plan, collect
from tcl_core.features.encode import Encoder
from tcl_core.journal import Journal, iter_journal
from tcl_core.programs.pool import sample_programs
from tcl_core.records import Record

HOST = "this host"
PLAN = Plan(sampler="rdu", budget=24, initial=8, rounds=4, check_fraction=0.5, seed=0)


def ignore(*_):
    pass


class FakeModel:
    """A linear ranking whose weights depend on everything it was fitted on last, and on its seed."""

    def __init__(self, seed=0):
        self.seed, self.weights, self.fitted = seed, None, []

    def fit(self, train, valid=None, on_epoch=None):
        seen = zlib.crc32(train.features.tobytes() + train.latencies_s.tobytes())
        self.weights = np.random.default_rng([self.seed, seen]).normal(size=train.features.shape[2])
        self.fitted.append(len(train))
        on_epoch(0, 0.25, {})

    def predict(self, samples):
        assert self.weights is not None, "a model that has seen nothing must not select"
        return (samples.features.sum(axis=1) @ self.weights).astype(np.float32)


def two_models():
    return [FakeModel(0), FakeModel(1)]


@pytest.fixture(scope="module")
def pool(matmul, conv):
    programs = [p for t in (matmul, conv) for p in sample_programs(t.task, t.sketches, t.space, 30, seed=0)]
    return programs, Encoder([matmul.task, conv.task], [*matmul.rows(), *conv.rows()])


@pytest.fixture
def collection_in(pool, make_setup):
    programs, encoder = pool

    def make(folder, **changes):
        given = dict(programs=programs, encoder=encoder, hardware=(1.0,) * 11, host=HOST, setup=make_setup(), journal=folder)
        return Collection(**{**given, **changes})

    return make


@pytest.fixture
def collected_in(collection_in):
    """Run a whole collection; the collection, the records in the order told, and the steps."""

    def run(folder, plan=PLAN, models=None, before=None, **changes):
        collection, told, steps = collection_in(folder, **changes), [], []
        collect(collection, plan, models or two_models(), steps.append, told.append, before)
        return collection, told, steps

    return run


def records_of(folder):
    return list(iter_journal(folder))


def outcome_of(collection):
    """What a collection ends with: row -> (program, latencies, error, round)."""
    return {row: (r.key, r.latencies_s, r.error, r.round) for row, r in collection.records.items()}


def record_of(collection, **changes):
    program = collection.programs[0]
    values = dict(
        task_key=program.task_key, sketch_id=program.sketch, program_id=program.number, decisions=program.decisions,
        latencies_s=(1e-3,), error="ok", message="", round=0, measured_at=datetime.now(UTC),
        protocol=collection.setup.protocol_json(), host=HOST, tvm_version="0.0",
    )  # fmt: skip
    return Record(**{**values, **changes})


def write_journal(folder, *records):
    with Journal(folder) as journal:
        journal.append(records)

from __future__ import annotations

import re

import numpy as np
import pytest
from conftest import conv_module, matmul_module

from tcl_core.errors import DataError
from tcl_core.models.cost_model import CostModel
from tcl_core.compat import load_tvm, make_target
from tcl_core.features.encode import Encoder
from tcl_core.features.states import with_states
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.world_model import WorldModel
from tcl_core.platforms import pool_target
from tcl_core.programs.tasks import EXTRACTION_TARGET, describe
from tcl_core.tuning.schedules import BARREN, ScheduleSearch, SearchSettings

HARDWARE = (1.0,) * 11


def search_of(task, model=None, **settings):
    return ScheduleSearch(task, model, HARDWARE, EXTRACTION_TARGET, SearchSettings(population=32, generations=2, **settings))


@pytest.mark.parametrize("name", ["matmul", "conv", "softmax"])
def test_a_schedule_is_known_again_by_its_trace(tiny_tasks, name):
    """So that a run goes on from what a database holds."""
    search = search_of(tiny_tasks[name].task)
    schedules = search.schedules(6)
    assert len(schedules) == 6 and [search.candidate_of(s.trace) for s in schedules] == search.waiting
    assert len({candidate[0] for candidate in search.waiting}) > 1  # of several sketches


def test_a_trace_of_another_task_is_no_candidate(matmul, conv):
    (schedule,) = search_of(conv.task).schedules(1)
    assert search_of(matmul.task).candidate_of(schedule.trace) is None


def test_what_a_program_unrolls_is_read_from_its_sketch(matmul):
    """Against the annotation of the replayed schedule."""
    search = search_of(matmul.task)
    found = set()
    for schedule, candidate in zip(search.schedules(16), search.waiting, strict=True):
        bare = schedule.trace.simplified(remove_postproc=True)
        (said,) = (i for i in bare.insts if i.kind.name == "Annotate" and "unroll_explicit" in str(i.attrs[0]))
        (drawn,) = (i for i in bare.insts if said.inputs[1] in list(i.outputs))
        assert search.unroll(candidate) == int(drawn.attrs[0][int(bare.decisions[drawn])])
        found.add(search.unroll(candidate))
    assert found <= {0, 16, 64, 512} and len(found) > 1


class Senseless:
    """Its weights have diverged."""

    def predict_and_embed(self, samples):
        return np.full(len(samples), np.nan, np.float32), np.zeros((len(samples), 2), np.float32)


def test_a_model_that_predicts_no_numbers_is_said_and_not_searched_with(matmul):
    with pytest.raises(DataError, match="predicts values that are not numbers; train it again"):
        search_of(matmul.task, Senseless()).schedules(4)


def test_a_space_that_yields_nothing_any_more_is_given_up(matmul, monkeypatch):
    """Else each vector of decisions would be replayed, for minutes, whatever time is left."""
    search, replayed = search_of(matmul.task), []

    def refused(candidate):
        replayed.append(candidate)

    monkeypatch.setattr(search, "_replay", refused)
    assert search.schedules(4) == [] and 0 < len(replayed) <= BARREN * 2 * 4


class Weak:
    """Every score is the same."""

    def predict(self, samples):
        return np.zeros(len(samples), np.float32)

    def embed(self, samples):
        return np.zeros((len(samples), 1), np.float32)

    predict_and_embed = CostModel.predict_and_embed


@pytest.mark.parametrize("model", [None, Weak()])
def test_each_candidate_that_lives_is_viewed_once(matmul, model):
    """Two rounds: the first generation and three times its size in children at most, less what lived on."""
    search = search_of(matmul.task, model, explore=0.0)
    for _ in range(2):
        assert len(search.schedules(4)) == 4
        for candidate in search.waiting:
            search.tell(candidate, 1e-3)
    assert 64 < search.viewed <= 2 * 3 * 32


# --- a world model ---


@pytest.fixture(scope="module")
def world(matmul, tmp_path_factory):
    """A saved world model that was trained on real states of two dozen programs, which are faster the larger their innermost tile."""
    sketch, folder = matmul.sketches[-1], tmp_path_factory.mktemp("world")
    keys = [(matmul.task.key, sketch.index, tuple(row)) for row in np.unique(matmul.sample(sketch, 40), axis=0)[:24].tolist()]
    encoder = Encoder([matmul.task], matmul.rows())
    samples = encoder.encode(keys, HARDWARE, [1e-3 / (1 + key[2][7]) for key in keys])
    model = WorldModel(FitSettings(epochs=3))
    model.fit(with_states(samples, keys, encoder, folder / "states"))
    model.save(folder / "model")
    return folder / "model"


def test_a_world_model_searches_from_decisions_alone(matmul, world, monkeypatch):
    """64 trials: what is scored is not replayed, what is proposed is new, and what it has learned shows in the first batch."""
    model = catalogue.load(world)
    search = search_of(matmul.task, model, explore=0.1)
    replayed, apply = [], type(search.space).apply
    monkeypatch.setattr(type(search.space), "apply", lambda space, trace: replayed.append(trace) or apply(space, trace))
    while len(search.measured) < 64:
        assert (schedules := search.schedules(8))
        for candidate in search.waiting:
            search.tell(candidate, 1e-3 / (1 + candidate[1][7]))
    assert len(search.measured) == 64 and len(schedules) == 8
    assert len(replayed) < 2 * 64 < search.viewed / 4
    blind = search_of(matmul.task, None, explore=1.0)
    blind.schedules(8)
    (first, at_random) = (np.mean([c[1][7] for c in list(candidates)[:8]]) for candidates in (search.measured, blind.waiting))
    assert first > at_random


# --- a GPU's design space, without a GPU ---


H100 = pool_target("cuda-sm80", 1) | {"arch": "sm_90"}


@pytest.mark.parametrize("module", [lambda: matmul_module(64, 64, 64), conv_module], ids=["matmul", "conv"])
@pytest.mark.parametrize("model", [None, Weak()], ids=["from scratch", "with a model"])
def test_a_gpus_programs_are_proposed_replayed_and_built(module, model):
    """Full rounds of different programs, the second around the first; each of legal blocks, and made to CUDA source."""
    task = describe("fused_task", module())
    search = ScheduleSearch(task, model, HARDWARE, H100, SearchSettings(population=64, generations=2))
    proposed = []
    for _ in range(2):
        schedules = search.schedules(6)
        assert len(schedules) == 6 and [search.candidate_of(schedule.trace) for schedule in schedules] == search.waiting
        proposed += search.waiting
        for number, candidate in enumerate(search.waiting):
            search.tell(candidate, (1 + number) * 1e-4)
        for schedule in schedules:
            threads = {int(n) for n in re.findall(r'thread_binding\((\d+), thread="threadIdx.x"\)', schedule.mod.script())}
            assert threads and all(32 <= n <= 1024 for n in threads)
    assert len(set(proposed)) == 12
    target = make_target(H100)
    with target:
        (kernels,) = load_tvm().tirx.build(schedules[0].mod, target=target).imports
    assert "__global__" in str(kernels.inspect_source())


def test_what_a_gpu_could_not_launch_is_not_even_scored():
    """Most decision vectors ask for threads or memory that there are not: a search that met those would replay little else."""
    from tcl_core.programs.gpu_limits import launching
    from tcl_core.programs.workload import read_workload

    task = describe("fused_task", matmul_module(64, 64, 64))
    search = ScheduleSearch(task, None, HARDWARE, H100, SearchSettings(population=64, generations=2))
    search.schedules(4)
    fits = launching(search.sketches, read_workload(task.operator, task.flops, task.module()))
    for index, decisions in search._alive:
        assert fits(search.sketches[index], np.array([decisions])).all()
    assert len(search._alive) == 32  # half of them live on

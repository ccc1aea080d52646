from __future__ import annotations

import numpy as np
import pytest

from tcl_core.programs.tasks import EXTRACTION_TARGET
from tcl_core.tuning.schedules import ScheduleSearch, SearchSettings

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


class Weak:
    """Every score is the same."""

    def predict(self, samples):
        return np.zeros(len(samples), np.float32)

    def embed(self, samples):
        return np.zeros((len(samples), 1), np.float32)


@pytest.mark.parametrize("model", [None, Weak()])
def test_each_candidate_that_lives_is_viewed_once(matmul, model):
    """Two rounds: the first generation and three times its size in children at most, less what lived on."""
    search = search_of(matmul.task, model, explore=0.0)
    for _ in range(2):
        assert len(search.schedules(4)) == 4
        for candidate in search.waiting:
            search.tell(candidate, 1e-3)
    assert 64 < search.viewed <= 2 * 3 * 32

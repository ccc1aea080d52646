"""The watch on readings by hand, and the program that is read."""

from __future__ import annotations

import numpy as np
import pytest

from tcl_core.compat import load_tvm, make_target
from tcl_core.measure.sentinel import EXTENT, TOLERANCE, Watch, sentinel_arguments, sentinel_module
from tcl_core.programs.tasks import EXTRACTION_TARGET


def watch_after(*readings_s: float) -> Watch:
    watch = Watch()
    for reading_s in readings_s:
        watch.add(reading_s)
    return watch


def reads_quiet(watch: Watch, *readings_s: float) -> bool:
    """Whether the readings, which count from now on, are quiet."""
    for reading_s in readings_s:
        watch.add(reading_s)
    return watch.is_quiet(*readings_s)


def test_the_first_readings_set_the_level():
    assert reads_quiet(Watch(), 1.0, 1.0 + TOLERANCE)
    assert not reads_quiet(Watch(), 1.0, 1.01 + TOLERANCE)
    assert reads_quiet(Watch(), 7.0)


@pytest.mark.parametrize(("readings_s", "quiet"), [((1.1, 0.9), True), ((1.3, 1.0), False), ((1.0, 1.3), False), ((1.3,), False)])
def test_a_reading_before_or_after_is_enough_to_tell(readings_s, quiet):
    assert reads_quiet(watch_after(*[1.0] * 9), *readings_s) == quiet


def test_disturbed_readings_count_from_then_on():
    watch = watch_after(1.0)
    assert not reads_quiet(watch, 3.0, 2.0)
    assert watch.quiet_s == 1.0
    watch.add(0.5)
    assert watch.quiet_s == 0.5


def test_a_session_that_starts_noisy():
    """Nothing better is known at first; the first quiet readings show it."""
    watch = Watch()
    assert reads_quiet(watch, 2.0, 2.1) and reads_quiet(watch, 2.0, 1.9)
    assert reads_quiet(watch, 1.0, 1.0)
    assert not reads_quiet(watch, 2.0, 2.1)
    assert watch.quiet_s == 1.0


def test_most_of_a_session_may_be_noisy():
    watch = watch_after(*[1.0, 1.5, 1.6, 1.5, 1.8] * 10)
    assert watch.quiet_s == 1.0
    assert reads_quiet(watch, 1.0, 1.1) and not reads_quiet(watch, 1.5)


def test_a_lucky_reading_proves_nothing():
    """Were the fastest of a long session its level, one wrong reading would mark all that follow."""
    watch = watch_after(*[1.0] * 30, 0.5)
    assert watch.quiet_s == 1.0 and reads_quiet(watch, 1.1, 1.0)


def test_a_lasting_change_becomes_the_level():
    """A core that is throttled for good is what the machine is from then on."""
    watch = watch_after(1.0, 1.0, 1.0)
    assert not reads_quiet(watch, 1.5)
    assert [reads_quiet(watch, 1.5) for _ in range(40)][-1] and watch.quiet_s == 1.5


def test_whether_it_was_quiet_when_it_was_last_looked_at():
    """By the level of today, which the reading may have set itself; before the first one nobody can tell."""
    watch = Watch()
    found = [watch.was_quiet]
    for reading_s in (2.0, 1.0, 1.3, 1.1):
        watch.add(reading_s)
        found.append(watch.was_quiet)
    assert found == [True, True, True, False, True]


# --- the program ---


def test_the_sentinel_multiplies_matrices():
    tvm = load_tvm()
    program = tvm.tirx.build(sentinel_module("llvm"), target=make_target(EXTRACTION_TARGET))["main"]
    left, right, product = (np.random.default_rng(n).random((EXTENT, EXTENT), dtype=np.float32) for n in range(3))
    tensors = [tvm.runtime.tensor(array) for array in (left, right, product)]
    program(*tensors)
    np.testing.assert_allclose(tensors[2].numpy(), left @ right, rtol=1e-5)
    assert [(a.shape, a.dtype) for a in sentinel_arguments()] == [((EXTENT, EXTENT), np.float32)] * 3


@pytest.mark.parametrize(
    ("kind", "used", "not_used"),
    [("llvm", ("T.parallel", "T.vectorized"), "thread_binding"), ("cuda", ("blockIdx.x", "threadIdx.x"), "T.parallel")],
)
def test_it_uses_every_thread_of_its_device(kind, used, not_used):
    text = sentinel_module(kind).script()
    assert all(word in text for word in used) and not_used not in text

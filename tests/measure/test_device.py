"""How programs are run and timed in this process."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import tvm_ffi

from tcl_core.compat import load_tvm, make_target
from tcl_core.measure import device as device_module
from tcl_core.measure.device import ColdClock, HostClock, HostDevice, HostProgram
from tcl_core.measure.timing import CALL_S
from tcl_core.programs.tasks import EXTRACTION_TARGET


@pytest.fixture(scope="module")
def cpu():
    return load_tvm().cpu()


@pytest.fixture
def flushing(make_setup, monkeypatch):
    """A device that evicts caches of 3,000 bytes."""
    monkeypatch.setattr(device_module, "largest_cache_bytes", lambda: 3000)
    return HostDevice(make_setup(flush_cache=True))


@pytest.mark.parametrize("number", [1, 3])
def test_the_caches_are_flushed_before_each_timed_run(flushing, number):
    """Every byte of twice the largest cache is touched."""
    seen = []
    clock = flushing.clock(lambda: seen.append(tuple(np.unique(clock._flushed))), [])
    assert clock._flushed.nbytes == 6000
    assert clock.once() > 0
    assert clock.mean(number) > 0
    assert seen == [(n,) for n in range(1, 2 + number)]


def test_arguments_are_evicted_from_all_cores(flushing, monkeypatch):
    """Helper threads have caches of their own."""
    steps = []
    monkeypatch.setattr(device_module, "evictor", lambda: steps.append)
    monkeypatch.setattr(device_module, "as_bytes", lambda tensor: f"bytes of {tensor}")
    clock = flushing.clock(lambda *given: steps.append("run"), ["x", "w"])
    clock.once()
    assert steps == [["bytes of x", "bytes of w"], "run"]


def test_a_clock_that_flushes_nothing_though_the_protocol_says_so(flushing):
    assert flushing.clock(lambda: None, [], flush=False).once() > 0
    assert not flushing._flushed.any()


def test_nothing_is_kept_where_nobody_flushes(make_setup):
    clock = HostDevice(make_setup()).clock(lambda: None, [])
    assert clock._flushed.nbytes == 0
    assert clock.once() > 0


def test_a_cold_program_finds_some_arguments_evicted_before_each_run(cpu, monkeypatch):
    """Also by TVM's own loop, which calls by its name what evicts them; the name is gone afterwards, and with it what it kept."""
    steps, asked = [], []
    monkeypatch.setattr(device_module, "evictor", lambda: lambda tensors: steps.append(("evict", tensors)))
    monkeypatch.setattr(device_module, "as_bytes", lambda tensor: f"bytes of {tensor}")

    def time_evaluator(name, where, **given):
        asked.append((name, where, given))
        tvm_ffi.get_global_func(given["f_preproc"])("x", "b", "w")
        return lambda *arguments: SimpleNamespace(results=(1.0, 2.0, 3.0, 4.0, 5.0, 6.0))

    def program(*arguments):
        steps.append(("run", arguments))

    program.module = SimpleNamespace(time_evaluator=time_evaluator)
    clock = ColdClock(program, ["x", "b", "w"], [2], cpu)
    assert clock.once() > 0 and clock.between_s > 0
    assert steps == [("evict", ["bytes of w"]), ("run", ("x", "b", "w"))]
    assert clock.mean(6) == 3.5
    assert asked == [("main", cpu, {"number": 1, "repeat": 6, "f_preproc": device_module.EVICT})]
    assert steps[2:] == [("evict", ["bytes of w"])]
    assert tvm_ffi.get_global_func(device_module.EVICT, allow_missing=True) is None


def test_many_short_runs_are_timed_by_tvms_own_loop(cpu):
    asked, called = [], []

    def time_evaluator(name, device, **given):
        asked.append((name, device, given))
        return lambda *arguments: called.append(arguments) or SimpleNamespace(mean=0.25)

    program = SimpleNamespace(module=SimpleNamespace(time_evaluator=time_evaluator))
    clock = HostClock(program, ["x", "y"], cpu, np.zeros(0, dtype=np.uint8), CALL_S)
    assert clock.mean(7) == 0.25
    assert asked == [("main", cpu, {"number": 7, "repeat": 1})] and called == [("x", "y")]


def test_a_long_run_is_timed_by_itself(cpu):
    calls = []
    clock = HostClock(lambda *arguments: calls.append(arguments), ["x"], cpu, np.zeros(0, dtype=np.uint8), CALL_S)
    assert clock.mean(1) > 0 and calls == [("x",)]


def test_a_program_of_this_process(make_setup, matmul):
    """Built, loaded and run: relu(A @ B); both ways to time it agree on what a run is."""
    device = HostDevice(make_setup())
    program = device.load(load_tvm().tirx.build(matmul.module, target=make_target(EXTRACTION_TARGET)))
    assert isinstance(program, HostProgram)
    arrays = [np.random.default_rng(n).normal(size=(32, 32)).astype(np.float32) for n in range(2)]
    arguments = [device.tensor(array) for array in (*arrays, np.zeros((32, 32), np.float32))]
    program(*arguments)
    np.testing.assert_allclose(arguments[2].numpy(), np.maximum(arrays[0] @ arrays[1], 0), rtol=1e-4, atol=1e-4)
    clock = device.clock(program, arguments)
    assert all(1e-7 < seconds < 1 for seconds in (clock.once(), clock.mean(1), clock.mean(5)))
    cold = device.clock(program, arguments, cold=[1])
    assert isinstance(cold, ColdClock) and all(1e-7 < seconds < 1 for seconds in (cold.once(), cold.mean(5)))
    np.testing.assert_allclose(arguments[2].numpy(), np.maximum(arrays[0] @ arrays[1], 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_process_whose_device_is_spoilt_ends(make_setup, spoilt):
    """A GPU's context does not survive a kernel's fault: later programs would be blamed for it."""

    def sync():
        if spoilt:
            raise RuntimeError("an illegal memory access was encountered")

    def program():
        raise RuntimeError("the program failed")

    device = HostDevice(make_setup())
    device._device = SimpleNamespace(sync=sync)
    assert device.run(lambda: 3) == 3
    ends = SystemExit if spoilt else RuntimeError
    with pytest.raises(ends, match="^the device does not recover: an illegal" if spoilt else "^the program failed$"):
        device.run(program)


def test_where_all_caches_are_flushed_nothing_more_is_evicted(flushing):
    assert isinstance(flushing.clock(lambda: None, [], cold=[0]), HostClock)

"""What evicts arrays from the caches: that it leaves them as they are, and reaches all of their bytes."""

from __future__ import annotations

import numpy as np
import pytest

from tcl_core.compat import load_tvm
from tcl_core.measure import eviction
from tcl_core.measure.eviction import SLOW, as_bytes, evictor


@pytest.fixture
def fresh():
    evictor.cache_clear()
    yield
    evictor.cache_clear()


def tensor(shape, dtype="float32"):
    return load_tvm().runtime.tensor(np.arange(np.prod(shape)).reshape(shape).astype(dtype))


def test_a_tensors_bytes_are_its_own_memory():
    """Not a copy, and all of them, whatever its shape and type."""
    given = tensor((3, 5), "int16")
    found = as_bytes(given)
    assert found.shape == (30,) and found.dtype == "uint8"
    np.from_dlpack(given)[2, 4] = 0x0102
    assert found.numpy()[-2:].tolist() == [2, 1]


@pytest.mark.parametrize("flags", [None, frozenset()], ids=["as this CPU can", "without CLFLUSHOPT"])
@pytest.mark.parametrize("shapes", [[], [(1,)], [(33, 7), (64,), (1000, 3)]], ids=["none", "a number", "some"])
def test_what_is_evicted_stays_as_it_is(fresh, monkeypatch, flags, shapes):
    if flags is not None:
        monkeypatch.setattr(eviction, "cpu_flags", lambda: flags)
    tensors = [tensor(shape) for shape in shapes]
    assert evictor()([as_bytes(each) for each in tensors]) is None
    for each, shape in zip(tensors, shapes, strict=True):
        np.testing.assert_array_equal(each.numpy(), np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def test_without_clflushopt_tvms_own_function_evicts_all_that_it_is_given(fresh, monkeypatch):
    """It leaves its first argument."""
    given = []
    monkeypatch.setattr(eviction, "cpu_flags", frozenset)
    monkeypatch.setattr(load_tvm(), "get_global_func", lambda name: lambda *tensors: given.append((name, tensors)))
    evictor()(["a", "b"])
    assert given == [(SLOW, ("a", "a", "b"))]


def test_each_line_is_evicted_once_and_then_waited_for():
    """A loop over lines of 64 bytes, the last one as well if it is not full; the fence comes after it."""
    text = eviction.flush_module()["main"].script()
    assert "range((size + T.int64(63)) // T.int64(64))" in text
    assert text.index("llvm.x86.clflushopt") < text.index("llvm.x86.sse2.mfence")

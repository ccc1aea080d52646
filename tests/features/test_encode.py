from __future__ import annotations

import numpy as np
import pytest

from tcl_core.errors import DataError
from tcl_core.features.encode import Encoder
from tcl_core.features.tokens import KINDS, WIDTH, program_tokens
from tcl_core.programs.primitives import sketch_primitives

HARDWARE = (2.0,) * 11


@pytest.fixture(scope="module")
def encoder(matmul, conv) -> Encoder:
    return Encoder([matmul.task, conv.task], [*matmul.rows(), *conv.rows()])


@pytest.fixture(scope="module")
def keys(matmul, conv):
    """Programs of both tasks and of several sketches, interleaved."""
    found = []
    for n in range(6):
        for tiny in (conv, matmul):
            sketch = tiny.sketches[n % len(tiny.sketches)]
            found.append((tiny.task.key, sketch.index, tuple(tiny.sample(sketch, 1, seed=n)[0].tolist())))
    return found


def test_programs_keep_their_order_lengths_and_padding(encoder, keys, matmul, conv):
    samples = encoder.encode(keys, HARDWARE)
    tiny = {matmul.task.key: matmul, conv.task.key: conv}
    assert samples.tasks.tolist() == [1, 0] * 6
    assert samples.task_names == ("fused_matmul_relu", "fused_conv2d_add_relu")
    assert samples.tokens.dtype == np.float32 and samples.lengths.dtype == np.int32
    assert samples.tokens.shape == (12, samples.lengths.max(), WIDTH)
    assert len(set(samples.lengths.tolist())) > 2
    for row, (task, index, decisions) in enumerate(keys):
        sketch, length = tiny[task].sketches[index], samples.lengths[row]
        wanted = program_tokens(
            sketch_primitives(sketch, tiny[task].workload), tiny[task].workload, HARDWARE, np.array([decisions])
        )[0]
        np.testing.assert_array_equal(samples.tokens[row, :length], wanted)
        assert not samples.tokens[row, length:].any()
        assert samples.tokens[row, length - 1, KINDS.index("hardware")] == 1


def test_latencies_are_unknown_or_given(encoder, keys):
    assert np.isinf(encoder.encode(keys, HARDWARE).latencies_s).all()
    given = np.arange(1.0, 13.0)
    samples = encoder.encode(keys, HARDWARE, given)
    assert samples.latencies_s.tolist() == given.tolist()
    np.testing.assert_allclose(samples.scores[::2], 1 / given[::2], rtol=1e-6)


def test_no_programs(encoder):
    samples = encoder.encode([], HARDWARE)
    assert len(samples) == 0 and samples.tokens.shape == (0, 0, WIDTH)


def test_operators(encoder, keys):
    assert encoder.operators(keys[:3]).tolist() == ["conv2d", "matmul", "conv2d"]


def test_an_unknown_sketch(encoder, matmul):
    with pytest.raises(DataError, match=f"^sketch 99 of task {matmul.task.key} is not in the pool; run the stage candidates"):
        encoder.encode([(matmul.task.key, 99, ())], HARDWARE)


def test_an_unknown_task(encoder):
    with pytest.raises((DataError, KeyError), match="0123456789abcdef"):
        encoder.encode([("0123456789abcdef", 0, ())], HARDWARE)


def test_decisions_of_a_wrong_length(encoder, matmul):
    """A vector of another sketch must not be read as if it were of this one."""
    with pytest.raises(DataError):
        encoder.encode([(matmul.task.key, 0, (1,) * 5)], HARDWARE)
    with pytest.raises(DataError):
        encoder.encode([(matmul.task.key, 0, (1,) * 13)], HARDWARE)


def test_a_sketch_of_a_task_that_is_not_there(matmul, conv):
    with pytest.raises(DataError, match=f"^a sketch of the unknown task {conv.task.key}; run the stages tasks and candidates"):
        Encoder([matmul.task], conv.rows())


def test_a_damaged_sketch(matmul):
    row = matmul.rows()[0]
    with pytest.raises(DataError, match="run the stage candidates again"):
        Encoder([matmul.task], [row | {"trace_json": row["trace_json"][:100]}])

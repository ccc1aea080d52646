from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tcl_core.errors import DataError
from tcl_core.features import encode as encode_module
from tcl_core.features.encode import Encoder
from tcl_core.features.layout import KINDS, WIDTH
from tcl_core.features.tokens import program_tokens
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
    assert samples.features.dtype == np.float32 and samples.lengths.dtype == np.int32
    assert samples.features.shape == (12, samples.lengths.max(), WIDTH)
    assert len(set(samples.lengths.tolist())) > 2
    for row, (task, index, decisions) in enumerate(keys):
        sketch, length = tiny[task].sketches[index], samples.lengths[row]
        wanted = program_tokens(sketch_primitives(sketch, tiny[task].workload), tiny[task].workload, HARDWARE, np.array([decisions]))[0]
        np.testing.assert_array_equal(samples.features[row, :length], wanted)
        assert not samples.features[row, length:].any()
        assert samples.features[row, 0, KINDS.index("hardware")] == 1


def test_latencies_are_unknown_or_given(encoder, keys):
    assert np.isinf(encoder.encode(keys, HARDWARE).latencies_s).all()
    given = np.arange(1.0, 13.0)
    samples = encoder.encode(keys, HARDWARE, given)
    assert samples.latencies_s.tolist() == given.tolist()
    np.testing.assert_allclose(samples.scores[::2], 1 / given[::2], rtol=1e-6)


def test_no_programs(encoder):
    samples = encoder.encode([], HARDWARE)
    assert len(samples) == 0 and samples.features.shape == (0, 0, WIDTH)


def test_operators(encoder, keys):
    assert encoder.operators(keys[:3]).tolist() == ["conv2d", "matmul", "conv2d"]


def test_an_unknown_sketch(encoder, matmul):
    with pytest.raises(DataError, match=f"^sketch 99 of task {matmul.task.key} is not in the pool; run the stage candidates"):
        encoder.encode([(matmul.task.key, 99, ())], HARDWARE)


def test_an_unknown_task(encoder):
    with pytest.raises(DataError, match="^sketch 0 of task 0123456789abcdef is not in the pool; run the stage cand"):
        encoder.encode([("0123456789abcdef", 0, ())], HARDWARE)


def test_a_sketch_of_a_task_that_is_not_there(matmul, conv):
    """Rows of unknown tasks do no harm until a program of them is asked for."""
    encoder = Encoder([matmul.task], [*matmul.rows(), *conv.rows()])
    assert len(encoder.encode([(matmul.task.key, 0, tuple(matmul.sample(matmul.sketches[0], 1)[0]))], HARDWARE)) == 1
    with pytest.raises(DataError, match=f"^sketch 0 of task {conv.task.key} is not in the pool"):
        encoder.encode([(conv.task.key, 0, ())], HARDWARE)


@pytest.mark.parametrize("length", [0, 5, 11, 13, 24])
def test_decisions_of_a_wrong_length(encoder, matmul, length):
    """A vector of another sketch must not be read as if it were of this one, nor two as one of twice the length."""
    with pytest.raises(DataError) as raised:
        encoder.encode([(matmul.task.key, 0, (1,) * 12), (matmul.task.key, 0, (1,) * length)], HARDWARE)
    assert str(raised.value) == (
        f"a program of sketch 0 of task {matmul.task.key} has not the sketch's 12 decisions; "
        "it belongs to another pool: run the stage candidates again"
    )


def test_a_damaged_sketch(matmul):
    row = matmul.rows()[0]
    encoder = Encoder([matmul.task], [row | {"trace_json": row["trace_json"][:100]}])
    with pytest.raises(DataError, match="run the stage candidates again"):
        encoder.encode([(matmul.task.key, 0, (1,) * 12)], HARDWARE)


# --- laziness ---


def test_tasks_and_sketches_are_read_once_and_only_when_met(matmul, conv, monkeypatch):
    read = []
    encode_module._read_template.cache_clear()
    real = encode_module.read_template
    monkeypatch.setattr(encode_module, "read_template", lambda text, workload: read.append(text) or real(text, workload))
    unreadable = replace(conv.task, module_json="{")
    encoder = Encoder([matmul.task, unreadable], [*matmul.rows(), *conv.rows()])
    assert read == [] and encoder.names == ("fused_matmul_relu", "fused_conv2d_add_relu")
    assert encoder.texts[matmul.task.key, 0] == matmul.rows()[0]["trace_json"]
    keys = [(matmul.task.key, 0, tuple(d)) for d in matmul.sample(matmul.sketches[0], 3).tolist()]
    first, again = encoder.encode(keys, HARDWARE), encoder.encode(keys, HARDWARE)
    Encoder([matmul.task], matmul.rows()).encode(keys, HARDWARE)  # as of another data set that has the task
    assert read == [encoder.texts[matmul.task.key, 0]]
    np.testing.assert_array_equal(first.features, again.features)


def test_a_workload_is_read_once(encoder, matmul):
    found = encoder.workload(matmul.task.key)
    assert found is encoder.workload(matmul.task.key)
    assert [b.name for b in found.blocks] == ["matmul", "relu"]


def test_a_sketch_may_be_added_without_its_text(matmul):
    """The search has its sketches at hand; what it encodes equals what is read from the pool."""
    added, read = Encoder([matmul.task], []), Encoder([matmul.task], matmul.rows())
    for sketch in matmul.sketches:
        added.add(sketch)
        keys = [(matmul.task.key, sketch.index, tuple(d)) for d in matmul.sample(sketch, 3).tolist()]
        np.testing.assert_array_equal(added.encode(keys, HARDWARE).features, read.encode(keys, HARDWARE).features)

"""The compiled inside of the Mamba block has the values and gradients of the readable one."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from tcl_core.models import mamba, scan_kernel
from tcl_core.models.mamba import MambaBlock, TokenBatch
from tcl_core.models.scan_kernel import CompiledMix

SHAPES = [  # B, L, M, W, N, R, K
    (1, 1, 1, 16, 1, 1, 1),
    (3, 7, 5, 16, 8, 4, 2),
    (4, 26, 40, 128, 8, 8, 4),
    (5, 2, 3, 48, 3, 2, 4),  # shorter than the convolution, and scalars that fill no whole register
    (2, 9, 20, 32, 12, 9, 3),
]


def problem(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[MambaBlock, TokenBatch, torch.Tensor]:
    """A block with all weights drawn at random, B programs over M distinct tokens, and their projections."""
    programs, length, rows, width, state, rank, taps = shape
    torch.manual_seed(sum(shape))
    block = MambaBlock(width, state, taps, rank).to(dtype)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    index = torch.randint(0, rows, (programs, length))
    projected = torch.randn(rows, 2 * width, dtype=dtype, requires_grad=True)
    return block, TokenBatch(torch.zeros(rows, 1), index, torch.full((programs,), length)), projected


def values_and_gradients(block, batch, projected, compiled: bool, monkeypatch) -> dict[str, torch.Tensor]:
    used = []
    monkeypatch.setattr(scan_kernel, "available", lambda *_: compiled)
    monkeypatch.setattr(CompiledMix, "apply", lambda *a, run=CompiledMix.apply: (used.append(1), run(*a))[1])
    out = block.mix(projected, batch)
    monkeypatch.undo()
    assert len(used) == compiled
    out = out * batch.mask[..., None]
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    names, leaves = zip(("projected", projected), *block.named_parameters(), strict=True)
    gradients = torch.autograd.grad((out * weight).sum(), leaves, allow_unused=True)
    return {"out": out, **{n: g for n, g in zip(names, gradients, strict=True) if g is not None}}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compiled_equals_readable(shape, ragged, threads, monkeypatch):
    """Against the readable block in double precision, whose scan is the reference's equal; ragged: of different lengths."""
    block, batch, projected = problem(shape)
    if ragged:
        batch = replace(batch, lengths=torch.randint(1, shape[1] + 1, (shape[0],)))
    exact = (copy.deepcopy(block).double(), batch, projected.detach().double().requires_grad_())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = values_and_gradients(block, batch, projected, True, monkeypatch)
    finally:
        torch.set_num_threads(before)
    expected = values_and_gradients(*exact, False, monkeypatch)
    assert found.keys() == expected.keys() and len(found) == 10  # the value, the tokens, eight weights
    for name, value in expected.items():
        scale = float(value.detach().abs().max())
        torch.testing.assert_close(found[name].double(), value, rtol=1e-3, atol=1e-4 * scale, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_last_tokens_alone(shape, threads, monkeypatch):
    """Programs of different lengths; without gradients, which is when this kernel is used."""
    block, batch, projected = problem(shape)
    lengths = torch.randint(1, shape[1] + 1, (shape[0],))
    batch = TokenBatch(batch.rows, batch.index, lengths, last=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            monkeypatch.setattr(scan_kernel, "available", lambda *_: True)
            found = block.mix(projected, batch)
            monkeypatch.setattr(scan_kernel, "available", lambda *_: False)
            expected = copy.deepcopy(block).double().mix(projected.double(), batch)
    finally:
        torch.set_num_threads(before)
    assert found.shape == expected.shape == (shape[0], 1, shape[3])
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_extreme_steps(monkeypatch):
    """A huge step forgets the past, a huge gate is open or shut, and nothing overflows."""
    block, batch, projected = problem((4, 9, 20, 16, 8, 4, 4))
    with torch.no_grad():
        block.dt_proj.bias.copy_(torch.linspace(-300, 300, 16))
        projected[:, 16:] *= 1e3
    found = values_and_gradients(block, batch, projected, True, monkeypatch)
    expected = values_and_gradients(block, batch, projected, False, monkeypatch)
    for name, value in expected.items():
        assert found[name].isfinite().all(), name
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-3 * float(value.detach().abs().max()))


def test_the_same_twice(monkeypatch):
    first, second = (values_and_gradients(*problem(SHAPES[2]), True, monkeypatch) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_more_threads_than_can_be_summed_change_nothing(monkeypatch):
    """Each slice of a backward pass has gradients of all tokens: on many cores these would take gigabytes."""
    block, batch, projected = problem(SHAPES[2])
    weights = block.conv.weight[:, 0], block.conv.bias, block.x_proj.weight, block.dt_proj.weight, block.dt_proj.bias
    leaves = [projected, *(w.detach().clone().requires_grad_() for w in (*weights, -torch.exp(block.A_log), block.D))]
    found, before = [], torch.get_num_threads()
    monkeypatch.setattr(scan_kernel, "SUMMED", 2)
    try:
        for threads in (2, 4):
            torch.set_num_threads(threads)
            out = CompiledMix.apply(leaves[0], batch.index, batch.lengths, *leaves[1:])
            found.append(torch.autograd.grad(out, leaves, torch.linspace(-1, 1, out.numel()).view_as(out)))
    finally:
        torch.set_num_threads(before)
    assert len(found[0]) == 8 and all(map(torch.equal, *found))


def test_slices_are_as_many_as_threads_and_no_more_than_asked_for():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        counts = [len(scan_kernel._in_slices(lambda rows: rows, *given)) for given in ((20,), (20, 2), (20, 8), (1, 8))]
        assert counts == [3, 2, 3, 1]
        assert scan_kernel._in_slices(lambda rows: rows, 20, 2) == [slice(0, 10), slice(10, 20)]
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "dtype, width, tokens, expected",
    [
        (torch.float32, 16, 2048, True),
        (torch.float64, 16, 2048, False),
        (torch.float32, 12, 2048, False),
        (torch.float32, 16, 512, False),
    ],
)
def test_when_the_kernel_is_used(dtype, width, tokens, expected, monkeypatch):
    asked = []
    monkeypatch.setattr(scan_kernel, "kernel", lambda *key: asked.append(key) or abs)
    index = torch.zeros(tokens // 8, 8, dtype=torch.int64)
    assert scan_kernel.available(torch.zeros(4, 2 * width, dtype=dtype), index, 8, 4, 3) is expected
    assert asked == ([("forward", width, 8, 4, 3)] if expected else [])  # TVM is not loaded for nothing


def test_without_tvm_the_torch_path_is_used(tmp_path, monkeypatch, caplog):
    def broken():
        raise ImportError("no TVM here")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where nothing was compiled before
    monkeypatch.setattr("tcl_core.compat.load_tvm", broken)
    assert scan_kernel._kernel.__wrapped__("forward", 16, 4, 4, 4) is None
    assert "no TVM here" in caplog.text


def test_gradients_that_cannot_be_compiled_take_the_readable_way(monkeypatch):
    """The larger kernel may fail alone: the other may be kept from before."""
    block, batch, projected = problem(SHAPES[-1])
    expected = values_and_gradients(block, batch, projected, False, monkeypatch)
    kernel = scan_kernel.kernel
    monkeypatch.setattr(scan_kernel, "WORTHWHILE", 1)
    monkeypatch.setattr(scan_kernel, "kernel", lambda name, *shape: None if name == "backward" else kernel(name, *shape))
    monkeypatch.setattr(CompiledMix, "apply", lambda *_: pytest.fail("there is no way back"))
    out = block.mix(projected, batch) * batch.mask[..., None]
    weight = torch.linspace(-1, 1, out.numel()).view_as(out)
    torch.testing.assert_close(torch.autograd.grad((out * weight).sum(), projected)[0], expected["projected"])


def test_a_network_gives_the_same_scores_either_way(monkeypatch):
    torch.manual_seed(0)
    network = mamba.MambaNetwork(6)
    tokens, lengths = torch.randn(40, 6)[torch.randint(0, 40, (64, 20))], torch.randint(1, 21, (64,))
    compiled = network(tokens, lengths)
    monkeypatch.setattr(scan_kernel, "available", lambda *_: False)
    torch.testing.assert_close(network(tokens, lengths), compiled, rtol=1e-4, atol=1e-5)

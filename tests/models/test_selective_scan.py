"""Every path of the scan has the values and gradients of the readable one."""

from __future__ import annotations

import pytest
import torch

from tcl_core.models import scan_kernel
from tcl_core.models.selective_scan import StepwiseScan, selective_scan, selective_scan_reference

SHAPES = [(1, 1, 16, 1), (3, 7, 16, 8), (2, 26, 128, 8), (5, 13, 48, 3)]  # B, L, D, N


def arguments(shape: tuple[int, int, int, int], dtype: torch.dtype) -> list[torch.Tensor]:
    batch, length, width, state = shape
    draw = torch.Generator().manual_seed(sum(shape))
    normal = lambda *size: torch.randn(*size, generator=draw, dtype=dtype)  # noqa: E731
    u, delta = normal(batch, length, width), normal(batch, length, width).abs() * 0.5
    A = -normal(width, state).abs() - 0.1
    tensors = [u, delta, A, normal(batch, length, state), normal(batch, length, state), normal(width)]
    return [tensor.requires_grad_() for tensor in tensors]


def values_and_gradients(scan, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    y = scan(*tensors)
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return [y, *torch.autograd.grad((y * weight).sum(), tensors)]


def test_reference_by_hand():
    """Two steps, one channel, one state: h1 = 2, h2 = h1 / e + 3 with delta 1, B 1, A -1; y = C h + D u."""
    column = lambda *numbers: torch.tensor(numbers).view(1, -1, 1)  # noqa: E731
    y = selective_scan_reference(
        column(2.0, 3.0),
        column(1.0, 1.0),
        torch.tensor([[-1.0]]),
        column(1.0, 1.0),
        column(1.0, 10.0),
        torch.tensor([0.5]),
    )
    torch.testing.assert_close(y, column(2.0 + 1.0, 10 * (2 / torch.e + 3) + 1.5))


@pytest.mark.parametrize("shape", SHAPES)
def test_stepwise_equals_reference(shape):
    tensors = arguments(shape, torch.float64)
    pairs = zip(
        values_and_gradients(StepwiseScan.apply, tensors),
        values_and_gradients(selective_scan_reference, tensors),
        strict=True,
    )
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_compiled_equals_reference(shape, threads):
    tensors = arguments(shape, torch.float32)
    assert scan_kernel.available(tensors[0], tensors[2])
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = values_and_gradients(scan_kernel.CompiledScan.apply, tensors)
    finally:
        torch.set_num_threads(before)
    for ours, expected in zip(found, values_and_gradients(selective_scan_reference, tensors), strict=True):
        torch.testing.assert_close(
            ours, expected, rtol=1e-4, atol=1e-4 * float(expected.detach().abs().max())
        )


def test_compiled_takes_views_and_extreme_steps():
    """Halves of one projection are not contiguous; a huge step forgets the past without overflow."""
    u, delta, A, B, C, D = arguments((4, 9, 16, 8), torch.float32)
    halves = torch.cat([u, delta * 1e3], dim=-1)
    tensors = [*halves.split(16, dim=-1), A, B, C, D]
    torch.testing.assert_close(
        scan_kernel.CompiledScan.apply(*tensors), selective_scan_reference(*tensors), rtol=1e-4, atol=1e-2
    )


@pytest.mark.parametrize(
    "dtype, width, compiled",
    [(torch.float32, 16, True), (torch.float64, 16, False), (torch.float32, 12, False)],
)
def test_dispatch_falls_back_to_torch(dtype, width, compiled):
    tensors = arguments((2, 5, width, 4), dtype)
    assert scan_kernel.available(tensors[0], tensors[2]) is compiled
    torch.testing.assert_close(
        selective_scan(*tensors), selective_scan_reference(*tensors), rtol=1e-4, atol=1e-4
    )
    with torch.no_grad():
        torch.testing.assert_close(
            selective_scan(*tensors), selective_scan_reference(*tensors), rtol=1e-4, atol=1e-4
        )


def test_without_tvm_the_torch_path_is_used(monkeypatch, caplog):
    def broken():
        raise ImportError("no TVM here")

    monkeypatch.setattr("tcl_core.compat.load_tvm", broken)
    assert scan_kernel.kernels.__wrapped__(16, 4) is None
    assert "no TVM here" in caplog.text

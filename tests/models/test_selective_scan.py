"""Every path of the scan has the values and gradients of the readable one."""

from __future__ import annotations

import sys

import pytest
import torch

from tcl_core.models.selective_scan import StepwiseScan, _gpu_scan, selective_scan, selective_scan_reference

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


def test_a_kernel_that_cannot_be_imported_is_told_once(tmp_path, monkeypatch, caplog):
    """As when it was built for another torch."""
    (tmp_path / "mamba_ssm").mkdir()
    (tmp_path / "mamba_ssm" / "__init__.py").write_text("raise ImportError('undefined symbol: _ZN3c10')")
    for name in [name for name in sys.modules if name.split(".")[0] == "mamba_ssm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    _gpu_scan.cache_clear()
    try:
        assert _gpu_scan() is None and _gpu_scan() is None
    finally:
        _gpu_scan.cache_clear()
    (record,) = caplog.records
    assert record.getMessage().startswith("mamba_ssm is installed and cannot be imported (undefined symbol: _ZN3c10); ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dispatch_has_the_values_of_the_reference(dtype):
    tensors = arguments((2, 5, 12, 4), dtype)
    torch.testing.assert_close(selective_scan(*tensors), selective_scan_reference(*tensors), rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(selective_scan(*tensors), selective_scan_reference(*tensors), rtol=1e-4, atol=1e-4)

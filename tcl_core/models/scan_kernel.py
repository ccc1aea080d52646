"""Fused float32 CPU kernels for the inside of a Mamba block, compiled by TVM for this CPU on first use.

One pass per program computes convolution, step sizes, scan and gate while its rows stay in cache.  In torch the same takes
a dozen passes over (B, L, W) arrays, plus one per step of the scan.  The readable equivalent is ``mamba.MambaBlock.mix``
with ``selective_scan.selective_scan_reference``, where the symbols are explained:

    x, gate = halves of projected[index]
    u       = silu(convolution of x)
    s       = u x_proj                                R numbers for the step size, N for B, N for C
    delta   = softplus(s[:R] dt + dt_bias)
    h_t     = 2^(delta_t A') h_{t-1} + delta_t u_t B_t            A' = A / ln 2
    out_t   = (C_t h_t + D u_t) silu(gate_t)

If only the last token's output is needed, and no gradient, the kernel ``last`` computes C, the state's output and the gate
only at each program's end.  The kernels themselves are in ``scan_tir``.

The kernels are serial; the batch is split into one slice per torch thread, because TVM's own thread pool would compete
with torch's for the cores.  Gradients that programs share (of tokens, of weights) are summed per slice, in few slices.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, reduce
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from tcl_core.errors import last_line
from tcl_core.locks import ThreadLock
from tcl_core.models import scan_tir
from tcl_core.models.kernel_cache import cached
from tcl_core.models.scan_tir import LANES

SOURCE = Path(scan_tir.__file__).read_text()  # read at import, in case the file changes later
WORTHWHILE = 1024  # tokens; with fewer, torch finishes before a kernel is loaded
SUMMED = 8  # most slices of a backward pass: each fills gradients of all the batch's tokens, some 25 MB, which are then added up
_MAKING = ThreadLock()  # threads that predict concurrently must not compile concurrently
log = logging.getLogger(__name__)


def available(projected: Tensor, index: Tensor, state: int, rank: int, taps: int, name: str = "forward") -> bool:
    """Whether kernel ``name`` applies: float32 on the CPU, W a multiple of ``LANES``, enough tokens, TVM available."""
    width = projected.shape[1] // 2
    fits = projected.device.type == "cpu" and projected.dtype == torch.float32 and width % LANES == 0
    return fits and index.numel() >= WORTHWHILE and kernel(name, width, state, rank, taps) is not None


class CompiledMix(torch.autograd.Function):
    """(B, L, W) output from ``projected`` (M, 2W) rows, gathered by ``index`` (B, L); 0 in the padding past each program's
    ``lengths`` (B,) tokens.

    The weights are ``taps`` (W, K) and ``bias`` (W,) of the convolution, ``x_proj`` (R + 2N, W), ``dt`` (W, R),
    ``dt_bias`` (W,), ``A`` (W, N) and ``D`` (W,).
    """

    @staticmethod
    def forward(ctx, projected, index, lengths, taps, bias, x_proj, dt, dt_bias, A, D):
        inner = F.pad(x_proj.T, (0, -len(x_proj) % LANES))  # (W, S), S padded to whole registers
        tensors = (projected, index, lengths, taps.T, bias, inner, x_proj, dt.T, dt_bias, A.T / math.log(2.0), D)
        tensors = [tensor.contiguous() for tensor in tensors]
        ctx.save_for_backward(*tensors)
        out = projected.new_empty(*index.shape, len(D))
        run, length = kernel("forward", len(D), A.shape[1], dt.shape[1], taps.shape[1]), index.shape[1]

        def forward(rows: slice) -> None:
            room = projected.new_empty(4, length, len(D)), projected.new_empty(length, inner.shape[1])
            run(*_cut(tensors, rows), *room, out[rows])

        _in_slices(forward, len(index))
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        tensors, grad = list(ctx.saved_tensors), grad.contiguous()
        projected, index, _, taps, _, inner, x_proj, dt, _, A, D = tensors
        length, rows_of = index.shape[1], (len(taps), 1, len(x_proj), len(dt), 1, len(A), 1)
        run, new = kernel("backward", len(D), len(A), len(dt), len(taps)), projected.new_empty

        def backward(rows: slice) -> tuple[Tensor, Tensor]:
            sums = torch.zeros_like(projected), projected.new_zeros(sum(rows_of), len(D))
            room = new(6, length, len(D)), new(length, inner.shape[1])
            states = new(2, length + 1, len(A), LANES), new(length, len(x_proj), LANES), new(length, len(x_proj))
            run(*_cut(tensors, rows), *room, *states, torch.empty_like(sums[1]), grad[rows], *sums)
            return sums

        slices = _in_slices(backward, len(index), SUMMED)
        grad_projected, grads = (reduce(Tensor.add_, parts) for parts in zip(*slices, strict=True))
        taps, bias, x_proj, dt, dt_bias, A, D = grads.split(rows_of)
        return grad_projected, None, None, taps.T, bias[0], x_proj, dt.T, dt_bias[0], A.T, D[0]


def last_mixed(projected, index, lengths, taps, bias, x_proj, dt, dt_bias, A, D) -> Tensor:
    """(B, W) output of ``CompiledMix`` at the last of each program's ``lengths`` (B,) tokens; has no gradient."""
    rank, state = dt.shape[1], A.shape[1]
    steps, reads = x_proj.split([rank + state, state])
    inner, outer = (F.pad(rows.T, (0, -len(rows) % LANES)) for rows in (steps, reads))  # (W, padded to whole registers)
    tensors = projected, index, lengths, taps.T, bias, inner, outer, dt.T, dt_bias, A.T / math.log(2.0), D
    tensors = [tensor.contiguous() for tensor in tensors]
    out, length = projected.new_empty(len(index), len(D)), index.shape[1]
    run = kernel("last", len(D), state, rank, taps.shape[1])

    def forward(rows: slice) -> None:
        room = projected.new_empty(4, length, len(D)), projected.new_empty(length, inner.shape[1])
        run(*_cut(tensors, rows), *room, out[rows])

    _in_slices(forward, len(index))
    return out


def _cut(tensors: list[Tensor], rows: slice) -> list[Tensor]:
    """The tensors with ``index`` and ``lengths`` cut to the batch slice ``rows``; the others whole."""
    return [tensors[0], tensors[1][rows], tensors[2][rows], *tensors[3:]]


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="scan")


def _in_slices(work: Callable, size: int, most: int | None = None) -> list:
    """Run ``work(rows)`` in parallel on one slice of the batch per torch thread, ``most`` at most; results in order."""
    count = min(torch.get_num_threads(), size, most or size)
    slices = [slice(size * i // count, size * (i + 1) // count) for i in range(count)]
    return list(_threads(count).map(work, slices)) if count > 1 else [work(slices[0])]


def kernel(name: str, width: int, state: int, rank: int, taps: int) -> Callable | None:
    """Kernel ``forward``, ``backward`` or ``last`` for W, N, R and K, and any batch size and length.

    The first call on a machine compiles it, in some seconds, and caches it (``kernel_cache``); None if that fails.
    """
    with _MAKING:
        return _kernel(name, width, state, rank, taps)


@cache
def _kernel(name: str, width: int, state: int, rank: int, taps: int) -> Callable | None:
    shape = width, state, rank, taps
    try:
        return cached(name, (SOURCE, shape), lambda: scan_tir.compiled(name, *shape))
    except Exception as error:  # compilers fail in many ways; the torch path gives the same numbers
        log.warning("no compiled scan (%s); the slower torch scan is used", last_line(error))
        return None


os.register_at_fork(after_in_child=_threads.cache_clear)  # a forked child inherits no threads

"""The selective scan for float32 on a CPU, compiled for this CPU by TVM when first needed.

The readable scan is ``selective_scan.selective_scan_reference``; symbols and shapes are explained there.  The
kernel walks the channels D in blocks of ``LANES``, one vector register each, and the steps inside: a block's
N states stay in registers, and nothing of size (B, L, D, N) ever exists.  The backward kernel computes a
block's states and decays again, L x N registers that fit the cache, and walks them in reverse.

The kernels are serial; the batch is cut into one slice per torch thread, because TVM's own thread pool would
contend with torch's for the cores.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LANES = 16
log = logging.getLogger(__name__)


def available(u: Tensor, A: Tensor) -> bool:
    """Whether the kernel can take these: float32 on the CPU, D a multiple of ``LANES``, TVM at hand."""
    fits = u.device.type == "cpu" and u.dtype == torch.float32 and A.shape[0] % LANES == 0 and len(u) > 0
    return fits and kernels(*A.shape) is not None


class CompiledScan(torch.autograd.Function):
    """``selective_scan`` on the compiled kernels; the arguments are those of the reference."""

    @staticmethod
    def forward(ctx, u, delta, A, B, C, D):
        tensors = [tensor.contiguous() for tensor in (u, delta, A.T, B, C, D)]
        ctx.save_for_backward(*tensors)
        y = torch.empty_like(tensors[0])
        run = kernels(*A.shape)["forward"]
        _in_slices(lambda rows: run(*_cut(tensors, rows), y[rows]), len(u))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y):
        tensors = list(ctx.saved_tensors)
        u, _, A, B, C, D = tensors
        grad_y = grad_y.contiguous()
        grads = [torch.empty_like(tensor) for tensor in (u, u, B, C)]
        run = kernels(D.shape[0], A.shape[0])["backward"]

        def backward(rows: slice) -> tuple[Tensor, Tensor]:
            shared = torch.zeros_like(A), torch.zeros_like(D)
            room = u.new_empty(4, u.shape[1] + 1, A.shape[0], LANES)
            run(*_cut(tensors, rows), grad_y[rows], *(grad[rows] for grad in grads), *shared, room)
            return shared

        grad_A, grad_D = (torch.stack(parts).sum(0) for parts in zip(*_in_slices(backward, len(u))))
        grad_u, grad_delta, grad_B, grad_C = grads
        return grad_u, grad_delta, grad_A.T, grad_B, grad_C, grad_D


def _cut(tensors: list[Tensor], rows: slice) -> list[Tensor]:
    """The batch slice of u, delta, B and C; A and D whole."""
    u, delta, A, B, C, D = tensors
    return [u[rows], delta[rows], A, B[rows], C[rows], D]


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="scan")


def _in_slices(work: Callable, size: int) -> list:
    """``work(rows)`` for one slice of the batch per torch thread, side by side; results in order."""
    count = min(torch.get_num_threads(), size)
    slices = [slice(size * i // count, size * (i + 1) // count) for i in range(count)]
    return list(_threads(count).map(work, slices)) if count > 1 else [work(slices[0])]


@cache
def kernels(width: int, state: int) -> dict[str, Callable] | None:
    """The functions ``forward`` and ``backward`` for D = ``width`` and N = ``state``, any batch and length.

    Compiled on the first call, in about half a second; None where TVM cannot.
    """
    from tcl_core.compat import load_tvm

    try:
        tvm = load_tvm()
        compiled = tvm.compile(_module(width, state), target=_host_target(tvm))
        return {name: compiled[name] for name in ("forward", "backward")}
    except Exception as error:  # whatever is wrong with the compiler, the torch path gives the same numbers
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        log.warning("no compiled scan (%s); the slower torch scan is used", reason)
        return None


def _host_target(tvm):
    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    return tvm.target.Target({"kind": "llvm", "mcpu": cpu})


def _module(width: int, state: int):
    from tvm.script import ir as I
    from tvm.script import tirx as T

    W, N, K = width, state, LANES

    def exp(x):
        """2^n times a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes expf): LLVM has no vector exp."""
        x = T.max(T.min(x, T.float32(88.0)), T.float32(-87.0))
        n = T.floor(x * T.float32(1.44269504088896341) + T.float32(0.5))
        f = x - n * T.float32(0.693359375) - n * T.float32(-2.12194440e-4)
        p = T.float32(1.9875691500e-4)
        for c in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            p = p * f + T.float32(c)
        power = T.reinterpret("float32", T.shift_left(T.Cast("int32", n) + 127, 23))
        return (p * f * f + f + T.float32(1.0)) * power

    @I.ir_module
    class Scan:
        @T.prim_func(s_tir=True)
        def forward(
            u_: T.handle,
            delta_: T.handle,
            A_: T.handle,
            B_: T.handle,
            C_: T.handle,
            D_: T.handle,
            y_: T.handle,
        ):
            T.func_attr({"global_symbol": "forward", "tirx.noalias": True})
            batch, length = T.int64(), T.int64()
            u = T.match_buffer(u_, (batch, length, W), "float32")
            delta = T.match_buffer(delta_, (batch, length, W), "float32")
            A = T.match_buffer(A_, (N, W), "float32")
            B = T.match_buffer(B_, (batch, length, N), "float32")
            C = T.match_buffer(C_, (batch, length, N), "float32")
            D = T.match_buffer(D_, (W,), "float32")
            y = T.match_buffer(y_, (batch, length, W), "float32")
            h = T.alloc_buffer((N, K), "float32", scope="local")
            out = T.alloc_buffer((K,), "float32", scope="local")
            for b, d in T.grid(batch, W // K):
                for n in T.unroll(N):
                    for k in T.vectorized(K):
                        h[n, k] = T.float32(0)
                for t in range(length):
                    for k in T.vectorized(K):
                        out[k] = D[d * K + k] * u[b, t, d * K + k]
                    for n in T.unroll(N):
                        for k in T.vectorized(K):
                            h[n, k] = (
                                exp(delta[b, t, d * K + k] * A[n, d * K + k]) * h[n, k]
                                + delta[b, t, d * K + k] * u[b, t, d * K + k] * B[b, t, n]
                            )
                            out[k] = out[k] + h[n, k] * C[b, t, n]
                    for k in T.vectorized(K):
                        y[b, t, d * K + k] = out[k]

        @T.prim_func(s_tir=True)
        def backward(
            u_: T.handle,
            delta_: T.handle,
            A_: T.handle,
            B_: T.handle,
            C_: T.handle,
            D_: T.handle,
            grad_y_: T.handle,
            grad_u_: T.handle,
            grad_delta_: T.handle,
            grad_B_: T.handle,
            grad_C_: T.handle,
            grad_A_: T.handle,
            grad_D_: T.handle,
            room_: T.handle,
        ):
            T.func_attr({"global_symbol": "backward", "tirx.noalias": True})
            batch, length = T.int64(), T.int64()
            u = T.match_buffer(u_, (batch, length, W), "float32")
            delta = T.match_buffer(delta_, (batch, length, W), "float32")
            A = T.match_buffer(A_, (N, W), "float32")
            B = T.match_buffer(B_, (batch, length, N), "float32")
            C = T.match_buffer(C_, (batch, length, N), "float32")
            D = T.match_buffer(D_, (W,), "float32")
            grad_y = T.match_buffer(grad_y_, (batch, length, W), "float32")
            grad_u = T.match_buffer(grad_u_, (batch, length, W), "float32")
            grad_delta = T.match_buffer(grad_delta_, (batch, length, W), "float32")
            grad_B = T.match_buffer(grad_B_, (batch, length, N), "float32")
            grad_C = T.match_buffer(grad_C_, (batch, length, N), "float32")
            grad_A = T.match_buffer(grad_A_, (N, W), "float32")  # summed over the batch: starts at 0
            grad_D = T.match_buffer(grad_D_, (W,), "float32")  # likewise
            # room: states h_{t-1} in place t, decays, lanes of grad_B, lanes of grad_C
            room = T.match_buffer(room_, (4, length + 1, N, K), "float32")
            grad_h = T.alloc_buffer((N, K), "float32", scope="local")
            into = T.alloc_buffer((K,), "float32", scope="local")  # gradient of delta u, through the states
            slope = T.alloc_buffer((K,), "float32", scope="local")  # gradient of delta, through the decays
            for b in range(batch):
                for t, n in T.grid(length, N):
                    for k in T.vectorized(K):
                        room[2, t, n, k] = T.float32(0)
                        room[3, t, n, k] = T.float32(0)
                for d in range(W // K):
                    for n in T.unroll(N):
                        for k in T.vectorized(K):
                            room[0, 0, n, k] = T.float32(0)
                            grad_h[n, k] = T.float32(0)
                    for t in range(length):
                        for n in T.unroll(N):
                            for k in T.vectorized(K):
                                room[1, t, n, k] = exp(delta[b, t, d * K + k] * A[n, d * K + k])
                                room[0, t + 1, n, k] = (
                                    room[1, t, n, k] * room[0, t, n, k]
                                    + delta[b, t, d * K + k] * u[b, t, d * K + k] * B[b, t, n]
                                )
                    for step in range(length):
                        t: T.let = length - 1 - step
                        for k in T.vectorized(K):
                            into[k] = T.float32(0)
                            slope[k] = T.float32(0)
                        for n in T.unroll(N):
                            for k in T.vectorized(K):
                                grad_h[n, k] = grad_h[n, k] + grad_y[b, t, d * K + k] * C[b, t, n]
                                room[3, t, n, k] = (
                                    room[3, t, n, k] + grad_y[b, t, d * K + k] * room[0, t + 1, n, k]
                                )
                                room[2, t, n, k] = room[2, t, n, k] + grad_h[n, k] * (
                                    delta[b, t, d * K + k] * u[b, t, d * K + k]
                                )
                                into[k] = into[k] + grad_h[n, k] * B[b, t, n]
                                grad_h[n, k] = grad_h[n, k] * room[1, t, n, k]
                                slope[k] = slope[k] + grad_h[n, k] * room[0, t, n, k] * A[n, d * K + k]
                                grad_A[n, d * K + k] = (
                                    grad_A[n, d * K + k]
                                    + grad_h[n, k] * room[0, t, n, k] * delta[b, t, d * K + k]
                                )
                        for k in T.vectorized(K):
                            grad_u[b, t, d * K + k] = (
                                into[k] * delta[b, t, d * K + k] + D[d * K + k] * grad_y[b, t, d * K + k]
                            )
                            grad_delta[b, t, d * K + k] = into[k] * u[b, t, d * K + k] + slope[k]
                            grad_D[d * K + k] = (
                                grad_D[d * K + k] + grad_y[b, t, d * K + k] * u[b, t, d * K + k]
                            )
                for t, n in T.grid(length, N):
                    grad_B[b, t, n] = T.float32(0)
                    grad_C[b, t, n] = T.float32(0)
                    for k in T.unroll(K):
                        grad_B[b, t, n] = grad_B[b, t, n] + room[2, t, n, k]
                        grad_C[b, t, n] = grad_C[b, t, n] + room[3, t, n, k]

    return Scan

"""The selective scan of Mamba-1: a linear recurrence whose coefficients depend on the input.

Symbols as in Mamba (arXiv 2312.00752, section 3.2, algorithm 2):

    u      (B, L, D)  input of the scan (the paper's x)
    delta  (B, L, D)  step size, already positive (after softplus)
    A      (D, N)     state matrix, diagonal, negative
    B      (B, L, N)  input to state
    C      (B, L, N)  state to output
    D      (D,)       direct path from input to output
    h      (B, D, N)  state, zero before the first step
    y      (B, L, D)  output

    h_t = exp(delta_t A) h_{t-1} + (delta_t u_t) B_t            y_t = C_t h_t + D u_t

In shapes, B is the batch, L the sequence length, D the width and N the state size.
``selective_scan_reference`` is the definition; ``selective_scan`` picks the fastest equivalent: the ``mamba_ssm``
kernel on a GPU if it can be imported, else a step-by-step torch loop.  All paths have the same values and gradients.
For float32 on a CPU the whole block is one compiled kernel (``scan_kernel``); this module is its readable equivalent.
"""

from __future__ import annotations

import importlib.util
import logging
from functools import cache

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tcl_core.errors import last_line

log = logging.getLogger(__name__)


def selective_scan_reference(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """y (B, L, D), computed step by step and differentiated by autograd; slow."""
    h = u.new_zeros(u.shape[0], *A.shape)
    outputs = []
    for t in range(u.shape[1]):
        decay = torch.exp(delta[:, t, :, None] * A)
        h = decay * h + (delta[:, t] * u[:, t])[..., None] * B[:, t, None, :]
        outputs.append(torch.einsum("bdn,bn->bd", h, C[:, t]) + D * u[:, t])
    return torch.stack(outputs, dim=1)


def selective_scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """y (B, L, D) by the fastest path for the arguments' device and type; differentiable in all of them."""
    if u.is_cuda and _gpu_scan() is not None:
        return _on_gpu(u, delta, A, B, C, D)
    if not torch.is_grad_enabled():
        return selective_scan_reference(u, delta, A, B, C, D)  # keeps one state, where StepwiseScan keeps them all
    return StepwiseScan.apply(u, delta, A, B, C, D)


class StepwiseScan(torch.autograd.Function):
    """The scan with a hand-written gradient, for any device and floating-point type.

    States are stored time first, (L, B, D, N), so that each step reads and writes one contiguous block.  They are
    kept for the backward pass; the decays are recomputed.
    """

    @staticmethod
    def forward(ctx, u, delta, A, B, C, D):
        states = u.new_empty(u.shape[1], u.shape[0], *A.shape)
        h = u.new_zeros(u.shape[0], *A.shape)
        for t in range(u.shape[1]):
            h = torch.addcmul((delta[:, t] * u[:, t])[..., None] * B[:, t, None, :], torch.exp(delta[:, t, :, None] * A), h)
            states[t] = h
        ctx.save_for_backward(u, delta, A, B, C, D, states)
        return torch.einsum("lbdn,bln->bld", states, C) + D * u

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y):
        u, delta, A, B, C, D, states = ctx.saved_tensors
        grad_h = torch.zeros_like(states[0])
        grad_u, grad_delta, grad_B = grad_y * D, torch.empty_like(delta), torch.empty_like(B)
        grad_A = torch.zeros_like(A)
        for t in reversed(range(len(states))):
            grad_h = grad_h + grad_y[:, t, :, None] * C[:, t, None, :]
            decay = torch.exp(delta[:, t, :, None] * A)
            into_state = torch.einsum("bdn,bn->bd", grad_h, B[:, t])
            grad_B[:, t] = torch.einsum("bdn,bd->bn", grad_h, delta[:, t] * u[:, t])
            grad_u[:, t] += into_state * delta[:, t]
            grad_delta[:, t] = into_state * u[:, t]
            grad_h = grad_h * decay
            if t:
                exponent = grad_h * states[t - 1]
                grad_delta[:, t] += (exponent * A).sum(-1)
                grad_A += torch.einsum("bdn,bd->dn", exponent, delta[:, t])
        grad_C = torch.einsum("lbdn,bld->bln", states, grad_y)
        return grad_u, grad_delta, grad_A, grad_B, grad_C, (grad_y * u).sum((0, 1))


@cache
def _gpu_scan():
    """The scan of ``mamba_ssm``; None if that is not installed or, with a warning, if it cannot be imported."""
    if importlib.util.find_spec("mamba_ssm") is None:
        return None
    try:
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    except Exception as error:  # built for another torch, or a part of its own fails; the torch path gives the same numbers
        log.warning("mamba_ssm is installed and cannot be imported (%s); the slower torch scan is used", last_line(error))
        return None
    return selective_scan_fn


def _on_gpu(u, delta, A, B, C, D):
    """The scan by ``mamba_ssm``, which wants time last."""
    u, delta, B, C = (tensor.transpose(1, 2).contiguous() for tensor in (u, delta, B, C))
    return _gpu_scan()(u, delta, A, B, C, D).transpose(1, 2)

"""Training on several processes started by torch's launcher:  torchrun --nproc-per-node 2 -m tcl_core.cli train

Each process computes the scores of its share of a batch's programs and gathers the others'.  So each knows the loss of the
whole batch, whatever loss it is, and its gradient through its own share.  That gradient is multiplied by the number of
processes, so the mean over processes is the gradient that a single process would compute: the same steps, up to rounding.

Under `tcl` the first process runs the command and the others train along with it (``with_helpers``).  Alternatively a script
calls ``fit`` in every process of its own group, with the same data.  Either way only the first process writes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tcl_core import environment
from tcl_core.errors import DataError, PlatformError, UsageError
from tcl_core.files import shown

T = TypeVar("T")
ANSWER_S = 300.0  # timeout for each process's share of a step
PREPARE_S = 7 * 86_400.0  # timeout between two trainings: the first process may lower programs for hours
FIRST = 0

_orders: dist.ProcessGroup | None = None  # group that tells helpers what to train; set only within ``with_helpers``


def processes() -> int:
    """Number of processes that train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first() -> bool:
    """Whether this process is the one that writes checkpoints, models and progress."""
    return processes() == 1 or dist.get_rank() == FIRST


@contextmanager
def shared(network: nn.Module) -> Iterator[None]:
    """Context in which calls to the network in training mode are split between the processes; each gets the whole result.

    Calls that a loss makes to the network's submodules are not split: every process computes them whole, which is correct
    but saves no time.
    """
    if processes() == 1:
        yield
        return
    hooks = _Hooks(dist.get_rank(), processes())
    handles = network.register_forward_pre_hook(hooks.before), network.register_forward_hook(hooks.after)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Hooks:
    """Forward hooks that split (B, ...) inputs between processes and gather the one (B, ...) output, in training mode."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count, self.programs = rank, count, 0

    def before(self, network: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not network.training:
            return None
        self.programs = len(given[0])
        each = -(-self.programs // self.count)
        # The last shares may be short: they are padded with copies of the last program, which ``after`` cuts off.
        mine = torch.arange(self.rank * each, (self.rank + 1) * each, device=given[0].device).clamp_max(self.programs - 1)
        return tuple(tensor[mine] for tensor in given)

    def after(self, network: nn.Module, given: tuple[Tensor, ...], own: Tensor) -> Tensor | None:
        if not network.training:
            return None
        parts = [torch.empty_like(own) for _ in range(self.count)]
        with _together():
            dist.all_gather(parts, own.detach().contiguous())
        parts[self.rank] = own + (self.count - 1) * (own - own.detach())  # the same value, ``count`` times the gradient
        return torch.cat(parts)[: self.programs]


def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Set each parameter's gradient to its mean over all processes."""
    if processes() == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    with _together():
        dist.all_reduce(flat)
    flat /= processes()
    for gradient, mean in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def check_same(identity: str) -> None:
    """Raise DataError unless all processes are about to train the same network on the same data, with the same code."""
    found = [""] * processes()
    with _together():
        dist.all_gather_object(found, identity)
    if others := [rank for rank, each in enumerate(found) if each != found[FIRST]]:
        raise DataError(
            f"process {others[0]} of {len(found)} has another network, data, settings or code than process {FIRST}; "
            "give all processes the same, and seed before a network is made"
        )


def from_first(network: nn.Module, optimizer: torch.optim.Optimizer, progress: T) -> T:
    """Copy the first process's state into network and optimizer; return its progress."""
    if processes() == 1:
        return progress
    state: list[Any] = [network.state_dict(), optimizer.state_dict(), progress]
    with _together():
        dist.broadcast_object_list(state, src=FIRST)
    network.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    return state[2]


def with_helpers(work: Callable[[], T]) -> T | None:
    """Run ``work`` in the first of torchrun's processes and return its result; the others train along and return None.

    Raises PlatformError in all remaining processes when one ends early.
    """
    if environment.processes() == 1:
        return work()
    global _orders
    with _together():
        dist.init_process_group("gloo", timeout=timedelta(seconds=ANSWER_S))
        _orders = dist.new_group(timeout=timedelta(seconds=PREPARE_S))
    try:
        if is_first():
            done = work()
            _order(None)
            return done
        while (order := _order(None)) is not None:
            function, given, named = order
            function(*given, **named)
        return None
    finally:
        _orders = None
        with suppress(RuntimeError):  # else the threads of a group whose processes are gone abort this one at exit
            dist.destroy_process_group()


def call_helpers(function: Callable[..., object], *given: object, **named: object) -> None:
    """Make this process's helpers call a training function too; this process must then call it itself.  No-op without helpers.

    Raises UsageError if the keyword arguments cannot be pickled.
    """
    if _orders is None or not is_first():
        return
    try:
        pickle.dumps(named)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise UsageError("this model's loss cannot be handed to other processes; train it without torchrun") from None
    _order((function, given, named))


def _order(order: Any) -> Any:
    """Broadcast the first process's ``order``; returns it in all processes."""
    box = [order]
    with _together():
        dist.broadcast_object_list(box, src=FIRST, group=_orders)
    return box[0]


@contextmanager
def _together() -> Iterator[None]:
    """Turn torch's error about a missing or late process into a PlatformError of one sentence."""
    try:
        yield
    except RuntimeError as error:
        where = f"process {dist.get_rank()} of {processes()}" if dist.is_initialized() else "a process"
        reason = shown(
            (str(error).splitlines() or ["no reason given"])[0].split("] ", 1)[-1].split(". ")[0]
        )  # without gloo's source location and advice
        raise PlatformError(
            f"{where} is without the others: one has ended or does not answer ({reason}); see what that one said, then run "
            "the same command again, which goes on from the last checkpoint"
        ) from error

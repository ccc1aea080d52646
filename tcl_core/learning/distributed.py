"""Training on several processes that torch's own launcher started:  torchrun --nproc-per-node 2 -m tcl_core.cli train

Each process works out the scores of its share of a batch's programs and is told those of the others.  So each knows the loss
of the whole batch, whatever loss it is, and its gradient through the own share; counted as often as there are processes, these
gradients have the mean that one process alone would have got.  Hence the same steps, up to rounding.

Under `tcl` the first process runs the command, and the others train what it trains (``with_helpers``).  A script may as well
call ``fit`` in every process of its own group, with the same data.  Either way the first process alone writes.
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
ANSWER_S = 300.0  # in which each process must have done its share of a step
PREPARE_S = 7 * 86_400.0  # between two trainings: the first process may have to lower programs for hours
FIRST = 0

_orders: dist.ProcessGroup | None = None  # by which helpers are told what to train; none unless ``with_helpers`` made it


def processes() -> int:
    """How many train together; 1 where there is no process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def is_first() -> bool:
    """Whether this process writes: checkpoints, models, progress."""
    return processes() == 1 or dist.get_rank() == FIRST


@contextmanager
def shared(network: nn.Module) -> Iterator[None]:
    """Within it each process works out its share of whatever the network is called with while it trains; all get all of it.

    What a loss asks of the network's parts each process works out as a whole, which is right as well and saves no time.
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
    """What happens before and after a network in training; (B, ...) tensors go in, one (B, ...) comes out."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count, self.programs = rank, count, 0

    def before(self, network: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not network.training:
            return None
        self.programs = len(given[0])
        each = -(-self.programs // self.count)
        # The last shares may be short: they are filled up with the last program, whose copies are cut off again.
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
    """Give each parameter the mean of its gradients in all processes."""
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
    """Raise DataError unless all processes are about to train the same network on the same data."""
    if processes() == 1:
        return
    found = [""] * processes()
    with _together():
        dist.all_gather_object(found, identity)
    if others := [rank for rank, each in enumerate(found) if each != found[FIRST]]:
        raise DataError(
            f"process {others[0]} of {len(found)} has another network, data or settings than process {FIRST}; "
            "give all processes the same, and seed before a network is made"
        )


def from_first(network: nn.Module, optimizer: torch.optim.Optimizer, progress: T) -> T:
    """Put network and optimizer where those of the first process are; its progress."""
    if processes() == 1:
        return progress
    state: list[Any] = [network.state_dict(), optimizer.state_dict(), progress]
    with _together():
        dist.broadcast_object_list(state, src=FIRST)
    network.load_state_dict(state[0])
    optimizer.load_state_dict(state[1])
    return state[2]


def with_helpers(work: Callable[[], T]) -> T | None:
    """What ``work`` returns, in the first of the processes that torchrun started; the others train what it trains, and get None.

    Raises PlatformError in all that are left when one of them ends early.
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
        with suppress(RuntimeError):  # else the threads of a group without its processes abort this one at its end
            dist.destroy_process_group()


def call_helpers(function: Callable[..., object], *given: object, **named: object) -> None:
    """Have the helpers of this process call a function as well, which must then train with it; nothing where there is none."""
    if _orders is None or not is_first():
        return
    try:
        pickle.dumps(named)
    except (pickle.PicklingError, AttributeError, TypeError):
        raise UsageError("this model's loss cannot be handed to other processes; train it without torchrun") from None
    _order((function, given, named))


def _order(order: Any) -> Any:
    """What the first process gives here, in all of them."""
    box = [order]
    with _together():
        dist.broadcast_object_list(box, src=FIRST, group=_orders)
    return box[0]


@contextmanager
def _together() -> Iterator[None]:
    """Turn what a process hears when another is gone, or does not answer in time, into one sentence."""
    try:
        yield
    except RuntimeError as error:
        where = f"process {dist.get_rank()} of {processes()}" if dist.is_initialized() else "a process"
        reason = shown(
            (str(error).splitlines() or ["no reason given"])[0].split("] ", 1)[-1].split(". ")[0]
        )  # without gloo's place and advice
        raise PlatformError(
            f"{where} is without the others: one has ended or does not answer ({reason}); see what that one said, then run "
            "the same command again, which goes on from the last checkpoint"
        ) from error

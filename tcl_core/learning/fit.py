"""The one training loop: Adam over batches of whole tasks.

A learning method is a difference from this loop: it passes another ``loss``.  The loop knows nothing of the
network but that ``network(features, lengths)`` gives (B,) scores.  Where torch has a process group, its processes
train the network together (``learning.distributed``).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tcl_core.errors import DataError, unknown_name
from tcl_core.features.batches import Samples
from tcl_core.learning import distributed
from tcl_core.learning.batches_by_task import Batch, batches_in_order, group_tasks, make_batch, usable_tasks
from tcl_core.learning.checkpoint import Progress, load_checkpoint, run_identity, save_checkpoint
from tcl_core.learning.fit_settings import FitSettings as FitSettings
from tcl_core.learning.losses import alike, lambda_rank
from tcl_core.learning_names import LOSSES, SCHEDULES

Loss = Callable[[nn.Module, Batch], Tensor]
OnEpoch = Callable[[int, float, dict[str, float]], None]
"""Called after each epoch with its number (from 1), the mean training loss and the validation metrics."""


@dataclass(frozen=True)
class FitReport:
    """How a run went: the mean training loss of every epoch, and the epoch (from 1) whose weights stayed."""

    losses: tuple[float, ...]
    kept_epoch: int
    programs: int
    tasks: int

    @classmethod
    def told(cls, facts: Mapping[str, Any]) -> FitReport | None:
        """As a saved model tells of it; None for nothing.  Raises TypeError for another version's."""
        return cls(**{**facts, "losses": tuple(facts.get("losses", ()))}) if facts else None


def mean_loss(of_tasks: Callable[..., Tensor], sigma: float, network: nn.Module, batch: Batch) -> Tensor:
    """Mean over the batch's tasks of a loss of ``learning.losses``."""
    predicted = batch.by_task(network(batch.features, batch.lengths))
    return torch.cat(
        [
            of_tasks(predicted[tasks, :size], batch.labels[tasks, :size], batch.mask[tasks, :size], sigma)
            for tasks, size in alike(batch.mask)
        ]
    ).mean()


def ranking_loss(network: nn.Module, batch: Batch, sigma: float = 1.0) -> Tensor:
    """Mean LambdaRank loss of the batch's tasks."""
    return mean_loss(lambda_rank, sigma, network, batch)


def named_loss(settings: FitSettings) -> Loss:
    """The loss of ``settings.loss``, as steep as they say.  Raises UsageError for an unknown one."""
    if settings.loss not in LOSSES:
        raise unknown_name("loss", settings.loss, LOSSES)
    return partial(mean_loss, _at(LOSSES[settings.loss]), settings.sigma)


def constant(epoch: int, period: int) -> float:
    """What the learning rate is multiplied by in an epoch, counted from 0; ``period`` is that of the settings."""
    return 1.0


def cosine(epoch: int, period: int) -> float:
    """As ``constant``: from 1 towards 0 along half a cosine, again every period."""
    return 0.5 * (1.0 + math.cos(math.pi * (epoch % period) / period))


def step(epoch: int, period: int) -> float:
    """As ``constant``: 0.8 of what it was after every period."""
    return 0.8 ** (epoch // period)


def _at(place: str) -> Callable:
    """The function of a place such as ``module:function``."""
    module, _, function = place.partition(":")
    return getattr(importlib.import_module(module), function)


def fit_network(
    network: nn.Module,
    train: Samples,
    valid: Samples | None = None,
    settings: FitSettings = FitSettings(),
    *,
    loss: Loss | None = None,
    on_epoch: OnEpoch | None = None,
    checkpoint: Path | None = None,
    identity: str = "",
    regroup: bool = True,
) -> FitReport:
    """Train ``network`` in place; the same arguments and seed give the same weights.

    valid       tasks kept apart; the weights of the epoch with the lowest validation loss are restored at the
                end (loss, not top-1: it moves smoothly, while top-1 jumps with one program).  Without it the
                last epoch's weights stay, as in the paper; better so with a few dozen tasks, of which the
                three or four kept apart would choose an epoch nearly at random.
    loss        ``loss(network, batch)`` -> scalar; default: the one that the settings name
    on_epoch    hears of every epoch in order; after an interruption first of those before the checkpoint, with
                the numbers of then, so that a curve is the same whether the run was interrupted or not
    checkpoint  folder from which an interrupted run goes on to the identical result; the caller removes it
                once the result is saved
    identity    what else the result depends on when ``loss`` is given, so that a stale checkpoint is
                recognised
    regroup     draw new batches each epoch; otherwise one grouping is kept and only its order is shuffled

    Of several processes all end with the same weights; the first alone keeps checkpoints and calls ``on_epoch``.
    Raises DataError that names the task for values that are not finite, or when no task has two programs; PlatformError
    when another process of the group is gone.
    """
    distributed.call_helpers(fit_network, network, train, None, settings, loss=loss, regroup=regroup)
    groups = usable_tasks(train)
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    if distributed.processes() > 1:
        distributed.check_same(run_identity((settings, regroup), network, train, None))
    checkpoint = checkpoint if distributed.is_first() else None
    identity = run_identity((settings, identity, regroup), network, train, valid) if checkpoint else ""
    progress = load_checkpoint(checkpoint, identity, network, optimizer) if checkpoint else Progress()
    progress = distributed.from_first(network, optimizer, progress)
    due = {*range(0, settings.epochs, settings.checkpoint_every), settings.epochs}
    if on_epoch is None or not distributed.is_first():
        on_epoch = lambda epoch, loss, metrics: None  # noqa: E731
    for epoch, facts in enumerate(zip(progress.losses, progress.metrics, strict=True), start=1):
        on_epoch(epoch, *facts)
    loss = loss or named_loss(settings)
    while progress.epoch < settings.epochs:
        _set_rate(optimizer, settings, progress.epoch)
        batches = epoch_batches(train, groups, settings, progress.epoch, regroup, _device(network))
        progress.losses.append(_run_epoch(network, trained, optimizer, batches, loss, settings, train))
        progress.epoch += 1
        progress.metrics.append(_validate(network, valid, settings, progress) if valid is not None else {})
        if checkpoint and progress.epoch in due:
            save_checkpoint(checkpoint, identity, network, optimizer, progress)
        on_epoch(progress.epoch, progress.losses[-1], progress.metrics[-1])
    if progress.best_weights:
        network.load_state_dict(progress.best_weights)
    kept = progress.best_epoch or progress.epoch
    return FitReport(tuple(progress.losses), kept, sum(map(len, groups)), len(groups))


def validation_metrics(network: nn.Module, samples: Samples, batch_size: int, sigma: float = 1.0) -> dict[str, float]:
    """Mean over tasks, or parts of very large ones, of the LambdaRank loss and of top-1: the score of the program predicted to be best."""
    with torch.inference_mode():
        batches = batches_in_order(samples, usable_tasks(samples), batch_size, _device(network))
        predicted = ((batch.by_task(network(batch.features, batch.lengths)), batch) for batch in batches)
        return ranking_metrics(predicted, sigma)


def ranking_metrics(predicted: Iterable[tuple[Tensor, Batch]], sigma: float = 1.0) -> dict[str, float]:
    """``validation_metrics`` of the (T, P) predictions of each batch."""
    losses, top = [], []
    for values, batch in predicted:
        losses += lambda_rank(values, batch.labels, batch.mask, sigma).tolist()
        best = values.masked_fill(~batch.mask, -torch.inf).argmax(1, keepdim=True)
        top += batch.labels.gather(1, best)[:, 0].tolist()
    return {"valid_loss": float(np.mean(losses)), "valid_top1": float(np.mean(top))}


def _set_rate(optimizer: torch.optim.Optimizer, settings: FitSettings, epoch: int) -> None:
    """A pure function of the epoch, so that a resumed run needs no schedule state."""
    if settings.schedule not in SCHEDULES:
        raise unknown_name("schedule", settings.schedule, SCHEDULES)
    rate = settings.learning_rate * _at(SCHEDULES[settings.schedule])(epoch, settings.period)
    for group in optimizer.param_groups:
        group["lr"] = rate


def epoch_batches(
    train: Samples,
    groups: list[np.ndarray],
    settings: FitSettings,
    epoch: int,
    regroup: bool,
    device: torch.device,
) -> Iterator[Batch]:
    """The epoch's batches; every random choice is a pure function of the seed and the epoch."""
    draw = np.random.default_rng([settings.seed, 0, epoch if regroup else 0])
    grouping = group_tasks(groups, settings.batch_size, draw)
    order = np.random.default_rng([settings.seed, 1, epoch]).permutation(len(grouping))
    scores = train.scores
    return (make_batch(train, scores, grouping[i], int(i), device) for i in order)


def _run_epoch(
    network: nn.Module,
    trained: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    batches: Iterator[Batch],
    loss: Loss,
    settings: FitSettings,
    train: Samples,
) -> float:
    """One pass over the batches; returns their mean loss."""
    network.train()
    losses = []
    with distributed.shared(network):
        for batch in batches:
            optimizer.zero_grad(set_to_none=True)
            value = loss(network, batch)
            value.backward()
            distributed.average_gradients(trained)
            norm = nn.utils.clip_grad_norm_(trained, settings.clip_norm)
            if not (torch.isfinite(value) and torch.isfinite(norm)):
                raise DataError(_broken_task(network, batch, train))
            optimizer.step()
            losses.append(value.item())
    network.eval()
    return float(np.mean(losses))


def _broken_task(network: nn.Module, batch: Batch, train: Samples) -> str:
    """The message that names the first task whose predictions are not finite, else the batch's first."""
    with torch.inference_mode():
        broken = ~torch.isfinite(batch.by_task(network(batch.features, batch.lengths))).flatten(1).all(1)
    task = train.task_name(int(batch.tasks[int(broken.int().argmax())]))
    return f"the training loss is not finite on task '{task}'; look at its tokens, or lower the learning rate."


def _validate(network: nn.Module, valid: Samples, settings: FitSettings, progress: Progress) -> dict[str, float]:
    """Metrics on the validation tasks; keeps the weights when they are the best so far."""
    metrics = validation_metrics(network, valid, settings.batch_size, settings.sigma)
    if metrics["valid_loss"] < progress.best_loss:
        progress.best_loss, progress.best_epoch = metrics["valid_loss"], progress.epoch
        progress.best_weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    return metrics


def _device(network: nn.Module) -> torch.device:
    return next(network.parameters()).device

"""The one training loop: Adam over batches of whole tasks.

A learning method differs from this loop only in the ``loss`` it passes.  The loop requires of the network only that
``network(features, lengths)`` returns (B,) scores.  With a torch process group, its processes train the network
together (``learning.distributed``).
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
from tcl_core.learning.losses import by_size, lambda_rank
from tcl_core.learning_names import LOSSES, SCHEDULES

Loss = Callable[[nn.Module, Batch], Tensor]
OnEpoch = Callable[[int, float, dict[str, float]], None]
"""Called after each epoch with its number (from 1), the mean training loss and the validation metrics."""


@dataclass(frozen=True)
class FitReport:
    """Summary of a run: mean training loss of each epoch, the epoch (from 1) whose weights were kept, programs, tasks."""

    losses: tuple[float, ...]
    kept_epoch: int
    programs: int
    tasks: int

    @classmethod
    def told(cls, facts: Mapping[str, Any]) -> FitReport | None:
        """The report stored with a saved model; None if ``facts`` is empty.  Raises TypeError for another version's."""
        return cls(**{**facts, "losses": tuple(facts.get("losses", ()))}) if facts else None


def mean_loss(of_tasks: Callable[..., Tensor], sigma: float, network: nn.Module, batch: Batch) -> Tensor:
    """Mean over the batch's tasks of a per-task loss of ``learning.losses``."""
    predicted = batch.by_task(network(batch.features, batch.lengths))
    return by_size(of_tasks, predicted, batch.labels, batch.mask, sigma).mean()


def ranking_loss(network: nn.Module, batch: Batch, sigma: float = 1.0) -> Tensor:
    """Mean LambdaRank loss of the batch's tasks."""
    return mean_loss(lambda_rank, sigma, network, batch)


def named_loss(settings: FitSettings) -> Loss:
    """The loss named by ``settings.loss``, with their ``sigma``.  Raises UsageError for an unknown name."""
    if settings.loss not in LOSSES:
        raise unknown_name("loss", settings.loss, LOSSES)
    return partial(mean_loss, _at(LOSSES[settings.loss]), settings.sigma)


def constant(epoch: int, period: int) -> float:
    """Factor on the learning rate in ``epoch`` (from 0); ``period`` is ``FitSettings.period``.  Here always 1."""
    return 1.0


def cosine(epoch: int, period: int) -> float:
    """As ``constant``: from 1 towards 0 along half a cosine, restarting every period."""
    return 0.5 * (1.0 + math.cos(math.pi * (epoch % period) / period))


def step(epoch: int, period: int) -> float:
    """As ``constant``: times 0.8 after every period."""
    return 0.8 ** (epoch // period)


def _at(place: str) -> Callable:
    """Import the function that ``module:function`` names."""
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

    valid       held-out tasks; the weights of the epoch with the lowest validation loss are restored at the end
                (loss, not top-1: loss is smooth, while top-1 jumps with a single program).  Without it the last
                epoch's weights are kept, as in the paper; that is better with a few dozen tasks, of which three
                or four held-out ones would choose an epoch almost at random.
    loss        ``loss(network, batch)`` -> scalar; default: the one that the settings name
    on_epoch    called for every epoch in order; a resumed run first replays the epochs before the checkpoint with
                their recorded numbers, so the curve is the same whether the run was interrupted or not
    checkpoint  folder from which an interrupted run resumes to the identical result; the caller removes it once
                the result is saved
    identity    whatever else the result depends on when ``loss`` is given, so that a stale checkpoint is recognised
    regroup     draw new batches each epoch; otherwise one grouping is kept and only its order is shuffled

    With several processes all end with the same weights; only the first saves checkpoints and calls ``on_epoch``.
    Raises DataError for non-finite values (names the task), or when no task has two programs, one of which ran;
    PlatformError when another process of the group is gone.
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
    """LambdaRank loss and top-1 (score of the program predicted best), averaged over tasks, or parts of very large ones."""
    with torch.inference_mode():
        batches = batches_in_order(samples, usable_tasks(samples), batch_size, _device(network))
        predicted = ((batch.by_task(network(batch.features, batch.lengths)), batch) for batch in batches)
        return ranking_metrics(predicted, sigma)


def ranking_metrics(
    predicted: Iterable[tuple[Tensor, Batch]], sigma: float = 1.0, loss: Callable[..., Tensor] = lambda_rank
) -> dict[str, float]:
    """``validation_metrics`` from pairs of (T, P) predictions and their batch, or those with another per-task loss."""
    losses, top = [], []
    for values, batch in predicted:
        losses += by_size(loss, values, batch.labels, batch.mask, sigma).tolist()
        best = values.masked_fill(~batch.mask, -torch.inf).argmax(1, keepdim=True)
        top += batch.labels.gather(1, best)[:, 0].tolist()
    return {"valid_loss": float(np.mean(losses)), "valid_top1": float(np.mean(top))}


def _set_rate(optimizer: torch.optim.Optimizer, settings: FitSettings, epoch: int) -> None:
    """Set the epoch's learning rate; it depends only on the epoch, so a resumed run needs no scheduler state."""
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
    """The epoch's batches; all random choices depend only on the seed and the epoch."""
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
    """Error message naming the first task with non-finite predictions, or else the batch's first task."""
    with torch.inference_mode():
        broken = ~torch.isfinite(batch.by_task(network(batch.features, batch.lengths))).flatten(1).all(1)
    task = train.task_name(int(batch.tasks[int(broken.int().argmax())]))
    return f"the training loss is not finite on task '{task}'; look at its tokens, or lower the learning rate."


def _validate(network: nn.Module, valid: Samples, settings: FitSettings, progress: Progress) -> dict[str, float]:
    """Metrics on the validation tasks; stores the weights in ``progress`` if they are the best so far."""
    metrics = validation_metrics(network, valid, settings.batch_size, settings.sigma)
    if metrics["valid_loss"] < progress.best_loss:
        progress.best_loss, progress.best_epoch = metrics["valid_loss"], progress.epoch
        progress.best_weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    return metrics


def _device(network: nn.Module) -> torch.device:
    return next(network.parameters()).device

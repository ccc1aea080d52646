"""The losses, batched over tasks.

A batch holds T tasks, padded to P programs each, with a mask for the programs that exist; pairs are formed
only within a task.  These are pure functions, independent of network and data set.  A loss that settings can name
(``learning_names.LOSSES``) takes the four arguments of ``lambda_rank`` and returns one number per task.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def lambda_rank(predicted: Tensor, labels: Tensor, mask: Tensor, sigma: float = 1.0) -> Tensor:
    """(T,) LambdaRank loss of each task (arXiv 2604.12891, loss of the cost model; arXiv 1805.08166 ranks
    similarly).

    predicted (T, P) scores, labels (T, P) in [0, 1], higher is better, mask (T, P) true where a program
    exists. With y = label and rank = position by predicted score, from 1:

        G_i = (2^y_i - 1) / maxDCG      D_i = log2(1 + rank_i)
        loss = sum over y_i > y_j of |G_i - G_j| |1/D_i - 1/D_j| log2(1 + exp(-sigma (s_i - s_j)))

    maxDCG is the discounted gain of the best order, so a task's loss does not depend on the scale of its
    labels. Needs O(T P^2) memory.
    """
    predicted = predicted.masked_fill(~mask, 0.0)
    surprise = F.softplus(-sigma * differences(predicted)) / math.log(2.0)
    return (pair_weights(predicted, labels, mask) * surprise).sum((1, 2))


def rank_net(predicted: Tensor, labels: Tensor, mask: Tensor, sigma: float = 1.0) -> Tensor:
    """(T,) mean over a task's pairs with different labels of log2(1 + exp(-sigma (s_i - s_j))), y_i > y_j; 0 without such pairs.

    Every pair counts alike, two programs near the fastest as much as the fastest and the slowest (RankNet, Burges et al., ICML 2005;
    AutoTVM's rank loss, arXiv 1805.08166, section 3).  Arguments and memory as in ``lambda_rank``.
    """
    counted = every_pair(predicted, labels, mask)
    surprise = F.softplus(-sigma * differences(predicted.masked_fill(~mask, 0.0))) / math.log(2.0)
    return (counted * surprise).sum((1, 2)) / counted.sum((1, 2)).clamp_min(1)


def alike(mask: Tensor) -> list[tuple[Tensor, int]]:
    """Groups of tasks of similar size, each with its largest size, for losses whose memory grows with the square of that.

    Padded together, one large task and many small ones would be nearly all padding.  Returns a single group where at most
    three quarters of all pairs would be.  A task's size is the place, from 1, of the last program that ``mask`` (T, P) counts.
    """
    largest = mask.shape[1]
    sizes = (mask * torch.arange(1, largest + 1, device=mask.device)).amax(1).clamp_min(1)
    if len(sizes) * largest**2 <= 4 * int((sizes**2).sum()):
        return [(torch.arange(len(sizes), device=mask.device), largest)]
    doubled = sizes.log2().ceil()
    groups = [torch.nonzero(doubled == each)[:, 0] for each in doubled.unique()]
    return [(tasks, int(sizes[tasks].max())) for tasks in groups]


def by_size(of_tasks: Callable[..., Tensor], predicted: Tensor, labels: Tensor, mask: Tensor, sigma: float = 1.0) -> Tensor:
    """(T,) losses ``of_tasks(predicted, labels, mask, sigma)``, computed one group of similar size after the other (``alike``)."""
    groups = alike(mask)
    found = torch.cat([of_tasks(*(values[tasks, :size] for values in (predicted, labels, mask)), sigma) for tasks, size in groups])
    return found[torch.cat([tasks for tasks, _ in groups]).argsort()]


def score_regression(predicted: Tensor, labels: Tensor, mask: Tensor, sigma: float = 1.0) -> Tensor:
    """(T,) mean squared difference of ``predicted`` (T, P) and the logarithm of ``labels``, both centred on their task's mean.

    A label is fastest / own latency, so the score learns minus the logarithm of the latency, up to a constant per task.
    Programs without latency (label 0) are left out.  ``sigma`` is ignored, since no pairs are formed.
    """
    counted = mask & (labels > 0)
    wanted = centred(torch.log(labels.masked_fill(~counted, 1.0)), counted)
    return ((centred(predicted, counted) - wanted) ** 2 * counted).sum(1) / counted.sum(1).clamp_min(1)


def centred(values: Tensor, mask: Tensor) -> Tensor:
    """(T, P) values minus their task's mean; 0 where ``mask`` is false."""
    values = values.masked_fill(~mask, 0.0)
    return (values - values.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp_min(1)).masked_fill(~mask, 0.0)


def pair_weights(predicted: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """(T, P, P) cost of ranking i below j, |G_i - G_j| |1/D_i - 1/D_j|; 0 unless i is the better program."""
    labels = labels.masked_fill(~mask, 0.0)
    discount = 1.0 / torch.log2(1.0 + predicted_ranks(predicted, mask))
    return differences(normalised_gains(labels)).abs() * differences(discount).abs() * every_pair(predicted, labels, mask)


def every_pair(predicted: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """(T, P, P) 1 where i is the better program of a pair, else 0; takes ``predicted`` for its type alone, as ``pair_weights`` does more."""
    ordered = (labels[:, :, None] > labels[:, None, :]) & mask[:, :, None] & mask[:, None, :]
    return ordered.to(predicted.dtype)


def normalised_gains(labels: Tensor) -> Tensor:
    """(T, P) gains 2^y - 1 divided by the task's maxDCG; 0 in a task whose labels are all 0."""
    gain = torch.exp2(labels) - 1.0
    places = torch.arange(2, labels.shape[1] + 2, device=labels.device, dtype=labels.dtype)
    best = (gain.sort(dim=1, descending=True).values / torch.log2(places)).sum(1, keepdim=True)
    return gain / best.clamp_min(torch.finfo(labels.dtype).tiny)


def predicted_ranks(predicted: Tensor, mask: Tensor) -> Tensor:
    """(T, P) rank of each program by predicted score, 1 for the highest; padding comes last; no gradient."""
    order = predicted.detach().masked_fill(~mask, -torch.inf).argsort(dim=1, descending=True, stable=True)
    places = torch.arange(1, order.shape[1] + 1, device=order.device, dtype=predicted.dtype).expand_as(predicted)
    return torch.empty_like(predicted).scatter_(1, order, places)


def within_task(scores: Tensor, mask: Tensor) -> Tensor:
    """(T, P) scores scaled to [0, 1] within each task, best 1; all 0 where a task's scores are equal."""
    lowest = scores.masked_fill(~mask, torch.inf).amin(1, keepdim=True)
    highest = scores.masked_fill(~mask, -torch.inf).amax(1, keepdim=True)
    width = (highest - lowest).clamp_min(torch.finfo(scores.dtype).tiny)
    return ((scores - lowest) / width).masked_fill(~mask, 0.0)


def differences(values: Tensor) -> Tensor:
    """(T, P, P) values_i - values_j."""
    return values[:, :, None] - values[:, None, :]

"""The loss of the KD phase of continuous knowledge distillation (arXiv 2604.12891).

To the ranking loss on measured labels it adds ranking by a teacher's order, weighted per batch by trust in the teacher,
and elastic weight consolidation (EWC, arXiv 1612.00796) towards the student's initial weights.  ``ckd`` has the phases,
and the reason for each mended term.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tcl_core.features.batches import Samples, rows_by_task
from tcl_core.learning.batches_by_task import Batch, in_parts, make_batch, usable_tasks
from tcl_core.learning.fit import FitSettings, epoch_batches, ranking_loss
from tcl_core.learning.losses import by_size, lambda_rank, predicted_ranks, within_task

SHRUNK = 16.0  # pseudo-pairs that shrink a task's error towards the overall mean


class DistillationLoss:
    """The knowledge base's loss for the step on batch j:

        L_j = beta Lrank(P_S, P_G) + (1 - beta) phi_j Lrank(P_S, P_T)
              + sum_k lambda / 2 F_k (theta_k - theta_k_before)^2

    P_S student, P_T teacher, P_G measured labels.  Optional mended terms:

    measured   (N,) labels, NaN for unmeasured programs: the P_G term covers only measured programs, the P_T term all
    by_task    ``trust`` holds phi per task number instead of per batch j
    reordered  P_T is the task's labels in the teacher's order instead of the teacher's scores scaled to [0, 1]
    """

    def __init__(
        self,
        teacher: nn.Module,
        trust: np.ndarray,
        before: nn.Module,
        fisher: dict[str, Tensor],
        beta: float,
        ewc_lambda: float,
        sigma: float = 1.0,
        *,
        measured: np.ndarray | None = None,
        by_task: bool = False,
        reordered: bool = False,
    ) -> None:
        self.teacher, self.trust, self.fisher = teacher, trust, fisher
        self.beta, self.ewc_lambda, self.sigma = beta, ewc_lambda, sigma
        self.measured, self.by_task, self.reordered = measured, by_task, reordered
        self.before = {name: value.detach().clone() for name, value in before.named_parameters()}

    def __call__(self, student: nn.Module, batch: Batch) -> Tensor:
        predicted = batch.by_task(student(batch.features, batch.lengths))
        with torch.no_grad():
            scores = batch.by_task(self.teacher(batch.features, batch.lengths))
        taught = in_order_of(scores, batch.labels, batch.mask) if self.reordered else within_task(scores, batch.mask)
        from_teacher = by_size(lambda_rank, predicted, taught, batch.mask, self.sigma)
        phi = torch.as_tensor(self.trust[batch.tasks if self.by_task else batch.number], dtype=predicted.dtype)
        from_teacher = (phi.to(predicted.device) * from_teacher).mean()
        return self.beta * self._from_labels(predicted, batch) + (1.0 - self.beta) * from_teacher + self.consolidation(student)

    def _from_labels(self, predicted: Tensor, batch: Batch) -> Tensor:
        """Mean ranking loss on measured labels, over the tasks with at least two measured programs."""
        if self.measured is None:
            return by_size(lambda_rank, predicted, batch.labels, batch.mask, self.sigma).mean()
        labels = batch.by_task(torch.from_numpy(self.measured[batch.rows]).to(predicted))
        known = batch.mask & ~labels.isnan()
        of_tasks = by_size(lambda_rank, predicted, labels.nan_to_num(), known, self.sigma)
        return of_tasks.sum() / (known.sum(1) > 1).sum().clamp_min(1)

    def consolidation(self, student: nn.Module) -> Tensor:
        """The EWC term: penalises changing the parameters that the previous platform relied on."""
        moved = ((name, value - self.before[name]) for name, value in student.named_parameters())
        return 0.5 * self.ewc_lambda * sum((self.fisher[name] * step**2).sum() for name, step in moved)


def batch_trust(teacher: nn.Module, train: Samples, settings: FitSettings) -> np.ndarray:
    """(J,) phi_j = 1 - (e_j - min e) / (max e - min e), where e_j is the teacher's own ranking loss on batch j.

    Batches that the teacher ranks badly are distilled less; all ones if it ranks all batches equally well.
    """
    with torch.inference_mode():
        batches = epoch_batches(train, usable_tasks(train), settings, 0, False, next(teacher.parameters()).device)
        errors = {batch.number: ranking_loss(teacher, batch, settings.sigma).item() for batch in batches}
    return trust_of_errors(np.array([errors[j] for j in range(len(errors))]))


def trust_of_errors(errors: np.ndarray) -> np.ndarray:
    """(J,) trust in [0, 1]: 1 for the smallest error, 0 for the largest; all 1 if the errors are equal."""
    width = np.ptp(errors)
    return 1.0 - (errors - errors.min()) / width if width > 0 else np.ones_like(errors)


def trust_by_task(scores: np.ndarray, measured: Samples, tasks: int, sigma: float = 1.0) -> np.ndarray:
    """(tasks,) phi of each task number, from (N,) ``scores`` of the measured programs by teachers that were not trained on them:

        e_t = (the task's ranking loss + 16 mean) / (its pairs + 16)      phi_t = 1 - (e_t - min e) / (max e - min e)

    where mean is the mean loss per pair.  A task with few pairs is weak evidence, so its error stays near the mean; with
    none, it is the mean.
    """
    losses, pairs, labels = np.zeros(tasks), np.zeros(tasks), measured.scores
    for rows in (part for group in rows_by_task(measured.tasks) for part in in_parts(group)):
        task, mask = measured.tasks[rows[0]], torch.ones(1, len(rows), dtype=torch.bool)
        predicted, wanted = (torch.from_numpy(values[rows])[None] for values in (scores, labels))
        losses[task] += lambda_rank(predicted, wanted, mask, sigma).item()
        pairs[task] += np.count_nonzero(labels[rows][:, None] > labels[rows])
    mean = losses.sum() / max(pairs.sum(), 1.0)
    return trust_of_errors((losses + SHRUNK * mean) / (pairs + SHRUNK))


def in_order_of(scores: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """(T, P) each task's labels reassigned by ``scores``: the highest label to the highest score; 0 in the padding."""
    dealt = labels.masked_fill(~mask, 0.0).sort(dim=1, descending=True).values
    return dealt.gather(1, predicted_ranks(scores, mask).long() - 1).masked_fill(~mask, 0.0)


def fisher_diagonal(network: nn.Module, train: Samples, sigma: float = 1.0) -> dict[str, Tensor]:
    """Parameter name -> squared gradient of a task's LambdaRank loss, averaged over tasks, or parts of very large ones."""
    groups, scores = [part for rows in usable_tasks(train) for part in in_parts(rows)], train.scores
    parameters = dict(network.named_parameters())
    fisher = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for rows in groups:
        batch = make_batch(train, scores, [rows], device=next(iter(parameters.values())).device)
        gradients = torch.autograd.grad(ranking_loss(network, batch, sigma), list(parameters.values()))
        for total, gradient in zip(fisher.values(), gradients, strict=True):
            total += gradient**2 / len(groups)
    return fisher


def of_mean_one(fisher: dict[str, Tensor]) -> dict[str, Tensor]:
    """The Fisher diagonal divided by its mean, so that lambda's meaning does not depend on the loss; all zeros stay zeros."""
    mean = sum(value.sum() for value in fisher.values()) / sum(value.numel() for value in fisher.values())
    return {name: value / mean.clamp_min(torch.finfo(value.dtype).tiny) for name, value in fisher.items()}

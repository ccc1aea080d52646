"""What the KD phase of continuous knowledge distillation (arXiv 2604.12891) adds to plain ranking.

A teacher's order beside the measured one, trust in the teacher batch by batch, and elastic weight
consolidation (EWC, arXiv 1612.00796) towards what the student was.  The phases themselves are in ``distill``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tcl_core.features.batches import Samples
from tcl_core.learning.batches_by_task import Batch, make_batch, usable_tasks
from tcl_core.learning.fit import FitSettings, epoch_batches, ranking_loss
from tcl_core.learning.losses import lambda_rank, within_task


class DistillationLoss:
    """The knowledge base's loss for the step on batch j:

        L_j = beta Lrank(P_S, P_G) + (1 - beta) phi_j Lrank(P_S, P_T)
              + sum_k lambda / 2 F_k (theta_k - theta_k_before)^2

    P_S student, P_T teacher, P_G measured labels.
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
    ) -> None:
        self.teacher, self.trust, self.fisher = teacher, trust, fisher
        self.beta, self.ewc_lambda, self.sigma = beta, ewc_lambda, sigma
        self.before = {name: value.detach().clone() for name, value in before.named_parameters()}

    def __call__(self, student: nn.Module, batch: Batch) -> Tensor:
        predicted = batch.by_task(student(batch.tokens, batch.lengths))
        with torch.no_grad():
            taught = within_task(batch.by_task(self.teacher(batch.tokens, batch.lengths)), batch.mask)
        from_labels = lambda_rank(predicted, batch.labels, batch.mask, self.sigma).mean()
        from_teacher = lambda_rank(predicted, taught, batch.mask, self.sigma).mean()
        beta, phi = self.beta, float(self.trust[batch.number])
        return beta * from_labels + (1.0 - beta) * phi * from_teacher + self.consolidation(student)

    def consolidation(self, student: nn.Module) -> Tensor:
        """The EWC term: moving what the former platform relied on is dear."""
        moved = ((name, value - self.before[name]) for name, value in student.named_parameters())
        return 0.5 * self.ewc_lambda * sum((self.fisher[name] * step**2).sum() for name, step in moved)


def batch_trust(teacher: nn.Module, train: Samples, settings: FitSettings) -> np.ndarray:
    """phi_j = 1 - (e_j - min e) / (max e - min e), e_j the teacher's own ranking loss on batch j.

    A batch that the teacher ranks badly is distilled less; all ones when it ranks all batches equally well.
    """
    with torch.inference_mode():
        batches = epoch_batches(
            train, usable_tasks(train), settings, 0, False, next(teacher.parameters()).device
        )
        errors = {batch.number: ranking_loss(teacher, batch, settings.sigma).item() for batch in batches}
    return trust_of_errors(np.array([errors[j] for j in range(len(errors))]))


def trust_of_errors(errors: np.ndarray) -> np.ndarray:
    """(J,) in [0, 1]: 1 for the smallest error, 0 for the largest."""
    width = np.ptp(errors)
    return 1.0 - (errors - errors.min()) / width if width > 0 else np.ones_like(errors)


def fisher_diagonal(network: nn.Module, train: Samples, sigma: float = 1.0) -> dict[str, Tensor]:
    """Mean over tasks of the squared gradient of the task's LambdaRank loss, for every parameter by name."""
    groups, scores = usable_tasks(train), train.scores
    parameters = dict(network.named_parameters())
    fisher = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for rows in groups:
        batch = make_batch(train, scores, [rows], device=next(iter(parameters.values())).device)
        gradients = torch.autograd.grad(ranking_loss(network, batch, sigma), list(parameters.values()))
        for total, gradient in zip(fisher.values(), gradients, strict=True):
            total += gradient**2 / len(groups)
    return fisher

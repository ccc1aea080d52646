"""LambdaRank against a hand-computed case and against its literal formula."""

from __future__ import annotations

import math

import pytest
import torch

from tcl_core.learning.losses import alike, by_size, lambda_rank, rank_net, score_regression, within_task


def literal_lambda_rank(s: list[float], y: list[float], sigma: float) -> float:
    """The formula of one task, pair by pair."""
    order = sorted(range(len(s)), key=lambda i: -s[i])
    D = [math.log2(1 + 1 + order.index(i)) for i in range(len(s))]
    best = sum((2**label - 1) / math.log2(2 + place) for place, label in enumerate(sorted(y, reverse=True)))
    G = [(2**label - 1) / best for label in y]
    return sum(
        abs(G[i] - G[j]) * abs(1 / D[i] - 1 / D[j]) * math.log2(1 + math.exp(-sigma * (s[i] - s[j])))
        for i in range(len(s))
        for j in range(len(s))
        if y[i] > y[j]
    )


def test_by_hand():
    """Two programs in the wrong order.

    Gains 1 and sqrt(2) - 1 over the best order's sum 1 + 0.41421 / log2(3) = 1.26134; ranks 2 and 1:
    |G_1 - G_2| = 0.46441, |1/D_1 - 1/D_2| = 0.36907, log2(1 + e) = 1.89463; product 0.32474.
    """
    loss = lambda_rank(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.5]]), torch.ones(1, 2, dtype=torch.bool))
    assert loss.item() == pytest.approx(0.32474, abs=2e-5)


def test_every_pair_counts_alike_by_hand():
    """Three programs and padding: pairs (0, 1), (0, 2), (1, 2) whose scores differ by 1, -1, -2; the mean of log2(1 + e^-d).

    .45194 + 1.89463 + 3.06850, over 3.  A tie of labels forms no pair: of the second task's three, two with difference 1 remain.
    """
    s = torch.tensor([[1.0, 0.0, 2.0, torch.nan], [0.0, 1.0, 0.0, torch.nan]], requires_grad=True)
    y = torch.tensor([[1.0, 0.9, 0.1, 0.5], [0.2, 0.8, 0.2, 0.5]])
    loss = rank_net(s, y, torch.tensor([[True, True, True, False]] * 2))
    assert loss.tolist() == pytest.approx([1.80502, 0.45194], abs=2e-5)
    loss.sum().backward()
    assert s.grad[:, 3].tolist() == [0.0, 0.0] and s.grad[0, 0] < 0 < s.grad[0, 2]
    near = rank_net(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.99]]), torch.ones(1, 2, dtype=torch.bool))
    assert near.item() == pytest.approx(0.45194, abs=2e-5)  # as much as two far apart


@pytest.mark.parametrize("loss", [lambda_rank, rank_net])
def test_tasks_without_an_order_cost_nothing(loss):
    mask = torch.ones(2, 3, dtype=torch.bool)
    assert loss(torch.rand(2, 3), torch.tensor([[0.0, 0.0, 0.0], [0.4, 0.4, 0.4]]), mask).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("sigma", [1.0, 2.5])
def test_equals_the_literal_formula_with_padding(sigma):
    draw = torch.Generator().manual_seed(0)
    sizes = [2, 7, 5]
    s, y = (torch.rand(3, 7, generator=draw, dtype=torch.float64) for _ in range(2))
    mask = torch.arange(7) < torch.tensor(sizes)[:, None]
    y[1, 2] = y[1, 4]  # a tie forms no pair
    expected = [literal_lambda_rank(s[t, :n].tolist(), y[t, :n].tolist(), sigma) for t, n in enumerate(sizes)]
    assert lambda_rank(s, y, mask, sigma).tolist() == pytest.approx(expected, rel=1e-9)


def test_padding_gets_no_gradient_even_when_it_is_not_finite():
    s = torch.tensor([[0.3, 0.1, torch.nan]], requires_grad=True)
    mask = torch.tensor([[True, True, False]])
    lambda_rank(s, torch.tensor([[0.2, 1.0, 0.7]]), mask).sum().backward()
    assert s.grad[0, 2] == 0 and s.grad[0, 1] < 0 < s.grad[0, 0]


def test_better_orders_cost_less():
    labels, mask = torch.tensor([[1.0, 0.6, 0.2]]), torch.ones(1, 3, dtype=torch.bool)
    best, swapped, worst = (
        lambda_rank(torch.tensor([s]), labels, mask).item() for s in ([3.0, 2.0, 1.0], [2.0, 3.0, 1.0], [1.0, 2.0, 3.0])
    )
    assert best < swapped < worst


def test_within_task_stretches_each_task_and_ignores_padding():
    mask = torch.tensor([[True, True, True], [True, True, False]])
    found = within_task(torch.tensor([[-1.0, 1.0, 0.0], [5.0, 5.0, 99.0]]), mask)
    assert found.tolist() == [[0.0, 1.0, 0.5], [0.0, 0.0, 0.0]]


def test_score_regression_by_hand():
    """Labels 1 and 1/4 are log 4 apart, centred +-log 2; the failed program and the padding do not count."""
    labels = torch.tensor([[1.0, 0.25, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True, False]])
    predicted = torch.tensor([[3.0, 2.0, -50.0, 99.0]], requires_grad=True)
    loss = score_regression(predicted, labels, mask)
    assert loss.tolist() == pytest.approx([(0.5 - math.log(2)) ** 2])
    loss.sum().backward()
    assert predicted.grad[0, 2:].tolist() == [0.0, 0.0] and predicted.grad[0, 0] < 0 < predicted.grad[0, 1]


def test_score_regression_is_blind_to_a_tasks_constant_and_to_a_task_of_failures():
    labels = torch.tensor([[1.0, 0.5, 0.1], [0.0, 0.0, 0.0]])
    mask = torch.ones(2, 3, dtype=torch.bool)
    predicted = torch.log(torch.tensor([[1.0, 0.5, 0.1], [0.3, 0.2, 0.1]])) + 7.0
    torch.testing.assert_close(score_regression(predicted, labels, mask), torch.zeros(2))


def test_tasks_of_about_one_size_are_compared_together():
    """Of one large task and many small ones nearly all pairs would be padding; what comes out is the same."""
    rng, sizes = torch.Generator().manual_seed(0), [300, *[2, 3] * 40]
    mask = torch.arange(300) < torch.tensor(sizes)[:, None]
    predicted, labels = (torch.rand(mask.shape, generator=rng) for _ in range(2))
    groups = alike(mask)
    assert sorted(torch.cat([tasks for tasks, _ in groups]).tolist()) == list(range(81))
    assert sum(len(tasks) * size**2 for tasks, size in groups) < 1.1 * sum(size**2 for size in sizes)
    torch.testing.assert_close(by_size(lambda_rank, predicted, labels, mask, 2.0), lambda_rank(predicted, labels, mask, 2.0))
    together = alike(mask[1:, :3])
    assert len(together) == 1 and together[0][1] == 3  # little padding: as they are


def test_what_counts_may_have_gaps():
    """As labels of the measured programs alone: a task reaches to the last of them, and one without any costs nothing."""
    rng = torch.Generator().manual_seed(0)
    predicted, labels = (torch.rand(9, 64, generator=rng) for _ in range(2))
    mask = torch.zeros(9, 64, dtype=torch.bool)
    mask[0] = mask[1, 3] = mask[1, 0] = mask[2:8, 1] = mask[2:8, 0] = True
    assert sorted(size for _, size in alike(mask)) == [1, 2, 4, 64]
    found = by_size(lambda_rank, predicted, labels, mask)
    torch.testing.assert_close(found, lambda_rank(predicted, labels, mask))
    assert found[8] == 0.0 and (found[:8] > 0.0).all()

"""CKD: what each phase leaves alone, its loss by hand, and the chain on disk."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from synthetic import FEATURES, ranking_problem, top1
from torch import nn

from tcl_core.chain.ckd import DistillSettings, distill, held_out_trust, learn_next, mended, start_column
from tcl_core.chain.state import ChainState, learn_first
from tcl_core.errors import DataError, UsageError
from tcl_core.features.batches import Samples, concatenate
from tcl_core.learning import distillation_loss, fit
from tcl_core.learning.batches_by_task import in_parts, make_batch, usable_tasks
from tcl_core.learning.distillation_loss import (
    DistillationLoss,
    batch_trust,
    fisher_diagonal,
    in_order_of,
    of_mean_one,
    trust_by_task,
    trust_of_errors,
)
from tcl_core.learning.fit import FitSettings, ranking_loss
from tcl_core.learning.losses import lambda_rank
from tcl_core.models.lateral_mamba import LateralMambaModel

FIRST = FitSettings(epochs=20, batch_size=64, learning_rate=3e-3)
NEXT = DistillSettings(FitSettings(batch_size=32, learning_rate=2e-3), epochs=4, kd_epochs=4)
TARGET = ranking_problem(seed=5, tasks=3, shift=0.6)


@pytest.fixture(scope="module")
def first() -> ChainState:
    return learn_first(ranking_problem(), None, FIRST)


def test_the_first_fisher_is_that_of_the_measured_programs():
    train, measured = ranking_problem(), ranking_problem(seed=3, tasks=2)
    state = learn_first(train, None, dataclasses.replace(FIRST, epochs=1), measured=measured)
    wanted, other = (fisher_diagonal(state.model.network, samples, FIRST.sigma) for samples in (measured, train))
    assert all(torch.equal(state.fisher[name], value) for name, value in wanted.items())
    assert not all(torch.equal(state.fisher[name], value) for name, value in other.items())


def copy_of(network: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def same(network: nn.Module, former: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, former[name]) for name, value in network.state_dict().items())


class Linear(nn.Module):
    """score = w * (first feature of the first token): small enough to compute by hand."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w))

    def forward(self, tokens, lengths):
        return self.w * tokens[:, 0, 0]


def test_the_first_platform_starts_the_knowledge_base(first):
    assert same(first.knowledge_base.network, copy_of(first.model.network))
    assert first.model.name == "mamba" and first.fisher.keys() == dict(first.model.network.named_parameters()).keys()


def test_cl_phase_leaves_the_knowledge_base_alone(first):
    before = copy_of(first.knowledge_base.network)
    after = learn_next(first, TARGET, None, NEXT, last=True)
    assert same(first.knowledge_base.network, before) and same(after.model.network.base, before)
    assert not same(after.model.network.column, before)
    assert all(adapter.alpha.abs().max() > 0 for adapter in after.model.network.adapters)
    assert after.knowledge_base is first.knowledge_base and after.fisher is first.fisher


def test_kd_phase_leaves_the_teacher_and_the_former_state_alone(first):
    teacher = start_column(first.knowledge_base.network, NEXT).network
    before, base_before = copy_of(teacher), copy_of(first.knowledge_base.network)
    student = distill(first, teacher, TARGET, NEXT)
    assert same(teacher, before) and same(first.knowledge_base.network, base_before)
    assert not same(student.network, base_before)


def test_consolidation_holds_the_knowledge_base(first):
    """A heavy EWC term keeps KB nearer to what it was, weighted by the Fisher diagonal."""

    def moved(ewc_lambda: float) -> float:
        settings = dataclasses.replace(NEXT, ewc_lambda=ewc_lambda)
        student = distill(first, start_column(first.knowledge_base.network, NEXT).network, TARGET, settings)
        before = dict(first.knowledge_base.network.named_parameters())
        return sum((first.fisher[name] * (value - before[name]) ** 2).sum().item() for name, value in student.network.named_parameters())

    assert moved(1e7) < 0.5 * moved(0.0)


def test_distillation_loss_by_hand():
    """beta 0.25, phi 0.5, w 0.5 -> 1.5 with F 2 and lambda 10: EWC 0.5 * 10 * 2 * 1 = 10."""
    data = ranking_problem(tasks=2, programs=3)
    batch = make_batch(data, data.scores, usable_tasks(data), number=1)
    student, teacher = Linear(1.5), Linear(-2.0)
    loss = DistillationLoss(teacher, np.array([0.9, 0.5]), Linear(0.5), {"w": torch.tensor(2.0)}, 0.25, 10.0)
    x = torch.from_numpy(data.features[:, 0, 0]).view(2, 3)
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    taught = (high - x) / (high - low)  # the teacher's order is that of -x
    labels, mask = torch.from_numpy(data.scores).view(2, 3), torch.ones(2, 3, dtype=torch.bool)
    expected = 0.25 * lambda_rank(1.5 * x, labels, mask).mean() + 0.75 * 0.5 * lambda_rank(1.5 * x, taught, mask).mean() + 10.0
    torch.testing.assert_close(loss(student, batch), expected)
    loss(student, batch).backward()
    assert student.w.grad is not None and teacher.w.grad is None


@pytest.mark.parametrize("measured", [False, True])
def test_one_large_task_does_not_pad_the_others(measured, monkeypatch):
    """Or of one large task and many small ones nearly all pairs would be padding: memory grows with their number."""
    large, small = ranking_problem(tasks=1, programs=64), ranking_problem(seed=1, tasks=40, programs=2)
    data = concatenate([large, dataclasses.replace(small, tasks=small.tasks + np.int32(1), task_names=())])
    pairs = []
    monkeypatch.setattr(distillation_loss, "lambda_rank", lambda s, *rest: pairs.append(s.numel() * s.shape[1]) or lambda_rank(s, *rest))
    known = data.scores if measured else None
    loss = DistillationLoss(Linear(-2.0), np.array([1.0]), Linear(0.5), {"w": torch.tensor(2.0)}, 0.25, 10.0, measured=known)
    loss(Linear(1.5), make_batch(data, data.scores, usable_tasks(data)))
    assert pairs == [40 * 2**2, 64**2] * 2  # of the teacher's order, and of the labels


def test_trust_by_hand():
    np.testing.assert_allclose(trust_of_errors(np.array([2.0, 1.0, 5.0])), [0.75, 1.0, 0.0])
    np.testing.assert_allclose(trust_of_errors(np.array([3.0, 3.0])), [1.0, 1.0])


def test_batch_trust_belongs_to_the_batches_that_the_phase_sees(first):
    """phi's number j means the same programs in every epoch of the KD phase."""
    teacher, seen = first.knowledge_base.network, {}
    settings = dataclasses.replace(NEXT, kd_epochs=3)
    trust = batch_trust(teacher, TARGET, settings.base_fit())

    class Recorder(DistillationLoss):
        def __call__(self, student, batch):
            seen.setdefault(batch.number, set()).add(round(ranking_loss(self.teacher, batch).item(), 5))
            return super().__call__(student, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tcl_core.chain.ckd.DistillationLoss", Recorder)
        distill(first, start_column(teacher, settings).network, TARGET, settings)
    errors = np.array([seen[j].pop() for j in range(len(seen))])
    assert len(trust) == len(errors) == 2 and all(not rest for rest in seen.values())
    np.testing.assert_allclose(trust, trust_of_errors(errors), atol=1e-3)


def test_fisher_by_hand():
    """The mean over tasks of the squared gradient of each task's loss."""
    data, net = ranking_problem(tasks=3, programs=4), Linear(0.7)
    gradients = []
    for rows in usable_tasks(data):
        loss = ranking_loss(net, make_batch(data, data.scores, [rows]))
        gradients.append(torch.autograd.grad(loss, net.w)[0].item())
    assert fisher_diagonal(net, data)["w"].item() == pytest.approx(np.mean(np.square(gradients)))


def test_fisher_and_trust_of_very_large_tasks_are_of_their_parts(monkeypatch):
    data, net = ranking_problem(tasks=2, programs=8), Linear(0.7)
    monkeypatch.setattr("tcl_core.learning.batches_by_task.COMPARED", 4)
    scores = np.arange(16, dtype=np.float32)
    gradients, losses, pairs = [], np.zeros(2), np.zeros(2)
    for task, rows in ((task, part) for task, whole in enumerate(usable_tasks(data)) for part in in_parts(whole)):
        batch = make_batch(data, data.scores, [rows])
        gradients.append(torch.autograd.grad(ranking_loss(net, batch), net.w)[0].item())
        losses[task] += lambda_rank(torch.from_numpy(scores[rows])[None], batch.labels, batch.mask).item()
        pairs[task] += sum(data.scores[i] > data.scores[j] for i in rows for j in rows)
    assert len(gradients) == 4 and fisher_diagonal(net, data)["w"].item() == pytest.approx(np.mean(np.square(gradients)))
    wanted = trust_of_errors((losses + 16 * losses.sum() / pairs.sum()) / (pairs + 16))
    assert set(wanted) == {0.0, 1.0}
    np.testing.assert_allclose(trust_by_task(scores, data, 2), wanted, atol=1e-5)


def test_column_starts(first):
    base = copy_of(first.knowledge_base.network)
    assert same(start_column(first.knowledge_base.network, NEXT).network.column, base)
    fresh = dataclasses.replace(NEXT, column_start="fresh")
    assert not same(start_column(first.knowledge_base.network, fresh).network.column, base)
    torch.manual_seed(1)
    once = start_column(first.knowledge_base.network, fresh).network
    torch.manual_seed(2)
    assert same(start_column(first.knowledge_base.network, fresh).network, copy_of(once))
    with pytest.raises(UsageError, match="unknown column start 'warm'"):
        start_column(first.knowledge_base.network, dataclasses.replace(NEXT, column_start="warm"))


def test_the_chain_learns_the_target_and_survives_the_disk(first, tmp_path):
    phases = []
    second = learn_next(
        first,
        TARGET,
        ranking_problem(seed=6, tasks=2, shift=0.6),
        NEXT,
        on_epoch=lambda phase, epoch, loss, metrics: phases.append(phase),
    )
    assert phases == ["CL"] * 4 + ["KD"] * 4
    second.write_into(tmp_path)
    loaded = ChainState.load(tmp_path)
    fresh = ranking_problem(seed=7, tasks=12, shift=0.6)
    np.testing.assert_array_equal(loaded.model.predict(fresh), second.model.predict(fresh))
    np.testing.assert_array_equal(loaded.model.embed(fresh), second.model.embed(fresh))
    np.testing.assert_array_equal(loaded.knowledge_base.predict(fresh), second.knowledge_base.predict(fresh))
    assert all(torch.equal(loaded.fisher[name], value) for name, value in second.fisher.items())
    random = top1(np.random.default_rng(0).random(len(fresh)), fresh)
    assert top1(second.model.predict(fresh), fresh) > 0.7 > 0.5 > random
    assert learn_next(loaded, TARGET, None, NEXT, last=True).model.network.arguments["features"] == FEATURES


@pytest.mark.parametrize("phase", ["CL", "KD"])
def test_a_killed_step_ends_where_an_undisturbed_one_does(first, tmp_path, phase):
    settings = dataclasses.replace(NEXT, epochs=6, kd_epochs=6)
    heard: dict[str, list] = {"undisturbed": [], "resumed": []}
    note = lambda name: lambda *facts: heard[name].append(facts)  # noqa: E731
    expected = learn_next(first, TARGET, None, settings, on_epoch=note("undisturbed"))

    def kill(now, epoch, loss, metrics):
        if (now, epoch) == (phase, 6):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn_next(first, TARGET, None, settings, on_epoch=kill, checkpoint=tmp_path)
    found = learn_next(first, TARGET, None, settings, on_epoch=note("resumed"), checkpoint=tmp_path)
    assert heard["resumed"] == heard["undisturbed"] and len(heard["resumed"]) == 12
    assert same(found.model.network, copy_of(expected.model.network))
    assert same(found.knowledge_base.network, copy_of(expected.knowledge_base.network))


@pytest.mark.parametrize("changed", ["fisher", "teacher"])
def test_a_finished_step_is_not_taken_for_one_with_another_fisher_or_teacher(first, tmp_path, monkeypatch, changed):
    settings = dataclasses.replace(NEXT, kd_epochs=2)
    teacher = start_column(first.knowledge_base.network, settings).network
    trained, run = [], fit._run_epoch
    monkeypatch.setattr(fit, "_run_epoch", lambda *args: (trained.append(1), run(*args))[1])
    distill(first, teacher, TARGET, settings, checkpoint=tmp_path)
    distill(first, teacher, TARGET, settings, checkpoint=tmp_path)
    assert len(trained) == 2
    if changed == "fisher":
        first = dataclasses.replace(first, fisher={name: 1e6 * value for name, value in first.fisher.items()})
    else:
        with torch.no_grad():
            next(teacher.parameters()).mul_(1.0 + 1e-6)
    distill(first, teacher, TARGET, settings, checkpoint=tmp_path)
    assert len(trained) == 4


def test_a_missing_fisher_is_named(first, tmp_path):
    first.write_into(tmp_path)
    (tmp_path / "fisher.safetensors").unlink()
    with pytest.raises(DataError, match="fisher.safetensors' is missing"):
        ChainState.load(tmp_path)


def test_the_mended_loss_by_hand():
    """Labels of measured programs alone; phi 0.9 and 0.5 of the two tasks; their labels dealt out in the teacher's order."""
    data = ranking_problem(tasks=2, programs=3)
    batch = make_batch(data, data.scores, usable_tasks(data), number=1)
    known = np.array([1.0, 0.4, np.nan, 0.7, np.nan, np.nan], np.float32)  # nothing to compare in the second task
    loss = DistillationLoss(
        Linear(-2.0), np.array([0.9, 0.5]), Linear(0.5), {"w": torch.tensor(2.0)}, 0.25, 10.0,
        measured=known, by_task=True, reordered=True,
    )  # fmt: skip
    x, labels = (torch.from_numpy(values).view(2, 3) for values in (data.features[:, 0, 0], data.scores))
    dealt = torch.zeros(2, 3)
    for task in range(2):
        dealt[task, x[task].argsort()] = labels[task].sort(descending=True).values  # the teacher likes small x
    whole = torch.ones(2, 3, dtype=torch.bool)
    expected = (
        0.25 * lambda_rank(1.5 * x[:1, :2], torch.tensor([[1.0, 0.4]]), whole[:1, :2])[0]
        + 0.75 * (torch.tensor([0.9, 0.5]) * lambda_rank(1.5 * x, dealt, whole)).mean()
        + 10.0
    )
    torch.testing.assert_close(loss(Linear(1.5), batch), expected)


def test_labels_are_dealt_out_by_the_scores_and_the_padding_gets_none():
    scores = torch.tensor([[0.1, 0.9, 0.5], [3.0, -1.0, 99.0]])
    labels = torch.tensor([[1.0, 0.2, 0.6], [0.3, 1.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    torch.testing.assert_close(in_order_of(scores, labels, mask), torch.tensor([[0.2, 1.0, 0.6], [1.0, 0.3, 0.0]]))


def test_trust_in_a_task_by_hand():
    """One pair ranked right, one wrong, a task without any: a pair weighs 1 to the mean's 16, so the last stands in the middle."""
    seconds, tasks = np.array([1.0, 2.0, 1.0, 2.0, 1.0]), np.array([0, 0, 1, 1, 2], np.int32)
    measured = Samples(np.zeros((5, 1, 1), np.float32), np.ones(5, np.int32), tasks, seconds)
    scores = np.array([1.0, 0.0, 0.0, 1.0, 7.0], np.float32)
    np.testing.assert_allclose(trust_by_task(scores, measured, 4), [1.0, 0.0, 0.5, 0.5], atol=1e-5)
    many = Samples(
        np.zeros((8, 1, 1), np.float32), np.ones(8, np.int32), np.repeat([0, 1], 4).astype(np.int32), np.tile([1.0, 2.0, 4.0, 8.0], 2)
    )
    both = concatenate([many, dataclasses.replace(measured, tasks=tasks + np.int32(2))])
    wrong = np.concatenate([-np.arange(4), np.arange(4), scores]).astype(np.float32)
    found = trust_by_task(wrong, both, 5)
    assert found[0] == 1.0 and found[1] == 0.0 and found[1] < found[3] < found[4] < found[2] < found[0]  # more pairs say more
    assert 0.2 < found[3] < found[2] < 0.8  # one pair stands nearer to the mean's 16 than to its own error


def test_a_fisher_diagonal_of_mean_one():
    found = of_mean_one({"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([[2.0]])})
    torch.testing.assert_close(found, {"a": torch.tensor([0.5, 1.5]), "b": torch.tensor([[1.0]])})
    assert not of_mean_one({"a": torch.zeros(2)})["a"].any()


def test_mended_settings_count_lambda_in_hundreds():
    found = mended(DistillSettings(FitSettings(seed=3), ewc_lambda=20_000.0))
    assert found.ewc_lambda == 200.0 and (found.fit.loss, found.fit.seed) == ("scores", 3)
    assert all((found.unlabelled_cl, found.unlabelled_kd, found.task_labels, found.task_trust, found.unit_fisher))


def taught_target() -> Samples:
    """TARGET's programs with other labels, and as many that were not measured."""
    return dataclasses.replace(concatenate([TARGET, ranking_problem(seed=8, tasks=3)]), latencies_s=np.linspace(1, 2, 2 * len(TARGET)))


def test_the_cl_phase_learns_the_teachers_labels_where_it_is_told_to(first):
    settings = dataclasses.replace(NEXT, unlabelled_cl=True)
    expected = start_column(first.knowledge_base.network, settings)
    expected.fit(taught_target())
    found = learn_next(first, TARGET, None, settings, pseudo_labelled=taught_target(), last=True)
    assert same(found.model.network, copy_of(expected.network))
    with pytest.raises(UsageError, match="give it a teacher ensemble's labels"):
        learn_next(first, TARGET, None, settings)


@pytest.mark.parametrize("switch", [None, "unlabelled_kd", "task_labels", "task_trust", "unit_fisher"])
def test_each_term_of_the_kd_phase_is_mended_alone(first, switch):
    made, rows = [], set()

    class Recorder(DistillationLoss):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            made.append(self)

        def __call__(self, student, batch):
            rows.update(batch.rows.tolist())
            return super().__call__(student, batch)

    settings = dataclasses.replace(NEXT, epochs=1, kd_epochs=1, **({switch: True} if switch else {}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tcl_core.chain.ckd.DistillationLoss", Recorder)
        distill(first, start_column(first.knowledge_base.network, settings).network, TARGET, settings, pseudo_labelled=taught_target())
    (loss,) = made
    count = len(TARGET) * (2 if switch == "unlabelled_kd" else 1)
    assert rows == set(range(count))
    if switch == "unlabelled_kd":
        np.testing.assert_array_equal(loss.measured, np.append(TARGET.scores, np.full(len(TARGET), np.nan, np.float32)))
    else:
        assert loss.measured is None
    assert loss.reordered == (switch == "task_labels") and loss.by_task == (switch == "task_trust")
    assert len(loss.trust) == (3 if switch in ("task_trust", "unlabelled_kd") else 2)  # tasks, or batches
    wanted = of_mean_one(first.fisher) if switch == "unit_fisher" else first.fisher
    assert all(torch.equal(loss.fisher[name], value) for name, value in wanted.items())


def test_no_task_is_judged_by_a_teacher_that_learned_it(first, monkeypatch):
    learned, asked = [], []
    fit, predict = LateralMambaModel.fit, LateralMambaModel.predict
    monkeypatch.setattr(LateralMambaModel, "fit", lambda self, train: learned.append(set(train.tasks.tolist())) or fit(self, train))
    monkeypatch.setattr(LateralMambaModel, "predict", lambda self, s: asked.append(set(s.tasks.tolist())) or predict(self, s))
    settings = dataclasses.replace(NEXT, epochs=1)
    phi = held_out_trust(first.knowledge_base.network, TARGET, taught_target(), 3, settings)
    assert len(phi) == 3 and phi.min() == 0.0 and phi.max() == 1.0
    assert not learned[0] & asked[0] and not learned[1] & asked[1] and asked[0] | asked[1] == {0, 1, 2}


def test_tasks_of_which_nothing_ran_teach_no_column(first, monkeypatch):
    """One of the halves is made of such tasks, so only one of the two columns learns."""
    learned, fit = [], LateralMambaModel.fit
    monkeypatch.setattr(LateralMambaModel, "fit", lambda self, train: learned.append(set(train.tasks.tolist())) or fit(self, train))
    ran = dataclasses.replace(TARGET, latencies_s=np.where(TARGET.tasks == 0, TARGET.latencies_s, np.inf))
    phi = held_out_trust(first.knowledge_base.network, ran, ran, 3, dataclasses.replace(NEXT, epochs=1))
    assert len(learned) == 1 and 0 in learned[0]
    assert phi.shape == (3,) and np.isfinite(phi).all() and phi[1] == phi[2]  # which both have the mean error


def test_a_task_of_unlabelled_programs_alone_is_distilled_with_the_mean_trust(first):
    """As all terms but the first phase's labels mended: its number may be beyond those of measured programs."""
    more = dataclasses.replace(ranking_problem(seed=8, tasks=3), tasks=np.repeat(np.arange(3, 6, dtype=np.int32), 16))
    settings = dataclasses.replace(NEXT, epochs=1, kd_epochs=1, unlabelled_kd=True, task_trust=True)
    base = first.knowledge_base.network
    student = distill(first, start_column(base, settings).network, TARGET, settings, pseudo_labelled=concatenate([TARGET, more]))
    assert not same(student.network, copy_of(base))
    phi = held_out_trust(base, TARGET, TARGET, 6, settings)
    assert np.ptp(phi[3:]) == 0.0 and phi[:3].min() < phi[3] < phi[:3].max()

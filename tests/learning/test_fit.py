"""The loop: what it learns, what it refuses, and that a killed run ends where an undisturbed one does."""

from __future__ import annotations

import dataclasses
import json
import tracemalloc

import numpy as np
import pytest
import torch
from synthetic import ranking_problem, top1

from tcl_core.errors import DataError, UsageError
from tcl_core.features.batches import Samples, concatenate
from tcl_core.learning import checkpoint, fit
from tcl_core.learning.batches_by_task import batches_in_order, group_tasks, make_batch, usable_tasks
from tcl_core.learning.checkpoint import run_identity
from tcl_core.learning.fit import FitSettings, epoch_batches, fit_network
from tcl_core.models.mamba import MambaModel, MambaNetwork
from tcl_core.models.random_scores import RandomScores

SHORT = FitSettings(epochs=6, batch_size=48, checkpoint_every=2, schedule="cosine", period=4)


def network() -> MambaNetwork:
    torch.manual_seed(0)
    return MambaNetwork(6)


def weights(net: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def count_epochs(monkeypatch) -> list[int]:
    """Grows by one with every epoch that is trained, not merely told again."""
    trained, run = [], fit._run_epoch
    monkeypatch.setattr(fit, "_run_epoch", lambda *args: (trained.append(1), run(*args))[1])
    return trained


def test_learns_a_ranking_far_better_than_random():
    model = MambaModel(FitSettings(epochs=20, batch_size=64))
    model.fit(ranking_problem(seed=0, tasks=40))
    fresh = ranking_problem(seed=1, tasks=20)
    random = np.mean([top1(RandomScores(FitSettings(seed=s)).predict(fresh), fresh) for s in range(10)])
    assert random < 0.5 < 0.85 < top1(model.predict(fresh), fresh)
    assert model.report.losses[-1] < 0.2 * model.report.losses[0]


def test_same_seed_same_weights_other_seed_other_weights():
    found = []
    for seed in (0, 0, 1):
        net = network()
        fit_network(net, ranking_problem(), settings=dataclasses.replace(SHORT, epochs=2, seed=seed))
        found.append(weights(net))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("killed_after", [1, 3, 6])
def test_a_killed_run_ends_where_an_undisturbed_one_does(tmp_path, monkeypatch, killed_after):
    train, valid = ranking_problem(), ranking_problem(seed=1, tasks=2)
    undisturbed, resumed = network(), network()
    heard: dict[str, list] = {"undisturbed": [], "resumed": []}
    note = lambda name: lambda *facts: heard[name].append(facts)  # noqa: E731
    expected = fit_network(undisturbed, train, valid, SHORT, on_epoch=note("undisturbed"))

    def kill(epoch, loss, metrics):
        if epoch == killed_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_network(network(), train, valid, SHORT, on_epoch=kill, checkpoint=tmp_path)
    trained = count_epochs(monkeypatch)
    found = fit_network(resumed, train, valid, SHORT, on_epoch=note("resumed"), checkpoint=tmp_path)
    assert len(trained) == 6 - killed_after // 2 * 2
    assert json.dumps(heard["resumed"]) == json.dumps(heard["undisturbed"])  # a curve, byte for byte
    assert found == expected and torch.equal(weights(resumed), weights(undisturbed))


def test_checkpoints_of_other_runs_and_damaged_ones_are_left_out(tmp_path, caplog):
    train = ranking_problem()
    fit_network(network(), train, settings=SHORT, checkpoint=tmp_path)
    epochs = []
    other = dataclasses.replace(SHORT, learning_rate=1e-4, epochs=2)
    fit_network(network(), train, settings=other, checkpoint=tmp_path, on_epoch=lambda e, *_: epochs.append(e))
    assert epochs == [1, 2] and "other data, settings or code" in caplog.text
    (tmp_path / "checkpoint.safetensors").write_bytes(b"half a file")
    fit_network(network(), train, settings=other, checkpoint=tmp_path, on_epoch=lambda e, *_: epochs.append(e))
    assert epochs == [1, 2, 1, 2] and "damaged" in caplog.text


@pytest.mark.parametrize("field", ["features", "lengths", "latencies_s", "tasks"])
def test_what_is_learned_tells_checkpoints_apart(field):
    train = ranking_problem()
    other = dataclasses.replace(train, **{field: getattr(train, field)[::-1].copy()})
    assert run_identity(SHORT, network(), train, None) == run_identity(SHORT, network(), ranking_problem(), None)
    assert run_identity(SHORT, network(), train, None) != run_identity(SHORT, network(), other, None)


def test_other_code_tells_checkpoints_apart(tmp_path, monkeypatch):
    """Or one training would be done by two versions of a loss, with the provenance of the second alone."""
    here, code = run_identity(SHORT, network(), ranking_problem(), None), checkpoint._code.__wrapped__
    monkeypatch.setattr(checkpoint, "PACKAGE", tmp_path)
    files = [tmp_path / folder / "one.py" for folder in ("features", "learning", "models", "chain")]
    for file in files:
        file.parent.mkdir()
        file.write_text("x = 1\n")
    found = [code()]
    files[0].write_text("x = 1  # in other words\n")
    assert code() == found[0]
    for file in files:
        file.write_text("x = 2\n")
        found.append(code())
    monkeypatch.setattr(torch, "__version__", "0.0")
    found.append(code())
    assert len(set(found)) == 6
    monkeypatch.setattr(checkpoint, "_code", code)
    assert run_identity(SHORT, network(), ranking_problem(), None) != here


def test_telling_checkpoints_apart_copies_no_data():
    train = ranking_problem(tasks=100, programs=100)
    run_identity(SHORT, network(), train, None)  # reads the code
    tracemalloc.start()
    try:
        run_identity(SHORT, network(), train, None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert train.features.nbytes > 1_900_000 and peak < 1_000_000


def test_every_epoch_has_an_order_of_its_own():
    train = ranking_problem(tasks=12)
    settings = dataclasses.replace(SHORT, batch_size=32)
    batches = lambda epoch, regroup: [  # noqa: E731
        batch.number for batch in epoch_batches(train, usable_tasks(train), settings, epoch, regroup, torch.device("cpu"))
    ]
    assert len(batches(0, False)) > 3 and sorted(batches(0, False)) == sorted(batches(1, False))
    assert batches(0, False) == batches(0, False) != batches(1, False)


def test_validation_keeps_the_best_epoch():
    losses, net = [], network()
    settings = dataclasses.replace(SHORT, epochs=12, learning_rate=1e-2, schedule="constant")
    valid = ranking_problem(seed=1, tasks=3)
    report = fit_network(
        net,
        ranking_problem(tasks=2),
        valid,
        settings,
        on_epoch=lambda epoch, loss, metrics: losses.append(metrics["valid_loss"]),
    )
    assert report.kept_epoch == 1 + int(np.argmin(losses)) < 12
    shorter = network()
    fit_network(shorter, ranking_problem(tasks=2), None, dataclasses.replace(settings, epochs=report.kept_epoch))
    assert torch.equal(weights(net), weights(shorter))


@pytest.mark.parametrize(
    "schedule, rates",
    [("constant", [1, 1, 1, 1, 1]), ("cosine", [1, 0.5, 1, 0.5, 1]), ("step", [1, 1, 0.8, 0.8, 0.64])],
)
def test_schedules(schedule, rates, monkeypatch):
    seen, step = [], torch.optim.Adam.step
    monkeypatch.setattr(torch.optim.Adam, "step", lambda self: (seen.append(self.param_groups[0]["lr"]), step(self))[1])
    settings = FitSettings(epochs=5, batch_size=999, schedule=schedule, period=2, learning_rate=1.0)
    fit_network(network(), ranking_problem(tasks=1, programs=3), settings=dataclasses.replace(settings))
    assert seen == pytest.approx(rates)


def test_regression_learns_the_scores_themselves():
    train = ranking_problem()
    model, settings = network(), FitSettings(epochs=40, batch_size=48, learning_rate=3e-3, loss="scores")
    report = fit_network(model, train, settings=settings)
    assert report.losses[-1] < 0.3 * report.losses[0]


def test_unknown_loss_is_named():
    with pytest.raises(UsageError, match="unknown loss 'score'; did you mean 'scores'"):
        fit_network(network(), ranking_problem(), settings=FitSettings(loss="score"))


def test_unknown_schedule_is_named():
    with pytest.raises(UsageError, match="did you mean 'cosine'"):
        fit_network(network(), ranking_problem(), settings=FitSettings(schedule="cosin"))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_feature_names_the_task(value):
    data = ranking_problem()
    data.features[35, 2, 1] = value
    with pytest.raises(DataError, match="'task-2'.*a feature that is not finite"):
        fit_network(network(), data)


@pytest.mark.parametrize("value", [np.nan, 0.0, -1e-3])
def test_a_bad_latency_names_the_task(value):
    data = ranking_problem()
    data.latencies_s[50] = value
    with pytest.raises(DataError, match="'task-3'.*latency"):
        fit_network(network(), data)


def test_a_diverging_task_is_named():
    data = ranking_problem()
    data.features[20] = 3e38  # finite, but its sum is not
    with pytest.raises(DataError, match="'task-1'"):
        fit_network(network(), data, settings=dataclasses.replace(SHORT, batch_size=16))


def test_lone_programs_are_left_out_and_logged(caplog):
    caplog.set_level("INFO")
    data = ranking_problem()
    keep = np.r_[0:16, 16, 32:96]  # task-1 has one program left
    report = fit_network(network(), data.take(keep), settings=dataclasses.replace(SHORT, epochs=1))
    assert report.tasks == 5 and report.programs == 80 and "task-1" in caplog.text


def test_nothing_to_compare_is_an_error():
    with pytest.raises(DataError, match="none of the 6 tasks has two"):
        fit_network(network(), ranking_problem().take(np.arange(0, 96, 16)))
    with pytest.raises(DataError, match="none of the 0 tasks"):
        fit_network(network(), ranking_problem().take(np.arange(0)))


def test_failed_programs_are_ranked_last():
    """A quarter of the programs, those whose latency would be longest, fail instead; fresh ones like them come last."""
    data, fresh = ranking_problem(tasks=10), ranking_problem(seed=1, tasks=10)
    limit = np.quantile(data.latencies_s, 0.75)
    data.latencies_s[data.latencies_s > limit] = np.inf
    model = MambaModel(FitSettings(epochs=12, batch_size=64))
    model.fit(data)
    fails, predicted = fresh.latencies_s > limit, model.predict(fresh)
    above = [predicted[(fresh.tasks == task) & ~fails].mean() - predicted[(fresh.tasks == task) & fails].mean() for task in range(10)
             if fails[fresh.tasks == task].any() and not fails[fresh.tasks == task].all()]  # fmt: skip
    assert len(above) >= 5 and min(above) > 0


def kind_that_fails(seed: int) -> tuple[Samples, np.ndarray]:
    """160 programs of ten tasks, faster the larger their first number, and which of them are of the kind that fails: it looks fastest."""
    draw, fails = np.random.default_rng(seed), np.arange(160) % 4 == 0
    tokens = np.zeros((160, 2, 6), np.float32)
    tokens[:, 1, 0], tokens[:, 1, 1] = np.where(fails, 2.0, draw.normal(size=160)), fails
    latencies_s = np.where(fails, np.inf, 1e-3 * np.exp(-tokens[:, 1, 0].astype(np.float64)))
    return Samples(tokens, np.full(160, 2, np.int32), np.repeat(np.arange(10, dtype=np.int32), 16), latencies_s), fails


def test_a_kind_that_failed_is_ranked_last_though_it_looks_fast():
    """With the model's own loss, to which a program without a label would be unknown."""
    train, _ = kind_that_fails(0)
    fresh, fails = kind_that_fails(1)
    settings = dataclasses.replace(MambaModel().settings, epochs=60, period=60, batch_size=64)
    predicted = MambaModel(settings).fit(train).predict(fresh)
    assert settings.loss == "scores" and np.isinf(train.latencies_s).sum() == 40
    for task in range(10):
        mine = fresh.tasks == task
        assert predicted[mine & fails].max() < np.median(predicted[mine & ~fails])


def test_batches_hold_whole_tasks_each_program_once():
    data = concatenate([ranking_problem(tasks=6, programs=10)])
    groups = usable_tasks(data)
    batches = group_tasks(groups, 25, np.random.default_rng(0))
    assert all(sum(map(len, parts)) <= 25 for parts in batches)
    assert sorted(np.concatenate([part for parts in batches for part in parts])) == list(range(60))
    assert all(len(part) == 10 for parts in batches for part in parts)
    halves = [part for parts in group_tasks(groups, 6, np.random.default_rng(0)) for part in parts]
    assert {len(part) for part in halves} == {5} and all(len(set(data.tasks[part])) == 1 for part in halves)


def test_a_batch_lines_up_tokens_labels_and_tasks():
    data = ranking_problem(tasks=3, programs=4)
    batch = make_batch(data, data.scores, [np.array([9, 8]), np.array([0, 3, 1])], number=7)
    assert batch.number == 7 and batch.tasks.tolist() == [2, 0]
    assert batch.mask.tolist() == [[True, True, False], [True, True, True]]
    np.testing.assert_array_equal(batch.labels, [[*data.scores[[9, 8]], 0.0], data.scores[[0, 3, 1]]])
    rows = batch.by_task(torch.arange(5))
    assert rows[batch.mask].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(batch.features, data.features[[9, 8, 0, 3, 1], : batch.lengths.max()])


def test_very_large_tasks_are_compared_in_parts(monkeypatch):
    """Or the pairs of one of 20,000 programs would take gigabytes; parts hold each program once, the same each time."""
    data = ranking_problem(tasks=2, programs=10)
    monkeypatch.setattr("tcl_core.learning.batches_by_task.COMPARED", 4)
    first, again = ([batch.rows for batch in batches_in_order(data, usable_tasks(data), 4)] for _ in range(2))
    assert [len(rows) for rows in first] == [4, 3, 3] * 2 and sorted(np.concatenate(first)) == list(range(20))
    assert all(map(np.array_equal, first, again)) and not np.array_equal(np.concatenate(first), np.arange(20))

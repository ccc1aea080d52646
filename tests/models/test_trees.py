"""Boosted trees: derivatives against autograd, programs of several rows, what is learned, kept and read back."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import xgboost
from safetensors.numpy import load_file, save_file

from tcl_core.errors import DataError, UsageError
from tcl_core.features import layout, per_store
from tcl_core.features.layout import KINDS, LEVEL, numbers_of
from tcl_core.features.batches import Samples, concatenate
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue, trees
from tcl_core.models.cost_model import CostModel
from tcl_core.models.trees import LAST, ROUNDS, TreesModel, XgboostModel, pair_derivatives

SETTINGS = replace(trees.SETTINGS, epochs=3, seed=1)


def statement_samples(seed: int = 0, tasks: int = 8, programs: int = 24) -> Samples:
    """log latency = sum over up to four stores of tanh(first feature - second)."""
    draw = np.random.default_rng(seed)
    count = tasks * programs
    rows = draw.normal(size=(count, 4, per_store.WIDTH)).astype(np.float32)
    counts = draw.integers(1, 5, count).astype(np.int32)
    rows[np.arange(4) >= counts[:, None]] = 0.0
    latencies_s = 1e-3 * np.exp(np.tanh(rows[..., 0] - rows[..., 1]).sum(1))
    names, numbers = tuple(f"task-{n}" for n in range(tasks)), np.repeat(np.arange(tasks, dtype=np.int32), programs)
    return Samples(rows, counts, numbers, latencies_s, names, holds="per-store features")


def token_samples(seed: int = 0, tasks: int = 8, programs: int = 24) -> Samples:
    """Level tokens behind a hardware and a workload token; latency follows from the innermost level."""
    draw = np.random.default_rng(seed)
    count, lengths = tasks * programs, 2 + draw.integers(1, 4, tasks * programs).astype(np.int32)
    rows = np.zeros((count, 5, layout.WIDTH), dtype=np.float32)
    numbers_of(rows)[:] = draw.normal(size=(count, 5, layout.NUMBERS))
    rows[:, 0, KINDS.index("hardware")] = rows[:, 1, KINDS.index("workload")] = rows[:, 2:, KINDS.index("level")] = 1.0
    rows[np.arange(5) >= lengths[:, None]] = 0.0
    innermost = numbers_of(rows)[np.arange(count), lengths - 1, LEVEL.trips.start]
    return Samples(rows, lengths, np.repeat(np.arange(tasks, dtype=np.int32), programs), 1e-3 * np.exp(innermost))


SAMPLES = {"xgboost": statement_samples, "trees": token_samples}


def ranked_right(scores: np.ndarray, samples: Samples) -> float:
    """Share of the pairs within tasks that the scores order as the latencies do; a half at random."""
    better = samples.latencies_s[:, None] < samples.latencies_s
    pairs = better & (samples.tasks[:, None] == samples.tasks)
    return float((scores[:, None] > scores)[pairs].mean())


def fitted(name: str = "xgboost", settings: FitSettings = SETTINGS, **valid):
    model = catalogue.create(name, settings)
    model.fit(SAMPLES[name](), **valid)
    return model


@pytest.mark.parametrize("name", trees.LOSSES)
def test_derivatives_are_those_of_the_loss(name):
    loss, weights = trees.LOSSES[name]
    draw = torch.Generator().manual_seed(0)
    s = torch.randn(3, 6, generator=draw, dtype=torch.float64, requires_grad=True)
    y, mask = torch.rand(3, 6, generator=draw, dtype=torch.float64), torch.arange(6) < torch.tensor([[6], [4], [2]])
    counted = weights(s, y, mask).sum((1, 2))
    scale = (mask.sum(1) / (counted if name == "rank" else torch.ones(3)))[:, None]  # rank_net is a mean over pairs already
    (gradient,) = torch.autograd.grad(loss(s, y, mask, 1.5).sum(), s, create_graph=True)
    diagonal = [torch.autograd.grad(g, s, retain_graph=True)[0].flatten()[n] for n, g in enumerate(gradient.flatten())]
    first, second = pair_derivatives(s.detach(), y, mask, weights, 1.5)
    torch.testing.assert_close(first, gradient.detach() * scale)
    torch.testing.assert_close(second, torch.stack(diagonal).view(3, 6) * scale)


@pytest.mark.parametrize("name", trees.LOSSES)
def test_tasks_without_an_order_have_no_derivatives(name):
    flat = torch.full((1, 3), 0.4)
    first, second = pair_derivatives(torch.rand(1, 3), flat, torch.ones(1, 3, dtype=torch.bool), trees.LOSSES[name][1])
    assert not first.any() and not second.any()


def test_a_loss_without_pairs_is_refused():
    with pytest.raises(UsageError, match=r"^unknown loss 'scores' in boosted trees; known: pairs, rank\.$"):
        fitted(settings=replace(SETTINGS, loss="scores"))


def test_tasks_of_one_size_are_compared_together(monkeypatch):
    monkeypatch.setattr(trees, "PAIRS", 2 * 24**2)
    few, many = statement_samples(tasks=3, programs=5), statement_samples(seed=1, tasks=5, programs=24)
    both = concatenate([few, replace(many, tasks=many.tasks + np.int32(3))])
    ranking = trees._Ranking(both, SETTINGS)
    assert [batch.labels.shape for batch in ranking.batches] == [(3, 5), (2, 24), (2, 24), (1, 24)]
    assert all(batch.mask.all() for batch in ranking.batches)
    scores = np.random.default_rng(0).normal(size=len(both)).astype(np.float32)
    alone = [trees._Ranking(part, SETTINGS).derivatives(of) for part, of in ((few, scores[:15]), (many, scores[15:]))]
    for whole, parts in zip(ranking.derivatives(scores), zip(*alone, strict=True), strict=True):
        np.testing.assert_allclose(whole, np.concatenate(parts), rtol=1e-5)


@pytest.mark.parametrize("name", SAMPLES)
def test_contract_and_round_trip(name, tmp_path):
    model, fresh = fitted(name, valid=SAMPLES[name](2)), SAMPLES[name](1)
    assert isinstance(model, CostModel) and model.name == name
    scores = model.predict(fresh)
    assert scores.shape == (192,) and scores.dtype == np.float32 and np.ptp(scores) > 0
    places = model.embed(fresh)
    assert places.shape == (192, 32)
    both = model.predict_and_embed(fresh)
    np.testing.assert_allclose(both[0], scores, atol=1e-4)
    np.testing.assert_array_equal(both[1], places)
    model.save(tmp_path / "model")
    loaded = catalogue.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(fresh), scores)
    assert json.loads((tmp_path / "model" / "model.json").read_text())["training"]["programs"] == 192
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"model.json", "weights.safetensors"}


@pytest.mark.parametrize("name", SAMPLES)
def test_programs_are_ranked_some_at_a_time(name, monkeypatch):
    """What comes of it is the same, and of no more of them are there rows at once."""
    model, fresh = fitted(name), SAMPLES[name](1)
    whole, seen, rows = model.predict_and_embed(fresh), [], type(model).rows
    monkeypatch.setattr(type(model), "rows", staticmethod(lambda samples: seen.append(len(samples)) or rows(samples)))
    monkeypatch.setattr(trees, "BLOCK", 50)
    for found, expected in zip(model.predict_and_embed(fresh), whole, strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(model.predict(fresh), whole[0], atol=1e-4)
    assert max(seen) == 50 and sum(seen) == 2 * 192
    assert model.predict(fresh.take(np.arange(0))).shape == (0,) and model.embed(fresh.take(np.arange(0))).shape == (0, 32)


def test_another_thread_never_meets_half_a_table_of_leaves(monkeypatch):
    model, fresh = fitted("trees"), SAMPLES["trees"](1)

    class Watched(list):
        """The trees' values, while the table is made of them."""

        def __iter__(self):
            for value in super().__iter__():
                assert model._values is None
                yield value

    monkeypatch.setattr(trees, "zip", lambda table, values, strict: zip(table, Watched(values), strict=strict), raising=False)
    model.embed(fresh)
    assert model._values is not None and model._values.any()


def test_a_loaded_model_uses_as_many_threads_as_torch(tmp_path):
    fitted("trees").save(tmp_path / "model")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        config = json.loads(catalogue.load(tmp_path / "model").trees.save_config())
    finally:
        torch.set_num_threads(before)
    assert config["learner"]["generic_param"]["nthread"] == "1"


def test_a_place_is_what_each_run_of_trees_adds():
    model, fresh = fitted("trees", FitSettings(epochs=8)), SAMPLES["trees"](1)
    rows, _ = TreesModel.rows(fresh)
    runs = pairwise(np.linspace(0, 80, 33).astype(int))
    added = [model.trees.inplace_predict(rows[:, model.columns], iteration_range=run, predict_type="margin") for run in runs]
    np.testing.assert_allclose(model.embed(fresh), np.stack(added, axis=1), atol=1e-6)
    model.fit(SAMPLES["trees"](2))  # grown on: the new trees' leaves are others
    np.testing.assert_allclose(model.embed(fresh).sum(1), model.predict(fresh), atol=1e-4)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_ranking_is_learned(name):
    model, fresh = fitted(name, FitSettings(epochs=12)), SAMPLES[name](1)
    assert ranked_right(model.predict(fresh), fresh) > 0.75
    assert model.report.losses[-1] < 0.3 * model.report.losses[0]


def test_what_a_model_reads():
    assert [catalogue.reads(name) for name in ("xgboost", "tenset-mlp", "trees", "tlp", "random")] == [
        "per-store features", "per-store features", "tokens", "tokens", "tokens",
    ]  # fmt: skip


def test_a_programs_score_is_the_sum_over_its_rows():
    model, data = fitted(), statement_samples(1)
    single = ((data.features[:, n : n + 1], (data.lengths > n).astype(np.int32)) for n in range(4))
    alone = np.stack([model.predict(replace(data, features=rows, lengths=there)) for rows, there in single])
    np.testing.assert_allclose(alone.sum(0), model.predict(data), atol=1e-5)
    assert not alone[2][data.lengths <= 2].any()  # no row, no score


def test_programs_that_could_not_be_lowered():
    data = statement_samples()
    data.lengths[::5] = 0
    model = XgboostModel(SETTINGS)
    model.fit(data)
    assert not model.predict(data)[::5].any() and ranked_right(model.predict(data), data) > 0.6


def test_the_row_of_a_program_keeps_its_innermost_levels_in_place():
    rows, owner = TreesModel.rows(token_samples())
    data, width = token_samples(), layout.WIDTH
    assert owner.tolist() == list(range(192)) and len(rows) == 192
    for program in (0, 1, 2, 3):
        length = data.lengths[program]
        found = rows[program, : (2 + LAST) * width].reshape(2 + LAST, width)
        np.testing.assert_array_equal(found[:2], data.features[program, :2])
        np.testing.assert_array_equal(found[2 : 2 + length], data.features[program, :length][::-1])
        assert not found[2 + length :].any()


def test_same_seed_same_trees_other_seed_other_trees():
    trees = [bytes(fitted(settings=replace(SETTINGS, seed=seed)).trees.save_raw("ubj")) for seed in (1, 1, 2)]
    assert trees[0] == trees[1] != trees[2]


def test_a_second_call_grows_on(tmp_path):
    fitted().save(tmp_path / "model")
    model, data = catalogue.load(tmp_path / "model"), statement_samples(5)
    before = model.predict(data)
    model.fit(data)
    assert model.trees.num_boosted_rounds() == 2 * 3 * ROUNDS
    grown = model.trees
    model.trees = grown[: 3 * ROUNDS]
    np.testing.assert_array_equal(model.predict(data), before)
    model.trees = grown
    assert ranked_right(model.predict(data), data) > ranked_right(before, data)


def test_validation_keeps_the_trees_of_the_best_epoch():
    heard = []
    valid = replace(statement_samples(3), latencies_s=statement_samples(4).latencies_s)  # noise: soon overfitted
    settings = replace(SETTINGS, epochs=8)
    model = fitted(settings=settings, valid=valid, on_epoch=lambda *facts: heard.append(facts))
    losses = [metrics["valid_loss"] for _, _, metrics in heard]
    assert [epoch for epoch, _, _ in heard] == list(range(1, 9)) and model.report.kept_epoch == 1 + np.argmin(losses)
    assert model.report.kept_epoch < 8 and model.trees.num_boosted_rounds() == model.report.kept_epoch * ROUNDS
    assert model.report.losses == tuple(loss for _, loss, _ in heard)


def test_large_tasks_are_ranked_in_parts():
    data, settings = statement_samples(tasks=2, programs=100), FitSettings(epochs=12, batch_size=16)
    model = XgboostModel(settings)
    model.fit(data)
    assert model.report.tasks == 2 and ranked_right(model.predict(data), data) > 0.85


def test_lone_programs_are_left_alone():
    data = statement_samples()
    model = XgboostModel(SETTINGS)
    model.fit(data.take(np.r_[0:24, 24, 48:192]))
    assert (model.report.tasks, model.report.programs) == (7, 168)


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda s: replace(s, features=s.features[..., :48]), "reads rows of 172 features, not 48"),
        (lambda s: replace(s, features=np.where(s.tasks[:, None, None] == 3, np.nan, s.features)), "'task-3'.*not finite"),
        (lambda s: replace(s, latencies_s=-s.latencies_s), "'task-0'.*latency"),
        (lambda s: replace(s, features=np.ones_like(s.features)), "cannot tell the training programs apart"),
        (lambda s: replace(s, lengths=np.zeros_like(s.lengths)), "cannot tell the training programs apart"),
        (lambda s: s.take(np.arange(0)), "none of the 0 tasks"),
    ],
)
def test_samples_that_teach_nothing(spoil, message):
    with pytest.raises(DataError, match=message):
        XgboostModel(SETTINGS).fit(spoil(statement_samples()))


def test_before_fitting(tmp_path):
    for call in (XgboostModel().predict, XgboostModel().embed):
        with pytest.raises(UsageError, match="has not learned anything"):
            call(statement_samples())
    with pytest.raises(UsageError, match="nothing to save"):
        XgboostModel().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_predicting_nothing_gives_nothing():
    model, nothing = fitted(), statement_samples().take(np.arange(0))
    assert model.predict(nothing).shape == (0,) and model.embed(nothing).shape == (0, 32)


@pytest.mark.parametrize("size", [1, 100, -1])
def test_damaged_trees_are_named_and_never_read(tmp_path, size, monkeypatch):
    """XGBoost takes lengths from the bytes that it is given, and may ask for all memory there is."""
    fitted().save(tmp_path / "model")
    weights = load_file(tmp_path / "model" / "weights.safetensors")
    save_file({**weights, "trees": weights["trees"][:size].copy()}, tmp_path / "model" / "weights.safetensors")
    monkeypatch.setattr(xgboost.Booster, "load_model", lambda *_: pytest.fail("damaged bytes were read"))
    with pytest.raises(DataError, match="weights.safetensors is damaged"):
        catalogue.load(tmp_path / "model")


def test_a_folder_of_another_class_is_refused(tmp_path):
    fitted().save(tmp_path / "model")
    with pytest.raises(DataError, match="holds a xgboost model, not a trees model"):
        TreesModel.load(tmp_path / "model")

"""The torch peers TLP, MTL-TLP and TenSet-MLP: sizes, invariances, what each reads and learns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic import FEATURES, ranking_problem, top1

from tcl_core.errors import DataError, UsageError
from tcl_core.features.batches import Samples, concatenate
from tcl_core.learning.batches_by_task import make_batch, usable_tasks
from tcl_core.learning.fit import FitSettings
from tcl_core.learning.losses import lambda_rank
from tcl_core.models import catalogue, mtl_tlp
from tcl_core.models.cost_model import CostModel
from tcl_core.models.mamba import MambaNetwork
from tcl_core.models.mtl_tlp import MtlTlpModel, MtlTlpNetwork, PlatformLoss, side_by_side
from tcl_core.models.tenset_mlp import TensetMlpModel, TensetNetwork
from tcl_core.models.tlp import TlpModel, TlpNetwork, TlpTrunk

SETTINGS = FitSettings(epochs=2, batch_size=32, seed=3)
NAMES = ["tlp", "mtl-tlp", "tenset-mlp"]


def parameters(network: torch.nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def seeded(network_class, **arguments):
    torch.manual_seed(0)
    return network_class(**arguments)


def programs(batch: int = 5, length: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    tokens, lengths = torch.randn(batch, length, 6, generator=draw), torch.tensor([7, 2, 4, 1, 6])
    return tokens * (torch.arange(length) < lengths[:, None])[..., None], lengths


def test_sizes_at_the_input_widths_of_the_papers():
    assert parameters(TlpNetwork(22)) == 676_161
    assert parameters(TensetNetwork(174)) == 242_433
    assert parameters(MambaNetwork(22)) == 92_097
    assert parameters(TensetNetwork(172)) == 241_921  # TVM's own features
    assert parameters(MtlTlpNetwork(22, platforms=3)) == 676_161 + 2 * 107_009


@pytest.mark.parametrize("name", NAMES)
def test_contract_and_round_trip(name, tmp_path):
    train, valid, fresh = (ranking_problem(seed=seed, holds=catalogue.reads(name)) for seed in range(3))
    model = catalogue.create(name, SETTINGS)
    assert isinstance(model, CostModel) and model.name == name
    model.fit(train, valid)
    scores = model.predict(fresh)
    assert scores.shape == (96,) and scores.dtype == np.float32 and np.ptp(scores) > 0
    assert model.embed(fresh).shape == (96, model.network.EMBEDDING)
    model.save(tmp_path / "model")
    loaded = catalogue.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(fresh), scores)
    loaded.fit(train)
    assert not np.array_equal(loaded.predict(fresh), scores)


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_those_of_the_public_code(name):
    settings = catalogue.create(name).settings
    assert (settings.learning_rate, settings.weight_decay, settings.clip_norm) == (7e-4, 1e-6, 0.5)
    assert settings.batch_size == (512 if name == "tenset-mlp" else 1024)


@pytest.mark.parametrize("name", NAMES)
def test_a_ranking_is_learned(name):
    model = catalogue.create(name, FitSettings(epochs=12, batch_size=64))
    model.fit(ranking_problem(tasks=10, holds=model.reads))
    fresh = ranking_problem(seed=1, tasks=20, holds=model.reads)
    assert top1(model.predict(fresh), fresh) > 0.75  # at random: below 0.5


@pytest.mark.parametrize("network_class", [TlpNetwork, MtlTlpNetwork, TensetNetwork])
class TestScores:
    def test_padding_and_the_batch_change_nothing(self, network_class):
        network, (tokens, lengths) = seeded(network_class, features=6), programs()
        scores = network(tokens, lengths)
        longer = torch.nn.functional.pad(tokens, (0, 0, 0, 4), value=3.0)
        torch.testing.assert_close(network(longer, lengths), scores, rtol=1e-4, atol=1e-6)
        for program in range(len(tokens)):
            one = slice(program, program + 1)
            torch.testing.assert_close(network(tokens[one], lengths[one]), scores[one], rtol=1e-4, atol=1e-6)

    def test_every_row_in_use_matters_and_their_order_does_not(self, network_class):
        network, (tokens, lengths) = seeded(network_class, features=6), programs()
        scores = network(tokens, lengths)
        for row in range(int(lengths[2])):
            changed = tokens.clone()
            changed[2, row] += 1.0
            moved = (network(changed, lengths) - scores).abs()
            assert moved[2] > 1e-6 and moved[[0, 1, 3, 4]].max() < 1e-6
        turned = tokens.clone()
        turned[2, :4] = tokens[2, :4].flip(0)
        torch.testing.assert_close(network(turned, lengths), scores, rtol=1e-4, atol=1e-6)

    def test_the_score_is_linear_in_the_embedding(self, network_class):
        network, (tokens, lengths) = seeded(network_class, features=6), programs()
        last = [p for name, p in network.named_parameters() if "idle" not in name][-2:]
        bias = lengths * last[1] if network_class is not TensetNetwork else last[1]
        expected = network.embed(tokens, lengths) @ last[0][0] + bias
        torch.testing.assert_close(network(tokens, lengths), expected, rtol=1e-4, atol=1e-5)


def test_attention_is_that_of_torch():
    trunk = seeded(TlpTrunk, features=6)
    theirs = torch.nn.MultiheadAttention(256, 8, batch_first=True)
    theirs.in_proj_weight, theirs.in_proj_bias = trunk.in_proj.weight, trunk.in_proj.bias
    theirs.out_proj = trunk.out_proj
    x, used = torch.randn(3, 5, 256), torch.arange(5) < torch.tensor([5, 1, 3])[:, None]
    expected = theirs(x, x, x, key_padding_mask=~used)[0]
    torch.testing.assert_close(trunk.attention(x, used)[used], expected[used], rtol=1e-4, atol=1e-5)


# --- TenSet-MLP ---


def test_the_scale_of_a_feature_is_that_of_the_first_training_set():
    train, fresh = (ranking_problem(seed=seed, holds="per-store features") for seed in range(2))
    units = np.array([1e3, 1.0, 1e-3, 1.0, 1.0, 0.0], dtype=np.float32)
    model, scaled = TensetMlpModel(SETTINGS), TensetMlpModel(SETTINGS)
    model.fit(replace(train, features=train.features * (units > 0)))
    scaled.fit(replace(train, features=train.features * units))
    largest = model.network.largest.numpy()
    np.testing.assert_allclose(largest[:5], np.abs(train.features[..., :5]).max((0, 1)))
    assert largest[5] == 1.0  # a feature that is always 0
    np.testing.assert_allclose(
        scaled.predict(replace(fresh, features=fresh.features * units)),
        model.predict(replace(fresh, features=fresh.features * (units > 0))), rtol=1e-2, atol=1e-3,
    )  # fmt: skip
    scaled.fit(fresh)
    np.testing.assert_array_equal(scaled.network.largest.numpy()[1:3], largest[1:3] * units[1:3])


def test_a_program_without_statements_gets_a_score():
    model, data = TensetMlpModel(SETTINGS), ranking_problem(holds="per-store features")
    data.lengths[3] = 0
    model.fit(data)
    assert np.isfinite(model.predict(data)).all()
    np.testing.assert_allclose(np.ptp(model.predict(data.take(np.array([3, 3])))), 0.0, atol=1e-6)


# --- MTL-TLP ---


def test_platforms_lie_side_by_side():
    few, many = ranking_problem(tasks=2, programs=3), ranking_problem(tasks=4, programs=2, length=10)
    both = side_by_side([few, many])
    assert both.tasks.tolist() == [0] * 3 + [1] * 3 + [4] * 2 + [5] * 2 + [6] * 2 + [7] * 2
    np.testing.assert_array_equal(both.scores, np.concatenate([few.scores, many.scores]))
    assert [both.task_name(t) for t in (1, 3, 5)] == ["task-1", "task 3", "task-1"]


def test_the_loss_is_the_sum_of_the_heads_and_each_learns_its_own_platform():
    target, source = ranking_problem(tasks=2, programs=4), ranking_problem(seed=1, tasks=3, programs=4)
    both = side_by_side([target, source])
    batch = make_batch(both, both.scores, [np.arange(4, 8), np.arange(8, 12), np.arange(0, 4), np.arange(16, 20)])
    network = seeded(MtlTlpNetwork, features=FEATURES, platforms=3)
    expected = 0.0
    for head, samples, tasks in ((0, target, (1, 0)), (1, source, (0, 2))):
        losses = []
        for task in tasks:
            rows = np.flatnonzero(samples.tasks == task)
            lengths = torch.from_numpy(samples.lengths[rows]).long()
            x = network.trunk(torch.from_numpy(samples.features[rows]), lengths)
            labels = torch.from_numpy(samples.scores[rows])[None]
            scores = network.heads[head](x, lengths)[None]
            losses.append(lambda_rank(scores, labels, torch.ones(1, 4, dtype=torch.bool)))
        expected = expected + torch.cat(losses).mean()
    loss = PlatformLoss(tasks=3)(network, batch)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    moved = [any(p.grad is not None and p.grad.abs().max() > 0 for p in head.parameters()) for head in network.heads]
    assert moved == [True, True, False]  # nothing of the third platform is in the batch


def test_one_large_task_does_not_pad_the_others(monkeypatch):
    """Neither its own head's nor another's."""
    large, small = ranking_problem(tasks=1, programs=64), ranking_problem(seed=1, tasks=40, programs=2)
    target = concatenate([large, replace(small, tasks=small.tasks + np.int32(1), task_names=())])
    both = side_by_side([target, ranking_problem(seed=2, tasks=2, programs=4)])
    pairs = []
    monkeypatch.setattr(mtl_tlp, "lambda_rank", lambda s, *rest: pairs.append(s.numel() * s.shape[1]) or lambda_rank(s, *rest))
    network = seeded(MtlTlpNetwork, features=FEATURES, platforms=2)
    loss = PlatformLoss(tasks=41)(network, make_batch(both, both.scores, usable_tasks(both)))
    assert torch.isfinite(loss) and pairs == [40 * 2**2, 64**2, 2 * 4**2]


def test_sources_help_where_the_target_has_few_labels():
    target = ranking_problem(seed=7, tasks=2, programs=4, shift=0.3)
    sources = [ranking_problem(seed=8, tasks=10), ranking_problem(seed=9, tasks=10, shift=0.15)]
    fresh = ranking_problem(seed=10, tasks=30, shift=0.3)
    settings = FitSettings(epochs=12, batch_size=64)
    alone, taught = TlpModel(settings), MtlTlpModel(settings)
    alone.fit(target)
    taught.fit(target, sources=sources)
    assert taught.report.programs == 8 + 160 + 160 and taught.report.tasks == 22
    assert top1(taught.predict(fresh), fresh) > top1(alone.predict(fresh), fresh) + 0.1


def test_platforms_survive_saving_and_their_number_is_fixed(tmp_path):
    target, source = ranking_problem(tasks=2), ranking_problem(seed=1)
    model = MtlTlpModel(SETTINGS)
    model.fit(target, ranking_problem(seed=2, tasks=2), sources=[source])
    model.save(tmp_path / "model")
    loaded = catalogue.load(tmp_path / "model")
    assert len(loaded.network.heads) == 2
    np.testing.assert_array_equal(loaded.predict(source), model.predict(source))
    loaded.fit(target, sources=[source])
    with pytest.raises(UsageError, match="learned 1 sources, not 2"):
        loaded.fit(target, sources=[source, source])
    source_head = loaded.network.heads[1].layers[0].weight.clone()
    loaded.fit(target)
    assert torch.equal(loaded.network.heads[1].layers[0].weight, source_head)


def test_sources_of_another_width_are_refused():
    target = ranking_problem(tasks=2)
    narrow = Samples(target.features[..., :3], target.lengths, target.tasks, target.latencies_s)
    with pytest.raises(DataError, match="reads tokens of 6 features, not of 3"):
        MtlTlpModel(SETTINGS).fit(target, sources=[narrow])

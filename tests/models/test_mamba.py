"""Shapes, parameter counts and invariances of the two Mamba networks."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tcl_core.chain.ckd import DistillSettings, start_column
from tcl_core.features import layout
from tcl_core.features.batches import Samples
from tcl_core.learning.fit import FitSettings
from tcl_core.models.lateral_mamba import LateralMamba
from tcl_core.models.mamba import MambaModel, MambaNetwork, Standardise, TokenBatch, causal_convolution


def parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def programs(batch: int = 6, length: int = 9, features: int = 5, distinct: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    vocabulary = torch.randn(distinct, features, generator=draw)
    tokens = vocabulary[torch.randint(0, distinct, (batch, length), generator=draw)]
    lengths = torch.randint(2, length + 1, (batch,), generator=draw)
    return tokens * (torch.arange(length) < lengths[:, None])[..., None], lengths


def seeded(network_class=MambaNetwork, seed: int = 0, **arguments):
    torch.manual_seed(seed)
    return network_class(**arguments)


def lateral(features: int = 5, last: bool = False) -> LateralMamba:
    network = LateralMamba(seeded(features=features, last=last, seed=1), seeded(features=features, last=last, seed=2), adapter_width=32)
    for adapter in network.adapters:
        torch.nn.init.normal_(adapter.alpha)
    return network


def test_parameter_counts():
    column = MambaNetwork(22)
    assert parameters(column) == 92_097
    both = LateralMamba(column, copy.deepcopy(column))
    assert parameters(both.adapters) == 33_473
    assert parameters(both) == 2 * 92_097 + 33_473 == 217_667


@pytest.mark.parametrize(
    "network",
    [seeded(features=5), lateral(), seeded(features=5, last=True), lateral(last=True)],
    ids=["mamba", "lateral-mamba", "mamba-last", "lateral-mamba-last"],
)
class TestScores:
    def test_padding_changes_nothing(self, network):
        tokens, lengths = programs()
        longer = F.pad(tokens, (0, 0, 0, 4), value=3.0)
        torch.testing.assert_close(network(longer, lengths), network(tokens, lengths))

    def test_other_programs_of_the_batch_change_nothing(self, network):
        tokens, lengths = programs()
        alone = torch.cat([network(tokens[i : i + 1], lengths[i : i + 1]) for i in range(len(tokens))])
        torch.testing.assert_close(alone, network(tokens, lengths))

    def test_every_used_token_and_its_place_matter(self, network):
        tokens, lengths = programs()
        scores = network(tokens, lengths)
        changed = tokens.clone()
        changed[0, lengths[0] - 1] += 1.0
        turned = tokens.clone()
        turned[0, : lengths[0]] = tokens[0, : lengths[0]].flip(0)
        assert (network(changed, lengths) - scores)[0].abs() > 1e-5
        assert (network(turned, lengths) - scores)[0].abs() > 1e-5
        torch.testing.assert_close(network(changed, lengths)[1:], scores[1:])


def test_distinct_tokens_give_the_same_scores_and_gradients_as_all_of_them():
    tokens, lengths = programs()
    network = seeded(features=5)
    few = TokenBatch.of(tokens, lengths)
    everything = TokenBatch(tokens.flatten(0, 1), torch.arange(54).view(6, 9), lengths)
    assert len(few.rows) == 8 and few.index.shape == (6, 9)  # seven tokens and the padding
    assert torch.equal(few.rows[few.index], tokens)
    found, expected = [], []
    for batch, results in ((few, found), (everything, expected)):
        score = network.activations(batch)[-1]
        results += [score, *torch.autograd.grad(score.square().sum(), list(network.parameters()))]
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_colliding_hashes_are_harmless(monkeypatch):
    tokens, lengths = programs()
    monkeypatch.setattr("tcl_core.models.mamba._hash_rows", lambda rows: torch.zeros(len(rows), dtype=torch.int64))
    batch = TokenBatch.of(tokens, lengths)
    assert torch.equal(batch.rows[batch.index], tokens)


def test_causal_convolution_equals_conv1d():
    layer = seeded(features=5).block.conv
    x = torch.randn(3, 11, 128)
    expected = layer(x.transpose(1, 2))[..., :11].transpose(1, 2)
    torch.testing.assert_close(causal_convolution(x, layer.weight[:, 0], layer.bias), expected)


def test_activation_widths():
    tokens, lengths = programs()
    activations = seeded(features=5).activations(TokenBatch.of(tokens, lengths))
    assert [h.shape[-1] for h in activations] == list(MambaNetwork.WIDTHS)
    assert all(h.shape == (8, h.shape[-1]) for h in activations[:3])
    assert all(h.shape == (6, 9, h.shape[-1]) for h in activations[3:])


def test_closed_adapters_leave_the_column_alone_and_open_ones_do_not():
    column, base = seeded(features=5, seed=1), seeded(features=5, seed=2)
    tokens, lengths = programs()
    network = LateralMamba(column, base)
    torch.testing.assert_close(network(tokens, lengths), column(tokens, lengths))
    for number, adapter in enumerate(network.adapters):
        with torch.no_grad():
            adapter.alpha.fill_(1.0)
        assert (network(tokens, lengths) - column(tokens, lengths)).abs().max() > 1e-4, f"adapter {number} is deaf"
        with torch.no_grad():
            adapter.alpha.zero_()


def test_second_layer_follows_the_lateral_formula():
    """h_2 = act(W_2 h_1 + alpha_2 * (U_2 act(V_2 hKB_1 + c_2)) + b_2)."""
    network = lateral()
    batch = TokenBatch.of(*programs())
    base = network.base.activations(batch)
    h = network.column.activations(batch, network.lateral(base))
    W, adapter = network.column.encoder[1], network.adapters[0]
    inner = torch.relu(base[0] @ adapter.V.weight.T + adapter.V.bias) @ adapter.U.weight.T
    torch.testing.assert_close(h[1], torch.relu(h[0] @ W.weight.T + adapter.alpha * inner + W.bias))


def test_the_base_gets_no_gradient():
    network = lateral()
    network(*programs()).sum().backward()
    assert all(p.grad is None for p in network.base.parameters())
    assert all(p.grad is not None for p in [*network.column.parameters(), *network.adapters.parameters()])


def test_the_last_tokens_score_is_the_last_of_those_that_are_summed():
    summed, last = seeded(features=5), seeded(features=5, last=True)
    tokens, lengths = programs()
    batch = TokenBatch.of(tokens, lengths)
    scores = summed.activations(batch)[-1][..., 0]
    torch.testing.assert_close(summed(tokens, lengths), (scores * batch.mask).sum(1))
    torch.testing.assert_close(last(tokens, lengths), scores[torch.arange(len(tokens)), lengths - 1])


class TestStandardise:
    """Two kinds of token, of three numbers each."""

    rows = torch.tensor([[1, 0, 1.0, 5.0, 7.0], [1, 0, 3.0, 5.0, 7.0], [0, 1, 100.0, 0.0, 2.0], [0, 1, 300.0, 4.0, 2.0]])

    def learned(self, open_kinds=()):
        standardise = Standardise(5, 2)
        padded = torch.cat([self.rows[None], torch.full((1, 4, 5), 9.0)], dim=1)
        standardise.learn(padded.numpy(), np.array([4]), open_kinds)
        return standardise

    def test_numbers_are_standard_within_their_kind(self):
        wanted = [[1, 0, -1, 0, 0], [1, 0, 1, 0, 0], [0, 1, -1, -1, 0], [0, 1, 1, 1, 0]]
        assert self.learned()(self.rows).tolist() == wanted

    def test_what_never_varied_is_left_out_unless_later_data_may_vary_it(self):
        other = torch.tensor([[1, 0, 2.0, 6.5, 7.0]])
        assert self.learned()(other).tolist() == [[1, 0, 0, 0, 0]]
        assert self.learned(open_kinds=[0])(other).tolist() == [[1, 0, 0, 1.5, 0]]

    def test_far_beyond_the_data_it_is_bounded(self):
        assert self.learned()(torch.tensor([[1, 0, 1e6, 0.0, 0.0]])).tolist() == [[1, 0, 5, 0, 0]]


def token_samples():
    draw = np.random.default_rng(0)
    tokens = np.zeros((12, 3, layout.WIDTH), np.float32)
    tokens[:, 0, layout.KINDS.index("hardware")] = tokens[:, 1:, layout.KINDS.index("level")] = 1.0
    tokens[:, 0, len(layout.KINDS) :] = 14.0
    tokens[:, 1:, len(layout.KINDS) :] = draw.uniform(3, 30, (12, 2, layout.NUMBERS))
    return Samples(tokens, np.full(12, 3, np.int32), np.repeat(np.arange(3, dtype=np.int32), 4), draw.uniform(1, 2, 12))


def test_the_model_takes_its_scale_from_the_first_data_and_keeps_it(tmp_path):
    model, samples = MambaModel(FitSettings(epochs=1)), token_samples()
    model.fit(samples)
    scale = copy.deepcopy(model.network.standardise.state_dict())
    level, hardware = layout.KINDS.index("level"), layout.KINDS.index("hardware")
    numbers = samples.features[:, 1:, len(layout.KINDS) :].reshape(-1, layout.NUMBERS)
    np.testing.assert_allclose(scale["mean"][level], numbers.mean(0), rtol=1e-5)
    assert scale["scale"][hardware].unique().tolist() == [1.0]  # another platform's differs
    model.fit(dataclasses.replace(samples, features=2 * samples.features))
    assert all(torch.equal(value, scale[name]) for name, value in model.network.standardise.state_dict().items())
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(MambaModel.load(tmp_path / "model").predict(samples), model.predict(samples))


@pytest.mark.parametrize("start", ["knowledge_base", "fresh"])
def test_a_column_has_the_scale_of_its_knowledge_base(start):
    model = MambaModel(FitSettings(epochs=1))
    model.fit(token_samples())
    column = start_column(model.network, DistillSettings(column_start=start)).network.column
    for name, value in model.network.standardise.state_dict().items():
        assert torch.equal(column.standardise.state_dict()[name], value)

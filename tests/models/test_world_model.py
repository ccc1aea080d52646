"""The world model: its losses by hand, its dynamics on real states, and the contract of a cost model."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tcl_core.errors import DataError, UsageError
from tcl_core.evaluation.metrics import spearman
from tcl_core.features.batches import Samples
from tcl_core.features.encode import Encoder
from tcl_core.features.states import STATE_WIDTH, Trajectory, with_states
from tcl_core.features.layout import KINDS, WIDTH
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel
from tcl_core.models.world_dynamics import LATENT, Dynamics, StateEncoder, contrastive_loss, transition_loss
from tcl_core.models.trees import ROUNDS
from tcl_core.models.world_model import WorldModel
from tcl_core.models.world_states import RealStates
from tcl_core.params import Chain, load_params
from tcl_core.platforms import Hardware
from tcl_core.stages.baselines import train_baseline
from tcl_core.platforms import save_hardware
from tcl_core.stages.workspace import Workspace
from tcl_core.trained import Trained
from tests.shipped import SHIPPED

HARDWARE = (2.0,) * 11
SETTINGS = FitSettings(epochs=40, learning_rate=2e-3, seed=3)
TRAINED = 16  # programs of each task; as many again are held out


# --- losses ---


def test_transition_loss_by_hand():
    """On a line: each state's hard negative is the nearest of its own task that is not the same state."""
    real = torch.tensor([[0.0], [1.0], [1.0], [3.0], [0.1]])
    predicted = torch.tensor([[0.5], [1.0], [1.2], [3.0], [1.1]])
    names, tasks = torch.tensor([0, 1, 1, 2, 3]), torch.tensor([0, 0, 0, 0, 1])
    errors = np.array([0.25, 0.0, 0.04, 0.0, 1.0])
    to_negative = np.array([0.25, 1.0, 1.44, 4.0, np.inf])  # the last has no other state in its task
    wanted = 0.6 * errors + 0.4 * np.maximum(0, errors - to_negative + 0.3)
    found = transition_loss(predicted, real, names, tasks, attraction=0.6, margin=0.3)
    assert found.item() == pytest.approx(wanted.mean(), rel=1e-6)


def test_contrastive_loss_by_hand():
    """Without corruption, four orthogonal states: -log(e^(1/T) / (e^(1/T) + 3))."""
    encoder = SimpleNamespace(encode=lambda states: states)
    found = contrastive_loss(encoder, torch.eye(4), torch.Generator(), corrupted=0.0, temperature=0.5)
    assert found.item() == pytest.approx(np.log(1 + 3 * np.exp(-2)), rel=1e-6)


def test_a_corrupted_view_takes_its_numbers_from_other_states():
    states = torch.arange(12.0).reshape(4, 3) + torch.tensor([0.0, 100.0, 200.0])
    seen = []
    encoder = SimpleNamespace(encode=lambda s: seen.append(s) or s)
    contrastive_loss(encoder, states, torch.Generator().manual_seed(1), corrupted=0.5)
    original, views = seen
    assert torch.equal(original, states) and not torch.equal(views, states)
    assert all(set(views[:, column].tolist()) <= set(states[:, column].tolist()) for column in range(3))


def test_states_are_standardised_and_what_never_varies_does_no_harm():
    torch.manual_seed(0)
    states = torch.randn(50, 3) * torch.tensor([1.0, 100.0, 0.0]) + torch.tensor([0.0, 5.0, 7.0])
    encoder = StateEncoder(3)
    encoder.standardise(states)
    scaled = (states - encoder.mean) / encoder.scale
    torch.testing.assert_close(scaled[:, :2].std(0), torch.ones(2))
    assert not scaled[:, 2].any()
    torch.testing.assert_close(encoder(states[:, None], torch.ones(50)).norm(dim=1), torch.ones(50))


# --- dynamics ---


def program(*kinds: str, length: int = 7) -> torch.Tensor:
    """(1, length, F): rows of these kinds with numbers of their own, then padding."""
    tokens = torch.zeros(1, length, WIDTH)
    for place, kind in enumerate(kinds):
        tokens[0, place, KINDS.index(kind)] = 1.0
        tokens[0, place, len(KINDS)] = len(kind)
    return tokens


def end_of(*kinds: str) -> torch.Tensor:
    torch.manual_seed(0)
    return Dynamics(WIDTH)(program(*kinds), torch.tensor([len(kinds)]))


@pytest.fixture
def dynamics() -> Dynamics:
    torch.manual_seed(0)
    return Dynamics(WIDTH)


def test_one_step_per_action(dynamics):
    tokens = torch.cat([program("hardware", "workload", "Split", "Reorder", "level"), program("hardware", "workload")])
    states, counts = dynamics.roll_out(tokens, torch.tensor([5, 2]))
    assert states.shape == (2, 3, LATENT) and counts.tolist() == [2, 0]
    torch.testing.assert_close(states.norm(dim=2), torch.ones(2, 3))
    torch.testing.assert_close(states[1, 0], states[1, 2])
    torch.testing.assert_close(states[0, 0], states[1, 0])
    assert (states[0, 0] - states[0, 1]).norm() > 1e-2 and (states[0, 1] - states[0, 2]).norm() > 1e-2
    hidden, split = dynamics.first(tokens[:1, 1]), dynamics.action(tokens[:1, 2])
    torch.testing.assert_close(states[:1, 0], dynamics.place(hidden))
    torch.testing.assert_close(states[:1, 1], dynamics.place(dynamics.advance(hidden, split)))
    change = dynamics.change(torch.cat([dynamics.norm(hidden), split], dim=1))
    torch.testing.assert_close(dynamics.advance(hidden, split), hidden + change)


def test_only_the_workload_and_the_actions_in_order_make_the_state():
    end = end_of("hardware", "workload", "Split", "Reorder")
    torch.testing.assert_close(end_of("workload", "Split", "Reorder", "level", "level"), end)
    for other in (("workload", "Reorder", "Split"), ("workload", "Split"), ("Split", "Reorder")):
        assert (end_of(*other) - end).norm() > 1e-3


# --- real states ---


@pytest.fixture(scope="module")
def replayed(matmul, conv, tmp_path_factory) -> Samples:
    """Programs of a matmul and a convolution, all with real states; latency falls with the innermost tile."""
    encoder, keys = Encoder([matmul.task, conv.task], [*matmul.rows(), *conv.rows()]), []
    for tiny in (matmul, conv):
        sketch = tiny.sketches[-1]
        decisions = np.unique(tiny.sample(sketch, 4 * TRAINED), axis=0)
        picked = np.random.default_rng(0).permutation(decisions)[: 2 * TRAINED]
        keys += [(tiny.task.key, sketch.index, tuple(d)) for d in picked.tolist()]
    samples = with_states(encoder.encode(keys, HARDWARE), keys, encoder, tmp_path_factory.mktemp("states"))
    inner = np.array([key[2][7] + 0.1 * key[2][3] for key in keys])
    return replace(samples, latencies_s=1e-3 / (1.0 + inner))


@pytest.fixture(scope="module")
def train(replayed) -> Samples:
    return replayed.take(np.arange(len(replayed)) % 2 == 0)


@pytest.fixture(scope="module")
def held_out(replayed) -> Samples:
    return replayed.take(np.arange(len(replayed)) % 2 == 1)


@pytest.fixture(scope="module")
def fitted(train) -> WorldModel:
    model = WorldModel(SETTINGS)
    model.fit(train)
    return model


def real_ends(model: WorldModel, samples: Samples, step: int) -> torch.Tensor:
    """(N, D) where the state encoder puts each program's first (0) or last (-1) real state."""
    states = torch.from_numpy(np.stack([way.states[step] for way in samples.states]))
    with torch.inference_mode():
        return model.network.state_encoder.encode(states)


def test_the_transition_beats_staying_where_one_was(fitted, held_out):
    """On programs it has never seen, the predicted last state is nearer to the real one than the real first state
    is, and nearer than another program's last state of the same task."""
    predicted = torch.from_numpy(fitted.embed(held_out))
    end, start = real_ends(fitted, held_out, -1), real_ends(fitted, held_out, 0)
    error = (predicted - end).square().sum(1).mean()
    copied = (start - end).square().sum(1).mean()
    tasks = torch.from_numpy(held_out.tasks)
    apart = torch.cdist(end, end)[(tasks[:, None] == tasks) & ~torch.eye(len(end), dtype=bool)].square().mean()
    assert error < 0.7 * copied and error < 0.8 * apart, (error, copied, apart)


def test_it_ranks_programs_that_it_has_not_seen(fitted, held_out):
    assert spearman(fitted.predict(held_out), held_out.latencies_s, held_out.tasks) > 0.6


def test_distinct_states_are_kept_once_per_task():
    one, two = np.ones((1, STATE_WIDTH), np.float32), np.full((1, STATE_WIDTH), 2.0, np.float32)
    ways = [
        Trajectory(np.array([0, 2, 5], np.int32), np.concatenate([one, two, two])),
        None,
        Trajectory(np.array([0], np.int32), two),
        Trajectory(np.array([0, 4], np.int32), np.concatenate([two, one])),
    ]
    states = np.full(4, None)
    states[:] = ways
    samples = Samples(np.zeros((4, 3, WIDTH)), np.full(4, 3), np.array([0, 0, 0, 1]), np.ones(4), ("a", "b"), states)
    real = RealStates.of(samples)
    assert len(real.samples) == 3 and real.samples.tasks.tolist() == [0, 0, 1]
    assert real.steps.tolist() == [[0, 2, 5], [0, -1, -1], [0, 4, -1]]
    kept = sorted(zip(real.tasks.tolist(), real.distinct[:, 0].tolist(), strict=True))
    assert kept == [(0, 1), (0, 2), (1, 1), (1, 2)]
    for way, steps, numbers in zip([ways[0], ways[2], ways[3]], real.steps, real.numbers, strict=True):
        np.testing.assert_array_equal(real.distinct[numbers[steps >= 0]], way.states)
    as_samples = real.as_samples()
    assert as_samples.features.shape == (4, 1, STATE_WIDTH) and as_samples.task_name(1) == "b"


# --- predicting needs tokens only ---


def test_predicting_calls_no_compiler(fitted, held_out, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("TVM was called")

    fitted.save(tmp_path / "model")
    for name, module in list(sys.modules.items()):
        for function in ("load_tvm", "meta_schedule"):
            if name.startswith("tcl_core.") and hasattr(module, function):
                monkeypatch.setattr(module, function, refuse)
    tokens_only = replace(held_out, states=None)
    loaded = catalogue.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(tokens_only), fitted.predict(held_out))


# --- the contract ---


def test_contract_and_folder(fitted, held_out, tmp_path):
    assert isinstance(fitted, CostModel) and type(catalogue.create("world-model", SETTINGS)) is WorldModel
    fitted.save(tmp_path / "model")
    files = {path.relative_to(tmp_path / "model").as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    both = {"model.json", "weights.safetensors"}
    assert files == both | {f"ranker/{file}" for file in both}
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    assert facts["class"] == "world-model" and facts["training"]["programs"] == 2 * TRAINED
    loaded = catalogue.load(tmp_path / "model")
    scores = fitted.predict(held_out)
    assert scores.shape == (len(held_out),) and scores.dtype == np.float32 and np.ptp(scores) > 0
    np.testing.assert_array_equal(loaded.predict(held_out), scores)
    np.testing.assert_array_equal(loaded.embed(held_out), fitted.embed(held_out))
    assert fitted.embed(held_out).shape == (len(held_out), LATENT)
    assert fitted.predict(held_out.take(np.zeros(len(held_out), bool))).shape == (0,)


def quick(train: Samples, seed: int = 3, epochs: int = 2, **arguments) -> WorldModel:
    model = WorldModel(FitSettings(epochs=epochs, seed=seed))
    model.fit(train, **arguments)
    return model


def test_it_is_saved_over_itself_and_not_into_one_file(fitted, held_out, tmp_path):
    """As each training does that comes after the first; its trees are no part of one file, and are not left behind."""
    for _ in range(2):
        fitted.save(tmp_path / "model")
        Trained(fitted).save(tmp_path / "kept")
    np.testing.assert_array_equal(catalogue.load(tmp_path / "kept").predict(held_out), fitted.predict(held_out))
    with pytest.raises(UsageError, match="is more than one file can hold; save it as a folder, under a name without .safetensors"):
        Trained(fitted).save(tmp_path / "one.safetensors")
    assert not (tmp_path / "one.safetensors").exists()


def test_the_same_seed_gives_the_same_bytes(train, tmp_path):
    for name, seed in (("first", 3), ("again", 3), ("other", 4)):
        quick(train, seed).save(tmp_path / name)
    for file in ("weights.safetensors", "ranker/weights.safetensors"):
        first, again, other = ((tmp_path / name / file).read_bytes() for name in ("first", "again", "other"))
        assert first == again and first != other


def test_each_epoch_is_heard_of_and_a_second_fit_goes_on(train, held_out):
    heard = []
    model = quick(train, on_epoch=lambda *facts: heard.append(facts))
    assert [facts[0] for facts in heard] == [1, 2] and model.report.losses == tuple(facts[1] for facts in heard)
    model.fit(train)
    assert model.report.losses[0] < heard[0][1]
    assert np.isfinite(model.predict(held_out)).all()


def test_an_interrupted_transition_goes_on_to_the_same_model(train, held_out, tmp_path):
    def stop(epoch, loss, metrics):
        if epoch == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quick(train, epochs=8, on_epoch=stop, checkpoint=tmp_path)
    heard = []
    resumed = quick(train, epochs=8, on_epoch=lambda epoch, loss, metrics: heard.append(epoch), checkpoint=tmp_path)
    assert heard == list(range(1, 9))
    np.testing.assert_array_equal(resumed.predict(held_out), quick(train, epochs=8).predict(held_out))


def test_validation_decides_how_many_trees_are_kept(train, held_out):
    turned = replace(held_out, latencies_s=1e-6 / held_out.latencies_s)
    rounds = [quick(train, valid=valid).ranker.trees.num_boosted_rounds() for valid in (None, turned)]
    assert rounds == [2 * ROUNDS, ROUNDS]


# --- what is refused ---


def test_without_states_nothing_is_trained(train):
    nothing = np.full(len(train), None)
    for samples in (replace(train, states=None), replace(train, states=nothing)):
        model = WorldModel(SETTINGS)
        with pytest.raises(DataError, match=f"none of {len(train)} programs has them; make them with"):
            model.fit(samples)
        assert model.network is None


def test_tokens_of_another_width(train, fitted):
    narrow = replace(train, features=train.features[..., :40])
    with pytest.raises(DataError, match="reads tokens of 48 features, not of 40"):
        WorldModel(SETTINGS).fit(narrow)
    with pytest.raises(DataError, match="reads tokens of 48 features, not of 40"):
        fitted.predict(narrow)


def test_values_that_are_not_finite(train, fitted):
    bad = replace(train, features=train.features.copy())
    bad.features[-1, 0, 20] = np.nan
    for call in (fitted.predict, WorldModel(SETTINGS).fit):
        with pytest.raises(DataError, match="'fused_conv2d_add_relu' has a feature that is not finite"):
            call(bad)


def test_before_fitting(held_out, tmp_path):
    with pytest.raises(UsageError, match="has not learned anything"):
        WorldModel().predict(held_out)
    with pytest.raises(UsageError, match="has not learned anything"):
        WorldModel().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda folder: (folder / "weights.safetensors").unlink(), "weights.safetensors' is missing; train"),
        (lambda folder: (folder / "weights.safetensors").write_bytes(b"nothing"), "weights.safetensors is damaged"),
        (lambda folder: shutil.rmtree(folder), "no model in .*ranker"),
    ],
)
def test_trees_that_cannot_be_read(fitted, tmp_path, damage, message):
    fitted.save(tmp_path / "model")
    damage(tmp_path / "model" / "ranker")
    with pytest.raises(DataError, match=message):
        catalogue.load(tmp_path / "model")


# --- by name ---


def test_it_is_trained_by_name(matmul, tmp_path, monkeypatch):
    """From a platform's records to a model that ranks them; the replayed states stay in the cache."""
    monkeypatch.chdir(tmp_path)
    sketch = matmul.sketches[-1]
    keys = [(matmul.task.key, sketch.index, tuple(d)) for d in matmul.sample(sketch, 6).tolist()]
    records = [SimpleNamespace(key=key) for key in keys]

    class OneTask(Workspace):
        encoder = Encoder([matmul.task], matmul.rows())

        def samples(self, platform: str, kind: str = "records") -> Samples:
            return self.encoder.encode(keys, HARDWARE, np.arange(1.0, 7.0))

    monkeypatch.setattr("tcl_core.store.read_records", lambda folder, remedy=None: records)
    params = load_params(SHIPPED)
    params = replace(params, chain=Chain("a", {}), train=replace(params.train, epochs=2))
    save_hardware(Workspace().records_folder("a"), Hardware(cores=2))
    trained = train_baseline(OneTask(params=params), "world-model")
    assert list(map(str, trained)) == ["trained world-model on 6 programs of a; it lies in data/baselines/world-model/a"]
    model = catalogue.load(tmp_path / "data/baselines/world-model/a")
    assert np.ptp(model.predict(OneTask(params=params).samples("a"))) > 0
    assert [p.name for p in (tmp_path / "data/features/states").iterdir()] == [f"{matmul.task.key}.safetensors"]

"""The contract: what every model of the catalogue does, and how its folder is read back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from threading import Barrier, Event, Thread

import numpy as np
import pytest
import torch
from synthetic import ranking_problem

from tcl_core.checked import read_json, write_json
from tcl_core.errors import DataError, UsageError
from tcl_core.features.batches import Samples
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.files import whole_folder
from tcl_core.models.cost_model import CostModel
from tcl_core.models.mamba import MambaModel
from tcl_core.models.random_scores import RandomScores
from tcl_core.models.torch_model import SEEDING
from tcl_core.models.torch_threads import torch_threads

SETTINGS = FitSettings(epochs=2, batch_size=16, seed=3)


def samples(count: int = 24, length: int = 6, features: int = 4, seed: int = 0) -> Samples:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, length + 1, count).astype(np.int32)
    tokens = draw.normal(size=(count, length, features)).astype(np.float32)
    tokens[np.arange(length) >= lengths[:, None]] = 0.0
    tasks = np.arange(count, dtype=np.int32) % 3
    return Samples(tokens, lengths, tasks, draw.uniform(1e-3, 1e-2, count), ("conv", "dense", "norm"))


def fitted(seed: int = 3) -> MambaModel:
    model = MambaModel(replace(SETTINGS, seed=seed))
    model.fit(samples())
    return model


@pytest.mark.parametrize("name", ["random", "mamba"])
def test_contract_and_round_trip(name, tmp_path):
    model = catalogue.create(name, SETTINGS)
    assert isinstance(model, CostModel) and model.name == name
    model.fit(samples(), samples(seed=1))
    scores = model.predict(samples(seed=2))
    assert scores.shape == (24,) and scores.dtype == np.float32 and np.ptp(scores) > 0
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(catalogue.load(tmp_path / "model").predict(samples(seed=2)), scores)


@pytest.mark.parametrize("count", [0, 1, 100, 1500])
def test_threads_that_predict_side_by_side_give_the_same_scores(count):
    model, many = fitted(), samples(count=count)
    before = torch.get_num_threads()
    try:
        scores = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            scores.append(model.predict(many))
    finally:
        torch.set_num_threads(before)
    for other in scores[1:]:
        np.testing.assert_allclose(other, scores[0], rtol=1e-5, atol=1e-6)
    assert scores[0].shape == (count,) and (count < 2 or np.ptp(scores[0]) > 0)


@pytest.mark.parametrize("each", [1, 2])
def test_threads_side_by_side_have_torch_threads_of_their_own_and_the_others_keep_theirs(each):
    before, found = torch.get_num_threads(), []
    try:
        torch.set_num_threads(3)
        pool, all_there = torch_threads(3, each), Barrier(3)
        inside = list(pool.map(lambda _: (all_there.wait(), torch.get_num_threads())[1], range(3)))
        fresh = Thread(target=lambda: found.append(torch.get_num_threads()))
        fresh.start()
        fresh.join()
        assert inside == [each] * 3 and found == [3] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_saved_folder_holds_no_pickle_and_says_what_it_is(tmp_path):
    fitted().save(tmp_path / "model")
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == [
        "model.json",
        "weights.safetensors",
    ]
    facts = json.loads((tmp_path / "model" / "model.json").read_text())
    assert facts["class"] == "mamba" and facts["arguments"]["features"] == 4
    assert facts["training"]["programs"] == 24 and facts["training"]["tasks"] == 3 and facts["settings"]["seed"] == 3


def test_saving_twice_is_byte_identical_and_replaces(tmp_path):
    fitted().save(tmp_path / "model")
    first = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    fitted().save(tmp_path / "model")
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == first


def test_a_failed_save_keeps_the_former_folder(tmp_path):
    fitted().save(tmp_path / "model")
    with pytest.raises(RuntimeError), whole_folder(tmp_path / "model") as aside:
        (aside / "model.json").write_text("half")
        raise RuntimeError
    assert catalogue.load(tmp_path / "model").name == "mamba"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_model_that_was_set_aside_is_put_back(tmp_path):
    fitted().save(tmp_path / "model")
    (tmp_path / "model").rename(tmp_path / ".model.0123456789ab.old")
    assert catalogue.load(tmp_path / "model").name == "mamba"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_weights_of_another_model_are_noticed(tmp_path):
    for seed in (0, 1):
        fitted(seed).save(tmp_path / str(seed))
    shutil.copy(tmp_path / "0/weights.safetensors", tmp_path / "1/weights.safetensors")
    with pytest.raises(DataError, match="these are not the weights that model.json tells of"):
        catalogue.load(tmp_path / "1")


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'mamba'"):
        catalogue.create("manba")


def break_weights(folder):
    (folder / "weights.safetensors").write_bytes(b"nothing")


def break_arguments(folder):
    facts = read_json(folder / "model.json", "")
    facts["arguments"]["features"] = 5
    write_json(folder / "model.json", facts)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda folder: (folder / "model.json").unlink(), "no model in"),
        (lambda folder: (folder / "model.json").write_text("{"), "damaged"),
        (
            lambda folder: write_json(folder / "model.json", {"format": 99, "class": "mamba", "arguments": {}}),
            "format",
        ),
        (lambda folder: (folder / "weights.safetensors").unlink(), "missing"),
        (break_weights, "damaged"),
        (break_arguments, "another version"),
    ],
)
def test_damaged_folders_are_named(tmp_path, damage, message):
    folder = tmp_path / "model"
    fitted().save(folder)
    damage(folder)
    with pytest.raises(DataError, match=message) as caught:
        catalogue.load(folder)
    assert str(tmp_path) in str(caught.value)


def test_a_folder_of_another_class_is_refused(tmp_path):
    RandomScores(SETTINGS).save(tmp_path / "model")
    with pytest.raises(DataError, match="holds a random model, not a mamba model"):
        MambaModel.load(tmp_path / "model")


def test_predicting_before_fitting_and_with_other_features_is_refused():
    with pytest.raises(UsageError, match="has not learned anything"):
        MambaModel().predict(samples())
    with pytest.raises(DataError, match="the mamba model reads tokens of 4 features, not of 7; they were made by another version"):
        fitted().predict(samples(features=7))


def test_predict_names_the_task_of_a_bad_token():
    bad = samples()
    bad.features[4, 0, 0] = np.nan
    with pytest.raises(DataError, match="'dense'"):
        fitted().predict(bad)


def test_predictions_do_not_depend_on_chunks_or_order(monkeypatch):
    model, data = fitted(), samples()
    whole = model.predict(data)
    monkeypatch.setattr("tcl_core.models.torch_model.CHUNK", 5)
    order = np.random.default_rng(0).permutation(len(data))
    np.testing.assert_allclose(model.predict(data.take(order)), whole[order], rtol=1e-5, atol=1e-5)


def test_predicting_nothing_gives_nothing():
    assert fitted().predict(samples().take(np.arange(0))).shape == (0,)


def test_embeddings_tell_programs_apart_and_carry_the_score():
    model, data = fitted(), samples()
    both = model.predict_and_embed(data)  # of one pass
    np.testing.assert_array_equal(both[0], model.predict(data))
    np.testing.assert_array_equal(both[1], model.embed(data))
    places = model.embed(data)
    assert places.shape == (24, 32) and len(np.unique(places.round(5), axis=0)) == 24
    head = model.network.decoder[2]
    expected = places @ head.weight.detach().numpy()[0] + head.bias.item()
    np.testing.assert_allclose(model.predict(data), expected, rtol=1e-3, atol=1e-4)
    assert RandomScores(SETTINGS).embed(data).shape == (24, 1)


def test_lateral_mamba_needs_a_knowledge_base():
    with pytest.raises(UsageError, match="knowledge base"):
        catalogue.create("lateral-mamba").fit(samples())


def test_a_forked_child_predicts_too(tmp_path):
    """Its parent's threads stay behind, and it would wait for them for ever."""
    data = ranking_problem(tasks=8, programs=64)
    model = MambaModel(FitSettings(epochs=1)).fit(data)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        expected = model.predict(data)
        in_a_forked_child(lambda: np.save(tmp_path / "child.npy", model.predict(data)))
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(np.load(tmp_path / "child.npy"), expected, atol=1e-5)


def test_a_forked_child_seeds_while_a_thread_of_its_parent_does():
    begun, ended = Event(), Event()

    def seed() -> None:
        with SEEDING:
            begun.set()
            ended.wait(120)

    other = Thread(target=seed)
    other.start()
    try:
        assert begun.wait(60)
        in_a_forked_child(SEEDING.__enter__)
    finally:
        ended.set()
        other.join(60)


def in_a_forked_child(work: Callable[[], object]) -> None:
    """Call ``work`` in a forked child; fail if that hangs or raises."""
    pid = os.fork()
    if not pid:  # nothing of pytest's may run here
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    deadline = time.monotonic() + 60
    while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            pytest.fail("it hangs")
        time.sleep(0.05)
    assert ended == (pid, 0)

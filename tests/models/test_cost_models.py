"""The contract: what every model of the catalogue does, and how its folder is read back."""

from __future__ import annotations

import errno
import json
import os
from threading import Barrier, Thread

import numpy as np
import pytest
import torch

from tcl_core.errors import DataError, PlatformError, UsageError
from tcl_core.features.batches import Samples
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue, torch_model
from tcl_core.files import whole_folder
from tcl_core.models.cost_model import CostModel
from tcl_core.models.mamba import MambaModel
from tcl_core.models.random_scores import RandomScores

SETTINGS = FitSettings(epochs=2, batch_size=16, seed=3)


def samples(count: int = 24, length: int = 6, features: int = 4, seed: int = 0) -> Samples:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, length + 1, count).astype(np.int32)
    tokens = draw.normal(size=(count, length, features)).astype(np.float32)
    tokens[np.arange(length) >= lengths[:, None]] = 0.0
    tasks = np.arange(count, dtype=np.int32) % 3
    return Samples(tokens, lengths, tasks, draw.uniform(1e-3, 1e-2, count), ("conv", "dense", "norm"))


def fitted() -> MambaModel:
    model = MambaModel(SETTINGS)
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


def test_a_thread_that_predicts_has_one_torch_thread_and_the_others_keep_theirs():
    before, found = torch.get_num_threads(), []
    try:
        torch.set_num_threads(3)
        pool, all_there = torch_model._threads(3), Barrier(3)
        inside = list(pool.map(lambda _: (all_there.wait(), torch.get_num_threads())[1], range(3)))
        fresh = Thread(target=lambda: found.append(torch.get_num_threads()))
        fresh.start()
        fresh.join()
        assert inside == [1, 1, 1] and found == [3] and torch.get_num_threads() == 3
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
    assert (
        facts["training"]["programs"] == 24
        and facts["training"]["tasks"] == 3
        and facts["settings"]["seed"] == 3
    )


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


def die_at(monkeypatch, call: int) -> None:
    """Make the ``call``-th rename of this process its end: as after kill -9, nothing is cleaned up."""
    renames, rename = [], os.replace

    def replace(source, target):
        renames.append(source)
        if len(renames) == call:
            os._exit(9)
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)


def killed_save(folder, monkeypatch, call: int) -> None:
    """Save into ``folder`` in a child process that dies at its ``call``-th rename."""
    child = os.fork()
    if not child:
        die_at(monkeypatch, call)
        with whole_folder(folder) as aside:
            (aside / "model.json").write_text("new")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("call", [1, 2])
def test_a_save_killed_at_a_rename_leaves_a_model_that_loads(tmp_path, monkeypatch, call):
    fitted().save(tmp_path / "model")
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    killed_save(tmp_path / "model", monkeypatch, call)
    assert (tmp_path / "model").exists() == (call == 1)
    assert catalogue.load(tmp_path / "model").name == "mamba"
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before
    fitted().save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failed_save_after_a_killed_one_gives_the_former_folder_back(tmp_path, monkeypatch):
    fitted().save(tmp_path / "model")
    killed_save(tmp_path / "model", monkeypatch, 2)
    with pytest.raises(RuntimeError), whole_folder(tmp_path / "model"):
        raise RuntimeError
    assert catalogue.load(tmp_path / "model").name == "mamba"


def test_a_failed_last_rename_keeps_the_former_folder(tmp_path, monkeypatch):
    fitted().save(tmp_path / "model")
    rename = os.replace

    def replace(source, target):
        if str(source).endswith(".new"):
            raise OSError(errno.ENOSPC, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(PlatformError, match="no space left"):
        fitted().save(tmp_path / "model")
    assert catalogue.load(tmp_path / "model").name == "mamba"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_another_living_process_writes_is_left_alone(tmp_path):
    foreign = [tmp_path / f".model.{os.getppid()}.new", tmp_path / ".model-2.1.new", tmp_path / ".model.notes"]
    for folder in foreign:
        folder.mkdir()
    fitted().save(tmp_path / "model")
    assert all(folder.exists() for folder in foreign)


def test_every_file_is_on_the_disk_before_the_folder_gets_its_name(tmp_path, monkeypatch):
    synced, rename, sync = [], os.replace, os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (synced.append("renamed"), rename(a, b))[1])
    with whole_folder(tmp_path / "model") as aside:
        (aside / "part").mkdir()
        (aside / "part" / "weights").write_bytes(b"1")
    before = {path.removeprefix(str(aside)) for path in synced[: synced.index("renamed")]}
    assert before == {"", "/part", "/part/weights"} and synced[-1] == str(tmp_path)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'mamba'"):
        catalogue.create("manba")


def break_weights(folder):
    (folder / "weights.safetensors").write_bytes(b"nothing")


def break_arguments(folder):
    path = folder / "model.json"
    path.write_text(path.read_text().replace('"features": 4', '"features": 5'))


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda folder: (folder / "model.json").unlink(), "no model in"),
        (lambda folder: (folder / "model.json").write_text("{"), "damaged"),
        (
            lambda folder: (folder / "model.json").write_text(
                '{"format": 99, "class": "mamba", "arguments": {}}'
            ),
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
    with pytest.raises(DataError, match="reads 4 features per token, but the tokens have 7"):
        fitted().predict(samples(features=7))


def test_predict_names_the_task_of_a_bad_token():
    bad = samples()
    bad.tokens[4, 0, 0] = np.nan
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
    places = model.embed(data)
    assert places.shape == (24, 32) and len(np.unique(places.round(5), axis=0)) == 24
    head = model.network.decoder[2]
    expected = places @ head.weight.detach().numpy()[0] + head.bias.item()
    np.testing.assert_allclose(model.predict(data), expected, rtol=1e-3, atol=1e-4)
    assert RandomScores(SETTINGS).embed(data).shape == (24, 1)


def test_lateral_mamba_needs_a_knowledge_base():
    with pytest.raises(UsageError, match="knowledge base"):
        catalogue.create("lateral-mamba").fit(samples())

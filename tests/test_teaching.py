"""Teaching: what the teacher ensemble's labels are, and that a network learns more from them than from the measured programs alone."""

from __future__ import annotations

import time
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
import torch

from tcl_core import teaching
from tcl_core.errors import DataError
from tcl_core.evaluation.metrics import pairwise_accuracy
from tcl_core.features import layout
from tcl_core.features.batches import Samples, concatenate
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.mamba import MambaModel
from tcl_core.models.trees import BoostedTrees
from tcl_core.teaching import STUDENT, Member, standardised, pseudo_labelled

ONE = (Member("trees", 1, 1.0),)


@pytest.fixture(autouse=True)
def few_trees(monkeypatch):
    monkeypatch.setattr(BoostedTrees.__init__, "__defaults__", (FitSettings(epochs=6),))


def problem(seed: int, tasks: int = 6, programs: int = 24) -> Samples:
    """Programs whose latency follows, not linearly, from numbers of their last token."""
    draw = np.random.default_rng(seed)
    count = tasks * programs
    rows = np.zeros((count, 4, layout.WIDTH), np.float32)
    rows[:, :3, 3], rows[:, 3, 2] = 1.0, 1.0
    x = draw.uniform(0, 4, (count, 6))
    rows[:, 3, len(layout.KINDS) :][:, :6] = x
    latencies_s = 1e-3 * np.exp(np.abs(x[:, 0] - 2) + (x[:, 1] > 1.5) * (x[:, 2] > 2))
    return Samples(rows, np.full(count, 4, np.int32), np.repeat(np.arange(tasks, dtype=np.int32), programs), latencies_s)


def views(samples: Samples) -> dict[str, Samples]:
    return {"tokens": samples}


def test_labels_are_the_teachers_scores_of_all_programs():
    measured, more = problem(0), problem(1, programs=40)
    model = catalogue.create("trees")
    model.settings = replace(model.settings, seed=7)
    model.fit(measured)
    found = pseudo_labelled(views(measured), views(more), seed=7, teachers=ONE)
    assert len(found) == len(measured) + len(more)
    scores = standardised(model.predict(concatenate([measured, more])), found.tasks)
    np.testing.assert_allclose(-np.log(found.latencies_s), scores, atol=1e-5)
    np.testing.assert_array_equal(found.features[: len(measured)], measured.features)


def test_a_teacher_learns_by_its_members_loss():
    measured, more = problem(0), problem(1)
    taught = {loss: pseudo_labelled(views(measured), views(more), 0, (Member("trees", 1, 1.0, loss),)) for loss in ("rank", "pairs")}
    usual = pseudo_labelled(views(measured), views(more), 0, ONE)
    np.testing.assert_array_equal(usual.latencies_s, taught["rank"].latencies_s)
    assert (usual.latencies_s != taught["pairs"].latencies_s).any()


def test_scores_of_models_of_different_scale_count_alike():
    tasks = np.array([0, 0, 1, 1, 1], np.int32)
    scores = np.array([1.0, 3.0, 10.0, 12.0, 11.0])
    found = standardised(scores, tasks)
    np.testing.assert_allclose(found, standardised(50 * scores + 3, tasks), rtol=1e-6)
    np.testing.assert_allclose([found[:2].sum(), found[2:].sum(), found.std()], [0, 0, 1], atol=1e-12)
    assert not standardised(np.ones(5), tasks).any()


def test_members_count_by_their_weight_and_are_told(monkeypatch):
    class Fixed:
        def __init__(self, sign):
            self.sign, self.settings = sign, STUDENT

        def fit(self, samples, on_epoch):
            on_epoch(1, 0.0, {})

        def predict(self, samples):
            return self.sign * samples.features[:, 3, len(layout.KINDS)]

    signs = {"trees": 1.0, "random": -1.0}
    monkeypatch.setattr(teaching.catalogue, "create", lambda name: Fixed(signs[name]))
    measured, more, asked = problem(0), problem(1), []
    found = pseudo_labelled(views(measured), views(more), 0, (Member("trees", 3, 1.0), Member("random", 1, 1.0)), asked.append)
    alone = pseudo_labelled(views(measured), views(more), 0, ONE)
    np.testing.assert_allclose(np.log(found.latencies_s), np.log(alone.latencies_s) / 2, rtol=1e-6)
    assert sorted(asked) == ["random", "trees", "trees", "trees"]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_side_by_side_they_say_what_they_say_one_by_one(two_threads):
    measured, more = problem(0), problem(1)
    both = pseudo_labelled(views(measured), views(more), 0, (Member("trees", 2, 1.0),))
    torch.set_num_threads(1)
    alone = pseudo_labelled(views(measured), views(more), 0, (Member("trees", 2, 1.0),))
    np.testing.assert_allclose(np.log(both.latencies_s), np.log(alone.latencies_s), atol=1e-4)


@pytest.mark.parametrize("order", [1, -1])
def test_one_that_fails_ends_the_others(order, monkeypatch, two_threads):
    """Those before it, too."""
    begun, ended = Event(), Event()

    class Lasting:
        settings = STUDENT

        def fit(self, samples, on_epoch):
            begun.set()
            limit = time.monotonic() + 30
            try:
                while time.monotonic() < limit:
                    on_epoch(1, 0.0, {})
            finally:
                ended.set()

    class Failing:
        settings = STUDENT

        def fit(self, samples, on_epoch):
            assert begun.wait(30)
            raise DataError("nothing to learn")

    kinds = {"trees": Failing, "random": Lasting}
    monkeypatch.setattr(teaching.catalogue, "create", lambda name: kinds[name]())
    with pytest.raises(DataError, match="nothing to learn"):
        pseudo_labelled(views(problem(0)), views(problem(1)), 0, (*ONE, Member("random", 1, 1.0))[::order])
    assert ended.wait(30)


def test_members_that_read_what_is_not_given_are_left_out():
    measured, more = problem(0), problem(1)
    both = pseudo_labelled(views(measured), views(more), 0, (*ONE, Member("xgboost", 2, 1.0)))
    np.testing.assert_array_equal(both.latencies_s, pseudo_labelled(views(measured), views(more), 0, ONE).latencies_s)


def test_a_network_learns_more_with_a_teachers_than_from_the_measured_programs_alone():
    measured, more, test = problem(0, programs=10), problem(1, programs=80), problem(2)
    rank = lambda model: pairwise_accuracy(model.predict(test), test.latencies_s, test.tasks)  # noqa: E731
    student = MambaModel(replace(STUDENT, epochs=8, period=8, batch_size=64))
    student.fit(pseudo_labelled(views(measured), views(more), teachers=ONE))
    alone = MambaModel(replace(STUDENT, epochs=8, period=8, batch_size=64))
    alone.fit(measured)
    assert rank(student) > rank(alone) + 0.04 and rank(student) > 0.7


def test_nothing_to_learn_from_is_said():
    lone = problem(0).take(np.array([0, 24, 48]))
    with pytest.raises(DataError, match="two measured programs"):
        pseudo_labelled(views(lone), views(problem(1)))

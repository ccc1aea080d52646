"""The next platform from what is known: labels on one scale, corrected; earlier platforms rehearsed; one network throughout."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tcl_core.chain import bridge
from tcl_core.chain.bridge import (
    Bridge,
    BridgeSettings,
    _mixed,
    _on_one_scale,
    bridged,
    passes,
    rehearsed,
    score_scale,
    source_seconds,
    teachers_share,
)
from tcl_core.chain.state import ChainState
from tcl_core.errors import DataError, UsageError
from tcl_core.evaluation.metrics import pairwise_accuracy
from tcl_core.features import layout
from tcl_core.features.batches import Samples, concatenate
from tcl_core.features.tokens import hardware_rows
from tcl_core.learning.fit import FitSettings
from tcl_core.models.mamba import MambaModel
from tcl_core.teaching import standardised

TASKS, EACH = 20, 16
FIT = FitSettings(epochs=12, batch_size=64, learning_rate=2e-3, schedule="cosine", period=12, loss="scores")
OLD, NEW = (4.0, 16.0), (4.0, 64.0)
THERE, ELSEWHERE = 20, 25  # columns on which the platforms' latencies depend


def programs(hardware: tuple[float, ...], seed: int = 0) -> Samples:
    """Both platforms like column THERE to be large; the new one minds column ELSEWHERE too."""
    draw = np.random.default_rng(seed)
    found = np.zeros((TASKS * EACH, 4, layout.WIDTH), np.float32)
    found[:, 0] = hardware_rows(hardware, 1)[0]
    found[:, 1:, THERE : ELSEWHERE + 1] = draw.normal(size=(TASKS * EACH, 3, 6))
    cost = -found[:, 3, THERE] + (found[:, 3, ELSEWHERE] if hardware == NEW else 0.0)
    tasks = np.repeat(np.arange(TASKS, dtype=np.int32), EACH)
    return Samples(found, np.full(len(found), 4, np.int32), tasks, 1e-3 * np.exp(cost.astype(np.float64)))


@pytest.fixture(scope="module")
def base() -> MambaModel:
    """It knows the old platform."""
    model = MambaModel(replace(FIT, epochs=30, period=30))
    model.fit(programs(OLD))
    return model


def pairs(model: MambaModel, samples: Samples) -> float:
    return pairwise_accuracy(model.predict(samples), samples.latencies_s, samples.tasks)


def test_few_measurements_carry_the_network_over_and_the_old_platform_is_kept(base):
    new, held_out, old = programs(NEW), programs(NEW, seed=1), programs(OLD, seed=1)
    drawn = np.random.default_rng(2).permutation(len(new.tasks))
    few, rest = new.take(drawn[:80]), new.take(drawn[80:])
    settings = BridgeSettings(replace(FIT, epochs=30, period=30))
    model, labelled = bridged(base, few, rest, settings, earlier=[OLD])
    assert labelled.share > 0
    assert pairs(model, held_out) > pairs(base, held_out) + 0.03
    assert pairs(model, old) > pairs(base, old) - 0.03
    assert model.parameter_count() == base.parameter_count()
    forgetful, _ = bridged(base, few, rest, replace(settings, rehearsal=0.0), earlier=[OLD])
    assert pairs(forgetful, old) < pairs(model, old)


def test_what_is_no_measurement_is_a_sentence(base):
    """And a workload's row in the hardware's place is no hardware."""
    new, settings = programs(NEW), BridgeSettings(replace(FIT, epochs=1))
    for bad in (0.0, np.nan):
        with pytest.raises(DataError, match="has a latency that is not positive; make its records again"):
            bridged(
                base, replace(new, latencies_s=np.where(np.arange(len(new)) == 3, bad, new.latencies_s)), new.take(np.arange(4)), settings
            )
    source_s = np.full(2 * len(new), 1e-3)
    source_s[5] = 0.0
    with pytest.raises(DataError, match="a latency of an earlier platform is not positive"):
        bridged(base, new, new, settings, sources_s=[source_s])
    lacking = new.features.copy()
    lacking[:, 0] = layout.token_row("workload", layout.WORKLOAD.row(), len(new))
    with pytest.raises(DataError, match="these programs have no hardware row"):
        bridged(base, replace(new, features=lacking), new, settings)


def test_nothing_that_only_the_test_knows_is_read(base):
    """Latencies of unlabelled programs, and the network that went in, which stays as it was."""
    new = programs(NEW)
    few, rest = new.take(np.arange(40)), new.take(np.arange(40, 120))
    before = base.predict(rest)
    one, two = (bridged(base, few, replace(rest, latencies_s=latencies), BridgeSettings(replace(FIT, epochs=1)))[0]
                for latencies in (rest.latencies_s, np.full(len(rest), np.inf)))  # fmt: skip
    np.testing.assert_array_equal(one.predict(rest), two.predict(rest))
    np.testing.assert_array_equal(base.predict(rest), before)


def test_an_earlier_platform_tells_of_what_the_last_one_did_not_measure(base, monkeypatch):
    """Both measured what no token shows and the new platform shares, one of half of the programs; in either order."""
    monkeypatch.setattr(MambaModel, "fit", lambda *args, **kwargs: None)
    drawn = np.random.default_rng(2).permutation(TASKS * EACH)
    unseen = np.exp(np.random.default_rng(3).normal(size=len(drawn)))
    new = replace(programs(NEW), latencies_s=programs(NEW).latencies_s * unseen).take(drawn)
    old_s = (programs(OLD).latencies_s * unseen)[drawn]
    half_s = np.where(np.arange(len(drawn)) % 2, old_s, np.nan)

    def labels_s(*sources_s: np.ndarray) -> np.ndarray:
        few, rest = new.take(np.arange(80)), new.take(np.arange(80, len(drawn)))
        return bridged(base, few, rest, BridgeSettings(FIT, rehearsal=0.0), sources_s=sources_s)[1].latencies_s

    right = [pairwise_accuracy(-found, new.latencies_s, new.tasks) for found in (labels_s(half_s), labels_s(half_s, old_s))]
    assert right[1] > right[0] + 0.02
    np.testing.assert_allclose(labels_s(old_s, half_s), labels_s(half_s, old_s))
    farther_s = old_s * np.exp(np.random.default_rng(4).normal(size=len(drawn)))
    farther_s[80:120], old_s[80:120] = np.nan, np.nan  # some that neither measured, and as many of each
    np.testing.assert_allclose(labels_s(old_s, farther_s), labels_s(farther_s, old_s))


def test_an_earlier_platforms_seconds_change_as_the_counted_work_does(base, monkeypatch):
    """Three quarters of it, each platform's by its own hardware; what was measured stays, and without the hardware all does."""
    monkeypatch.setattr(MambaModel, "fit", lambda *args, **kwargs: None)
    changes = {OLD: np.log(4.0) * (np.arange(TASKS * EACH) % 2), NEW: np.zeros(TASKS * EACH)}
    monkeypatch.setattr(MambaModel, "counted_change", lambda self, programs, hardware: changes[tuple(hardware)])
    new, old_s = programs(NEW), programs(OLD).latencies_s
    few, rest = new.take(np.arange(4)), new.take(np.arange(4, len(new)))  # too few for a correction

    def labels_s(*machines: tuple[float, ...]) -> np.ndarray:
        settings = BridgeSettings(FIT, rehearsal=0.0)
        return bridged(base, few, rest, settings, sources_s=[old_s], machines=machines)[1].latencies_s[4:]

    task = new.tasks[4:] == 3
    for machines, change in (((OLD,), 0.75 * changes[OLD]), ((NEW,), 0.0), ((), 0.0)):
        ratio = labels_s(*machines)[task] / (old_s * np.exp(change))[4:][task]
        np.testing.assert_allclose(ratio, ratio[0])
    with pytest.raises(UsageError, match="measurements of 1 earlier platforms, and the hardware of 2; give that of each"):
        labels_s(OLD, NEW)


def test_a_settled_network_stays_as_it_is_where_there_is_no_difference(base):
    """To the new hardware's programs both platforms' few measurements say what the network says."""
    same = replace(programs(NEW), latencies_s=np.exp(-base.predict(programs(NEW)).astype(np.float64)))
    few, rest, settings = same.take(np.arange(80)), same.take(np.arange(80, 320)), BridgeSettings(replace(FIT, epochs=1))
    for settled in (True, False):
        model, labelled = bridged(base, few, rest, settings, settled=settled)
        assert labelled.share == 0 and model is not base
        assert (model.predict(rest) == base.predict(rest)).all() == settled


def test_a_settled_network_learns_a_difference(base):
    new = programs(NEW)
    drawn = np.random.default_rng(2).permutation(len(new.tasks))
    few, rest = new.take(drawn[:80]), new.take(drawn[80:])
    model, labelled = bridged(base, few, rest, BridgeSettings(replace(FIT, epochs=1)), settled=True)
    assert labelled.share > 0 and (model.predict(rest) != base.predict(rest)).any()


def test_a_settled_network_learns_what_many_measurements_say_whatever_the_difference(base, monkeypatch):
    monkeypatch.setattr(bridge, "FEW", 40)
    same = replace(programs(NEW), latencies_s=np.exp(-base.predict(programs(NEW)).astype(np.float64)))
    few, rest = same.take(np.arange(80)), same.take(np.arange(80, 320))
    model, labelled = bridged(base, few, rest, BridgeSettings(replace(FIT, epochs=1)), settled=True)
    assert labelled.share == 0 and (model.predict(rest) != base.predict(rest)).any()


def test_teachers_count_more_the_more_was_measured():
    """And nothing of few programs: 160 and 600 teach as without them."""

    def measured(ran: int, failed: int = 0, each: int = 2) -> Samples:
        seconds, tasks = np.append(np.ones(ran), np.full(failed, np.inf)), np.arange(ran + failed, dtype=np.int32) // each
        return Samples(np.zeros((len(tasks), 1, 1), np.float32), np.ones(len(tasks), np.int32), tasks, seconds)

    assert [teachers_share(measured(ran)) for ran in (0, 160, 600, 1000)] == [0, 0, 0, 0]
    assert [teachers_share(measured(ran)) for ran in (1250, 4000, 10_000)] == pytest.approx([0.2, 0.75, 0.9])
    assert [passes(15, measured(ran)) for ran in (160, 1250, 4000, 10_000)] == [15, 18, 26, 28]
    assert teachers_share(measured(1000, failed=3000)) == 0  # what failed teaches no latency
    assert teachers_share(measured(4000, each=1)) == 0  # lone programs teach no order


def test_labels_and_what_teachers_say_meet_on_one_scale():
    """By hand: both orders centred and of deviation 1 over the programs that ran, then a quarter of the way."""
    tasks = np.zeros(4, dtype=np.int32)
    labels_s, teachers_s = np.exp(-np.array([1.0, -1.0, 1.0, -np.inf])), np.exp(-np.array([30.0, 30.0, 10.0, 20.0]))
    ours, theirs = np.array([1, -1, 1]) - 1 / 3, np.array([30, 30, 10]) - (90 / 4)
    both = 0.75 * ours + 0.25 * theirs / np.std([30, 30, 10, 20])
    found = _mixed(labels_s, teachers_s, 0.25, tasks)
    assert np.isinf(found[3])
    assert -np.log(found[:3]) == pytest.approx((both - both.mean()) / both.std())


def test_of_many_measurements_with_errors_trees_make_labels_nearer_the_truth(base, monkeypatch):
    new, lessons = programs(NEW), []
    monkeypatch.setattr(MambaModel, "fit", lambda self, train, *given, **named: lessons.append((train, self.settings)))
    measured = replace(new, latencies_s=new.latencies_s * np.exp(np.random.default_rng(3).normal(scale=1.5, size=len(new))))
    bridged(base, measured, new.take(np.arange(0)), BridgeSettings(FIT))
    monkeypatch.setattr(bridge, "FEW", 32)
    bridged(base, measured, new.take(np.arange(0)), BridgeSettings(FIT))
    (raw, short), (smooth, long) = lessons
    right = [pairwise_accuracy(-np.log(labels.latencies_s), new.latencies_s, new.tasks) for labels in (raw, smooth)]
    assert right[0] < 0.8 and right[1] > right[0] + 0.05
    assert (short.epochs, short.period, long.epochs, long.period) == (12, 12, 23, 23)


def test_scores_become_seconds_on_the_sources_scale():
    scores, tasks = np.linspace(0, 1, 64, dtype=np.float32), np.zeros(64, dtype=np.int32)
    seconds = 5 * np.exp(-2 * scores.astype(np.float64))
    assert score_scale(scores, seconds, tasks) == pytest.approx(2.0)
    assert score_scale(scores[:8], seconds[:8], tasks[:8]) is None  # too few to tell
    assert score_scale(scores, seconds[::-1], tasks) == 0.25  # never backward
    whole = Samples(np.zeros((64, 1, 1), np.float32), np.ones(64, np.int32), tasks, np.full(64, np.nan))
    known = np.where(np.arange(64) % 2, np.nan, seconds)
    known[0] = np.inf
    found = source_seconds(scores, whole, known)
    assert found[0] == np.inf and found[1:] == pytest.approx(seconds[1:], rel=1e-4)
    assert source_seconds(scores, replace(whole, latencies_s=seconds)) == pytest.approx(seconds)  # the target's level, then


def test_labels_come_on_the_scale_of_scores_that_the_network_knows():
    """Seconds that differ by 100 times and such that differ by a tenth teach with the same weight; what failed stays so."""
    tasks = np.repeat(np.arange(4, dtype=np.int32), 8)
    for spread in (0.1, 4.6):
        seconds = np.exp(spread * np.random.default_rng(0).normal(size=32))
        seconds[5] = np.inf
        found = _on_one_scale(seconds, tasks)
        ran = np.isfinite(seconds)
        assert np.isinf(found[5]) and -np.log(found[ran]) == pytest.approx(standardised(-np.log(seconds[ran]), tasks[ran]))
        assert np.log(found[ran]).std() == pytest.approx(1.0)


def test_a_source_that_measured_nothing_is_as_none():
    """Or too few: the target's own measurements then tell what a score is worth."""
    scores, tasks = np.linspace(0, 1, 64, dtype=np.float32), np.zeros(64, dtype=np.int32)
    seconds = 5 * np.exp(-2 * scores.astype(np.float64))
    target = Samples(np.zeros((64, 1, 1), np.float32), np.ones(64, np.int32), tasks, np.where(np.arange(64) < 40, seconds, np.nan))
    assert source_seconds(scores, target, np.full(64, np.nan)) == pytest.approx(seconds)
    few = np.where(np.arange(64) < 8, 3 * seconds, np.nan)
    assert source_seconds(scores, target, few) == pytest.approx(3 * seconds, rel=1e-4)  # of the source's level


def test_programs_alone_in_their_tasks_leave_the_fisher_diagonal_as_it_was(base, monkeypatch):
    new = programs(NEW)
    lone, rest = new.take(np.arange(0, len(new), EACH)), new.take(np.flatnonzero(np.arange(len(new)) % EACH))
    params = SimpleNamespace(
        bridge=SimpleNamespace(epochs=1, batch_size=64, learning_rate=1e-3, rehearsal=0.0),
        train=SimpleNamespace(weight_decay=0.0, gradient_clip=0.5),
        seed=0,
    )
    state = ChainState(base, base, {"w": torch.ones(1)}, (OLD,), shipped=True)
    others = rest, [np.full(len(new), np.nan)], [OLD]
    step = SimpleNamespace(params=params, state=state, measured=lone, hardware=NEW, checkpoint=None, others=lambda: others)
    learned = Bridge().learn(step, None)
    assert learned.state.fisher is state.fisher and learned.state.hardware == (OLD, NEW) and learned.state.shipped


def test_a_task_that_the_source_did_not_measure_stands_where_the_source_would_have_it():
    """The target takes 7 / 3 of its time, so no correction learns that this task differs from the others."""
    scores, tasks = np.tile(np.linspace(0, 1, 32, dtype=np.float32), 2), np.repeat(np.arange(2, dtype=np.int32), 32)
    target_s = np.where(np.arange(64) % 4, np.nan, 7 * np.exp(-2 * scores.astype(np.float64)))
    both = Samples(np.zeros((64, 1, 1), np.float32), np.ones(64, np.int32), tasks, target_s)
    source_s = np.where(tasks == 0, 3 * np.exp(-2 * scores.astype(np.float64)), np.nan)
    found = source_seconds(scores, both, source_s)
    assert found[:32] == pytest.approx(source_s[:32], rel=1e-4)
    assert found[32:] == pytest.approx(3 * np.exp(-2 * scores[32:]), rel=1e-4)
    unknown = source_seconds(scores, both, None)
    assert unknown == pytest.approx(7 * np.exp(-2 * scores), rel=1e-4)


def test_what_is_rehearsed_is_divided_among_the_earlier_platforms(base):
    new = programs(NEW)
    one, three = (rehearsed(base, new, earlier, 1.0, 0) for earlier in ([OLD], [OLD, (1.0, 1.0), (2.0, 2.0)]))
    assert len(one[0]) == len(new) and sum(map(len, three)) == pytest.approx(len(new), rel=0.1)
    assert not set(three[0].tasks) & set(three[1].tasks) and three[0].tasks.min() > new.tasks.max()
    np.testing.assert_array_equal(three[1].features[:, 0], hardware_rows((1.0, 1.0), len(three[1])))
    first = new.take(np.flatnonzero(new.tasks == 0))
    own = one[0].take(one[0].tasks == one[0].tasks.min())
    assert np.argsort(own.latencies_s).tolist() == np.argsort(-base.predict(own)).tolist() and len(own) == len(first)
    assert -np.log(own.latencies_s) == pytest.approx(standardised(base.predict(one[0]), one[0].tasks)[: len(own)], abs=1e-5)
    assert rehearsed(base, new, [], 1.0, 0) == rehearsed(base, new, [OLD], 0.0, 0) == []


def test_what_is_rehearsed_keeps_the_names_of_its_tasks(base):
    """A project's names go beyond the tasks at hand, to those of held-out networks."""
    names = tuple(f"name {task}" for task in range(3 * TASKS))
    new = replace(programs(NEW), task_names=names)
    both = concatenate([new, *rehearsed(base, new, [OLD, (1.0, 1.0)], 1.0, 0)])
    assert set(both.tasks.tolist()) == {*range(TASKS), *range(60, 60 + TASKS), *range(120, 120 + TASKS)}
    assert [both.task_name(task) for task in (3, 63, 123)] == ["name 3"] * 3


def test_nothing_is_rehearsed_under_the_very_row_that_is_learned(base):
    """To the network that is the same platform: what was measured there would be unlearned."""
    new = programs(NEW)
    alone, both = (rehearsed(base, new, earlier, 1.0, 0) for earlier in ([OLD], [NEW, OLD]))
    assert rehearsed(base, new, [NEW], 1.0, 0) == [] and len(both) == 1
    np.testing.assert_array_equal(both[0].features, alone[0].features)

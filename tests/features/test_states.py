"""Real intermediate states: which ones are made, what they say, and what the cache keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tcl_core.compat import load_tvm, meta_schedule
from tcl_core.errors import DataError
from tcl_core.features import states as states_module
from tcl_core.features.batches import Samples, concatenate
from tcl_core.features.encode import Encoder
from tcl_core.features.states import (
    STATE_WIDTH,
    Trajectory,
    action_ends,
    chosen_rows,
    chosen_steps,
    pooled,
    with_states,
)
from tcl_core.features.layout import KINDS
from tcl_core.programs.sketches import DesignSpace

HARDWARE = (2.0,) * 11


@pytest.fixture(scope="module")
def encoder(matmul, conv) -> Encoder:
    return Encoder([matmul.task, conv.task], [*matmul.rows(), *conv.rows()])


def programs(tiny, count: int, seed: int = 0):
    """Programs of the task's last sketch."""
    sketch = tiny.sketches[-1]
    return [(tiny.task.key, sketch.index, tuple(d)) for d in tiny.sample(sketch, count, seed).tolist()]


@pytest.fixture(scope="module")
def keys(matmul, conv):
    return [*programs(matmul, 4), *programs(conv, 3)]


def replayed(encoder, keys, cache) -> Samples:
    return with_states(encoder.encode(keys, HARDWARE), keys, encoder, cache)


@pytest.fixture
def no_replay(monkeypatch):
    def refuse(*_):
        raise AssertionError("a schedule was replayed")

    return lambda: monkeypatch.setattr(DesignSpace, "apply", refuse)


def features_of(space, schedule) -> np.ndarray:
    """TVM's own features of a schedule, (stores, 164)."""
    extractor = meta_schedule().feature_extractor.PerStoreFeature()
    candidate = meta_schedule().MeasureCandidate(schedule, [])
    return extractor.extract_from(space.context, [candidate])[0].numpy()


# --- which states, and what they say ---


@pytest.mark.parametrize("name", ["matmul", "conv", "softmax"])
def test_an_action_is_a_token_row(tiny_tasks, name):
    tiny = tiny_tasks[name]
    encoder = Encoder([tiny.task], tiny.rows())
    for sketch in tiny.sketches:
        decisions = tiny.sample(sketch, 1)[0]
        tokens = encoder.encode([(tiny.task.key, sketch.index, tuple(decisions))], HARDWARE).features[0]
        kinds = [KINDS[k] for k in tokens[:, : len(KINDS)].argmax(axis=1)]
        ends = action_ends(sketch.trace_with(decisions))
        assert len(ends) - 1 == sum(kind not in ("hardware", "workload", "level") for kind in kinds)
        assert ends[0] == 0 and ends[-1] == len(sketch.trace.insts) and ends == sorted(set(ends))


def test_the_first_state_is_the_untouched_task_and_the_last_the_finished_program(encoder, keys, matmul, tmp_path):
    way = replayed(encoder, keys, tmp_path).states[0]
    blank = matmul.space.apply(load_tvm().s_tir.schedule.Trace([], {}))
    finished = matmul.space.materialise(matmul.sketches[-1], keys[0][2])
    assert way.steps[0] == 0 and way.steps.dtype == np.int32 and way.states.shape == (len(way.steps), STATE_WIDTH)
    np.testing.assert_array_equal(way.states[0], pooled(features_of(matmul.space, blank)))
    np.testing.assert_array_equal(way.states[-1], pooled(features_of(matmul.space, finished)))


def test_pooling_by_hand():
    stores = np.arange(6.0).reshape(3, 2)
    np.testing.assert_array_equal(pooled(stores), np.array([2, 2, 3, 4, 5], dtype=np.float32))


def test_programs_part_at_the_action_that_tells_them_apart(encoder, matmul, tmp_path, monkeypatch):
    """Two that differ in the unroll limit, which the trace annotates near its end, share what comes before."""
    monkeypatch.setattr(states_module, "STEPS_BETWEEN", 99)
    key = programs(matmul, 1)[0]
    left, right = ((*key[:2], (*key[2][:11], unroll)) for unroll in (0, 3))
    first, second = replayed(encoder, [left, right], tmp_path).states
    assert first.steps.tolist() == second.steps.tolist() == list(range(len(first.steps)))
    same = (first.states == second.states).all(axis=1)
    assert same[:-2].all() and not same[-1]
    assert len(np.unique(first.states, axis=0)) > len(first.steps) // 2


def test_steps_are_the_ends_and_some_between(keys):
    steps = [chosen_steps(key, 9) for key in keys]
    assert all(s[0] == 0 and s[-1] == 9 and len(s) == 2 + states_module.STEPS_BETWEEN for s in steps)
    assert len({tuple(s) for s in steps}) > 1 and chosen_steps(keys[0], 9).tolist() == steps[0].tolist()
    assert chosen_steps(keys[0], 1).tolist() == [0, 1] and chosen_steps(keys[0], 0).tolist() == [0]


# --- how many ---


def test_a_share_of_the_programs_is_replayed(encoder, matmul, conv, tmp_path, monkeypatch):
    monkeypatch.setattr(states_module, "PROGRAMS_PER_TASK", 3)
    keys = [*programs(matmul, 6), *programs(conv, 2)]
    found = replayed(encoder, keys, tmp_path).states
    assert [s is not None for s in found].count(True) == 5 and all(s is not None for s in found[6:])


def test_many_tasks_share_the_total_but_each_has_two(monkeypatch):
    tasks, keys = np.repeat(np.arange(5), 10), [(str(n), 0, ()) for n in range(50)]
    monkeypatch.setattr(states_module, "PROGRAMS", 20)
    assert [len(rows) for rows in chosen_rows(tasks, keys)] == [4] * 5
    monkeypatch.setattr(states_module, "PROGRAMS", 5)
    assert [len(rows) for rows in chosen_rows(tasks, keys)] == [2] * 5


def test_who_is_chosen_does_not_depend_on_the_order_or_on_who_is_not(monkeypatch):
    monkeypatch.setattr(states_module, "PROGRAMS_PER_TASK", 3)
    keys = [("t", 0, (n,)) for n in range(20)]
    (rows,) = chosen_rows(np.zeros(20, int), keys)
    chosen = {keys[row] for row in rows}
    backwards = keys[::-1]
    (rows,) = chosen_rows(np.zeros(20, int), backwards)
    assert {backwards[row] for row in rows} == chosen
    fewer = [key for key in keys if key in chosen or key[2][0] % 2]
    (rows,) = chosen_rows(np.zeros(len(fewer), int), fewer)
    assert {fewer[row] for row in rows} == chosen


# --- the cache ---


def assert_same(left: Samples, right: Samples) -> None:
    for one, other in zip(left.states, right.states, strict=True):
        np.testing.assert_array_equal(one.steps, other.steps)
        np.testing.assert_array_equal(one.states, other.states)


def test_nothing_is_replayed_twice(encoder, keys, tmp_path, no_replay):
    first = replayed(encoder, keys, tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir()) == sorted(f"{k}.safetensors" for k in {key[0] for key in keys})
    no_replay()
    assert_same(replayed(encoder, keys, tmp_path), first)


def test_what_is_missing_is_added(encoder, keys, matmul, tmp_path, no_replay):
    replayed(encoder, keys[:2], tmp_path)
    more = replayed(encoder, keys[:4], tmp_path)
    no_replay()
    assert_same(replayed(encoder, keys[:4], tmp_path), more)


@pytest.mark.parametrize("content", [b"", b"nonsense", None])
def test_a_damaged_cache_is_made_again(encoder, keys, tmp_path, no_replay, content):
    first = replayed(encoder, keys[:2], tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-100] if content is None else content)
    assert_same(replayed(encoder, keys[:2], tmp_path), first)
    no_replay()
    assert_same(replayed(encoder, keys[:2], tmp_path), first)


def test_states_of_another_format_are_made_again(encoder, keys, tmp_path, monkeypatch, no_replay):
    replayed(encoder, keys[:2], tmp_path)
    monkeypatch.setattr(states_module, "FORMAT", "of another TVM")
    no_replay()
    with pytest.raises(AssertionError, match="replayed"):
        replayed(encoder, keys[:2], tmp_path)


def test_a_sketch_that_was_made_anew_is_not_taken_for_the_old_one(matmul, tmp_path):
    """Two sketches of one task that change their numbers: equal decisions are then other programs."""
    last = len(matmul.sketches) - 1
    turned = [row | {"sketch_id": last - row["sketch_id"]} for row in matmul.rows()]
    keys = programs(matmul, 2)
    old = replayed(Encoder([matmul.task], matmul.rows()), keys, tmp_path)
    width = matmul.sketches[0].width
    other = [(key[0], last, tuple(matmul.sample(matmul.sketches[0], 1)[0])[:width]) for key in keys]
    encoder = Encoder([matmul.task], turned)
    assert_same(replayed(encoder, other, tmp_path), replayed(encoder, other, tmp_path / "empty"))
    assert (old.states[0].states[0] == replayed(encoder, other, tmp_path).states[0].states[0]).all()


# --- what cannot be replayed ---


def test_a_program_that_tvm_refuses_is_left_out(encoder, keys, tmp_path):
    samples = encoder.encode(keys[:2], HARDWARE)
    found = with_states(samples, [keys[0], (*keys[1][:2], (1,))], encoder, tmp_path)
    assert isinstance(found.states[0], Trajectory) and found.states[1] is None


def test_nothing_that_can_be_replayed(encoder, keys, tmp_path):
    with pytest.raises(DataError, match="^none of 1 programs can be replayed to its states; run the stage candidates"):
        with_states(encoder.encode(keys[:1], HARDWARE), [(*keys[0][:2], (1,))], encoder, tmp_path)


def test_keys_of_other_samples(encoder, keys, tmp_path):
    with pytest.raises(ValueError, match="2 keys of programs do not align with 2 samples"):
        with_states(encoder.encode([keys[0], keys[-1]], HARDWARE), keys[:2], encoder, tmp_path)


# --- the field of Samples ---


def test_states_stay_with_their_programs(encoder, keys, tmp_path):
    samples = replayed(encoder, keys, tmp_path)
    picked = samples.take(np.array([5, 1]))
    assert [picked.states[0], picked.states[1]] == [samples.states[5], samples.states[1]]
    both = concatenate([samples.take(np.arange(2)), samples.take(np.arange(2, 7))])
    assert list(both.states) == list(samples.states)
    assert concatenate([samples, replace(samples, states=None)]).states is None
    assert samples.take(np.zeros(7, bool)).states.shape == (0,)
    assert encoder.encode(keys, HARDWARE).take(np.array([0])).states is None

"""TVM's per-store features of real programs: values, the cache, what is extracted when, and side by side."""

from __future__ import annotations

import errno
from dataclasses import replace

import numpy as np
import pytest

from tcl_core.errors import DataError, PlatformError
from tcl_core.features import per_store
from tcl_core.features.encode import Encoder
from tcl_core.features.per_store import WIDTH, read_per_store, with_per_store
from tcl_core.records import ProgramKey

ADDITIONS = 1  # place of "float additions and subtractions" in a row


def encoder_of(*tiny) -> Encoder:
    return Encoder([t.task for t in tiny], [row for t in tiny for row in t.rows()])


def keys_of(tiny, count: int, seed: int = 0) -> list[ProgramKey]:
    """``count`` valid programs of each sketch."""
    return [
        (tiny.task.key, sketch.index, tuple(tiny.space.canonical(sketch, decisions).tolist()))
        for sketch in tiny.sketches
        for decisions in tiny.sample(sketch, count, seed)
    ]


def extracted(monkeypatch) -> list[int]:
    """Grows by the size of every job that is really done."""
    sizes, extract = [], per_store.extract
    monkeypatch.setattr(per_store, "extract", lambda job: (sizes.append(len(job.programs)), extract(job))[1])
    return sizes


def test_every_schedule_of_a_task_does_its_additions(matmul, tmp_path):
    """32 x 32 x 32 products are added up, whatever the tiling; rows hold log2(1 + x)."""
    for rows in read_per_store(keys_of(matmul, 4), encoder_of(matmul), tmp_path):
        assert rows.shape[1] == WIDTH and rows.dtype == np.float32 and len(rows) >= 2  # at least the product and relu
        assert (np.exp2(rows[:, ADDITIONS]) - 1).sum() == pytest.approx(32**3, rel=1e-4)


def test_schedules_differ_in_their_rows(conv, tmp_path):
    keys = keys_of(conv, 4)
    rows = read_per_store(keys, encoder_of(conv), tmp_path)
    assert len({part.tobytes() for part in rows}) > len(set(keys)) // 2


def test_samples_get_statements_in_the_place_of_tokens(matmul, softmax, tmp_path):
    encoder, keys = encoder_of(matmul, softmax), [*keys_of(softmax, 1), *keys_of(matmul, 2)]
    samples = encoder.encode(keys, [1.0], np.arange(1.0, len(keys) + 1))
    found = with_per_store(samples, keys, encoder, tmp_path)
    rows = read_per_store(keys, encoder, tmp_path)
    assert found.lengths.tolist() == [len(part) for part in rows] and len(set(found.lengths.tolist())) > 1
    assert found.features.shape == (len(keys), max(found.lengths), WIDTH) and found.holds == "per-store features"
    for place, part in zip(found.features, rows, strict=True):
        np.testing.assert_array_equal(place[: len(part)], part)
        assert not place[len(part) :].any()
    np.testing.assert_array_equal(found.latencies_s, samples.latencies_s)
    np.testing.assert_array_equal(found.tasks, samples.tasks)


def test_tasks_with_the_same_trace_are_not_taken_for_each_other(matmul, tmp_path):
    """Of tasks that differ in what is computed, not how, sketches and decisions may be equal to the letter."""
    (key,) = keys_of(matmul, 1)[:1]
    twin = replace(matmul.task, key="another")
    sketches = [*matmul.rows(), *({**row, "task_key": "another"} for row in matmul.rows())]
    mine, others = read_per_store([key, ("another", *key[1:])], Encoder([matmul.task, twin], sketches), tmp_path)
    np.testing.assert_array_equal(mine, others)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_what_is_known_is_not_lowered_again(matmul, softmax, tmp_path, monkeypatch):
    encoder, keys, sizes = encoder_of(matmul, softmax), keys_of(matmul, 2), extracted(monkeypatch)
    first = read_per_store(keys, encoder, tmp_path)
    more = [*keys_of(softmax, 1), *keys, *keys_of(matmul, 2, seed=9), keys[0]]
    again = read_per_store(more, encoder, tmp_path)
    assert sum(sizes) == len(set(more))  # each program once, however often and in whatever order it is asked for
    for known, part in zip(first, again[len(keys_of(softmax, 1)) :], strict=False):
        np.testing.assert_array_equal(part, known)
    done = len(sizes)
    read_per_store(more, encoder, tmp_path)
    assert len(sizes) == done
    assert {path.name for path in tmp_path.iterdir()} == {f"{t.task.key}.safetensors" for t in (matmul, softmax)}


def test_a_sketch_under_another_number_is_known(matmul, tmp_path, monkeypatch):
    """A pool that is made again may number its sketches anew."""
    read_per_store(keys_of(matmul, 1), encoder_of(matmul), tmp_path)
    sizes, moved = extracted(monkeypatch), [{**row, "sketch_id": row["sketch_id"] + 5} for row in matmul.rows()]
    keys = [(task, sketch + 5, decisions) for task, sketch, decisions in keys_of(matmul, 1)]
    read_per_store(keys, Encoder([matmul.task], moved), tmp_path)
    assert sizes == []


def test_a_killed_extraction_goes_on(matmul, tmp_path, monkeypatch):
    keys, sizes, extract = keys_of(matmul, 2), [], per_store.extract

    def killed(job):
        if len(sizes) == 2:
            raise KeyboardInterrupt
        sizes.append(len(job.programs))
        return extract(job)

    monkeypatch.setattr(per_store, "extract", killed)
    with pytest.raises(KeyboardInterrupt):
        read_per_store(keys, encoder_of(matmul), tmp_path, chunk=2)
    monkeypatch.setattr(per_store, "extract", extract)
    rest = extracted(monkeypatch)
    assert len(read_per_store(keys, encoder_of(matmul), tmp_path)) == len(keys)
    assert sizes == [2, 2] and sum(rest) == len(set(keys)) - 4


@pytest.mark.parametrize("content", [b"", b"half a file", None])
def test_a_damaged_or_foreign_cache_is_made_again(matmul, tmp_path, caplog, monkeypatch, content):
    keys = keys_of(matmul, 1)
    expected = read_per_store(keys, encoder_of(matmul), tmp_path)
    path = tmp_path / f"{matmul.task.key}.safetensors"
    if content is None:
        monkeypatch.setattr(per_store, "FORMAT", "1 of another TVM")
    else:
        path.write_bytes(content)
    sizes = extracted(monkeypatch)
    for found, part in zip(read_per_store(keys, encoder_of(matmul), tmp_path), expected, strict=True):
        np.testing.assert_array_equal(found, part)
    assert sum(sizes) == len(set(keys)) and ("is damaged" in caplog.text) == (content is not None)


def test_a_program_that_tvm_refuses_has_no_statement(matmul, tmp_path):
    key = keys_of(matmul, 1)[0]
    rows = read_per_store([(*key[:2], key[2][:-1]), key], encoder_of(matmul), tmp_path)
    assert [part.shape[1] for part in rows] == [WIDTH, WIDTH] and len(rows[0]) == 0 < len(rows[1])
    again = read_per_store([(*key[:2], key[2][:-1]), key], encoder_of(matmul), tmp_path)
    assert [len(part) for part in again] == [len(part) for part in rows]


def test_a_program_of_another_pool_is_named(matmul, tmp_path):
    with pytest.raises(DataError, match=f"sketch 99 of task {matmul.task.key} is not in the pool"):
        read_per_store([(matmul.task.key, 99, ())], encoder_of(matmul), tmp_path)


def test_a_full_disk_is_named_and_costs_nothing_that_was_kept(matmul, tmp_path, monkeypatch):
    first, second = keys_of(matmul, 1)[:2]
    read_per_store([first], encoder_of(matmul), tmp_path)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(PlatformError, match=f"{matmul.task.key}.safetensors .*no space left"):
            read_per_store([second], encoder_of(matmul), tmp_path)
    sizes = extracted(monkeypatch)
    read_per_store([first], encoder_of(matmul), tmp_path)
    assert sizes == [] and len(list(tmp_path.iterdir())) == 1


def test_side_by_side_gives_the_same_rows(matmul, softmax, tmp_path, monkeypatch):
    encoder, keys = encoder_of(matmul, softmax), [*keys_of(matmul, 2), *keys_of(softmax, 1)]
    alone = read_per_store(keys, encoder, tmp_path / "alone")
    monkeypatch.setattr(per_store, "FEW", 0)
    monkeypatch.setattr(per_store, "threads", lambda: 2)
    monkeypatch.setattr(per_store, "_space", None)  # in this process; the others do the work
    together = read_per_store(keys, encoder, tmp_path / "together")
    for found, expected in zip(together, alone, strict=True):
        np.testing.assert_array_equal(found, expected)
    files = [(tmp_path / folder / f"{matmul.task.key}.safetensors").read_bytes() for folder in ("alone", "together")]
    assert files[0] == files[1]

"""The file behind states and per-store features: what comes back, and when nothing does."""

from __future__ import annotations

import errno

import numpy as np
import pytest

from tcl_core.errors import PlatformError
from tcl_core.features.cache import Cache

FORMAT = "1 of a test"
ROWS = {b"one.": np.ones((2, 3), np.float32), b"none": np.zeros((0, 3), np.float32), b"more": np.eye(3, dtype=np.float32)}
VECTORS = {b"a": np.arange(4, dtype=np.float32), b"b": np.arange(4, 8, dtype=np.float32)}


def filled(path, arrays) -> Cache:
    cache = Cache(path, FORMAT)
    cache.arrays.update(arrays)
    cache.write()
    return cache


def assert_holds(cache: Cache, arrays) -> None:
    assert list(cache.arrays) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(cache.arrays[name], array, strict=True)


@pytest.mark.parametrize("arrays", [ROWS, VECTORS, {b"alone": np.zeros((0, 2), np.float32)}], ids=["rows", "vectors", "empty"])
def test_what_was_written_is_read(tmp_path, arrays):
    filled(tmp_path / "a" / "task", arrays)
    assert_holds(Cache(tmp_path / "a" / "task", FORMAT), arrays)


def test_more_joins_what_is_there(tmp_path):
    first, *rest = ROWS.items()
    filled(tmp_path / "task", dict([first]))
    cache = filled(tmp_path / "task", dict(rest))
    assert_holds(cache, ROWS)
    assert_holds(Cache(tmp_path / "task", FORMAT), ROWS)
    cache.arrays[b"last"] = np.ones((1, 3), np.float32)
    cache.write()
    assert b"last" in Cache(tmp_path / "task", FORMAT).arrays


def test_nothing_new_is_not_written(tmp_path):
    cache = filled(tmp_path / "task", ROWS)
    (tmp_path / "task").unlink()
    cache.write()
    Cache(tmp_path / "task", FORMAT).write()
    assert not (tmp_path / "task").exists()


def test_another_format_does_not_count(tmp_path, caplog):
    filled(tmp_path / "task", ROWS)
    other = Cache(tmp_path / "task", "2 of a test")
    assert other.arrays == {} and caplog.text == ""
    other.arrays.update(VECTORS)
    other.write()
    assert_holds(Cache(tmp_path / "task", "2 of a test"), VECTORS)
    assert Cache(tmp_path / "task", FORMAT).arrays == {}


@pytest.mark.parametrize("content", [b"", b"nonsense", None], ids=["empty", "nonsense", "torn"])
def test_a_damaged_file_is_said_and_begun_anew(tmp_path, caplog, content):
    path = tmp_path / "task"
    filled(path, ROWS)
    path.write_bytes(path.read_bytes()[:-10] if content is None else content)
    assert Cache(path, FORMAT).arrays == {}
    assert f"{path} is damaged" in caplog.text and "what it held is made again" in caplog.text
    filled(path, VECTORS)
    assert_holds(Cache(path, FORMAT), VECTORS)


def test_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch):
    cache = filled(tmp_path / "task", VECTORS)

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    cache.arrays[b"c"] = np.zeros(4, np.float32)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(PlatformError, match="no space left"):
            cache.write()
    assert_holds(Cache(tmp_path / "task", FORMAT), VECTORS)
    cache.write()
    assert b"c" in Cache(tmp_path / "task", FORMAT).arrays

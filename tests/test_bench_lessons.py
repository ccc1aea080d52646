"""What the comparisons teach our model with: programs of the training tasks that nobody measured."""

from __future__ import annotations

from pathlib import Path

import _lessons
import pytest
from _datasets import Reference

from tcl_core import store

FOLDER = Path(__file__).resolve().parents[1] / "data" / "reference"


class OneTask(Reference):
    """The reference data with one of its training tasks."""

    def _split(self, tested):
        train, networks = super()._split(tested)
        return {min(train)}, networks


@pytest.fixture
def reference(tmp_path):
    (tmp_path / "features").mkdir()
    return OneTask(FOLDER, tmp_path / "features", unlabelled=64)


def measured_keys():
    rows = store.read_table(FOLDER / "programs.parquet", "programs")
    return {(row["task_key"], row["sketch_id"], tuple(row["decisions"])) for row in rows}


def test_nothing_that_was_measured_is_drawn_as_unlabelled(reference):
    drawn = _lessons._drawn_keys(reference)
    assert len(set(drawn)) == 64 and not set(drawn) & measured_keys()
    assert {reference.encoder.numbers[task] for task, *_ in drawn} == reference._split(())[0]


def test_what_another_draw_kept_is_not_read(reference, monkeypatch):
    first = _lessons._drawn_keys(reference)
    _lessons._drawn_keys.cache_clear()
    monkeypatch.setattr(_lessons.drawing, "draw_unlabelled", lambda *_: pytest.fail("drawn again"))
    assert _lessons._drawn_keys(reference) == first
    _lessons._drawn_keys.cache_clear()
    monkeypatch.setattr(_lessons, "code", lambda source: f"other {source}")
    with pytest.raises(pytest.fail.Exception, match="drawn again"):
        _lessons._drawn_keys(reference)

"""Where the small forms of a comparison leave what they found."""

from __future__ import annotations

import _tables
import pytest


@pytest.fixture
def document(tmp_path, monkeypatch):
    """A project whose README has a place for a table."""
    for name, value in (("ROOT", tmp_path), ("RESULTS", tmp_path / "results"), ("_quick", False), ("_apart", None)):
        monkeypatch.setattr(_tables, name, value)
    monkeypatch.delenv(_tables.APART, raising=False)
    readme = tmp_path / "README.md"
    readme.write_text("<!-- speed -->\nthe whole one's\n<!-- /speed -->\n")
    return readme


def parsed(*given: str) -> bool:
    parser = _tables.arguments("a comparison")
    parser.add_argument("--quick", action=_tables.Quick, help="less")
    return parser.parse_args(given).quick


def test_the_whole_form_writes_its_results_and_the_document(document):
    assert parsed() is False
    _tables.save("speed", {"x": 1}, "bench")
    _tables.into_document("speed", "new")
    assert [path.name for path in _tables.RESULTS.iterdir()] == ["speed.json"] and "\nnew\n" in document.read_text()


def test_the_quick_form_leaves_the_whole_ones_results_and_the_document(document):
    assert parsed("--quick") is True
    _tables.save("speed", {"x": 1}, "bench")
    _tables.into_document("speed", "new")
    assert [path.name for path in _tables.RESULTS.iterdir()] == ["speed_quick.json"] and "the whole one's" in document.read_text()
    with pytest.raises(ValueError, match="no document has <!-- unknown -->"):
        _tables.into_document("unknown", "new")


def test_what_is_published_stays_until_another_run_has_all_of_it(document):
    results = _tables.Results("speed", lambda found: found["units"])
    assert results.of("old") == {} and results.save({"identity": "old", "units": ["a", "b"]}, "bench")
    assert not results.save({"identity": "new", "units": ["b", "c"]}, "bench")
    assert results.of("old")["units"] == ["a", "b"] and results.of("new")["units"] == ["b", "c"] and results.of("third") == {}
    assert results.save({"identity": "new", "units": ["a", "b", "c"]}, "bench")
    assert results.of("old") == {} and results.of("new")["units"] == ["a", "b", "c"]
    assert [path.name for path in _tables.RESULTS.iterdir()] == ["speed.json"]


def test_a_plan_is_published_when_it_is_complete_and_no_smaller(document):
    results = _tables.Results("speed", lambda found: found["units"])
    assert not results.save({"identity": "old", "units": ["a"]}, "bench", complete=False) and not results.published()
    assert results.save({"identity": "old", "units": ["a", "b"]}, "bench", complete=True)
    assert not results.save({"identity": "new", "units": ["x"]}, "bench", complete=True)
    assert not results.save({"identity": "new", "units": ["a", "b", "c"]}, "bench", complete=False)
    assert results.save({"identity": "new", "units": ["x", "y"]}, "bench", complete=True) and results.of("new") == results.published()

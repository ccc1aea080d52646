"""`make bench`: what is done is not done again, what failed is said at the end, and times are kept."""

from __future__ import annotations

import sys

import _all
import pytest


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Three comparisons, of which ``b`` fails and ``scale`` comes last; each writes its name and its arguments into ``ran``."""
    folder = tmp_path / "bench"
    folder.mkdir()
    for name in ("a", "b", "scale"):
        note = f"open(r'{tmp_path}/ran', 'a').write(' '.join(['{name}', *sys.argv[1:]]) + '\\n')"
        (folder / f"{name}.py").write_text(f"import sys\n{note}\nsys.exit({int(name == 'b')})\n")
    (folder / "_part.py").write_text("")
    monkeypatch.setattr(_all, "BENCH", folder)
    monkeypatch.setattr(_all, "ROOT", tmp_path)
    monkeypatch.setattr(_all, "LAST", ("scale",))
    monkeypatch.setattr(_all, "SHARED", ())
    monkeypatch.setattr(_all, "SECONDS", tmp_path / "seconds.json")

    def run(*words: str) -> list[str]:
        (tmp_path / "ran").write_text("")
        monkeypatch.setattr(sys, "argv", ["_all.py", *words])
        _all.main()
        return (tmp_path / "ran").read_text().splitlines()

    run.ran = lambda: (tmp_path / "ran").read_text().splitlines()
    run.folder = folder
    return run


def test_all_run_though_one_fails_and_only_that_one_runs_again(bench):
    with pytest.raises(SystemExit, match="^bench: b failed; what was said stands above$"):
        bench()
    assert bench.ran() == ["a", "b", "scale"]
    with pytest.raises(SystemExit, match="b failed"):
        bench()
    assert bench.ran() == ["b"]
    assert bench("--force", "a") == ["a"]


def test_changed_code_and_the_quick_form_are_other_runs(bench):
    assert bench("a") == ["a"] and bench("a") == []
    assert bench("a", "--quick") == ["a --quick"]
    (bench.folder / "a.py").write_text((bench.folder / "a.py").read_text() + "# better words\n")
    assert bench("a") == []
    (bench.folder / "a.py").write_text((bench.folder / "a.py").read_text() + "another = 1\n")
    assert bench("a") == ["a"] and _all.known()["a"]["done"]


def test_times_are_listed_and_nothing_is_run(bench, capsys):
    bench("a")
    assert bench("--list") == []
    rows = capsys.readouterr().out.splitlines()[-3:]
    assert rows[0].startswith("| a | 0.0 min, ") and rows[1:] == ["| b | - | - |", "| scale | - | - |"]


def test_no_time_left_and_no_such_comparison(bench, capsys):
    assert bench("--minutes", "0") == [] and "left for the same command: a, b, scale" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="unknown comparison 'c' in bench/"):
        bench("c")

"""Which changes make a comparison's stored runs untrue."""

from __future__ import annotations

import subprocess
import tomllib

import pytest
import _identity
from _identity import ROOT, SAME, code, code_as_of, code_digest, code_of, identity, reached

SOURCE = '"""What it is."""\n\n\ndef double(x):\n    """Twice as much."""\n    return 2 * x  # twice\n'


@pytest.mark.parametrize(
    "other",
    [SOURCE.replace("Twice as much", "Two times"), SOURCE.replace("  # twice", ""), SOURCE.replace("    return", "\n    return")],
    ids=["docstring", "comment", "layout"],
)
def test_words_and_layout_do_not_count(other):
    assert other != SOURCE and code(other) == code(SOURCE)


@pytest.mark.parametrize("other", [SOURCE.replace("2 *", "3 *"), SOURCE.replace("double", "twice")])
def test_what_runs_counts(other):
    assert code(other) != code(SOURCE)


def test_a_string_that_is_used_counts():
    assert code("name = 'a'") != code("name = 'b'")


def test_a_models_runs_depend_on_its_own_code_and_on_its_data():
    files = {model: {path.name for path in code_of(model)} for model in ("trees", "mamba", "tlp", "tcl")}
    assert "mamba.py" in files["mamba"] and "mamba.py" not in files["trees"] | files["tlp"]
    assert {"teaching.py", "trees.py"} <= files["mamba"] & files["tcl"]  # its teacher ensemble's
    assert {"bridge.py", "completion.py", "state.py"} <= files["tcl"]
    assert all({"metrics.py", "autotvm.py", "ansor.py"} <= found for found in files.values())
    assert "_lessons.py" in files["mamba"] & files["tcl"] and "_lessons.py" not in files["trees"]
    assert "_chain_case.py" in files["tcl"] - files["mamba"]
    assert len({identity(model, data, epochs) for model in files for data in "ab" for epochs in (None, 4)}) == 16


def test_scripts_that_a_script_imports_count_too():
    """A split, a leak or a metric that is mended there makes old figures untrue; how they are kept and shown does not."""
    found = {path.name for path in reached([], ["_transfer_units"])}
    assert {"_transfer_rows.py", "_transfer_data.py", "_paired.py", "_datasets.py", "_lessons.py", "metrics.py", "bridge.py"} <= found
    assert not {"_tables.py", "_identity.py", "transfer.py"} & found


def test_a_folder_of_its_own_is_known_by_its_code(tmp_path, monkeypatch):
    """Better words make no run untrue; other code does."""
    folder, file = tmp_path / "tcl_core" / "tuning", tmp_path / "tcl_core" / "tuning" / "search.py"
    folder.mkdir(parents=True)
    monkeypatch.setattr(_identity, "ROOT", tmp_path)
    found = []
    for text in ('"""Words."""\nA = 1\n', '"""Other words."""\nA = 1  # one\n', "A = 2\n"):
        file.write_text(text)
        _identity._code_in.cache_clear()
        found.append(_identity.folder_identity("tuning"))
    _identity._code_in.cache_clear()
    assert found[0] == found[1] != found[2]


# --- changes that cannot have changed a figure ---


SAID = tomllib.loads(SAME.read_text())


@pytest.mark.parametrize("file", SAID)
def test_what_is_said_of_a_file_is_said_of_its_code_of_today(file):
    """Whoever changes it once more must look again: renew ``code`` if figures stay the same, else remove the entry."""
    now, said = code((ROOT / file).read_text()), SAID[file]
    assert said["code"] == code_digest(now) and said["why"]
    then = code_as_of(said["as_of"], ROOT / file)
    if then is None:
        pytest.skip("this checkout lacks the history")
    assert then != now, "the file is as it was: remove the entry"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """One whose file was changed since its only commit; returns a function that says what of it, and gives its identity."""
    monkeypatch.setattr(_identity, "ROOT", tmp_path)
    monkeypatch.setattr(_identity, "SAME", tmp_path / "same.toml")
    file = tmp_path / "tcl_core" / "tuning" / "search.py"
    file.parent.mkdir(parents=True)

    def git(*words: str) -> str:
        settings = ["-c", "user.name=n", "-c", "user.email=e"]
        return subprocess.run(
            ["git", *settings, *words], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
        ).stdout.strip()

    def found(text: str, said: str = "") -> str:
        file.write_text(text)
        (tmp_path / "same.toml").write_text(said)
        _identity._code_in.cache_clear()
        _identity._said.cache_clear()
        return _identity.folder_identity("tuning")

    before = found("A = 1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    yield found, before, git("rev-parse", "HEAD")
    _identity._code_in.cache_clear()
    _identity._said.cache_clear()


def entry(commit: str, text: str) -> str:
    return f'["tcl_core/tuning/search.py"]\nas_of = "{commit}"\ncode = "{code_digest(code(text))}"\nwhy = "an error\'s words"\n'


def test_a_change_that_is_said_to_change_no_figure_makes_no_run_untrue(repository):
    found, before, commit = repository
    assert found("A = 2\n") != before
    assert found("A = 2\n", entry(commit, "A = 2\n")) == before


def test_a_file_that_was_not_there_was_no_part_of_the_identity(repository):
    found, before, commit = repository
    new = _identity.ROOT / "tcl_core" / "tuning" / "words.py"
    new.write_text("B = 1\n")
    assert found("A = 1\n") != before
    assert found("A = 1\n", entry(commit, "B = 1\n").replace("search.py", "words.py")) == before
    assert found("A = 1\n", entry("0" * 40, "B = 1\n").replace("search.py", "words.py")) != before


def test_what_was_said_of_other_code_or_of_a_commit_that_is_not_there_does_not_count(repository):
    found, before, commit = repository
    assert found("A = 3\n", entry(commit, "A = 2\n")) == found("A = 3\n") != before
    assert found("A = 2\n", entry("0" * 40, "A = 2\n")) == found("A = 2\n") != before

"""Whoever ranks the sealed networks says why, of code that is committed."""

from __future__ import annotations

import shutil
import subprocess

import _sealed
import pytest

from tcl_core.errors import UsageError


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A repository with one committed file of ours and a log without a line."""
    monkeypatch.setattr(_sealed, "ROOT", tmp_path)
    monkeypatch.setattr(_sealed, "LOG", tmp_path / "bench" / "sealed.md")
    for folder in ("bench", "tcl_core"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tcl_core" / "model.py").write_text("")
    _sealed.LOG.write_text("| date |\n|---|\n" + _sealed.NONE)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=n", "-c", "user.email=e@example.com", "commit", "-qm", "m"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_each_time_has_a_line_with_the_commit_and_the_reason(project):
    _sealed.opened("python bench/x.py", "release 1")
    _sealed.opened("python bench/x.py", "release 2")  # the log is no setting
    lines = _sealed.LOG.read_text().splitlines()
    assert len(lines) == 4 and "release 1" in lines[2] and "release 2" in lines[3]
    assert subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=project, text=True).strip() in lines[2]


@pytest.mark.parametrize("why", [None, ""])
def test_without_a_reason_they_stay_sealed(project, why):
    with pytest.raises(UsageError, match="say why"):
        _sealed.opened("python bench/x.py", why)
    assert _sealed.NONE in _sealed.LOG.read_text()


def test_settings_that_are_not_committed_are_not_frozen(project):
    (project / "tcl_core" / "model.py").write_text("x = 1")
    with pytest.raises(UsageError, match="tcl_core/model.py is changed"):
        _sealed.opened("python bench/x.py", "release")
    assert _sealed.NONE in _sealed.LOG.read_text()


def test_outside_a_checkout_nobody_knows_what_is_frozen(project):
    shutil.rmtree(project / ".git")
    with pytest.raises(UsageError, match="no checkout of git"):
        _sealed.opened("python bench/x.py", "release")

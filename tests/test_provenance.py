"""What a model was made of: the same for the same, other for other data or code, and of the code's own repository."""

from __future__ import annotations

import subprocess

import pytest

from tcl_core import provenance
from tcl_core.errors import DataError
from tcl_core.store import data_digest


@pytest.fixture
def records(tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "records.parquet").write_bytes(b"as measured")
    return folder


def test_the_same_stage_gives_the_same_bytes_and_other_data_others(tmp_path, records):
    def written(name: str) -> bytes:
        (tmp_path / name).mkdir()
        made = provenance.collect("distill@b", {"seed": 0}, {"b": records}, model_before=records)
        provenance.write(tmp_path / name, made)
        assert provenance.read(tmp_path / name) == made
        return (tmp_path / name / provenance.FILE).read_bytes()

    first = written("first")
    assert written("again") == first
    made = provenance.read(tmp_path / "first")
    assert made["data"]["b"] == made["model_before"] == data_digest(records)
    assert made["dvc"]["b"] == provenance.dvc_digest(records)
    assert set(made["versions"]) == {"python", "numpy", "torch", "tvm", "xgboost"}
    (records / "records.parquet").write_bytes(b"measured again")
    assert written("other") != first


def test_the_code_is_that_of_its_repository_and_says_when_it_differs(tmp_path, monkeypatch):
    code = tmp_path / "tcl_core"
    code.mkdir()
    (code / "provenance.py").write_text("one = 1\n")
    monkeypatch.setattr(provenance, "CODE", code)
    before = provenance._code()
    assert before["commit"] is None is before["changed"]

    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "a repository that merely has the environment in it")
    assert provenance._code() == before
    git("add", "."), git("commit", "-q", "-m", "the code")
    assert provenance._code() == {**before, "commit": git("rev-parse", "HEAD"), "changed": []}
    (tmp_path / "dvc.lock").write_text("what a run writes")
    (code / "notes.txt").write_text("no code")
    assert provenance._code()["changed"] == []
    (code / "more.py").write_text("two = 2\n")
    (code / "provenance.py").write_text("one = 2\n")
    now = provenance._code()
    assert now["changed"] == ["more.py", "provenance.py"] and now["sources"] != before["sources"]
    git("add", ".")
    assert provenance._code()["changed"] == ["more.py", "provenance.py"], "what is staged is not committed"


@pytest.mark.parametrize(
    "changed, said",
    [
        (None, "unknown"), ([], "false"), (["a.py"], "a.py"), (True, "true"), (False, "false"),
        ([f"{name}.py" for name in "abcdefg"], "a.py, b.py, c.py, d.py, e.py and 2 more"),
    ],
)  # fmt: skip
def test_a_tag_names_the_files_that_had_changed(changed, said):
    assert provenance.changed_text(changed) == said


def test_the_hash_of_a_folder_is_dvcs_own(tmp_path):
    """Of a folder with folders in it, as DVC's own library lists and hashes it."""
    from dvc_data.hashfile.build import build
    from dvc_data.hashfile.db import HashFileDB
    from dvc_objects.fs import LocalFileSystem

    folder = tmp_path / "records"
    for name, content in {"records.parquet": b"as measured", "b/hardware.json": b"{}", "b.json": b"", "B": b"1"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    files = LocalFileSystem()
    _, _, tree = build(HashFileDB(files, str(tmp_path / "cache")), str(folder), files, "md5")
    assert provenance.dvc_digest(folder) == tree.hash_info.value and tree.hash_info.value.endswith(".dir")


def test_a_model_of_unknown_origin_is_said(tmp_path):
    with pytest.raises(DataError, match="there is no .*provenance.json, so nobody knows .*: dvc repro"):
        provenance.read(tmp_path)

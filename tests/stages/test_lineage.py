"""`tcl models` and `tcl lineage` on a registry of two platforms, and on a history of Git with a dvc.lock in it."""

from __future__ import annotations

import json
from pathlib import Path
import subprocess

import pytest

import tcl_core.stages.lineage as module
from tcl_core import provenance, registry
from tcl_core.errors import DataError, RegistryError, UsageError
from tcl_core.learning.fit import FitSettings
from tcl_core.models.catalogue import create
from tcl_core.registry import serving
from tcl_core.stages.lineage import lineage, lineage_text, list_models, models_text
from tcl_core.stages.workspace import Workspace
from tests.commands import tcl

ROOT = Path(__file__).resolve().parents[2]
RECORDS = {"p-a": "aaaaaa" + "0" * 58, "p-b": "bbbbbb" + "0" * 58}
DVC = {"p-a": "a1a1a1a1" + "0" * 24 + ".dir", "p-b": "b1b1b1b1" + "0" * 24 + ".dir"}


def model_hash(platform: str, number: int) -> str:
    return f"{ord(platform[-1]):x}{number}" * 16


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """p-a: version 1, champion, then 2, which took its place; p-b: version 1, a candidate that goes on from p-a's second."""
    folder = tmp_path_factory.mktemp("filled")
    (folder / "code").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        patch.setenv(registry.FLOW_RUN_ID, "flow-7")
        patch.setattr(serving, "CODE", folder / "code")
        for platform, number, before in (("p-a", 1, "none"), ("p-a", 2, model_hash("p-a", 1)), ("p-b", 1, model_hash("p-a", 2))):
            model = folder / f"{platform}-{number}"
            create("random", FitSettings(seed=number)).save(model)
            tags = {
                "dvc.stage": "train", "data.hash": RECORDS[platform], "data.dvc": DVC[platform], "model.before": before,
                "model.hash": model_hash(platform, number), "model.dvc": f"{platform[-1]}{number}" * 16 + ".dir", "git.commit": "c" * 40,
                "git.dirty": "cli.py" if number == 2 else "false", "host": "a CPU x2", "python.version": "3.11.9", "holdout.hash": "f" * 64,
            }  # fmt: skip
            figures = {"pairwise_accuracy": 0.7 + number / 100, "subset_top_1": 0.9, "top_1": 0.5}
            registry.register(platform, model, {"seed": 0, "train.epochs": 30}, figures, tags)
            if platform == "p-a":
                registry.promote(platform, number, True, f"better the {number}. time", number - 1 or None)
        yield folder


@pytest.fixture(autouse=True)
def at_it(filled, monkeypatch, tmp_path):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{filled}/mlflow.db")
    monkeypatch.chdir(tmp_path)


def test_who_is_what_since_when_and_how_good():
    listed = list_models(Workspace())
    assert [(row["platform"], row["role"], row["version"]) for row in listed["models"]] == [
        ("p-a", "champion", 2), ("p-a", "previous", 1), ("p-b", "candidate", 1),
    ]  # fmt: skip
    champion, previous, candidate = listed["models"]
    assert (champion["pairs"], champion["u16"], champion["top_1"]) == (0.72, 0.9, 0.5)
    assert champion["since"] == previous["since"] == registry.versions("p-a")[1].tags[registry.SINCE]
    assert candidate["since"] == registry.versions("p-b")[0].registered
    assert (champion["data"], champion["commit"], champion["dirty"]) == (RECORDS["p-a"], "c" * 40, "cli.py")
    assert champion["decided"] == "promoted: better the 2. time" and candidate["decided"] is None
    lines = models_text(listed).splitlines()
    assert lines[0].split() == ["platform", "role", "version", "since", "pairs", "U16", "top-1", "data", "commit"]
    assert lines[1].split() == [
        "p-a",
        "champion",
        "2",
        champion["since"],
        "0.720",
        "0.900",
        "0.500",
        "aaaaaa000000",
        "cccccccccccc",
        "(changed)",
    ]
    assert lines[3].split()[-1] == "cccccccccccc" and lines[-1] == f"registry: {registry.where()}"


def test_models_of_one_platform_and_as_json():
    assert {row["platform"] for row in list_models(Workspace(), "p-b")["models"]} == {"p-b"}
    with pytest.raises(UsageError, match="^unknown platform 'p-c' in the registry at .*mlflow.db; did you mean"):
        list_models(Workspace(), "p-c")


def test_a_registry_without_models_says_how_to_fill_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/none.db")
    assert (
        models_text(list_models(Workspace()))
        == f"the registry at {tmp_path}/none.db has no models yet; run: tcl register and then: tcl promote"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asked", ["p-b:1", "p-b:candidate", "tcl-p-b:1"])
def test_from_a_model_to_what_it_was_made_of(asked, tmp_path):
    found = lineage(Workspace(tmp_path), asked)
    assert (found["kind"], found["platform"], found["version"], found["aliases"]) == ("model", "p-b", 1, ["candidate"])
    assert found["records"] == {"folder": "data/records/platform=p-b", "dvc": DVC["p-b"], "sha256": RECORDS["p-b"]}
    assert (found["commit"], found["flow_run"], found["host"], found["versions"]) == ("c" * 40, "flow-7", "a CPU x2", {"python": "3.11.9"})
    assert found["parameters"] == {"seed": "0", "train.epochs": "30"} and found["figures"]["top_1"] == 0.5
    assert [(model["platform"], model["version"]) for model in found["goes_on_from"]] == [("p-a", 2), ("p-a", 1)]
    text = lineage_text(found)
    assert text.startswith("tcl-p-b version 1 (candidate)\n  registered ")
    assert f"records       data/records/platform=p-b: DVC {DVC['p-b']}, SHA-256 {RECORDS['p-b']}" in text
    assert "goes on from  tcl-p-a version 2 (champion), tcl-p-a version 1 (previous)" in text
    assert "figures       pairs 0.710, U16 0.900, top-1 0.500" in text and "parameters    seed 0, train.epochs 30" in text


def test_a_platform_alone_means_its_champion(tmp_path):
    assert lineage(Workspace(tmp_path), "p-a")["version"] == lineage(Workspace(tmp_path), "p-a:champion")["version"] == 2
    assert lineage(Workspace(tmp_path), "p-a:previous")["version"] == 1
    assert f"commit        {'c' * 40} (changed since: cli.py)" in lineage_text(lineage(Workspace(tmp_path), "p-a"))
    for asked, said in (("p-b", "champion"), ("p-b:2", "2"), ("p-b:latest", "latest")):
        with pytest.raises(UsageError, match=f"^unknown version or alias '{said}' in tcl-p-b; "):
            lineage(Workspace(tmp_path), asked)


@pytest.mark.parametrize(
    "asked, same, whose",
    [
        (RECORDS["p-a"], ["records"], [("p-a", 1), ("p-a", 2)]),
        ("AAAAAA", ["records"], [("p-a", 1), ("p-a", 2)]),
        (DVC["p-b"], ["records"], [("p-b", 1)]),
        (DVC["p-b"].removesuffix(".dir"), ["records"], [("p-b", 1)]),
        (model_hash("p-a", 2)[:8], ["model"], [("p-a", 2)]),
        ("a2" * 16 + ".dir", ["model"], [("p-a", 2)]),
        ("f" * 64, ["held-out records"], [("p-a", 1), ("p-a", 2), ("p-b", 1)]),
    ],
)
def test_from_a_hash_to_the_models(asked, same, whose, tmp_path):
    found = lineage(Workspace(tmp_path), asked)
    assert found["kind"] == "data" and [(v["platform"], v["version"]) for v in found["versions"]] == whose
    assert all(version["same"] == same for version in found["versions"])
    assert lineage_text(found).splitlines()[1] == f"  tcl-{whose[0][0]} version {whose[0][1]}" + {
        ("p-a", 1): " (previous)", ("p-a", 2): " (champion)", ("p-b", 1): " (candidate)",
    }[whose[0]] + f": the same {same[0]}"  # fmt: skip


def test_from_a_commit_to_the_models_that_its_lock_names(tmp_path):
    """The records of p-a with its second model, then a commit without a lock, then one whose lock is damaged."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(lock: str | None) -> str:
        (tmp_path / "dvc.lock").unlink(missing_ok=True)
        if lock is not None:
            (tmp_path / "dvc.lock").write_text(lock)
        git("add", "-A"), git("commit", "-q", "--allow-empty", "-m", "run")
        return git("rev-parse", "HEAD")

    def lock(outs: dict[str, str]) -> str:
        return json.dumps(
            {"schema": "2.0", "stages": {path: {"cmd": "x", "outs": [{"path": path, "md5": md5}]} for path, md5 in outs.items()}}
        )

    git("init", "-q")
    first = commit(lock({"data/records/platform=p-a": DVC["p-a"], "data/models/p-a": "a2" * 16 + ".dir", "data/models/p-b": "0" * 32}))
    found = lineage(Workspace(tmp_path), "HEAD")
    assert (found["kind"], found["commit"]) == ("revision", first)
    assert [(v["platform"], v["version"], v["same"]) for v in found["versions"]] == [
        ("p-a", 1, ["records"]),
        ("p-a", 2, ["records", "model"]),
    ]
    assert lineage_text(found).splitlines()[-1] == "  tcl-p-a version 2 (champion): the same records and model"
    commit(None)
    assert lineage(Workspace(tmp_path), "HEAD")["versions"] == [] and lineage(Workspace(tmp_path), "HEAD~1")["commit"] == first
    assert lineage_text(lineage(Workspace(tmp_path), "HEAD")).startswith("no registered model has the code of commit ")
    commit("stages: [1, {]")
    with pytest.raises(DataError, match="^dvc.lock of commit .* cannot be read .*; name another revision$"):
        lineage(Workspace(tmp_path), "HEAD")


def test_from_a_commit_to_the_models_that_its_code_trained(tmp_path, monkeypatch):
    """The code of a commit is that of the last one that changed it, and of no other; sources that differed are named."""
    (tmp_path / "code").mkdir()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t"]
    for file in ("code/cli.py", "README.md"):
        (tmp_path / file).write_text("x = 1")
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", file]):
            subprocess.run([*git, *words], check=True)
    head, before = (provenance.git("rev-parse", name, folder=tmp_path) for name in ("HEAD", "HEAD~1"))
    monkeypatch.setattr(provenance, "CODE", tmp_path / "code")
    versions = [
        registry.Version("p-a", number, (), "", "", {"git.commit": commit, "git.dirty": dirty})
        for number, (commit, dirty) in enumerate([(before, "false"), (before, "cli.py"), (head, "false")], start=1)
    ]
    for asked in (head, before):
        found = module._of_commit(asked, versions, tmp_path)
        assert [(each["version"], each["same"]) for each in found] == [(1, ["code"]), (2, ["code but for cli.py"])]


@pytest.mark.parametrize("asked", ["nosuch", "HEAD", "--help", "-x", "cccccc0", "a\nb", "p_a:1", "999"])
def test_what_is_none_of_them_is_said(asked, tmp_path):
    """In a folder without a repository."""
    with pytest.raises(UsageError, match="^unknown model, hash or revision '.*' in the registry at .*, its data and Git's history; "):
        lineage(Workspace(tmp_path), asked)
    with pytest.raises(UsageError, match="^the model is an empty name; give a platform such as host-avx2"):
        lineage(Workspace(tmp_path), " ")


def test_a_rollback_is_told_by_both_commands(filled):
    """Last, for it changes the registry."""
    Path("params.yaml").touch()
    assert (
        tcl("rollback", "-p", "p-a", "--reason", "slower on BERT")
        == "tcl-p-a version 1 is champion again (slower on BERT); version 2 is the previous one"
    )
    champion, previous, _ = list_models(Workspace())["models"]
    assert (champion["version"], previous["version"]) == (1, 2) and previous["withdrawn"].endswith(": slower on BERT")
    assert json.loads(tcl("rollback", "-p", "p-a", "--reason", "again", "--json")) == {
        "platform": "p-a", "champion": 2, "previous": 1, "reason": "again",
    }  # fmt: skip
    with pytest.raises(RegistryError, match="p-b has no champion to go back from"):
        tcl("rollback", "-p", "p-b")
    (Path.cwd() / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    for command in (("rollback", "-p"), ("models", "-p")):
        with pytest.raises(UsageError, match="^unknown platform 'p-d' in the registry at .*; did you mean"):
            tcl(*command, "p-d")
        with pytest.raises(RegistryError, match="^no model of host-avx2 is registered at .*; run: tcl register and then: tcl promote"):
            tcl(*command, "host-avx2")

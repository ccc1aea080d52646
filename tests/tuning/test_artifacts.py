from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tcl_core.compat import load_tvm
from tcl_core.measure.job import Outcome
from tcl_core.programs import weights
from tcl_core.programs.graph import FREE
from tcl_core.tuning.measuring import MARKER, MODULE, new_artifact, remove_artifact, worker_runner


def contents(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


def test_an_artifact_comes_and_goes():
    path = new_artifact("{}")
    assert path.read_text() == "{}" and path.parent.parent == Path(tempfile.gettempdir())
    assert contents(path.parent) == {MARKER, MODULE}
    assert remove_artifact(path)
    assert not path.parent.exists() and Path(tempfile.gettempdir()).is_dir()
    assert not remove_artifact(path)  # twice is harmless


def test_an_artifact_lies_where_it_is_told_to(tmp_path):
    path = new_artifact("{}", tmp_path)
    assert path.parent.parent == tmp_path and remove_artifact(path)


def test_two_artifacts_never_share_a_directory():
    one, two = new_artifact("1"), new_artifact("2")
    assert one.parent != two.parent
    assert remove_artifact(str(one)) and two.exists() and remove_artifact(str(two))


@pytest.mark.parametrize("path", ["/", "/x", "/module.json", "/tmp/x", "/etc/passwd", "", "x", "/no/such/folder/x"])
def test_a_foreign_path_is_refused(path, monkeypatch):
    """Nothing but a directory of our own may ever be handed to the remover."""
    removed = []
    monkeypatch.setattr("tcl_core.tuning.measuring.shutil.rmtree", removed.append)
    assert not remove_artifact(path)
    assert removed == []


@pytest.mark.parametrize(
    "files",
    [
        [MODULE],  # no marker
        [MODULE, "thesis.tex"],
        [MARKER, MODULE, "thesis.tex"],  # a marker, but something that is not ours
        [MARKER, "folder/thesis.tex"],
        [f"{MARKER}/thesis.tex", MODULE],  # the marker is a folder
        [],
    ],
)
def test_a_directory_that_holds_anything_else_is_refused(tmp_path, files):
    folder = tmp_path / "x"
    folder.mkdir()
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("dear")
    before = contents(folder)
    assert not remove_artifact(folder / MODULE)
    assert contents(folder) == before


def test_a_link_to_an_artifact_is_not_followed(tmp_path):
    path = new_artifact("{}")
    link = tmp_path / "link"
    link.symlink_to(path.parent)
    with pytest.raises(OSError, match="symbolic link"):
        remove_artifact(link / MODULE)
    assert path.exists() and remove_artifact(path)


class ListRunner:
    """Measures in memory: the n-th program takes n milliseconds, unless its outcome is given."""

    def __init__(self, outcome=None):
        self.jobs, self.outcome = [], outcome

    def measure(self, jobs):
        for job in jobs:
            self.jobs.append(job)
            yield self.outcome or Outcome("ok", (len(self.jobs) * 1e-3, 1.0))


def run(runner, paths, **options):
    return worker_runner(runner, **options)._inst.run([SimpleNamespace(artifact_path=path) for path in paths])


def test_artifacts_go_as_their_programs_are_taken(tmp_path):
    """One by one: what a stopped run has not taken yet is still there, and removed with its folder."""
    runner, left = ListRunner(), []
    paths = [new_artifact(f"module {n}", tmp_path) for n in range(4)]
    futures = run(runner, paths, on_outcome=lambda outcome: left.append(len(list(tmp_path.iterdir()))))
    assert left == [3, 2, 1, 0]
    assert [(job.module_json, job.check) for job in runner.jobs] == [(f"module {n}", False) for n in range(4)]
    assert len({job.task_key for job in runner.jobs}) == 4  # no module is taken for another one
    seconds = [[float(s) for s in future.result().run_secs] for future in futures]
    assert seconds == [[n * 1e-3, 1.0] for n in (1, 2, 3, 4)]


@pytest.mark.parametrize(("cold", "timed_cold"), [(True, [True, False]), (False, [False, False])])
def test_programs_of_large_weights_are_timed_with_cold_ones_where_told(tmp_path, matmul, cold, timed_cold):
    """Its second argument has 4 KiB, which is made to be much."""
    tvm, runner = load_tvm(), ListRunner()
    free = tvm.IRModule({"main": matmul.module["main"].with_attr(FREE, [1])})
    texts = [tvm.ir.save_json(module) for module in (free, matmul.module)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "LARGE", 4096)
        run(runner, [new_artifact(text, tmp_path) for text in texts], cold=cold)
    assert [job.cold for job in runner.jobs] == timed_cold


def test_a_failed_program_is_a_message(tmp_path):
    runner = ListRunner(Outcome("timeout", message="not run within 5 s"))
    (future,) = run(runner, [new_artifact("{}", tmp_path)])
    assert future.done() and future.result().run_secs is None
    assert str(future.result().error_msg) == "timeout: not run within 5 s"

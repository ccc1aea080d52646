"""Platforms that this machine cannot run are skipped and say why; a name that is none or empty measures nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tcl_core import store
from tcl_core.errors import DataError, PlatformError, UsageError
from tcl_core.stages.workspace import Workspace
from tests.commands import tcl
from tests.stages import tiny_project
from tests.stages.tiny_project import report, write_params

cannot_run, here, networks, pool = tiny_project.cannot_run, tiny_project.here, tiny_project.networks, tiny_project.pool


def names_in(folder):
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(("stage", "kind"), [("collect", "records"), ("holdout", "holdout")])
def test_a_skipped_platform_says_why_and_what_is_stale_goes(pool, runners, cannot_run, stage, kind):
    folder = Workspace().records_folder("second", kind)
    for first in (True, False):
        cannot_run("haswell")
        said = tcl(stage, "-p", "second")
        assert said == "skipped: this CPU lacks haswell" if first else said.startswith("skipped: this CPU lacks haswell; the ")
        assert names_in(folder) == {"skipped.json"} and store.skipped_reason(folder) == "this CPU lacks haswell"
        with pytest.raises(DataError, match="this CPU lacks haswell"):
            Workspace().samples("second", kind)
        cannot_run()
        tcl(stage, "-p", "second")
        assert names_in(folder) == {"records.parquet", "hardware.json"}
    assert runners[-1].jobs == []  # the journal outlived the skip


@pytest.mark.parametrize(("stage", "kind"), [("collect", "records"), ("holdout", "holdout")])
def test_records_of_a_platform_that_is_skipped_later_are_set_aside(pool, runners, cannot_run, tmp_path, stage, kind):
    """Nothing else in the folder goes, wherever a link has put it."""
    write_params({"collect.sampler": "random"})  # trains nothing
    elsewhere, folder = tmp_path / "elsewhere", Workspace().records_folder("second", kind)
    (elsewhere / "deeper").mkdir(parents=True)
    (elsewhere / "thesis.txt").write_text("years of work")
    (elsewhere / "deeper" / "photo.jpg").write_text("a child")
    folder.parent.mkdir(parents=True)
    folder.symlink_to(elsewhere)
    (elsewhere / "skipped.json").write_text('{"reason": "once"}')
    tcl(stage, "-p", "second")
    others = {"thesis.txt", "deeper"}
    assert names_in(folder) == others | {"records.parquet", "hardware.json"}
    before = (folder / "records.parquet").read_bytes()
    cannot_run("haswell")
    said = tcl(stage, "-p", "second")
    assert names_in(folder) == others | {"skipped.json"} and names_in(elsewhere / "deeper") == {"photo.jpg"}
    (aside,) = Path(f"data/set_aside/{kind}/platform=second").iterdir()
    assert said == f"skipped: this CPU lacks haswell; the records that were here are set aside in {aside}"
    assert (aside / "records.parquet").read_bytes() == before and names_in(aside) == {"records.parquet", "hardware.json"}
    assert tcl(stage, "-p", "second") == "skipped: this CPU lacks haswell"  # there is nothing more to set aside


def test_the_chain_goes_on_without_a_skipped_platform(pool, runners, cannot_run):
    cannot_run("nehalem")
    said = tcl("collect").splitlines()
    assert said[0] == "first: skipped: this CPU lacks nehalem" and said[1].startswith("second: 10 of 40 programs")
    assert report() == {"platform": "first", "skipped": "this CPU lacks nehalem"} and "rounds" in report("second")
    assert Workspace().platforms_that_ran() == ["second"]
    assert len(runners) == 1


@pytest.mark.parametrize("stage", ["collect", "holdout"])
def test_a_machine_that_can_run_no_platform(pool, runners, cannot_run, stage):
    """An error, not a chain of skipped platforms; what was measured before stays."""
    tcl(stage, "-p", "first")
    before = store.data_digest(Path("data"))
    cannot_run("nehalem", "haswell")
    for platform in (["-p", "first"], []):
        with pytest.raises(PlatformError) as raised:
            tcl(stage, *platform)
        said = "this machine can run none of the platforms of params.yaml (this CPU lacks nehalem); add one to params.yaml that it can, "
        assert str(raised.value).startswith(f"{said}with mcpu: ")
    assert store.data_digest(Path("data")) == before


@pytest.mark.parametrize("stage", ["collect", "holdout"])
def test_an_unknown_platform(pool, runners, stage):
    with pytest.raises(UsageError, match="^unknown platform 'frist' in params.yaml; did you mean 'first'"):
        tcl(stage, "-p", "frist")
    assert runners == [] and not Workspace().records_folder("frist").exists()


COMMANDS = (
    "collect --force -p", "holdout --force -p", "tasks", "train -p", "train --model", "distill -p", "register -p", "promote -p", "tune",
    "tune -p", "export -p", "predict log -p", "profile", "models -p", "rollback --reason slow -p",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("empty", ["", " "])
def test_an_empty_name_does_not_mean_all_of_them(pool, runners, command, empty):
    """As in `tcl collect --force -p "$UNSET"`."""
    write_params({"collect.sampler": "random"})  # trains nothing
    tcl("collect", "-p", "first")
    before = store.data_digest(Path("data"))
    with pytest.raises(UsageError, match="is an empty name .is a variable of your shell not set.*; name a .*, or leave it out$"):
        tcl(*command.split(), empty)
    assert store.data_digest(Path("data")) == before and len(runners) == 1

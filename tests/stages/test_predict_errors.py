"""`tcl predict`: models and logs that do not fit are one sentence, and scores take the place of nothing unasked."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from synthetic import ranking_problem

from tcl_core.errors import DataError, PlatformError, UsageError
from tcl_core.programs.tuning_logs import reading
from tests.programs.log_lines import write
from tests.stages import predicted
from tests.stages.predicted import Told, cells, line, predict_log, rows_of, told, trained

here = predicted.here


# --- what is wrong ---


def test_a_model_is_named_once(here):
    path = write(here / "a.log", line(1, 1))
    for chosen in ({}, {"platform": "p", "folder": told()}):
        with pytest.raises(UsageError, match="give either --platform P, .* or --model FOLDER"):
            predict_log(path, **chosen)


def test_models_that_cannot_score_a_log(here):
    path = write(here / "a.log", line(1, 1), line(2, 2))
    with pytest.raises(UsageError, match="the xgboost model in models/best reads per-store features .* give a model that"):
        predict_log(path, folder=told(name="xgboost"))
    with pytest.raises(DataError, match="the told model in models/nan predicts values that are not numbers; "):
        predict_log(path, folder=told("nan"))
    with pytest.raises(UsageError, match="gone is no saved model .* give the folder that a model was saved in"):
        predict_log(path, folder=Path("gone"))
    trained(ranking_problem(), Path("narrow"))
    with pytest.raises(DataError, match="reads tokens of 6 numbers, and this version.s have 48; train it again"):
        predict_log(path, folder=Path("narrow"), to=Path("scores.csv"))
    assert not list(here.glob("*.csv*"))


@pytest.mark.parametrize(
    "lines, reason",
    [
        ([], "a.log is empty; give a tuning log"),
        (["hello"], "a.log is no tuning log: in its first lines .1. there is no record"),
        ([line(1, 1, error=99)], r"no line of .*a.log can become a program \(line 1: error number 99 is "),
    ],
)
def test_what_holds_no_program(here, lines, reason):
    path = write(here / "a.log", *lines)
    with pytest.raises(DataError, match=reason):
        predict_log(path, folder=told(), to=Path("scores.csv"))
    assert not list(here.glob("*.csv*"))


def test_what_is_no_file(here):
    with pytest.raises(UsageError, match="cannot read the log .*gone.log"):
        predict_log(here / "gone.log", folder=told())
    with pytest.raises(UsageError, match="has no database_tuning_record.json"):
        predict_log(here, folder=told())


def test_a_torn_file_is_told_before_anything_is_scored(here, monkeypatch):
    monkeypatch.setattr(reading, "BLOCK", 10)
    path = write(here / "a.log.gz", *(line(1 + n % 50, 1 + n) for n in range(500)))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="damaged or cut off after line"):
        predict_log(path, folder=told(), to=Path("scores.csv"))
    assert Told.calls == [] and not list(here.glob("*.csv*"))


def test_scores_take_the_place_of_neither_the_log_nor_a_folder(here):
    path = write(here / "a.log", line(1, 1))
    before = path.read_bytes()
    with pytest.raises(UsageError, match="a.log is the log itself; give the name of another file to --to"):
        predict_log(path, folder=told(), to=Path("a.log"))
    with pytest.raises(UsageError, match="models is a folder; give the name of a CSV file to --to"):
        predict_log(path, folder=told(), to=Path("models"))
    assert path.read_bytes() == before


# --- where the scores go ---


def test_what_is_there_is_overwritten_only_by_force(here):
    path, to, listed = write(here / "a.log", line(1, 1), "bad"), Path("scores.csv"), Path("scores.csv.refused.txt")
    for taken in (to, listed):
        taken.write_text("mine")
        with pytest.raises(UsageError, match=f"{taken} exists; give another name, or --overwrite to replace it"):
            predict_log(path, folder=told(), to=to)
        assert taken.read_text() == "mine" and Told.calls == []
        taken.unlink()
    to.write_text("mine")
    assert "1 scores" in predict_log(path, folder=told(), to=to, overwrite=True)
    assert len(rows_of(to)) == 1 and listed.read_text().startswith("2\tno JSON")


def test_the_log_is_not_overwritten_even_by_force(here):
    path = write(here / "a.log", line(1, 1))
    write(here / "b.csv.refused.txt", line(1, 1))
    Path("link.csv").symlink_to("a.log")
    for log, to in ((path, "a.log"), (path, "link.csv"), (here / "b.csv.refused.txt", "b.csv")):
        before = log.read_bytes()
        with pytest.raises(UsageError, match="is the log itself; give the name of another file to --to"):
            predict_log(log, folder=told(), to=Path(to), overwrite=True)
        assert log.read_bytes() == before


def test_the_workloads_of_a_database_are_not_overwritten_even_by_force(here):
    write(here / "database_tuning_record.json", [0, [[[], []], [1.0], {"kind": "llvm"}, []]])
    workloads = write(here / "database_workload.json", ["hash", "module"])
    before = workloads.read_bytes()
    with pytest.raises(UsageError, match="database_workload.json is the log itself"):
        predict_log(here, folder=told(), to=workloads, overwrite=True)
    assert workloads.read_bytes() == before


def test_a_link_leads_to_the_file_that_it_names(here):
    path = write(here / "a.log", line(1, 1))
    (here / "results").mkdir()
    Path("scores.csv").symlink_to("results/today.csv")
    predict_log(path, folder=told(), to=Path("scores.csv"))
    assert Path("scores.csv").is_symlink() and len(rows_of(Path("results/today.csv"))) == 1
    with pytest.raises(UsageError, match="results/today.csv exists"):
        predict_log(path, folder=told(), to=Path("scores.csv"))


def test_scores_go_through_a_pipe(here):
    path, pipe = write(here / "a.log", line(1, 1), "bad"), Path("pipe")
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    said = predict_log(path, folder=told(), to=pipe)
    assert reader.communicate(timeout=20)[0].startswith("line,task,task_key,latency_s,score,rank\n1,conv2d_NCHWc.x86 ")
    assert pipe.is_fifo() and sorted(os.listdir()) == ["a.log", "models", "params.yaml", "pipe"] and said.endswith("-> pipe")


@pytest.mark.parametrize(
    "to, told_of",
    [
        ("a.log/scores.csv", "not a directory"),
        ("a" * 300, "file name too long"),
        ("loop", "too many levels of symbolic links"),
        ("models", "is a folder"),
        ("/", "is a folder"),
        ("models/best/locked/scores.csv", "permission denied"),
    ],
)
def test_places_where_no_file_can_be(here, to, told_of):
    path, locked = write(here / "a.log", line(1, 1)), told() / "locked"
    Path("loop").symlink_to("loop")
    locked.mkdir(mode=0o500)
    if os.geteuid() == 0 and "locked" in to:
        pytest.skip("root may write everywhere")
    with pytest.raises((UsageError, PlatformError), match=told_of):
        predict_log(path, folder=told(), to=Path(to))
    assert Told.calls == []


def test_a_log_that_is_no_file_is_not_waited_for(here):
    os.mkfifo("pipe")
    for log in ("pipe", "/dev/null", "/dev/zero"):
        with pytest.raises(UsageError, match=f"cannot read the log {log} .it is a pipe or a device, and a log is read more than once"):
            predict_log(Path(log), folder=told())


def test_a_model_that_is_no_folder(here):
    path = write(here / "a.log", line(1, 1))
    with pytest.raises(UsageError, match="a.log is no folder; give the folder that a model was saved in"):
        predict_log(path, folder=path)


def test_names_of_tasks_are_shown_as_what_they_are(here):
    """No formula of a spreadsheet, and nothing that a terminal obeys."""
    names = ["=cmd|'/c calc'!A1", "+1", "-1", "@SUM(1)", "\x1b[31mred\n", "[red]plain[/red]"]
    path = write(here / "a.log", *(line(1, 1, task=[name, [], {}]) for name in names))
    predict_log(path, folder=told(), to=Path("scores.csv"))
    shown = [row["task"] for row in rows_of(Path("scores.csv"))]
    assert shown == ["'=cmd|'/c calc'!A1", "'+1", "'-1", "'@SUM(1)", "\\x1b[31mred\\n", "[red]plain[/red]"]
    assert [row[0] for row in cells(predict_log(path, folder=told()))] == [name.lstrip("'") for name in shown]

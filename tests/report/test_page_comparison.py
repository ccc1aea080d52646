"""The page of two runs: the differences of their figures, and what only one of them has."""

from __future__ import annotations

import made_up

from tcl_core.report.compare import compare
from tcl_core.report.render import render
from tests.report import page_reader
from tests.report.page_reader import Reader

undrawn = page_reader.undrawn


def changed() -> dict:
    run = made_up.run()
    run["evaluation"]["platforms"]["host-avx2"] = made_up.judged(0.914, 0.986, 0.707)
    run["evaluation"]["platforms"]["host-sse42"] = made_up.judged(0.828, 0.992, 0.730)
    run["tuned"] |= {"tuned_ms": 9.3, "pytorch_ms": 16.3}
    run["seconds"]["tune"] = 89.2
    run["made"]["parameters"] = {"seed": 0, "train.epochs": 90, "networks.train": ["resnet-50", "vit-tiny"]}
    run["errors"]["host-avx2"]["training"] = {"ok": 160}
    return run


def test_two_runs_and_the_differences_of_their_figures(undrawn):
    read = Reader(render(compare(made_up.run(), changed(), ("before", "after"))))
    rows = read.tables["Accuracy of every model"]
    assert rows[0] == ["platform", "model", "figure", "A", "B", "B - A"]
    assert ["host-avx2", "TCL", "top-1", "0.614 (0.514 to 0.714)", "0.914 (0.814 to 1.014)", "+0.300"] in rows
    assert ["host-sse42", "TCL", "top-1", "0.808 (0.708 to 0.908)", "0.828 (0.728 to 0.928)", "+0.020"] in rows
    assert ["host-avx2", "TCL", "pairs ranked right", "0.727", "0.707", "-0.020"] in rows
    assert len([cell for cell in read.all("td") if "better" in cell["class"]]) == 1  # beyond both intervals
    assert not [cell for cell in read.all("td") if "worse" in cell["class"]]
    tuning = read.tables["Tuning"]
    assert ["tuned", "12.4 ms", "9.30 ms", "0.75"] in tuning and ["tuned / PyTorch eager", "0.761", "0.571", "0.75"] in tuning
    times = read.tables["Time of each stage's last run"]
    assert ["tune", "3.0 min", "89 s", "0.50"] in times and times[-1] == ["all", "9.2 min", "7.7 min", "0.84"]
    assert read.tables["Parameters that differ"][1:] == [
        ["train.epochs", "60", "90"],
        ["networks.train", "resnet-50", "resnet-50, vit-tiny"],
    ]
    measured = read.tables["What was measured, and how well"]
    assert ["host-avx2", "training programs that failed", "3", "0", "-3"] in measured
    assert ["host-avx2", "held-out programs that failed", "0", "0", "0"] in measured
    assert "A is before: measured 2026-11-22 12:00:05 UTC, commit 0123456789ab, a CPU x2" in read.sections[""]


def test_what_other_measurements_judged_is_neither_better_nor_worse(undrawn):
    other = changed()
    other["evaluation"]["judged"]["host-avx2"]["holdout"] = "measured again"
    read = Reader(render(compare(made_up.run(), other, ("before", "after"))))
    assert ["host-avx2", "TCL", "top-1", "0.614 (0.514 to 0.714)", "0.914 (0.814 to 1.014)", "+0.300"] in read.tables[
        "Accuracy of every model"
    ]
    assert not [cell for cell in read.all("td") if "better" in cell["class"] or "worse" in cell["class"]]
    assert "or other measurements of them, which do not compare: host-avx2." in read.sections["accuracy"]


def test_milliseconds_of_other_platforms_have_no_ratio(undrawn):
    other = changed()
    other["tuned"] |= {"platform": "host-avx2"}
    tuning = Reader(render(compare(made_up.run(), other, ("before", "after")))).tables["Tuning"]
    assert ["tuned", "12.4 ms", "9.30 ms", "–"] in tuning


def test_failures_of_one_kind_are_not_compared_with_those_of_two(undrawn):
    """A copy of data/reports without report.json knows those of training only."""
    copy, whole = made_up.run(), made_up.run()
    del copy["errors"]["host-avx2"]["held-out"]
    whole["errors"]["host-avx2"]["held-out"] = {"ok": 235, "timeout": 5}
    measured = Reader(render(compare(copy, whole, ("copy", "whole")))).tables["What was measured, and how well"]
    assert ["host-avx2", "training programs that failed", "3", "3", "0"] in measured
    assert ["host-avx2", "held-out programs that failed", "–", "5", "–"] in measured


def test_a_comparison_with_a_run_that_lacks_parts(undrawn):
    first, second = made_up.run(), made_up.run()
    second |= {"tuned": {}, "seconds": {}, "made": {}, "noise": {}, "learning": {}, "left_out": []}
    del second["evaluation"]["platforms"]["host-avx512"]
    read = Reader(render(compare(first, second, ("a", "b"))))
    assert {"tuning", "time", "parameters"} & set(read.sections) == set()
    assert ["host-avx512", "TCL", "top-1", "0.546 (0.446 to 0.646)", "–", "–"] in read.tables["Accuracy of every model"]
    assert read.tables["Left out"][1:] == [
        ["A", "torch.compile", "it failed"],
        *(["B", f"{what}, beside the other run", "nothing of it is known of this run"] for what in ("tuning", "time", "parameters")),
    ]
    assert "accuracy" not in Reader(render(compare(first, second | {"evaluation": {}}, ("a", "b")))).sections


def test_runs_of_equal_parameters_are_said_to_be_so(undrawn):
    run = made_up.run()
    assert "Both runs have the same parameters." in Reader(render(compare(run, run, ("a", "b")))).sections["parameters"]

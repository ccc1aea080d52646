"""The page of a run of which something is not known: no section, a dash, or a word of it."""

from __future__ import annotations

import copy

import made_up

from tcl_core.report.compare import compare
from tcl_core.report.page import page_of
from tcl_core.report.render import render
from tests.report import page_reader
from tests.report.page_reader import Reader, without

undrawn = page_reader.undrawn


def test_a_run_without_tuning_baselines_and_with_a_skipped_platform(undrawn):
    run = made_up.run()
    skipped = run["chain"][2] | {"skipped": "this CPU lacks avx512f", "measured": 0, "held_out": 0, "champion": None}
    evaluation = copy.deepcopy(run["evaluation"])
    del evaluation["platforms"]["host-avx512"]
    for name, matrix in (("chain", evaluation["chain"]), ("knowledge_base", evaluation["knowledge_base"])):
        evaluation[name] = {**matrix, "platforms": matrix["platforms"][:2], "pairs": [row[:2] for row in matrix["pairs"][:2]]}
    read = without(
        tuned={}, evaluation=evaluation | {"baselines": {}}, chain=[*run["chain"][:2], skipped], target="host-avx2",
        collection={}, left_out=[["platform host-avx512", "this CPU lacks avx512f"]],
    )  # fmt: skip
    assert "tuning" not in read.sections and "collection" not in read.sections
    assert "skipped: this CPU lacks avx512f" in read.sections[""] and [a for a in read.all("li") if a.get("class") == "skipped"]
    assert [row[1] for row in read.tables["Accuracy on held-out programs; 1 is best"][1:]] == ["TCL", "random ranking"] * 2
    assert "0.614top-1 on host-avx2" in read.sections[""].replace("\n", "")
    assert read.tables["Left out"][1:] == [["platform host-avx512", "this CPU lacks avx512f"]]


def test_a_machine_without_repeats_has_no_chart_of_their_spread(undrawn):
    noise = {"host-avx2": {"programs": 397, "repeats": 1.0, "spread": [0.0] * 21, "disturbed": 0}}
    read = without(noise=noise)
    assert read.tables["Noise"][1] == ["host-avx2", "397", "1.0", "0.0 %", "0.0 %", "0.0 %", "0"]
    assert "Spread of repeats" not in read.sections["noise"]


def test_figures_that_are_not_known_are_dashes():
    run = made_up.run()
    run["evaluation"]["platforms"]["host-avx2"] |= {"pairwise_accuracy": None, "top_5": {"value": None, "low": None, "high": None}}
    run["evaluation"]["chain"]["pairs"][0][2] = None
    run["tuned"] |= {"pytorch_ms": None, "compile_ms": None, "compared": {}, "curve": []}
    run["made"]["changed"] = None
    read = Reader(render(page_of(run)))
    row = next(row for row in read.tables["Accuracy on held-out programs; 1 is best"] if row[:2] == ["host-avx2", "TCL"])
    assert row[2:5] == ["0.614 (0.514 to 0.714)", "–", "–"]
    assert read.tables["Pairs ranked right, of each platform's model"][1][3] == "–"
    assert [row[0] for row in read.tables["One inference"][1:]] == ["tuned", "untuned"]
    assert "PyTorch did not run it" in read.sections[""] and "params.yaml is not committed" in read.sections["provenance"]


def test_no_failed_candidate_needs_no_chart(undrawn):
    read = without(errors={"host-avx2": {"training": {"ok": 160}}})
    assert "Every candidate was built and ran." in read.sections["errors"]
    assert read.tables["Candidates by how they ended"][1:] == [["host-avx2", "training", "160", "160"]]


def test_a_report_of_tuning_that_tells_the_least(undrawn):
    """What ``tuned_report.last_tuned`` demands, and no more."""
    least = {key: made_up.tuned()[key] for key in ("network", "platform", "untuned_ms", "tuned_ms", "pytorch_ms")}
    read = without(tuned=least)
    assert "– programs of – tasks in –" in read.sections["tuning"]
    assert read.tables["One inference"][1:3] == [["tuned", "12.4 ms", "–", "–", "–"], ["PyTorch eager", "16.3 ms", "–", "–", "–"]]
    compared = Reader(render(compare(made_up.run() | {"tuned": least}, made_up.run(), ("a", "b"))))
    assert ["programs measured", "–", "200", "–"] in compared.tables["Tuning"]

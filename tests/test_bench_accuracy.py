"""The accuracy comparison's memory: what is computed once, what is shown, and what is kept for another day."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from pathlib import Path
from types import SimpleNamespace

import _accuracy_results as results
import _tables
import accuracy
import numpy as np
import pytest
from _accuracy_results import Results
from _accuracy_runs import Run

from tcl_core.features.batches import Samples
from tcl_core.reference import Case

PLATFORMS = ["a", "b"]
RUNS = [Run("reference", platform, model, seed) for platform in PLATFORMS for model in ("trees", "mamba") for seed in (0, 1)]
LOG = Run("logs", "gtx", "trees", 0)


@pytest.fixture
def made(tmp_path, monkeypatch) -> list[Run]:
    """Results and scores below ``tmp_path``; the runs that are really made, each with figures that follow from it."""
    made: list[Run] = []

    def figures(run: Run, case: object, *_: Path) -> dict:
        made.append(run)
        top1 = (0.9 if run.model == "mamba" else 0.5) + 0.01 * run.seed
        told = {"pairs": top1, "u16": top1, "top1": top1, "top5": 1.0, "spearman": 0.0, "parameters": 7}
        return told | {"tasks": list(range(12)), "of_tasks": {name: [top1] * 12 for name in ("pairs", "u16", "top1")}}

    monkeypatch.setattr(results, "figures", figures)
    monkeypatch.setattr(Results, "case", lambda self, run: None)
    monkeypatch.setattr(_tables, "RESULTS", tmp_path)
    monkeypatch.setattr(results, "identity", lambda model, data, settings: f"{model} {data} {settings}")
    monkeypatch.setattr(results, "data_identity", lambda *_: {"reference": "1", "logs": "1"})
    return made


def bench(force: bool = False) -> Results:
    reference = SimpleNamespace(platforms=PLATFORMS, folder=Path("reference"))
    reference.sets = (reference,)
    return Results({"reference": reference, "prepared": reference}, Path("logs"), force, _tables.RESULTS)


def stored() -> dict:
    return json.loads((_tables.RESULTS / "accuracy.json").read_text())


def test_a_run_is_made_once(made):
    bench().compute(RUNS)
    assert made == RUNS
    bench().compute([*RUNS, LOG])
    assert made == [*RUNS, LOG]
    bench(force=True).compute(RUNS[:1])
    assert made == [*RUNS, LOG, RUNS[0]]
    assert len(stored()["runs"]) == len(RUNS) + 1


def test_a_comparison_that_is_broken_off_goes_on(made, monkeypatch):
    whole = results.figures

    def dies(run, case, *kept):
        if len(made) == 3:
            raise KeyboardInterrupt
        return whole(run, case, *kept)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(results, "figures", dies)
        bench().compute(RUNS)
    assert len(stored()["runs"]) == 3
    bench().compute(RUNS)
    assert made == RUNS


def test_runs_of_other_code_or_data_stay_published_until_all_are_made_again(made, monkeypatch):
    bench().compute([*RUNS, LOG])
    monkeypatch.setattr(results, "data_identity", lambda *_: {"reference": "1", "logs": "none here"})
    elsewhere = bench()
    elsewhere.compute(RUNS)
    assert made == [*RUNS, LOG] and LOG not in elsewhere.known
    assert astuple(LOG) in [tuple(row["run"]) for row in stored()["runs"]]
    elsewhere.write()
    before = stored()["summary"]
    assert set(before) == {"a", "b", LOG.platform} and elsewhere.outdated() == {"logs"}
    monkeypatch.setattr(results, "identity", lambda *_: "new code")
    changed = bench()
    assert not changed.known
    shifted = results.figures
    monkeypatch.setattr(results, "figures", lambda *given: shifted(*given) | {"top1": 1.0})
    changed.compute(RUNS[:1])
    assert stored()["summary"] == before and changed.outdated() == {"reference", "logs"} and len(stored()["runs"]) == len(RUNS) + 1
    assert made[-1] == RUNS[0]
    changed.compute(RUNS)
    assert stored()["summary"]["a"]["trees"]["top1"][0] == 1.0 and stored()["summary"][LOG.platform] == before[LOG.platform]


def test_two_at_once_lose_nothing_of_each_other(made):
    first, second = bench(), bench()
    first.compute(RUNS[:2])
    second.compute(RUNS[2:4])
    first.compute(RUNS[4:5])
    assert [Run(*row["run"]) for row in stored()["runs"]] == [*RUNS[:5]]


def test_the_summary_has_means_intervals_and_sizes_and_models_are_compared_with_ours(made):
    bench().compute(RUNS)
    summary = stored()["summary"]["a"]["trees"]
    mean, low, high = summary["top1"]
    assert mean == pytest.approx(0.505) and low < mean < high and summary["parameters"] == 7
    rows = {(row["platform"], row["model"]): row for row in stored()["compared"]}
    assert rows["b", "trees"]["u16_ours_less"] == pytest.approx([0.4] * 3) and rows["b", "trees"]["seeds"] == 2


def test_points_of_a_curve_are_not_in_the_summary(made):
    bench().compute([*RUNS[:2], Run("reference", "a", "trees", 0, tasks=19)])
    assert stored()["summary"]["a"]["trees"]["top1"][0] == pytest.approx(0.505)


def test_an_outdated_curve_does_not_keep_the_tables_back(made, monkeypatch):
    bench().compute([*RUNS, Run("reference", "a", "trees", 0, tasks=19)])
    monkeypatch.setattr(results, "identity", lambda *_: "new code")
    shifted = results.figures
    monkeypatch.setattr(results, "figures", lambda *given: shifted(*given) | {"top1": 1.0})
    changed = bench()
    changed.compute(RUNS)
    assert changed.outdated() == {"curve"} and stored()["summary"]["a"]["trees"]["top1"][0] == 1.0


def test_a_data_set_is_not_taken_for_another_with_the_same_platforms(made):
    prepared = [Run("prepared", run.platform, run.model, run.seed) for run in RUNS]
    bench().compute([*RUNS[:1], *prepared])
    assert set(stored()["summary"]) == {"a", "a, prepared", "b, prepared"}
    assert [row["data"] for row in stored()["compared"]] == ["prepared"] * 4


def test_the_sealed_networks_are_ranked_only_when_asked_for(made):
    of = bench()
    of.sets = dict.fromkeys(accuracy.SETS, of.reference)
    asked = lambda part: {run.data for run in accuracy.wanted(of, part, ["trees"], 2, False, ())}  # noqa: E731
    both = {"prepared", "registers"}
    assert asked(None) == {"reference", *both, "searched"} and asked("prepared") == both
    assert asked("sealed") == {"sealed", "sealed-registers"}
    assert {run.platform for run in accuracy.wanted(of, "searched", ["trees", "tcl"], 2, False, ())} == {PLATFORMS[-1]}
    assert {run.model for run in accuracy.wanted(of, "searched", ["trees", "tcl"], 2, False, ())} == {"trees"}
    assert {run.data for run in accuracy.wanted(of, None, ["trees"], 2, True, ())} == {"reference"}


def test_a_model_that_was_trained_for_the_prepared_networks_ranks_the_sealed_ones(made, monkeypatch):
    twins = [Run("prepared", "a", "trees", seed) for seed in (0, 1)]
    sealed = [replace(run, data="sealed") for run in twins]
    of = bench()
    of.compute(twins)
    for twin in twins:
        of.known[twin] |= {"train_s": 5.0, "trained_programs": 80}
    of.model_of(twins[0]).mkdir(parents=True)  # the other's is not at hand
    seconds, tasks = np.tile([1.0, 2.0, 3.0, 4.0], 2), np.repeat([0, 1], 4).astype(np.int32)
    tested = Samples(np.zeros((8, 1, 1), np.float32), np.ones(8, np.int32), tasks, seconds)
    of.sets = {"sealed": SimpleNamespace(case=lambda platform, reads, split: Case(tested, tested, {"net": {0: 1.0, 1: 1.0}}))}
    slowest_first = SimpleNamespace(predict=lambda samples: samples.latencies_s, parameter_count=lambda: 3)
    monkeypatch.setattr(results.catalogue, "load", lambda folder: slowest_first)
    of.compute(sealed)
    assert made == [*twins, sealed[1]]
    found = of.known[sealed[0]]
    assert (found["pairs"], found["top1"], found["train_s"], found["tested_programs"]) == (0, 0.25, 5.0, 8)

"""What one platform is worth on another: the same steps for every row, programs matched across devices, figures task by task."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import _tables
import _transfer_machines as machines
import _transfer_rows as rows
import numpy as np
import pytest
import torch
from _datasets import Reference
from _transfer_data import EACH, FOLDS, Side, Targets, joined, shared_out
from _transfer_plot import by_labels
from _transfer_rows import (
    LITTLE, MOST_EPOCHS, OURS, ROWS, TENTH, WHOLE, ZERO_SHOT, Earlier, Learned, Lesson, Row, _under_head, batches, epochs_of, replayed, steps_of,
)  # fmt: skip
from _transfer_tables import beside_plain, beside_table, best_variant, summary, tables
from synthetic import FEATURES, ranking_problem
from _transfer_units import Learning, Unit, judge, lesson_of
from transfer import Bench, is_chain, planned

from tcl_core import store
from tcl_core.chain.state import ChainState
from tcl_core.features.batches import Samples
from tcl_core.learning.fit import FitSettings
from tcl_core.models.mtl_tlp import MtlTlpModel, MtlTlpNetwork

ROOT = Path(__file__).resolve().parents[1]
FIT = FitSettings(epochs=3, batch_size=32)


def lesson(few: Samples, rest: Samples, earlier: tuple[Earlier, ...] = ()) -> Lesson:
    return Lesson(ChainState(None, None, {}), few, rest, np.full(len(few) + len(rest), np.nan), earlier, FIT)


def test_every_row_comes_within_half_an_epoch_of_the_bridges_steps():
    whole = ranking_problem(tasks=12, programs=16)
    few = whole.take(np.arange(20))
    steps = lesson(few, whole).steps  # without an earlier platform nothing is rehearsed
    assert steps == FIT.epochs * batches(np.concatenate([few.tasks, whole.tasks]), FIT)
    for train in (few, whole, replayed(few, [whole])):
        of_epoch = batches(train.tasks, FIT)
        assert abs(epochs_of(train, FIT, steps) * of_epoch - steps) <= of_epoch / 2
    assert epochs_of(few, FIT, 10**6) == MOST_EPOCHS and epochs_of(whole, FIT, 1) == 1


def test_fewer_steps_are_a_tenth_or_params_yamls_epochs():
    given = lesson(ranking_problem(tasks=3, programs=16), ranking_problem(tasks=12, programs=256))
    assert steps_of(WHOLE, given) == given.steps and steps_of(TENTH, given) == given.steps // 10
    assert steps_of(LITTLE, given) == 20 * 2 and steps_of(LITTLE, given, phases=2) == 80 < given.steps


def test_replay_shows_the_few_as_often_as_the_rest_and_ranks_none_across():
    few, known = ranking_problem(tasks=3, programs=4), ranking_problem(seed=1, tasks=6, programs=16)
    both = replayed(few, [known])
    assert len(both) == 8 * len(few) + len(known) and 8 * len(few) == len(known)
    sizes = np.unique(both.tasks, return_counts=True)[1]
    assert sorted(sizes.tolist()) == [4] * 24 + [16] * 6
    np.testing.assert_array_equal(both.features[-len(known) :], known.features)  # their hardware's row with them


def test_each_head_of_mtl_tlp_ranks_its_own_platform():
    model, samples = MtlTlpModel(), ranking_problem()
    model.network = MtlTlpNetwork(FEATURES, platforms=2)
    other = _under_head(model, 1)
    tokens, lengths = torch.from_numpy(samples.features), torch.from_numpy(samples.lengths.astype(np.int64))
    with torch.no_grad():
        wanted = model.network.heads[1](model.network.trunk(tokens, lengths), lengths).numpy()
    np.testing.assert_allclose(other.predict(samples), wanted, atol=1e-5)
    assert not np.allclose(model.predict(samples), wanted, atol=1e-3)


@pytest.mark.parametrize("method", ["own", "own-taught", "fine-tuned", "ckd", "ckd-mended"])
def test_where_nothing_can_be_compared_nothing_is_learned(method):
    samples = ranking_problem(tasks=6, programs=16)
    given = lesson(samples.take(np.arange(6) * 16), samples)
    for learn in ROWS[method].variants.values():
        learned = learn(given)
        assert learned.steps == 0 and len(learned.models) == 1
        if method.startswith("own"):
            assert not learned.models[0].predict(samples).any()
        else:
            assert learned.models[0] is given.state.knowledge_base


def test_where_nothing_can_be_compared_mtl_tlp_ranks_by_the_nearest_sources_head(monkeypatch):
    """The target's own head would have nothing to learn, from programs that are alone in their tasks or failed."""
    monkeypatch.setattr(rows, "MTL_TLP_PROGRAMS", 1)
    samples = ranking_problem(tasks=6, programs=16)
    earlier = (Earlier(samples, (1.0,)), Earlier(samples, (2.0,)))
    lone, several = samples.take(np.arange(6) * 16), samples.take(np.arange(12))
    learn = ROWS["mtl-tlp"].variants[WHOLE]
    for few in (lone, replace(several, latencies_s=np.full(12, np.inf))):
        first, second, own = learn(lesson(few, samples, earlier)).models
        assert own is second and not np.array_equal(first.predict(samples), second.predict(samples))
    first, second, own = learn(lesson(several, samples, earlier)).models
    assert len({id(first), id(second), id(own)}) == 3
    first, second, own = learn(lesson(lone, samples, (earlier[0], Earlier(lone, (2.0,))))).models
    assert own is second is first  # of a chain whose second platform has as few


def test_a_unit_is_judged_on_the_tested_tasks_of_each_platform_and_learns_along_the_chain(monkeypatch):
    """The second platform's model ranks all right, the last one's all wrong, and so it has forgotten all."""

    class Knows:
        def __init__(self, sign: int) -> None:
            self.sign = sign

        def predict(self, samples: Samples) -> np.ndarray:
            return -self.sign * np.log(samples.latencies_s)

    train, test = ranking_problem(tasks=4, programs=8), ranking_problem(seed=1, tasks=3, programs=8)
    test = replace(test, tasks=test.tasks + np.int32(10))
    sides = [Side(train, test, train.take(np.arange(2)), (float(k),)) for k in range(3)]
    learning = Learning(SimpleNamespace(sides=lambda chain, fold: sides), list)
    monkeypatch.setattr(learning, "_first", lambda chain, fold: ChainState(Knows(1), Knows(1), {}))
    lessons: list[Lesson] = []

    def learn(given: Lesson) -> Learned:
        lessons.append(given)
        model = Knows(1 if len(lessons) == 1 else -1)
        return Learned((model,) * (len(given.earlier) + 1), replace(given.state, model=model, knowledge_base=model), 7)

    monkeypatch.setitem(ROWS, "stub", Row({WHOLE: learn}, sequential=True))
    monkeypatch.setattr(learning, "_data", lambda chain: learning.targets)
    found = learning.figures(Unit("a>b>c", 8, "stub", 0))
    assert found["tasks"] == [10, 11, 12] and found["pairs"] == [0.0] * 3 and found["forgetting"] == [1.0] * 3
    assert found["on"] == {"a": 0.0, "b": 0.0, "c": 0.0} and found["steps"] == 7
    assert [len(each.few) for each in lessons] == [8, 8] and [len(each.earlier) for each in lessons] == [1, 2]
    assert lessons[1].state.model.sign == 1 and learning.figures(Unit("a>b>c", 0, ZERO_SHOT, 0))["forgetting"] == [0.0] * 3


def test_programs_are_joined_by_what_they_are():
    """Their first measurement counts, in one order, under one numbering of tasks."""
    samples = ranking_problem(tasks=3, programs=2)
    keys = [("b", 1, b"x"), ("b", 1, b"y"), ("a", 1, b"x"), ("a", 2, b"x"), ("c", 1, b"x"), ("b", 1, b"x")]
    others = [("a", 2, b"x"), ("b", 1, b"x"), ("b", 1, b"z"), ("c", 9, b"x"), ("a", 1, b"x"), ("d", 1, b"x")]
    one, two = joined([(samples, keys), (samples, others)])
    np.testing.assert_array_equal(one.latencies_s, samples.latencies_s[[2, 3, 0]])
    np.testing.assert_array_equal(two.latencies_s, samples.latencies_s[[4, 0, 1]])
    assert one.tasks.tolist() == two.tasks.tolist() == [0, 0, 1] and one.task_names == ("a", "b")


def test_each_task_is_tested_once_and_never_where_it_is_trained_on():
    tasks = np.repeat(np.arange(10, dtype=np.int32), 3 * EACH)
    tested = []
    for fold in range(len(FOLDS)):
        train, drawn, test = shared_out(tasks, fold)
        assert not set(train) & set(drawn) and not set(tasks[train]) & set(tasks[test])
        assert len(train) == len(drawn) == EACH * len(np.unique(tasks[train]))
        tested += np.unique(tasks[test]).tolist()
    assert sorted(tested) == list(range(10))


def test_machines_are_compared_by_programs_that_both_measured(tmp_path, monkeypatch):
    """The second machine measured the first half of the first one's programs."""
    monkeypatch.setattr(machines, "ROOT", tmp_path)
    some = {row["task_key"] for row in store.read_table(ROOT / "data" / "registers" / "tasks.parquet", "tasks")[::8]}
    for machine, share in (("registers", 1), ("epyc/registers", 2)):
        folder = tmp_path / "data" / machine
        shutil.copytree(ROOT / "data" / "registers", folder)
        for place in folder.glob("platform=*"):
            records = [record for record in store.read_records(place) if record.task_key in some]
            store.write_records(place, records[: len(records) // share])
    whole = machines.Machines(tmp_path, 8)
    rows = store.read_table(folder / "programs.parquet", "programs")[::40]
    drawn = [(row["task_key"], row["sketch_id"], tuple(row["decisions"])) for row in rows]
    monkeypatch.setattr(machines, "_drawn_keys", lambda reference: drawn)
    before, after = whole.sides(("xeon-avx512", "epyc-avx2"), 0)
    assert whole.platforms == [f"{of}-{name}" for of in ("xeon", "epyc") for name in ("sse42", "avx2", "avx512")]
    np.testing.assert_array_equal(before.train.tasks, after.train.tasks)
    assert len(before.train) + len(before.test) < len(records) and set(before.train.tasks).isdisjoint(before.test.tasks)
    assert len(before.drawn) == len(after.drawn) > 0 and set(before.drawn.tasks) <= set(before.train.tasks)
    alone = store.read_records(folder / "platform=host-avx2")
    kept = {(r.task_key, r.sketch_id, r.decisions): r.latency_s for r in alone}
    assert set(after.test.latencies_s) <= set(kept.values()) and before.hardware != after.hardware
    assert whole.known_from(("xeon-avx512", "epyc-avx2")) == ("xeon-avx512", "epyc", "xeon")


def test_a_chain_knows_all_of_its_first_platform_and_as_few_of_the_next_as_of_the_last():
    seconds = np.arange(1.0, 13.0)
    base = replace(ranking_problem(tasks=3, programs=4), latencies_s=seconds)
    sides = [Side(replace(base, latencies_s=seconds * k), base, base.take(np.arange(2)), (float(k),)) for k in (1, 10, 100)]
    two, three = (lesson_of(5, sides[:n], None, FIT) for n in (2, 3))
    assert np.isnan(two.rest.latencies_s).all()  # so no row can learn from what counts as not measured
    (source_s,) = two.sources_s
    assert np.isfinite(source_s).sum() == 12 and len(source_s) == len(two.few) + len(two.rest) == 14
    np.testing.assert_array_equal(source_s[:5] * 10, two.few.latencies_s)
    near_s, far_s = three.sources_s
    np.testing.assert_array_equal(near_s[:5] * 10, three.few.latencies_s)
    assert np.isnan(near_s[5:]).all()
    np.testing.assert_array_equal(far_s, source_s)
    assert [len(platform.measured) for platform in three.earlier] == [12, 5] and three.hardware == [(1.0,), (10.0,)]
    everything = lesson_of("all", sides[:2], None, FIT)
    assert len(everything.few) == 12 and len(everything.rest) == 2 and np.isnan(everything.sources_s[0][12:]).all()


def test_a_model_is_judged_task_by_task_where_programs_differ():
    tokens = np.zeros((7, 1, 1), np.float32)
    tasks, seconds = np.array([0, 0, 0, 1, 1, 2, 2], np.int32), np.array([1.0, 2.0, 4.0, 3.0, 3.0, 1.0, np.inf])

    class Fixed:
        def predict(self, samples):
            return np.array([2.0, 3.0, 1.0, 0.0, 1.0, 1.0, 0.0])

    found = judge(Fixed(), Samples(tokens, np.ones(7, np.int32), tasks, seconds))
    assert found["pairs"] == {0: pytest.approx(2 / 3), 2: 1.0}
    assert found["top1"] == found["u16"] == {0: pytest.approx(0.5), 2: 1.0}


def of(pairs: dict[int, float], steps: int = 10) -> dict[str, object]:
    values = list(pairs.values())
    return {
        "tasks": list(pairs), **dict.fromkeys(("pairs", "u16", "top1"), values), "forgetting": [0.5 - x for x in values],
        "on": {"host-a": 0.5, "host-b": float(np.mean(values))}, "steps": steps,
    }  # fmt: skip


def units() -> dict[Unit, dict[str, object]]:
    """Two folds of ten tasks each, of which both test task 0."""
    first, second = range(10), (0, *range(10, 19))
    found = {Unit("host-a>host-b", 0, ZERO_SHOT, n): of(dict.fromkeys(tasks, 0.5)) for n, tasks in enumerate((first, second))}
    for n, tasks in enumerate((first, second)):
        found[Unit("host-a>host-b", 160, OURS, n)] = of({task: 0.6 if n == 0 else 0.8 for task in tasks})
        found[Unit("host-a>host-b", 160, "own", n, TENTH)] = of(dict.fromkeys(tasks, 0.4))
        found[Unit("host-a>host-b", 160, "own", n, WHOLE)] = of(dict.fromkeys(tasks, 0.3 if n == 0 else 0.9))
    return found


def test_the_summary_is_over_the_tasks_of_all_folds_and_counts_a_task_once():
    row = summary(units())["a>b"]["160"][OURS]
    expected = (10 * 0.6 + 9 * 0.8) / 19  # task 0, which both folds test, in the first
    assert row["pairs"][0] == pytest.approx(expected) and row["pairs"][1] < expected < row["pairs"][2]
    assert row["pairs_less_zero_shot"][0] == pytest.approx(expected - 0.5) and row["pairs_less_zero_shot"][1] > 0
    assert row["pairs_less_ours"] == [0.0, 0.0, 0.0] and row["forgetting"][0] == pytest.approx(0.5 - expected)
    assert row["on"] == {"a": 0.5, "b": pytest.approx(0.7)} and row["folds"] == 2
    zero = summary(units())["a>b"]["160"]["zero-shot"]  # it learned no labels, and stands beside those that did
    assert zero["pairs"][0] == 0.5 and zero["pairs_less_ours"][0] == pytest.approx(0.5 - expected)


def test_the_variant_that_the_first_fold_says_counts_on_all():
    """Not the one that a later fold would rather have."""
    assert best_variant(units(), "host-a>host-b", 160, "own") == TENTH
    row = summary(units())["a>b"]["160"]["own"]
    assert row["variant"] == TENTH and row["pairs"][0] == pytest.approx(0.4) and row["pairs_less_ours"][2] < 0
    assert best_variant(units(), "host-a>host-b", 16, "own") is None


def test_the_tables_mark_what_differs_from_ours():
    text = tables(summary(units()))
    line = next(line for line in text.splitlines() if line.startswith("| a to b"))
    assert line == "| a to b | 0.500* | 0.400* | 0.695 |" and "| from, to | zero-shot | own | ours |" in text  # of methods that were run
    assert tables(summary({unit: found for unit, found in units().items() if unit.labels == 0})).count("0.500") == 1


def test_tables_by_number_of_labels_hold_what_was_run():
    """Means over equal pairs alone, a dash for a method that lacks one, and no row of a pair that was run once only."""
    found = units() | {replace(unit, pair="host-b>host-a"): figures for unit, figures in units().items()}
    folds = (range(10), (0, *range(10, 19)))
    for pair, labels, method, right in (
        ("host-a>host-b", 2400, OURS, 0.9), ("host-a>host-b", "all", OURS, 0.9), ("host-a>host-b", 2400, "own", 0.7), ("host-b>host-a", 2400, OURS, 0.9),
    ):  # fmt: skip
        found |= {Unit(pair, labels, method, fold): of(dict.fromkeys(tasks, right)) for fold, tasks in enumerate(folds)}
    found |= {replace(unit, pair="i5-1035g1>cortex-a72"): figures for unit, figures in units().items()}  # not in the means
    means, sizes = tables(summary(found)).split("Pairs ranked right, ")[2:4]
    assert "| learned by | 160 labels (2 pairs) | 2400 labels (2 pairs) |" in means  # all labels: of one pair
    assert "| own | 0.400 | - |" in means and "| ours | 0.695 | 0.900 |" in means and "| zero-shot | 0.500 | 0.500 |" in means
    rows = [line for line in sizes.split("U16")[0].splitlines() if line.startswith(("| a to b", "| b to a"))]
    assert rows == [
        "| a to b | own | 0.500 | 0.400* | 0.700* | - |",
        "| a to b | ours | 0.500 | 0.695 | 0.900 | 0.900 |",
        "| b to a | ours | 0.500 | 0.695 | 0.900 | - |",
    ]
    assert "by number of labels" not in tables(summary(units()))


def test_the_plot_has_a_panel_for_each_pair_with_several_numbers_of_labels():
    assert by_labels(summary(units())) is None
    found = units() | {Unit("host-a>host-b", "all", OURS, 0): of(dict.fromkeys(range(10), 0.9))}
    found |= {replace(unit, pair="host-b>host-a"): figures for unit, figures in units().items()}
    figure = by_labels(summary(found))
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == ["a to b, zero-shot 0.500"]
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["160", "all"]
    drawn = {line.get_label(): line for line in axes.get_lines()}
    assert drawn[OURS].get_xydata() == pytest.approx(np.array([[0, 0.695 - 0.5], [1, 0.4]]), abs=1e-3)
    assert drawn["own"].get_xydata() == pytest.approx(np.array([[0, -0.1]]))


def test_a_difference_in_what_is_forgotten_has_its_star_and_who_never_knew_has_no_figure():
    found = {replace(unit, pair="host-x>host-a>host-b"): figures for unit, figures in units().items()}
    for unit, figures in found.items():
        if unit.method == OURS:
            figures["forgetting"] = [-0.5] * len(figures["tasks"])
    whole = summary(found)
    assert whole["x>a>b"]["160"]["own"]["forgetting_less_ours"] == pytest.approx([0.6, 0.6, 0.6])
    forgotten = tables(whole).split("Pairs forgotten before")[1]
    line = next(line for line in forgotten.splitlines() if line.startswith("| x to a to b"))
    assert line.startswith("| x to a to b | 0.000* | - |") and line.endswith(" -0.500 |")
    two = tables(summary(units())).split("Pairs forgotten before")[1]
    assert "| a to b | 0.000" in two and "0.100" in two


def test_what_the_estimate_adds_is_said_for_what_both_kinds_of_network_learned():
    """Task by task on the same folds; the plain ones rank a fifth fewer pairs right."""
    plain = {unit: {**found, "pairs": [0.8 * x for x in found["pairs"]]} for unit, found in units().items() if unit.method != "own"}
    found = beside_plain(units(), plain)
    assert list(found["a>b"]) == ["0", "160"] and list(found["a>b"]["160"]) == [OURS]
    row, mine = found["a>b"]["0"][ZERO_SHOT], summary(units())["a>b"]["160"]["zero-shot"]
    assert row["pairs"] == pytest.approx(0.4) and row["pairs_less_plain"] == pytest.approx([0.1] * 3) and row["u16"] == mine["u16"][0]
    assert "| a to b | 0.400, +0.100 (+0.100 to +0.100) |" in beside_table(found, "160")
    fewer = {unit: found for unit, found in plain.items() if unit.fold == 0}
    assert beside_plain(units(), fewer) == {}
    assert "own-taught" not in beside_table(found, "160")  # which nobody ran
    assert "| - |" in beside_table(found | {"b>a": {"0": found["a>b"]["0"]}}, "160")


def test_the_plan_asks_for_variants_on_the_first_fold_alone():
    plan = planned(["a>b"], [160], 2)
    assert plan.count(Unit("a>b", 0, ZERO_SHOT, 0)) == 1 and len(plan) == len(set(plan)) == 2 + 23 + 10
    assert planned(["a>b"], [0], 1) == [Unit("a>b", 0, ZERO_SHOT, 0)] == planned(["a>b"], [16, 160], 1)[:1]
    assert [unit.variant for unit in plan if (unit.method, unit.fold) == ("own", 1)] == [None]
    assert [unit.method for unit in planned(["a>b"], [160], 1, [OURS])] == [ZERO_SHOT, OURS]
    assert is_chain("a>b>c", "abc") and not is_chain("a>a", "abc") and not is_chain("a", "abc") and not is_chain("a>x", "abc")


def test_units_of_other_code_are_published_until_all_are_computed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(_tables, "RESULTS", tmp_path)
    targets = Targets(Reference(ROOT / "data" / "reference", tmp_path, 8))
    new = lambda: Bench(targets, tmp_path / "none", tmp_path)  # noqa: E731
    row = {"unit": ["host-avx2>host-avx512", "all", "own", 1, TENTH], "figures": of({1: 0.5})}
    device = {"unit": ["ryzen-3700x>i5-1035g1", 16, OURS, 0, WHOLE], "figures": of({1: 0.5})}
    shown, begun = tmp_path / "transfer.json", tmp_path / "transfer_begun.json"
    shown.write_text(json.dumps({"identity": new().identity, "units": [row, device]}))
    bench = new()
    assert bench.units == {Unit(*row["unit"]): row["figures"], Unit(*device["unit"]): device["figures"]}
    assert bench.resolved(Unit(*row["unit"][:4], None)).variant is None  # the first fold has said nothing yet
    second = row | {"unit": ["host-sse42>host-avx512", *row["unit"][1:]]}
    for other in ("before there were two", {"reference": "x", "logs": "x"}):
        shown.write_text(json.dumps({"identity": other, "units": [row, second]}))
        bench = new()
        assert bench.units == {}
        bench.units[Unit(*row["unit"])] = of({1: 0.7})
        bench.save()
        assert json.loads(shown.read_text())["units"] == [row, second] and new().units == bench.units
        bench.units[Unit(*second["unit"])] = of({1: 0.7})
        bench.save()
        assert len(json.loads(shown.read_text())["units"]) == 2 and new().units == bench.units and not begun.exists()


def test_each_unit_is_saved_when_it_ends_and_what_a_fold_said_is_followed(tmp_path, monkeypatch):
    """Killed in the third unit: two are in the file, and with them the summary of what there is."""
    monkeypatch.setattr(_tables, "RESULTS", tmp_path)
    written = []
    monkeypatch.setattr(_tables, "save", lambda name, result, command: written.append(result))
    bench = Bench(Targets(Reference(ROOT / "data" / "reference", tmp_path, 8)), tmp_path / "none", tmp_path)
    figures = {0: of({1: 0.4}), 1: of({1: 0.6}), 2: KeyboardInterrupt()}

    def learn(unit):
        if isinstance(found := figures[len(bench.units)], BaseException):
            raise found
        return found

    monkeypatch.setattr(bench.learning, "figures", learn)
    plan = [Unit("a>b", 160, "own", 0, WHOLE), Unit("a>b", 160, "own", 0, TENTH), Unit("a>b", 160, "own", 1, None)]
    with pytest.raises(KeyboardInterrupt):
        bench.run(plan, np.inf)
    assert [len(result["units"]) for result in written] == [1, 2, 2]
    assert written[-1]["summary"]["a>b"]["160"]["own"]["variant"] == TENTH
    figures[2] = of({2: 0.5})
    bench.run(plan, np.inf)
    assert Unit("a>b", 160, "own", 1, TENTH) in bench.units and len(bench.units) == 3
    bench.run([Unit("a>b", 16, "own", 0, WHOLE)], -np.inf)  # its time is over
    assert len(bench.units) == 3

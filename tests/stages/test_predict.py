"""`tcl predict`: scores are the model's own, ranks and figures are told by hand, and the table shows the best."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tcl_core import registry, store
from tcl_core.errors import RegistryError
from tcl_core.features.batches import concatenate
from tcl_core.features.encode import Encoder
from tcl_core.programs.tuning_logs import reading
from tcl_core.registry.connection import opened
from tcl_core.stages import predict
from tcl_core.stages.predict import Scored, at_most
from tcl_core.stages.workspace import Workspace
from tests.commands import tcl
from tests.programs.log_lines import ansor_line, write
from tests.stages import predicted
from tests.stages.exchanged import TARGET, import_logs, imported_batches, measured, write_pool
from tests.stages.predicted import DENSE, HARDWARE, Told, cells, line, predict_log, rows_of, told, trained

here = predicted.here


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """One registry for the module, for making one takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path_factory.mktemp('registry')}/mlflow.db")
        with opened(alone=True):  # which makes it
            pass
        yield


def split(number: int, seconds: float, error: int = 0, **changes):
    """A program of Ansor, of one of two sketches."""
    steps = [["SP", 2, 0, 1024, [1, 2**number, 2, 8], 1], ["AN", 2, 0, 3], ["CI", 1]][: 2 + number % 2]
    return ansor_line(steps, ([seconds], error, 1, 1000), **changes)


def column(rows: list[dict[str, str]], name: str) -> list[float]:
    return [float(row[name]) for row in rows]


# --- scores ---


def test_an_exported_database_is_scored_as_the_records_that_it_was_made_of(here, matmul, conv, database):
    rng = np.random.default_rng(0)
    write_pool("train", matmul, conv)
    folder = Workspace().records_folder("host-avx2")
    store.write_records(folder, [*measured(matmul, rng, TARGET), *measured(conv, rng, TARGET)])
    tcl("export", "-p", "host-avx2", "--to", here / "database")
    records = sorted(store.read_records(folder), key=lambda record: record.latency_s)
    encoder = Encoder([matmul.task, conv.task], [*matmul.rows(), *conv.rows()])
    samples = encoder.encode([r.key for r in records], HARDWARE.vector(), [r.latency_s for r in records])
    model = trained(samples, here / "model")
    version = registry.register("p-scored", here / "model", {}, {}, {})
    registry.promote("p-scored", version, True, "the first", None)

    said = predict_log(here / "database", "p-scored", to=here / "scores.csv")

    rows = sorted(rows_of(here / "scores.csv"), key=lambda row: float(row["latency_s"]))
    assert column(rows, "latency_s") == pytest.approx([r.latency_s for r in records], rel=1e-6)
    assert [row["task_key"] for row in rows] == [r.task_key for r in records]
    expected = model.predict(samples)
    assert np.ptp(expected) > 0.01
    np.testing.assert_allclose(column(rows, "score"), expected, rtol=1e-5, atol=1e-6)
    assert said.startswith(f"database (MetaSchedule): {len(rows)} programs of {len(rows)} lines: {len(rows)} ok\n")
    assert "scored by the tlp model in " in said and ", the champion of p-scored (version 1); hardware row: " in said
    assert said.endswith(f"{len(rows)} scores, which compare only within a task -> {here / 'scores.csv'}")
    assert not (here / "scores.csv.refused.txt").exists() and not Path("data/imported").exists()


@pytest.mark.parametrize("with_hardware", [True, False])
@pytest.mark.parametrize("lines_read, block", [(65_536, 16_384), (4, 2)])
def test_a_zipped_log_is_scored_as_if_it_were_imported(here, monkeypatch, with_hardware, lines_read, block):
    """However much is read and encoded at a time; tasks and sketches that come later are met too."""
    first = [split(n, 0.5 + n) for n in range(5)]
    second = [split(n, 10.5 + n, key='["conv2d", 7]') for n in range(5)]
    path = write(here / "a100.json.gz", *first, split(5, 1.0, error=4), "garbage", *second)
    import_logs([path], "p")
    samples = concatenate(list(imported_batches("p", hardware=HARDWARE.vector() if with_hardware else ())))
    model = trained(samples, here / "model", with_hardware)
    monkeypatch.setattr(reading, "BLOCK", lines_read)
    monkeypatch.setattr(predict, "BLOCK", block)
    shutil.rmtree("data")

    said = predict_log(path, folder=here / "model", to=here / "scores.csv")

    rows = rows_of(here / "scores.csv")
    assert [int(row["line"]) for row in rows] == [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12]
    assert [row["task"] for row in rows] == ["matmul 512 64"] * 6 + ["conv2d 7"] * 5 and rows[5]["latency_s"] == ""
    found = {row["latency_s"]: float(row["score"]) for row in rows}
    latencies = [f"{s:.9g}" if np.isfinite(s) else "" for s in samples.latencies_s]
    expected = model.predict(samples)
    assert len(found) == 11 and np.ptp(expected) > 0.01
    np.testing.assert_allclose([found[latency] for latency in latencies], expected, rtol=1e-5, atol=1e-6)
    for row in rows:
        better = [o for o in rows if o["task_key"] == row["task_key"] and float(o["score"]) > float(row["score"])]
        assert int(row["rank"]) == 1 + len(better)
    assert ("hardware row: none, for none was saved" in said) is not with_hardware
    assert not Path("data").exists()


def test_no_more_than_a_block_is_encoded_at_a_time(here, monkeypatch):
    monkeypatch.setattr(predict, "BLOCK", 3)
    predict_log(write(here / "a.log", *(line(n, n) for n in range(1, 9))), folder=told())
    assert Told.calls == [3, 3, 2]


# --- ranks and figures ---


def scored(tasks: list[int], scores: list[float]) -> Scored:
    count = len(tasks)
    arrays = np.arange(1, count + 1), np.array(tasks), np.ones(count), np.array(scores, dtype=np.float32)
    return Scored(*arrays, keys=("a", "b"), names=("task a", "task b"))


def test_ranks_and_the_best_are_those_of_a_task():
    found = scored([0, 1, 0, 0, 1, 0], [0.5, 3.0, 0.7, 0.5, 4.0, 0.1])
    assert found.ranks.tolist() == [2, 2, 1, 2, 1, 4]
    assert [rows.tolist() for rows in found.best(2)] == [[2, 0], [4, 1]]
    assert [rows.tolist() for rows in found.best(None)] == [[2, 0, 3, 5], [4, 1]]


def test_pairs_of_a_great_task_are_those_of_evenly_spread_programs():
    assert at_most(4, np.array([0] * 10 + [1] * 4)).tolist() == [0, 3, 6, 9, 10, 11, 12, 13]


@pytest.mark.parametrize(
    "how, top_1, pairs, correlation",
    [("best", 1.0, 1.0, 1.0), ("worst", 0.25, 0.0, -1.0), ("equal", 0.4, 0.5, 0.0)],
)
def test_a_log_that_was_measured_shows_what_the_model_is_worth(here, how, top_1, pairs, correlation):
    """Of 1 to 4 s the slowest pick takes four times the best, a random one 2.5 times."""
    path = write(here / "a.log", *(line(n, n) for n in (3, 1, 4, 2)))
    assert (
        f"against the log's own latencies, 1 tasks: top-1 {top_1:.3f} (a random ranking: 0.400), "
        "top-5 1.000 (a random ranking: 1.000), "
        f"pairs ranked right {pairs:.3f}, Spearman {correlation:.3f}"
    ) in predict_log(path, folder=told(how)).splitlines()


def test_tasks_count_alike_and_those_without_a_latency_not_at_all(here):
    dense, failed = [line(n, 2, task=DENSE) for n in (1, 2)], line(3, 0, 4, task=["other", [], {}])
    said = predict_log(write(here / "a.log", line(1, 1), line(2, 3), *dense, failed), folder=told("worst"))
    assert "latencies, 2 tasks: top-1 0.600 (a random ranking: 0.750)" in said  # (1 + 2) / (3 + 2), (1 + 2) / (2 + 2)
    assert "pairs ranked right 0.000" in said  # of the one task whose programs differ


def test_a_log_in_which_everything_failed_is_ranked_all_the_same(here):
    said = predict_log(write(here / "a.log", line(1, error=4), line(2, error=4)), folder=told())
    assert "a (AutoTVM): 2 programs of 2 lines: 2 run" in said
    assert "the log has no measured latency that the scores could be compared with" in said


# --- what is shown and written ---


def test_the_table_shows_the_best_of_each_task(here):
    programs = [line(3, 0.003), line(1, 0.001), line(4, 0, error=1), line(2, 0.002), line(5, 0.0005, task=DENSE)]
    path = write(here / "a.log", *programs)
    said = predict_log(path, folder=told(), top=2)
    assert cells(said) == [
        ["conv2d_NCHWc.x86 1x32x56x56 64x32x3x3", "4", "1", "2", "-0.001", "1 ms"],
        ["", "", "2", "4", "-0.002", "2 ms"],
        ["dense_pack.x86 4x32 10x32", "1", "1", "5", "-0.0005", "0.5 ms"],
    ]
    assert "scores compare only within a task" in said
    assert [row[3:] for row in cells(predict_log(path, folder=told("worst")))][:3] == [
        ["3", "100", "-"], ["1", "0.003", "3 ms"], ["4", "0.002", "2 ms"],
    ]  # fmt: skip


def test_the_table_says_how_many_tasks_it_leaves_out(here, monkeypatch):
    monkeypatch.setattr(predict, "TASKS", 2)
    path = write(here / "a.log", *(line(1, n, task=[f"task-{n}", [], {}]) for n in range(1, 6)))
    said = predict_log(path, folder=told())
    assert [row[0] for row in cells(said)] == ["task-1", "task-2"]
    assert said.endswith("3 more tasks: --to FILE writes all of them")


def test_only_the_best_are_written_if_so_asked(here):
    path = write(here / "a.log", *(line(n, n) for n in (3, 1, 2)), line(1, 7, task=DENSE))
    said = predict_log(path, folder=told(), to=Path("new/best.csv"), top=2)
    assert said.endswith("3 scores, which compare only within a task -> new/best.csv")
    (key,) = {row["task_key"] for row in rows_of(Path("new/best.csv"))[:2]}
    assert Path("new/best.csv").read_text().splitlines()[:2] == [
        "line,task,task_key,latency_s,score,rank", f"2,conv2d_NCHWc.x86 1x32x56x56 64x32x3x3,{key},1,-1,1",
    ]  # fmt: skip
    assert [(row["line"], row["rank"]) for row in rows_of(Path("new/best.csv"))] == [("2", "1"), ("3", "2"), ("4", "1")]


def test_refused_lines_are_said_and_listed(here):
    path = write(here / "a.log", line(1, 1), *["bad"] * 4, line(2, 2, target="llvm -keys=arm_cpu"))
    said = predict_log(path, folder=told(), to=Path("scores.csv")).splitlines()
    assert said[0] == "a (AutoTVM): 1 programs of 6 lines: 1 ok, 5 refused"
    assert [text[:9] for text in said[1:4]] == ["  line 2:", "  line 3:", "  line 4:"]
    assert said[4] == "  all of them: scores.csv.refused.txt"
    listed = Path("scores.csv.refused.txt").read_text().splitlines()
    assert len(listed) == 5 and listed[4].startswith("6\tits target 'llvm -keys=arm_cpu' is not")
    assert "  all of them: in FILE.refused.txt, with --to FILE" in predict_log(path, folder=told()).splitlines()
    said = predict_log(path, folder=told(), wanted="arm_cpu")
    assert "a (AutoTVM): 1 programs of 6 lines" in said and [row[3] for row in cells(said)] == ["6"]


def test_a_list_of_refused_lines_goes_when_none_are_left(here):
    for lines in ([line(1, 1), "bad"], [line(1, 1)]):
        predict_log(write(here / "a.log", *lines), folder=told(), to=Path("scores.csv"), overwrite=True)
        assert Path("scores.csv.refused.txt").exists() is (len(lines) == 2)


# --- without a champion ---


def test_a_platform_without_a_champion(here, database):
    with pytest.raises(RegistryError, match="p-none has no champion; run: tcl register and then: tcl promote"):
        predict_log(write(here / "a.log", line(1, 1)), "p-none")

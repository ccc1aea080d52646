"""`tcl predict`: scores are the model's own, ranks and figures are told by hand, and what is wrong is one sentence."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from synthetic import ranking_problem

from tcl_core.checked import read_json, write_json
from tcl_core import registry, store
from tcl_core.errors import DataError, PlatformError, RegistryError, UsageError
from tcl_core.features.batches import Samples, concatenate
from tcl_core.features.encode import Encoder
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.cost_model import FORMAT, CostModel
from tcl_core.platforms import Hardware
from tcl_core.programs.tuning_logs import reading
from tcl_core.stages import predict
from tcl_core.stages.predict import Scored, at_most
from tcl_core.platforms import save_hardware
from tcl_core.stages.workspace import Workspace
from tests.commands import tcl
from tests.programs.test_tuning_logs import ansor_line, autotvm_line, write
from tests.stages.test_exchange import TARGET, import_logs, imported_batches, measured, write_pool

ROOT = Path(__file__).resolve().parents[2]
HARDWARE = Hardware(cores=2, threads=4, l2_kib=512)
DENSE = ["dense_pack.x86", [["TENSOR", [4, 32], "float32"], ["TENSOR", [10, 32], "float32"]], {}]


def predict_log(*given, **named) -> str:
    return str(predict.predict_log(Workspace(), *given, **named))


class Told:
    """Ranks as the text in its folder tells; remembers how many programs it was given at a time."""

    reads, calls = "tokens", list[int]()

    def __init__(self, how: str) -> None:
        self.how = how

    @classmethod
    def load(cls, folder: Path) -> Told:
        return cls(read_json(folder / "model.json", "")["arguments"]["how"])

    def predict(self, samples: Samples) -> np.ndarray:
        self.calls.append(len(samples))
        sign = {"best": -1.0, "worst": 1.0, "equal": 0.0, "nan": np.nan}[self.how]
        return sign * np.where(np.isfinite(samples.latencies_s), samples.latencies_s, 100.0).astype(np.float32)


@pytest.fixture
def here(monkeypatch, tmp_path) -> Path:
    """A project's folder of one's own, in which models of class ``told`` can be loaded."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    shutil.copy(ROOT / "params.yaml", "params.yaml")
    monkeypatch.setitem(catalogue.CLASSES, "told", f"{__name__}:Told")
    monkeypatch.setattr(Told, "calls", [])
    return work


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """One registry for the module, for making one takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path_factory.mktemp('registry')}/mlflow.db")
        yield


def told(how: str = "best", name: str = "told") -> Path:
    """A folder with a model that ranks as told."""
    folder = Path("models") / how
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "model.json", {"format": FORMAT, "class": name, "arguments": {"how": how}})
    return folder


def trained(samples: Samples, folder: Path, with_hardware: bool = True) -> CostModel:
    """A real model that has seen the samples once."""
    model = catalogue.create("tlp", FitSettings(epochs=1))
    model.fit(samples)
    model.save(folder)
    if with_hardware:
        save_hardware(folder, HARDWARE)
    return model


def line(number: int, seconds: float = 0.0, error: int = 0, **changes):
    """A program of AutoTVM; its tile is its number."""
    return autotvm_line([["tile_ic", "sp", [-1, number]]], ([seconds], error, 1, 1000.0), **changes)


def split(number: int, seconds: float, error: int = 0, **changes):
    """A program of Ansor, of one of two sketches."""
    steps = [["SP", 2, 0, 1024, [1, 2**number, 2, 8], 1], ["AN", 2, 0, 3], ["CI", 1]][: 2 + number % 2]
    return ansor_line(steps, ([seconds], error, 1, 1000), **changes)


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


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


def cells(said: str) -> list[list[str]]:
    """The table's rows, without its frame."""
    rows = [text.strip("│").split("│") for text in said.splitlines() if text.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows]


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
        predict_log(write(here / "a.log", *lines), folder=told(), to=Path("scores.csv"), force=True)
        assert Path("scores.csv.refused.txt").exists() is (len(lines) == 2)


# --- what is wrong ---


def test_a_model_is_named_once(here):
    path = write(here / "a.log", line(1, 1))
    for chosen in ({}, {"platform": "p", "folder": told()}):
        with pytest.raises(UsageError, match="give either --platform P, .* or --model FOLDER"):
            predict_log(path, **chosen)


def test_a_platform_without_a_champion(here, database):
    with pytest.raises(RegistryError, match="p-none has no champion; run: tcl register and then: tcl promote"):
        predict_log(write(here / "a.log", line(1, 1)), "p-none")


def test_models_that_cannot_score_a_log(here):
    path = write(here / "a.log", line(1, 1), line(2, 2))
    with pytest.raises(UsageError, match="the xgboost model in models/best reads statements .* give a model that"):
        predict_log(path, folder=told(name="xgboost"))
    with pytest.raises(DataError, match="the told model in models/nan predicts values that are not numbers; "):
        predict_log(path, folder=told("nan"))
    with pytest.raises(DataError, match="no model in 'gone'"):
        predict_log(path, folder=Path("gone"))
    trained(ranking_problem(), Path("narrow"))
    with pytest.raises(DataError, match="reads tokens of 6 numbers, and this version.s have 48; train it again"):
        predict_log(path, folder=Path("narrow"), to=Path("scores.csv"))
    assert not list(here.glob("*.csv*"))


@pytest.mark.parametrize(
    "lines, reason",
    [
        ([], "a.log is empty; give a tuning log"),
        (["hello"], "a.log is no tuning log: its first 1 lines hold no record"),
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
        with pytest.raises(UsageError, match=f"{taken} exists; give another name, or --force to overwrite it"):
            predict_log(path, folder=told(), to=to)
        assert taken.read_text() == "mine" and Told.calls == []
        taken.unlink()
    to.write_text("mine")
    assert "1 scores" in predict_log(path, folder=told(), to=to, force=True)
    assert len(rows_of(to)) == 1 and listed.read_text().startswith("2\tno JSON")


def test_the_log_is_not_overwritten_even_by_force(here):
    path = write(here / "a.log", line(1, 1))
    write(here / "b.csv.refused.txt", line(1, 1))
    Path("link.csv").symlink_to("a.log")
    for log, to in ((path, "a.log"), (path, "link.csv"), (here / "b.csv.refused.txt", "b.csv")):
        before = log.read_bytes()
        with pytest.raises(UsageError, match="is the log itself; give the name of another file to --to"):
            predict_log(log, folder=told(), to=Path(to), force=True)
        assert log.read_bytes() == before


def test_the_workloads_of_a_database_are_not_overwritten_even_by_force(here):
    write(here / "database_tuning_record.json", [0, [[[], []], [1.0], {"kind": "llvm"}, []]])
    workloads = write(here / "database_workload.json", ["hash", "module"])
    before = workloads.read_bytes()
    with pytest.raises(UsageError, match="database_workload.json is the log itself"):
        predict_log(here, folder=told(), to=workloads, force=True)
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
    with pytest.raises(UsageError, match="a.log is no folder; give --model the folder that a model was saved in"):
        predict_log(path, folder=path)


def test_names_of_tasks_are_shown_as_what_they_are(here):
    """No formula of a spreadsheet, and nothing that a terminal obeys."""
    names = ["=cmd|'/c calc'!A1", "+1", "-1", "@SUM(1)", "\x1b[31mred\n", "[red]plain[/red]"]
    path = write(here / "a.log", *(line(1, 1, task=[name, [], {}]) for name in names))
    predict_log(path, folder=told(), to=Path("scores.csv"))
    shown = [row["task"] for row in rows_of(Path("scores.csv"))]
    assert shown == ["'=cmd|'/c calc'!A1", "'+1", "'-1", "'@SUM(1)", "\\x1b[31mred\\n", "[red]plain[/red]"]
    assert [row[0] for row in cells(predict_log(path, folder=told()))] == [name.lstrip("'") for name in shown]

"""Files of logs: which dialect one is of, what is torn, too long or no log, and the name that it is filed under."""

from __future__ import annotations

import tracemalloc
from codecs import BOM_UTF8
from pathlib import Path

import numpy as np
import pytest

from tcl_core.errors import DataError, UsageError
from tcl_core.programs.tuning_logs import reading
from tcl_core.programs.tuning_logs.known import Known
from tcl_core.programs.tuning_logs.opening import DATABASE, INSIDE, MEASURED, RECORDS, WORKLOADS, log_file, log_name, open_log
from tests.programs.log_lines import ansor_line, autotvm_line, read, rows, write


# --- blocks and long lines ---


def test_blocks_do_not_change_what_is_read(tmp_path, monkeypatch):
    lines = [autotvm_line([["tile_ic", "sp", [-1, n]]], ([0.1 + n], 0, 1, n)) for n in range(10)]
    whole = read(write(tmp_path / "a.log", *lines))[1]
    monkeypatch.setattr(reading, "BLOCK", 3)
    parts = read(tmp_path / "a.log")[1]
    assert [len(part["round"]) for part in parts] == [3, 3, 3, 1]
    for name in ("decisions", "latencies_s"):
        assert [row for part in parts for row in rows(part[name])] == rows(whole[0][name])
    assert np.concatenate([part["program_id"] for part in parts]).tolist() == list(range(1, 11))


def test_a_block_ends_when_its_numbers_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MOST_NUMBERS", 20)  # of a line: seven decisions, two latencies
    _, blocks, _ = read(write(tmp_path / "a.log", *[autotvm_line()] * 7))
    assert [len(block["program_id"]) for block in blocks] == [3, 3, 1]


@pytest.mark.parametrize("name", ["a.log", "a.log.gz"])
def test_a_line_that_is_too_long_is_refused_and_never_held(tmp_path, monkeypatch, name):
    monkeypatch.setattr(reading, "LONGEST", 1 << 20)
    path = write(tmp_path / name, autotvm_line(), "x" * (40 << 20), autotvm_line(), "y" * ((1 << 20) - 1), "z" * ((1 << 20) + 1))
    read(path)  # what is imported when first needed
    tracemalloc.start()
    _, (block,), refused = read(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert block["program_id"].tolist() == [1, 3] and most < 20 << 20
    assert [number for number, _ in refused] == [2, 4, 5] and refused[0][1] == refused[2][1] == "longer than 1 MiB"
    assert refused[1][1].startswith("no JSON")


# --- files ---


def test_a_mark_at_the_start_costs_no_line(tmp_path):
    plain, marked = write(tmp_path / "plain.log", autotvm_line(), autotvm_line()), tmp_path / "marked.log"
    marked.write_bytes(BOM_UTF8 + plain.read_bytes())
    _, (block,), refused = read(marked)
    assert block["program_id"].tolist() == [1, 2] and refused == []
    marked.write_bytes(BOM_UTF8)
    assert list(reading.text_lines(marked)) == []


def test_dialects_are_told_from_the_content(tmp_path):
    name = "same.name"
    for line, dialect in ((autotvm_line(), "AutoTVM"), (ansor_line(), "Ansor")):
        assert open_log(write(tmp_path / name, "torn {", "", line), Known()).name == dialect


def test_a_gzip_file_needs_no_suffix(tmp_path):
    write(tmp_path / "a.gz", autotvm_line()).rename(tmp_path / "a.log")
    assert read(tmp_path / "a.log")[0].lines == 1


@pytest.mark.parametrize("cut", [12, 200, -1, -9])
def test_a_cut_off_gzip_file_is_refused_as_a_whole(tmp_path, cut):
    lines = [autotvm_line(result=([0.1 + n / 7], 0, 1, n)) for n in range(300)]
    path = write(tmp_path / "a.log.gz", *lines)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"a\.log\.gz is damaged or cut off after line \d+ .*fetch it again"):
        read(path)


def test_a_damaged_gzip_file_is_refused(tmp_path):
    path = write(tmp_path / "a.log.gz", *[autotvm_line(result=([0.1 + n / 7], 0, 1, n)) for n in range(300)])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DataError, match="is damaged or cut off"):
        read(path)


@pytest.mark.parametrize("content", ["", "\n\n", "# README\n\ntext\n", "{}\n[]\n3\n", '{"a": 1}\n' * 200])
def test_what_is_no_log_is_said(tmp_path, content):
    (tmp_path / "a.log").write_text(content)
    with pytest.raises(DataError, match=r"a\.log is (empty|no tuning log)") as raised:
        open_log(tmp_path / "a.log", Known())
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read the log .*gone\.log \(no such file or directory\)"):
        open_log(tmp_path / "gone.log", Known())
    with pytest.raises(UsageError, match=r"the folder .* has no database_tuning_record\.json"):
        log_file(tmp_path)


@pytest.mark.parametrize("one, other", [("", ""), (".gz", ""), ("", ".gz"), (".gz", ".gz")])
def test_a_database_is_found_from_its_folder_or_either_file(tmp_path, one, other):
    """Either may be compressed."""
    records, workloads = tmp_path / f"{RECORDS}{one}", tmp_path / f"{WORKLOADS}{other}"
    write(records, "[0, []]")
    assert log_file(tmp_path) == log_file(records) == log_file(workloads) == records
    with pytest.raises(UsageError, match=r"its workloads, database_workload\.json, are not beside it"):
        open_log(records, Known())


def test_of_workloads_alone_the_records_are_missed(tmp_path):
    assert log_file(tmp_path / f"{WORKLOADS}.gz") == tmp_path / RECORDS


# --- names ---


@pytest.mark.parametrize("name, filed", [(".hidden.log", "hidden"), ("..a.b.json.gz", "a.b"), (".log", "log"), ("random.log", "random")])
def test_no_log_is_filed_as_a_hidden_file(tmp_path, name, filed):
    """Readers of the data set take those for left over."""
    assert log_name(tmp_path / name) == filed


@pytest.mark.parametrize(
    "path, name",
    [
        ("x/random.log.gz", "random"),
        ("all.json", "all"),
        ("x/tuned/database_tuning_record.json.gz", "tuned"),
        ("a.b.txt", "a.b"),
    ],
)
def test_log_names(path, name):
    assert log_name(Path(path)) == name


@pytest.mark.parametrize("place", ["fast", *(f"fast/{name}" for name in INSIDE)])
def test_a_database_that_is_given_from_within_has_its_folders_name(tmp_path, monkeypatch, place):
    """Or that of the tuned network's folder around it: ".." is no name."""
    for name in INSIDE:
        (tmp_path / "fast" / name).mkdir(parents=True)
    (tmp_path / "fast" / "report.json").touch()
    write(tmp_path / place / RECORDS, "[0, []]")
    monkeypatch.chdir(tmp_path / "fast" / DATABASE)
    assert log_name(log_file(Path(".."))) == "fast"


def test_of_a_tuned_networks_two_databases_that_of_all_measurements_is_read(tmp_path):
    for name in INSIDE:
        (tmp_path / name).mkdir()
        write(tmp_path / name / RECORDS, "[0, []]")
    assert log_file(tmp_path) == tmp_path / MEASURED / RECORDS and log_file(tmp_path / DATABASE) == tmp_path / DATABASE / RECORDS

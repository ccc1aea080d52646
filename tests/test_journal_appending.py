"""What is appended to a journal is there: after torn tails, a kill, a full disk, a second collector."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tcl_core.errors import DataError, PlatformError
from tcl_core.journal import Journal, iter_journal
from tcl_core.store import read_records, write_records
from tests import made_up_records
from tests.made_up_records import FAILED, record

journal, records = made_up_records.journal, made_up_records.records


def test_what_is_appended_is_read_back_across_sessions(journal):
    assert list(iter_journal(journal)) == []
    first, second, third = record(1), record(2, **FAILED), record(3, task="task-b")
    with Journal(journal) as writer:
        writer.append([first])
        assert list(iter_journal(journal)) == [first], "durable and readable while the writer still holds the journal"
        writer.append([second])
    with Journal(journal) as writer:
        writer.append([third])
    assert list(iter_journal(journal)) == [first, second, third]


def test_numpy_numbers_are_stored_as_plain_ones(journal):
    with Journal(journal) as writer:
        writer.append(
            [
                record(
                    1,
                    decisions=tuple(np.array([7, 8], np.int32)),
                    latencies_s=tuple(np.array([0.5], np.float32)),
                )
            ]
        )
    assert [(r.decisions, r.latencies_s) for r in iter_journal(journal)] == [((7, 8), (0.5,))]


def test_a_tail_torn_at_any_byte_is_dropped_and_said(journal, caplog):
    with Journal(journal) as writer:
        writer.append([record(1)])
        whole = (journal / "records.jsonl").read_bytes()
        writer.append([record(2)])
    both = (journal / "records.jsonl").read_bytes()
    for size in range(len(whole) + 1, len(both), 7):
        (journal / "records.jsonl").write_bytes(both[:size])
        assert list(iter_journal(journal)) == [record(1)]
        assert f"passed over its last {size - len(whole)} bytes" in caplog.records[-1].message
    with Journal(journal) as writer:
        assert (journal / "records.jsonl").read_bytes() == whole
        writer.append([record(3)])
    assert list(iter_journal(journal)) == [record(1), record(3)]


def test_a_header_torn_at_any_byte_starts_the_journal_anew(journal):
    Journal(journal).close()
    header = (journal / "records.jsonl").read_bytes()
    for size in range(len(header)):
        (journal / "records.jsonl").write_bytes(header[:size])
        Journal(journal).close()
        assert (journal / "records.jsonl").read_bytes() == header


def test_a_damaged_line_before_the_end_is_refused(journal):
    with Journal(journal) as writer:
        writer.append([record(1), record(2)])
    path = journal / "records.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"program_id":1', b'"program_id":9'))
    for read in (lambda: list(iter_journal(journal)), lambda: Journal(journal)):
        with pytest.raises(DataError, match=r"records\.jsonl: line 2 is damaged .its checksum does not fit., and nothing"):
            read()


def test_a_journal_of_another_schema_version_is_refused(journal, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("tcl_core.journal.SCHEMA_VERSION", 7)
        Journal(journal).close()
    for read in (lambda: list(iter_journal(journal)), lambda: Journal(journal)):
        with pytest.raises(DataError, match="schema version 7, this program reads version 2"):
            read()


WRITER = """
import sys
sys.path[:0] = {path!r}
from tests.made_up_records import record
from tcl_core.journal import Journal
with Journal(sys.argv[1]) as journal:
    for number in range(10**9):
        journal.append([record(number, message="x" * 2000, error="run", latencies_s=())])
        print(number, flush=True)
"""


def start_writer(journal: Path) -> subprocess.Popen:
    code = WRITER.format(path=[str(Path(__file__).parent.parent)])
    return subprocess.Popen([sys.executable, "-c", code, str(journal)], stdout=subprocess.PIPE, text=True)


def test_kill_9_loses_nothing_that_was_acknowledged(journal):
    writer = start_writer(journal)
    for _ in range(20):
        acknowledged = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
    writer.wait()
    found = [r.program_id for r in iter_journal(journal)]
    assert found == list(range(len(found))) and acknowledged + 1 <= len(found) <= acknowledged + 2
    with Journal(journal) as after:  # the lock died with its holder
        after.append([record(len(found))])
    assert [r.program_id for r in iter_journal(journal)] == [*found, len(found)]


def test_a_second_collector_is_refused_and_told_who_holds_the_journal(journal):
    writer = start_writer(journal)
    try:
        writer.stdout.readline()
        with pytest.raises(PlatformError, match=f"process {writer.pid} is already collecting into {journal}"):
            Journal(journal)
    finally:
        writer.kill()
        writer.communicate()
    Journal(journal).close()
    with Journal(journal), pytest.raises(PlatformError, match=f"process {os.getpid()} is"):
        Journal(journal)


FULL_DISK = """
import resource, sys
sys.path[:0] = {path!r}
from tests.made_up_records import record
from tcl_core.errors import PlatformError
from tcl_core.journal import Journal, iter_journal
from tcl_core.store import write_records
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
count = 0
with Journal(sys.argv[1]) as journal:
    try:
        while True:
            journal.append([record(count)])
            count += 1
    except PlatformError as error:
        print(count, error)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 2000))
try:
    write_records(sys.argv[2], iter_journal(sys.argv[1]))
except PlatformError as error:
    print(error)
"""


def test_a_full_disk_is_one_sentence_and_loses_nothing(journal, records):
    with Journal(journal) as writer:
        writer.append([record(100)])
    write_records(records, [record(100)])
    code = FULL_DISK.format(path=[str(Path(__file__).parent.parent)])
    child = subprocess.run([sys.executable, "-c", code, str(journal), str(records)], capture_output=True, text=True, check=True)
    appended, replaced = child.stdout.splitlines()
    written = int(appended.split()[0])
    assert 2 <= written and "free some space" in appended and str(journal / "records.jsonl") in appended
    assert [r.program_id for r in iter_journal(journal)] == [100, *range(written)]
    assert (journal / "records.jsonl").read_bytes().endswith(b"\n"), "no torn line stays behind"
    assert "free some space" in replaced
    assert read_records(records) == [record(100)], "the old file is still there"
    assert [p.name for p in records.iterdir()] == ["records.parquet"]

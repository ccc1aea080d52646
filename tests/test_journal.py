"""A journal that somebody or something changed: nothing of it is lost, and what is wrong is one sentence."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tcl_core import journal as module
from tcl_core.errors import BusyError, DataError, PlatformError, TclError, UsageError
from tcl_core.journal import Journal, iter_journal, line_of, locked, parse_line
from tests.made_up_records import record

ROOT = Path(__file__).resolve().parents[1]
NOBODY = 65534


@pytest.fixture
def folder(tmp_path) -> Path:
    """A journal of 22 records."""
    folder = tmp_path / "journal"
    with Journal(folder) as writer:
        writer.append([record(number) for number in range(22)])
    return folder


@pytest.fixture
def file(folder) -> Path:
    return folder / "records.jsonl"


def refused(folder: Path, kind: type[TclError] = DataError) -> str:
    """The one sentence with which reading and writing are refused; the file is as it was."""
    file, sentences = folder / "records.jsonl", set()
    before = file.read_bytes() if file.is_file() else None
    for use in (lambda: list(iter_journal(folder)), lambda: Journal(folder)):
        with pytest.raises(kind) as raised:
            use()
        sentences.add(str(raised.value))
    assert (file.read_bytes() if file.is_file() else None) == before and not list(folder.glob("*.cut-*"))
    (sentence,) = sentences
    return sentence


# --- what may be cut ---


def test_a_torn_end_is_copied_before_it_is_cut(file, folder, caplog):
    whole = file.read_bytes()
    for torn in (b"0", b'39acdd1d {"task_key":"f64', b'39acdd1d {"task' + b"\0" * 4096, b"\0" * 512, whole.splitlines()[-1]):
        file.write_bytes(whole + torn)
        assert len(list(iter_journal(folder))) == 22 and file.read_bytes() == whole + torn  # reading changes nothing
        Journal(folder).close()
        assert file.read_bytes() == whole
        (cut,) = folder.glob("records.jsonl.cut-*")
        assert cut.read_bytes() == torn and cut.name in caplog.records[-1].getMessage()
        cut.unlink()


def test_without_room_for_the_copy_nothing_is_cut(file, folder, monkeypatch):
    def full(path):
        raise PlatformError("no room")

    file.write_bytes(torn := file.read_bytes() + b"39acdd1d {")
    monkeypatch.setattr(module, "replacing", full)
    with pytest.raises(PlatformError, match="^no room$"):
        Journal(folder)
    assert file.read_bytes() == torn


@pytest.mark.parametrize(
    ("change", "number", "why"),
    [
        (lambda raw: raw.replace(b"\n", b"\r\n"), 1, "its line ends became CR LF"),
        (lambda raw: raw.replace(b"\n", b"\r"), 1, "checksum"),
        (lambda raw: raw.replace(b"\n", b" \n"), 1, "checksum"),
        (lambda raw: raw.decode().encode("utf-16"), 1, "checksum"),
        (lambda raw: gzip.compress(raw, mtime=0), 1, "checksum"),
        (lambda raw: raw[: raw.index(b"\n") + 1] + raw[raw.index(b"\n") + 1 :].replace(b"\n", b"\t\n"), 2, "checksum"),
        (lambda raw: raw[:-1] + b"x\n", 23, "checksum"),
        (lambda raw: raw[:-40] + bytes([raw[-40] ^ 1]) + raw[-39:], 23, "checksum"),
        (lambda raw: raw + b"\n", 24, "checksum"),
        (lambda raw: raw + b"\0" * 4096 + raw.splitlines(keepends=True)[-1], 24, "checksum"),
        (lambda raw: raw + b"\xff\xfe", 24, "checksum"),
    ],
)
def test_whatever_else_is_wrong_is_refused_with_its_line(file, folder, change, number, why):
    file.write_bytes(change(file.read_bytes()))
    sentence = refused(folder)
    assert sentence.startswith(f"{file}: line {number} is damaged (") and why in sentence
    assert "nothing was changed; restore the file from a copy, or " in sentence
    assert ("move the journal away" if number == 1 else "delete that line") in sentence


ENTRY = parse_line(line_of(vars(record(7))))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({k: v for k, v in ENTRY.items() if k != "host"}, "missing field 'host'"),
        (ENTRY | {"extra": 1}, "unknown field 'extra'"),
        (ENTRY | {"round": "0"}, "round is no int"),
        (ENTRY | {"round": True}, "round is no int"),
        (ENTRY | {"checked": 1}, "checked is no bool"),
        (ENTRY | {"decisions": {}}, "decisions is no list"),
        (ENTRY | {"decisions": [1, 2.5]}, "decisions are not all integers"),
        (ENTRY | {"latencies_s": [1.0, None]}, "latencies_s are not all numbers"),
        (ENTRY | {"latencies_s": [-1.0]}, "with the latencies"),
        (ENTRY | {"error": "odd"}, "error kind 'odd'"),
        (ENTRY | {"measured_at": "yesterday"}, "isoformat"),
        (ENTRY | {"measured_at": "2026-01-02T03:04:05"}, "no time zone"),
        ({"journal": "other", "schema_version": 2}, "it is no record"),
    ],
)
def test_a_sound_checksum_around_what_is_no_record(file, folder, entry, why):
    file.write_bytes(file.read_bytes() + line_of(entry) + line_of(ENTRY))
    with pytest.raises(DataError) as raised:
        list(iter_journal(folder))
    assert str(raised.value).startswith(f"{file}: line 24 is damaged (it is no record: ") and why in str(raised.value)


@pytest.mark.parametrize("body", [b"[1, 2]", b"7", b"no JSON", b"[" * 200_000])
def test_a_sound_checksum_around_what_is_no_object(file, folder, body):
    import zlib

    file.write_bytes(file.read_bytes() + b"%08x %s\n" % (zlib.crc32(body), body))
    assert "line 24 is damaged" in refused(folder)


# --- what can be no journal ---


def test_a_folder_a_pipe_or_a_loop_in_its_place(tmp_path):
    journal = tmp_path / "journal"
    journal.mkdir()
    file = journal / "records.jsonl"
    file.mkdir()
    assert str(file) in refused(journal, TclError)
    file.rmdir()
    file.symlink_to(file)
    assert str(file) in refused(journal, UsageError)
    file.unlink()
    file.symlink_to(tmp_path / "elsewhere" / "records.jsonl")
    assert refused(journal) == f"{file} is a link to {tmp_path}/elsewhere/records.jsonl, which is not there; mount or restore it"
    file.unlink()
    os.mkfifo(file)
    assert refused(journal) == f"{file} is no file; move it away"


def test_the_lock_is_never_written_behind_a_link(folder, tmp_path):
    precious = tmp_path / "precious.txt"
    precious.write_text("years of work")
    (folder / "lock").unlink()
    (folder / "lock").symlink_to(precious)
    with pytest.raises(UsageError, match=f"cannot write {folder}/lock"):
        Journal(folder)
    assert precious.read_text() == "years of work"


def test_a_journal_that_is_set_aside_while_one_waits_for_its_lock_is_not_held(folder, monkeypatch):
    """The lock that is taken is that of the journal which lies there now."""
    taken, real = [], module._open_lock

    def swap(path):
        descriptor = real(path)
        if not taken:
            folder.rename(folder.with_name("before"))
            folder.mkdir()
        taken.append(descriptor)
        return descriptor

    monkeypatch.setattr(module, "_open_lock", swap)
    with locked(folder), locked(folder.with_name("before")):
        assert len(taken) == 3


UNPRIVILEGED = """
import os, sys
sys.path[:0] = [{root!r}, {root!r} + "/tests"]
from tcl_core.errors import TclError
from tcl_core.journal import Journal, iter_journal
from tests.made_up_records import record
os.setgid({nobody}); os.setuid({nobody})
for use in (lambda: len(list(iter_journal(sys.argv[1]))), lambda: Journal(sys.argv[1]).append([record(50)])):
    try:
        print("did", use())
    except TclError as error:
        print(error.exit_code, error)
"""


def as_nobody(folder: Path) -> list[str]:
    code = UNPRIVILEGED.format(root=str(ROOT), nobody=NOBODY)
    return subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()


@pytest.fixture
def open_to_all(folder):
    """The journal in a folder that every user can enter."""
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        yield Path(shutil.copytree(folder, Path(place) / "journal"))


@pytest.mark.skipif(os.getuid() != 0, reason="takes a second user")
def test_a_journal_of_another_user(open_to_all):
    """Its lock can only be read, which is enough to lock; writing is one sentence."""
    folder, file = open_to_all, open_to_all / "records.jsonl"
    read, written = as_nobody(folder)
    assert read == "did 22"
    assert written.startswith(f"4 cannot write {file} (permission denied)")
    file.chmod(0o666)
    assert as_nobody(folder)[1] == "did None" and len(list(iter_journal(folder))) == 23  # whoever may write it measures into it
    file.chmod(0o600)
    read, written = as_nobody(folder)
    assert read == written and read.startswith(f"4 cannot read {file} (permission denied)")


FULL = """
import os, resource, sys
sys.path[:0] = [{root!r}, {root!r} + "/tests"]
from pathlib import Path
from tcl_core.errors import TclError
from tcl_core.journal import Journal, iter_journal
from tests.made_up_records import record
folder, most = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
try:
    with Journal(folder) as journal:
        journal.append([record(50)])
    print("did")
except TclError as error:
    print(error.exit_code, error)
"""


def test_a_disk_without_room_for_the_lock_or_the_header(folder, file, tmp_path):
    """The lock holds without the process's id; a journal that cannot begin is one sentence."""
    code, whole = FULL.format(root=str(ROOT)), file.read_bytes()
    for journal, most in ((tmp_path / "new", 0), (folder, 0), (folder, len(whole) + 10)):
        said = subprocess.run(
            [sys.executable, "-c", code, str(journal), str(most)], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        assert said.startswith(f"4 cannot write {journal}/records.jsonl (file too large)"), said
    assert file.read_bytes() == whole and list(iter_journal(tmp_path / "new")) == []
    with Journal(folder), pytest.raises(BusyError, match=f"^process {os.getpid()} is already"):
        Journal(folder)


def test_a_lock_full_of_rubbish_still_names_nobody_wrongly(folder):
    with Journal(folder):
        (folder / "lock").write_bytes(b"\xff\0 rubbish")
        with pytest.raises(BusyError, match="^another process is already collecting into"):
            Journal(folder)


# --- kill -9 ---

WRITER = """
import os, sys
sys.path[:0] = [{root!r}, {root!r} + "/tests"]
from tcl_core.journal import Journal
from tests.made_up_records import record
number = int(sys.argv[2])
with Journal(sys.argv[1]) as journal:
    print("open", flush=True)
    while True:
        journal.append([record(number, message="x" * 3000, error="run", latencies_s=())])
        os.write(1, b"%d\\n" % number)
        number += 1
"""


def test_a_writer_killed_at_any_moment_loses_nothing_that_it_told(tmp_path):
    moments, told, code = random.Random(0), 0, WRITER.format(root=str(ROOT))
    for _ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(told)], stdout=subprocess.PIPE)
        assert writer.stdout.readline() == b"open\n"
        time.sleep(moments.uniform(0.0, 0.05))
        writer.send_signal(signal.SIGKILL)
        told += len(writer.stdout.read().split())
        writer.wait(30)
        found = [r.program_id for r in iter_journal(tmp_path)]
        assert found == list(range(len(found))) and told <= len(found) <= told + 1
        told = len(found)

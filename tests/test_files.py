"""Whole files or none: what a kill, a second writer, a full disk, a link or a device leave behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from tcl_core import files
from tcl_core.errors import PlatformError, TclError, UsageError
from tests.command_line import ROOT
from tcl_core.files import refusal, replacing, replacing_given, shown, tidy, whole_folder


def write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_is_the_old_or_the_new_one(tmp_path):
    write(tmp_path / "a", "old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "a") as file:
        file.write(b"half")
        raise RuntimeError
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == {"a"}
    write(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "new"


KILLED = """
import os, signal, sys
from pathlib import Path
from tcl_core.files import {what}
with {what}(Path(sys.argv[1])) as made:
    {write}
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(what: str, path: Path, write: str) -> None:
    child = subprocess.run([sys.executable, "-c", KILLED.format(what=what, write=write), str(path)], timeout=60)
    assert child.returncode == -signal.SIGKILL


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path):
    killed("replacing", tmp_path / "a", 'made.write(b"half")')
    assert len(names(tmp_path)) == 1 and "a" not in names(tmp_path)
    write(tmp_path / "b", "whole")
    assert names(tmp_path) == {"b"}


def test_what_a_living_writer_has_aside_stays(tmp_path):
    with replacing(tmp_path / "a") as file:
        write(tmp_path / "b", "whole")
        file.write(b"too")
    assert (tmp_path / "a").read_text() == "too" and names(tmp_path) == {"a", "b"}


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_killed_folder_is_the_former_one(tmp_path, monkeypatch, exchanges):
    if not exchanges:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    with whole_folder(tmp_path / "m") as folder:
        (folder / "x").write_text("1")
    killed("whole_folder", tmp_path / "m", '(made / "x").write_text("2")')
    assert len(names(tmp_path)) == 2
    assert (tmp_path / "m/x").read_text() == "1"
    with whole_folder(tmp_path / "m") as folder:
        (folder / "x").write_text("3")
    assert names(tmp_path) == {"m"} and (tmp_path / "m/x").read_text() == "3"


def test_a_folder_that_was_set_aside_is_put_back(tmp_path):
    """Where folders cannot be exchanged, a kill between two renames leaves the former one under another name."""
    (tmp_path / ".m.0123456789ab.old").mkdir()
    (tmp_path / ".m.0123456789ab.old/x").write_text("1")
    tidy(tmp_path / "m")
    assert names(tmp_path) == {"m"} and (tmp_path / "m/x").read_text() == "1"


def test_what_others_named_alike_stays(tmp_path):
    theirs = [".m.notes", ".m-2.0123456789ab.new", ".m.draft.new", ".tcl-notes.tmp"]
    for name in theirs:
        (tmp_path / name).mkdir()
    with whole_folder(tmp_path / "m") as folder:
        write(folder / "x", "1")
    write(tmp_path / "y", "1")
    assert names(tmp_path) == {*theirs, "m", "y"}


def test_a_folder_whose_rename_fails_is_the_former_one(tmp_path, monkeypatch):
    """The disk may be full even for a rename."""
    with whole_folder(tmp_path / "m") as folder:
        (folder / "x").write_text("1")
    rename = os.replace

    def replace(source, target):
        if str(source).endswith(".new"):
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    with pytest.raises(PlatformError, match="no space left"), whole_folder(tmp_path / "m") as folder:
        (folder / "x").write_text("2")
    assert (tmp_path / "m/x").read_text() == "1" and names(tmp_path) == {"m"}


def test_every_file_is_on_the_disk_before_the_folder_gets_its_name(tmp_path, monkeypatch):
    synced, put, sync = [], files._put_in_place, os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd))[1])
    monkeypatch.setattr(files, "_put_in_place", lambda *paths: (synced.append("renamed"), put(*paths))[1])
    with whole_folder(tmp_path / "model") as aside:
        (aside / "part").mkdir()
        (aside / "part" / "weights").write_bytes(b"1")
    before = {path.removeprefix(str(aside)) for path in synced[: synced.index("renamed")]}
    assert before == {"", "/part", "/part/weights"} and synced[-1] == str(tmp_path)


def test_a_folder_that_a_living_process_writes_is_left_alone(tmp_path):
    with whole_folder(tmp_path / "m") as first:
        (first / "x").write_text("first")
        with whole_folder(tmp_path / "m") as second:
            (second / "x").write_text("second")
    assert (tmp_path / "m/x").read_text() == "first" and names(tmp_path) == {"m"}


def test_a_folder_that_another_process_swept_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    opened, swept = os.open, []

    def open_late(path, *given, **more):
        if str(path).endswith(".new") and not swept:
            swept.append(path)
            os.rmdir(path)
        return opened(path, *given, **more)

    monkeypatch.setattr(os, "open", open_late)
    with whole_folder(tmp_path / "m") as aside:
        (aside / "x").write_text("kept")
    assert swept and (tmp_path / "m/x").read_text() == "kept" and names(tmp_path) == {"m"}


def test_pipes_are_written_to_and_stay(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE) as reader:
        write(tmp_path / "pipe", "through")
        assert reader.communicate(timeout=20)[0] == b"through"
    assert (tmp_path / "pipe").is_fifo() and names(tmp_path) == {"pipe"}


def test_devices_are_written_to_and_stay(tmp_path):
    (tmp_path / "null").symlink_to("/dev/null")
    write(tmp_path / "null", "gone")
    with replacing_given(tmp_path / "null", overwrite=False) as file:
        file.write(b"gone")
    assert (tmp_path / "null").is_symlink() and Path("/dev/null").is_char_device()


def test_a_link_is_replaced_unless_the_user_gave_it(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "link").symlink_to("theirs")
    write(tmp_path / "link", "ours")
    assert (tmp_path / "theirs").read_text() == "theirs" and not (tmp_path / "link").is_symlink()
    (tmp_path / "given").symlink_to("theirs")
    with pytest.raises(UsageError, match="theirs exists; give another name, or --overwrite"), replacing_given(tmp_path / "given", False):
        pass
    with replacing_given(tmp_path / "given", overwrite=True) as file:
        file.write(b"ours")
    assert (tmp_path / "theirs").read_text() == "ours" and (tmp_path / "given").is_symlink()


def test_a_file_that_came_meanwhile_is_left_alone(tmp_path, monkeypatch):
    for links in (True, False):  # some file systems have none
        if not links:
            monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links here")))
        with replacing_given(tmp_path / f"new {links}", overwrite=False) as file:
            file.write(b"mine")
        with pytest.raises(UsageError, match="file exists"), replacing_given(tmp_path / f"late {links}", overwrite=False) as file:
            (tmp_path / f"late {links}").write_text("theirs")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "new True": "mine", "new False": "mine", "late True": "theirs", "late False": "theirs"
    }  # fmt: skip


def test_what_is_no_file_system_of_its_own_takes_another_folders_place(tmp_path, monkeypatch):
    """Of a link that is the folder it leads to; of a mount point nothing can."""
    (tmp_path / "disk" / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk/real")
    with whole_folder(tmp_path / "link") as aside:
        assert aside.parent == tmp_path / "disk"
        (aside / "file").write_text("new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "disk/real/file").read_text() == "new"
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "disk")
    with pytest.raises(UsageError, match="disk is a mount point, which no other folder can replace"), whole_folder(tmp_path / "disk"):
        pytest.fail("it was begun")


@pytest.mark.parametrize("redirected", [False, True])
def test_the_standard_output_is_written_to(tmp_path, redirected):
    """Into a pipe and into a file that the shell opened, after what is there."""
    code = (
        "from pathlib import Path; from tcl_core.files import replacing_given\n"
        "print('before', flush=True)\n"
        "with replacing_given(Path('/dev/stdout'), overwrite=False) as file: file.write(b'scores')"
    )
    with open(tmp_path / "out", "wb") if redirected else nullcontext(subprocess.PIPE) as output:
        done = subprocess.run([sys.executable, "-c", code], stdout=output, cwd=ROOT, timeout=60)
    assert done.returncode == 0
    assert ((tmp_path / "out").read_bytes() if redirected else done.stdout) == b"before\nscores"


@pytest.mark.parametrize(
    "path, kind, why",
    [
        ("file/below", UsageError, "not a directory|file exists"),
        ("folder", UsageError, "is a directory"),
        ("x" * 300, UsageError, "file name too long"),
        ("loop/x", UsageError, "too many levels of symbolic links|file exists"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(tmp_path, path, kind, why):
    (tmp_path / "file").write_text("here")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    before = names(tmp_path)
    for write_to in (replacing, whole_folder) if path != "folder" else (replacing,):
        with pytest.raises(kind, match=rf"^cannot write .*\(({why})\); give another path$"), write_to(tmp_path / path):
            pass
    assert names(tmp_path) == before and (tmp_path / "file").read_text() == "here"


def test_a_folder_without_rights_is_one_sentence(tmp_path, monkeypatch):
    def refuse(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PlatformError, match=r"cannot write .*a \(permission denied\); nothing of it was changed"):
        write(tmp_path / "a", "new")


def test_what_nobody_foresaw_is_still_a_sentence():
    assert isinstance(refusal(OSError(36, "File name too long", "x")), UsageError)
    assert isinstance(refusal(OSError("odd")), TclError) and "odd" in str(refusal(OSError("odd")))


def test_foreign_text_is_escaped_and_short():
    assert shown("a\nb\x1b[31m\udc80") == "a\\nb\\x1b[31m\\udc80"
    assert len(shown("x" * 10_000)) < 250 and shown("ä 漢") == "ä 漢"


NO_BYTE = """
import resource, signal, tempfile
from tcl_core.files import refusal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    tempfile.TemporaryFile()
except OSError as error:
    said = refusal(error)
    import os; os.write(1, f"{type(said).__name__}: {said}".encode())
"""


def test_no_room_for_temporary_files_names_their_folders(tmp_path):
    """Where no file may hold a byte, Python finds no folder for temporary ones, and has no file to name."""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    root = Path(files.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", NO_BYTE], env=environment, cwd=root, stdout=subprocess.PIPE, timeout=60)
    said = done.stdout.decode()
    assert said.startswith("PlatformError: cannot write a temporary file") and str(tmp_path) in said and "TMPDIR" in said


def test_what_another_user_left_in_a_shared_folder_stops_nobody(tmp_path, monkeypatch):
    """As in /tmp, where each may remove his own alone."""
    theirs = tmp_path / ".tcl-0123456789ab.tmp"
    theirs.touch()
    unlink = Path.unlink

    def forbidden(path, *args, **more):
        if path == theirs:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return unlink(path, *args, **more)

    monkeypatch.setattr(Path, "unlink", forbidden)
    with replacing(tmp_path / "mine") as file:
        file.write(b"mine")
    assert (tmp_path / "mine").read_bytes() == b"mine" and theirs.exists()

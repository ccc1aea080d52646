"""What a confined process can no longer do; each check fails where its barrier is taken out."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tcl_core import sandbox
from tcl_core.errors import UsageError
from tcl_core.sandbox import Rights

ROOT = Path(__file__).parents[1]
# Runs one expression and says what came of it: its value, or the kind of its error.
PROBE = """
import ctypes, json, os, resource, signal, socket, subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
try:
    said = eval(sys.argv[1])
except OSError as error:
    said = type(error).__name__
print(json.dumps(said))
"""
HELD = sandbox.barriers()
needs = {name: pytest.mark.skipif(name not in HELD, reason=f"the barrier '{name}' cannot be had here") for name in sandbox.BARRIERS}


@pytest.fixture
def place(tmp_path):
    """A folder that everybody may write to."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o777)
    (tmp_path / "probe_of_rights.py").write_text(PROBE)
    (tmp_path / "scratch").mkdir(mode=0o700)
    (tmp_path / "secret").write_text("secret")
    return tmp_path


def ask(place, expression, rights=None, **environment):
    """What a confined process says of an expression."""
    rights = rights or Rights(readable=(str(place / "probe_of_rights.py"), str(place)))
    path = os.pathsep.join((str(ROOT), str(place)))
    done = subprocess.run(
        [*sandbox.command("probe_of_rights", rights), expression],
        env=os.environ | {"PYTHONPATH": path} | environment, capture_output=True, text=True, cwd=ROOT, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def writing_to(path):
    return f"Path({str(path)!r}).write_text('x')"


def test_what_the_kernel_offers_is_held():
    """By the kernel's own word: a barrier that fails to be set up would otherwise only leave its tests out."""
    if platform.machine() in ("x86_64", "aarch64") and "Seccomp:" in Path("/proc/self/status").read_text():
        assert {"programs", "network"} <= set(HELD)
    modules = Path("/sys/kernel/security/lsm")
    if modules.exists() and "landlock" in modules.read_text().split(","):
        assert "files" in HELD


def test_it_tells_which_barriers_hold(monkeypatch):
    assert set(HELD) <= set(sandbox.BARRIERS)
    monkeypatch.setenv("TCL_SANDBOX", "off")
    assert sandbox.barriers() == []


@needs["files"]
def test_nothing_is_written_but_the_scratch_folder(place):
    rights = Rights(scratch=str(place / "scratch"), readable=(str(place),))
    assert ask(place, writing_to(place / "new"), rights) == "PermissionError"
    assert ask(place, f"os.remove({str(place / 'secret')!r})", rights) == "PermissionError"
    assert ask(place, f"os.mkdir({str(place / 'new')!r})", rights) == "PermissionError"
    assert ask(place, f"os.truncate({str(place / 'secret')!r}, 0)", rights) == "PermissionError"
    assert ask(place, writing_to(place / "scratch" / "new"), rights) == 1
    assert (place / "secret").read_text() == "secret" and (place / "scratch" / "new").exists()


@needs["files"]
def test_nothing_is_written_where_devices_and_networks_may_be_used(place):
    rights = Rights(scratch=str(place / "scratch"), outside=True)
    assert ask(place, writing_to(place / "new"), rights) == "PermissionError"
    assert ask(place, writing_to(place / "scratch" / "new"), rights) == 1
    assert ask(place, "subprocess.run(['true']).returncode", rights) == 0
    assert ask(place, "socket.socket().fileno() > 0", rights) is True
    naming = "open(f'/proc/self/task/{os.getpid()}/comm', 'w').write('cuda00')"  # as CUDA does when it starts
    assert ask(place, naming, rights) == 6
    assert ask(place, naming, Rights(scratch=str(place / "scratch"), readable=(str(place),))) == "PermissionError"


@needs["files"]
def test_what_is_not_named_is_not_read(tmp_path_factory, place):
    other = tmp_path_factory.mktemp("private") / "secret"
    other.write_text("secret")
    assert ask(place, f"Path({str(other)!r}).read_text()") == "PermissionError"
    assert ask(place, f"Path({str(ROOT / 'README.md')!r}).read_text()") == "PermissionError"
    assert ask(place, f"Path({str(place / 'secret')!r}).read_text()") == "secret"


def test_packages_that_it_is_installed_beside_are_read(tmp_path, monkeypatch):
    """As pip does with --user and --target; the folder of a checkout holds more than packages."""
    monkeypatch.setattr(sandbox, "__file__", str(tmp_path / "tcl_core" / "sandbox.py"))
    monkeypatch.setattr(sys, "path", ["", str(tmp_path), "/elsewhere"])
    monkeypatch.chdir(tmp_path)  # as its processes do
    allowed = dict(sandbox._allowed(Rights()))
    assert allowed[str(tmp_path)] == allowed["/elsewhere"] == sandbox.READ
    (tmp_path / "pyproject.toml").touch()
    assert dict(sandbox._allowed(Rights()))[str(tmp_path)] == sandbox.READ_DIR


@needs["network"]
@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_UNIX"])
def test_there_is_no_network(place, family):
    assert ask(place, f"socket.socket(socket.{family})") in ("PermissionError", "OSError")


@needs["programs"]
def test_not_even_two_ends_of_one_process_are_sockets(place):
    """A datagram could be sent from one to a service of the system."""
    assert ask(place, "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)") == "PermissionError"


@needs["programs"]
@pytest.mark.parametrize(
    "call", ["os.execv('/bin/true', ['true'])", "subprocess.run(['true'])", "os.fork()", "os.setsid()", "os.setpgid(0, 0)"]
)
def test_no_program_or_process_is_started_and_no_group_is_left(place, call):
    """A child in a group of its own would outlive its worker, and every time limit."""
    assert ask(place, call) == "PermissionError"


@needs["programs"]
def test_threads_are_started(place):
    """With clone, since clone3 is said to be missing (ENOSYS)."""
    assert ask(place, "ThreadPoolExecutor(1).submit(threading.get_native_id).result(20) != os.getpid()") is True
    clone3 = f"ctypes.CDLL(None, use_errno=True).syscall({sandbox.CLONE3}, None, ctypes.c_size_t(0))"
    assert ask(place, f"({clone3}, ctypes.get_errno())") == [-1, 38]


@needs["programs"]
@pytest.mark.parametrize(
    "call",
    [
        "os.chmod({0!r}, 0o777)",
        "os.fchmod(os.open({0!r}, os.O_RDONLY), 0o777)",
        "os.chmod('.', 0o777, dir_fd=os.open({0!r}, os.O_RDONLY))",
        "os.chown({0!r}, -1, -1)",
        "os.lchown({0!r}, -1, -1)",
        "os.fchown(os.open({0!r}, os.O_RDONLY), -1, -1)",
        "os.chown('.', -1, -1, dir_fd=os.open({0!r}, os.O_RDONLY))",
        "os.utime({0!r})",
        "os.setxattr({0!r}, 'user.x', b'x')",
        "os.removexattr({0!r}, 'user.x')",
    ],
)
def test_files_keep_mode_owner_times_and_attributes(place, call):
    """Of which Landlock knows nothing; even those that a process owns, which its user's are."""
    scratch = str(place / "scratch")
    assert ask(place, call.format(scratch), Rights(scratch=scratch, readable=(str(place),))) == "PermissionError"


@pytest.mark.parametrize(("machine", "header"), [("x86_64", "x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "asm-generic/unistd.h")])
def test_calls_have_the_kernels_numbers(machine, header):
    """As far as this system's headers know them; those of 64-bit Arm are the generic ones."""
    path, (column, _, seccomp, clone) = Path("/usr/include", header), sandbox.ARCHITECTURES[machine]
    if not path.exists():
        pytest.skip("the kernel's headers are not installed")
    known = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+)\s+(\d+)", path.read_text())}
    ours = {name: numbers[column] for name, numbers in sandbox.REFUSED.items()}
    ours |= {"seccomp": seccomp, "clone": clone, "clone3": sandbox.CLONE3}
    assert {name: number for name, number in ours.items() if known.get(name, number) != number} == {}
    assert len(ours.keys() & known.keys()) > 15


@needs["user"]
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_root_becomes_nobody_for_good(place):
    assert ask(place, "(os.getresuid(), os.getresgid(), os.getgroups())") == [[65534] * 3, [65534] * 3, []]
    assert ask(place, "os.setuid(0)") == "PermissionError"
    lines = ask(place, "Path('/proc/self/status').read_text().splitlines()")
    held = {line.split()[0]: line.split()[1] for line in lines if line.startswith(("Cap", "NoNew"))}
    assert held["NoNewPrivs:"] == "1" and held["CapInh:"] == held["CapAmb:"] == "0" * 16
    assert int(held["CapEff:"], 16) & ~(1 << sandbox.CAP_DAC_READ_SEARCH) == 0


@needs["user"]
@pytest.mark.skipif(os.geteuid() != 0, reason="another user's own processes are guarded by 'programs'")
def test_the_process_that_started_it_is_out_of_reach(place):
    assert ask(place, "os.kill(os.getppid(), 0)") == "PermissionError"


def test_limits(place):
    assert ask(place, "resource.getrlimit(resource.RLIMIT_CORE)") == [0, 0]
    limited = Rights(scratch=str(place / "scratch"), readable=(str(place),), file_bytes=1000)
    assert ask(place, f"open({str(place / 'scratch' / 'large')!r}, 'wb', 0).write(bytes(5000))", limited) == 1000


def test_it_dies_with_what_started_it(place):
    """Although the change of user takes the order back that the parent gave."""
    waits = "(print('up', flush=True), signal.pause())"
    code = f"""
import subprocess
command = {[*sandbox.command("probe_of_rights", Rights(readable=(str(place),))), waits]!r}
child = subprocess.Popen(command, stdout=subprocess.PIPE)
assert child.stdout.readline() == b"up\\n"
print(child.pid, flush=True)
"""
    path = os.pathsep.join((str(ROOT), str(place)))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    psutil.wait_procs(known := alive(int(done.stdout)), timeout=20)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in known)


def alive(process):
    try:
        return [psutil.Process(process)]
    except psutil.NoSuchProcess:
        return []


# --- scratch folders ---


def test_a_scratch_folder_lasts_for_its_block_and_longer_than_others_that_nobody_holds(tmp_path, monkeypatch):
    """What a killed process left goes with the next one; but neither what a living one holds or has just made, nor anything else."""
    monkeypatch.setattr(sandbox.tempfile, "tempdir", str(tmp_path))
    names = ("tcl-scratch-worker-old", "tcl-scratch-worker-new", "tcl-tuned-old")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    with sandbox.scratch_folder("worker") as held:
        for old in (tmp_path / "tcl-scratch-worker-old", tmp_path / "tcl-tuned-old", held):
            os.utime(old, (0, 0))
        with sandbox.scratch_folder("serving") as another:
            assert {path.name for path in tmp_path.iterdir()} == {*names[1:], Path(held).name, Path(another).name}
            assert Path(another).name.startswith("tcl-scratch-serving-") and os.listdir(another) == []
    assert {path.name for path in tmp_path.iterdir()} == set(names[1:])


def test_it_can_be_switched_off_but_not_by_accident(place, monkeypatch):
    assert ask(place, writing_to(place / "new"), TCL_SANDBOX="on") == "PermissionError"
    monkeypatch.setenv("TCL_SANDBOX", "off")
    assert ask(place, writing_to(place / "new")) == 1
    monkeypatch.setenv("TCL_SANDBOX", "no")
    with pytest.raises(UsageError, match="^TCL_SANDBOX is 'no'; it must be on or off$"):
        sandbox.command("probe_of_rights", Rights())

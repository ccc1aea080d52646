"""What cannot be trusted runs with as few rights as the system allows: ``python -m tcl_core.sandbox RIGHTS MODULE ...``.

The process gives up its rights first and imports the module then, so that every thread of it is confined.  There are
several barriers, each by itself and each as far as the kernel goes; ``barriers`` tells which hold on this system:

    user      root becomes nobody; other users stay, and reach what they own only as far as the other barriers let them
    files     Landlock: nothing is written but the scratch folder, nothing read but Python, libraries and what is named
    network   an empty network namespace (with a user namespace, where the user is not root); no sockets (seccomp)
    programs  no other program may be started (seccomp), no process outside be signalled or traced (Landlock)

What needs a compiler, a device or the network (CUDA, RPC) keeps those, and what it may read: only the rights to write
and the user are taken from it.  No barrier bounds what the caller does with the answer: it must take it for data.
``TCL_SANDBOX=off`` in the environment starts processes without any of this.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import runpy
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tcl_core.errors import UsageError
from tcl_core.process import die_with_parent

VARIABLE = "TCL_SANDBOX"
BARRIERS = ("user", "files", "network", "programs")
NOBODY = 65534
# A worker's log and what a linker writes are far smaller.
FILE_BYTES = 1 << 30

PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS = 8, 38
CAP_DAC_READ_SEARCH, CAP_KILL, CAP_SETGID, CAP_SETUID = 2, 5, 6, 7
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # Landlock's system calls, of the same numbers everywhere
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
TRUNCATE = 1 << 14
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE  # all else are rights to folders
READ = READ_FILE | READ_DIR
ALL_WRITING = (1 << 15) - 1 - EXECUTE - READ
# The kernel's own view of this machine, its C library, and random numbers.
SYSTEM = (
    "/usr", "/lib", "/lib64", "/proc", "/sys", "/dev/urandom", "/dev/random", "/dev/zero", "/etc/ld.so.cache",
    "/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
)  # fmt: skip
# Per machine: its name for seccomp, and the numbers of (socket, execve, execveat, ptrace, io_uring_setup).
CALLS = {"x86_64": (0xC000003E, (41, 59, 322, 101, 425)), "aarch64": (0xC00000B7, (198, 221, 281, 117, 425))}
X32 = 0x40000000  # from here on, numbers of the same calls by another name


@dataclass(frozen=True)
class Rights:
    """What a process keeps.

    scratch     folder that it may write to; "": none
    readable    files and folders beyond Python and the system's libraries
    outside     it may read what its user may, use devices and the network, and start programs
    file_bytes  the largest file that it may write, open ones included
    """

    scratch: str = ""
    readable: tuple[str, ...] = ()
    outside: bool = False
    file_bytes: int = FILE_BYTES


def command(module: str, rights: Rights) -> list[str]:
    """The command, without its arguments, that runs a module with these rights.  UsageError: a bad TCL_SANDBOX."""
    if not _is_wanted():
        return [sys.executable, "-m", module]
    return [sys.executable, "-m", __name__, json.dumps(asdict(rights)), module]


def _is_wanted() -> bool:
    value = os.environ.get(VARIABLE, "on")
    if value not in ("on", "off"):
        raise UsageError(f"{VARIABLE} is {value!r}; it must be on or off")
    return value == "on"


def barriers() -> list[str]:
    """Which of BARRIERS hold here for what runs confined; none where it is off."""
    if not _is_wanted():
        return []
    done = subprocess.run(command(__name__, Rights()), capture_output=True, cwd=Path(__file__).parents[1])
    return sorted(done.stdout.decode().split(), key=BARRIERS.index) if done.returncode == 0 else []


def confine(rights: Rights) -> list[str]:
    """Give up everything else for good; the barriers that hold.  For a process that has one thread yet."""
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, rights.file_bytes)
    parent = os.getppid()
    ruleset = _open_ruleset(rights)
    held = {"network": not rights.outside and _leave_network()}
    held["user"] = _become_nobody(rights, keep_reading=ruleset is not None and not rights.outside)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    held["files"] = ruleset is not None and _restrict(ruleset)
    if not rights.outside:
        held["programs"] = _forbid_calls()
        held["network"] |= held["programs"]
    die_with_parent(parent)  # which the change of user took away
    return [name for name, holds in held.items() if holds]


def _limit(kind: int, wanted: int) -> None:
    hard = resource.getrlimit(kind)[1]
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (limit, limit))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, *values: int) -> bool:
    return _libc().prctl(option, *(ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4])) == 0


# --- user ---


def _become_nobody(rights: Rights, keep_reading: bool) -> bool:
    """Root takes the place of nobody.  Every capability goes but, with ``keep_reading``, the one to read what only root
    may, which Landlock then confines: Python itself may lie in a private folder.
    """
    held = _capabilities()
    may = all(held >> one & 1 for one in (CAP_SETUID, CAP_SETGID, CAP_KILL))  # and its parent may end it
    needed = (sys.prefix, sys.base_prefix, __file__, *rights.readable)
    changes = os.geteuid() == 0 and may and (keep_reading or _others_may_read(*needed)) and _change_user(rights, keep_reading)
    _keep_capabilities(held & 1 << CAP_DAC_READ_SEARCH if changes and keep_reading else 0)
    return changes


def _change_user(rights: Rights, keep_reading: bool) -> bool:
    _prctl(PR_SET_KEEPCAPS, int(keep_reading))
    try:
        if rights.scratch:
            os.chown(rights.scratch, NOBODY, NOBODY)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except OSError:  # a container whose users end before nobody
        return False
    return True


def _others_may_read(*paths: str) -> bool:
    return all(os.stat(folder).st_mode & 0o001 for path in paths for folder in Path(os.path.realpath(path)).parents)


def _capabilities() -> int:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), 16)


def _keep_capabilities(kept: int) -> None:
    header = struct.pack("Ii", 0x20080522, 0)
    _libc().capset(header, struct.pack("6I", kept, kept, 0, 0, 0, 0))  # effective, permitted, inherited; 32 of each, twice


# --- network ---


def _leave_network() -> bool:
    """Go where no network is.  A user that is not root needs a namespace of users for it, which some systems refuse."""
    libc, user, group = _libc(), os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWNET) == 0:
        return True
    if user == 0 or libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        return False
    with suppress(OSError):  # unmapped, files still are the user's
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


# --- files, and signals ---


def _open_ruleset(rights: Rights) -> int | None:
    """A Landlock ruleset with what may be written and read; None where the kernel has no Landlock."""
    call = _libc().syscall
    version = call(CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return None
    newest = (1 << 13, 1 << 14, 1 << 15)[min(version, 3) - 1] - 1  # refer came with 2, truncate with 3
    handled = newest & (ALL_WRITING if rights.outside else ALL_WRITING | EXECUTE | READ)
    no_tcp = 0 if rights.outside else 3
    scoped = 3 if version >= 6 and not rights.outside else 2 if version >= 6 else 0  # abstract sockets 1, signals 2
    attributes = struct.pack("3Q", handled, no_tcp if version >= 4 else 0, scoped)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = call(CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return None
    for path, access in _allowed(rights):
        _allow(ruleset, path, access & handled)
    return ruleset


def _allowed(rights: Rights) -> Iterator[tuple[str, int]]:
    """(path, what may be done with it and what lies below)"""
    package = Path(__file__).parent
    yield "/dev/null", READ_FILE | WRITE_FILE
    if rights.scratch:
        yield rights.scratch, ALL_WRITING | READ
    if rights.outside:
        yield "/dev", WRITE_FILE
        yield "/proc/self/task", WRITE_FILE | TRUNCATE  # CUDA names its threads there, and without that does not start
        return
    yield str(package.parent), READ_DIR
    modules = set(sys.path) - {"", os.getcwd(), str(package.parent)}  # the project's folder holds more than modules
    for path in sorted({str(package), sys.prefix, sys.base_prefix, *SYSTEM, *rights.readable} | modules):
        yield path, READ


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not on this system
    try:
        access &= ALL_WRITING | EXECUTE | READ if os.path.isdir(path) else OF_FILES
        if access:  # the kernel takes no empty rule
            _libc().syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", access, descriptor), 0)
    finally:
        os.close(descriptor)


def _restrict(ruleset: int) -> bool:
    held = _libc().syscall(RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return held


# --- programs, and sockets ---


def _forbid_calls() -> bool:
    """A seccomp filter: the system calls of CALLS fail with "operation not permitted"."""
    if platform.machine() not in CALLS or sys.maxsize < 1 << 32:
        return False
    arch, numbers = CALLS[platform.machine()]
    load, equal, at_least, end = 0x20, 0x15, 0x35, 0x06
    allow, refuse = 0x7FFF0000, 0x00050001  # errno 1
    last = len(numbers) + 2  # the refusal, counted from the loading of the number
    program = [(load, 0, 0, 4), (equal, 0, last + 1, arch), (load, 0, 0, 0), (at_least, last - 1, 0, X32)]
    program += [(equal, last - 2 - n, 0, number) for n, number in enumerate(numbers)]
    program += [(end, 0, 0, allow), (end, 0, 0, refuse)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filters = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    # 1: set a filter; 4: without slowing the memory accesses of what runs under it, which would change latencies
    call = {"x86_64": 317, "aarch64": 277}[platform.machine()]
    return _libc().syscall(call, 1, 4, filters) == 0


def main() -> None:
    """Confine this process, then run the module of the command line as ``python -m`` would."""
    rights, module, *arguments = sys.argv[1:]
    given = json.loads(rights)
    held = confine(Rights(**{**given, "readable": tuple(given["readable"])}))
    if module == "tcl_core.sandbox":
        print(*held)
        return
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

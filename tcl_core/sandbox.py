"""Runs untrusted code with as few rights as the system allows: ``python -m tcl_core.sandbox RIGHTS MODULE ...``.

The process drops its rights before it imports the module, so that all its threads are confined.  The barriers are
independent, and each goes as far as the kernel supports it; ``barriers`` tells which hold on this system:

    user      root becomes nobody; any other user stays, and reaches its files only as far as the other barriers allow
    files     Landlock: nothing is written but the scratch folder, nothing read but Python, libraries and named paths
    network   an empty network namespace (with a user namespace, if the user is not root); no sockets (seccomp)
    programs  no program or process can be started, no file's mode, owner, times or extended attributes changed (seccomp);
              no process outside signalled or traced (Landlock)

Code that needs a compiler, a device or the network (CUDA, RPC) keeps these and all that its user may read: it loses only
root's user and capabilities, and the rights to write and to signal or trace processes outside.  No barrier covers what the
caller does with the answer, which it must treat as data.  ``TCL_SANDBOX=off`` in the environment turns all of this off.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import runpy
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tcl_core.errors import UsageError
from tcl_core.locks import lock_if_there, try_lock
from tcl_core.process import die_with_parent

VARIABLE = "TCL_SANDBOX"
BARRIERS = ("user", "files", "network", "programs")
NOBODY = 65534
# Far more than a worker's log or a linker's output.
FILE_BYTES = 1 << 30
SCRATCH, NEW_S = "tcl-scratch-", 3600  # how names of scratch folders begin; seconds for which one may be there without a lock

PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS = 8, 38
CAP_DAC_READ_SEARCH, CAP_KILL, CAP_SETGID, CAP_SETUID = 2, 5, 6, 7
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # Landlock's system calls, the same on all architectures
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
TRUNCATE = 1 << 14
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE  # all others are rights to folders
READ = READ_FILE | READ_DIR
ALL_WRITING = (1 << 15) - 1 - EXECUTE - READ
# The kernel's own view of this machine, its C library, and random numbers.
SYSTEM = (
    "/usr", "/lib", "/lib64", "/proc", "/sys", "/dev/urandom", "/dev/random", "/dev/zero", "/etc/ld.so.cache",
    "/etc/localtime", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf",
)  # fmt: skip
# System calls that are refused -> their numbers on x86-64 and on 64-bit Arm; None: there is none.  A child could leave the group of
# processes that is killed with this one; and of the files' modes, owners, times and extended attributes Landlock knows nothing.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    "socket": (41, 198), "socketpair": (53, 199),
    "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117), "io_uring_setup": (425, 425),
    "fork": (57, None), "vfork": (58, None), "setpgid": (109, 154), "setsid": (112, 157),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466),
}  # fmt: skip
# Architecture -> its column above, its number for seccomp, and the numbers of the calls seccomp and clone.
ARCHITECTURES = {"x86_64": (0, 0xC000003E, 317, 56), "aarch64": (1, 0xC00000B7, 277, 220)}
CLONE3, CLONE_THREAD = 435, 0x00010000
X32 = 0x40000000  # from this number on, the same calls again (x32 ABI)


@dataclass(frozen=True)
class Rights:
    """Rights that a process keeps.

    scratch     folder that it may write to; "": none
    readable    files and folders that it may read beside Python and the system's libraries
    outside     it may read what its user may, use devices and the network, and start programs
    file_bytes  the largest file that it may write, open ones included
    """

    scratch: str = ""
    readable: tuple[str, ...] = ()
    outside: bool = False
    file_bytes: int = FILE_BYTES


def command(module: str, rights: Rights) -> list[str]:
    """The command, without its arguments, that runs a module with these rights.  Raises UsageError for a bad TCL_SANDBOX."""
    if not _is_wanted():
        return [sys.executable, "-m", module]
    return [sys.executable, "-m", __name__, json.dumps(asdict(rights)), module]


def _is_wanted() -> bool:
    value = os.environ.get(VARIABLE, "on")
    if value not in ("on", "off"):
        raise UsageError(f"{VARIABLE} is {value!r}; it must be on or off")
    return value == "on"


def barriers() -> list[str]:
    """The ``BARRIERS`` that hold for a confined process on this system; none if the sandbox is off."""
    if not _is_wanted():
        return []
    done = subprocess.run(command(__name__, Rights()), capture_output=True, cwd=Path(__file__).parents[1])
    return sorted(done.stdout.decode().split(), key=BARRIERS.index) if done.returncode == 0 else []


def confine(rights: Rights) -> list[str]:
    """Drop all other rights for good; return the barriers that hold.  Call it while the process has a single thread."""
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
    die_with_parent(parent)  # after the change of user, which clears it
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
    """Change from root to nobody where possible and drop all capabilities; return whether the user was changed.

    With ``keep_reading`` the capability to read what only root may stays, since Python itself may lie in a private folder;
    Landlock confines it.
    """
    held = _capabilities()
    may = all(held >> one & 1 for one in (CAP_SETUID, CAP_SETGID, CAP_KILL))  # with CAP_KILL its parent can end it
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
    except OSError:  # a container that does not map nobody's id
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
    """Enter an empty network namespace; return whether that worked.  Users other than root need a user namespace for it, which
    some systems refuse.
    """
    libc, user, group = _libc(), os.geteuid(), os.getegid()
    if libc.unshare(CLONE_NEWNET) == 0:
        return True
    if user == 0 or libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
        return False
    with suppress(OSError):  # without a mapping, files are still the user's
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    return True


# --- files, and signals ---


def _open_ruleset(rights: Rights) -> int | None:
    """Descriptor of a Landlock ruleset of what may be written and read; None where the kernel has no Landlock."""
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
    """Yield (path, rights to it and to everything below it)."""
    package = Path(__file__).parent
    yield "/dev/null", READ_FILE | WRITE_FILE
    if rights.scratch:
        yield rights.scratch, ALL_WRITING | READ
    if rights.outside:
        yield "/dev", WRITE_FILE
        yield "/proc/self/task", WRITE_FILE | TRUNCATE  # CUDA names its threads there, and does not start otherwise
        return
    yield str(package.parent), READ_DIR
    modules = set(sys.path) - {"", os.getcwd(), str(package.parent)}  # the project's folder holds more than modules
    if not (package.parent / "pyproject.toml").exists():  # but the package may be installed, beside those that it needs
        modules.add(str(package.parent))
    for path in sorted({str(package), sys.prefix, sys.base_prefix, *SYSTEM, *rights.readable} | modules):
        yield path, READ


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not on this system
    try:
        access &= ALL_WRITING | EXECUTE | READ if os.path.isdir(path) else OF_FILES
        if access:  # the kernel rejects an empty rule
            _libc().syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", access, descriptor), 0)
    finally:
        os.close(descriptor)


def _restrict(ruleset: int) -> bool:
    held = _libc().syscall(RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return held


# --- programs, sockets, and attributes of files ---


def _forbid_calls() -> bool:
    """Make the calls of ``REFUSED``, and each clone that starts no thread, fail with "operation not permitted" (seccomp).

    Return whether that worked.  The C library starts threads with clone3, whose flags a filter cannot read: it is said to be
    missing, so that clone is used.
    """
    if platform.machine() not in ARCHITECTURES or sys.maxsize < 1 << 32:
        return False
    column, arch, seccomp, clone = ARCHITECTURES[platform.machine()]
    numbers = [number for call in REFUSED.values() if (number := call[column]) is not None]
    # A line: operation, its operand, and before that where to go on if it holds and if it does not ("": to the next line).
    load, equal, at_least, has_bit, end = 0x20, 0x15, 0x35, 0x45, 0x06
    lines = [(load, "", "", 4), (equal, "", "refuse", arch), (load, "", "", 0), (at_least, "refuse", "", X32)]
    lines += [(equal, "refuse", "", number) for number in numbers]
    lines += [(equal, "missing", "", CLONE3), (equal, "", "allow", clone)]
    lines += [(load, "", "", 16), (has_bit, "allow", "refuse", CLONE_THREAD)]  # the lower half of the first argument
    answers = {"allow": 0x7FFF0000, "refuse": 0x00050000 | errno.EPERM, "missing": 0x00050000 | errno.ENOSYS}
    places = {label: len(lines) + number for number, label in enumerate(answers)}

    def jump(place: int, label: str) -> int:
        return places[label] - place - 1 if label else 0

    program = [(operation, jump(n, yes), jump(n, no), operand) for n, (operation, yes, no, operand) in enumerate(lines)]
    program += [(end, 0, 0, answer) for answer in answers.values()]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filters = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    # 1: set a filter; 4: allow speculative memory accesses, since without them latencies would change
    return _libc().syscall(seccomp, 1, 4, filters) == 0


# --- scratch folders ---


@contextmanager
def scratch_folder(kind: str) -> Iterator[str]:
    """Yield a new folder in the temporary one, which is removed at the end of the block.

    It is locked while this process lives; those that killed processes of this user left behind are removed first.
    """
    _remove_left_over()
    with tempfile.TemporaryDirectory(prefix=f"{SCRATCH}{kind}-", ignore_cleanup_errors=True) as folder:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # a file system without locks, on which none is taken for left over either
                try_lock(descriptor)
            yield folder
        finally:
            os.close(descriptor)


def _remove_left_over() -> None:
    """Remove this user's scratch folders that no process has locked, but for new ones, which are about to be."""
    for path in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*"):
        with suppress(OSError):  # another user's, or gone meanwhile
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                there = os.fstat(descriptor)
                ours = there.st_uid in (os.geteuid(), NOBODY)  # root has given nobody those of confined processes
                if ours and time.time() - there.st_mtime > NEW_S and lock_if_there(path, descriptor):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


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

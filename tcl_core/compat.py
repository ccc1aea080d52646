"""The one place that knows TVM's quirks: version guard, light intrinsic import, thread pool, JIT.

Everything that needs TVM gets it by ``from tcl_core.compat import load_tvm``, so that no other file can meet
an incompatible runtime (which crashes instead of raising) or pay for intrinsics of foreign hardware.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, wraps
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from tcl_core.errors import PlatformError, TclError, last_line, naming_extras
from tcl_core.gpu import cuda_compiler
from tcl_core.locks import ThreadLock

TVM_VERSION = "0.27.0.post1"
FFI_VERSION = "0.1.14.post1"
ONE_CORE_PER_THREAD = -2  # of TVM's ThreadGroup::AffinityMode


def check_versions() -> None:
    """Raise PlatformError unless the TVM and tvm-ffi that are installed are known to work together.

    Newer tvm-ffi releases segfault inside ``TuneContext`` and older ones fail to load, so this must be
    asked of the package metadata, before anything of TVM is imported.
    """
    for package, wanted in (("apache-tvm", TVM_VERSION), ("apache-tvm-ffi", FFI_VERSION)):
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found = "none"
        if found != wanted:
            raise PlatformError(
                f"{package} {found} is installed, but only {wanted} works here (others crash the process); "
                f"run: pip install apache-tvm=={TVM_VERSION} apache-tvm-ffi=={FFI_VERSION}"
            )


@cache
def load_tvm(without_torch: bool = False) -> types.ModuleType:
    """Import TVM, checked and light; returns the ``tvm`` module.

    ``without_torch`` hides torch from TVM's import, which takes it if it is there: half the time and a third of the
    memory, for worker processes that only build and run programs.  Nothing of TVM that these use imports torch later.
    ``cuda``, NVIDIA's bindings, which come with torch for GPUs, goes the same way: it looks for libraries with the help of a
    compiler and a temporary file, neither of which a confined process may have, and nothing here asks TVM for it.
    """
    check_versions()
    with naming_extras(), hidden("torch", "cuda") if without_torch else nullcontext():
        tvm = importlib.import_module("tvm")
    _stand_in_for_intrinsics(tvm)
    return tvm


def load_module(text: str) -> Any:
    """The object that ``tvm.ir.save_json`` wrote, in a sixth of the time where this very version did: ``load_json`` first rewrites
    the text for what older ones wrote.
    """
    tvm = load_tvm()
    if text.endswith(f'"metadata":{{"tvm_version":"{TVM_VERSION}"}}}}'):
        return importlib.import_module("tvm_ffi.serialization").from_json_graph_str(text)
    return tvm.ir.load_json(text)


@contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """Within, importing one of the packages raises ImportError as if it were not installed; one that is loaded already stays."""
    absent = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None is what Python's import refuses
    try:
        yield
    finally:
        for package in absent:
            del sys.modules[package]


def load_compiled(path: Path) -> Any:
    """The module of a library that TVM compiled, by TVM's runtime alone: the compiler takes seconds to import."""
    check_versions()
    with hidden("cuda"):
        tvm_ffi = importlib.import_module("tvm_ffi")
    package = importlib.util.find_spec("tvm").submodule_search_locations[0]  # type: ignore[union-attr, index]  # check_versions has found it
    ctypes.CDLL(str(Path(package) / "lib" / "libtvm_runtime.so"))  # what compiled code calls
    return tvm_ffi.load_module(str(path))


def _stand_in_for_intrinsics(tvm: types.ModuleType) -> None:
    """Register an empty ``tensor_intrin`` package over the same path.

    ``TuneContext`` imports the package, whose own ``__init__`` parses the intrinsics of all hardware (17 s);
    submodules stay importable one by one.  A context with TVM's own rules, as anybody else's, still finds those of its target.
    """
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        return
    package = types.ModuleType(name)
    package.__path__ = [str(Path(tvm.s_tir.__file__).parent / "tensor_intrin")]
    sys.modules[name] = tvm.s_tir.tensor_intrin = package
    context = tvm.s_tir.meta_schedule.TuneContext
    plain = context.__init__

    @wraps(plain)
    def init(self: Any, mod: Any = None, *, target: Any = None, space_generator: Any = None, **more: Any) -> None:
        if target is not None and isinstance(space_generator, str):
            target = target if isinstance(target, tvm.target.Target) else tvm.target.Target(target)
            load_intrinsics(target.kind.name, str(target.attrs.get("mtriple", "")))
        plain(self, mod, target=target, space_generator=space_generator, **more)

    context.__init__ = init


def load_intrinsics(kind: str, triple: str = "") -> None:
    """Register the tensor intrinsics that MetaSchedule's own rules for a target kind ask for: of CUDA (10 s), or of a CPU, LLVM's
    ``triple`` or this machine's.

    Our design spaces (``programs.sketches``) need none.
    """
    load_tvm()
    machine = "arm_cpu" if (triple or platform.machine()).startswith(("aarch64", "arm")) else "x86"
    importlib.import_module(f"tvm.s_tir.tensor_intrin.{'cuda' if kind == 'cuda' else machine}")


def hand_on_errors() -> None:
    """Let our errors pass through TVM as what they are: of errors that it does not know it makes a RuntimeError."""
    load_tvm()
    import tvm_ffi

    for kind in TclError.__subclasses__():
        tvm_ffi.register_error(kind)


def meta_schedule() -> types.ModuleType:
    """TVM's ``meta_schedule`` package."""
    load_tvm()
    return importlib.import_module("tvm.s_tir.meta_schedule")


def make_target(spec: dict[str, Any]) -> Any:
    """A ``tvm.target.Target`` from its dictionary; PlatformError if this LLVM does not know the CPU."""
    tvm = load_tvm()
    try:
        return tvm.target.Target(spec)
    except Exception as error:  # TVM raises several kinds here, none of them documented
        raise PlatformError(f"TVM has no target {spec}: {last_line(error)}") from error


def choose_cuda_compiler() -> None:
    """TVM compiles CUDA code with nvrtc unless it is told otherwise; nvcc, where there is one, brings its own headers."""
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", cuda_compiler() or "nvrtc")


def schedule_by_rules(module: Any, target: Any) -> Any:
    """A module whose functions, where nobody has scheduled them, are so by the rules that Relax has for GPUs (``dlight``)."""
    load_tvm()
    dlight = importlib.import_module("tvm.s_tir.dlight")
    gpu = dlight.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    with target:
        return dlight.ApplyDefaultSchedule(*rules)(module)


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Keep the compiler's own chatter off standard error while it works; what it raises is still raised.

    TVM writes warnings that a user can do nothing about straight to file descriptor 2.  That is the process's: of several threads the
    first one silences it, and the last one gives it back.
    """
    _silence.begin()
    try:
        yield
    finally:
        _silence.end()


class _Silence:
    """How many threads want standard error silent, and what it was; None where there is none."""

    def __init__(self) -> None:
        self._lock, self._wanted = ThreadLock(), 0
        self._saved: int | None = None

    def begin(self) -> None:
        with self._lock:
            self._wanted += 1
            if self._wanted > 1:
                return
            with suppress(AttributeError, OSError, ValueError):  # none, or closed
                sys.stderr.flush()
            with suppress(OSError):
                self._saved = os.dup(2)
                with open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), 2)

    def end(self) -> None:
        with self._lock:
            self._wanted -= 1
            if not self._wanted and self._saved is not None:
                os.dup2(self._saved, 2)
                os.close(self._saved)
                self._saved = None


_silence = _Silence()


def set_threads(count: int, pinned: bool = True) -> None:
    """Set the number of threads of TVM's runtime in this process; ``pinned`` binds all but the calling one to cores.

    These are cores that the process may use, the last ones first; left to itself TVM takes any of the machine's.
    Without TVM_NUM_THREADS TVM never uses more than half of the logical CPUs of an x86 host, whatever it is told.
    """
    os.environ["TVM_NUM_THREADS"] = str(count)
    os.environ["TVM_BIND_THREADS"] = str(int(pinned))
    allotted = os.sched_getaffinity(0)
    cores = [str(core) for core in islice(cycle(sorted(allotted, reverse=True)), count)]
    load_tvm().get_global_func("runtime.config_threadpool")(ONE_CORE_PER_THREAD, count, cores)
    with suppress(OSError):  # TVM has confined the calling thread too, unless threads cannot be bound here at all
        os.sched_setaffinity(0, allotted)


@contextmanager
def calling_thread_pinned() -> Iterator[None]:
    """Bind the calling thread to a core that no thread of TVM's runtime is bound to.

    TVM binds its helpers only.  Where the caller, which does a share of the work, meets one of them on a core, a
    program takes twice as long.  Raises PlatformError where threads cannot be bound, or cannot be seen.
    """
    cores = os.sched_getaffinity(0)
    _bind_to_a_free_one(cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _bind_to_a_free_one(cores: set[int]) -> None:
    try:
        if free := sorted(cores - _bound_cores()):
            os.sched_setaffinity(0, free[-1:])
    except OSError as error:
        raise PlatformError(f"threads cannot be bound to cores here ({error}); set measure.pin_threads to false in params.yaml") from error


def _bound_cores() -> set[int]:
    """Cores that other threads of this process are bound to, one by one."""
    bound: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            cores = os.sched_getaffinity(int(thread))
            if len(cores) == 1 and int(thread) != threading.get_native_id():
                bound |= cores
    return bound


def structural_key(module: Any) -> str:
    """Sixteen hexadecimal digits, equal for structurally equal modules, in every process."""
    import tvm_ffi

    return format(tvm_ffi.structural_hash(module) & (2**64 - 1), "016x")

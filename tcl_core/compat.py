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
    """Raise PlatformError unless the installed TVM and tvm-ffi are the versions known to work together.

    Newer tvm-ffi releases segfault inside ``TuneContext`` and older ones fail to load, so this reads the
    package metadata, before anything of TVM is imported.
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
    """Check TVM's version, import it without its tensor intrinsics, and return the ``tvm`` module.

    ``without_torch`` hides torch, which TVM would import if installed: the import then takes half the time and a third of
    the memory.  It is for worker processes that only build and run programs; nothing of TVM that these use imports torch later.
    It also hides ``cuda``, NVIDIA's bindings that come with torch for GPUs: these look for libraries with a compiler and a
    temporary file, neither of which a confined process may use, and nothing here needs them through TVM.
    """
    check_versions()
    with naming_extras(), hidden("torch", "cuda") if without_torch else nullcontext():
        tvm = importlib.import_module("tvm")
    _stand_in_for_intrinsics(tvm)
    return tvm


def load_module(text: str) -> Any:
    """Load what ``tvm.ir.save_json`` wrote, in a sixth of the time of ``load_json`` if this TVM version wrote it.

    ``load_json`` first upgrades the text from the formats of older versions.
    """
    tvm = load_tvm()
    if text.endswith(f'"metadata":{{"tvm_version":"{TVM_VERSION}"}}}}'):
        return importlib.import_module("tvm_ffi.serialization").from_json_graph_str(text)
    return tvm.ir.load_json(text)


@contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """Make imports of the packages fail within the block as if they were not installed; one already imported stays."""
    absent = [package for package in packages if package not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None is what Python's import refuses
    try:
        yield
    finally:
        for package in absent:
            del sys.modules[package]


def load_compiled(path: Path) -> Any:
    """Load a library that TVM compiled, through TVM's runtime alone, since importing the compiler takes seconds."""
    check_versions()
    with hidden("cuda"):
        tvm_ffi = importlib.import_module("tvm_ffi")
    package = importlib.util.find_spec("tvm").submodule_search_locations[0]  # type: ignore[union-attr, index]  # check_versions found it
    ctypes.CDLL(str(Path(package) / "lib" / "libtvm_runtime.so"))  # what compiled code calls
    return tvm_ffi.load_module(str(path))


def _stand_in_for_intrinsics(tvm: types.ModuleType) -> None:
    """Replace TVM's ``tensor_intrin`` package by an empty one over the same path.

    ``TuneContext`` imports the package, whose own ``__init__`` parses the intrinsics of all hardware (17 s).  Its
    submodules stay importable one by one, and a context that uses TVM's own rules still loads those of its target.
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
    """Register the tensor intrinsics that MetaSchedule's own rules for a target kind need.

    These are CUDA's (10 s), or those of the CPU that LLVM's ``triple`` names, by default this machine's.  TCL's design
    spaces (``programs.sketches``) need none.
    """
    load_tvm()
    machine = "arm_cpu" if (triple or platform.machine()).startswith(("aarch64", "arm")) else "x86"
    importlib.import_module(f"tvm.s_tir.tensor_intrin.{'cuda' if kind == 'cuda' else machine}")


def hand_on_errors() -> None:
    """Register TCL's errors with TVM, which turns exceptions of unknown types into RuntimeError."""
    load_tvm()
    import tvm_ffi

    waiting = TclError.__subclasses__()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        tvm_ffi.register_error(kind)


def meta_schedule() -> types.ModuleType:
    """TVM's ``meta_schedule`` package."""
    load_tvm()
    return importlib.import_module("tvm.s_tir.meta_schedule")


def make_target(spec: dict[str, Any]) -> Any:
    """A ``tvm.target.Target`` from its dictionary.  Raises PlatformError if TVM rejects it, as for a CPU unknown to this LLVM."""
    tvm = load_tvm()
    try:
        return tvm.target.Target(spec)
    except Exception as error:  # TVM raises several kinds here, none of them documented
        raise PlatformError(f"TVM has no target {spec}: {last_line(error)}") from error


def choose_cuda_compiler() -> None:
    """Set TVM's CUDA compiler unless the environment does: nvcc if there is one, since it brings its own headers, else nvrtc."""
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", cuda_compiler() or "nvrtc")


def schedule_by_rules(module: Any, target: Any) -> Any:
    """Schedule a module's unscheduled functions by Relax's rules for GPUs (``dlight``)."""
    load_tvm()
    dlight = importlib.import_module("tvm.s_tir.dlight")
    gpu = dlight.gpu
    rules = (gpu.Matmul(), gpu.GEMV(), gpu.Reduction(), gpu.GeneralReduction(), gpu.Fallback())
    with target:
        return dlight.ApplyDefaultSchedule(*rules)(module)


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Silence the compiler on standard error within the block; exceptions still propagate.

    TVM writes warnings that no user can act on straight to file descriptor 2, which all threads share: the first thread to
    enter silences it, the last one to leave restores it.
    """
    _silence.begin()
    try:
        yield
    finally:
        _silence.end()


class _Silence:
    """Counts the threads that want standard error silent, and keeps a copy of its descriptor (None if there is none)."""

    def __init__(self) -> None:
        self._lock, self._wanted = ThreadLock(), 0
        self._saved: int | None = None

    def begin(self) -> None:
        with self._lock:
            self._wanted += 1
            if self._wanted > 1:
                return
            with suppress(AttributeError, OSError, ValueError):  # standard error is missing or closed
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

    The cores are taken from those that the process may use, last first; by default TVM takes any of the machine's.
    Without TVM_NUM_THREADS TVM never uses more than half of the logical CPUs of an x86 host, whatever it is told.
    """
    os.environ["TVM_NUM_THREADS"] = str(count)
    os.environ["TVM_BIND_THREADS"] = str(int(pinned))
    allotted = os.sched_getaffinity(0)
    cores = [str(core) for core in islice(cycle(sorted(allotted, reverse=True)), count)]
    load_tvm().get_global_func("runtime.config_threadpool")(ONE_CORE_PER_THREAD, count, cores)
    with suppress(OSError):  # TVM has bound the calling thread too; this fails only where no thread can be bound
        os.sched_setaffinity(0, allotted)


@contextmanager
def calling_thread_pinned() -> Iterator[None]:
    """Bind the calling thread to a core that no thread of TVM's runtime is bound to.

    TVM binds only its helper threads.  The caller does a share of the work too, and if it shares a core with a helper, a
    program takes twice as long.  Raises PlatformError where threads cannot be bound or listed.
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
    """Cores to which another thread of this process is bound, each to that core alone."""
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

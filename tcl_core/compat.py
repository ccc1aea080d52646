"""The one place that knows TVM's quirks: version guard, light intrinsic import, thread pool, JIT.

Everything that needs TVM gets it by ``from tcl_core.compat import load_tvm``, so that no other file can meet
an incompatible runtime (which crashes instead of raising) or pay for intrinsics of foreign hardware.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from tcl_core.errors import PlatformError

TVM_VERSION = "0.27.0.post1"
FFI_VERSION = "0.1.14.post1"
INTRINSICS = {"llvm": "x86", "cuda": "cuda"}


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

    ``without_torch`` hides torch from TVM's import: half the time and a third of the memory, for worker
    processes that only build and run programs.
    """
    check_versions()
    if without_torch and "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]  # makes `import torch` raise ImportError
    tvm = importlib.import_module("tvm")
    _stand_in_for_intrinsics(tvm)
    return tvm


def _stand_in_for_intrinsics(tvm: types.ModuleType) -> None:
    """Register an empty ``tensor_intrin`` package over the same path.

    ``TuneContext`` imports the package, whose own ``__init__`` parses the intrinsics of all hardware (17 s);
    submodules stay importable one by one, see ``load_intrinsics``.
    """
    name = "tvm.s_tir.tensor_intrin"
    if name not in sys.modules:
        package = types.ModuleType(name)
        package.__path__ = [str(Path(tvm.s_tir.__file__).parent / "tensor_intrin")]  # type: ignore[attr-defined]
        sys.modules[name] = tvm.s_tir.tensor_intrin = package


@cache
def load_intrinsics(target_kind: str) -> None:
    """Register the tensor intrinsics of one target kind only (``llvm``: 0.6 s, ``cuda``: 10 s)."""
    load_tvm()
    if target_kind in INTRINSICS:
        importlib.import_module(f"tvm.s_tir.tensor_intrin.{INTRINSICS[target_kind]}")


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
        reason = str(error).strip().splitlines()[-1]
        raise PlatformError(f"TVM has no target {spec}: {reason}") from error


@contextmanager
def quiet_compiler() -> Iterator[None]:
    """Keep the compiler's own chatter off standard error while it works; what it raises is still raised.

    TVM writes warnings that a user can do nothing about straight to file descriptor 2.
    """
    sys.stderr.flush()
    saved = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def set_threads(count: int) -> None:
    """Set the number of threads of TVM's runtime in this process, and pin the calling thread to one core.

    The pinning is TVM's doing: it makes timings steady, and starves whatever else (such as PyTorch) runs here after.
    Without the variable TVM never uses more than half of the logical CPUs of an x86 host, whatever it is told.
    """
    os.environ["TVM_NUM_THREADS"] = str(count)
    load_tvm().get_global_func("runtime.config_threadpool")(-1, count)


def structural_key(module: Any) -> str:
    """Sixteen hexadecimal digits, equal for structurally equal modules, in every process."""
    import tvm_ffi

    return format(tvm_ffi.structural_hash(module) & (2**64 - 1), "016x")

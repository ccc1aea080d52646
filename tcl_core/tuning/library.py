"""Builds a network as a shared library that holds its weights and needs only TVM's runtime, finds programs that spoil the build, and
writes the databases that go with the library."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tcl_core.compat import load_tvm, meta_schedule, quiet_compiler
from tcl_core.errors import PlatformError
from tcl_core.files import shown, writing
from tcl_core.programs.pt2_archive import last_line
from tcl_core.programs.tuning_logs.opening import DATABASE, MEASURED
from tcl_core.tuning.database import Shelf, open_database

LIBRARY, EXAMPLE = "network.so", "example.npz"  # files of a tuned network's folder: the library; inputs, with the reference's outputs
CURVE = "curve.json"  # beside an unfinished search's database: how the network became faster
TOLERANCE = 1e-3  # largest difference of an output, relative to its magnitude: beyond it a network is refused
Part = TypeVar("Part")
ROOM = 16 << 20  # bytes: more than the object files of a network's code take, beside its weights


def export(module: Any, target: Any, path: Path) -> None:
    """Build a Relax module from ``graph.fuse`` or ``graph.apply_database``, and write it as a library (``.so``).

    Raises PlatformError where TVM cannot build it, naming the first function that does not build by itself; where no C++
    compiler links it; and where there is no room for it.
    """
    tvm = load_tvm()
    with quiet_compiler():
        try:
            with target:  # CUDA's compiler asks for the architecture
                built = tvm.compile(module, target)
        except Exception as error:  # TVM passes on whatever its passes raise
            raise PlatformError(f"TVM cannot build {_guilty(module, target)} ({last_line(error)}); give another network") from error
        for folder in filter(Path.is_dir, (path.parent, Path(tempfile.gettempdir()))):
            _check_room(folder, ROOM + _weight_bytes(module))
        try:
            built.export_library(str(path))
        except Exception as error:
            raise PlatformError(
                f"{shown(path)} cannot be linked ({last_line(error)}); is there a C++ compiler (g++), and space?"
            ) from error


def _check_room(folder: Path, size: int) -> None:
    """Check for ``size`` bytes beforehand, since LLVM silently ends the whole process where it cannot write an object file."""
    with writing(folder), tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, size)


def _weight_bytes(module: Any) -> int:
    """Bytes of a Relax module's constants."""
    tvm = load_tvm()
    found: list[Any] = []
    for function in module.functions.values():
        if isinstance(function, tvm.relax.Function):
            tvm.relax.analysis.post_order_visit(function, found.append)
    values = [each.value for each in found if isinstance(each, tvm.ir.GenericConst)]
    return sum(math.prod(value.shape) * value.dtype.itemsize for value in values)


def _guilty(module: Any, target: Any) -> str:
    """Name the first function that cannot be built by itself; "the network" if each can."""
    tvm = load_tvm()
    for var, function in module.functions.items():
        if isinstance(function, tvm.tirx.PrimFunc):
            try:
                tvm.tirx.build(tvm.IRModule({var: function.with_attr("global_symbol", var.name_hint)}), target)
            except Exception:
                return f"the function {shown(var.name_hint)}"
    return "the network"


def without_spoilers(parts: Sequence[Sequence[Part]], is_sound: Callable[[Sequence[Part]], bool]) -> list[Part]:
    """Pick one alternative per part, the earliest that works, such that all are sound together; drop a part of which none is.

    Finds a spoiler by bisection: the alternative that makes a sound prefix unsound.
    """
    left = [list(alternatives) for alternatives in parts if alternatives]
    while left and not is_sound([alternatives[0] for alternatives in left]):
        sound, unsound = 0, len(left)
        while unsound - sound > 1:
            middle = (sound + unsound) // 2
            beginning = [alternatives[0] for alternatives in left[:middle]]
            sound, unsound = (middle, unsound) if is_sound(beginning) else (sound, middle)
        del left[sound][0]
        if not left[sound]:
            del left[sound]
    return [alternatives[0] for alternatives in left]


def by_task(records: Sequence[Any]) -> list[list[Any]]:
    """Group tuning records by workload, keeping their order."""
    tasks: list[list[Any]] = []
    for record in records:
        mine = next((task for task in tasks if task[0].workload.same_as(record.workload)), None)
        if mine is None:
            tasks.append([record])
        else:
            mine.append(record)
    return tasks


def database_of(records: Sequence[Any]) -> Any:
    """A MetaSchedule database of just these tuning records."""
    database = meta_schedule().database.MemoryDatabase()
    for record in records:
        database.commit_workload(record.workload.mod)
        database.commit_tuning_record(record)
    return database


def write_databases(measured: Path, built: Sequence[Any], out: Path) -> None:
    """Write ``out``/``MEASURED``, a copy of the database of all measurements, and ``out``/``DATABASE``, of ``built`` alone.

    built  the records that the network was built with, guessed ones included: from their database TVM applies just these, while
           that of all measurements also has programs that were wrong or read fast by luck
    """
    folder = out / DATABASE
    with writing(out / MEASURED):
        shutil.copytree(measured, out / MEASURED, ignore=shutil.ignore_patterns(CURVE))
    written = open_database(folder)
    try:
        for record in built:
            Shelf(written, record.workload.mod, record.target).put(record.trace, [float(seconds) for seconds in record.run_secs])
    except PlatformError as error:
        raise PlatformError(f"cannot write {shown(folder)}; free some space and run again, what was measured is kept") from error

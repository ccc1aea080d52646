"""A network as a shared library that needs TVM's runtime only, its weights inside; and what to leave out where one cannot be built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tcl_core.compat import load_tvm, meta_schedule, quiet_compiler
from tcl_core.errors import PlatformError
from tcl_core.files import shown
from tcl_core.programs.pt2_archive import last_line

Part = TypeVar("Part")


def export(module: Any, target: Any, path: Path) -> None:
    """Build a Relax module, as ``graph.fuse`` or ``graph.apply_database`` gave it, and write it as a library (``.so``).

    Raises PlatformError: TVM cannot build it, and of which function, where only one is at fault; no C++ compiler links it.
    """
    tvm = load_tvm()
    with quiet_compiler():
        try:
            built = tvm.compile(module, target)
        except Exception as error:  # TVM raises what its passes raise
            raise PlatformError(f"TVM cannot build {_guilty(module, target)} ({last_line(error)}); give another network") from error
        try:
            built.export_library(str(path))
        except Exception as error:
            raise PlatformError(f"{shown(path)} cannot be linked ({last_line(error)}); is there a C++ compiler (g++), and space?") from error


def _guilty(module: Any, target: Any) -> str:
    """The first function that cannot be built by itself."""
    tvm = load_tvm()
    for var, function in module.functions.items():
        if isinstance(function, tvm.tirx.PrimFunc):
            try:
                tvm.tirx.build(tvm.IRModule({var: function.with_attr("global_symbol", var.name_hint)}), target)
            except Exception:
                return f"the function {shown(var.name_hint)}"
    return "the network"


def without_spoilers(parts: Sequence[Part], is_sound: Callable[[Sequence[Part]], bool]) -> list[Part]:
    """The parts that are sound together, where none of them is: whatever spoils the others is left out, one by one.

    Each is found by bisection: adding it makes a sound beginning unsound.
    """
    kept = list(parts)
    while kept and not is_sound(kept):
        sound, unsound = 0, len(kept)
        while unsound - sound > 1:
            middle = (sound + unsound) // 2
            sound, unsound = (middle, unsound) if is_sound(kept[:middle]) else (sound, middle)
        del kept[sound]
    return kept


def database_of(records: Sequence[Any]) -> Any:
    """A MetaSchedule database of just these tuning records."""
    database = meta_schedule().database.MemoryDatabase()
    for record in records:
        database.commit_workload(record.workload.mod)
        database.commit_tuning_record(record)
    return database

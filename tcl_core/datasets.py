"""Measured programs to learn from: the reference data set that comes with TCL, and other tuners' logs.

data = tcl.datasets.reference()
case = data.case("host-avx512")              # case.train, case.test: Samples that share no task
logs = tcl.datasets.log("random.log.gz")     # the programs of a log, as Samples
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples, concatenate
from tcl_core.files import place, shown
from tcl_core.platforms import Hardware, vector_of
from tcl_core.programs.tuning_logs.known import Known
from tcl_core.programs.tuning_logs.opening import log_file, open_log
from tcl_core.reference import PACKAGED, PREPARED, REGISTERS, SEARCHED, Case, Reference, drawn
from tcl_core.stages.exchange import Refused, encoder_of

__all__ = [
    "PACKAGED",
    "PREPARED",
    "REGISTERS",
    "SEARCHED",
    "Case",
    "Reference",
    "drawn",
    "log",
    "prepared",
    "reference",
    "registers",
    "searched",
]


def reference(folder: str | Path | None = None, features: str | Path | None = None) -> Reference:
    """11,584 programs of 182 tasks on three targets of one machine, really measured; ``data/reference/README.md`` tells how.

    folder    another data set of that form, or a URL of one that fsspec reads; features  where lowered programs are cached, else in the user's cache folder
    """
    return Reference(place(folder or PACKAGED), Path(features) if features else None)


def prepared(features: str | Path | None = None) -> Reference:
    """Programs of networks whose graph is prepared as params.yaml comes but for Winograd and rounding up, on the same three targets; ``data/prepared/README.md`` tells how many."""
    return reference(PREPARED, features)


def registers(features: str | Path | None = None) -> Reference:
    """The same networks' programs as a search draws them: most add up in registers; ``data/registers/README.md`` tells how many."""
    return reference(REGISTERS, features)


def searched(features: str | Path | None = None) -> Reference:
    """The same tasks' programs that searches met, and draws beside them, on AVX2 and AVX-512 of a machine each; ``data/searched/README.md`` tells how many."""
    return reference(SEARCHED, features)


def log(path: str | Path, hardware: Sequence[float] | Hardware = (), target: str = "") -> Samples:
    """The programs of a log, or of a database's folder, whose target has ``target`` in it; docs/data.md lists whose logs are read.

    ``hardware`` says which hardware it is, or are the numbers of its row; without it there is none, and in a MetaSchedule database's
    programs one of zeros.  Lines that are no programs, or of another target than the first, are left out with a warning.  Each log numbers tasks for itself: samples of two cannot be put together (``tcl import`` into a project can).
    Raises UsageError for what is no file, DataError for what is no log or has no program.
    """
    opened = open_log(log_file(Path(path)), Known(), wanted=target)
    refused = Refused(opened)
    blocks = list(opened.columns(refused))
    if not blocks:
        raise DataError(f"no line of {shown(path)} can become a program ({' '.join(refused.first).strip()}); give another log")
    refused.warn()
    known, row = opened.known, vector_of(hardware)
    parts = [encoder_of(known.task_rows(), known.sketch_rows(), block["task_key"]).encode_columns(block, row) for block in blocks]  # type: ignore[arg-type]
    return concatenate(parts)

"""Measured programs to learn from: the data sets that come with TCL, and other tuners' logs.

data = tcl.datasets.reference()
case = data.case("host-avx512")              # case.train, case.test: Samples that share no task
logs = tcl.datasets.log("random.log.gz")     # the programs of a log, as Samples
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tcl_core.errors import DataError
from tcl_core.features.batches import Samples, concatenate
from tcl_core.files import place, shown
from tcl_core.platforms import Hardware, vector_of
from tcl_core.programs.tuning_logs.known import Known
from tcl_core.programs.tuning_logs.opening import log_file, open_log
from tcl_core.reference import PACKAGED, PREPARED, REGISTERS, SEARCHED, VARIANTS, Case, Reference, drawn
from tcl_core.stages.exchange import Refused, encoder_of

__all__ = [
    "PACKAGED",
    "PREPARED",
    "REGISTERS",
    "SEARCHED",
    "VARIANTS",
    "Case",
    "Reference",
    "drawn",
    "log",
    "prepared",
    "reference",
    "registers",
    "searched",
    "variants",
]


def reference(folder: str | Path | None = None, features: str | Path | None = None) -> Reference:
    """11,584 programs of 182 tasks, measured on three targets of one machine as ``data/reference/README.md`` describes.

    folder    another data set of the same form, or a URL of one that fsspec reads
    features  folder that caches features of lowered programs; None: in the user's cache folder
    """
    return Reference(place(folder or PACKAGED), Path(features) if features else None)


def prepared(features: str | Path | None = None) -> Reference:
    """Programs of networks prepared as params.yaml does by default, but without Winograd and rounding up, on the same three targets.

    ``data/prepared/README.md`` gives their numbers.
    """
    return reference(PREPARED, features)


def registers(features: str | Path | None = None) -> Reference:
    """Programs of the networks of ``prepared``, drawn as a search draws them: most accumulate in registers.

    ``data/registers/README.md`` gives their numbers.
    """
    return reference(REGISTERS, features)


def searched(features: str | Path | None = None) -> Reference:
    """Programs that searches proposed for the same tasks, and random draws, on AVX2 of one machine and AVX-512 of another.

    ``data/searched/README.md`` gives their numbers.
    """
    return reference(SEARCHED, features)


def variants(features: str | Path | None = None) -> Reference:
    """Few programs each of many more tasks, of the training networks in other sizes; not every target measured all of them.

    ``data/variants/README.md`` gives their numbers.
    """
    return reference(VARIANTS, features)


def log(path: str | Path, hardware: Sequence[float] | Hardware = (), target: str = "") -> Samples:
    """Programs of a tuning log, or of a database's folder, whose target contains the text ``target``; docs/data.md lists the tuners.

    ``hardware`` is the hardware that they ran on, or the numbers of its row; without it tokens have no hardware row, and those of a
    MetaSchedule database one of zeros.  Lines that hold no program, or one for another target than the first program's, are left out
    with a warning.  Each log numbers its tasks separately, so samples of two logs with different tasks cannot be concatenated
    (``tcl import`` can join them).  Task names end with the task's key.
    Raises UsageError for a path without a log file, DataError for a file that is no log or has no program.
    """
    opened = open_log(log_file(Path(path)), Known(), wanted=target)
    refused = Refused(opened)
    blocks = list(opened.columns(refused))
    if not blocks:
        raise DataError(f"no line of {shown(path)} can become a program ({' '.join(refused.first).strip()}); give another log")
    refused.warn()
    tasks, row = opened.known.task_rows(), vector_of(hardware)
    encoder = encoder_of(tasks, opened.known.sketch_rows(), blocks[0]["task_key"])  # type: ignore[arg-type]
    found = concatenate([encoder.encode_columns(block, row) for block in blocks])
    # Different tasks may share a name, and ``concatenate`` tells two logs apart by the names alone.
    return replace(found, task_names=tuple(f"{task['name']} ({task['task_key']})" for task in tasks))

"""Cache of arrays that are costly to compute, by name: one safetensors file per task.

Knows nothing of programs: the caller derives each name from all that its array depends on, and gives the format.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

from tcl_core.checked import read_tensors, write_tensors
from tcl_core.errors import DataError

log = logging.getLogger(__name__)


@dataclass
class Cache:
    """Name -> array, in a file that is read at once and replaced as a whole.

    format  what computes the arrays, and its version; a file of another format is ignored
    arrays  known arrays; names have one length, shapes differ in the first axis only
    """

    path: Path
    format: str
    arrays: dict[bytes, np.ndarray] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.path.exists():
            self._read()
        self._kept = len(self.arrays)

    def _read(self) -> None:
        try:
            tensors, facts = read_tensors(self.path, load, "what it held is made again")
        except DataError as error:
            log.warning("%s", error)
            return
        if facts.get("format") == self.format:
            parts = np.split(tensors["rows"], np.cumsum(tensors["counts"])[:-1])
            self.arrays = {name.tobytes(): part for name, part in zip(tensors["names"], parts, strict=True)}

    def write(self) -> None:
        """Write the file if arrays were added.  Raises PlatformError when the disk is full."""
        if len(self.arrays) == self._kept:
            return
        names = np.frombuffer(b"".join(self.arrays), dtype=np.uint8).reshape(len(self.arrays), -1)
        counts = np.array([len(part) for part in self.arrays.values()], dtype=np.int32)
        tensors = {"names": names, "counts": counts, "rows": np.concatenate(list(self.arrays.values()))}
        write_tensors(self.path, save, tensors, {"format": self.format})
        self._kept = len(self.arrays)

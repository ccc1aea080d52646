"""Arrays that are costly to make, kept by name: a safetensors file for each task.

Knows nothing of programs: whoever makes the arrays names them after all that they depend on, and gives their format.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from tcl_core.files import replacing

log = logging.getLogger(__name__)


@dataclass
class Cache:
    """Name -> array, in a file that is read at once and replaced as a whole.

    format  what makes the arrays, in which version; what another format left in the file does not count
    arrays  what is known; names are equally long, arrays differ in their first axis only
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
            with safe_open(self.path, framework="numpy") as file:
                if (file.metadata() or {}).get("format") != self.format:
                    return
                names, counts, rows = (file.get_tensor(name) for name in ("names", "counts", "rows"))
        except (SafetensorError, OSError) as error:
            log.warning("'%s' is damaged (%s); what it held is made again", self.path, error)
        else:
            parts = np.split(rows, np.cumsum(counts)[:-1])
            self.arrays = {name.tobytes(): part for name, part in zip(names, parts, strict=True)}

    def write(self) -> None:
        """Put what came new on the disk.  Raises PlatformError when that is full."""
        if len(self.arrays) == self._kept:
            return
        names = np.frombuffer(b"".join(self.arrays), dtype=np.uint8).reshape(len(self.arrays), -1)
        counts = np.array([len(part) for part in self.arrays.values()], dtype=np.int32)
        tensors = {"names": names, "counts": counts, "rows": np.concatenate(list(self.arrays.values()))}
        with replacing(self.path) as file:
            file.write(save(tensors, metadata={"format": self.format}))
        self._kept = len(self.arrays)

"""The data set of programs that searches met, for comparing models on what searches propose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from _datasets import Case, Reference

from tcl_core import store


class Searched(Reference):
    """``data/searched``: drawn programs are learned beside the searched ones, but not ranked."""

    def __init__(self, folder: Path, features: Path, unlabelled: int, lean: float, drawn: Callable[[str], Path]) -> None:
        """``drawn``: folder of the records of the programs that a platform's machine drew."""
        super().__init__(folder, features, unlabelled, lean)
        self._drawn = drawn

    def case(self, platform: str, reads: str = "tokens", tested: Sequence[str] = (), split: str = "held_out") -> Case:
        found = super().case(platform, reads, tested, split)
        of_test = np.isin(self.samples(platform).tasks, np.unique(found.test.tasks))
        drawn = {record.key for record in store.read_records(self._drawn(platform))}
        searched = np.array([record.key not in drawn for record in self._records(platform)])
        return replace(found, test=found.test.take(searched[of_test]))

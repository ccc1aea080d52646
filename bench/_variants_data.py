"""The data set of the training networks in other sizes, for comparing models that learn it beside others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from _datasets import Case, Reference


class Variants(Reference):
    """``data/variants``: its programs are learned, and none is ranked.  Its platforms measured different ones."""

    def case(self, platform: str, reads: str = "tokens", tested: Sequence[str] = (), split: str = "held_out") -> Case:
        """As ``Reference.case`` of all tasks; ``split`` chooses among the ranked programs alone, of which there are none."""
        samples = lambda name: self.samples(name, reads if name == platform else "tokens")  # noqa: E731
        place = self.platforms.index(platform)
        return Case(samples(platform), samples(platform).take(np.arange(0)), {}, tuple(map(samples, self.platforms[:place])))

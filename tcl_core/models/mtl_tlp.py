"""MTL-TLP (arXiv 2211.03578): TLP for a platform with few labels, helped by platforms that have many.

All platforms share one trunk and each has its own decoder; the loss is the sum over the decoders.  Head 0 is the
target's, and the only one used to predict.  The public code masks labels of one set of programs; here every platform
has its own measured programs (the ``sources`` of ``fit``).  A batch holds whole tasks, each ranked by its platform's head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from tcl_core.errors import UsageError
from tcl_core.features.batches import Samples, concatenate
from tcl_core.learning.batches_by_task import Batch, usable_tasks
from tcl_core.learning.fit import FitSettings, OnEpoch, fit_network
from tcl_core.learning.losses import by_size, lambda_rank
from tcl_core.models.tlp import SETTINGS, TlpDecoder, TlpTrunk
from tcl_core.models.torch_model import TorchCostModel


class MtlTlpNetwork(nn.Module):
    """One trunk with ``platforms`` decoders; scores and embeddings come from head 0."""

    EMBEDDING = TlpDecoder.EMBEDDING

    def __init__(self, features: int, platforms: int = 1) -> None:
        super().__init__()
        self.arguments = {"features": features, "platforms": platforms}
        self.trunk = TlpTrunk(features)
        self.heads = nn.ModuleList(TlpDecoder() for _ in range(platforms))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B,) scores on the target of (B, L, F) tokens; only a program's first ``lengths`` (B,) tokens count."""
        return self.heads[0](self.trunk(tokens, lengths), lengths)

    def embed(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B, 64); see ``TlpDecoder.embed``."""
        return self.heads[0].embed(self.trunk(tokens, lengths), lengths)


class MtlTlpModel(TorchCostModel):
    """The MTL-TLP cost model, trained with LambdaRank on one platform or several."""

    name = "mtl-tlp"
    build = MtlTlpNetwork
    learns_from_sources = True

    def __init__(self, settings: FitSettings = SETTINGS, device: str = "cpu") -> None:
        super().__init__(settings, device)

    def fit(
        self,
        train: Samples,
        valid: Samples | None = None,
        on_epoch: OnEpoch | None = None,
        *,
        sources: Sequence[Samples] = (),
        checkpoint: Path | None = None,
    ) -> Self:
        """Train on the target platform's records, ``train``, and on the sources'; ``valid`` is the target's.

        A second call continues with as many sources, in the same order, or with none: it then trains only the trunk and
        head 0.  Raises UsageError for another number of sources, and as ``TorchCostModel.fit``.
        """
        if not sources:
            return super().fit(train, valid, on_epoch, checkpoint=checkpoint)
        platforms = [train, *sources]
        for samples in platforms:
            self.check_rows(samples)
        usable_tasks(train)  # raises where the sources alone would be learned, and head 0 would stay as it was drawn
        if self.network is None:
            self.network = self._seeded(train.features.shape[2], platforms=len(platforms))
        heads = self.network.arguments["platforms"]
        if heads != 1 + len(sources):
            raise UsageError(f"this mtl-tlp model learned {heads - 1} sources, not {len(sources)}; train a new one.")
        for samples in platforms:
            self._check_features(samples)
        self.network.to(self.device)
        loss = PlatformLoss(task_count(platforms), self.settings.sigma)
        self.report = fit_network(
            self.network,
            side_by_side(platforms),
            valid,
            self.settings,
            loss=loss,
            on_epoch=on_epoch,
            checkpoint=checkpoint,
            identity=f"{self.name} {loss}",
        )
        return self


@dataclass(frozen=True)
class PlatformLoss:
    """Sum over the heads of the mean LambdaRank loss of their tasks in the batch.

    Each platform has ``tasks`` consecutive task numbers, as ``side_by_side`` assigns them.
    """

    tasks: int
    sigma: float = 1.0

    def __call__(self, network: MtlTlpNetwork, batch: Batch) -> Tensor:
        x = network.trunk(batch.features, batch.lengths)
        platforms = torch.from_numpy(batch.tasks // self.tasks).to(batch.mask.device)
        return sum(self._of_head(network.heads[platform], x, batch, platforms == platform) for platform in platforms.unique().tolist())

    def _of_head(self, head: TlpDecoder, x: Tensor, batch: Batch, mine: Tensor) -> Tensor:
        """Mean loss of the head's tasks, ``mine`` (T,) of the batch's; decodes only their programs."""
        index, mask = batch.index[mine], batch.mask[mine]
        rows = index[mask]
        scores = x.new_zeros(len(x)).index_put((rows,), head(x[rows], batch.lengths[rows]))
        return by_size(lambda_rank, scores[index], batch.labels[mine], mask, self.sigma).mean()


def task_count(platforms: Sequence[Samples]) -> int:
    """Task numbers to reserve for each platform."""
    return 1 + max(int(samples.tasks.max(initial=0)) for samples in platforms)


def side_by_side(platforms: Sequence[Samples]) -> Samples:
    """The programs of all platforms, with disjoint task numbers per platform, so that none are ranked across platforms."""
    room = task_count(platforms)
    names = next((s.task_names for s in platforms if s.task_names), ())
    numbered = [replace(s, tasks=(s.tasks + n * room).astype(np.int32), task_names=()) for n, s in enumerate(platforms)]
    padded = tuple(names[task] if task < len(names) else f"task {task}" for task in range(room))
    return replace(concatenate(numbered), task_names=padded * len(platforms))

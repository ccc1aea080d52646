"""MTL-TLP (arXiv 2211.03578): TLP for a platform with few labels, taught by platforms that have many.

One trunk serves all platforms and each has its own decoder; the loss is the sum over the decoders.  Head 0 is the
target, the only one that predicts.  The public code masks labels of one set of programs; here every platform brings
its own measured programs (the ``sources`` of ``fit``), of which a batch holds whole tasks, each ranked by its platform's
head.
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
from tcl_core.learning.batches_by_task import Batch
from tcl_core.learning.fit import FitSettings, OnEpoch, fit_network
from tcl_core.learning.losses import lambda_rank
from tcl_core.models.tlp import SETTINGS, TlpDecoder, TlpTrunk
from tcl_core.models.torch_model import TorchCostModel


class MtlTlpNetwork(nn.Module):
    """One trunk under ``platforms`` decoders; scores and embeddings are those of head 0."""

    EMBEDDING = TlpDecoder.EMBEDDING

    def __init__(self, features: int, platforms: int = 1) -> None:
        super().__init__()
        self.arguments = {"features": features, "platforms": platforms}
        self.trunk = TlpTrunk(features)
        self.heads = nn.ModuleList(TlpDecoder() for _ in range(platforms))

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """(B,) scores on the target of (B, L, F) tokens of which the first ``lengths`` (B,) count."""
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
        """Train on the records of the target platform, ``train``, and of the sources; ``valid`` is of the target.

        A second call goes on with as many sources in the same order, or with none: then on the trunk and head 0 alone.
        Raises UsageError for another number of sources, and as ``TorchCostModel.fit``.
        """
        if not sources:
            return super().fit(train, valid, on_epoch, checkpoint=checkpoint)
        platforms = [train, *sources]
        for samples in platforms:
            self.check_rows(samples)
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

    Tasks are numbered platform by platform, ``tasks`` each, as ``side_by_side`` does.
    """

    tasks: int
    sigma: float = 1.0

    def __call__(self, network: MtlTlpNetwork, batch: Batch) -> Tensor:
        x = network.trunk(batch.features, batch.lengths)
        platforms = torch.from_numpy(batch.tasks // self.tasks).to(batch.mask.device)
        return sum(self._of_head(network.heads[platform], x, batch, platforms == platform) for platform in platforms.unique().tolist())

    def _of_head(self, head: TlpDecoder, x: Tensor, batch: Batch, mine: Tensor) -> Tensor:
        """``mine`` (T,) says which of the batch's tasks are the head's; it decodes their programs only."""
        index, mask = batch.index[mine], batch.mask[mine]
        rows = index[mask]
        scores = x.new_zeros(len(x)).index_put((rows,), head(x[rows], batch.lengths[rows]))
        return lambda_rank(scores[index], batch.labels[mine], mask, self.sigma).mean()


def task_count(platforms: Sequence[Samples]) -> int:
    """Tasks that one platform's numbering has room for."""
    return 1 + max(int(samples.tasks.max(initial=0)) for samples in platforms)


def side_by_side(platforms: Sequence[Samples]) -> Samples:
    """The programs of all platforms, each platform's tasks numbered after the former's: none is ranked across."""
    room = task_count(platforms)
    names = next((s.task_names for s in platforms if s.task_names), ())
    numbered = [replace(s, tasks=(s.tasks + n * room).astype(np.int32), task_names=()) for n, s in enumerate(platforms)]
    padded = tuple(names[task] if task < len(names) else f"task {task}" for task in range(room))
    return replace(concatenate(numbered), task_names=padded * len(platforms))

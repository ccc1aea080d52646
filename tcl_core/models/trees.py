"""Boosted trees: the cost model of AutoTVM (arXiv 1805.08166), of Ansor and of TVM's own tuner.

A program is one or more rows; every tree assigns each row a number, and the program's score is the sum over its rows and
trees, as in TVM's XGBModel, above a base (below).  TVM fits that sum to the label by weighted least squares.  Here, as in AutoTVM, only the
order within a task is learned: trees are grown on the derivatives of a ranking loss, which all rows of a program share.  On
24 measured tasks, a quarter held out in turn, LambdaRank ranked 71 % of the pairs right, against 67 % with least squares and
68 % with one row per program (the sums and maxima over its stores).

In the loss every pair of a task counts alike (``losses.rank_net``).  LambdaRank counts a pair by the gain and the places that
it is about; programs near the fastest, among which a search chooses, then count little.  docs/learning.md has the comparison.

``XgboostModel`` reads the per-store features of the lowered program, as TVM's model does.  ``TreesModel`` reads tokens, one
row per program, and needs no lowering.

``TreesModel`` adds its trees to an analytical estimate (``estimate``), which knows what other vectors change; trees only know what they
have seen (docs/experiments.md, "The same base for trees").

Growing parameters are TVM's, except for smaller depth and learning rate (8 and 0.1 instead of 10 and 0.2), and
``colsample_bynode``, which makes models of different seeds differ.  They were chosen on the reference data's validation
networks: 600 trees of depth 8 rank more pairs right than 300 of depth 6 (.793 vs .785 on tokens, .763 vs .745 on per-store
features); greater depth, and any regularisation (row sampling, L2, fewer columns), rank fewer.  So do 64 bins per column
instead of XGBoost's 256, which take a quarter less time: on the folds of bench/near.py, with one seed, .766 of drawn pairs
vs .768, and a rank correlation of .211 vs .235 near the fastest of searched programs.

Of FitSettings only epochs (``ROUNDS`` trees each), batch size, loss (one of ``LOSSES``), sigma and seed apply; the rest is for
gradient descent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain, groupby
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
import torch
import xgboost
from torch import Tensor

from tcl_core.errors import DataError, UsageError, unknown_name
from tcl_core.features import layout, per_store
from tcl_core.features.action_statistics import action_statistics, annotation_reaches
from tcl_core.features.batches import Samples
from tcl_core.learning.batches_by_task import check_features, group_tasks, make_batch, usable_tasks
from tcl_core.learning.fit import FitReport, FitSettings, OnEpoch, ranking_metrics
from tcl_core.learning.losses import differences, every_pair, lambda_rank, pair_weights, rank_net
from tcl_core.models.cost_model import CostModel, read_model, whole_model, write_model
from tcl_core.models.estimate import Estimate

ROUNDS = 10  # trees per epoch
BLOCK = 2**13  # programs per block when predicting
PAIRS = 2**20  # pairs compared at once: some megabytes per number of a pair
EMBEDDING = 32
ESTIMATE = "estimate."  # what the names of its numbers begin with in a saved model
LAST = 8  # tokens at the end of a program, its innermost tiling levels, that have fixed columns in the row
GROWING = {
    "max_depth": 8,
    "gamma": 0.001,
    "min_child_weight": 0.0,
    "eta": 0.1,
    "tree_method": "hist",
    "colsample_bynode": 0.5,
    "base_score": 0.0,
}

LOSSES = {"pairs": (rank_net, every_pair), "rank": (lambda_rank, pair_weights)}  # name -> loss, weights of the pairs in it

SETTINGS = FitSettings(epochs=60, loss="pairs")
"""600 trees."""

Rows = Callable[[Samples], tuple[np.ndarray, np.ndarray]]
"""Samples -> (R, C) float32 rows of all programs, and (R,) the program that each row belongs to, ascending."""


class BoostedTrees(CostModel):
    """Trees over the rows of programs; a subclass defines the ``rows``, and how many ``features`` per token or store they use."""

    features: ClassVar[int]
    rows: ClassVar[Rows]
    estimates: ClassVar[bool] = False  # whether the trees are added to an analytical estimate, which reads tokens

    def __init__(self, settings: FitSettings = SETTINGS) -> None:
        super().__init__(settings)
        self.columns = np.zeros(0, dtype=np.int64)  # columns in which training programs differ
        self.trees: xgboost.Booster | None = None
        self.estimate: Estimate | None = None
        self.report: FitReport | None = None
        self._values: np.ndarray | None = None

    def fit(
        self,
        train: Samples,
        valid: Samples | None = None,
        on_epoch: OnEpoch | None = None,
        *,
        sources: Sequence[Samples] = (),
        checkpoint: Path | None = None,
    ) -> Self:
        """Grow trees; a second call grows more.  With ``valid``, keeps the new trees up to the epoch of its lowest loss.

        Growing is too fast for ``checkpoint`` to be worthwhile: an interrupted call starts over.  Raises DataError for features
        of another width, for non-finite values (names the task), when no task has two programs to compare, and when no rows differ.
        """
        self._check_features(train)
        ranking = _Ranking(train, self.settings)
        judge = _Ranking(valid, self.settings) if valid is not None else None
        rows, owner = type(self).rows(train)
        if self.trees is None:
            self.columns = _differing(rows, self.name)
            if self.estimates:
                self.estimate = Estimate()
                self.estimate.learn(train)
        base = self._in_blocks(train, self._base)
        # A quantised matrix would route rows through earlier trees by its bins' bounds, not by the rows' own values.
        kind = xgboost.QuantileDMatrix if self.trees is None else xgboost.DMatrix
        matrix = kind(rows[:, self.columns], nthread=torch.get_num_threads())
        self.trees = self.trees or xgboost.Booster({}, [matrix])
        self.trees.set_param({**GROWING, "seed": self.settings.seed, "nthread": torch.get_num_threads()})
        losses, judged, before = [], [], self.trees.num_boosted_rounds()
        for epoch in range(1, self.settings.epochs + 1):
            losses.append(self._grow(matrix, owner, base, ranking))
            metrics = judge.metrics(self.predict(valid)) if judge else {}
            judged.append(metrics.get("valid_loss", -epoch))
            if on_epoch:
                on_epoch(epoch, losses[-1], metrics)
        kept = 1 + int(np.argmin(judged))
        self.trees, self._values = self.trees[: before + kept * ROUNDS], None
        self.report = FitReport(tuple(losses), kept, ranking.programs, ranking.tasks)
        return self

    def _grow(self, matrix: xgboost.DMatrix, owner: np.ndarray, base: np.ndarray, ranking: _Ranking) -> float:
        """Grow one epoch's trees; return the training loss after them."""
        counts = np.bincount(owner, minlength=ranking.size)

        def derivatives(margins: np.ndarray, _: xgboost.DMatrix) -> tuple[np.ndarray, np.ndarray]:
            """A step in all n rows of a program moves its score n-fold, so the second derivative is multiplied by n."""
            first, second = ranking.derivatives(base + summed(margins, owner, ranking.size))
            return first[owner], (second * counts)[owner]

        for _ in range(ROUNDS):
            self.trees.update(matrix, self.trees.num_boosted_rounds(), derivatives)
        margins = self.trees.predict(matrix, output_margin=True)
        return ranking.metrics(base + summed(margins, owner, ranking.size))["valid_loss"]

    def _base(self, samples: Samples) -> np.ndarray:
        """(N,) float32 scores that those of the trees are added to."""
        return np.zeros(len(samples), dtype=np.float32) if self.estimate is None else self.estimate.scores(samples)

    def predict(self, samples: Samples) -> np.ndarray:
        """(N,) float32 scores, higher is better within a task.

        Raises UsageError before the first fit, DataError for rows of another kind or width, or non-finite ones.
        """
        return self._in_blocks(samples, self._scores)

    def _scores(self, samples: Samples) -> np.ndarray:
        rows, owner = self._read(samples)
        if not len(rows):
            return np.zeros(len(samples), dtype=np.float32)
        return self._base(samples) + summed(self.trees.inplace_predict(rows, predict_type="margin"), owner, len(samples))

    def embed(self, samples: Samples) -> np.ndarray:
        """(N, 32) float32: contributions of 32 equal runs of trees, which sum to the score less its estimate; raises as ``predict``."""
        return self._in_blocks(samples, self._places)

    def _in_blocks(self, samples: Samples, figure: Callable[[Samples], np.ndarray]) -> np.ndarray:
        """``figure`` of all programs, computed block by block to bound memory: rows are larger than tokens."""
        starts = range(0, max(len(samples), 1), BLOCK)
        return np.concatenate([figure(samples.take(slice(start, start + BLOCK))) for start in starts])

    def _places(self, samples: Samples) -> np.ndarray:
        rows, owner = self._read(samples)
        if not len(rows):
            return np.zeros((len(samples), EMBEDDING), dtype=np.float32)
        matrix = xgboost.DMatrix(rows, nthread=torch.get_num_threads())
        leaves = self.trees.predict(matrix, pred_leaf=True).astype(np.int32)
        added = self._leaf_values()[np.arange(leaves.shape[1]), leaves]
        bounds = np.linspace(0, leaves.shape[1], EMBEDDING + 1).astype(int)
        runs = np.concatenate([np.zeros((len(rows), 1)), added.cumsum(axis=1)], axis=1)[:, bounds]
        return np.stack([summed(run, owner, len(samples)) for run in np.diff(runs, axis=1).T], axis=1)

    def predict_and_embed(self, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
        """``predict`` and ``embed`` in one pass over the trees, from the leaves that the rows fall into."""
        places = self.embed(samples)
        return self._in_blocks(samples, self._base) + places.sum(axis=1), places

    def _leaf_values(self) -> np.ndarray:
        """(trees, nodes) contribution of each leaf to a score, indexed by tree and leaf number."""
        if self._values is None:
            model = json.loads(self.trees.save_raw("json"))["learner"]["gradient_booster"]["model"]
            values = [tree["split_conditions"] for tree in model["trees"]]  # at a leaf: its value
            table = np.zeros((len(values), max(map(len, values), default=0)))
            for row, found in zip(table, values, strict=True):
                row[: len(found)] = found
            self._values = table  # assigned only when complete: another thread may read it
        return self._values

    def _read(self, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
        """The rows, cut to the columns that the trees use, and each row's program."""
        if self.trees is None:
            raise UsageError(f"the {self.name} model has not learned anything yet; fit or load it first.")
        self._check_features(samples)
        check_features(samples)
        rows, owner = type(self).rows(samples)
        return rows[:, self.columns], owner

    def _check_features(self, samples: Samples) -> None:
        self.check_rows(samples)
        if samples.features.shape[2] != self.features:
            raise DataError(
                f"the {self.name} model reads rows of {self.features} features, not {samples.features.shape[2]}; "
                "make the features of these programs again."
            )

    def parameter_count(self) -> int:
        """Number of nodes in all trees: each holds a threshold or a leaf value."""
        if self.trees is None:
            return 0
        return sum(tree.count("\n") for tree in self.trees.get_dump())

    def save(self, folder: Path) -> None:
        """Write ``model.json`` and, with the trees in XGBoost's own binary form, ``weights.safetensors``."""
        if self.trees is None:
            raise UsageError(f"the {self.name} model has not learned anything yet; there is nothing to save.")
        facts = {"class": self.name, "arguments": {"features": self.features}, "settings": asdict(self.settings)}
        facts["training"] = asdict(self.report) if self.report else {}
        grown = torch.frombuffer(bytearray(self.trees.save_raw("ubj")), dtype=torch.uint8)
        with whole_model(folder) as aside:
            write_model(aside, facts, {"trees": grown, "columns": torch.from_numpy(self.columns), **self._costs()})

    def _costs(self) -> dict[str, Tensor]:
        return {} if self.estimate is None else {f"{ESTIMATE}{name}": value for name, value in self.estimate.state_dict().items()}

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read what ``save`` wrote.  Raises DataError for a missing or damaged folder, or another class."""
        facts, weights = read_model(folder, cls)
        try:
            model = cls(FitSettings(**facts["settings"]))
            model.report = FitReport.told(facts.get("training", {}))
            model.columns, model.trees = weights["columns"].numpy(), xgboost.Booster()
            model.trees.load_model(bytearray(weights["trees"].numpy().tobytes()))
            model.trees.set_param({"nthread": torch.get_num_threads()})  # XGBoost does not save it
            if costs := {name.removeprefix(ESTIMATE): value for name, value in weights.items() if name.startswith(ESTIMATE)}:
                model.estimate = Estimate()
                model.estimate.load_state_dict(costs)
        except (KeyError, RuntimeError, TypeError, ValueError, xgboost.core.XGBoostError) as error:
            raise DataError(f"'{folder}' was saved by another version ({error!r}); train the model again.") from None
        return model


class XgboostModel(BoostedTrees):
    """Trees over the per-store features of the lowered program (``features.per_store``)."""

    name = "xgboost"
    features = per_store.WIDTH
    reads = "per-store features"

    @staticmethod
    def rows(samples: Samples) -> tuple[np.ndarray, np.ndarray]:
        """One row per store; a program that could not be lowered has none, and scores 0."""
        used = np.arange(samples.features.shape[1]) < samples.lengths[:, None]
        return samples.features[used], np.nonzero(used)[0]


class TreesModel(BoostedTrees):
    """Trees over one row per program, made of its tokens, added to an analytical estimate."""

    name = "trees"
    features = layout.WIDTH
    estimates = True

    @staticmethod
    def rows(samples: Samples) -> tuple[np.ndarray, np.ndarray]:
        """One row per program: hardware and workload token, last tokens (innermost level first), statistics of all tokens, and what
        each annotation reaches.  Columns are only ever added at the end, since saved trees know theirs by number.
        """
        last = samples.lengths[:, None] - 1 - np.arange(LAST)
        places = np.concatenate([np.tile([0, 1], (len(samples), 1)), last], axis=1)
        there = (places >= 0) & (places < samples.lengths[:, None])
        kept = np.take_along_axis(samples.features, np.where(there, places, 0)[..., None], axis=1) * there[..., None]
        flat = kept.reshape(len(samples), places.shape[1] * samples.features.shape[2])
        columns = [flat, action_statistics(samples.features), annotation_reaches(samples.features)]
        return np.concatenate(columns, axis=1), np.arange(len(samples))


class _Ranking:
    """The settings' loss over ``size`` measured programs, and its derivatives by scores for them.  Raises UsageError for another's name."""

    def __init__(self, samples: Samples, settings: FitSettings) -> None:
        if settings.loss not in LOSSES:
            raise unknown_name("loss", settings.loss, LOSSES, "boosted trees")
        self.loss, self.weights = LOSSES[settings.loss]
        groups, scores = usable_tasks(samples), samples.scores
        parts = group_tasks(groups, settings.batch_size, np.random.default_rng(settings.seed))
        lean = replace(samples, features=samples.features[..., :0])  # a batch would copy features that nothing reads here
        self.batches = [make_batch(lean, scores, rows) for rows in _alike(chain.from_iterable(parts))]
        self.size, self.sigma = len(samples), settings.sigma
        self.programs, self.tasks = sum(map(len, groups)), len(groups)

    def derivatives(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and second derivatives of the loss by the (N,) ``scores``; 0 for programs with none to compare to."""
        found = np.zeros((2, self.size), dtype=np.float32)
        for batch in self.batches:
            predicted = batch.by_task(torch.from_numpy(scores[batch.rows]))
            for values, kept in zip(pair_derivatives(predicted, batch.labels, batch.mask, self.weights, self.sigma), found, strict=True):
                kept[batch.rows[batch.index[batch.mask]]] = values[batch.mask]
        return found[0], found[1]

    def metrics(self, scores: np.ndarray) -> dict[str, float]:
        """Mean loss and top-1 of (N,) ``scores`` over the tasks, or parts of large ones."""
        predicted = ((batch.by_task(torch.from_numpy(scores[batch.rows])), batch) for batch in self.batches)
        return ranking_metrics(predicted, self.sigma, self.loss)


def _alike(parts: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Group parts of equal size, up to ``PAIRS`` pairs; padded to 100 programs, a task of 10 would be 99 % padding in pairs."""
    for size, some in groupby(sorted(parts, key=len), key=len):
        alike, count = list(some), max(1, PAIRS // size**2)
        yield from (alike[first : first + count] for first in range(0, len(alike), count))


def pair_derivatives(
    predicted: Tensor, labels: Tensor, mask: Tensor, weights: Callable[..., Tensor], sigma: float = 1.0
) -> tuple[Tensor, Tensor]:
    """(T, P) first and second derivatives by ``predicted`` of the tasks' losses over pairs, whose weights are ``weights(predicted, labels, mask)``.

    Pair weights are scaled so that each task's sum to its number of programs: every program of every task counts alike.
    """
    weight = weights(predicted, labels, mask)
    total = weight.sum((1, 2), keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
    weight = weight * mask.sum(1)[:, None, None] / total
    wrong = torch.sigmoid(-sigma * differences(predicted.masked_fill(~mask, 0.0)))
    first = sigma / math.log(2.0) * weight * wrong
    second = sigma * first * (1.0 - wrong)
    return first.sum(1) - first.sum(2), second.sum(1) + second.sum(2)


def summed(values: np.ndarray, owner: np.ndarray, programs: int) -> np.ndarray:
    """(N,) float32 sum of (R,) ``values`` over each program's rows."""
    return np.bincount(owner, weights=values, minlength=programs).astype(np.float32)


def _differing(rows: np.ndarray, name: str) -> np.ndarray:
    """Indices of columns in which (R, C) ``rows`` differ.  Raises DataError when there are none."""
    columns = np.flatnonzero(rows.max(axis=0, initial=-np.inf) > rows.min(axis=0, initial=np.inf))
    if not len(columns):
        raise DataError(f"the {name} model cannot tell the training programs apart; collect records of other programs.")
    return columns

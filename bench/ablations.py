"""What makes our model rank well: each row of the table differs from the default in one thing.

    python bench/ablations.py [--quick] [--only TEXT] [--seeds N] [--threads N] [--force]

Models learn the chain's last platform of the reference data without the tasks of three of its training networks, which they
rank (``_datasets.VALIDATION``).  The networks that the other tables report take no part, so what is chosen here is judged
there.  Three rows are boosted trees alone.  A figure is the mean over seeds with its 95 % interval.
--quick: some of the rows, one seed, a third of the epochs, a quarter of the unlabelled programs; it has a results file of its own.
Runs with the same code and data are kept.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

from tcl_core import environment, store  # noqa: F401  (before all that imports torch)

from _datasets import VALIDATION, Case, Reference, reads_of
from _identity import code_identity
from _lessons import Lesson, lesson
from _ranking_tables import FIGURES, LEAST, shown
from _tables import ROOT, Quick, arguments, into_document, markdown, result_file, save

import numpy as np
import torch
from torch import Tensor, nn

from tcl_core.errors import TclError
from tcl_core.evaluation.metrics import pairwise_accuracy, spearman, top_k
from tcl_core.features.batches import Samples
from tcl_core.features.layout import KINDS, numbers_of
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel
from tcl_core.models.mamba import MambaBlock, MambaModel, MambaNetwork, TokenBatch, network_of_tokens
from tcl_core.progress import progress
from tcl_core.teaching import STUDENT, Member

COMMAND = "python bench/ablations.py"
RANKED = ("top1", "top5", "pairs", "spearman")  # in the order in which a run keeps them
CODE = ("tcl_core.models.mamba", "tcl_core.models.trees", "tcl_core.teaching", "tcl_core.programs.unlabelled")


class MeanPooled(MambaNetwork):
    """As the default, but the score is the mean of the tokens' scores."""

    def __init__(self, features: int, estimate: bool = False) -> None:
        super().__init__(features, len(KINDS), estimate=estimate)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        batch = TokenBatch.of(tokens, lengths)
        mean = (self.activations(batch)[-1][..., 0] * batch.mask).sum(1) / lengths
        return self.scored(mean[:, None], tokens, lengths)[:, 0]


class TwoBlocks(MambaNetwork):
    """As the default, with a second Mamba block behind the first."""

    def __init__(self, features: int, estimate: bool = False) -> None:
        super().__init__(features, len(KINDS), last=True, estimate=estimate)
        self.first, width = self.block, self.WIDTHS[3]
        self.second, self.norm = MambaBlock(width, 8, 4, 8), nn.RMSNorm(width, eps=1e-5)
        self.block = nn.Module()  # takes the place of the one block that ``MambaNetwork`` calls
        self.block.project = lambda x: x
        self.block.mix = self.mix

    def mix(self, normed: Tensor, batch: TokenBatch) -> Tensor:
        once = self.first.mix(self.first.project(normed), replace(batch, last=False))
        places = torch.arange(batch.index.numel()).view(batch.index.shape)
        every = TokenBatch(self.norm(once + batch.spread(normed)).flatten(0, 1), places, batch.lengths, last=True)
        return batch.read(once) + self.second.mix(self.second.project(every.rows), every)


def fitted(
    train: Samples, settings: FitSettings, build: Callable[..., nn.Module] = network_of_tokens, estimates: bool = True
) -> MambaModel:
    """Our model, or a variant with another network, fitted to ``train``."""
    model = type("Variant", (MambaModel,), {"build": staticmethod(build), "estimates": estimates})(settings)
    model.fit(train)
    return model


@dataclass(frozen=True)
class Variant:
    """What differs: how the network is built, what it reads of the tokens, what it learns from and with which loss."""

    build: Callable[..., nn.Module] = network_of_tokens
    read: Callable[[np.ndarray], np.ndarray] = lambda tokens: tokens
    taught: bool = True
    loss: str = STUDENT.loss
    teachers: tuple[Member, ...] | None = None
    unlabelled: float = 1.0  # share of the unlabelled programs
    estimates: bool = True


def without(*kinds: str) -> Callable[[np.ndarray], np.ndarray]:
    """A reader that zeroes the numbers of tokens of these kinds, which then hold their kind alone."""
    columns = [KINDS.index(kind) for kind in kinds]

    def read(tokens: np.ndarray) -> np.ndarray:
        emptied = tokens.copy()
        numbers_of(emptied)[tokens[..., columns].any(axis=-1)] = 0.0
        return emptied

    return read


def unscaled(tokens: np.ndarray) -> np.ndarray:
    """Tokens with sizes instead of their logarithms."""
    plain = tokens.copy()
    numbers_of(plain)[:] = np.exp2(numbers_of(plain)) - 1.0
    return plain


VARIANTS: dict[str, Variant] = {
    "default": Variant(),
    "not taught: LambdaRank on the measured programs": Variant(taught=False, loss="rank"),
    "not taught: every measured pair alike": Variant(taught=False, loss="pairs"),
    "not taught: regression on the measured programs": Variant(taught=False),
    "taught, but by LambdaRank on the teacher ensemble's labels": Variant(loss="rank"),
    "teacher ensemble on tokens alone": Variant(teachers=(Member("trees", 2, 1.0),)),
    "teacher ensemble on per-store features alone": Variant(teachers=(Member("xgboost", 2, 1.0),)),
    "taught on measured programs only": Variant(unlabelled=0.0),
    "a quarter of the unlabelled programs": Variant(unlabelled=0.25),
    "tokens not standardised": Variant(build=functools.partial(network_of_tokens, kinds=0)),
    "no analytical estimate": Variant(estimates=False),
    "sizes, not their logarithms": Variant(read=unscaled, estimates=False),  # an estimate reads logarithms
    "nothing said of tiling levels": Variant(read=without("level")),
    "nothing said of the workload": Variant(read=without("workload")),
    "nothing said of the hardware": Variant(read=without("hardware")),
    "sum over the tokens, not the last one": Variant(build=functools.partial(network_of_tokens, last=False)),
    "mean over the tokens": Variant(build=MeanPooled),
    "two Mamba blocks": Variant(build=TwoBlocks),
}

FEW = ("default", "not taught: LambdaRank on the measured programs", "no analytical estimate", "sizes, not their logarithms",
       "nothing said of the workload", "mean over the tokens", "two Mamba blocks", "no network: trees on per-store features")  # of the quick and smallest forms  # fmt: skip
QUICK_UNLABELLED = 48  # of each task
TREES = {
    "no network: trees on tokens": ("trees", "pairs"),
    "no network: trees on tokens, by LambdaRank": ("trees", "rank"),
    "no network: trees on per-store features": ("xgboost", "pairs"),
}  # row -> model, loss


class Bench:
    """The lesson that tests the validation networks, and its teacher ensembles' labels, computed once per seed."""

    def __init__(self, reference: Reference, epochs: int) -> None:
        self.reference, self.epochs = reference, epochs
        self.platform = self.reference.platforms[-1]
        self.lesson: Lesson = lesson(self.reference, self.platform, VALIDATION)
        self.taught = functools.lru_cache(maxsize=2)(self._pseudo_labelled)

    def _pseudo_labelled(self, seed: int, teachers: tuple[Member, ...] | None, share: float) -> Samples:
        more = {reads: samples.take(_share(samples.tasks, share)) for reads, samples in self.lesson.unlabelled.items()}
        chosen = {"teachers": teachers} if teachers else {}
        return replace(self.lesson, unlabelled=more).taught(seed, **chosen)

    def figures(self, row: str, seed: int) -> list[float]:
        if row in TREES:
            return self.of_trees(*TREES[row], seed)
        variant = VARIANTS[row]
        train = self.taught(seed, variant.teachers, variant.unlabelled) if variant.taught else self.lesson.train
        epochs = round(self.epochs * (len(self.lesson.train) + len(self.lesson.unlabelled["tokens"])) / len(train))  # equal steps
        settings = replace(STUDENT, seed=seed, epochs=epochs, period=epochs, loss=variant.loss)
        seen = lambda samples: replace(samples, features=variant.read(samples.features))  # noqa: E731
        return ranked(fitted(seen(train), settings, variant.build, variant.estimates), replace(self.lesson, test=seen(self.lesson.test)))

    def of_trees(self, name: str, loss: str, seed: int) -> list[float]:
        """Figures of boosted trees of the catalogue alone, with this loss."""
        case = self.reference.case(self.platform, reads_of(name), VALIDATION)
        model = catalogue.create(name)
        model.settings = replace(model.settings, loss=loss, seed=seed)
        model.fit(case.train)
        return ranked(model, case)


def ranked(model: CostModel, case: Case) -> list[float]:
    """``RANKED`` of a model on the case's tested programs."""
    found = model.predict(case.test), case.test.latencies_s, case.test.tasks
    return [top_k(*found, case.networks, 1), top_k(*found, case.networks, 5), pairwise_accuracy(*found), spearman(*found)]


def _share(tasks: np.ndarray, share: float) -> np.ndarray:
    """(N,) mask of the first programs of each task, ``share`` of them."""
    kept = np.zeros(len(tasks), dtype=bool)
    for task in np.unique(tasks):
        rows = np.flatnonzero(tasks == task)
        kept[rows[: round(share * len(rows))]] = True
    return kept


def table(found: dict[str, list[list[float]]]) -> str:
    known = [name for name in (*TREES, *VARIANTS) if name in found]
    figures = lambda runs: (shown([run[k] for run in runs], LEAST[name]) for k, name in enumerate(RANKED))  # noqa: E731
    rows = [[name, len(found[name]), *figures(found[name])] for name in known]
    return markdown(["", "seeds", *(FIGURES[name] for name in RANKED)], rows)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="some rows, one seed, a third of the epochs")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name holds it")
    parser.add_argument("--seeds", type=int, choices=range(1, 11), help="how many (3; with --quick 1)")
    parser.add_argument("--threads", type=int, default=2, help="of training (2)")
    parser.add_argument("--force", action="store_true", help="compute also what is known")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    try:
        run(given)
    except TclError as error:
        sys.exit(f"ablations: {error}")


def bench_of(given: argparse.Namespace) -> Bench:
    if given.smallest:
        import _smallest

        return Bench(_smallest.reference(), 1)
    place = ROOT / "data" / "reference", ROOT / "data" / "features"
    if given.quick:
        return Bench(Reference(*place, QUICK_UNLABELLED), STUDENT.epochs // 3)
    return Bench(Reference(*place), STUDENT.epochs)


def run(given: argparse.Namespace) -> None:
    """Compute the missing runs, seed by seed, saving each before the next begins."""
    bench, small = bench_of(given), given.quick or given.smallest
    path, seeds = result_file("ablations.json"), given.seeds or (1 if small else 3)
    before = json.loads(path.read_text()) if path.exists() and not given.force else {}
    identity = [code_identity(CODE, ["ablations"]), store.data_digest(bench.reference.folder), bench.epochs, bench.reference.unlabelled]
    found = before.get("runs", {}) if before.get("identity") == identity else {}
    wanted = [row for row in (FEW if small else (*VARIANTS, *TREES)) if given.only in row]
    todo = [(row, seed) for seed in range(seeds) for row in wanted if len(found.get(row, ())) <= seed]
    with progress("training without one thing", len(todo)) as bar:
        for row, seed in todo:
            found.setdefault(row, []).append(bench.figures(row, seed))
            save(
                "ablations",
                {"identity": identity, "epochs": bench.epochs, "figures": [FIGURES[name] for name in RANKED], "runs": found},
                COMMAND + " --quick" * given.quick,
            )
            bar.advance(f"{row}: {found[row][-1][2]:.3f} of pairs right")
    if not given.quick and (given.smallest or all(row in found for row in (*VARIANTS, *TREES))):
        into_document("ablations", table(found))
    print(table(found))


if __name__ == "__main__":
    main()

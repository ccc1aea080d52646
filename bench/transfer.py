"""What one platform's knowledge is worth on another that few programs were measured on.

    python bench/transfer.py [--quick] [--pair A>B ...] [--labels N ...] [--folds N] [--threads N] [--minutes M] [--again]

Platform A is learned from all its programs, platform B from so many of its own, drawn uniformly: only the target is thinned.

    zero-shot      A's network under B's hardware row
    own            a network that learned B's programs by LambdaRank
    own-taught     one taught by trees that learned them (as the chain's first platform is)
    fine-tuned     A's network that went on with B's programs by LambdaRank
    ckd            the paper's continuous knowledge distillation, with what params.yaml says of it
    pooled         taught by trees that learned B's programs and all of A's in one heap
    bridge-alone   ours, without A's measurements: A's network alone, corrected
    ours           the default (tcl_core.bridge): what A measured and A's network says, corrected

All networks but ckd's two columns are of one kind and size and begin with A's or at random.  Those that are taught have the same
programs and epochs, with the labels of the trees or of the bridge; the bridge rehearses A beside, which doubles its steps.  own,
fine-tuned and ckd make 20 epochs over B's few programs (ckd in each phase), which for up to 1,024 of them are 20 steps.  Trees read
tokens, on every row.  Grouped cross-validation over the training networks of the reference data, three held out in turn: no task is trained on and ranked.
A figure is the mean over the folds and its 95 % interval, each fold with a seed of its own; the differences are fold by fold.

pairs  share of pairs ranked right; u16  top-1 over subsets of 16 programs (``evaluation.metrics.subset_top_1``); top1  best /
chosen latency, mean over tasks; forgotten  pairs of A that A's network ranked right and this one does not.
--quick: one pair, 160 labels, one fold, a quarter of the unmeasured programs.  What was
computed with the same code and data is kept.
"""

from __future__ import annotations

import copy
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from tcl_core import environment  # noqa: F401  (before all that imports torch)

from _datasets import VALIDATION, Case, Reference
from _identity import code_identity
from _lessons import _drawn_keys
from _paired import task_top1
from _tables import ROOT, arguments, into_document, markdown, mean_interval, result_file, save

import numpy as np
import torch

from tcl_core import store
from tcl_core.bridge import BridgeSettings, bridged
from tcl_core.ckd import ChainState, DistillSettings, learn_first, learn_next
from tcl_core.evaluation.metrics import pairwise_accuracy, subset_top_1
from tcl_core.features.batches import Samples, concatenate
from tcl_core.learning.fit import FitSettings
from tcl_core.models.cost_model import CostModel
from tcl_core.models.mamba import MambaModel
from tcl_core.platforms import read_saved_hardware
from tcl_core.progress import progress
from tcl_core.teaching import STUDENT, Member, taught

COMMAND = "python bench/transfer.py"
FOLDS = (
    VALIDATION,
    ("regnet-y-4", "vit-tiny", "gpt2-small"),
    ("efficientnet-b0", "swin-tiny", "distilbert"),
    ("convnext-tiny", "wide-resnet-50", "bert-small"),
)
PAIRS = ("host-avx2>host-avx512", "host-sse42>host-avx512", "host-avx512>host-sse42")
LABELS = (16, 64, 160, 600, 2400)
TREES = (Member("trees", 2, 1.0),)
OURS, UNMEASURED = "ours", 64
DISTILL_EPOCHS = 20  # of each phase, as in params.yaml
FIGURES = ("pairs", "u16", "top1", "forgotten")


@dataclass(frozen=True)
class Unit:
    """``labels`` None: of zero-shot, which has none."""

    pair: str
    labels: int | None
    method: str
    fold: int


@dataclass(frozen=True)
class Lesson:
    """What is known when platform B is to be learned.

    few, rest  B's measured programs, and all others of the training tasks: A's measured ones first, then those that nobody measured
    source_s   A's seconds of both, NaN where it has none
    """

    state: ChainState
    few: Samples
    rest: Samples
    source_s: np.ndarray
    first: Case
    hardware: Sequence[float]
    seed: int

    @cached_property
    def fit(self) -> FitSettings:
        return replace(BridgeSettings().fit, seed=self.seed)

    def learned(self, model: MambaModel, train: Samples, settings: FitSettings) -> MambaModel:
        model.settings = settings
        model.fit(train)
        return model

    @property
    def by_rank(self) -> FitSettings:
        return FitSettings(epochs=DISTILL_EPOCHS, seed=self.seed, schedule="cosine")


def _own(given: Lesson) -> CostModel:
    return given.learned(MambaModel(), given.few, given.by_rank)


def _own_taught(given: Lesson) -> CostModel:
    return given.learned(MambaModel(), taught({"tokens": given.few}, {"tokens": given.rest}, given.seed, TREES), given.fit)


def _fine_tuned(given: Lesson) -> CostModel:
    return given.learned(copy.deepcopy(given.state.knowledge_base), given.few, given.by_rank)


def _ckd(given: Lesson) -> CostModel:
    settings = DistillSettings(FitSettings(seed=given.seed), epochs=DISTILL_EPOCHS, kd_epochs=DISTILL_EPOCHS)
    return learn_next(given.state, given.few, None, settings).model


def _pooled(given: Lesson) -> CostModel:
    apart = replace(given.first.train, tasks=given.first.train.tasks + np.int32(1 << 20))
    labelled = taught({"tokens": concatenate([given.few, apart])}, {"tokens": given.rest}, given.seed, TREES)
    return given.learned(MambaModel(), labelled.take(labelled.tasks < 1 << 20), given.fit)


def _bridged(given: Lesson, source_s: np.ndarray | None) -> CostModel:
    settings = BridgeSettings(given.fit)
    return bridged(
        given.state.knowledge_base, given.few, given.rest, settings, source_s=source_s, earlier=[given.hardware]
    )[0]


METHODS: dict[str, Callable[[Lesson], CostModel]] = {
    "own": _own,
    "own-taught": _own_taught,
    "fine-tuned": _fine_tuned,
    "ckd": _ckd,
    "pooled": _pooled,
    "bridge-alone": lambda given: _bridged(given, None),
    OURS: lambda given: _bridged(given, given.source_s),
}
ZERO_SHOT = "zero-shot"


class Bench:
    """The units known, in the results file, and the platforms' lessons."""

    def __init__(self, reference: Reference, epochs: int | None, again: bool) -> None:
        self.reference, self.epochs = reference, epochs
        code = code_identity([f"tcl_core.{name}" for name in ("bridge", "ckd", "teaching")], ["_datasets", "_lessons"])
        self.identity = f"{code}-{store.data_digest(reference.folder)[:12]}-{reference.unmeasured}"
        file = result_file("transfer.json")
        found = json.loads(file.read_text()) if file.exists() and not again else {}
        rows = found.get("units", []) if found.get("identity") == self.identity else []
        self.units = {Unit(*row["unit"]): row["figures"] for row in rows}
        self.first, self.drawn = lru_cache(maxsize=1)(self._first), lru_cache(maxsize=2)(self._drawn)

    def run(self, units: Sequence[Unit], until: float) -> None:
        todo = [unit for unit in units if unit not in self.units]
        with progress("learning from another platform", len(todo)) as shown:
            for place, unit in enumerate(todo):
                if time.monotonic() > until:
                    print(f"{len(todo) - place} of {len(todo)} are left; the same command goes on with them")
                    return
                self.units[unit] = self._figures(unit)
                self.save()
                shown.advance(f"{unit.pair}, {unit.labels or 0} labels, {unit.method}: {self.units[unit]['pairs']:.3f}")

    def _figures(self, unit: Unit) -> dict[str, float]:
        first, last = unit.pair.split(">")
        state, lesson, target = *self.first(first, unit.fold), self._case(last, unit.fold)
        model: CostModel = state.model
        if unit.method != ZERO_SHOT:
            model = METHODS[unit.method](self._lesson(state, lesson, target, unit, first, last))
        judged = self._judged(model, target)
        kept = self._judged(model, lesson)["pairs"]
        return judged | {"forgotten": self._judged(state.model, lesson)["pairs"] - kept}

    def _lesson(self, state: ChainState, lesson: Case, target: Case, unit: Unit, first: str, last: str) -> Lesson:
        order = np.random.default_rng([unit.fold, unit.labels]).permutation(len(target.train))
        few, rest = order[: unit.labels], np.sort(order[unit.labels :])
        drawn = self.drawn(last, unit.fold)
        source_s = np.concatenate([lesson.train.latencies_s[few], lesson.train.latencies_s[rest], np.full(len(drawn), np.nan)])
        others = concatenate([target.train.take(rest), drawn])
        hardware = read_saved_hardware(self.reference.folder / f"platform={first}").vector()
        return Lesson(state, target.train.take(few), others, source_s, lesson, hardware, unit.fold)

    def _case(self, platform: str, fold: int) -> Case:
        return self.reference.case(platform, "tokens", FOLDS[fold])

    def _first(self, platform: str, fold: int) -> tuple[ChainState, Case]:
        """The network of platform A, taught from all its programs."""
        case, settings = self._case(platform, fold), replace(STUDENT, seed=fold)
        if self.epochs:
            settings = replace(settings, epochs=self.epochs)
        labelled = taught({"tokens": case.train}, {"tokens": self.drawn(platform, fold)}, fold, TREES)
        return learn_first(labelled, None, settings, measured=case.train), case

    def _drawn(self, platform: str, fold: int) -> Samples:
        """Programs of the training tasks that nobody measured."""
        numbers, tasks = self.reference.encoder.numbers, set(self._case(platform, fold).train.tasks.tolist())
        keys = [key for key in _drawn_keys(self.reference) if numbers[key[0]] in tasks]
        return self.reference.encoder.encode(keys, read_saved_hardware(self.reference.folder / f"platform={platform}").vector())

    @staticmethod
    def _judged(model: CostModel, case: Case) -> dict[str, float]:
        measured = model.predict(case.test), case.test.latencies_s, case.test.tasks
        return {
            "pairs": pairwise_accuracy(*measured),
            "u16": float(np.mean(list(subset_top_1(*measured).values()))),
            "top1": float(np.mean(list(task_top1(*measured).values()))),
        }

    def save(self) -> None:
        rows = [{"unit": astuple(unit), "figures": found} for unit, found in self.units.items()]
        save("transfer", {"identity": self.identity, "summary": summary(self.units), "units": rows}, COMMAND)


def summary(units: dict[Unit, dict[str, float]]) -> dict[str, dict[str, dict[str, dict[str, list[float | None]]]]]:
    """pair -> labels -> method -> figure and figure less zero-shot's, each [mean, low, high] over the folds; of one fold no bounds."""
    found: dict[str, Any] = {}
    for pair, labels, method in dict.fromkeys((unit.pair, unit.labels, unit.method) for unit in units):
        folds = {u.fold: f for u, f in units.items() if (u.pair, u.labels, u.method) == (pair, labels, method)}
        zero = {u.fold: f for u, f in units.items() if (u.pair, u.method) == (pair, ZERO_SHOT)}
        figures = {name: over_folds([f[name] for f in folds.values()]) for name in FIGURES}
        for name in ("pairs", "u16"):
            figures[f"{name}_less_zero_shot"] = over_folds([f[name] - zero[fold][name] for fold, f in folds.items() if fold in zero])
        found.setdefault(pair.replace("host-", ""), {}).setdefault(str(labels or 0), {})[method] = figures
    return found


def over_folds(values: Sequence[float]) -> list[float | None]:
    if not values:
        return [None, None, None]
    return [float(values[0]), None, None] if len(values) == 1 else [float(x) for x in mean_interval(values)]


def table(found: dict[str, Any]) -> str:
    rows = []
    for pair, by_labels in found.items():
        for labels in sorted(by_labels, key=int):
            for method, figures in by_labels[labels].items():
                cells = [_shown(figures[name]) for name in ("pairs", "pairs_less_zero_shot", "u16", "u16_less_zero_shot", "forgotten")]
                rows.append([pair.replace(">", " to "), labels, method, *cells])
    return markdown(["from, to", "labels", "learned by", "pairs", "less zero-shot", "U16", "less zero-shot", "pairs forgotten"], rows)


def _shown(found: Sequence[float | None]) -> str:
    mean, low, high = found
    if mean is None:
        return "-"
    return f"{mean:.3f}" if low is None else f"{mean:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="one pair, one number of labels, one fold")
    parser.add_argument("--pair", action="append", help=f"only this one; of {', '.join(PAIRS)}")
    parser.add_argument("--labels", action="append", type=int, help="only so many; several: give it again")
    parser.add_argument("--folds", type=int, default=len(FOLDS), help="so many of the folds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing after that")
    parser.add_argument("--again", action="store_true", help="forget what is in the results file")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    torch.set_num_threads(given.threads)
    reference, epochs = Reference(ROOT / "data" / "reference", ROOT / "data" / "features", UNMEASURED), None
    pairs, labels, folds = given.pair or PAIRS, given.labels or LABELS, given.folds
    if given.quick:
        reference.unmeasured, pairs, labels, folds = UNMEASURED // 4, PAIRS[:1], (160,), 1
    if given.smallest:
        import _smallest

        reference, epochs, pairs, labels, folds = _smallest.reference(), 1, PAIRS[:1], (12,), 1
        BridgeSettings.__init__.__defaults__ = (replace(BridgeSettings().fit, epochs=1), 1.0)
    if unknown := [pair for pair in pairs if not set(pair.split(">")) <= set(reference.platforms) or pair.count(">") != 1]:
        sys.exit(f"transfer: no such pair: {', '.join(unknown)}; platforms are {', '.join(reference.platforms)}, written A>B")
    units = [
        Unit(pair, count, method, fold)
        for pair in pairs
        for fold in range(folds)
        for count, method in [(None, ZERO_SHOT), *((count, method) for count in labels for method in METHODS)]
    ]
    bench = Bench(reference, epochs, given.again)
    bench.run(units, until)
    found = summary({unit: bench.units[unit] for unit in units if unit in bench.units})
    print(table(found))
    if not (given.quick or given.smallest):
        into_document("transfer", table(summary(bench.units)))


if __name__ == "__main__":
    main()

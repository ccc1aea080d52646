"""How well every cost model ranks programs of networks that it has never seen.

    python bench/accuracy.py [--quick] [--part reference|logs|curve] [--seeds N] [--logs FOLDER] [--again]

reference   the reference data set, platform by platform: trained on the training networks' tasks, tested on the held-out
            networks', which share no task with them
logs        imported AutoTVM and Ansor logs, device by device: trained on three quarters of the tasks, tested on the
            others' programs that were drawn uniformly, or, where a device has no such log (marked: chosen), on all that a
            tuner chose.  Logs tell no module to lower: models on statements or states are left out
curve       the chain's last platform with ever more training tasks, and ever more programs of each

Every model has the same programs, its own settings, and several seeds; a figure is the mean over seeds and its 95 %
interval.  ``tcl`` is our model distilled along the chain up to the platform; what it may learn from earlier platforms,
``mtl-tlp`` may too.  A run that was broken off goes on where it was: what was computed with the same code, data and
settings stands in bench/results/accuracy.json and is not computed again (--again: it is).
--quick: the last platform and one device, two seeds, and no slow models.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from _datasets import Case, Logs, Reference, reads_of
from _tables import RESULTS, ROOT, into_readme, markdown, mean_interval, save

from tcl_core import environment, store  # noqa: F401  (before torch is imported)

import numpy as np
import torch

from tcl_core.distill import DistillSettings, learn_first, learn_next
from tcl_core.errors import DataError, TclError
from tcl_core.evaluation.metrics import pairwise_accuracy, spearman, top_k
from tcl_core.features.batches import Samples
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel
from tcl_core.models.mtl_tlp import MtlTlpModel
from tcl_core.progress import progress

COMMAND = "python bench/accuracy.py"
REFERENCE = ROOT / "data" / "reference"
OURS, CHAINED = "mamba", "tcl"
MODELS = ("random", "xgboost", "trees", "tenset-mlp", "tlp", "mtl-tlp", "world-model", "mamba-paper", OURS, CHAINED)
SLOW = ("tlp", "mtl-tlp", "world-model")
CURVE = ("xgboost", "tlp", OURS)
FIGURES = {"top1": "top-1", "top5": "top-5", "pairs": "pairs ranked right", "spearman": "Spearman"}
CODE = ("models", "learning", "features", "programs", "distill.py", "store.py", "evaluation/metrics.py")  # of tcl_core
TIMED = 512  # programs whose scoring is timed


@dataclass(frozen=True)
class Run:
    """One model, trained once: on which data set, platform or device, with which seed; None: all tasks, all programs."""

    data: str
    platform: str
    model: str
    seed: int
    tasks: int | None = None
    programs: int | None = None

    @property
    def whole(self) -> bool:
        """Whether it learned from all that there is; the others are points of a curve."""
        return self.tasks is None and self.programs is None


def create(name: str, seed: int) -> CostModel:
    """A fresh model of the catalogue with its own settings and the seed."""
    settings = getattr(catalogue.create(name), "settings", FitSettings())
    return catalogue.create(name, replace(settings, seed=seed))


def trained(name: str, case: Case, seed: int) -> CostModel:
    """The model, having learned all that a case allows it to."""
    if name == CHAINED:
        return chained(case, seed)
    model = create(name, seed)
    if isinstance(model, MtlTlpModel):
        model.fit_platforms(case.train, list(case.before))
    else:
        model.fit(case.train)
    return model


def chained(case: Case, seed: int) -> CostModel:
    """Our model, distilled along the chain: the platforms before this one, then this one."""
    settings = DistillSettings(create(OURS, seed).settings)
    state = learn_first(case.before[0], None, settings.fit)
    for samples in case.before[1:]:
        state = learn_next(state, samples, None, settings)
    return learn_next(state, case.train, None, settings, last=True).model


def figures(name: str, case: Case, seed: int) -> dict[str, float]:
    """Of one run: how well it ranks, how large it is, how long it took."""
    start = time.perf_counter()
    model = trained(name, case, seed)
    seconds = time.perf_counter() - start
    test = case.test
    measured = model.predict(test), test.latencies_s, test.tasks
    return {
        "top1": top_k(*measured, case.networks, 1),
        "top5": top_k(*measured, case.networks, 5),
        "pairs": pairwise_accuracy(*measured),
        "spearman": spearman(*measured),
        "parameters": parameters(model),
        "train_s": seconds,
        "programs_per_s": rate(model.predict, test),
        "trained_programs": len(case.train),
        "tested_programs": len(test),
    }


def parameters(model: CostModel) -> int:
    """Numbers that the model learned and needs to predict: weights; of trees, their nodes."""
    return model.parameter_count() if hasattr(model, "parameter_count") else 0


def rate(predict: Callable[[Samples], np.ndarray], samples: Samples) -> float:
    """Programs per second from features in memory to scores."""
    few = samples.take(np.arange(min(TIMED, len(samples))))
    predict(few)
    start = time.perf_counter()
    predict(few)
    return len(few) / (time.perf_counter() - start)


class Bench:
    """The runs that are asked for, of which those known already are not made again."""

    def __init__(self, reference: Path, logs: Path, again: bool) -> None:
        self.path, self.data, self.logs = RESULTS / "accuracy.json", reference, logs
        features, scratch = ROOT / "data" / "features", ROOT / "data" / "bench" / "logs"
        self.reference = Reference(reference, features)
        self.imported = functools.cache(lambda: Logs(logs, scratch))
        self.identity = identity(reference, logs)
        self.again, self.known = again, self._known()

    def _known(self) -> dict[Run, dict[str, float]]:
        """Runs of the same code and data."""
        if not self.path.exists():
            return {}
        found = json.loads(self.path.read_text())
        return {Run(*row["run"]): row["figures"] for row in found["runs"]} if found["identity"] == self.identity else {}

    def case(self, run: Run) -> Case:
        if run.data == "logs":
            return self.imported().case(run.platform, run.seed)
        case = self.reference.case(run.platform, reads_of(run.model) if run.model != CHAINED else "tokens")
        return case.thinned(run.tasks, run.programs, run.seed)

    def compute(self, runs: Sequence[Run]) -> None:
        """Make what is not known yet; each run is on the disk before the next begins."""
        todo = [run for run in runs if self.again or run not in self.known]
        with progress("training and ranking", len(todo)) as shown:
            for run in todo:
                self.known[run] = figures(run.model, self.case(run), run.seed)
                self.write()
                shown.advance(f"{run.model}: top-1 {self.known[run]['top1']:.3f}")

    def write(self) -> None:
        rows = [{"run": astuple(run), "figures": found} for run, found in self.known.items()]
        result = {"identity": self.identity, "summary": self.summary(), "runs": rows}
        save("accuracy", result, COMMAND)

    def summary(self) -> dict[str, dict[str, dict[str, Any]]]:
        """platform or device -> model -> top1, top5 as [mean, low, high], and parameters."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for (_, platform, model), runs in grouped(self.known, lambda run: (run.data, run.platform, run.model) if run.whole else None):
            entry = {key: interval([f[key] for f in runs]) for key in ("top1", "top5")}
            found.setdefault(platform, {})[model] = entry | {"parameters": int(runs[0]["parameters"])}
        return found

    def table(self, data: str) -> str:
        key = lambda run: (run.platform, run.model) if run.whole and run.data == data else None  # noqa: E731
        rows = [
            [self.label(place, data), model, *(shown(interval([f[name] for f in runs])) for name in FIGURES), *_sizes(runs)]
            for (place, model), runs in grouped(self.known, key)
        ]
        header = ["platform" if data == "reference" else "device", "model", *FIGURES.values()]
        return markdown([*header, "parameters", "training, s", "ranked/s"], rows)

    def label(self, place: str, data: str) -> str:
        """A platform's name, or a device's with a word where a tuner chose the tested programs."""
        return f"{place} (chosen)" if data == "logs" and not self.imported().drawn(place) else place

    def curve(self) -> list[list[Any]]:
        """[tasks, programs of each, model, its figures of all seeds] of the chain's last platform, by size."""
        mine = lambda run: run.data == "reference" and run.platform == self.reference.platforms[-1]  # noqa: E731
        key = lambda run: (run.tasks, run.programs, run.model) if mine(run) and run.model in CURVE else None  # noqa: E731
        largest = 10**6
        return sorted(([*group, runs] for group, runs in grouped(self.known, key)), key=lambda row: (row[0] or largest, row[1] or largest))


def grouped(
    known: dict[Run, dict[str, float]], key: Callable[[Run], Any]
) -> Iterator[tuple[Any, list[dict[str, float]]]]:
    """The figures of the runs of each key, in the order in which it first comes; runs whose key is None are left out."""
    groups: dict[Any, list[dict[str, float]]] = {}
    for run, found in known.items():
        if (group := key(run)) is not None:
            groups.setdefault(group, []).append(found)
    yield from groups.items()


def curve_table(rows: list[list[Any]]) -> str:
    cells = [
        [tasks or "all", programs or "all", model, *(shown(interval([f[name] for f in runs])) for name in ("top1", "top5", "pairs"))]
        for tasks, programs, model, runs in rows
    ]
    return markdown(["training tasks", "programs of each", "model", "top-1", "top-5", "pairs ranked right"], cells)


def _sizes(runs: Sequence[dict[str, float]]) -> list[str]:
    """Parameters, seconds and rate; medians."""
    return [f"{np.median([f[key] for f in runs]):,.0f}" for key in ("parameters", "train_s", "programs_per_s")]


def identity(reference: Path, logs: Path) -> str:
    """Changes with the code and the data that figures depend on."""
    digest = hashlib.sha256(store.data_digest(reference).encode())
    places = [*(ROOT / "tcl_core" / part for part in CODE), ROOT / "bench" / "_datasets.py", Path(__file__)]
    for path in sorted(file for place in places for file in ([place] if place.is_file() else place.rglob("*.py"))):
        digest.update(path.read_bytes())
    for path in sorted(logs.rglob("*.log.gz")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
    return digest.hexdigest()[:16]


def interval(values: Sequence[float]) -> list[float]:
    """[mean, low, high]; of a single run all three are its value."""
    return [round(x, 4) for x in (mean_interval(values) if len(values) > 1 else (values[0],) * 3)]


def shown(found: Sequence[float]) -> str:
    mean, low, high = found
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


def wanted(bench: Bench, part: str | None, seeds: int, quick: bool) -> list[Run]:
    """The runs of all parts or of one."""
    platforms = bench.reference.platforms
    last, kept = platforms[-1], [m for m in MODELS if not (quick and m in SLOW)]
    runs = [
        Run("reference", platform, model, seed)
        for platform in (platforms[-1:] if quick else platforms)
        for model in kept
        for seed in range(seeds)
        if not (model in (CHAINED, "mtl-tlp") and platform == platforms[0])
    ]
    if bench.logs.exists():
        on_tokens = [m for m in kept if m not in (CHAINED, "mtl-tlp") and reads_of(m) == "tokens"]
        devices = list(bench.imported().devices)
        runs += [
            Run("logs", device, model, seed)
            for device in (devices[:1] if quick else devices)
            for model in on_tokens
            for seed in range(seeds)
        ]
    sizes = [(n, None) for n in (19, 38, 76)] + [(None, p) for p in (8, 16, 32)]
    models = [m for m in CURVE if m in kept]
    if not quick:
        runs += [Run("reference", last, m, s, *size) for size in sizes for m in models for s in range(seeds)]
    return [run for run in runs if part in (None, "curve" if not run.whole else run.data)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one platform, one device, two seeds, no slow models")
    parser.add_argument("--part", choices=("reference", "logs", "curve"), help="only this one")
    parser.add_argument("--seeds", type=int, choices=range(2, 11), help="how many (5; with --quick 2)")
    parser.add_argument("--logs", type=Path, default=ROOT.parent / "shared" / "bench", help="folder of tuning logs")
    parser.add_argument("--again", action="store_true", help="compute also what is known")
    given = parser.parse_args()
    torch.set_num_threads(2)
    try:
        run(given)
    except TclError as error:
        sys.exit(f"accuracy: {error}")


def run(given: argparse.Namespace) -> None:
    """Compute what is wanted, and show it: the tables of which there is something."""
    if not (REFERENCE / "tasks.parquet").exists():
        raise DataError(f"there is no data set in {REFERENCE}; measure one with python bench/reference.py")
    if not given.logs.exists():
        print(f"there is no {given.logs}; the part on logs is left out (give their folder with --logs)")
    bench = Bench(REFERENCE, given.logs, given.again)
    bench.compute(wanted(bench, given.part, given.seeds or (2 if given.quick else 5), given.quick))
    bench.write()
    datas = {run.data for run in bench.known}
    for data, name in (("reference", "accuracy"), ("logs", "accuracy_logs")):
        if data in datas:
            _show(name, bench.table(data))
    if not all(run.whole for run in bench.known):
        _show("accuracy_curve", curve_table(bench.curve()))


def _show(name: str, text: str) -> None:
    into_readme(name, text)
    print(text, end="\n\n")


if __name__ == "__main__":
    main()

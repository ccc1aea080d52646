"""How well every cost model ranks programs of networks that it has never seen.

    python bench/accuracy.py [--quick] [--part reference|prepared|logs|curve] [--models NAME,...] [--seeds N] [--threads N]
                             [--logs FOLDER] [--force]
    python bench/accuracy.py --part sealed --why TEXT

reference   the reference data set, platform by platform: trained on the training networks' tasks, tested on the held-out
            networks', which share no task with them
prepared    the two data sets of networks that were prepared as projects prepare them, learned together; tested on the uniform programs of
            the one and, as ``registers``, on those of the other, among which a search chooses
sealed      the same models, tested on both data sets' programs of ten networks on which nothing was ever chosen.  Only when it is asked
            for, of code that is committed, and each time with a line in bench/sealed.md
logs        imported AutoTVM and Ansor logs, device by device: trained on three quarters of the tasks, tested on the
            others' programs that were drawn uniformly, or, where a device has no such log (marked: chosen), on all that a
            tuner chose.  Logs tell no module to lower: models on per-store features or states are left out
curve       the chain's last platform with ever more training tasks, and ever more programs of each

Every model has the same programs, its own settings, and several seeds; a figure is the mean over seeds and its 95 %
interval.  ``tcl`` is our model carried along the chain up to the platform (``distill.method: bridge``); what it may learn from
earlier platforms, ``mtl-tlp`` may too.  Rerun it to resume one that was broken off, and several may run beside each other: what was
computed with the same code, data and settings stands in bench/results/accuracy.json and is not computed again (--force: it
is).  Times are processor time, which other work on the machine changes less.
--quick: the last platform and one device, two seeds, a quarter of the unlabelled programs, and none of the slow models, our chain
among them; its results are a file of their own.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from tcl_core import environment  # noqa: F401  (before all that imports torch)

from _calibration import calibration
from _curve import draw_curve
from _datasets import Case, Learned, Logs, Reference, reads_of
from _identity import data_identity, identity
from _lessons import ChainCase, Lesson, chain_case, lesson, log_lesson
from _paired import ByTask, compared, task_figures
from _ranking_tables import FIGURES, LEAST, calibration_table, compared_table, curve_table, interval, overview_table, shown, sizes_and_times
from _sealed import opened
from _tables import ROOT, Quick, arguments, into_document, markdown, result_file, save

import numpy as np
import torch

from tcl_core.chain.bridge import BridgeSettings, bridged
from tcl_core.errors import DataError, TclError
from tcl_core.evaluation.metrics import mean_over_tasks, spearman, top_k
from tcl_core.features.batches import Samples
from tcl_core.learning.fit_settings import FitSettings
from tcl_core.locks import wait_for_lock
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel
from tcl_core.models.mamba import MambaModel
from tcl_core.progress import progress
from tcl_core.teaching import STUDENT

COMMAND = "python bench/accuracy.py"
FOLDERS = {name: ROOT / "data" / name for name in ("reference", "prepared", "registers")}
TWINS = {name: "prepared" for name in ("registers", "sealed", "sealed-registers")}  # learned alike
SETS = "reference", "prepared", *TWINS
PARTS = {"reference": ("reference",), "prepared": ("prepared", "registers"), "sealed": ("sealed", "sealed-registers"), "logs": ("logs",)}
OURS, CHAINED = "mamba", "tcl"
MODELS = ("random", "xgboost", "trees", "tenset-mlp", "tlp", "mtl-tlp", "world-model", "mamba-paper", OURS, CHAINED)
SLOW = ("tlp", "mtl-tlp", "world-model", "mamba-paper", CHAINED)  # minutes each, of each seed
CURVE = ("xgboost", "trees", OURS, CHAINED)
SIZES = (*((n, None) for n in (19, 38, 76)), *((None, p) for p in (8, 16, 32)))  # tasks, or programs of each
FEW, SMALLEST = ("random", "trees", "mtl-tlp", OURS, CHAINED), ((2, None), (None, 4))  # models and sizes of the smallest form
CALIBRATED = ("trees", OURS, CHAINED)
DATA = {data: f"accuracy_{data}" for data in (*SETS, "logs")}  # data set -> its table
UNLABELLED, FEW_UNLABELLED = 192, 48  # for each task; of a quick run
ALL = 10**6  # tasks or programs, when there is no bound
EPOCHS = {("logs", "tlp"): 4} | {(data, model): epochs for data in SETS for model, epochs in (("tlp", 12), ("mtl-tlp", 6))}
"""Of their own 50, which would take a day: docs/accuracy.md says what that costs."""
PICTURE = ROOT / "docs" / "accuracy_curve.png"
FEATURES = ROOT / "data" / "features"  # caches
TIMED = 512  # programs whose scoring is timed
DIGITS = 4  # of a task's figures


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


def own_settings(run: Run) -> object:
    """What this comparison settles of how a run's model is trained, beside the model's own code."""
    return EPOCHS.get((run.data, run.model))


def create(run: Run) -> CostModel:
    """A fresh model of the catalogue with its own settings and the seed."""
    settings = catalogue.own_settings(run.model)
    epochs = EPOCHS.get((run.data, run.model), settings.epochs)
    return catalogue.create(run.model, replace(settings, seed=run.seed, epochs=epochs))


def trained(run: Run, case: Any) -> CostModel:
    """The model, having learned all that a case allows it to."""
    if run.model == CHAINED:
        return chained(run, case)
    if run.model == OURS:
        return taught(run, case)
    model = create(run)
    return model.fit(case.train, sources=case.before if model.learns_from_sources else ())


def taught(run: Run, case: Lesson) -> MambaModel:
    return MambaModel(_ours(run, STUDENT)).fit(case.taught(run.seed))


def _ours(run: Run, usual: FitSettings) -> FitSettings:
    epochs = EPOCHS.get((run.data, run.model), usual.epochs)
    return replace(usual, seed=run.seed, epochs=epochs, period=epochs)


def chained(run: Run, case: ChainCase) -> MambaModel:
    """Our model as the pipeline has it: taught on the chain's first platform, then carried on by what each later one measured."""
    settings = BridgeSettings(_ours(run, BridgeSettings().fit))
    model, platforms = taught(run, case.first), (*case.before, case.train)
    for place in range(1, len(platforms)):
        further = case.further[place]
        source_s = np.concatenate([platforms[place - 1].latencies_s, np.full(len(further), np.nan)])
        model, _ = bridged(model, platforms[place], further, settings, source_s=source_s, earlier=case.hardware[:place])
    return model


def figures(run: Run, case: Case, kept: Path | None = None, folder: Path | None = None) -> dict[str, Any]:
    """Of one run: how well it ranks, over all and of each of the ``tasks``, how large it is, how long it took.

    The scores go to ``kept``, the model to ``folder``.
    """
    start = time.process_time()
    model = trained(run, case)
    took = {"train_s": time.process_time() - start, "trained_programs": len(case.train)}
    if folder:
        folder.parent.mkdir(parents=True, exist_ok=True)
        model.save(folder)
    return ranked(model, case, kept) | took


def ranked(model: CostModel, case: Case, kept: Path | None) -> dict[str, Any]:
    """What a trained model makes of the tested programs."""
    test = case.test
    measured = model.predict(test), test.latencies_s, test.tasks
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, scores=measured[0], latencies_s=test.latencies_s, tasks=test.tasks)
    of_tasks = task_figures(*measured)
    return {
        "pairs": mean_over_tasks(of_tasks["pairs"]),
        "u16": mean_over_tasks(of_tasks["u16"]),
        "top1": top_k(*measured, case.networks, 1),
        "top5": top_k(*measured, case.networks, 5),
        "spearman": spearman(*measured),
        "tasks": list(of_tasks["pairs"]),
        "of_tasks": {name: [round(x, DIGITS) for x in values.values()] for name, values in of_tasks.items()},
        "parameters": model.parameter_count(),
        "programs_per_s": rate(model.predict, test),
        "tested_programs": len(test),
    }


def rate(predict: Callable[[Samples], np.ndarray], samples: Samples) -> float:
    """Programs per second of processor time, from features in memory to scores."""
    few = samples.take(np.arange(min(TIMED, len(samples))))
    predict(few)
    start = time.process_time()
    predict(few)
    return len(few) / max(time.process_time() - start, 1e-9)


class Bench:
    """The runs that are asked for, of which those known already are not made again."""

    def __init__(self, sets: Mapping[str, Reference | Learned], logs: Path, force: bool, room: Path = ROOT / "data" / "bench") -> None:
        """``sets`` are data sets by name, "reference" among them; ``room`` is a folder for imported logs, scores, and the lock of
        the results.
        """
        self.path, self.sets, self.logs, self.room = result_file("accuracy.json"), sets, logs, room
        self.reference = sets["reference"]
        self.imported = functools.cache(lambda: Logs(logs, room / "logs"))
        digest = lambda of: " ".join(data_identity(each.folder, logs)["reference"] for each in of.sets)  # noqa: E731
        data = dict.fromkeys(DATA, "") | {name: digest(of) for name, of in sets.items()}
        data["logs"] = data_identity(self.reference.folder, logs)["logs"]
        self.identity = functools.cache(lambda run: identity(run.model, data[run.data], own_settings(run)))
        self.force, self.known = force, self._stored()

    def _read(self, part: str) -> list[dict[str, Any]]:
        return json.loads(self.path.read_text())[part] if self.path.exists() else []

    def _stored(self) -> dict[Run, dict[str, Any]]:
        """Runs of the same code and data that are on the disk."""
        runs = ((Run(*row["run"]), row) for row in self._read("runs"))
        return {run: row["figures"] for run, row in runs if row["identity"] == self.identity(run) and "of_tasks" in row["figures"]}

    def case(self, run: Run) -> Case:
        """What a run learns from and ranks; our model's with what its teacher ensemble needs."""
        if run.data == "logs":
            case = self.imported().case(run.platform, run.seed)
            return log_lesson(self.imported(), run.platform, case, run.seed) if run.model == OURS else case
        thin, split = (run.tasks, run.programs, run.seed), _split(run)
        reference = self.sets[run.data]
        if run.model == OURS:
            return lesson(reference, run.platform, thin=thin, split=split)
        if run.model == CHAINED:
            return chain_case(reference, run.platform, thin, split)
        return reference.case(run.platform, reads_of(run.model), split=split).thinned(*thin)

    def _untrue(self) -> list[dict[str, Any]]:
        """Rows of other code or data, which are shown nowhere but kept until their runs are made again.

        A machine without the logs, say, cannot tell whether what was computed from them is true.
        """
        return [row for row in self._read("runs") if Run(*row["run"]) not in self.known]

    def compute(self, runs: Sequence[Run]) -> None:
        """Make what is not known yet; each run is on the disk before the next begins."""
        todo = [run for run in runs if self.force or run not in self.known]
        with progress("training and ranking", len(todo)) as shown:
            for run in todo:
                kept = (self.scores_of(run), self.model_of(run)) if run.whole else ()
                self.known[run] = self.ranked_again(run) or figures(run, self.case(run), *kept)
                self.write()
                shown.advance(f"{run.model}: top-1 {self.known[run]['top1']:.3f}")

    def write(self, calibrated: list[dict[str, Any]] | None = None) -> None:
        """All runs known, with those that another process has added meanwhile, and what follows from them."""
        self.room.mkdir(parents=True, exist_ok=True)
        with (self.room / "accuracy.lock").open("w") as lock:  # of the results, while they are written
            wait_for_lock(lock)
            known = self._stored() | self.known
            self.known = {run: known[run] for run in sorted(known, key=self._order)}
            rows = [{"run": astuple(run), "identity": self.identity(run), "figures": found} for run, found in self.known.items()]
            judged = {"calibration": calibrated or self._read("calibration"), "compared": self.compared()}
            save("accuracy", {"summary": self.summary(), **judged, "runs": rows + self._untrue()}, COMMAND)

    def _order(self, run: Run) -> tuple[Any, ...]:
        """By data set, platform along the chain, model as listed, size, seed."""
        places = {name: number for number, name in enumerate(self.reference.platforms)}
        sizes = (run.tasks or ALL, run.programs or ALL)
        return run.data, places.get(run.platform, ALL), run.platform, *sizes, MODELS.index(run.model), run.seed

    def scores_of(self, run: Run) -> Path:
        """Where a run's scores of the tested programs lie: other code or data, another file."""
        name = f"{run.model}-{run.seed}-{self.identity(run)}.npz"
        return self.room / "scores" / run.data / run.platform / name

    def model_of(self, run: Run) -> Path:
        """Where the trained model lies."""
        return self.room / "models" / run.data / run.platform / f"{run.model}-{run.seed}-{self.identity(run)}"

    def ranked_again(self, run: Run) -> dict[str, Any] | None:
        """Figures by the model that was trained for the prepared networks, where a run learns the same programs; None where that is not
        at hand.
        """
        twin = replace(run, data=TWINS.get(run.data, run.data))
        if run.data not in TWINS or twin not in self.known or not self.model_of(twin).exists():
            return None
        reads = "tokens" if run.model == CHAINED else reads_of(run.model)
        case = self.sets[run.data].case(run.platform, reads, split=_split(run))
        found = ranked(catalogue.load(self.model_of(twin)), case, self.scores_of(run))
        return found | {name: self.known[twin][name] for name in ("train_s", "trained_programs")}

    def compared(self) -> list[dict[str, Any]]:
        """Our model against each other one, task by task."""
        return [{"data": data, **row} for data in DATA for row in compared(self.of_tasks(data), OURS)]

    def calibrated(self) -> list[dict[str, Any]]:
        """How far certainty can be trusted; what an earlier machine found is kept while its runs are true."""
        reference = [run for run in self.known if run.whole and run.data == "reference" and run.model in CALIBRATED]
        found, before = [], self._read("calibration")
        for platform, model in dict.fromkeys((run.platform, run.model) for run in reference):
            seeds = [run for run in reference if (run.platform, run.model) == (platform, model)]
            named = {"platform": platform, "model": model, "identity": self.identity(seeds[0])}
            found += self.calibration_of(seeds, named) or [row for row in before if named.items() <= row.items()]
        return found

    def of_tasks(self, data: str) -> dict[tuple[str, str], dict[int, dict[str, ByTask]]]:
        """(platform or device, model) -> seed -> figure -> task -> value."""
        found: dict[tuple[str, str], dict[int, dict[str, ByTask]]] = {}
        for run, one in self.known.items():
            if run.whole and run.data == data:
                of = {name: dict(zip(one["tasks"], values, strict=True)) for name, values in one["of_tasks"].items()}
                found.setdefault((run.platform, run.model), {})[run.seed] = of
        return found

    def calibration_of(self, seeds: Sequence[Run], named: dict[str, Any]) -> list[dict[str, Any]]:
        """Of the seeds' runs alone (their mean) and of all as one ensemble; empty where their scores are not here, or of one."""
        if len(seeds) < 2 or not all(self.scores_of(run).exists() for run in seeds):
            return []
        kept = [dict(np.load(self.scores_of(run))) for run in seeds]
        about = kept[0]["latencies_s"], kept[0]["tasks"]
        alone = [calibration([one["scores"]], *about) for one in kept]
        mean = {key: float(np.mean([a[key] for a in alone])) for key in alone[0]}
        together = calibration([one["scores"] for one in kept], *about)
        return [named | {"members": 1} | mean, named | {"members": len(seeds)} | together]

    def summary(self) -> dict[str, dict[str, dict[str, Any]]]:
        """platform or device -> model -> figures as [mean, low, high], and parameters; a platform of another data set than the
        reference has its name behind a comma.
        """
        found: dict[str, dict[str, dict[str, Any]]] = {}
        key = lambda run: (run.data, run.platform, run.model) if run.whole else None  # noqa: E731
        for (data, platform, model), runs in grouped(self.known, key):
            entry = {key: interval([f[key] for f in runs], LEAST[key]) for key in FIGURES}
            place = platform if data in ("reference", "logs") else f"{platform}, {data}"
            found.setdefault(place, {})[model] = entry | {"parameters": int(runs[0]["parameters"])}
        return found

    def table(self, data: str) -> str:
        key = lambda run: (run.platform, run.model) if run.whole and run.data == data else None  # noqa: E731
        over_seeds = lambda runs, name: shown([f[name] for f in runs], LEAST[name])  # noqa: E731
        rows = [
            [self.label(place, data), model, *(over_seeds(runs, name) for name in FIGURES), *sizes_and_times(runs)]
            for (place, model), runs in grouped(self.known, key)
        ]
        header = ["device" if data == "logs" else "platform", "model", *FIGURES.values()]
        return markdown([*header, "parameters", "training, CPU s", "ranked per CPU s"], rows)

    def overview(self) -> str:
        """Every model of the reference data by platform: means over seeds of the figures that people ask for first."""
        key = lambda run: (run.model, run.platform) if run.whole and run.data == "reference" else None  # noqa: E731
        found = dict(grouped(self.known, key))
        return overview_table([model for model in MODELS if model in {m for m, _ in found}], self.reference.platforms, found)

    def label(self, place: str, data: str) -> str:
        """A platform's name, or a device's with a word where a tuner chose the tested programs."""
        return f"{place} (chosen)" if data == "logs" and not self.imported().drawn(place) else place

    def size(self) -> tuple[int, int]:
        """How many tasks the reference data trains on, and how many programs the largest of them have."""
        counts = np.bincount(self.reference.case(self.reference.platforms[-1], "tokens").train.tasks)
        return int((counts > 0).sum()), int(counts.max())

    def curve(self) -> list[list[Any]]:
        """[tasks, programs of each, model, its figures of all seeds] of the chain's last platform, by size."""
        mine = lambda run: run.data == "reference" and run.platform == self.reference.platforms[-1]  # noqa: E731
        key = lambda run: (run.tasks, run.programs, run.model) if mine(run) and run.model in CURVE else None  # noqa: E731
        found = [[*group, runs] for group, runs in grouped(self.known, key)]
        return sorted(found, key=lambda row: (row[0] or ALL, row[1] or ALL))


def _split(run: Run) -> str:
    """Which networks a run's model ranks."""
    return "sealed" if run.data.startswith("sealed") else "held_out"


def grouped(known: dict[Run, Any], key: Callable[[Run], Any]) -> Iterator[tuple[Any, list[Any]]]:
    """What belongs to the runs of each key, in the order in which it first comes; runs whose key is None are left out."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for run, found in known.items():
        if (group := key(run)) is not None:
            groups.setdefault(group, []).append(found)
    yield from groups.items()


def wanted(
    bench: Bench, part: str | None, models: Sequence[str], seeds: int, quick: bool, sizes: Sequence[tuple[int | None, int | None]]
) -> list[Run]:
    """The runs of all parts but the sealed one, or of one; ``sizes`` are those of the curve."""
    platforms = bench.reference.platforms
    last, kept = platforms[-1], models
    asked = PARTS.get(part, ()) if part else ("reference", "logs") if quick else ("reference", "prepared", "registers", "logs")
    runs = [
        Run(data, platform, model, seed)
        for data in bench.sets
        if data in asked
        for platform in (platforms[-1:] if quick else platforms)
        for seed in range(seeds)
        for model in kept
        if not (model in (CHAINED, "mtl-tlp") and platform == platforms[0])
    ]
    if "logs" in asked and bench.logs.exists():
        on_tokens = [m for m in kept if m not in (CHAINED, "mtl-tlp") and reads_of(m) == "tokens"]
        devices = list(bench.imported().devices)
        runs += [
            Run("logs", device, model, seed)
            for device in (devices[:1] if quick else devices)
            for model in on_tokens
            for seed in range(seeds)
        ]
    return runs + [
        Run("reference", last, m, s, *size)
        for size in sizes
        for m in (m for m in CURVE if m in kept)
        for s in range(seeds)
        if part in (None, "curve")
        if not (m == CHAINED and size[0])  # what a chain is worth shows where programs of a platform are few
    ]


def names(text: str) -> list[str]:
    """Models of this bench, by commas."""
    if unknown := sorted(set(text.split(",")) - set(MODELS)):
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(MODELS)}")
    return text.split(",")


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="one platform, one device, two seeds, no slow models")
    parser.add_argument("--part", choices=(*PARTS, "curve"), help="only this one")
    parser.add_argument("--why", help="why the sealed networks are ranked, for the record")
    parser.add_argument("--models", type=names, help="only these, by commas")
    parser.add_argument("--threads", type=int, default=2, help="of training and ranking (2)")
    parser.add_argument("--seeds", type=int, choices=range(2, 11), help="how many (3; with --quick 2)")
    parser.add_argument("--logs", type=Path, default=ROOT.parent / "shared" / "bench", help="folder of tuning logs")
    parser.add_argument("--force", action="store_true", help="compute also what is known")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    try:
        run(given)
    except TclError as error:
        sys.exit(f"accuracy: {error}")


def bench_of(given: argparse.Namespace) -> Bench:
    if given.smallest:
        import _smallest

        EPOCHS.update({(data, model): 1 for data in SETS for model in MODELS})
        few = _smallest.reference()
        both = Learned([few, few], few)
        return Bench(
            {"reference": few, "prepared": both, "registers": both}, _smallest.scratch() / "logs", given.force, _smallest.scratch()
        )
    for folder in FOLDERS.values():
        if not (folder / "tasks.parquet").exists():
            raise DataError(f"there is no data set in {folder}; measure one with python bench/reference.py")
    if given.quick:  # another model of ours, taught by fewer programs in fewer epochs: its scores lie apart
        EPOCHS.update({(data, OURS): STUDENT.epochs // 3 for data in DATA})
        return Bench(_sets(FEW_UNLABELLED), given.logs, given.force, ROOT / "data" / "bench" / "quick")
    return Bench(_sets(UNLABELLED), given.logs, given.force)


def _sets(unlabelled: int) -> dict[str, Reference | Learned]:
    """By name; of those that are learned together each gives half of the further programs, drawn as its own."""
    reference = Reference(FOLDERS["reference"], FEATURES, unlabelled)
    uniform, leaning = (Reference(FOLDERS[name], FEATURES, unlabelled // 2, lean) for name, lean in (("prepared", 0.0), ("registers", 0.9)))
    of = {each: Learned((uniform, leaning), each) for each in (uniform, leaning)}
    return {
        "reference": reference,
        "prepared": of[uniform], "registers": of[leaning],
        "sealed": of[uniform], "sealed-registers": of[leaning],
    }  # fmt: skip


def run(given: argparse.Namespace) -> None:
    """Compute what is wanted, and show it: the tables of which there is something."""
    bench, small = bench_of(given), given.quick or given.smallest
    if not bench.logs.exists():
        print(f"there is no {bench.logs}; the part on logs is left out (give their folder with --logs)")
    few = FEW if given.smallest else [model for model in MODELS if not (given.quick and model in SLOW)]
    models, sizes = given.models or few, SMALLEST if given.smallest else () if given.quick else SIZES
    if given.part == "sealed":
        opened(COMMAND, given.why)
    bench.compute(wanted(bench, given.part, models, given.seeds or (2 if small else 3), small, sizes))
    calibrated = bench.calibrated()
    bench.write(calibrated)
    for data, name in DATA.items():
        if bench.of_tasks(data):
            _show(name, bench.table(data))
            _show(f"{name}_compared", compared_table(OURS, compared(bench.of_tasks(data), OURS)))
    if bench.of_tasks("reference"):
        into_document("accuracy", bench.overview())
        print(bench.overview())
    if calibrated:
        _show("calibration", calibration_table(calibrated))
    if not all(run.whole for run in bench.known):
        draw_curve(bench.curve(), bench.size(), result_file(PICTURE.name) if small else PICTURE)
        picture = f"![Accuracy against the number of training tasks and programs]({PICTURE.name})"
        _show("accuracy_curve", f"{picture}\n\n{curve_table(bench.curve())}")


def _show(name: str, text: str) -> None:
    into_document(name, text)
    print(text, end="\n\n")


if __name__ == "__main__":
    main()

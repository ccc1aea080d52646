"""How well every cost model ranks programs of networks that it has never seen.

    python bench/accuracy.py [--quick] [--part reference|prepared|searched|logs|curve] [--models NAME,...] [--seeds N] [--threads N]
                             [--logs FOLDER] [--force]
    python bench/accuracy.py --part sealed --why TEXT

reference   the reference data set, platform by platform: trained on the training networks' tasks, tested on the held-out
            networks', which share no task with them
prepared    data/prepared and data/registers, networks prepared as in projects, learned together with data/variants, the training networks
            in other sizes; tested on the uniformly drawn programs of the first and, as ``registers``, on those of the second, among
            which a search chooses
searched    one platform of the same and of what searches met of the training networks' tasks; tested on the programs that searches
            proposed for the held-out networks, on the machine that also measured data/registers on that platform
sealed      the models of ``prepared``, tested on both data sets' programs of ten networks on which nothing was ever chosen.  Runs only when asked
            for, needs committed code, and adds a line to bench/sealed.md each time
logs        imported AutoTVM and Ansor logs, device by device: trained on three quarters of the tasks, tested on the uniformly
            drawn programs of the others or, where a device has no such log (marked: chosen), on all that a tuner chose.
            Logs hold no module to lower, so models on per-store features or states are left out
curve       the chain's last platform with growing numbers of training tasks, and of programs of each

Every model has the same programs, its own settings, and several seeds; a figure is the mean over seeds with its 95 % interval.
``tcl`` is our model carried along the chain up to the platform (``distill.method: bridge``); ``mtl-tlp`` may learn from the same
earlier platforms.  Runs with the same code, data and settings are kept in bench/results/accuracy.json and not repeated (unless
--force), so an interrupted comparison resumes, and several may run at once.  Times are processor time, which other work on the
machine changes less.
--quick: the last platform and one device, two seeds, a quarter of the unlabelled programs, and none of the slow models, of which our
chain is one; it has a results file of its own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tcl_core import environment  # noqa: F401  (before all that imports torch)

from _accuracy_results import COMMAND, CURVE, DATA, Results
from _accuracy_runs import CHAINED, EPOCHS, MODELS, OURS, SEARCHED, SETS, Run
from _curve import draw_curve
from _datasets import Learned, Reference, reads_of
from _paired import compared
from _ranking_tables import calibration_table, compared_table, curve_table
from _sealed import opened
from _searched_data import Searched
from _tables import ROOT, Quick, arguments, into_document, result_file
from _task_kinds import kinds_table
from _variants_data import Variants

import torch

from tcl_core.errors import DataError, TclError
from tcl_core.teaching import STUDENT

FOLDERS = {name: ROOT / "data" / name for name in ("reference", "prepared", "registers", SEARCHED, "variants")}
PARTS = {
    "reference": ("reference",), "prepared": ("prepared", "registers"), SEARCHED: (SEARCHED,), "sealed": ("sealed", "sealed-registers"),
    "logs": ("logs",),
}  # fmt: skip
SLOW = ("tlp", "mtl-tlp", "world-model", "mamba-paper", CHAINED)  # minutes each per seed
SIZES = (*((n, None) for n in (19, 38, 76)), *((None, p) for p in (8, 16, 32)))  # tasks, or programs of each
FEW, SMALLEST = ("random", "trees", "mtl-tlp", OURS, CHAINED), ((2, None), (None, 4))  # models and sizes of the smallest form
UNLABELLED, FEW_UNLABELLED = 192, 48  # programs of each task; with --quick
PICTURE = ROOT / "docs" / "accuracy_curve.png"
FEATURES = ROOT / "data" / "features"  # caches


def wanted(
    known: Results, part: str | None, models: Sequence[str], seeds: int, quick: bool, sizes: Sequence[tuple[int | None, int | None]]
) -> list[Run]:
    """Runs of one part, or (None) of all but the sealed one; ``sizes`` are those of the curve."""
    platforms = known.reference.platforms
    last = platforms[-1]
    asked = PARTS.get(part, ()) if part else ("reference", "logs") if quick else ("reference", "prepared", "registers", SEARCHED, "logs")
    runs = [
        Run(data, platform, model, seed)
        for data in known.sets
        if data in asked
        for platform in (platforms[-1:] if quick or data == SEARCHED else platforms)
        for seed in range(seeds)
        for model in models
        if not (model in (CHAINED, "mtl-tlp") and (platform == platforms[0] or data == SEARCHED))
    ]
    if "logs" in asked and known.logs.exists():
        on_tokens = [m for m in models if m not in (CHAINED, "mtl-tlp") and reads_of(m) == "tokens"]
        devices = list(known.imported().devices)
        runs += [
            Run("logs", device, model, seed)
            for device in (devices[:1] if quick else devices)
            for model in on_tokens
            for seed in range(seeds)
        ]
    return runs + [
        Run("reference", last, m, s, *size)
        for size in sizes
        for m in (m for m in CURVE if m in models)
        for s in range(seeds)
        if part in (None, "curve")
        if not (m == CHAINED and size[0])  # the worth of a chain shows with few programs per task, not with few tasks
    ]


def names(text: str) -> list[str]:
    """Parse models of this comparison, separated by commas.  Raises ArgumentTypeError for unknown ones."""
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


def results_of(given: argparse.Namespace) -> Results:
    if given.smallest:
        import _smallest

        EPOCHS.update({(data, model): 1 for data in SETS for model in MODELS})
        few = _smallest.reference()
        both = Learned([few, few], few)
        return Results(
            {"reference": few, "prepared": both, "registers": both, SEARCHED: both},
            _smallest.scratch() / "logs",
            given.force,
            _smallest.scratch(),
        )
    for folder in FOLDERS.values():
        if not (folder / "tasks.parquet").exists():
            raise DataError(f"there is no data set in {folder}; measure one with python bench/reference.py")
    if given.quick:  # our model is taught with fewer programs and epochs, so its scores are kept apart
        EPOCHS.update({(data, OURS): STUDENT.epochs // 3 for data in DATA})
        return Results(_sets(FEW_UNLABELLED), given.logs, given.force, ROOT / "data" / "bench" / "quick")
    return Results(_sets(UNLABELLED), given.logs, given.force)


def _sets(unlabelled: int) -> dict[str, Reference | Learned]:
    """Data sets by name.  Of those learned together each gives half of the unlabelled programs, drawn as its own programs are, and the
    variants, which have few programs of many tasks, an eighth.
    """
    reference = Reference(FOLDERS["reference"], FEATURES, unlabelled)
    uniform, leaning = (Reference(FOLDERS[name], FEATURES, unlabelled // 2, lean) for name, lean in (("prepared", 0.0), ("registers", 0.9)))
    met = Searched(FOLDERS[SEARCHED], FEATURES, unlabelled // 2, 0.9, lambda platform: FOLDERS["registers"] / f"platform={platform}")
    more = Variants(FOLDERS["variants"], FEATURES, unlabelled // 8, 0.5)
    of = {each: Learned((uniform, leaning, more), each) for each in (uniform, leaning)}
    return {
        "reference": reference,
        "prepared": of[uniform], "registers": of[leaning],
        "sealed": of[uniform], "sealed-registers": of[leaning], SEARCHED: Learned((uniform, leaning, met, more), met),
    }  # fmt: skip


def run(given: argparse.Namespace) -> None:
    """Compute the wanted runs, and show the tables that have figures."""
    known, small = results_of(given), given.quick or given.smallest
    if not known.logs.exists():
        print(f"there is no {known.logs}; the part on logs is left out (give their folder with --logs)")
    few = FEW if given.smallest else [model for model in MODELS if not (given.quick and model in SLOW)]
    models, sizes = given.models or few, SMALLEST if given.smallest else () if given.quick else SIZES
    if given.part == "sealed":
        opened(COMMAND, given.why)
    known.compute(wanted(known, given.part, models, given.seeds or (2 if small else 3), small, sizes))
    calibrated = known.calibrated()
    known.write(calibrated)
    if old := known.outdated():
        print(f"not published until all of it is computed again: {', '.join(sorted(old))}")
    for data, name in DATA.items():
        if known.of_tasks(data) and data not in old:
            _show(name, known.table(data))
            _show(f"{name}_compared", compared_table(OURS, compared(known.of_tasks(data), OURS)))
            if data not in ("reference", "logs"):
                _show(f"{name}_operators", kinds_table(OURS, known.by_operator(data), "operator"))
    if known.of_tasks("reference") and "reference" not in old:
        _show("accuracy", known.overview())
    if near := [row for data in SETS if known.of_tasks(data) and data not in old for row in known.by_nearness(data)]:
        _show("accuracy_near", kinds_table(OURS, near, "data", "tested tasks"))
    if calibrated and "reference" not in old:
        _show("calibration", calibration_table(calibrated))
    if not all(run.whole for run in known.known) and not {"reference", "curve"} & old:
        draw_curve(known.curve(), known.size(), result_file(PICTURE.name) if small else PICTURE)
        picture = f"![Accuracy against the number of training tasks and programs]({PICTURE.name})"
        _show("accuracy_curve", f"{picture}\n\n{curve_table(known.curve())}")


def _show(name: str, text: str) -> None:
    into_document(name, text)
    print(text, end="\n\n")


if __name__ == "__main__":
    main()

"""What one platform's knowledge is worth on another with few measurements.

    python bench/transfer.py [--quick] [--data NAME] [--plain] [--pair A>B ...] [--labels N|all ...] [--method NAME ...]
                             [--folds N] [--threads N] [--minutes M] [--logs FOLDER] [--force]

Platform A is learned from all its programs, platform B from a number of its own (--labels), drawn uniformly: only the target is thinned.

    zero-shot      A's network with B's hardware row
    own            a network that learned B's programs by LambdaRank
    own-taught     a network taught by trees that learned them, as on the chain's first platform
    fine-tuned     A's network, trained further on B's programs by LambdaRank
    ckd            the paper's continuous knowledge distillation
    ckd-mended     the same with its terms mended (``tcl_core.chain.ckd.mended``)
    replay         A's network, trained further on A's programs and B's, which are repeated until they are half
    mtl-tlp        MTL-TLP, a head for B and one for A, with its own settings
    pooled         a network taught by trees that learned B's programs and all of A's in one heap
    bridge-alone   ours, without A's measurements: A's network alone, corrected
    ours           the default (tcl_core.chain.bridge): A's measurements and A's network's predictions, corrected; along a
                   chain the measurements of all platforms before B

In common they have: as many optimiser steps, to half an epoch, as the bridge takes there (half of its steps rehearse A); batches of 512
programs; a cosine schedule to 0, from .002 for networks that start at random and from .001 for those trained further.  Rows with fewer
programs than a batch make more epochs, at most 1,500.  All networks but ckd's two columns and MTL-TLP are of one kind and size.  Three
exceptions:

- So many steps can harm rows that learn B's measured programs alone, or with A's.  own, fine-tuned, ckd, ckd-mended and replay also run
  with a tenth of them, and with those of 20 epochs over B's programs (for ckd and ckd-mended in each phase).  ckd-mended also runs with
  the latter while its active column learns as in the paper, for a teacher ensemble that learned few labels knows little; and with this,
  or with a tenth, while its knowledge base ranks B too.  For each pair and number of labels the variant is selected by pairs on the first
  fold, on which ours was developed too.  That fold counts in the mean.
- ckd splits its steps evenly over its two phases, and has the paper's rates and schedules, stretched from 50 epochs to its own.  Its
  active column ranks B; its knowledge base, after the KD phase, ranks the platforms before.  Steps of the columns from which ckd-mended
  learns phi are not counted.
- mtl-tlp makes as many of its own 50 epochs as fit into 60,000 programs, six for 160 labels: its transformer is slow, and more would
  take most of the comparison's time.  Each platform is ranked by its own head.

Where no two of B's programs share a task, own and own-taught score all programs alike, fine-tuned, ckd and ckd-mended stay A's
network, and mtl-tlp learns A alone, whose head ranks B.  Where fewer programs were measured than the labels asked for, all are taken.
Trees read tokens in every row.

Pairs A>B are of the reference data's three platforms, by grouped cross-validation over its training networks, three held out in turn.
--data prepared takes the data set of prepared networks, --data machines those that a Xeon and an EPYC measured, with programs as a search
draws them; each has its own results and tables.  So has --plain, without the analytical estimate (``tcl_core.models.estimate``) that all
of the networks above but MTL-TLP's, and the trees that teach, add to their scores otherwise.
A chain A>B>C continues likewise, with the same programs measured on B and C, and is judged on all its platforms; rows that are not
sequential learn C alone.  Pairs of real devices are of imported logs: uniformly drawn programs that both measured, matched by task and
decisions; a quarter of the tasks is held out in turn.

pairs  share of pairs ranked right; u16  top-1 over subsets of 16 programs (``evaluation.metrics.subset_top_1``); top1  best /
chosen latency; each on the last platform, mean over the tasks of all folds, with the 95 % interval over draws of the folds and of their
tasks.  X_less_zero_shot and X_less_ours are differences task by task.  forgetting  share of pairs of the earlier platforms ranked right
when these were learned, less the share at the end.
--quick: one pair, 160 labels, one fold, a quarter of the unlabelled programs, fewer epochs; it has a results file of its own.
Units with the same code and data are kept.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from tcl_core import environment  # noqa: F401  (before all that imports torch)

from _datasets import Logs, Reference
from _identity import ESTIMATE, code_identity, data_identity
from _tables import ROOT, Quick, Results, arguments, into_document, result_file
from _transfer_data import DEVICES, FOLDS, Devices, Targets
from _transfer_machines import Machines
from _transfer_plot import by_labels
from _transfer_rows import ROWS, ZERO_SHOT
from _transfer_tables import beside_plain, beside_table, best_variant, short, summary, tables
from _transfer_units import ALL, Learning, Unit, of_devices

import numpy as np
import torch

from tcl_core.models.mamba import MambaModel
from tcl_core.models.trees import TreesModel
from tcl_core.progress import progress

COMMAND = "python bench/transfer.py"
PAIRS = (
    "host-avx2>host-avx512", "host-sse42>host-avx512", "host-avx512>host-sse42",
    "host-sse42>host-avx2", "host-avx2>host-sse42", "host-avx512>host-avx2",
    "host-sse42>host-avx2>host-avx512", "ryzen-3700x>i5-1035g1", "i5-1035g1>cortex-a72",
)  # fmt: skip
MACHINES = (
    "xeon-avx2>epyc-avx2", "xeon-avx512>epyc-avx2", "xeon-sse42>epyc-sse42", "epyc-avx2>xeon-avx2", "epyc-avx2>xeon-avx512",
    "xeon-sse42>xeon-avx2>xeon-avx512>epyc-sse42>epyc-avx2",
)  # fmt: skip
DATA = ("reference", "prepared", "machines")
LABELS = (160, ALL, 16, 600, 64, 2400)  # the first are run first
PLAIN = "plain"
UNMEASURED = 64
QUICK_EPOCHS = 8  # of all networks


class Bench:
    """The units in the results file, and what computes further ones."""

    def __init__(
        self, targets: Targets | Machines, logs: Path, room: Path, *, name: str = "transfer", epochs: int | None = None, force: bool = False
    ) -> None:
        """``room``: folder for imported logs;  ``epochs``: of all networks; None: their own."""
        self.logs, self.name = logs, name
        code = code_identity(
            [f"tcl_core.{module}" for module in ("chain.bridge", "chain.ckd", "teaching", "models.mtl_tlp", "evaluation.metrics")],
            ["_transfer_units"],
            [ESTIMATE] if PLAIN in name else [],
        )
        data = data_identity(targets.reference.folder, logs)
        measured = targets.digest if isinstance(targets, Machines) else data["reference"]
        self.identity = {
            "reference": f"{code}-{measured[:12]}-{targets.reference.unlabelled}",
            "logs": f"{code}-{hashlib.sha256(data['logs'].encode()).hexdigest()[:12]}",
        }
        self.results = Results(name, lambda found: [tuple(row["unit"][:-1]) for row in found["units"]])  # the best variant changes
        self.published = False
        self.units: dict[Unit, dict[str, Any]] = {}
        for found in () if force else (self.results.published(), self.results.begun()):
            told = found.get("identity", {})
            self.units |= {
                unit: row["figures"]
                for row in found.get("units", ())
                if isinstance(told, dict) and self._still_true(unit := Unit(*row["unit"]), told, code)
            }
        self.summary = self.results.published().get("summary", {})  # until there is a new one
        self.beside_plain = self.results.published().get("beside_plain", {})
        self.learning = Learning(targets, lambda: Devices(Logs(logs, room / "logs")), epochs)

    def _still_true(self, unit: Unit, told: dict[str, str], code: str) -> bool:
        """Whether a stored unit is of this code and data; without the logs, a machine trusts that they have not changed."""
        kind = "logs" if of_devices(unit.pair) else "reference"
        if kind == "logs" and not self.logs.exists():
            self.identity["logs"] = told.get("logs", "")
            return self.identity["logs"].startswith(code)
        return told.get(kind) == self.identity[kind]

    def run(self, units: Sequence[Unit], until: float) -> None:
        """Compute the missing units.  Each is saved when it ends; the summary, whose many intervals take a minute, at the end."""
        try:
            self._run([unit for unit in units if self.resolved(unit) not in self.units], until)
        finally:
            if self.units:  # else what is there stays
                self.summary, self.beside_plain = summary(self.units), beside_plain(self.units, self._plain())
                self.save()

    def _plain(self) -> dict[Unit, dict[str, Any]]:
        """The published units of models without the analytical estimate; none beside themselves."""
        file = result_file(f"{self.name}_{PLAIN}.json")
        rows = json.loads(file.read_text())["units"] if file.exists() else ()
        return {Unit(*row["unit"]): row["figures"] for row in rows}

    def _run(self, todo: Sequence[Unit], until: float) -> None:
        MambaModel.estimates = TreesModel.estimates = PLAIN not in self.name
        with progress("learning from another platform", len(todo)) as shown:
            for place, asked in enumerate(todo):
                if time.monotonic() > until:
                    print(f"{len(todo) - place} of {len(todo)} are left; rerun the same command for them")
                    return
                unit = self.resolved(asked)
                if unit not in self.units:
                    self.units[unit] = self.learning.figures(unit)
                    self.save()
                right = np.mean(self.units[unit]["pairs"])
                shown.advance(f"{unit.pair}, {unit.labels} labels, {unit.method} ({unit.variant}): {right:.3f}")

    def resolved(self, unit: Unit) -> Unit:
        """The unit with the best variant on the first fold for None; still None while that is unknown."""
        if unit.variant is not None:
            return unit
        return replace(unit, variant=best_variant(self.units, unit.pair, unit.labels, unit.method))

    def save(self) -> None:
        rows = [{"unit": astuple(unit), "figures": found} for unit, found in self.units.items()]
        command = COMMAND + "".join(f" --data {data}" for data in DATA if f"_{data}" in self.name) + f" --{PLAIN}" * (PLAIN in self.name)
        derived = {"summary": self.summary} | ({"beside_plain": self.beside_plain} if self.beside_plain else {})
        self.published = self.results.save({"identity": self.identity, **derived, "units": rows}, command)


def planned(pairs: Sequence[str], labels: Sequence[int | str], folds: int, methods: Sequence[str] = tuple(ROWS)) -> list[Unit]:
    """Units by number of labels, then pair, then fold, so that a table's most telling column is filled first."""
    units = []
    for count in labels:
        for pair in pairs:
            for fold in range(folds):
                units.append(Unit(pair, 0, ZERO_SHOT, fold))
                for method in methods if count else ():
                    row = ROWS[method]
                    variants = row.variants if fold == 0 or len(row.variants) == 1 else (None,)
                    units += [Unit(pair, count, method, fold, variant) for variant in variants]
    return list(dict.fromkeys(units))


def labels_of(text: str) -> int | str:
    return ALL if text == ALL else int(text)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="one pair, one number of labels, one fold")
    parser.add_argument("--data", choices=DATA, default=DATA[0], help=f"which data set of data/ ({DATA[0]})")
    parser.add_argument(f"--{PLAIN}", action="store_true", help="networks and trees without the analytical estimate")
    parser.add_argument("--pair", action="append", help=f"only this one; of {', '.join(PAIRS)}")
    parser.add_argument("--labels", action="append", type=labels_of, help=f"only so many, 0 or {ALL}; several: give it again")
    parser.add_argument("--method", action="append", choices=ROWS, help="only this row, beside zero-shot; several: give it again")
    parser.add_argument("--folds", type=int, choices=range(1, len(FOLDS) + 1), default=len(FOLDS), help="so many of the folds")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin nothing after that")
    parser.add_argument("--logs", type=Path, default=ROOT.parent / "shared" / "bench", help="folder of tuning logs")
    parser.add_argument("--force", action="store_true", help="forget what is in the results file")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    torch.set_num_threads(given.threads)
    name = "_".join(["transfer", *[given.data] * (given.data != DATA[0]), *[PLAIN] * given.plain])
    usual = MACHINES if given.data == "machines" else PAIRS
    targets, unmeasured = None, UNMEASURED // 4 if given.quick else UNMEASURED
    pairs, labels, folds, epochs, room = given.pair, given.labels or LABELS, given.folds, None, ROOT / "data" / "bench"
    if given.quick:
        pairs, labels, folds, epochs = pairs or usual[:1], given.labels or (160,), 1, QUICK_EPOCHS
    if given.smallest:
        import _smallest

        targets, epochs, pairs, labels, folds = Targets(_smallest.reference()), 1, [PAIRS[0], PAIRS[6]], (12,), 1
        room = _smallest.scratch()
    targets = targets or targets_of(given.data, unmeasured)
    if pairs is None:
        pairs = [pair for pair in usual if not of_devices(pair) or given.data == DATA[0] and given.logs.exists()]
    if unknown := [pair for pair in pairs if not (is_chain(pair, targets.platforms) or is_chain(pair, DEVICES))]:
        names = ", ".join([*targets.platforms, *DEVICES])
        sys.exit(f"transfer: no such pair: {', '.join(unknown)}; write A>B or A>B>C with platforms of one kind, of {names}")
    units = planned(pairs, labels, folds, given.method or tuple(ROWS))
    bench = Bench(targets, given.logs, room, name=name, epochs=epochs, force=given.force)
    bench.run(units, until)
    asked, counts = {short(pair) for pair in pairs}, {"0", *map(str, labels)}
    known = {pair: {n: row for n, row in by.items() if n in counts} for pair, by in bench.summary.items() if pair in asked}
    print(tables(known))
    if bench.beside_plain:
        print(f"\nWithout the estimate, and what it adds:\n\n{beside_table(bench.beside_plain, str(LABELS[0]))}")
    if not bench.published:
        print("not published: what is published has units that are not computed again")
    elif not (given.quick or given.smallest):
        into_document(name, tables(bench.summary))
        if bench.beside_plain:
            into_document(f"{name}_beside_plain", beside_table(bench.beside_plain, str(LABELS[0])))
        if given.data == DATA[0] and (drawn := by_labels(bench.summary)):
            drawn.savefig(ROOT / "docs" / f"{name}_labels.png", dpi=100, metadata={"Software": None})


def targets_of(data: str, unmeasured: int) -> Targets | Machines:
    features = ROOT / "data" / "features"
    return Machines(features, unmeasured) if data == "machines" else Targets(Reference(ROOT / "data" / data, features, unmeasured))


def is_chain(pair: str, platforms: Sequence[str]) -> bool:
    names = pair.split(">")
    return len(names) > 1 and len(set(names)) == len(names) and set(names) <= set(platforms)


if __name__ == "__main__":
    main()

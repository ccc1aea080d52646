"""Tuning whole networks: TCL beside MetaSchedule, a TenSet MLP, random programs, Transfer-Tuning and PyTorch.

    python bench/tune.py [--quick] [--part NAME ...] [--network NAME ...] [--system NAME ...] [--minutes M] [--force]

Runs these parts, or what of them is asked for; each is resumable, and no unit begins after --minutes:

    resnet-18, mobilenet-v2, bert-tiny, deit-small
               TCL, random programs and the search from scratch on that network, at 16 programs per task
    long       TCL with 1,000 programs on all four
    stock      MetaSchedule with its XGBoost and with a pretrained TenSet MLP, on its own engine and on ours; one seed, as each takes up
               to an hour
    factors    where the gain comes from on resnet-18 and deit-small, one thing at a time: what is done to the graph, packing, tasks
               that lend to one another
    registers  all four, by TCL with uniform draws from the design space, and by random programs that accumulate in registers
    world      all four, with the world model in the champion's place
    warm       all four, timed with warm weights
    donors     Transfer-Tuning and a warm start on all four, with schedules of the training networks, which are tuned first

All four networks must be held out in params.yaml, so that the champion of `make run`, which TCL searches with, has not seen them.  The
TenSet MLP and the world model learn the platform's measurements that the champion learned, the project's and those that come with TCL.

A unit is one system on one network with one seed.  When a network's units of a seed are done, what each found is built and runs in
processes of its own, in turns with PyTorch's.  With another machine, champion, graph or search, all units start over beside the earlier
results: README's table is of the machine with most seeds, docs/tuning.md has the others with the last graph, search and champion; the
results file keeps the rest.  The summary is of the machine with most seeds; ratios to a system that was not run there are means over the
other machines', else over earlier results, and have no interval.
--quick: bert-tiny with 32 programs, four systems, one seed; it has a results file of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _tables import ROOT, Quick, arguments, result_file, save

from tcl_core import environment  # noqa: F401  (before torch is imported)

from _datasets import reads_of
from _identity import code_identity, folder_identity, identity
from _tuners import SYSTEMS, Given, Spent
from _tuning_tables import LONG, OURS, RANDOM, SCRATCH, STOCK, TENSET, Part, by_age, show, summary_of

from tcl_core import registry, store
from tcl_core.compat import make_target, meta_schedule, quiet_compiler
from tcl_core.errors import DataError, PlatformError, TclError
from tcl_core.features.batches import Samples
from tcl_core.measure.job import Protocol, Setup
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel, read_description
from tcl_core.params import Graph
from tcl_core.platforms import host_fingerprint, read_saved_hardware, why_not
from tcl_core.programs.graph import PREPARED, apply_database, fuse
from tcl_core.programs.networks import example_inputs, import_network
from tcl_core.progress import progress
from tcl_core.reference import Reference, apart, learned_sets
from tcl_core.stages.collecting import setup_of
from tcl_core.stages.machine import measuring_alone
from tcl_core.stages.workspace import Workspace
from tcl_core.tuning.database import open_database
from tcl_core.tuning.latency import PYTORCH, ROUNDS, Latencies, compare, running
from tcl_core.tuning.library import TOLERANCE, export
from tcl_core.tuning.network import tunables_of
from tcl_core.tuning.schedules import SearchSettings
from tcl_core.tuning.transfer import Donors

COMMAND = "python bench/tune.py"
NETWORKS = ("resnet-18", "mobilenet-v2", "bert-tiny", "deit-small")
PER_TASK, MOST = 16, 1000
SEEDS = 3
PLAIN = (OURS, RANDOM, SCRATCH)
STOCKS = (TENSET, STOCK, f"{TENSET}, our engine", f"{STOCK}, our engine")
WARM, WORLD = "TCL, warm weights", "TCL, world model"
REGISTERS = ("TCL, uniform draws", "random, in registers")
DONATED = ("Transfer-Tuning", "TCL, warm start")
FACTORS = {
    "resnet-18": ("TCL, without Winograd", "TCL, tasks apart", "random, graph as given", "random, not packed"),
    "deit-small": ("TCL, not rounded up", "random, graph as given", "random, not simplified", "random, C library's exponentials"),
}
TUNED = ROOT / "data" / "tuning" / "bench"  # what each unit found


class Change(NamedTuple):
    """A change of the code, from one digest to another, and the systems whose programs it cannot have touched."""

    before: str
    now: str
    untouched: Collection[str]


# Since then draws that lean, and programs that are borrowed, have columns that LLVM splits well: neither random draws nor TVM's search
# know of that.  What these systems found before is not measured again.
LATEST = Change("f165106cf5ccb6080195c62329b7e4de", "c6055c95cefe7a580195c62329b7e4de", (RANDOM, *STOCKS))


@dataclass(frozen=True)
class Unit:
    """``trials`` None: 16 for each task.  Units of one ``group`` are run side by side, unless their network only lends (``lends``)."""

    network: str
    system: str
    seed: int
    trials: int | None = None
    lends: bool = False

    @property
    def group(self) -> str:
        return f"{self.network}, seed {self.seed}" + (f", {self.trials} programs" if self.trials else "")

    @property
    def place(self) -> Path:
        """Path of its database in a part's folder."""
        name = "-".join(self.system.lower().replace(",", "").split())
        return Path(Path(self.network).stem, f"{name}-{self.seed}{f'-{self.trials}' if self.trials else ''}")


def units_of(part: str, training: Sequence[str]) -> list[Unit]:
    """Units of a part."""
    if part in NETWORKS:
        return [Unit(part, system, seed) for seed in range(SEEDS) for system in PLAIN]
    if part == "stock":
        return [Unit(network, system, 0) for system in STOCKS for network in NETWORKS]
    if part == "donors":
        donors = [Unit(network, OURS, 0, lends=True) for network in training]
        return donors + [Unit(network, system, seed) for seed in range(SEEDS) for network in NETWORKS for system in DONATED]
    if part == "registers":
        return [Unit(network, system, seed) for seed in range(SEEDS) for network in NETWORKS for system in REGISTERS]
    if part == "world":
        return [Unit(network, WORLD, seed) for seed in range(SEEDS) for network in NETWORKS]
    if part == "warm":
        return [Unit(network, WARM, seed) for seed in range(SEEDS) for network in NETWORKS]
    if part == "factors":
        return [Unit(network, system, seed) for seed in range(SEEDS) for network, systems in FACTORS.items() for system in systems]
    return [Unit(network, OURS, 0, LONG) for network in NETWORKS]


def wanted(parts: Sequence[str], training: Sequence[str]) -> list[Unit]:
    """Units of these parts, the first seed of each before the second of any, for a table of one seed is of use already."""
    return sorted((unit for part in parts for unit in units_of(part, training)), key=lambda unit: unit.seed)


def chosen(units: Sequence[Unit], networks: Collection[str], systems: Collection[str]) -> list[Unit]:
    """Units of the named networks and systems, or of all if none are named; donors stay, for others need them."""
    of = lambda name, named: not named or name in named  # noqa: E731
    return [unit for unit in units if unit.lends or (of(unit.network, networks) and of(unit.system, systems))]


def rivals_of(units: Sequence[Unit]) -> set[str]:
    """The models that these units need beside the champion."""
    return {rival for unit in units if (rival := SYSTEMS[unit.system].rival)}


PARTS = (*NETWORKS, "registers", "warm", "long", "stock", "world", "factors", "donors")
QUICK = [Unit("bert-tiny", system, 0, 32) for system in (OURS, RANDOM, SCRATCH, STOCK)]


@dataclass(frozen=True)
class Machine:
    """What all units share.  ``lenders`` are networks whose programs are lent; ``evolution`` is as in ``Given``."""

    setup: Setup
    hardware: Sequence[float]
    champion: CostModel
    rivals: Mapping[str, CostModel]
    lenders: Sequence[str]
    evolution: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = ROUNDS


class Bench:
    """The units done so far, in the results file; their databases are below ``TUNED``, those of each part in a folder of their own."""

    def __init__(
        self, machine: Machine, here: str, choices: Mapping[str, Any], about: Mapping[str, Any], name: str, command: str, force: bool
    ) -> None:
        """``here`` names machine, champion and ``choices``, those of the graph and of the search; ``about`` must be the same for all of
        the results file ``name``, or DataError is raised.
        """
        self.machine, self.about, self.name, self.command = machine, dict(about), name, command
        file = result_file(f"{name}.json")
        found = json.loads(file.read_text()) if file.exists() and not force else {}
        if found and (other := [key for key, value in self.about.items() if found.get(key) != value]):
            raise DataError(f"{file} has results of another {', '.join(other)}; give --force to begin anew, or move the file away")
        self.parts: dict[str, Part] = found.get("parts", {})
        mine = self.parts.setdefault(here, {**choices, "units": {}, "compared": {}})
        self.units, self.compared = mine["units"], mine["compared"]
        beside = result_file("tuned")  # the smallest form leaves nothing here
        self._tuned = TUNED if beside.is_relative_to(ROOT) else beside
        self.folder = self._folder_of(here)
        if not self.units and choices.get("code", {}).get("digest") == LATEST.now:
            self._take_over(here)

    def _folder_of(self, here: str) -> Path:
        return self._tuned / hashlib.sha256(here.encode()).hexdigest()[:12]

    def _take_over(self, here: str) -> None:
        """Begin with the units that the ``LATEST`` change cannot have touched, as far as what they found is still there."""
        named = lambda part: part.rpartition(", code ")[0]  # noqa: E731
        for earlier, part in self.parts.items():
            if part.get("code", {}).get("digest") == LATEST.before and named(earlier) == named(here):
                for unit in wanted(PARTS, self.machine.lenders):
                    found = self._folder_of(earlier) / unit.place
                    if unit.system in LATEST.untouched and _name(unit) in part["units"] and found.exists():
                        shutil.copytree(found, self.folder / unit.place, dirs_exist_ok=True)
                        self.units[_name(unit)] = part["units"][_name(unit)]

    def run(self, units: Sequence[Unit], until: float) -> None:
        """Run the missing units until the time is over, and compare each group when its units are done."""
        todo, compared = [unit for unit in units if _name(unit) not in self.units], set[str]()
        with progress("tuning networks", len(todo)) as shown:
            for place, unit in enumerate(todo):
                if time.monotonic() > until:
                    print(f"{len(todo) - place} units are left; rerun the same command for them")
                    break
                self._unit(unit)
                shown.advance(_name(unit))
                if not unit.lends and unit.group not in {later.group for later in todo[place + 1 :]}:
                    self._compare(unit)
                    compared.add(unit.group)
        for unit in units:  # of groups that an earlier run left unfinished, or in which something was missing
            if unit.group not in compared and _name(unit) in self.units and not self._is_compared(unit):
                self._compare(unit)
                compared.add(unit.group)

    def _unit(self, unit: Unit) -> None:
        fused = self._fused(unit)
        tunables = tunables_of(fused, self.machine.setup.target)
        trials = unit.trials or min(MOST, PER_TASK * len(tunables))
        machine, donors = self.machine, self._donors(unit)
        began = time.monotonic()
        spent = SYSTEMS[unit.system].tune(
            Given(fused, machine.setup, machine.hardware, machine.champion, machine.rivals, donors, trials, unit.seed, machine.evolution)
        )
        _keep(spent, self.folder / unit.place)
        self.units[_name(unit)] = {
            "tasks": len(tunables), "trials": trials, "seconds": time.monotonic() - began, "failed": spent.failed, "curve": spent.curve,
        }  # fmt: skip
        self.save()

    def _donors(self, unit: Unit) -> Donors | None:
        """The lenders' databases, for a system that uses them."""
        if unit.system not in DONATED:
            return None
        return Donors(
            [self.folder / Unit(network, OURS, 0, unit.trials).place for network in self.machine.lenders], self.machine.setup.target
        )

    def _fused(self, unit: Unit) -> Any:
        return _fused(unit.network, SYSTEMS[unit.system].graph, json.dumps(self.machine.setup.target))

    def _in_group(self, unit: Unit) -> list[Unit]:
        known = [Unit(unit.network, system, unit.seed, unit.trials) for system in SYSTEMS]
        return [each for each in known if _name(each) in self.units]

    def _is_compared(self, unit: Unit) -> bool:
        there = self.compared.get(unit.group, {}).get("systems_ms", {})
        return unit.lends or {each.system for each in self._in_group(unit)} <= set(there)

    def _compare(self, unit: Unit) -> None:
        """Build what each system of the group found, and run all side by side.

        A system whose library does not run, or computes something else, is recorded as missing with the reason; the next run tries it
        again.
        """
        target, protocol = make_target(self.machine.setup.target), self.machine.setup.protocol
        place, inputs = (protocol.threads, protocol.pin_threads), example_inputs(unit.network)
        with tempfile.TemporaryDirectory(prefix="tcl-compared-") as folder:
            libraries: dict[str, Path] = {}
            failed: dict[str, str] = {}
            for each in self._in_group(unit):
                applied, library = apply_database(self._fused(each), target, self._found(each)), Path(folder) / f"{each.system}.so"
                try:
                    export(applied, target, library)
                    with running(library, *place, inputs):
                        libraries[each.system] = library
                except PlatformError as error:
                    failed[each.system] = str(error)
            found = compare(unit.network, libraries, *place, self.machine.rounds, inputs)
        for system in list(libraries):
            if found.systems[system].difference > TOLERANCE:
                failed[system] = f"its output differs by {found.systems[system].difference:.1e} from the reference's"
                del libraries[system]
        self.compared[unit.group] = {"network": unit.network, "seed": unit.seed, "trials": unit.trials, **_row(found, libraries, failed)}
        self.save()

    def _found(self, unit: Unit) -> Any:
        """The database that a unit left.  Raises DataError where it is gone, or is of a network that was prepared otherwise, for which
        TVM's own schedules would be timed.
        """
        folder = self.folder / unit.place
        if not folder.exists():
            raise DataError(f"{folder}, what {_name(unit)} found, is gone; give --force to begin anew")
        found, known = open_database(folder), meta_schedule().database.MemoryDatabase()
        for each in meta_schedule().relax_integration.extract_tasks(self._fused(unit), make_target(self.machine.setup.target), {}):
            known.commit_workload(each.dispatched[0])  # MetaSchedule tunes tasks of a single reshape, too
        if any(not known.has_workload(record.workload.mod) for record in found.get_all_tuning_records()):
            raise DataError(f"{folder} has programs of tasks that {unit.network} no longer has; give --force to begin anew")
        return found

    def save(self) -> None:
        save(
            self.name,
            {**self.about, "summary": summary_of(*(list(part.values()) for part in by_age(self.parts))), "parts": self.parts},
            self.command,
        )


@cache
def _fused(network: str, graph: Graph, target: str) -> Any:
    """Import and fuse a network; cached, since importing a large one takes longer than a round of tuning it."""
    with quiet_compiler():
        return fuse(import_network(network).module, make_target(json.loads(target)), graph)


def _name(unit: Unit) -> str:
    return f"{unit.group}: {unit.system}"


def _keep(spent: Spent, folder: Path) -> None:
    """Save the winners as a database in the folder, replacing what was there."""
    for old in folder.glob("*.json"):
        old.unlink()
    database = open_database(folder)
    for record in spent.winners.get_all_tuning_records():
        database.commit_tuning_record(
            meta_schedule().database.TuningRecord(
                record.trace, database.commit_workload(record.workload.mod), record.run_secs, record.target, record.args_info
            )
        )


def _row(found: Latencies, libraries: Mapping[str, Path], failed: Mapping[str, str]) -> dict[str, Any]:
    """Typical milliseconds of each system (``tuning.latency.typical``), what did not run and why, and the rounds themselves."""
    return {
        "systems_ms": {system: found.ms(system) for system in libraries},
        **{f"{kind}_ms": found.ms(kind) for kind in PYTORCH},
        "missing": {**found.missing, **failed},
        "differences": {name: timed.difference for name, timed in found.systems.items()},
        "rounds_ms": {name: list(timed.rounds_ms) for name, timed in found.systems.items()},
    }


# --- what it needs ---


def machine_of(workspace: Workspace, rivals: Collection[str]) -> tuple[Machine, str, dict[str, Any], dict[str, Any]]:
    """The machine, with the last platform's champion and its rivals of these names; a name of machine, platform, champion and choices;
    the choices; and how results are timed, which all share.
    """
    params = workspace.params
    if unseen := [network for network in NETWORKS if network not in params.networks.held_out]:
        sys.exit(f"tune: {', '.join(unseen)} must be held out in params.yaml, so that the champion has not seen them; then make run")
    platform = workspace.platforms_that_ran()[-1]
    _, folder = registry.champion(platform)
    learned = {name: rival_of(workspace, platform, name) for name in sorted(rivals)}
    setup = setup_of(workspace, platform)
    machine = Machine(setup, read_saved_hardware(folder).vector(), catalogue.load(folder), learned, params.networks.train)
    choices = choices_of(params.graph) | {"code": {"digest": folder_identity("tuning") + code_identity([], ["_tuners"])}}
    named = ", ".join(f"{what} {hashlib.sha256(json.dumps(chosen).encode()).hexdigest()[:8]}" for what, chosen in choices.items())
    here = f"{host_fingerprint()}, {platform}, champion {read_description(folder)['weights_sha256'][:12]}, {named}"
    return machine, here, choices, {"protocol": asdict(setup.protocol)}


def rival_of(workspace: Workspace, platform: str, name: str) -> CostModel:
    """A trained rival of the champion; the lowered programs that it learns, or all states on the way to them, take minutes to make.

    It learns what the champion learned of the platform, without measurements from tuning networks here (``train.tuned``) and without
    the held-out networks' tasks.  It is kept below data/bench, so that further runs load the same one.
    """
    sets = [each for each in learned_sets() if platform in each.platforms]
    held_out = {row["task_key"] for row in workspace.networks if row["split"] == "held_out"}
    digests = [store.data_digest(folder) for folder in (*(each.folder for each in sets), workspace.records_folder(platform))]
    kept = ROOT / "data" / "bench" / "rivals" / f"{name}-{identity(name, str(digests), sorted(held_out))}"
    if kept.exists():
        return catalogue.load(kept)
    own = workspace.samples_for(name, platform)
    own = workspace.with_states(own, platform) if reads_of(name) == "states" else own
    shipped = [_without(each.case(platform, reads_of(name)).train, each, held_out) for each in sets]
    samples = apart([own, *shipped], [len(workspace.tasks), *(len(each.encoder.numbers) for each in sets)])
    print(f"{name} learns {len(own)} programs of this project and {len(samples) - len(own)} that come with TCL", flush=True)
    model = catalogue.create(name).fit(samples)
    model.save(kept)
    return model


def _without(samples: Samples, of: Reference, keys: Collection[str]) -> Samples:
    """Samples of a data set without the tasks of these keys."""
    return samples.take(~np.isin(samples.tasks, [of.encoder.numbers[key] for key in keys if key in of.encoder.numbers]))


def choices_of(graph: Graph) -> dict[str, dict[str, Any]]:
    """How the graph is prepared, and how TCL searches."""
    return {"graph": asdict(graph), "search": {name: value for name, value in asdict(SearchSettings()).items() if name != "seed"}}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="one network, four systems, 32 programs")
    parser.add_argument("--part", action="append", choices=PARTS, help="only this one; several: give it again")
    parser.add_argument("--network", action="append", choices=NETWORKS, default=[], help="only this one; several: give it again")
    parser.add_argument("--system", action="append", choices=SYSTEMS, default=[], help="only this one; several: give it again")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no unit after that")
    parser.add_argument("--force", action="store_true", help="forget what is in the results file")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    try:
        if given.smallest:
            run_smallest()
            return
        workspace = Workspace()
        units = QUICK if given.quick else wanted(given.part or PARTS, workspace.params.networks.train)
        if not (units := chosen(units, given.network, given.system)):
            sys.exit("tune: no part that is asked for has such a system on such a network; leave out --system or --network")
        machine, here, choices, about = machine_of(workspace, rivals_of(units))
        bench = Bench(machine, here, choices, about, "tune", COMMAND + " --quick" * given.quick, given.force)
        with measuring_alone():
            bench.run(units, until)
    except TclError as error:
        sys.exit(f"tune: {error}")
    show()


def run_smallest() -> None:
    """Run each kind of system once, on a network of one convolution, but none with MetaSchedule's builder, which takes minutes."""
    import _smallest

    reference, workspace = _smallest.reference(), Workspace()
    platform = [name for name in reference.platforms if why_not(workspace.params.platforms[name].mcpu) is None][-1]
    network = _smallest.network()
    systems = (RANDOM, SCRATCH, "TenSet MLP, our engine", WORLD, *DONATED, "random, graph as given")
    models = {}
    for name in ("trees", *rivals_of([Unit(network, system, 0) for system in systems])):
        models[name] = catalogue.create(name, catalogue.own_settings(name))
        models[name].fit(reference.case(platform, reads_of(name)).train)
    fast = Protocol(repeats=1, max_repeats=1, min_repeat_ms=0.1, max_number=1, threads=1)
    setup = replace(setup_of(workspace, platform), protocol=fast)
    donor = Unit(network, OURS, 0, 4, lends=True)
    hardware = read_saved_hardware(reference.folder / f"platform={platform}").vector()
    evolution = {"population_size": 16, "init_min_unmeasured": 8, "genetic_num_iters": 1}
    machine = Machine(setup, hardware, models["trees"], models, [network], evolution, rounds=1)
    bench = Bench(machine, f"{host_fingerprint()}, {platform}", choices_of(PREPARED), {}, "tune", f"{COMMAND} --smallest", force=True)
    bench.run([donor, *(Unit(network, system, 0, 4) for system in systems)], math.inf)
    show()


if __name__ == "__main__":
    main()

"""How long many platforms, devices and records would take: extrapolated from measured rates, not run.

    python bench/scale.py [--quick] [--core-price X] [--device-price X]

Every rate is read from bench/results/*.json (``Rates.measured`` says which), the rounds and epochs from params.yaml.  With them the
schedule of the current code is simulated: a coordinating machine collects one platform after another (it has one lock), with as many
workers as cores, but at most four for each device; measuring stops while models are refitted and programs chosen; one machine learns
the chain, one platform after another, each as soon as its records are there.

As a check, the same arithmetic for collections by the machine that gave the rates stands beside the times they took
(bench/results/pipeline.json).  Refitting and choosing count at the network's rate, even where trees do it.  Left out, because
unmeasured, are the network between a coordinator and its devices, the sampler's own time, and the memory, which is given in bytes.
--quick: the reference data's first hundred records stand for a journal's line.  Prices are for an hour of a core and of a device, in
any currency; they are the user's assumptions.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from _tables import RESULTS, ROOT, Quick, arguments, into_document, markdown, save

from tcl_core import store
from tcl_core.chain.bridge import FEW
from tcl_core.features.layout import WIDTH
from tcl_core.journal import line_of
from tcl_core.measure.runner import WORKERS_PER_DEVICE
from tcl_core.params import Params, load_params
from tcl_core.sampler_names import LEARNED_ELSEWHERE

COMMAND = "python bench/scale.py"
SYSTEM, LENGTH = "TCL, early stop", "48"  # what `tcl collect` does; tokens of the longest programs
RECORDS = 1_000  # whose mean stands for a journal's line
HOUR = 3600.0
PARTS = ("measure", "refit", "choose", "write", "learn the chain")


@dataclass(frozen=True)
class Rates:
    """The measured rates.

    build_core_s  core seconds to build a program;  device_s: device seconds to time it, and for all else that is not building
    start_s       seconds to start the workers
    learned_per_s, scored_per_s  programs that one machine of the measured kind trains on, and ranks, with ``cores`` threads
    """

    cores: int
    build_core_s: float
    device_s: float
    start_s: float
    learned_per_s: float
    scored_per_s: float
    encoded_per_s: float
    written_per_s: float
    record_bytes: float
    line_bytes: float

    @classmethod
    def measured(cls, records: int = RECORDS, results: Path = RESULTS) -> Rates:
        collected, stored, speed = (json.loads((results / f"{name}.json").read_text()) for name in ("collect", "store", "model_speed"))
        by_batch = collected["figures"]["rates"]
        largest, model = max(by_batch, key=int), speed["programs_per_s"][LENGTH]["mamba"]
        builds_s, building = 1 / by_batch[largest][SYSTEM]["builds_alone"], collected["figures"]["shares"][largest][SYSTEM]["build"]
        cores = int(re.search(r" x(\d+) ", collected["host"])[1])
        return cls(
            cores=cores,
            build_core_s=cores * builds_s,
            device_s=builds_s * (1 / building - 1),
            start_s=by_batch[largest][SYSTEM]["start_s"],
            learned_per_s=model["train"],
            scored_per_s=model["infer"],
            encoded_per_s=stored["figures"]["encoded_programs_per_s"],
            written_per_s=stored["figures"]["write_records_per_s"],
            record_bytes=stored["figures"]["bytes_per_record"],
            line_bytes=line_bytes(records),
        )


def line_bytes(records: int) -> float:
    """Bytes of a journal's line: the mean over the first ``records`` of the reference data."""
    some = list(islice(store.read_records(ROOT / "data" / "reference" / "platform=host-avx512"), records))
    return sum(len(line_of(vars(record))) for record in some) / len(some)


@dataclass(frozen=True)
class Fleet:
    """``devices`` of each platform; ``records`` of all platforms; ``coordinators`` of ``cores`` each.

    overlap  programs are built while others are timed: on devices, not on this machine's own CPU
    """

    platforms: int
    devices: int
    records: float
    cores: int
    coordinators: int = 1
    overlap: bool = True


@dataclass(frozen=True)
class Played:
    """Seconds until the last record and the last model; core seconds of coordinators and the chain's machine; device seconds."""

    collected_s: float
    ended_s: float
    core_s: float
    device_s: float
    parts_s: dict[str, float]


def shares(params: Params, platforms: int) -> list[float]:
    """Share of the pool that each platform measures: the chain's first measures more than the others."""
    return [params.collect.first_fraction, *[params.collect.fraction] * (platforms - 1)]


def collection_s(rates: Rates, params: Params, fleet: Fleet, pool: float, share: float, before: float = 0.0) -> dict[str, float]:
    """Seconds of a platform's collection by part: measure, refit, choose, write.

    ``before`` is the share that the platform before measured, 0 for the first: a sampler that learns from it fits once and chooses once.
    """
    settings, budget = params.collect, share * pool
    workers = min(fleet.cores, WORKERS_PER_DEVICE * fleet.devices) if fleet.overlap else fleet.cores
    build_s, device_s = rates.build_core_s / workers, rates.device_s / fleet.devices
    per_program = max(build_s, device_s) if fleet.overlap else build_s + device_s
    initial = settings.initial_share * budget
    known = [initial + (budget - initial) * number / settings.rounds for number in range(settings.rounds)]
    if before and settings.sampler in LEARNED_ELSEWHERE:
        known = [before * pool]
    return {
        "measure": rates.start_s + budget * per_program,
        "refit": settings.ensemble * settings.epochs * sum(known) / rates.learned_per_s,
        "choose": len(known) * settings.ensemble * pool / rates.scored_per_s,
        "write": budget / rates.written_per_s,
    }


def learning_s(rates: Rates, params: Params, records: float, others: float, first: bool) -> float:
    """Seconds of the chain's machine to learn a platform's model.

    The first platform's takes ``train.epochs`` over its records; so does the network with which a later one's is compared.  A later one's
    own epochs also go over ``others``, which only the platform before measured, and over rehearsed programs, and are up to twice as many
    as teachers say nearly all (``bridge.passes``).

    Assumes that ``train.steps``, which bounds the first platform's, is raised with the records.  Leaves out the teachers and the unmeasured
    programs, whose number per task is fixed.
    """
    seen = params.train.epochs * records
    if not first:
        passes = params.bridge.epochs * (1 + max(0.0, 1 - FEW / records)) * (1 + params.bridge.rehearsal)
        seen += passes * (records + others)
    return (records + others) / rates.encoded_per_s + seen / rates.learned_per_s


def play(rates: Rates, params: Params, fleet: Fleet) -> Played:
    """Simulate the schedule: a platform takes the coordinator that is free first; a model waits for its records and the one before."""
    pool = fleet.records / sum(shares(params, fleet.platforms))
    free, learned_at, collected_at = [0.0] * fleet.coordinators, 0.0, []
    parts = dict.fromkeys(PARTS, 0.0)
    before = 0.0
    for share in shares(params, fleet.platforms):
        spent = collection_s(rates, params, fleet, pool, share, before)
        collected_at.append(heapq.heappop(free) + sum(spent.values()))
        heapq.heappush(free, collected_at[-1])
        learning = learning_s(rates, params, share * pool, before * (1 - share) * pool, first=not before)
        before = share
        learned_at = max(learned_at, collected_at[-1]) + learning
        for part, seconds in {**spent, "learn the chain": learning}.items():
            parts[part] += seconds
    busy = sum(parts.values()) - parts["learn the chain"]
    core_s = busy * fleet.cores + parts["learn the chain"] * rates.cores
    return Played(max(collected_at), learned_at, core_s, parts["measure"] * fleet.devices, parts)


def added(rates: Rates, params: Params, fleet: Fleet) -> tuple[float, float, float]:
    """Additional hours for one more platform with the same pool: until the last model, of cores, of devices."""
    per_share = fleet.records / sum(shares(params, fleet.platforms))
    more = replace(fleet, platforms=fleet.platforms + 1, records=per_share * sum(shares(params, fleet.platforms + 1)))
    before, after = play(rates, params, fleet), play(rates, params, more)
    return tuple((getattr(after, name) - getattr(before, name)) / HOUR for name in ("ended_s", "core_s", "device_s"))


# --- tables ---

FLEETS = (
    Fleet(3, 1, 1_000, 2, overlap=False),
    Fleet(10, 1, 100_000, 2),
    Fleet(10, 10, 1_000_000, 2),
    Fleet(10, 10, 1_000_000, 40),
    Fleet(10, 10, 100_000_000, 2),
    Fleet(10, 10, 100_000_000, 40),
    Fleet(10, 10, 100_000_000, 40, coordinators=10),
)


def told(rates: Rates, params: Params, fleet: Fleet, prices: tuple[float, float]) -> dict[str, Any]:
    """A fleet's figures: hours, bytes, money."""
    played, (hours, core_h, device_h) = play(rates, params, fleet), added(rates, params, fleet)
    pool = fleet.records / sum(shares(params, fleet.platforms))
    most = max(shares(params, fleet.platforms)) * pool
    token_bytes = int(LENGTH) * WIDTH * 4
    return {
        "fleet": asdict(fleet),
        "collected_h": played.collected_s / HOUR,
        "ended_h": played.ended_s / HOUR,
        "core_h": played.core_s / HOUR,
        "device_h": played.device_s / HOUR,
        "parts_h": {part: seconds / HOUR for part, seconds in played.parts_s.items()},
        "parquet_gb": fleet.records * rates.record_bytes / 1e9,
        "journal_gb": fleet.records * rates.line_bytes / 1e9,
        "pool_tokens_gb": pool * token_bytes / 1e9,
        "training_tokens_gb": most * token_bytes / 1e9,
        "added": {"hours": hours, "core_h": core_h, "device_h": device_h, "price": core_h * prices[0] + device_h * prices[1]},
    }


def hours_table(found: list[dict[str, Any]]) -> str:
    """A row for each fleet; a part's cell is its share of the sum of all parts' hours, though some run side by side."""
    header = [
        "platforms",
        "devices each",
        "records",
        "coordinators x cores",
        "all measured",
        "all learned",
        *PARTS,
        "core-hours",
        "device-hours",
    ]
    return markdown(header, [
        [
            one["fleet"]["platforms"], one["fleet"]["devices"] if one["fleet"]["overlap"] else "this CPU", f"{one['fleet']['records']:,.0f}",
            f"{one['fleet']['coordinators']} x {one['fleet']['cores']}", _hours(one["collected_h"]), _hours(one["ended_h"]),
            *(f"{one['parts_h'][part] / sum(one['parts_h'].values()):.0%}" for part in PARTS),
            f"{one['core_h']:,.1f}", f"{one['device_h']:,.1f}",
        ]
        for one in found
    ])  # fmt: skip


def bytes_table(found: list[dict[str, Any]]) -> str:
    header = ["records", "platforms", "Parquet", "journal", "tokens of the pool", "tokens of the first's records",
              "a platform more", "core-hours", "device-hours", "price"]  # fmt: skip
    rows = {}  # the last of the fleets with the same records
    for one in found:
        more, fleet = one["added"], one["fleet"]
        sizes = [_gigabytes(one[name]) for name in ("parquet_gb", "journal_gb", "pool_tokens_gb", "training_tokens_gb")]
        price = f"{more['price']:,.2f}"
        rows[fleet["records"]] = [
            f"{fleet['records']:,.0f}", fleet["platforms"], *sizes,
            _hours(more["hours"]), f"{more['core_h']:,.1f}", f"{more['device_h']:,.1f}", price,
        ]  # fmt: skip
    return markdown(header, list(rows.values()))


def compared(rates: Rates, params: Params, results: Path = RESULTS) -> Iterator[tuple[str, int, float, float]]:
    """Yield platform, programs, measured and simulated seconds of collections by the machine of ``rates``, which builds for itself.

    Yields nothing if that machine has run no pipeline: another one's times say nothing about these rates.
    """
    machine = json.loads((results / "collect.json").read_text())["host"]
    took = json.loads((results / "pipeline.json").read_text())["collected_s"].get(machine, {})
    pool = params.candidates.max_train_tasks * params.candidates.programs_per_task
    there = shares(params, len(took))
    for (platform, seconds), share, before in zip(took.items(), there, [0.0, *there], strict=False):
        played = sum(collection_s(rates, params, Fleet(1, 1, 0, rates.cores, overlap=False), pool, share, before).values())
        yield platform, round(share * pool), seconds, played


def compared_table(found: list[tuple[str, int, float, float]]) -> str:
    header = ["collection by the machine that gave the rates", "programs", "took", "played", "played / took"]
    return markdown(header, [[name, n, f"{s:.0f} s", f"{played:.0f} s", f"{played / s:.2f}"] for name, n, s, played in found])


def rates_table(rates: Rates) -> str:
    rows = [
        ("a program is built in", f"{rates.build_core_s:.3f} s of a core", "collect"),
        ("it is timed in", f"{rates.device_s:.3f} s of a device", "collect"),
        ("workers start in", f"{rates.start_s:.1f} s", "collect"),
        ("a model learns", f"{rates.learned_per_s:,.0f} programs/s", "model_speed"),
        ("a model ranks", f"{rates.scored_per_s:,.0f} programs/s", "model_speed"),
        ("records become tokens", f"{rates.encoded_per_s:,.0f} programs/s", "store"),
        ("records are written", f"{rates.written_per_s:,.0f} records/s", "store"),
        ("a record in Parquet", f"{rates.record_bytes:.0f} bytes", "store"),
        ("a record in the journal", f"{rates.line_bytes:.0f} bytes", "scale"),
    ]
    commands = {name: json.loads((RESULTS / f"{name}.json").read_text())["command"] for name in ("collect", "model_speed", "store")}
    return markdown(["what", "rate", "measured by"], [[what, rate, f"`{commands.get(name, COMMAND)}`"] for what, rate, name in rows])


def _hours(hours: float) -> str:
    return f"{hours * 60:.0f} min" if hours < 2 else f"{hours:,.0f} h" if hours < 96 else f"{hours / 24:,.0f} days"


def _gigabytes(size: float) -> str:
    return f"{size * 1e3:,.1f} MB" if size < 1 else f"{size:,.1f} GB" if size < 1_000 else f"{size / 1e3:,.1f} TB"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="a hundred records for a journal's line; no document is written")
    parser.add_argument("--core-price", type=float, default=1.0, help="of a core for an hour")
    parser.add_argument("--device-price", type=float, default=1.0, help="of a device for an hour")
    given = parser.parse_args()
    rates, params = Rates.measured(100 if given.quick or given.smallest else RECORDS), load_params(ROOT / "params.yaml")
    prices = given.core_price, given.device_price
    found = [told(rates, params, fleet, prices) for fleet in (FLEETS[:2] if given.smallest else FLEETS)]
    checked = list(compared(rates, params))
    text = "\n\n".join([rates_table(rates), compared_table(checked), hours_table(found), bytes_table(found)])
    print(text)
    save("scale", {"rates": asdict(rates), "prices": prices, "compared": checked, "fleets": found}, COMMAND)
    if not given.quick:
        into_document("scale", text)


if __name__ == "__main__":
    main()

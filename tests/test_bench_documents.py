"""A table in a document is that of the published results: whoever changes one alone is told."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ablations
import blocks
import collect
import costly
import faults
import gate
import layouts
import model_speed
import more_tasks
import near
import networks
import pipeline
import pools
import pytest
import repeats
import samplers
import scale_out
import search
import transfer
import worker_memory
from _pool_rows import table as pool_rows
from _tuning_tables import by_age, by_seeds, table as tuned, table_at_checkpoints, table_of_systems

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = runpy.run_path(str(ROOT / "bench" / "shipped.py"))  # a module of the tests has that name
Found = dict[str, Any]
# Marker in a document -> its results, and the table that they make.
SHOWN: dict[str, tuple[str, Callable[[Found], str]]] = {
    "tune": ("tune", lambda found: tuned(by_seeds(by_age(found["parts"])[0])[0])),
    "tune-machines": ("tune", lambda found: tuned(by_seeds(by_age(found["parts"])[0])[1])),
    "tune-systems": ("tune", lambda found: table_of_systems(found["summary"])),
    "tune-checkpoints": ("tune", lambda found: table_at_checkpoints(next(iter(by_seeds(by_age(found["parts"])[0])[0].values())))),
    "near": ("near", lambda found: near.table(found["summary"])),
    "repeats": ("repeats", lambda found: repeats.table(found["summary"])),
    "pools": ("pools", lambda found: pool_rows(found["summary"], first=pools.UNIFORM, said="learned", of=" programs")),
    "more_tasks": ("more_tasks", lambda found: pool_rows(found["summary"], first=more_tasks.DRAWN, said="learned", of=" programs")),
    "costly": ("costly", lambda found: pool_rows(found["summary"], first=costly.ALL, said="costly programs learned")),
    "shipped": ("shipped", lambda found: SHIPPED["table"](found["summary"])),
    "samplers": ("samplers", lambda found: samplers.table({pool: of for pool, of in found["summary"].items() if pool in samplers.POOLS})),
    "gate": ("gate", lambda found: gate.table(found["summary"])),
    "blocks": ("blocks", lambda found: blocks.table(found["summary"])),
    "search": ("search", lambda found: f"{search.table(found)}\n\n{search.told(found['summary'])}\n\n{search.table_after(found)}"),
    "networks": ("networks", lambda found: networks.table(found["rows"])),
    "layouts": ("layouts", lambda found: layouts.table(found["units"])),
    "collect": ("collect", lambda found: collect.tables(found["figures"])),
    "transfer": ("transfer", lambda found: transfer.tables(found["summary"])),
    "transfer_beside_plain": ("transfer", lambda found: transfer.beside_table(found["beside_plain"], "160")),
    "transfer_machines": ("transfer_machines", lambda found: transfer.tables(found["summary"])),
    "transfer_machines_beside_plain": ("transfer_machines", lambda found: transfer.beside_table(found["beside_plain"], "160")),
    "transfer_plain": ("transfer_plain", lambda found: transfer.tables(found["summary"])),
    "transfer_machines_plain": ("transfer_machines_plain", lambda found: transfer.tables(found["summary"])),
    "model_speed": ("model_speed", lambda found: model_speed.table(found["programs_per_s"])),
    "cold_start": ("model_speed", lambda found: model_speed.cold_table(found["cold_start_s"])),
    "ablations": ("ablations", lambda found: ablations.table(found["runs"])),
    "scale_out": ("scale_out", lambda found: scale_out.table(found["figures"])),
    "worker_memory": ("worker_memory", lambda found: worker_memory.table(found["figures"])),
    "pipeline": ("pipeline", lambda found: pipeline.table(found["summary"])),
    "faults-parts": ("faults", lambda found: faults.table_of(found["parts"])),
}


@pytest.fixture(scope="module")
def documents() -> str:
    return "\n".join(path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))))


@pytest.mark.parametrize("path", sorted((ROOT / "bench" / "results").glob("*.json")), ids=lambda path: path.stem)
def test_published_results_are_json_to_any_reader(path):
    """Python alone reads NaN and Infinity."""
    json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{path.name} has {name}"))


@pytest.mark.parametrize("name", SHOWN)
def test_a_table_is_of_the_published_results(name, documents):
    results, table = SHOWN[name]
    found = json.loads((ROOT / "bench" / "results" / f"{results}.json").read_text())
    (shown,) = re.findall(f"<!-- {re.escape(name)} -->\n(.*?)\n<!-- /{re.escape(name)} -->", documents, re.DOTALL)
    assert shown.startswith(made := table(found))
    rows = lambda text: sum(line.startswith("|") for line in text.splitlines())  # noqa: E731
    assert rows(shown) == rows(made) > 2 * made.count("| --- |\n")  # beyond heads

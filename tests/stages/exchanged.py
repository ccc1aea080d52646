"""A project's folder to import logs into and to export measured programs from."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tcl_core import store
from tcl_core.records import Record
from tcl_core.stages import exchange
from tcl_core.stages.workspace import Workspace
from tests.programs.log_lines import autotvm_line, write
from tests.shipped import SHIPPED

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Workspace().imported_folder("p")
TARGET = {"kind": "llvm", "mcpu": "haswell", "num-cores": 1}


def import_logs(paths: Sequence[Path], platform: str, wanted: str = "") -> str:
    return "\n".join(map(str, exchange.import_logs(Workspace(), paths, platform, wanted)))


def imported_batches(platform: str, *given, **named):
    return exchange.imported_batches(Workspace(), platform, *given, **named)


@pytest.fixture
def here(monkeypatch, tmp_path):
    """A project's folder of one's own."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    shutil.copy(SHIPPED, "params.yaml")
    return work


def line(number: int, tile: int = 8, **changes):
    return autotvm_line([["tile_ic", "sp", [-1, tile]]], ([0.1 + number], 0, 1, 1000.0 + number), **changes)


def log(name: str, *lines) -> Path:
    path = Path("logs") / name
    path.parent.mkdir(exist_ok=True)
    return write(path, *lines)


def digest() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(FOLDER.rglob("*")) if path.is_file()}


def programs(platform: str = "p", files=None) -> list[tuple[int, str]]:
    """(line, host) of every record."""
    folder = Workspace().imported_folder(platform) / "records"
    return [
        (int(number), block["host"].names[code])
        for block in store.iter_columns(folder, files=files)
        for number, code in zip(block["program_id"], block["host"].codes, strict=True)
    ]


def measured(tiny, rng, target, platform="host-avx2", **changes) -> list[Record]:
    """Two programs of each sketch as if they had been measured."""
    protocol = json.dumps({"repeats": 2, "target": target})
    found = []
    for sketch in tiny.sketches:
        for row in tiny.sample(sketch, 2):
            decisions = tuple(int(d) for d in tiny.space.canonical(sketch, row))
            values = dict(
                task_key=tiny.task.key, sketch_id=sketch.index, program_id=len(found), decisions=decisions,
                latencies_s=tuple(rng.uniform(0.1, 1, 2).astype(np.float32).tolist()), error="ok", message="", round=0,
                measured_at=datetime(2026, 1, 1, tzinfo=UTC), protocol=protocol, host="cpu-1", tvm_version="0.27",
            )  # fmt: skip
            found.append(Record(**values | changes))
    return found


def write_pool(split: str, *tiny) -> None:
    store.write_table(Workspace().task_tables / "tasks.parquet", "tasks", [t.task.as_row() for t in tiny])
    store.write_table(Workspace().pool / split / "sketches.parquet", "sketches", [row for t in tiny for row in t.rows()])

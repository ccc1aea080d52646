"""What the shape of a block in registers costs.

    python bench/blocks.py [--quick]

The measured programs of data/registers with one tiled nest whose sums fill the registers are grouped by whether the block's columns are
a power of two of whole vectors, which is the rule of ``programs.registers``, and whether its rows are a power of two.  The figure is how
much longer a program takes than the median program of its task with such columns (of three or more): the mean logarithm over a task's
programs, then over tasks, as a factor, with its 95 % interval over draws of the tasks.  Only training networks count, because the rule
was derived from this.  --quick, --smallest: the same, for it takes half a minute.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

from _tables import ROOT, Quick, arguments, into_document, markdown, save

import numpy as np
from _paired import against

from tcl_core import store
from tcl_core.compat import load_tvm
from tcl_core.errors import TclError
from tcl_core.programs.registers import Block, blocks_of, fill, is_power_of_two, shape
from tcl_core.programs.sketches import read_sketch, trace_from_json

COMMAND = "python bench/blocks.py"
BOTH, COLUMNS, OTHERS = KINDS = ("columns a power of two, rows too", "columns a power of two, rows not", "other columns")
COMPARED = 3


class Program(NamedTuple):
    """``kind`` is one of ``KINDS``, ``latency`` the logarithm of the seconds."""

    kind: str
    latency: float


class Pool:
    """The training networks' programs of a data set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        trained = {use["task_key"] for use in store.read_table(folder / "networks.parquet", "networks") if use["split"] == "train"}
        tasks = {row["task_key"]: row["module_json"] for row in store.read_table(folder / "tasks.parquet", "tasks")}
        modules = {key: load_tvm().ir.load_json(tasks[key]) for key in sorted(trained)}
        self._blocks: dict[tuple[str, int], list[Block]] = {}
        for row in store.read_table(folder / "sketches.parquet", "sketches"):
            if module := modules.get(row["task_key"]):
                sketch = read_sketch(row["task_key"], row["sketch_id"], trace_from_json(row["trace_json"], module))
                self._blocks[row["task_key"], row["sketch_id"]] = blocks_of(sketch)

    def platforms(self) -> list[str]:
        return sorted(place.name.partition("=")[2] for place in self.folder.glob("platform=*"))

    def programs(self, platform: str) -> dict[str, list[Program]]:
        """Task -> its programs whose sums fill the registers."""
        place = self.folder / f"platform={platform}"
        simd_bytes = int(json.loads((place / "hardware.json").read_text())["simd_bytes"])
        found: dict[str, list[Program]] = defaultdict(list)
        for record in store.read_records(place):
            blocks = self._blocks.get((record.task_key, record.sketch_id), [])
            if len(blocks) == 1 and record.latencies_s:
                rows, vectors = shape(blocks[0], np.array([record.decisions]), simd_bytes)
                if fill(rows * vectors, simd_bytes).all():
                    kind = OTHERS if not is_power_of_two(vectors)[0] else BOTH if is_power_of_two(rows)[0] else COLUMNS
                    found[record.task_key].append(Program(kind, float(np.log(record.latency_s))))
        return found


def factors(tasks: dict[str, list[Program]]) -> dict[str, dict[str, Any]]:
    """Kind -> numbers of programs and tasks, and the factor as [mean, low, high]."""
    found = {}
    for kind in KINDS:
        longer, programs = [], 0
        for of_task in tasks.values():
            base = [program.latency for program in of_task if program.kind != OTHERS]
            mine = [program.latency for program in of_task if program.kind == kind]
            if len(base) >= COMPARED and mine:
                longer.append(float(np.mean(mine)) - float(np.median(base)))
                programs += len(mine)
        factor = [None if x is None else float(np.exp(x)) for x in against(np.array(longer), np.zeros(len(longer)))] if longer else []
        found[kind] = {"programs": programs, "tasks": len(longer), "factor": factor}
    return found


def table(found: dict[str, dict[str, dict[str, Any]]]) -> str:
    def cell(row: dict[str, Any]) -> str:
        if not row["programs"]:
            return ""
        mean, low, high = row["factor"]
        return f"{mean:.2f}" + (f" ({low:.2f} to {high:.2f})" if low else "") + f"; {row['programs']} in {row['tasks']} tasks"

    return markdown(["the block", *found], [[kind, *(cell(rows[kind]) for rows in found.values())] for kind in KINDS])


def run(given: Any) -> None:
    pool = Pool(ROOT / "data" / "registers")
    found = {platform: factors(pool.programs(platform)) for platform in pool.platforms()}
    save("blocks", {"summary": found}, COMMAND + " --quick" * given.quick)
    text = table(found)
    into_document("blocks", text)
    print(text)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--quick", action=Quick, help="the same")
    try:
        run(parser.parse_args())
    except TclError as error:
        sys.exit(f"blocks: {error}")


if __name__ == "__main__":
    main()

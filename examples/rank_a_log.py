"""Rank the programs of a tuning log, best first, with a cost model: what to measure next, or what another tuner missed.

A log of AutoTVM or Ansor, gzip or plain, or the folder of a MetaSchedule database.  Here it is a log of AutoTVM for one product of
matrices, written below; a model that learned half of its tasks ranks the other half.
"""

import json
import tempfile
from pathlib import Path

import numpy as np

import tcl_core as tcl


def lines(tasks, programs=64):
    """Logs have a line for each program: the workload, the knobs, what was measured.  (These latencies are made up.)"""
    for task in tasks:
        workload = [["TENSOR", [64, 64 * task], "float32"], ["TENSOR", [256, 64 * task], "float32"], None, "float32"]
        for number in range(programs):
            y, x, k = 2 ** (number % 4), 2 ** (number // 4 % 4), 2 ** (number // 16)
            knobs = [["tile_y", "sp", [-1, y]], ["tile_x", "sp", [-1, x]], ["tile_k", "sp", [-1, k]]]
            seconds = 1e-3 * task * (1 + abs(np.log2(x) - 3)) * (1 + 0.3 * abs(np.log2(y) - 2)) / (1 + 0.1 * np.log2(k))
            entity = {"index": number, "code_hash": None, "entity": knobs}
            yield json.dumps(
                {"input": ["llvm", "dense_pack.x86", workload, {}], "config": entity, "result": [[seconds], 0, 1.0, 1.0], "version": 0.2}
            )


folder = Path(tempfile.mkdtemp())
(folder / "known.log").write_text("\n".join(lines(range(1, 7))))
(folder / "new.log").write_text("\n".join(lines(range(7, 10))))

model = tcl.Trees().fit(tcl.datasets.log(folder / "known.log"))
ranked = tcl.rank(model, folder / "new.log")
for row in ranked.table(top=2):
    print(f"{row['task'][:40]:40s} rank {row['rank']}: line {row['line']:3d}, measured {1e3 * row['latency_s']:.2f} ms")

"""Lines of AutoTVM's and Ansor's logs, files of them, and what is read from those."""

from __future__ import annotations

import gzip
import json
from itertools import pairwise
from pathlib import Path

from tcl_core.programs.tuning_logs.known import Known
from tcl_core.programs.tuning_logs.opening import open_log

CPU = "llvm -keys=cpu "
CONV = ["conv2d_NCHWc.x86", [["TENSOR", [1, 32, 56, 56], "float32"], ["TENSOR", [64, 32, 3, 3], "float32"],
        [2, 2], [1, 1, 1, 1], [1, 1], "NCHW", "NCHW", "float32"], {}]  # fmt: skip

KNOBS = [["tile_ic", "sp", [-1, 8]], ["tile_oc", "sp", [-1, 16]], ["tile_ow", "sp", [-1, 7]], ["unroll_kw", "ot", True]]
EVERY_KIND = [["tile", "sp", [-1, 4, 2]], ["order", "re", [2, 0, 1]], ["ann", "an", ["none", "vec", "unroll", "odd"]],
              ["step", "ot", 512], ["flag", "ot", False], ["share", "ot", 0.5], ["none", "ot", None]]  # fmt: skip

STEPS = [["CHW", 2, "local"], ["SP", 2, 0, 1024, [2, 32, 2, 8], 1], ["RE", 2, [0, 5, 1]], ["FSP", 3, 0, 1, 3],
         ["CA", 2, 3, 5], ["FU", 5, [0, 1]], ["AN", 5, 0, 4], ["CI", 1], ["PR", 4, 0, "auto_unroll_max_step$512"],
         ["PR", 4, 0, "parallel_launch"]]  # fmt: skip


def autotvm_line(knobs=KNOBS, result=([0.5, 0.25], 0, 1.5, 1000.5), task=CONV, target=CPU, version="0.10.0"):
    config = {"index": 3, "code_hash": None, "entity": knobs}
    return {"input": [target, *task], "config": config, "result": result, "version": 0.2, "tvm_version": version}


def ansor_line(steps=STEPS, result=([0.5], 0, 1.5, 1000), key='["matmul", 512, 64]', target="cuda -arch=sm_80"):
    return {"i": [[key, target, [-1, 16], "", 0, []], [[], steps]], "r": result, "v": "v0.6"}


def write(path: Path, *lines) -> Path:
    """Lines given as text stay what they are."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    data = ("\n".join(texts) + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read(path: Path, **about_target):
    """The log, its columns joined, and the refused lines."""
    log, refused = open_log(path, Known(), **about_target), []
    blocks = list(log.columns(lambda number, reason: refused.append((number, reason))))
    return log, blocks, refused


def rows(ragged) -> list[list]:
    return [ragged.values[a:b].tolist() for a, b in pairwise(ragged.offsets)]


def texts(coded) -> list[str]:
    return [coded.names[code] for code in coded.codes]

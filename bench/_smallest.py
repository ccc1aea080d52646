"""Data of the comparisons' smallest forms (``_tables``): a cut of the reference data, and a network of one layer."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from _datasets import VALIDATION, Reference
from _tables import ROOT

from tcl_core import store
from tcl_core.models.trees import SETTINGS, BoostedTrees

TASKS, PROGRAMS = 3, 8  # tasks of each kind; programs of each task
_room = tempfile.TemporaryDirectory(prefix="tcl-smallest-")


@cache
def scratch() -> Path:
    """A folder that is deleted when the process ends."""
    return Path(_room.name)


@cache
def reference() -> Reference:
    """Reference data of a few programs of three tasks each of the held-out, the validation and all other networks."""
    whole, folder = ROOT / "data" / "reference", scratch() / "reference"
    tasks = _tasks(store.read_table(whole / "networks.parquet", "networks"))
    for name in ("tasks", "networks", "sketches", "programs"):
        _cut(whole / f"{name}.parquet", folder / f"{name}.parquet", name, tasks)
    for place in whole.glob("platform=*"):
        kept = [r for r in store.read_records(place) if r.task_key in tasks and r.program_id < PROGRAMS]
        store.write_records(folder / place.name, kept)
        shutil.copy(place / "hardware.json", folder / place.name)
    (scratch() / "features").mkdir()
    BoostedTrees.__init__.__defaults__ = (replace(SETTINGS, epochs=1),)  # also in the teacher ensemble: few trees, not hundreds
    return Reference(folder, scratch() / "features", unlabelled=PROGRAMS)


def _cut(source: Path, target: Path, table: str, tasks: set[str]) -> None:
    rows = [row for row in store.read_table(source, table) if row["task_key"] in tasks and row.get("program_id", 0) < PROGRAMS]
    store.write_table(target, table, rows)


def _tasks(uses: list[dict]) -> set[str]:
    held_out = {use["task_key"] for use in uses if use["split"] == "held_out"}
    chosen_on = {use["task_key"] for use in uses if use["network"] in VALIDATION} - held_out
    others = {use["task_key"] for use in uses} - held_out - chosen_on
    return {task for kind in (held_out, chosen_on, others) for task in sorted(kind)[:TASKS]}


@cache
def network(channels: int = 32) -> str:
    """Path of an ``.onnx`` file with one convolution, whose programs take some hundred microseconds."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    shapes = {"x": (1, channels, 30, 30), "y": (1, channels, 28, 28)}
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    weights = np.random.default_rng(0).normal(size=(channels, channels, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    graph = helper.make_graph(nodes, "layer", [given], [made], [numpy_helper.from_array(weights, "w")])
    path = scratch() / f"network-{channels}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return str(path)

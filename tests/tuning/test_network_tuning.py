from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import FakeRunner, onnx_model

from tcl_core.models.cost_model import CostModel
from tcl_core.compat import make_target, quiet_compiler
from tcl_core.errors import PlatformError, UsageError
from tcl_core.programs import network_files
from tcl_core.programs.network_files import evaluated, load_onnx, random_inputs
from tcl_core.programs.networks import import_network, load_relax
from tcl_core.programs.graph import PREPARED, fuse
from tcl_core.programs.tasks import EXTRACTION_TARGET
from tcl_core.tuning import latency, network
from tcl_core.programs.tuning_logs.opening import MEASURED, RECORDS
from tcl_core.tuning.database import seconds_of
from tcl_core.tuning.library import CURVE, EXAMPLE, LIBRARY, TOLERANCE, by_task
from tcl_core.tuning.transfer import Donors

ROOT = Path(__file__).parents[2]
# In a process of its own: the runtime's threads stay as they were set.
TUNE = """
import json, os, sys
from dataclasses import asdict
from pathlib import Path
sys.path.insert(0, "tests")
import conftest
from tcl_core.errors import TclError
from tcl_core.models.cost_model import CostModel
from tcl_core.programs.graph import PREPARED
from tcl_core.tuning import network

class Sum:
    name = "sum"
    def predict(self, samples):
        return samples.features.sum(axis=(1, 2)).astype("float32")
    def embed(self, samples):
        return samples.features.sum(axis=1)

    predict_and_embed = CostModel.predict_and_embed

cores = os.sched_getaffinity(0)
print(json.dumps(asdict(network.tune_network(sys.argv[1], PREPARED, Sum(), (1.0,) * 11, conftest.quick_setup(), 1, 0, out=Path(sys.argv[3])))))
assert os.sched_getaffinity(0) == cores, "still pinned"
network.TOLERANCE = -1.0
try:
    network.tune_network(sys.argv[2], PREPARED, Sum(), (1.0,) * 11, conftest.quick_setup(), 1, 0)
except TclError as error:
    print(type(error).__name__, error)
"""


def test_a_whole_network(tmp_path):
    """Searched, built, equal to PyTorch's output, timed; and a network that differs too much is refused.

    The one trial reaches one of two tasks: the other has what the model ranks first.
    """
    torch.manual_seed(0)

    class Both(torch.nn.Module):
        """Returns a dictionary with a tuple in it."""

        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(16, 8), torch.nn.Linear(8, 4)

        def forward(self, x):
            hidden = torch.relu(self.first(x))
            return {"last": self.last(hidden), "hidden": (hidden,)}

    model = Both().eval()
    network = str(tmp_path / "tiny.pt2")
    torch.export.save(torch.export.export(model, (torch.randn(4, 16),)), network)
    other = onnx_model(tmp_path / "net.onnx", [("Softmax", ["x"], ["y"])], {"x": (4, 16)}, {"y": (4, 16)})
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", TUNE, network, other, tmp_path], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    first, refused = (line for line in done.stdout.splitlines() if line.startswith(("{", "PlatformError")))
    tuned = json.loads(first)
    assert (tuned["trials"], tuned["tasks"]) == (1, 2)
    assert 0 <= tuned["difference"] < 1e-5 < TOLERANCE
    assert min(tuned["tuned_ms"], tuned["untuned_ms"], tuned["pytorch_ms"]) > 0 and tuned["left_out"] == 0
    guessed, measured = sorted(tuned["task_times"], key=lambda task: task["trials"])
    assert (measured["weight"], measured["trials"], measured["guessed"]) == (1.0, 1, False) and measured["latency_ms"] > 0
    assert (guessed["weight"], guessed["trials"], guessed["guessed"]) == (1.0, 0, True) and guessed["latency_ms"] is None
    assert all("matmul" in task["name"] for task in (guessed, measured)) and tuned["curve"] == []
    assert tuned["compile_ms"] is None and set(tuned["compared"]["systems"]) == {"tuned", "eager"}
    with np.load(tmp_path / EXAMPLE) as example:
        assert {name: array.shape for name, array in example.items()} == {"input_0": (4, 16), "output_0": (4, 4), "output_1": (4, 8)}
    with latency.running(tmp_path / LIBRARY, 1, False, [np.zeros((4, 16), np.float32)]) as process:
        wanted = model(torch.zeros(4, 16))
        for found, of in zip(process.outputs, (wanted["last"], wanted["hidden"][0]), strict=True):
            np.testing.assert_allclose(found, of.detach(), atol=1e-6)
    assert refused.startswith(f"PlatformError what TVM makes of {other} differs from the reference by ")
    assert refused.endswith("export net.eval(), else report it")


def test_pytorch_runs_what_was_exported(tiny_network):
    threads = torch.get_num_threads()
    read = import_network(tiny_network, threads)
    (found,) = read.outputs
    assert found.shape == (1, 10) and found.sum() == pytest.approx(1.0)
    assert [i.shape for i in read.inputs] == [(1, 8, 8, 8)]


@pytest.fixture(scope="module")
def tunables(tiny_network):
    with quiet_compiler():
        return network.tunables_of(fuse(load_relax(tiny_network), make_target(EXTRACTION_TARGET), PREPARED), EXTRACTION_TARGET)


class Sum:
    name = "sum"

    def predict(self, samples):
        return samples.features.sum(axis=(1, 2)).astype("float32")

    def embed(self, samples):
        return samples.features.sum(axis=1)

    predict_and_embed = CostModel.predict_and_embed


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(143), PlatformError("the measuring process hung")])
def test_a_stopped_search_leaves_nothing_behind(tmp_path, tunables, monkeypatch, make_setup, stop):
    """Stopped while the first batch is measured: no file stays, and it ends as it was stopped."""

    def stopped(runner, jobs):
        assert len(jobs) > 1
        raise stop

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(network.Runner, "measure", stopped)
    with pytest.raises(type(stop)) as raised:
        network.search_tasks(tunables, Sum(), (1.0,) * 11, make_setup(), 40, 0)
    assert raised.value.args == stop.args  # as it was raised, so that `tcl` can tell how it ended
    assert list((tmp_path / "temporary").iterdir()) == []


def test_a_tuned_network_lends_its_programs_to_another_run(tmp_path, tunables, monkeypatch, make_setup):
    """To itself: each task that ran is given its own best program, as its first trial."""
    monkeypatch.setattr(network, "Runner", FakeRunner)

    points = []

    def searched(trials, **options):
        points.clear()
        options["on_trial"] = lambda *point: points.append(point)
        database, times, donated = network.search_tasks(tunables, None, (1.0,) * 11, make_setup(), trials, 0, **options)
        best = {str(r.trace): float(r.run_secs[0]) for r, *_ in by_task(database.get_all_tuning_records())}
        return best, len(times), donated

    first, tasks, donated = searched(60, folder=tmp_path / MEASURED)
    assert (len(first), donated) == (tasks, 0)
    assert [trials for trials, _ in points] == sorted(trials for trials, _ in points) and points[-1][0] == 60
    assert points[0][1] == float("inf") and 0 < points[-1][1] < float("inf")  # known as soon as every task has run
    assert searched(60, folder=tmp_path / MEASURED)[1] == tasks and [trials for trials, _ in points] == [60]
    assert points[0][1] < float("inf")  # a run that goes on begins with what it knows
    donors = Donors([tmp_path], EXTRACTION_TARGET)
    for options in ({"trials": tasks}, {"trials": 1000, "searches": False}):
        again, _, donated = searched(**options, donors=donors)
        assert donated == tasks and again == first


def test_tasks_that_trials_did_not_reach_are_built_with_guesses(tmp_path, tunables, monkeypatch, make_setup):
    """All but one: what the model ranks first is applied, equal to the reference, without a latency and not kept as measured."""
    monkeypatch.setattr(network, "Runner", FakeRunner)
    database, times, _ = network.search_tasks(tunables, Sum(), (1.0,) * 11, make_setup(), 1, 0, folder=tmp_path / MEASURED)
    records = database.get_all_tuning_records()
    guessed = [time for time in times if time.guessed]
    assert len(guessed) == len(times) - 1 > 0 and len(records) == len(times) and {time.trials for time in guessed} == {0}
    assert sum(not seconds_of(record) for record in records) == len(guessed)
    kept = (tmp_path / MEASURED / RECORDS).read_text().splitlines()
    assert len({json.dumps(json.loads(line)[1][0]) for line in kept}) == 1  # one program, with its finals

    built = network._as_built(times, records)
    assert [(time.guessed, time.latency_ms is None) for time in built] == [(time.guessed, time.guessed) for time in times]
    without = [record for record in records if seconds_of(record)]
    assert not any(time.guessed for time in network._as_built(times, without))


def test_the_curve_of_a_search_has_a_point_for_each_gain():
    curve = network._Curve(None)
    for trials, network_s in ((8, float("inf")), (16, 0.5), (24, 0.5), (32, 0.25), (40, 0.3)):
        curve.add(trials, network_s)
    assert [(trials, ms) for trials, _, ms in curve.points] == [(16, 500.0), (32, 250.0)]
    assert 0 <= curve.points[0][1] <= curve.points[1][1]


def test_a_search_that_goes_on_counts_the_seconds_of_all_its_runs(tmp_path, monkeypatch):
    clock = iter(np.arange(0.0, 1e4, 100.0))
    monkeypatch.setattr(network.time, "monotonic", lambda: next(clock))
    first = network._Curve(tmp_path)
    first.add(8, 0.5)  # and then it is killed
    so_far = network._Curve(tmp_path)
    assert so_far.points == first.points and len(first.points) == 1
    so_far.add(8, 0.5)  # what it knows from the database is no gain
    so_far.add(16, 0.25)
    assert [(trials, ms) for trials, _, ms in so_far.points] == [(8, 500.0), (16, 250.0)]
    assert so_far.points[1][1] > first.points[0][1] + 200 and so_far.keep() > so_far.points[1][1]
    (tmp_path / CURVE).write_text("{")
    assert network._Curve(tmp_path).points == []


@pytest.mark.parametrize("content", [None, b"", b"no protobuf"])
def test_a_bad_onnx_file_is_the_users_to_mend(tmp_path, content, make_setup):
    path = tmp_path / "bad.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match="bad.onnx (does not exist|is not a readable ONNX model)"):
        network.tune_network(str(path), PREPARED, Sum(), (1.0,) * 11, make_setup(), 1, 0)


def test_an_onnx_file_with_dynamic_shapes_is_refused_before_anything_runs(tmp_path, make_setup):
    path = onnx_model(tmp_path / "free.onnx", [("Relu", ["x"], ["y"])], {"x": ("n", 3)}, {"y": ("n", 3)})
    with pytest.raises(UsageError, match="input 'x' has a dynamic shape; export it with fixed shapes"):
        network.tune_network(path, PREPARED, Sum(), (1.0,) * 11, make_setup(), 1, 0)


def test_inputs_of_an_onnx_file(tmp_path):
    weight = {"w": np.eye(3, dtype=np.float32)}
    path = onnx_model(tmp_path / "n.onnx", [("MatMul", ["x", "w"], ["y"])], {"x": (4, 3), "w": (3, 3)}, {"y": (4, 3)}, weight)
    (given,) = random_inputs(load_onnx(Path(path), path))
    assert given.shape == (4, 3) and given.dtype == np.float32 and 0 <= given.min() <= given.max() <= 1
    read = import_network(path, 1)
    np.testing.assert_allclose(read.outputs[0], read.inputs[0], rtol=1e-6)
    assert import_network(path).outputs is None  # cutting it into tasks needs no outputs


def test_what_the_importer_makes_otherwise_than_onnx_costs_no_trials(tmp_path, make_setup, monkeypatch):
    """As if ONNX's Relu were another one: the reference is ONNX's own evaluator, which knows nothing of TVM."""
    path = onnx_model(tmp_path / "n.onnx", [("Relu", ["x"], ["y"])], {"x": (4, 16)}, {"y": (4, 16)})
    read = import_network(path, 1)
    monkeypatch.setattr(network, "import_network", lambda *_: replace(read, outputs=[-read.outputs[0]]))
    with pytest.raises(PlatformError, match="what TVM makes of .*n.onnx differs from the reference by 2 of its magnitude"):
        network.tune_network(path, PREPARED, Sum(), (1.0,) * 11, make_setup(), 1, 0)


def test_what_onnx_cannot_run_has_no_outputs(tmp_path, monkeypatch):
    path = onnx_model(tmp_path / "n.onnx", [("Relu", ["x"], ["y"])], {"x": (4, 16)}, {"y": (4, 16)})
    model, given = load_onnx(Path(path), path), [np.ones((4, 16), np.float32)]
    assert [array.tolist() for array in evaluated(model, given)] == [given[0].tolist()]
    monkeypatch.setattr(network_files, "EVALUATED_S", 1)
    monkeypatch.setattr("onnx.reference.ReferenceEvaluator.run", lambda *_: time.sleep(60))
    assert evaluated(model, given) == []
    monkeypatch.setattr("onnx.reference.ReferenceEvaluator.run", lambda *_: [["a sequence"]])
    assert evaluated(model, given) == []

"""Programs lowered by Prefect's task runners: the same caches as a stage fills, whatever does the work."""

from __future__ import annotations

import dataclasses
import importlib.util
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from prefect import flow

from flows import features
from flows.features import dask_workers, mapped
from tcl_core.errors import PlatformError, UsageError
from tcl_core.features import per_store
from tcl_core.features.encode import Encoder
from tcl_core.features.per_store import read_per_store
from tcl_core.params import Run, load_params
from tcl_core.stages import features as wanted
from tcl_core.stages.features import programs_to_lower
from tcl_core.stages.workspace import Workspace
from tests.shipped import SHIPPED

with_dask = pytest.mark.skipif(not importlib.util.find_spec("prefect_dask"), reason="needs the extra dask")


pytestmark = pytest.mark.usefixtures("prefect_server")


def keys_of(tiny) -> list:
    return [
        (tiny.task.key, sketch.index, tuple(tiny.space.canonical(sketch, decisions).tolist()))
        for sketch in tiny.sketches
        for decisions in tiny.sample(sketch, 2)
    ]


@pytest.fixture
def pool(matmul, softmax):
    return Encoder([matmul.task, softmax.task], [*matmul.rows(), *softmax.rows()]), keys_of(matmul) + keys_of(softmax)


@with_dask
def test_workers_fill_the_caches_as_a_stage_would(pool, tmp_path):
    encoder, keys = pool
    expected = read_per_store(keys, encoder, tmp_path / "stage")

    @flow(task_runner=dask_workers(Run("dask", 2)))
    def lower_them():
        return read_per_store(keys, encoder, tmp_path / "flow", engine=mapped, chunk=2)

    for rows, wanted_rows in zip(lower_them(), expected, strict=True):
        np.testing.assert_array_equal(rows, wanted_rows)
    assert {path.name for path in (tmp_path / "flow").iterdir()} == {path.name for path in (tmp_path / "stage").iterdir()}


@pytest.mark.parametrize("engine, chosen", [("local", {}), ("dask", {"engine": mapped, "chunk": features.PROGRAMS})])
def test_the_engine_of_the_parameters_is_taken(monkeypatch, engine, chosen):
    asked = []
    monkeypatch.setattr(Workspace, "encoder", None)
    monkeypatch.setattr(wanted, "programs_to_lower", lambda _: ["a", "b"])
    monkeypatch.setattr(per_store, "read_per_store", lambda keys, encoder, folder, **how: asked.append((keys, folder, how)))
    assert features.lowering.fn(engine) == 2
    assert asked == [(["a", "b"], Workspace().per_store, chosen)]


class Here:
    """In the place of the task that workers do: done at once, in this process."""

    def __init__(self, answer) -> None:
        self.answer, self.sizes = answer, []

    def submit(self, job):
        self.sizes.append(len(pickle.loads(job).programs))
        return self

    def result(self, raise_on_failure: bool):
        if isinstance(self.answer, Raised):
            raise self.answer.error from self.answer.cause
        return self.answer


@dataclasses.dataclass
class Raised:
    """Met before the task began, as Dask tells it."""

    error: Exception
    cause: Exception | None = None


@pytest.mark.parametrize(
    "answer, error, sentence",
    [
        (("1 0.26.0", []), PlatformError, f"a worker has TVM 0.26.0, and this machine {per_store.TVM_VERSION}; install the same on both"),
        (MemoryError("no room\nat all"), PlatformError, r"a worker could not lower its programs \(no room\); what was done is kept"),
        (UsageError("this needs tvm"), UsageError, "^this needs tvm$"),
        (
            Raised(RuntimeError("task graph"), ModuleNotFoundError("No module named 'flows'")),
            PlatformError,
            "python -m dask worker ADDRESS$",
        ),
        (Raised(RuntimeError("Failed to reach API at http://127.0.0.1:1/api/")), PlatformError, "need a Prefect server that they reach"),
        (Raised(OSError("lower-1 cancelled: scheduler-connection-lost.")), PlatformError, "whether Dask's scheduler is still there"),
    ],
)
def test_what_a_worker_says_is_one_sentence(pool, tmp_path, monkeypatch, answer, error, sentence):
    encoder, keys = pool
    monkeypatch.setattr(features, "lower", Here(answer))
    monkeypatch.setattr(features, "as_completed", iter)
    with pytest.raises(error, match=sentence):
        read_per_store(keys[:1], encoder, tmp_path, engine=mapped)
    assert not list(tmp_path.iterdir())  # nothing of another TVM is kept


@with_dask
def test_a_scheduler_that_runs_already_is_taken():
    assert dask_workers(Run("dask", 0, "tcp://127.0.0.1:8786")).address == "tcp://127.0.0.1:8786"
    assert dask_workers(Run("dask", 3)).cluster_kwargs["n_workers"] == 3


def test_dask_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "prefect_dask", None)
    with pytest.raises(UsageError, match=r"prefect_dask, which is not installed; run in TCL's checkout: pip install '\.\[dask\]'"):
        dask_workers(Run("dask", 1))


class Measured:
    """A project with two measured platforms, of which each knows one program more than the one before."""

    def __init__(self, unlabelled: int, models: tuple[str, ...] = (), space: str = "cpu", shipped: bool = False) -> None:
        params = load_params(SHIPPED)
        self.params = dataclasses.replace(
            params,
            train=dataclasses.replace(params.train, unlabelled=unlabelled, shipped=shipped),
            baselines=dataclasses.replace(params.baselines, models=models),
            candidates=dataclasses.replace(params.candidates, design_space=space),
        )

    def samples(self, platform):
        return type("Samples", (), {"tasks": np.array([0, 0, 1])})()

    def split_by_task(self, samples, share):
        return samples, None

    def unlabelled_keys(self, tasks, count, measured):
        return [(f"further {task}", count, ()) for task in tasks]

    def platforms_here(self):
        return ["host-sse42", "host-avx2"]

    platforms_that_ran = platforms_here

    def records_folder(self, platform):
        return Path()

    def tuned_folder(self, platform):
        return Path("nothing was tuned")


@pytest.mark.parametrize(
    "measured, expected",
    [
        (Measured(0), []),
        (Measured(0, ("tlp",)), []),
        (Measured(3), ["host-sse42 records", "further 0", "further 1"]),
        (Measured(0, ("xgboost",)), ["host-sse42 records", "host-avx2 records", "host-sse42 holdout", "host-avx2 holdout"]),
        (Measured(3, ("xgboost",), "cuda"), []),
        (Measured(3, shipped=True), []),  # who learns what comes with TCL too has teachers on tokens alone
    ],
)
def test_what_will_be_read_is_lowered(monkeypatch, measured, expected):
    monkeypatch.setattr(wanted, "_measured", lambda _, platform, kind: [(f"{platform} {kind}", 0, ())])
    assert [key[0] for key in programs_to_lower(measured)] == expected

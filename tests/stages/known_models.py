"""What tests of stages share: a project whose models rank as they are told to, and the real registry.

``P`` is the project's first platform; the fixture gives each test's module one of the test's own name.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tcl_core import provenance, store
from tcl_core.checked import read_json, write_json
from tcl_core.errors import DataError
from tcl_core.features.batches import Samples
from tcl_core.features.layout import WIDTH
from tcl_core.models import catalogue
from tcl_core.models.cost_model import write_description
from tcl_core.params import Chain, Link, load_params
from tcl_core.platforms import Hardware
from tcl_core.registry import serving
from tcl_core.stages import promotion
from tcl_core.platforms import save_hardware
from tcl_core.stages.workspace import Workspace
from tests.shipped import SHIPPED

P = "p-one"


class Known:
    """Ranks as told by the text in its folder: best, middling (the fastest in the second place), worst, nan; or says that the features
    have changed.
    """

    reads, row_width = "tokens", WIDTH

    def __init__(self, how: str) -> None:
        self.how = how

    @classmethod
    def load(cls, folder: Path) -> Known:
        return cls(read_json(folder / "model.json", "")["arguments"]["how"])

    def predict(self, samples: Samples) -> np.ndarray:
        if self.how == "narrow":
            raise DataError("the model reads 47 features and these programs have 48.")
        if self.how == "middling":
            return -np.where(samples.latencies_s == 1e-3, 2.5e-3, samples.latencies_s).astype(np.float32)
        return {"best": -1.0, "worst": 1.0, "nan": np.nan}[self.how] * samples.latencies_s.astype(np.float32)


class TinyWorkspace(Workspace):
    """Twelve held-out tasks of six programs that take 1 to 6 ms."""

    encoder = SimpleNamespace(numbers={f"task-{number}": number for number in range(12)})  # type: ignore[assignment]

    def samples(self, platform: str, kind: str = "records") -> Samples:
        tasks = np.repeat(np.arange(12, dtype=np.int32), 6)
        latencies_s = np.tile(np.arange(1, 7) * 1e-3, 12)
        return Samples(np.zeros((72, 2, 3), np.float32), np.full(72, 2, np.int32), tasks, latencies_s)

    def task_weights(self, split: str) -> dict[str, dict[int, float]]:
        return {"network": dict.fromkeys(range(12), 1.0)}


def write_model(platform: str, how: str) -> None:
    folder = Workspace().model_folder(platform)
    folder.mkdir(parents=True, exist_ok=True)
    write_description(folder, {"class": "known", "arguments": {"how": how}})
    write_json(folder / "curve.json", {"epochs": [{"phase": "train", "epoch": 1, "loss": 0.5}]})
    provenance.write(folder, {**MADE, "data": {platform: "d" * 64}, "dvc": {platform: "e" * 32 + ".dir"}})


MADE = {
    "stage": "train",
    "parameters": {"seed": 0, "train": {"epochs": 60}},
    "model_before": None,
    "code": {"commit": "c" * 40, "changed": ["collect.py", "cli.py"], "sources": "s" * 64},
    "versions": {"python": "3.11.9", "tvm": "0.27.0"},
    "host": "a CPU x2",
}


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """One registry for the module, for making one takes seconds; each test has a platform of its own."""
    return f"sqlite:///{tmp_path_factory.mktemp('registry')}/mlflow.db"


@pytest.fixture
def project(tmp_path, monkeypatch, database, request) -> TinyWorkspace:
    """A project with platforms of this test's own names: P, then b; both measured and evaluated."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the machine's lock of measuring lies
    monkeypatch.setitem(catalogue.CLASSES, "known", f"{__name__}:Known")
    params = load_params(SHIPPED)
    first = "".join(c if c.isalnum() else "-" for c in request.node.name.lower())
    mcpu = dataclasses.replace(params.platforms["host-sse42"])
    monkeypatch.setitem(globals(), "P", first)
    monkeypatch.setattr(request.module, "P", first)
    (tmp_path / "code").mkdir()
    monkeypatch.setattr(serving, "CODE", tmp_path / "code")  # little to register: for speed
    chain = Chain(first, {"b": Link(first)})
    for platform in (first, "b"):
        for kind in ("records", "holdout"):
            Workspace().records_folder(platform, kind).mkdir(parents=True)
            (Workspace().records_folder(platform, kind) / "records.parquet").write_bytes(b"as measured")
        write_model(platform, "best")
        save_hardware(Workspace().model_folder(platform), Hardware(cores=2))
    write_json(Workspace().reports / promotion.EVALUATION, evaluation(first, "b"))
    monkeypatch.setattr(store, "read_records", lambda *_: [None] * 10)
    monkeypatch.setattr(promotion, "_judging_host", lambda workspace, platform: "a CPU x2")  # nor does any record say it
    return TinyWorkspace(params=dataclasses.replace(params, chain=chain, platforms={first: mcpu, "b": mcpu}))


def evaluation(*platforms: str) -> dict:
    figures = {"top_1": {"value": 0.9}, "top_1_random": {"value": 0.5}, "pairwise_accuracy": 0.8, "subset_top_1": 0.95}
    figures |= {"tasks": 12, "programs": 72}
    return {
        "platforms": dict.fromkeys(platforms, figures),
        "chain": {"forgotten": dict.fromkeys(platforms, 0.0)},
        "judged": {platform: Workspace().judged_now(platform) for platform in platforms},
    }


def made_and_judged(how: str) -> None:
    write_model(P, how)
    write_json(Workspace().reports / promotion.EVALUATION, evaluation(P, "b"))


def made_and_promoted(project: TinyWorkspace, how: str) -> str:
    made_and_judged(how)
    promotion.register(project, P)
    return str(promotion.promote(project, P))

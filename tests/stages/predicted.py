"""A project whose models rank logs as they are told to, and what `tcl predict` shows of them."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest

from tcl_core.checked import read_json
from tcl_core.features.batches import Samples
from tcl_core.features.layout import WIDTH
from tcl_core.learning.fit import FitSettings
from tcl_core.models import catalogue
from tcl_core.models.cost_model import CostModel, write_description
from tcl_core.platforms import Hardware
from tcl_core.stages import predict
from tcl_core.platforms import save_hardware
from tcl_core.stages.workspace import Workspace
from tests.programs.log_lines import autotvm_line
from tests.shipped import SHIPPED

HARDWARE = Hardware(cores=2, threads=4, l2_kib=512)
DENSE = ["dense_pack.x86", [["TENSOR", [4, 32], "float32"], ["TENSOR", [10, 32], "float32"]], {}]


def predict_log(*given, **named) -> str:
    return str(predict.predict_log(Workspace(), *given, **named))


class Told:
    """Ranks as the text in its folder tells; remembers how many programs it was given at a time."""

    reads, row_width, calls = "tokens", WIDTH, list[int]()

    def __init__(self, how: str) -> None:
        self.how = how

    @classmethod
    def load(cls, folder: Path) -> Told:
        return cls(read_json(folder / "model.json", "")["arguments"]["how"])

    def predict(self, samples: Samples) -> np.ndarray:
        self.calls.append(len(samples))
        sign = {"best": -1.0, "worst": 1.0, "equal": 0.0, "nan": np.nan}[self.how]
        return sign * np.where(np.isfinite(samples.latencies_s), samples.latencies_s, 100.0).astype(np.float32)


@pytest.fixture
def here(monkeypatch, tmp_path) -> Path:
    """A project's folder of one's own, in which models of class ``told`` can be loaded."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    shutil.copy(SHIPPED, "params.yaml")
    monkeypatch.setitem(catalogue.CLASSES, "told", f"{__name__}:Told")
    monkeypatch.setattr(Told, "calls", [])
    return work


def told(how: str = "best", name: str = "told") -> Path:
    """A folder with a model that ranks as told."""
    folder = Path("models") / how
    folder.mkdir(parents=True, exist_ok=True)
    write_description(folder, {"class": name, "arguments": {"how": how}})
    return folder


def trained(samples: Samples, folder: Path, with_hardware: bool = True) -> CostModel:
    """A real model that has seen the samples once."""
    model = catalogue.create("tlp", FitSettings(epochs=1))
    model.fit(samples)
    model.save(folder)
    if with_hardware:
        save_hardware(folder, HARDWARE)
    return model


def line(number: int, seconds: float = 0.0, error: int = 0, **changes):
    """A program of AutoTVM; its tile is its number."""
    return autotvm_line([["tile_ic", "sp", [-1, number]]], ([seconds], error, 1, 1000.0), **changes)


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def cells(said: str) -> list[list[str]]:
    """The table's rows, without its frame."""
    rows = [text.strip("│").split("│") for text in said.splitlines() if text.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows]

"""The examples run as they stand, in an empty folder, and show what they say they show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 300
SHARE = r"([\d.]+)%"


def shares(name: str, said: str) -> list[float]:
    """Percentages of the line that begins with a name."""
    line = next(line for line in said.splitlines() if line.startswith(name))
    return [float(found) / 100 for found in re.findall(SHARE, line)]


def trained(said: str) -> None:
    for name in ("mamba", "trees"):
        pairs, u16 = shares(name, said)
        assert 0.62 < pairs < 0.95 and 0.5 < u16 <= 1.0  # a random order: .5 and some .45
    assert "as one file" in said


def written(said: str) -> None:
    random, mine, trees = (shares(name, said)[0] for name in ("random", "least-squares", "trees"))
    assert 0.45 < random < 0.55 < mine < 1 and trees > 0.62
    assert "  0 numbers" in said and "picks 192 of 1920 programs" in said


def ranked(said: str) -> None:
    rows = [line for line in said.splitlines() if " rank 1: line" in line]
    assert len(rows) == 3 and len(set(rows)) == 3


def tuned_by_tvm(said: str) -> None:
    found = re.findall(r"TCL as the (cost model|search): (\d+) programs measured, the best takes ([\d.]+) us", said)
    assert [name for name, _, _ in found] == ["cost model", "search"]
    assert all(0 < int(count) <= 8 and float(best) > 0 for _, count, best in found)


def sampled(said: str) -> None:
    assert re.findall(r"^(.+?) +96 programs, +\d+ tasks", said, re.MULTILINE) == ["random", "per task", "rdu", "middle"]
    assert all(0.5 < shares(name, said)[0] < 1 for name in ("random", "per task", "rdu"))


def moved(said: str) -> None:
    before, after, alone = (shares(name, said)[0] for name in ("AVX2's, as it is", "carried on", "160 measurements alone"))
    assert after > alone and after > before - 0.02


def tuned(said: str) -> None:
    untuned, fast = re.search(r"untuned ([\d.]+) ms, tuned ([\d.]+) ms, 24 programs", said).groups()
    assert min(float(fast), float(untuned)) > 0  # which is the smaller one says a quiet machine alone
    assert said.splitlines()[-1] == "written: contents.json, database, example.npz, measured, network.so, report.json, report.md"


SHOWN = {
    "train_a_cost_model": trained, "write_a_cost_model": written, "rank_a_log": ranked, "use_in_plain_tvm": tuned_by_tvm,
    "add_a_sampler": sampled, "move_to_new_hardware": moved, "tune_an_onnx_file": tuned,
}  # fmt: skip


def test_every_example_is_run_and_listed():
    there = {path.stem for path in (ROOT / "examples").glob("*.py")}
    listed = set(re.findall(r"^\| `(\w+)\.py`", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE))
    assert there == listed == set(SHOWN)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A user's, empty at first: what the first example compiles, the others find."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("name", SHOWN)
def test_an_example(name, tmp_path, cache):
    settings = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
    ended = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stderr[-2000:]
    SHOWN[name](ended.stdout)

"""A tuned network's folder, run again: in a process of its own, by whoever has it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict

import numpy as np
import pytest

from tcl_core.checked import read_json, write_contents, write_json
from tcl_core.compat import make_target, quiet_compiler
from tcl_core.errors import DataError, PlatformError, UsageError
from tcl_core.gpu import Gpu
from tcl_core.programs.graph import PREPARED, fuse
from tcl_core.programs.networks import import_network
from tcl_core.programs.tasks import EXTRACTION_TARGET
from tcl_core.stages import tuned_folder
from tcl_core.stages.tuned_folder import add_report, run_tuned
from tcl_core.tuning.library import export
from tcl_core.tuning.tuner import TaskTime

REPORT = {
    "network": "tiny", "platform": "here", "champion_version": 1, "trials": 8, "tuned_ms": 0.5, "tasks_ms": 0.4, "target": EXTRACTION_TARGET,
    "threads": 1, "pin_threads": False, "compared": {"systems": {}, "missing": {}, "ratios": {}}, "task_times": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tiny_network, tmp_path_factory):
    folder, target = tmp_path_factory.mktemp("tuned") / "fast", make_target(EXTRACTION_TARGET)
    with quiet_compiler():
        imported = import_network(tiny_network, threads=1)
        module = fuse(imported.module, target, PREPARED)
    with tuned_folder.tuned_folder(folder, overwrite=False) as aside:
        export(module, target, aside / "network.so")
        np.savez(aside / "example.npz", output_0=imported.outputs[0], input_0=imported.inputs[0])
        add_report(aside, REPORT)
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """A copy, for tests that spoil it; and a machine of the test's own to measure on."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return shutil.copytree(made, tmp_path / "fast")


def rewritten(folder, **changes) -> None:
    shutil.rmtree(folder / "database", ignore_errors=True)
    (folder / "report.json").unlink()
    add_report(folder, {**REPORT, **changes})
    write_contents(folder)


def test_it_runs_again(folder):
    said = str(run_tuned(folder, rounds=2))
    assert said.startswith("tiny on here: ") and ", 0.500 ms when it was tuned; difference to the reference's output " in said
    assert float(said.split()[-1]) < 1e-5


def test_the_report_tells_what_each_task_got(tmp_path):
    """The costliest first; cold weights are told from warm ones."""
    times = [TaskTime("softmax", 2.0, 0.05, 1), TaskTime("conv2d", 1.0, 0.3, 7, cold=True), TaskTime("reshape", 1.0, None, 0),
             TaskTime("dense", 1.0, None, 0, guessed=True)]  # fmt: skip
    add_report(tmp_path, REPORT | {"task_times": list(map(asdict, times))})
    rows = [line for line in (tmp_path / "report.md").read_text().splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        "| task | times | ms | weights | programs measured |",
        "| conv2d | 1 | 0.3 | cold | 7 |",
        "| softmax | 2 | 0.05 | warm | 1 |",
        "| reshape | 1 | TVM's own | warm | 0 |",
        "| dense | 1 | not measured | warm | 0 |",
        "| all, of those measured | | 0.4 | | 8 |",
    ]


def begin(place, overwrite=True):
    with tuned_folder.tuned_folder(place, overwrite):
        raise InterruptedError


def test_nothing_but_what_tune_wrote_is_overwritten(folder):
    with pytest.raises(UsageError, match="exists; name another folder, or overwrite it"):
        begin(folder, overwrite=False)
    with pytest.raises(InterruptedError):
        begin(folder)
    (folder / ".ipynb_checkpoints").mkdir()  # of a viewer
    (folder / ".ipynb_checkpoints" / "report-checkpoint.md").write_text("looked at")
    assert run_tuned(folder, rounds=1).network == "tiny"
    (folder / "report.json").write_text("damaged")
    with pytest.raises(InterruptedError):
        begin(folder)
    (folder / "notes.md").write_text("mine")
    with pytest.raises(UsageError, match="also has notes.md, which tcl tune did not write; move that away"):
        begin(folder)
    assert (folder / "notes.md").read_text() == "mine"


def test_a_report_may_name_what_is_no_utf_8(tmp_path):
    add_report(tmp_path, REPORT | {"network": "caf\udce9.onnx"})
    assert "# caf\\udce9.onnx on here" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_another_output_is_refused(folder):
    with np.load(folder / "example.npz") as example:
        arrays = {name: example[name] for name in example.files}
    np.savez(folder / "example.npz", **arrays | {"output_0": arrays["output_0"] + 1})
    write_contents(folder)
    with pytest.raises(PlatformError, match="fast computes something else here: its output differs by"):
        run_tuned(folder)


@pytest.mark.parametrize("name", ["network.so", "example.npz", "report.json", "report.md"])
def test_a_damaged_file_is_named(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=r"is damaged \(.*\); tune again"):
        run_tuned(folder)


@pytest.mark.parametrize("what", ["missing", "empty", "file", "other"])
def test_a_folder_of_another_kind(folder, what, tmp_path):
    place = {"missing": tmp_path / "none", "empty": tmp_path / "empty", "file": folder / "report.md", "other": folder}[what]
    if what == "empty":
        place.mkdir()
    if what == "other":
        rewritten(folder, format="tuned network 0")
    with pytest.raises(UsageError, match="is no folder that .*tcl tune --out wrote"):
        run_tuned(place)


def test_what_was_tuned_for_another_cpu_is_refused(folder, monkeypatch):
    rewritten(folder, target={"kind": "llvm", "mcpu": "x86-64-v4"}, platform="host-avx512")
    monkeypatch.setattr("tcl_core.platforms.local.why_not", lambda mcpu: f"this CPU lacks what {mcpu} needs")
    why = r"fast was tuned for host-avx512, which cannot run here \(this CPU lacks what x86-64-v4 needs\); tune it here"
    with pytest.raises(PlatformError, match=why):
        run_tuned(folder)


@pytest.mark.parametrize("target", [{"kind": "abacus"}, {}, "llvm"], ids=["unknown", "none", "text"])
def test_a_target_that_is_none_is_a_sentence(folder, target):
    write_json(folder / "report.json", read_json(folder / "report.json", "") | {"target": target})
    write_contents(folder)
    with pytest.raises(DataError, match=r"report.json.*it names no target of this version.*tune again: tcl tune --out"):
        run_tuned(folder)


def test_what_was_tuned_for_another_gpu_is_refused(folder, monkeypatch):
    rewritten(folder, target={"kind": "cuda", "arch": "sm_90"}, platform="gpu")
    monkeypatch.setattr("tcl_core.platforms.cuda.why_not_run", lambda design_space: None)
    monkeypatch.setattr("tcl_core.gpu.read_gpu", lambda: Gpu("NVIDIA A100", 80 << 30, {"major": 8, "minor": 0}))
    why = r"fast was tuned for gpu, which cannot run here \(it was built for sm_90, and this GPU is sm_80\); tune it here"
    with pytest.raises(PlatformError, match=why):
        run_tuned(folder)


WITHOUT = """
class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("tcl_core", "torch"):
            raise ModuleNotFoundError(f"{name} is not to be needed")

sys.meta_path.insert(0, Absent())
"""


def test_it_can_be_run_as_its_report_says(folder):
    """By the lines of report.md, without the project and without PyTorch."""
    lines = (folder / "report.md").read_text().split("```python\n")[1].split("```")[0]
    checked = "numpy.testing.assert_allclose(output.numpy(), example['output_0'], atol=1e-5)"
    script = f"import sys\n{WITHOUT}\n{lines}\nimport numpy\n{checked}\nprint(sorted(example))"
    done = subprocess.run([sys.executable, "-I", "-c", script], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("['input_0', 'output_0']")

"""The folder that `tcl tune --out` writes, and `tcl run` reads.

    network.so     the tuned network, its weights inside; TVM's runtime is all it needs
    example.npz    input_0, input_1, ..., output_0, ...: the inputs it was compared on, and the reference's outputs
    database/      a MetaSchedule database of the programs that the network was built with
    measured/      another, of all measurements, to start other tunings from
    report.json    how it was tuned and how fast it is, task by task
    report.md      the same for people
    contents.json  checksums of all of these

It is written aside, in a folder that is locked, and appears when it is complete.
"""

from __future__ import annotations

import glob
import os
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tcl_core.checked import CONTENTS, check_contents, damaged, read_json, write_contents, write_json
from tcl_core.errors import BusyError, DataError, PlatformError, UsageError
from tcl_core.files import TOKEN, shown, whole_folder, writing
from tcl_core.outputs import difference
from tcl_core.platforms import kind_measured
from tcl_core.stages.machine import measuring_alone
from tcl_core.programs.tuning_logs.opening import INSIDE
from tcl_core.tuning.library import EXAMPLE, LIBRARY, TOLERANCE

FORMAT = "tuned network 2"
REPORT, TEXT = "report.json", "report.md"
WRITTEN = {LIBRARY, EXAMPLE, REPORT, TEXT, *INSIDE, CONTENTS}
BESIDE = {".ipynb_checkpoints", ".DS_Store"}  # files that viewers leave
ROUNDS = 7
AGAIN = "tune again: tcl tune --out"


@contextmanager
def tuned_folder(out: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to write into, which replaces ``out`` when the block ends without an error.

    It is made at once, so that a place that cannot be written is found before anything is measured.  Raises UsageError where
    ``out`` exists and must not be overwritten, BusyError while another tuning writes it, PlatformError where the system refuses.
    """
    out = Path(os.path.realpath(out))
    _check_place(out, overwrite)
    with whole_folder(out) as aside:
        others = set(out.parent.glob(f".{glob.escape(out.name)}.{TOKEN}.new")) - {aside}
        if others:
            raise BusyError(f"another tuning is writing {shown(out)}; wait for its end, or name another folder")
        yield aside
        with writing(out):
            write_contents(aside)
        _check_place(out, overwrite)  # again: the block may have taken hours


def _check_place(out: Path, overwrite: bool) -> None:
    if not os.path.lexists(out):
        return
    if not out.is_dir() or not (_is_ours(out) or not any(out.iterdir())):
        raise UsageError(f"{shown(out)} is there and is no folder that tcl tune wrote; name another one")
    if _is_ours(out) and not overwrite:
        raise UsageError(f"{shown(out)} exists; name another folder, or overwrite it (--overwrite, from Python overwrite=True)")
    if others := sorted({path.name for path in out.iterdir()} - WRITTEN - BESIDE):
        raise UsageError(f"{shown(out)} also has {shown(others[0])}, which tcl tune did not write; move that away, or name another folder")


def _is_ours(folder: Path) -> bool:
    try:
        return str(read_json(folder / REPORT, AGAIN).get("format")).startswith(FORMAT.rstrip("0123456789"))
    except DataError:  # a damaged one is ours, too
        return (folder / CONTENTS).is_file() and (folder / LIBRARY).is_file()
    except (FileNotFoundError, NotADirectoryError):
        return False


def add_report(aside: Path, report: Mapping[str, Any]) -> None:
    """Add the report to a folder that already has the rest."""
    write_json(aside / REPORT, {"format": FORMAT, **report})
    with writing(aside / TEXT):
        (aside / TEXT).write_bytes(_as_text(report).encode("utf-8", "backslashreplace"))  # names of files may be no UTF-8


def _as_text(report: Mapping[str, Any]) -> str:
    compared = report["compared"]
    lines = [f"# {report['network']} on {report['platform']}", ""]
    ranking = f"champion version {report['champion_version']}" if report.get("champion_version") else report["model"]
    lines += [f"{report['trials']} programs measured, ranked by {ranking}, threads {report['threads']}.", ""]
    lines += ["| system | ms | rounds | difference to the reference |", "|---|---|---|---|"]
    for name, timed in compared["systems"].items():
        rounds = f"{min(timed['rounds_ms']):.4g} to {max(timed['rounds_ms']):.4g}"
        differs = report.get("difference", timed["difference"]) if name == "tuned" else timed["difference"]
        lines.append(f"| {name} | {timed['median_ms']:.4g} | {rounds} | {differs:.1e} |")
    lines += [f"| {name} | - | - | {why} |" for name, why in compared["missing"].items()]
    lines += ["", f"The reference is {report.get('reference', 'unknown')}.{unchecked_text(report)}", ""]
    for name, interval in compared["ratios"].items():
        lines.append(f"- {name}: {interval['value']:.3f} of its time ({interval['low']:.3f} to {interval['high']:.3f})")
    lines += ["", "| task | times | ms | weights | programs measured |", "|---|---|---|---|---|"]
    for task in sorted(report["task_times"], key=lambda task: -task["weight"] * (task["latency_ms"] or 0.0)):
        latency = f"{task['latency_ms']:.4g}" if task["latency_ms"] is not None else "not measured" if task.get("guessed") else "TVM's own"
        lines.append(f"| {task['name']} | {task['weight']:g} | {latency} | {'cold' if task['cold'] else 'warm'} | {task['trials']} |")
    lines.append(f"| all, of those measured | | {report['tasks_ms']:.4g} | | {report['trials']} |")
    return "\n".join([*lines, "", _example_of_use(kind_measured(report["target"], remote=False).device, report["threads"])])


def _example_of_use(device: str, threads: int) -> str:
    """Markdown that shows how to run the network, on a CPU with the threads that it was tuned for."""
    on_cpu = f"""import os
os.environ["TVM_NUM_THREADS"] = "{threads}"  # before TVM is imported, which else takes half of an x86 machine's CPUs
"""
    return f"""To run it, with TVM and NumPy alone:

```python
{on_cpu if device == "cpu" else ""}import numpy as np, tvm
device = tvm.{device}()
machine = tvm.relax.VirtualMachine(tvm.runtime.load_module("{LIBRARY}"), device)
example = np.load("{EXAMPLE}")
inputs = [tvm.runtime.tensor(example[name], device) for name in example.files if name.startswith("input")]
output = machine["main"](*inputs)
```
"""


def unchecked_text(report: Mapping[str, Any]) -> str:
    """How many tasks have a measured program that was not found right by itself, as a sentence after others; empty if none has."""
    times = report.get("task_times", ())
    count = sum(not task.get("checked", True) for task in times if task["latency_ms"] is not None)
    said = f" The measured programs of {count} of {len(times)} tasks are not known to be right by themselves; the network's output is."
    return said if count else ""


def tasks_ms(times: list[Mapping[str, Any]]) -> float:
    """Sum of weight * latency over the tasks that have a program."""
    return sum(time["weight"] * time["latency_ms"] for time in times if time["latency_ms"] is not None)


@dataclass(frozen=True)
class RunReport:
    """How fast a tuned network runs here, and how far its output is from the reference's.

    rounds_ms   each round's milliseconds;  tuned_ms: its milliseconds when it was tuned
    difference  largest difference of the output, relative to its magnitude
    """

    network: str
    platform: str
    rounds_ms: tuple[float, ...]
    tuned_ms: float
    difference: float

    @property
    def median_ms(self) -> float:
        return statistics.median(self.rounds_ms)

    def __str__(self) -> str:
        return (
            f"{self.network} on {self.platform}: {self.median_ms:.3f} ms (rounds {min(self.rounds_ms):.3f} to "
            f"{max(self.rounds_ms):.3f}), {self.tuned_ms:.3f} ms when it was tuned; difference to the reference's output {self.difference:.1e}"
        )


def run_tuned(folder: Path, rounds: int = ROUNDS) -> RunReport:
    """Run a tuned folder's network in a process of its own: check its output, and time it.

    Raises UsageError for a folder of another kind, DataError for a damaged one, PlatformError where this machine cannot run
    the network, or computes another output.
    """
    from tcl_core.tuning import latency

    report = _report(folder)
    inputs, expected = _example(folder / EXAMPLE)
    device = kind_measured(report["target"], remote=False).device
    with measuring_alone(), latency.running(folder / LIBRARY, report["threads"], report["pin_threads"], inputs, device) as process:
        differs = difference(process.outputs, expected)
        if differs > TOLERANCE:
            raise PlatformError(
                f"{shown(folder)} computes something else here: its output differs by {differs:.2g} of its magnitude; tune it here"
            )
        rounds_ms = tuple(process.round_ms() for _ in range(rounds))
    return RunReport(report["network"], report["platform"], rounds_ms, report["tuned_ms"], differs)


def _report(folder: Path) -> dict[str, Any]:
    if not (folder / REPORT).is_file():
        raise UsageError(f"{shown(folder)} is no folder that tcl tune --out wrote (it has no {REPORT}); name one")
    report = read_json(folder / REPORT, AGAIN)
    if report.get("format") != FORMAT:
        raise UsageError(f"{shown(folder)} is no folder that this version of tcl tune --out wrote; {AGAIN}")
    check_contents(folder, AGAIN)
    try:
        reason = kind_measured(report["target"], remote=False).why_unfit(report["target"])
    except (StopIteration, KeyError, TypeError):
        raise damaged(folder / REPORT, "it names no target of this version", AGAIN) from None
    if reason:
        raise PlatformError(f"{shown(folder)} was tuned for {report['platform']}, which cannot run here ({reason}); tune it here")
    return report


def _example(path: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    try:
        with np.load(path, allow_pickle=False) as example:
            inputs, outputs = (
                [example[f"{kind}_{n}"] for n in range(sum(kind in name for name in example.files))] for kind in ("input", "output")
            )
            return inputs, outputs
    except Exception:  # NumPy and zipfile raise types of their own
        raise damaged(path, "it is no example", AGAIN) from None
